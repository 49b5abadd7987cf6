# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where runs lie that are on their way out: in the runs location, and so on its filesystem, and only root can enter it.

``pending`` holds what is judged, and goes back unless it is proven unused; ``condemned`` what is emptied, whatever
happens. What lies there is called by a digest of the run's name, which may be too long, and the number of its inode.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..copies.present import opened
from ..errors import Refusal, printable
from ..places import Places
from ..syscalls import birth_time, open_beneath, rename_noreplace
from . import stamps
from .location import RunsLocation
from .shape import RunName
from .stamps import Stamp

TRASH, PENDING, CONDEMNED = ".stowage-trash", "pending", "condemned"


@dataclass(frozen=True)
class Trash:
    """Both parts, open."""

    pending: int
    condemned: int


def make(location: RunsLocation) -> None:
    """Have the trash of a location."""
    with _made(location.fd, TRASH, location.path_of(TRASH)) as fd:
        for part in (PENDING, CONDEMNED):
            with _made(fd, part, location.path_of(TRASH, part)):
                pass


@contextmanager
def opened_trash(location: RunsLocation) -> Iterator[Trash]:
    """Open the trash of a location, which is made when it is missing.

    :raises Refusal: when anybody but root could reach what lies in it
    """
    make(location)
    paths = [os.fsencode(os.path.join(TRASH, part)) for part in (PENDING, CONDEMNED)]
    with opened(location.fd, paths[0]) as pending, opened(location.fd, paths[1]) as condemned:
        yield Trash(pending, condemned)


@contextmanager
def _made(parent: int, name: str, path: str) -> Iterator[int]:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    with opened(parent, os.fsencode(name)) as fd:
        status = os.fstat(fd)
        if status.st_uid != 0 or stat.S_IMODE(status.st_mode) & 0o077:
            mode = f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
            raise Refusal(printable(path), f"must be root's alone (0700) and has {mode}", "move it away")
        yield fd


def names_in(part: int) -> list[str]:
    """Return what lies in a part, in order."""
    # Opened anew: btrfs does not list what has come since a directory was opened.
    fd = open_beneath(part, b".")
    try:
        return sorted(os.listdir(fd))
    finally:
        os.close(fd)


def entry_of(run: RunName, inode: int) -> str:
    """Return the name that the directory of a run has aside."""
    digest = hashlib.sha256(os.fsencode(str(run))).hexdigest()
    return f"{digest[:32]}-{inode}"


def whose(places: Places, entry: str, fd: int) -> tuple[RunName, Stamp] | None:
    """Return the run that lies aside under the name *entry*, open at *fd*, when it is the one that is stamped."""
    inode, birth = os.fstat(fd).st_ino, birth_time(fd)
    for name, stamp in stamps.load_all(places).items():
        run = RunName.parsed(name)
        if stamp.is_of(inode, birth) and entry_of(run, inode) == entry:
            return run, stamp
    return None


def bring_back(places: Places, location: RunsLocation) -> Sequence[str]:
    """Return to their places the runs that a removal which was killed has left aside and not judged; under the lock.

    :return: a line for each that has to stay aside
    """
    stay = []
    with opened_trash(location) as trash:
        for entry in names_in(trash.pending):
            with opened(trash.pending, os.fsencode(entry)) as fd:
                found = whose(places, entry, fd)
            path = location.path_of(TRASH, PENDING, entry)
            if found is None:
                stay.append(f"{printable(path)}: is of no run that is stamped; look at it, and move it to its place")
            elif not put_back(location, trash, entry, found[0]):
                stay.append(f"{printable(path)}: is run {printable(str(found[0]))}, and something else has its name")
    return stay


def put_back(location: RunsLocation, trash: Trash, entry: str, run: RunName) -> bool:
    """Return a run from ``pending`` to its place, unless its name is taken."""
    parent = location.open(run[:2])
    if parent is None:
        return False
    try:
        rename_noreplace(trash.pending, os.fsencode(entry), parent, os.fsencode(run.run_id))
    except FileExistsError:
        return False
    finally:
        os.close(parent)
    return True
