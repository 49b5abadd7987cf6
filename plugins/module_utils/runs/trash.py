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
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field

from ..copies.present import opened
from ..differences import Differences
from ..errors import Refusal, one_line, printable
from ..locks import try_aside_lock
from ..places import Places
from ..records import RecordError
from ..syscalls import birth_time, open_beneath, rename_noreplace
from . import stamps
from .location import RunsLocation, open_child
from .shape import RunName
from .stamps import Stamp

TRASH, PENDING, CONDEMNED = ".stowage-trash", "pending", "condemned"
_TAKEN = "something else has its name"


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
    with _opened(location) as trash:
        yield trash


@contextmanager
def found_trash(location: RunsLocation) -> Iterator[Trash | None]:
    """Open the trash of a location if there is one."""
    with ExitStack() as stack:
        try:
            trash = stack.enter_context(_opened(location))
        except FileNotFoundError:
            trash = None
        yield trash


@contextmanager
def _opened(location: RunsLocation) -> Iterator[Trash]:
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


def names_in(directory: int) -> list[str]:
    """Return what lies in a directory, such as one of the parts, in order."""
    # Opened anew: btrfs does not list what has come since a directory was opened.
    fd = open_beneath(directory, b".")
    try:
        return sorted(os.listdir(fd))
    finally:
        os.close(fd)


def key_of(run: RunName) -> str:
    """Return by what the lock of a run is known, which is held while it lies aside and is judged."""
    return hashlib.sha256(os.fsencode(str(run))).hexdigest()[:32]


def entry_of(run: RunName, inode: int) -> str:
    """Return the name that the directory of a run has aside."""
    return f"{key_of(run)}-{inode}"


def _key_in(entry: str) -> str:
    return entry.partition("-")[0]


def whose(places: Places, entry: str, fd: int) -> tuple[RunName, Stamp] | None:
    """Return the run that lies aside under the name *entry*, open at *fd*, when it is the one that is stamped.

    :raises RecordError: when it may be one whose stamp cannot be used
    """
    inode, birth = os.fstat(fd).st_ino, birth_time(fd)
    found, problems = stamps.readable(places)
    for run, stamp in found.items():
        if stamp.is_of(inode, birth) and entry_of(run, inode) == entry:
            return run, stamp
    if problems:
        raise problems[0]
    return None


@dataclass(frozen=True)
class Brought:
    """The runs that a removal which was killed had left aside and not judged."""

    back: Mapping[RunName, str] = field(default_factory=dict)
    """What lay aside and is back, or in check mode would be, by run."""
    stay: Mapping[str, str] = field(default_factory=dict)
    """Why others stay aside, one line each, by the keys of their runs."""

    def open(self, location: RunsLocation, run: RunName) -> int | None:
        """Open a run where it still lies aside, being predicted to go back; None when it does not."""
        if run not in self.back:
            return None
        try:
            return open_beneath(location.fd, os.fsencode(os.path.join(TRASH, PENDING, self.back[run])))
        except FileNotFoundError:
            return None


def bring_back(places: Places, location: RunsLocation, differences: Differences, held: RunName) -> Brought:
    """Return to their places the runs that a removal which was killed has left aside; under the lock of runs.

    On a disk that is full one day nobody could make the trash: this does.

    :param held: the run whose lock the caller holds; what others judge at this moment is left to them
    """
    back: dict[RunName, str] = {}
    stay: dict[str, str] = {}
    with found_trash(location) if differences.check_mode else opened_trash(location) as trash:
        if trash is None:
            return Brought(back, stay)
        for entry in names_in(trash.pending):
            key = _key_in(entry)
            free = key == key_of(held) or differences.check_mode
            with nullcontext(True) if free else try_aside_lock(places, key) as mine:
                if mine:
                    run, why = _bring_back(places, location, trash, entry, differences)
                    if why:
                        stay[key] = f"{printable(location.path_of(TRASH, PENDING, entry))}: {why}"
                    elif run is not None:
                        back[run] = entry
    return Brought(back, stay)


def _bring_back(
    places: Places, location: RunsLocation, trash: Trash, entry: str, differences: Differences
) -> tuple[RunName | None, str]:
    """Return one run to its place, or predict it; return which one it is, and why it stays."""
    try:
        with opened(trash.pending, os.fsencode(entry)) as fd:
            found = whose(places, entry, fd)
    except FileNotFoundError:
        return None, ""
    except RecordError as error:
        return None, str(error)
    if found is None:
        return None, "is of no run that is stamped; look at it, and move it to its place"
    run = found[0]
    why = _why_not(location, run) if differences.check_mode else put_back(location, trash, entry, run)
    if why:
        return run, f"is run {printable(str(run))}: {why}"
    path = location.path_of(*run)
    differences.note(f"run {run}", path, None)
    differences.act(f"put back {path}")
    return run, ""


def put_back(location: RunsLocation, trash: Trash, entry: str, run: RunName) -> str:
    """Return a run from ``pending`` to its place, unless its name is taken; return why it stays, or "".

    Directories above it that have gone meanwhile are made again.
    """
    why = _why_not(location, run)
    if why:
        return why
    try:
        with _parent_of(location, run) as parent:
            rename_noreplace(trash.pending, os.fsencode(entry), parent, os.fsencode(run.run_id))
    except FileExistsError:
        return _TAKEN
    except OSError as error:
        return one_line(error, location.path_of(*run))
    return ""


def _why_not(location: RunsLocation, run: RunName) -> str:
    try:
        fd = location.open(run)
    except Refusal as refusal:
        return str(refusal)
    if fd is None:
        return ""
    os.close(fd)
    return _TAKEN


@contextmanager
def _parent_of(location: RunsLocation, run: RunName) -> Iterator[int]:
    with ExitStack() as stack:
        fd = location.fd
        for number, name in enumerate(run[:2], 1):
            made = False
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=fd)
                made = True
            fd = open_child(fd, name, location.path_of(*run[:number]))
            stack.callback(os.close, fd)
            if made:
                os.fchmod(fd, 0o755)  # whatever the umask is
        yield fd
