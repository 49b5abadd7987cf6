# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What lies aside in a data location while nothing is at work with it, and putting back what was not judged yet."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from ..data_location import locations as data_locations
from ..data_location.locations import CONDEMNED, PENDING, DataLocation
from ..differences import Differences
from ..errors import StowageError
from ..locks import try_lock
from ..places import Places
from . import trash
from .present import names_in
from .trash import Parts, opened_parts


@dataclass(frozen=True)
class Aside:
    """One thing that lies aside."""

    location: DataLocation
    part: bytes
    """``PENDING`` or ``CONDEMNED``."""
    entry: bytes
    copy: str = ""
    """The copy of this host that it is; empty for anything else."""
    returns: bool = False
    """Whether it can be put back: it was not condemned, and its place is free."""

    @property
    def path(self) -> str:
        return os.path.join(self.location.path, os.fsdecode(self.part), os.fsdecode(self.entry))


def look(location: DataLocation) -> list[Aside]:
    """Return what lies aside in a data location.

    :raises NotThere: when it is not there
    """
    found = []
    with opened_parts(location) as parts:
        taken = set(os.listdir(parts.drives))
        for part, fd in ((PENDING, parts.pending), (CONDEMNED, parts.condemned)):
            for entry in names_in(parts.root, part):
                copy = _copy(location, fd, entry)
                returns = bool(copy) and part == PENDING and copy not in taken
                taken.update({copy} if returns else ())
                found.append(Aside(location, part, entry, copy, returns))
    return found


def _copy(location: DataLocation, fd: int, entry: bytes) -> str:
    name, _reason = trash.parsed(entry)
    with ExitStack() as stack:
        return name if trash.own(fd, entry, name, location, stack) is not None else ""


def put_back(one: Aside) -> None:
    """Return a copy to its place; one that another process is at work with is that process's matter."""
    with opened_parts(one.location) as parts, ExitStack() as stack:
        lock = try_lock(parts.locks, os.fsencode(one.copy))
        if lock is not None:
            stack.callback(os.close, lock)
            _put_back(parts, one, stack)


def _put_back(parts: Parts, one: Aside, stack: ExitStack) -> None:
    if trash.own(parts.pending, one.entry, one.copy, one.location, stack) is not None:
        trash.put_back(parts, one.entry, one.copy)


def settle(places: Places, differences: Differences, warn: Callable[[str], object]) -> list[Aside]:
    """Put back what was set aside in any data location and not judged yet, and return what stays aside.

    Nobody may be at work in them any more.
    """
    found: list[Aside] = []
    try:
        present = data_locations.load(places)
        locations = [*([present] if present is not None else []), *data_locations.load_former(places)]
    except StowageError as error:
        warn(f"what lies aside in data locations is unknown: {error}")
        return []
    for location in locations:
        try:
            found += look(location)
        except StowageError as error:
            warn(f"what lies aside there is unknown: {error}")
    for one in found:
        if one.returns:
            differences.note(f"copy {one.copy} in {one.location.path}", "in its place", "aside")
            differences.do(f"put copy {one.copy} in {one.location.path} back", partial(put_back, one))
    return [one for one in found if (not one.returns if differences.check_mode else os.path.lexists(one.path))]
