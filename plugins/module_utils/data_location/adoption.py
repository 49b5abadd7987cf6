# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking in what was there before: directories by their names, and what was another host's data location."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..copies import fill_marks
from ..copies import present as copies
from ..copies.present import names_in, opened, opened_copy
from ..drives import recorded as drive_records
from ..drives.declared import check_name, copy_name, split_copy_name
from ..errors import Refusal
from ..owner import Mark, claim, read_mark, renew
from ..places import Places
from ..syscalls import NO_DIRECTORY
from .locations import CONDEMNED, COPY, DRIVES, PENDING

ADOPTED = "adopted"


def adopt_names(values: Sequence[Any]) -> list[str]:
    """Return copy names, given as such or as dictionaries of ``workspace`` and ``drive``."""
    names = []
    for index, value in enumerate(values):
        where = f"adopt[{index}]"
        if isinstance(value, Mapping):
            if set(value) != {"workspace", "drive"}:
                raise Refusal(where, "must be a dictionary of workspace and drive", "or a name, <workspace>.<drive>")
            value = copy_name(*(check_name(value[key], f"{where}.{key}") for key in ("workspace", "drive")))
        split_copy_name(value, where)
        names.append(value)
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Adoption:
    """A directory below ``drives/`` that is to become a copy, named by the operator."""

    name: str
    identity: str
    """The drive that it becomes the copy of."""
    declared: bool
    """Whether that drive is known; else the identity is kept for it until it is."""
    state: str
    """ADOPTED when there is nothing left to do."""


def find_adoptions(
    places: Places, names: Sequence[str], host: str, old: str, fd: int | None, warnings: list[str]
) -> list[Adoption]:
    """Return what is to be taken in of the folder open at *fd*, sorted; what is not there is only warned of.

    :param old: another host whose copies may be taken in
    """
    reserved = drive_records.load_adopted(places)
    found = []
    for name in names:
        workspace, drive = split_copy_name(name, "adopt")
        try:
            mark = _mark_of(fd, name)
        except FileNotFoundError:
            warnings.append(f"adopt: there is no directory {name} in drives; take it off the list")
            continue
        if mark is not None and (mark.kind != COPY or mark.host not in (host, old)):
            raise Refusal(
                f"adopt {name}",
                f"it is marked as a {mark.kind} of host {mark.host}",
                f"if the disk was moved here, take all of it over with adopt_from: {mark.host}",
            )
        declared = {one.name: one for one in drive_records.load(places, workspace) or []}.get(drive)
        if declared is not None:
            identity = _declared_identity(name, mark, declared)
        else:
            identity = mark.identity if mark is not None else reserved.get(name) or str(uuid.uuid4())
        state = "without a mark" if mark is None else "of another drive or host"
        known = declared is not None or reserved.get(name) == identity
        if mark is not None and (mark.name, mark.host, mark.identity) == (name, host, identity) and known:
            state = ADOPTED
        found.append(Adoption(name, identity, declared is not None, state))
    return sorted(found, key=lambda adoption: adoption.name)


def _mark_of(fd: int | None, name: str) -> Mark | None:
    if fd is None:
        raise FileNotFoundError
    try:
        with opened_copy(fd, name) as child:
            return read_mark(child)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            raise Refusal(
                f"adopt {name}", "it is not a directory on the data location's disk", "move it there"
            ) from error
        raise


def _declared_identity(name: str, mark: Mark | None, declared: drive_records.Drive) -> str:
    copy_of_it = mark is not None and mark.identity == declared.identity
    if not copy_of_it and (declared.absent or not declared.placed):
        what = "is to be deleted (state: absent)" if declared.absent else "is not kept on data locations"
        raise Refusal(f"adopt {name}", f"its drive {what}", "take it off the list")
    return declared.identity


def take_in(adoption: Adoption, host: str, fd: int) -> None:
    """Make a directory of the data location open at *fd* a copy of this host."""
    name, identity = adoption.name, adoption.identity
    held = copies.take_lock(fd, name)  # also makes the lock's file, which a full disk could not
    try:
        with opened_copy(fd, name) as child:
            mark = read_mark(child)
            fill_marks.remove(child)  # what the operator names is no fill's leftover
            if mark is not None:
                renew(child, mark, name=name, identity=identity, host=host)
            else:
                claim(child, COPY, name, identity, host)
    finally:
        os.close(held)


def reserve(places: Places, adoptions: Iterable[Adoption]) -> None:
    """Keep the identities of *adoptions* whose drives are yet to be declared, for these."""
    undeclared = {adoption.name: adoption.identity for adoption in adoptions if not adoption.declared}
    if undeclared:
        drive_records.write_adopted(
            drive_records.adopted_path(places), {**drive_records.load_adopted(places), **undeclared}
        )


def take_over(fd: int, path: str, old: str, new: str) -> None:
    """Make the data location open at *fd*, and the copies in it, those of host *new* where they are of *old*."""
    for part in (DRIVES, PENDING, CONDEMNED):
        for name in names_in(fd, part):
            try:
                with opened(fd, part + b"/" + name) as child:
                    mark = read_mark(child)
                    if mark is not None and (mark.kind, mark.host) == (COPY, old):
                        renew(child, mark, name=mark.name, identity=mark.identity, host=new)
            except OSError as error:
                if error.errno not in NO_DIRECTORY:
                    raise
    # The location last: until then a run that was cut short is seen, and done again.
    mark = read_mark(fd)
    if mark is not None and mark.host == old:
        renew(fd, mark, name=path, identity=mark.identity, host=new)
