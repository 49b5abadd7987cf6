# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a data location that only root can enter, and the copies that lie aside in them.

``pending`` holds copies that are judged, and go back unless they are proven unused; ``condemned`` those that are
emptied, whatever happens.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ..data_location import locations as data_locations
from ..data_location.locations import CONDEMNED, DRIVES, LOCKS, PENDING, DataLocation
from ..drives.declared import split_copy_name
from ..errors import Refusal, StowageError
from ..eviction.plan import REASONS, Victim
from ..owner import Mark
from ..syscalls import NO_DIRECTORY, rename_noreplace
from . import present as copies

_REMEDY = "roll the host out again"


@dataclass(frozen=True)
class Parts:
    """The directories of a data location that was proven to be the right one."""

    root: int
    drives: int
    locks: int
    pending: int
    condemned: int


@contextmanager
def opened_parts(location: DataLocation) -> Iterator[Parts]:
    """Prove that the data location is there, and open its parts for as long as a round takes.

    :raises NotThere: when it is not: nothing is touched then
    :raises Refusal: when anybody but root could reach what lies in a part: then nothing there is proven unused for long
    """
    with ExitStack() as stack:
        root = data_locations.open_verified(location)
        stack.callback(os.close, root)
        for name in (os.path.dirname(LOCKS), os.path.dirname(PENDING)):
            with ExitStack() as inner:
                _private(root, location, name, inner)
        yield Parts(root, *(_private(root, location, name, stack) for name in (DRIVES, LOCKS, PENDING, CONDEMNED)))


def _private(root: int, location: DataLocation, name: bytes, stack: ExitStack) -> int:
    path = os.path.join(location.path, os.fsdecode(name))
    try:
        fd = stack.enter_context(copies.opened(root, name))
    except OSError as error:
        raise Refusal(path, f"not a directory of the data location ({error.strerror})", _REMEDY) from error
    status = os.fstat(fd)
    if status.st_uid != 0 or stat.S_IMODE(status.st_mode) != 0o700:
        mode = f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
        raise Refusal(path, f"must be root's alone (0700) and has {mode}", _REMEDY)
    return fd


def entry_of(victim: Victim) -> bytes:
    """Return a name for a copy aside that says whose it is and why it is there, and that nothing else has."""
    return os.fsencode(f"{victim.name}.{victim.reason}-{time.time_ns():x}-{secrets.token_hex(4)}")


def parsed(entry: bytes) -> tuple[str, str]:
    """Return the copy and the reason that a name aside tells, or two empty texts for a name that was not made here."""
    name, _dot, token = os.fsdecode(entry).rpartition(".")
    reason = token.partition("-")[0]
    try:
        split_copy_name(name)
    except StowageError:
        return "", ""
    return (name, reason) if reason in REASONS else ("", "")


def own(dir_fd: int, entry: bytes, name: str, location: DataLocation, stack: ExitStack) -> tuple[int, Mark] | None:
    """Open what lies aside when it is the host's copy *name*, and nothing that anybody else has put there."""
    if not name:
        return None
    try:
        fd = stack.enter_context(copies.opened(dir_fd, entry))
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            return None
        raise
    mark = copies.own_mark(fd, name, location)
    return (fd, mark) if mark is not None else None


def bring_back(location_fd: int, location: DataLocation, name: str, identity: str) -> bool:
    """Return to its place what an eviction that was killed has left aside of a copy; return whether there was any.

    The caller holds the copy's lock: no eviction is at work with it. Of another drive of that name, or when the name is
    taken, nothing is touched.
    """
    with ExitStack() as stack:
        entries = [entry for entry in copies.names_in(location_fd, PENDING) if parsed(entry)[0] == name]
        if not entries:
            return False
        pending = stack.enter_context(copies.opened(location_fd, PENDING))
        drives = stack.enter_context(copies.opened(location_fd, DRIVES))
        for entry in entries:
            found = own(pending, entry, name, location, stack)
            if found is not None and found[1].identity == identity:
                try:
                    rename_noreplace(pending, entry, drives, os.fsencode(name))
                except FileExistsError:
                    return False
                return True
    return False


def put_back(parts: Parts, entry: bytes, name: str) -> bool:
    """Return a copy from ``pending`` to its place, unless its name is taken."""
    try:
        rename_noreplace(parts.pending, entry, parts.drives, os.fsencode(name))
    except FileExistsError:
        return False
    return True
