# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looking at a tier of whole files, and removing the files of a plan: by descriptors, never across a mount.

A file goes only while the kernel grants a write lease on it, which it does on nothing that anybody has open. It is
moved into a directory that only root can enter first. Only when it is that very inode there, and the directory that it
was in is where it was looked at, is it unlinked; else it goes back.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from .. import mounts as mount_table
from ..errors import StowageError, printable
from ..eviction import write_leases
from ..eviction.write_leases import OpenElsewhereError
from ..mounts import place_in_filesystem
from ..syscalls import DIRECTORY, NO_DIRECTORY, open_beneath, rename_noreplace
from ..trees.tally import FirstProblems
from ..trees.walk import Problem, Walk
from .files_eviction import Excess, Limits, Plan, Victim
from .survey import is_marked

OPEN, CHANGED, MOVED = "open", "changed or read meanwhile", "in a directory that was moved meanwhile"
MOUNTED, APART = "mounted elsewhere", "in a subvolume or a project of the quota of its own"
"""Why a candidate stays; else it is what the kernel says."""

ASIDE = b".stowage-evicting"
"""The directory in the tier that only root can enter."""

_CHUNK = 2048
_BATCH = 4096
_DEEPEST = 100
_LONGEST = 3000  # characters of a directory's path: what is opened at once may have 4095 bytes
_HELD = 128
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_PREFIX = b".stowage-"

Check = Callable[[], None]
"""Raises when the work has to end; called every few milliseconds, and before each file that goes."""


def look(root_fd: int, limits: Limits, check: Check) -> tuple[Plan, FirstProblems]:
    """Look at every file of the tier open at *root_fd*; return what was found, and what could not be looked at."""
    problems = FirstProblems()
    plan = Plan(limits, time.time_ns())
    again = open_beneath(root_fd, b".")  # btrfs does not list what has come since a directory was opened
    try:
        walk = Walk(again, problems.add)
        for directory in walk:
            if walk.depth and is_marked(directory.fd):
                problems.add(Problem(walk.path(), "bears an owner mark, and is left out", missing=False))
                directory.leave_out()
                continue
            path = "/".join(walk.names) if walk.depth <= _DEEPEST else None
            if path is not None and len(path) > _LONGEST:
                path = None
            entries = directory.files()
            device = directory.status.st_dev
            taken = _CHUNK
            while taken == _CHUNK:
                check()
                taken = plan.take(path, device, islice(entries, _CHUNK))
    finally:
        os.close(again)
    return plan, problems


@dataclass
class Removed:
    """What was removed, and what had to stay."""

    files: int = 0
    allocated: int = 0
    kept: Counter[str] = field(default_factory=Counter)


def make_aside(root_fd: int) -> None:
    """Make the directory through which files go, while the disk has room for it.

    What a round that was killed has left in it comes out again, into the tier itself and under names of ours.
    """
    aside_fd = _open_aside(root_fd)
    try:
        for name in os.listdir(aside_fd):
            rename_noreplace(aside_fd, os.fsencode(name), root_fd, _PREFIX + _random())
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
    finally:
        os.close(aside_fd)


def forget_aside(root_fd: int) -> None:
    """Take that directory away from a tier that is given up; what a killed round has left in it keeps it there."""
    with contextlib.suppress(OSError):
        os.rmdir(ASIDE, dir_fd=root_fd)


def _open_aside(root_fd: int) -> int:
    name = printable(ASIDE)
    try:
        os.mkdir(ASIDE, 0o700, dir_fd=root_fd)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        rule = "there is no room for the directory through which files go"
        raise StowageError(f"{name}: {rule} ({error.strerror}); remove any file of the tier") from error
    try:
        fd = open_beneath(root_fd, ASIDE)
    except OSError as error:
        raise StowageError(f"{name}: is not Stowage's own directory: {error.strerror}; remove it") from error
    status = os.fstat(fd)
    if status.st_uid or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(fd)
        raise StowageError(f"{name}: is not Stowage's own directory: others than root can enter it; remove it")
    return fd


def remove(root_fd: int, path: str, plan: Plan, removed: Removed, check: Check) -> Excess:
    """Remove files until the plan's excess is gone, or no candidate is left; return what is left of it.

    The caller ignores SIGIO, which tells that somebody wants a file on which a lease is held.

    :param path: where the tier open at *root_fd* has to be, for anything to go
    """
    excess = plan.excess()
    if not excess:
        return excess
    candidates = plan.oldest()
    with contextlib.ExitStack() as stack:
        remover = _Remover(root_fd, path, plan, removed, stack)
        while excess:
            batch = _batch(candidates, excess)
            if not batch:
                break
            for victim in batch:
                check()
                freed = remover.remove(victim)
                if freed is not None:
                    removed.files += 1
                    removed.allocated += freed
                    excess.shrink(freed)
    removed.kept.update(plan.kept)
    return excess


def _batch(candidates: Iterator[Victim], excess: Excess) -> list[Victim]:
    """Return the next candidates, no more than have to go, directory by directory: that saves opening these."""
    left = Excess(excess.allocated, excess.files)
    batch = []
    for victim in candidates:
        if left.helped_by(victim):
            batch.append(victim)
            left.shrink(victim.allocated)
            if not left or len(batch) == _BATCH:
                break
    batch.sort(key=lambda victim: (victim.directory, victim.time_ns))
    return batch


class _Place(NamedTuple):
    """Where a file is to be found."""

    dir_fd: int
    name: bytes
    directory: str
    """The path of its directory."""


class _Remover:
    def __init__(self, root_fd: int, path: str, plan: Plan, removed: Removed, stack: contextlib.ExitStack) -> None:
        self._root_fd = root_fd
        self._plan = plan
        self._kept = removed.kept
        self._path = path
        self._directories: OrderedDict[str, int] = OrderedDict()
        stack.callback(self._close)
        self._descriptors_fd = os.open("/proc/self/fd", DIRECTORY)
        stack.callback(os.close, self._descriptors_fd)
        self._mounted = _mounted_below(root_fd, path)
        self._aside_fd = _open_aside(root_fd)
        stack.callback(os.close, self._aside_fd)
        self._aside = _random()

    def remove(self, victim: Victim) -> int | None:
        """Remove a file and return what that has freed; None when it stays."""
        try:
            why = self._try(victim)
        except OpenElsewhereError:
            why = OPEN
        except StowageError as error:
            raise StowageError(f"{printable(victim.name)}: {error}") from error
        except OSError as error:
            why = (
                CHANGED if error.errno in NO_DIRECTORY else OPEN if error.errno == errno.EBUSY else str(error.strerror)
            )
        if why:
            self._kept[why] += 1
            if why == MOVED:
                self._close()  # what else is to go from there is not found any more
            return None
        return victim.allocated

    def _try(self, victim: Victim) -> str:
        """Remove a file under a write lease; return why it stays.

        One who has begun to open it is made to wait by the lease. Who is between finding the name and that gets the
        whole file, which has no name then: the kernel offers nothing against this, and it is a matter of microseconds.
        """
        names = _names(victim)
        if self._mounted and not self._mounted.isdisjoint(os.path.join(*reversed(name)) for name in names):
            return MOUNTED
        places = [self._place(*name) for name in names]
        fd, status = write_leases.leased(places[0].dir_fd, places[0].name)
        moved = 0
        try:
            if status.st_nlink != len(names) or self._is_newer(victim, status):
                return CHANGED
            for place in places:
                self._move_aside(place, moved)
                moved += 1
            why = self._why_not(fd, status, places)
            if not why:
                while moved:
                    os.unlink(self._name(moved - 1), dir_fd=self._aside_fd)
                    moved -= 1
            return why
        finally:
            while moved:
                moved -= 1
                self._put_back(self._name(moved), places[moved])
            os.close(fd)

    def _is_newer(self, victim: Victim, status: os.stat_result) -> bool:
        plan = self._plan
        return plan.time_of(status) > victim.time_ns or plan.is_young(status, time.time_ns())

    def _why_not(self, fd: int, status: os.stat_result, places: list[_Place]) -> str:
        """Return why what was moved aside has to go back."""
        for number, place in enumerate(places):
            there = os.stat(self._name(number), dir_fd=self._aside_fd, follow_symlinks=False)
            if (there.st_ino, there.st_dev) != (status.st_ino, status.st_dev):
                return CHANGED
            # The kernel tells where it is now, whatever was moved: it, the tier, or what that is in.
            if os.readlink(str(place.dir_fd), dir_fd=self._descriptors_fd) != place.directory:
                return MOVED
        return "" if write_leases.is_kept(fd) else OPEN

    # -- Aside

    def _name(self, number: int) -> bytes:
        return b"%s-%d" % (self._aside, number)

    def _move_aside(self, place: _Place, number: int) -> None:
        try:
            os.rename(place.name, self._name(number), src_dir_fd=place.dir_fd, dst_dir_fd=self._aside_fd)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise OSError(errno.EPERM, APART) from error
            raise

    def _put_back(self, aside: bytes, place: _Place) -> None:
        try:
            try:
                rename_noreplace(self._aside_fd, aside, place.dir_fd, place.name)
            except FileExistsError:  # another one has its name: it stays beside it, until its time comes again
                rename_noreplace(self._aside_fd, aside, place.dir_fd, _PREFIX + _random())
        except OSError:
            self._aside = _random()  # its directory is gone, or full: the next round finds it where it is now

    # -- Directories

    def _place(self, name: str, directory: str) -> _Place:
        path = os.path.join(self._path, directory) if directory else self._path
        return _Place(self._open(directory), os.fsencode(name), path)

    def _open(self, directory: str) -> int:
        """Return a descriptor of a directory below the tier; the latest ones stay open."""
        fds = self._directories
        fd = fds.get(directory)
        if fd is not None:
            fds.move_to_end(directory)
            return fd
        fd = open_beneath(self._root_fd, os.fsencode(directory) or b".")
        fds[directory] = fd
        if len(fds) > _HELD:
            os.close(fds.popitem(last=False)[1])
        return fd

    def _close(self) -> None:
        while self._directories:
            os.close(self._directories.popitem()[1])


def _mounted_below(root_fd: int, path: str) -> set[str]:
    """Return what below the tier is mounted somewhere, as paths below it: such a file is in use without being open.

    What containers have mounted among themselves takes rights to see that whoever calls this need not have.
    """
    mounts = mount_table.read()
    mount = mount_table.of_fd(root_fd, mounts)
    inside = place_in_filesystem(path, mount).rstrip("/") + "/"
    same = (other.root for other in mounts if other.device == mount.device)
    return {root[len(inside) :] for root in same if root.startswith(inside)}


def _random() -> bytes:
    return secrets.token_hex(8).encode()


def _names(victim: Victim) -> list[tuple[str, str]]:
    return [(victim.name, victim.directory), *victim.others]
