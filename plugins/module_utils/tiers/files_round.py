# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looking at a tier of whole files, and removing the files of a plan: by descriptors, never across a mount.

A file goes only while the kernel grants a write lease on it, which it does on nothing that anybody has open. What is
unlinked is that very inode: the name is moved aside first, and moved back when something else was under it by then.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from ..errors import StowageError, printable
from ..syscalls import NO_DIRECTORY, open_beneath, rename_noreplace
from ..trees.tally import FirstProblems
from ..trees.walk import Problem, Walk
from .files_eviction import Excess, Limits, Plan, Victim
from .survey import is_marked

OPEN, CHANGED = "open", "changed or read meanwhile"
"""Why a candidate stays; else it is what the kernel says."""

_CHUNK = 2048
_BATCH = 4096
_DEEPEST = 100
_LONGEST = 3000  # characters of a directory's path: what is opened at once may have 4095 bytes
_HELD = 128
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_REFUSED = (errno.EAGAIN, errno.EBUSY, errno.ETXTBSY)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_PREFIX = b".stowage-"

Check = Callable[[], None]
"""Raises when the work has to end; called every few milliseconds."""


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


def remove(root_fd: int, plan: Plan, removed: Removed, check: Check) -> Excess:
    """Remove files until the plan's excess is gone, or no candidate is left; return what is left of it.

    The caller ignores SIGIO, which tells that somebody wants a file on which a lease is held.
    """
    excess = plan.excess()
    if not excess:
        return excess
    candidates = plan.oldest()
    with contextlib.ExitStack() as stack:
        remover = _Remover(root_fd, plan, removed, stack)
        while excess:
            batch = _batch(candidates, excess)
            if not batch:
                break
            for number, victim in enumerate(batch):
                if not number & 63:
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


class _Remover:
    def __init__(self, root_fd: int, plan: Plan, removed: Removed, stack: contextlib.ExitStack) -> None:
        self._root_fd = root_fd
        self._plan = plan
        self._kept = removed.kept
        self._directories: OrderedDict[str, int] = OrderedDict()
        self._aside = _aside()
        stack.callback(self._close)

    def remove(self, victim: Victim) -> int | None:
        """Remove a file and return what that has freed; None when it stays."""
        try:
            why = self._try(victim)
        except OSError as error:
            why = CHANGED if error.errno in NO_DIRECTORY else OPEN if error.errno in _REFUSED else str(error.strerror)
        if why:
            self._kept[why] += 1
            return None
        return victim.allocated

    def _try(self, victim: Victim) -> str:
        """Remove a file under a write lease; return why it stays."""
        names = [(self._open(directory), os.fsencode(name)) for name, directory in _names(victim)]
        fd = os.open(names[0][1], _FILE, dir_fd=names[0][0])
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != len(names) or self._is_newer(victim, status):
                return CHANGED
            try:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except OSError as error:
                if error.errno in _REFUSED:
                    return OPEN
                what = f"has no write lease: {error.strerror}; the kernel or its filesystem must grant leases"
                raise StowageError(f"{printable(victim.name)}: {what}") from error
            whys = [self._unlink(fd, status, *name) for name in names]
            return next(filter(None, whys), "")
        finally:
            os.close(fd)

    def _is_newer(self, victim: Victim, status: os.stat_result) -> bool:
        plan = self._plan
        return plan.time_of(status) > victim.time_ns or plan.is_young(status, time.time_ns())

    def _unlink(self, fd: int, status: os.stat_result, dir_fd: int, name: bytes) -> str:
        """Unlink *name* if it is the file open at *fd*, and nobody waits to open that; return why not.

        One who has begun to open it is made to wait by the lease. Who is between finding the name and that gets the
        whole file, which has no name then: the kernel offers nothing against this, and it is a matter of microseconds.
        """
        aside = self._aside
        try:
            os.rename(name, aside, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            aside = name  # a full disk has no room for another name
        there = os.stat(aside, dir_fd=dir_fd, follow_symlinks=False)
        if (there.st_ino, there.st_dev) != (status.st_ino, status.st_dev):
            why = CHANGED
        elif fcntl.fcntl(fd, fcntl.F_GETLEASE) != fcntl.F_WRLCK:
            why = OPEN
        else:
            os.unlink(aside, dir_fd=dir_fd)
            return ""
        if aside != name:
            self._put_back(dir_fd, aside, name)
        return why

    def _put_back(self, dir_fd: int, aside: bytes, name: bytes) -> None:
        try:
            rename_noreplace(dir_fd, aside, dir_fd, name)
        except FileExistsError:
            self._aside = _aside()  # another one has its name: it stays as it is now, until its time comes again

    # -- Directories

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


def _aside() -> bytes:
    return _PREFIX + secrets.token_hex(8).encode()


def _names(victim: Victim) -> list[tuple[str, str]]:
    return [(victim.name, victim.directory), *victim.others]
