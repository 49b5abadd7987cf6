# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Going through a directory tree by descriptors, however deep it is and whoever changes it meanwhile.

    for directory in Walk(root_fd, report):
        for entry in directory.files():
            ...

visits `root_fd` and every directory below it, parents first. It never follows a symbolic link, never goes through
`..` and never enters what is mounted below (a btrfs subvolume is no mount and belongs to the tree). `files()` gives
everything that is no directory as `os.DirEntry`: names are text with `surrogateescape`, so that `os.fsencode` gives
the exact bytes back. `directory.fd` and the entries are good until the next directory is asked for.

Only about 64 levels and some check points are held open, 320 descriptors at most. A level that was closed is opened
again from the nearest level still held, name by name, and each must be the device and inode that it was before.

A name that has gone between listing and opening was removed, which is no problem, or its file has another name now:
the directory is listed again and its inode looked for. One that is gone again each time makes the visit incomplete.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ..errors import printable
from ..syscalls import open_beneath
from .inode_set import InodeSet

# How many of the latest levels stay open, and into how many parts a way back is cut by check points.
_WINDOW = 64
_CHECK_POINTS = 256

# A directory file of this size has some 10^4 entries. Reading inodes in the order of names then reads the inode
# tables again and again when memory is short, so entries are sorted by inode, as many at a time as memory allows.
_LARGE_DIRECTORY = 512 * 1024
_BATCH = 32768

_LONGEST_PATH = 1000  # characters, in messages

# Between listing a name and opening it the owner may remove it or put something else there: no problem of ours.
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
# How often a directory is listed again for what has another name now.
_LOOKS = 3


@dataclass(frozen=True)
class Problem:
    """Something in a tree that was not visited. A mount below is left out on purpose, all else is missing."""

    path: str
    what: str
    missing: bool = True

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def shown_path(names: Sequence[str], prefix: str = "", name: str = "") -> str:
    """Return the way to a directory, and a name in it, for messages; the middle of a very long path is left out."""
    middle = max(0, len(names) - 8)
    shown = [*names[: min(8, middle)], *(("...",) if middle > 8 else ()), *names[middle:]]
    path = printable("/".join(part for part in (prefix, *shown, name) if part) or ".")
    return path if len(path) <= _LONGEST_PATH else f"{path[: _LONGEST_PATH // 2]}...{path[-_LONGEST_PATH // 2 :]}"


class Waiting:
    """Names of directories that wait to be visited, and the inodes that they had when they were listed.

    Anybody can make millions in one directory: each takes its name and 9 bytes, where tuples take 170.
    """

    __slots__ = ("_inodes", "_names")

    def __init__(self) -> None:
        self._names = bytearray()
        self._inodes = array("Q")

    def __len__(self) -> int:
        return len(self._inodes)

    def add(self, name: str, inode: int) -> None:
        self._names += os.fsencode(name) + b"/"
        self._inodes.append(inode)

    def pop(self) -> tuple[str, int]:
        """Return the one that was added last."""
        names = self._names
        begin = names.rfind(b"/", 0, len(names) - 1) + 1
        name = os.fsdecode(bytes(names[begin:-1]))
        del names[begin:]
        return name, self._inodes.pop()


class _Level:
    """A directory on the way from the root to where the walk is."""

    __slots__ = ("dev", "fd", "gone", "ino", "kept", "looks", "name", "waiting")

    def __init__(self, name: str, fd: int, status: os.stat_result) -> None:
        self.name = name
        self.dev = status.st_dev
        self.ino = status.st_ino
        self.fd: int | None = fd
        self.kept = False  # a check point: stays open when it is far above
        self.waiting = Waiting()
        self.gone: set[int] = set()  # inodes whose names have gone
        self.looks = 0


class Directory:
    """One visited directory."""

    __slots__ = ("_level", "_listed", "_walk", "fd", "status")

    def __init__(self, fd: int, status: os.stat_result, walk: Walk, level: _Level) -> None:
        self.fd = fd
        self.status = status
        self._walk = walk
        self._level = level
        self._listed = False

    def files(self, by_inode: bool = False) -> Iterator[os.DirEntry[str]]:
        """Return everything in it that is no directory; the directories are remembered and visited later.

        A large directory always, any other only when asked, comes in the order of inodes, some 10^4 at a time.
        """
        self._listed = True
        waiting, gone = self._level.waiting, self._level.gone
        try:
            with os.scandir(self.fd) as entries:
                ordered = _by_inode(entries) if by_inode or self.status.st_size >= _LARGE_DIRECTORY else entries
                for entry in ordered:
                    if gone and entry.inode() in gone:
                        gone.discard(entry.inode())  # renamed while it was listed, which found it twice
                    if entry.is_dir(follow_symlinks=False):
                        waiting.add(entry.name, entry.inode())
                    else:
                        yield entry
            while gone and self._walk.may_look_again():
                yield from self._looked_for(gone)
        except OSError as error:
            self._walk.problem(error)

    def _looked_for(self, gone: set[int]) -> Iterator[os.DirEntry[str]]:
        wanted = gone.copy()
        gone.clear()
        for entry in _named(self.fd, wanted):
            if entry.is_dir(follow_symlinks=False):
                self._level.waiting.add(entry.name, entry.inode())
            else:
                yield entry

    def gone(self, entry: os.DirEntry[str]) -> None:
        """Have a file looked for, while the files are listed, whose name is not there any more."""
        self._level.gone.add(entry.inode())

    def leave_out(self) -> None:
        """Visit nothing that is in it. To be called before its files are listed."""
        self._listed = True

    def finish(self) -> None:
        """List it when nobody has, so that the directories below are known."""
        if not self._listed:
            for _entry in self.files():
                pass


def _named(fd: int, inodes: set[int]) -> Iterator[os.DirEntry[str]]:
    """Return what is in a directory under any name of these inodes, each once."""
    again = open_beneath(fd, b".")  # btrfs does not list what has come since a directory was opened
    try:
        with os.scandir(again) as entries:
            for entry in entries:
                if entry.inode() in inodes:
                    inodes.discard(entry.inode())
                    yield entry
    finally:
        os.close(again)


def _by_inode(entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
    while True:
        batch = list(islice(entries, _BATCH))
        if not batch:
            return
        batch.sort(key=os.DirEntry.inode, reverse=True)
        while batch:  # an entry keeps what stat returned: let go of each at once
            yield batch.pop()


class Walk:
    """The walk through one tree; iterate over it once.

    `report` is told each problem. `leaving(parent_fd, name)`, when given, is called for each directory below the
    root after everything in it was visited.
    """

    def __init__(
        self,
        root_fd: int,
        report: Callable[[Problem], None],
        leaving: Callable[[int, str], None] | None = None,
        prefix: str = "",
    ) -> None:
        self._report = report
        self._leaving = leaving
        self._prefix = prefix
        self._root_fd = root_fd
        self._levels = [_Level("", root_fd, os.fstat(root_fd))]
        self._check_points: list[int] = []
        self._visited = InodeSet()

    def __iter__(self) -> Iterator[Directory]:
        fd = self._root_fd
        visited: Directory | None = Directory(fd, os.fstat(fd), self, self._levels[0])
        try:
            while True:
                if visited is not None:
                    yield visited
                    visited.finish()
                level = self._levels[-1]
                visited = None
                if level.waiting:
                    visited = self._enter(*level.waiting.pop())
                elif level.gone and self.may_look_again():
                    self._look_again(level)
                elif len(self._levels) > 1:
                    self._leave()
                else:
                    return
        finally:
            self._forget(1)

    @property
    def depth(self) -> int:
        """How many levels below the root the walk is."""
        return len(self._levels) - 1

    @property
    def names(self) -> tuple[str, ...]:
        """The names on the way from the root to where the walk is."""
        return tuple(level.name for level in self._levels[1:])

    def path(self, name: str = "", depth: int | None = None) -> str:
        """Where the walk is, or was at `depth`, for messages; the middle of a very long path is left out."""
        end = len(self._levels) if depth is None else depth + 1
        return shown_path([level.name for level in self._levels[1:end]], self._prefix, name)

    def problem(self, error: OSError, name: str = "", depth: int | None = None) -> None:
        """Report what the kernel refused, at `name` in the present directory or at the directory itself."""
        self._report(Problem(self.path(name, depth), os.strerror(error.errno or errno.EIO)))

    def skipped(self, name: str, depth: int | None = None) -> None:
        """Report a mount at `name` in the present directory."""
        self._report(Problem(self.path(name, depth), "another filesystem is mounted there", missing=False))

    def may_look_again(self) -> bool:
        """Return whether the present directory is listed once more for what has gone; else say that it is missing."""
        level = self._levels[-1]
        level.looks += 1
        if level.looks <= _LOOKS:
            return True
        level.gone.clear()
        self._report(Problem(self.path(), "something in it gets another name again and again"))
        return False

    def _look_again(self, level: _Level) -> None:
        fd = self._descriptor()
        if fd is None:
            return
        wanted = level.gone.copy()
        level.gone.clear()
        try:
            for entry in _named(fd, wanted):
                if entry.is_dir(follow_symlinks=False):
                    level.waiting.add(entry.name, entry.inode())
        except OSError as error:
            self.problem(error)

    def split(self) -> tuple[int, str] | None:
        """Give away one directory that waits to be visited: its descriptor, for the caller to close, and its path.

        Taken high in the tree, where most is below it, and only when another one is left for this walk.
        """
        levels = self._levels
        window = range(max(0, len(levels) - _WINDOW), len(levels))
        held = [(depth, fd) for depth in window if levels[depth].waiting and (fd := levels[depth].fd) is not None]
        if sum(len(levels[depth].waiting) for depth, _fd in held) < 2:
            return None
        depth, parent_fd = held[0]
        name, inode = levels[depth].waiting.pop()
        try:
            return self._open(parent_fd, name)[0], self.path(name, depth)
        except OSError as error:
            self._refused(error, name, inode, depth)
            return None

    @staticmethod
    def _open(parent_fd: int, name: str) -> tuple[int, os.stat_result]:
        fd = open_beneath(parent_fd, os.fsencode(name))
        try:
            return fd, os.fstat(fd)
        except OSError:
            os.close(fd)
            raise

    def _refused(self, error: OSError, name: str, inode: int, depth: int) -> None:
        if error.errno == errno.EXDEV:
            self.skipped(name, depth)
        elif error.errno in _GONE:
            self._levels[depth].gone.add(inode)
        else:
            self.problem(error, name, depth)

    def _enter(self, name: str, inode: int) -> Directory | None:
        parent_fd = self._descriptor()
        if parent_fd is None:
            return None
        try:
            fd, status = self._open(parent_fd, name)
        except OSError as error:
            self._refused(error, name, inode, self.depth)
            return None
        levels = self._levels
        if not self._visited.add(status.st_dev, status.st_ino) and levels[-1].looks:
            os.close(fd)  # listed under its name of before as well
            return None
        levels.append(_Level(name, fd, status))
        far = len(levels) - 1 - _WINDOW
        if far > 0 and not levels[far].kept:
            self._close(levels[far])
        return Directory(fd, status, self, levels[-1])

    def _leave(self) -> None:
        name = self._levels[-1].name
        self._forget(len(self._levels) - 1)
        if self._leaving is None:
            return
        parent_fd = self._descriptor()
        if parent_fd is not None:
            self._leaving(parent_fd, name)

    def _descriptor(self) -> int | None:
        """Return the descriptor of the present level, opened again when it was closed.

        None when a level on the way is no longer what it was: that level and all below it are given up.
        """
        levels = self._levels
        target = len(levels) - 1
        held = target
        while (fd := levels[held].fd) is None:
            held -= 1
        stride = -(-(target - held) // _WINDOW)
        for depth in range(held + 1, target + 1):
            above, level = levels[depth - 1], levels[depth]
            fd = self._reopen(fd, level)
            if fd is None:
                return None
            if depth == target or (depth - held) % stride == 0:
                level.kept = True
                self._check_points.append(depth)
            if depth - 1 > held and not above.kept:
                self._close(above)
        self._thin_out()
        return fd

    def _reopen(self, parent_fd: int, level: _Level) -> int | None:
        what = "was moved or replaced while it was visited"
        try:
            fd, status = self._open(parent_fd, level.name)
            level.fd = fd
            if (status.st_dev, status.st_ino) == (level.dev, level.ino):
                return fd
        except OSError as error:
            if error.errno not in _GONE:
                what = os.strerror(error.errno or errno.EIO)
        depth = self._levels.index(level)
        self._report(Problem(self.path(depth=depth), what))
        self._forget(depth)
        return None

    def _thin_out(self) -> None:
        """Keep the number of descriptors bounded whatever the shape of the tree."""
        points = self._check_points
        if len(points) > _CHECK_POINTS:
            for depth in points[:-1:2]:
                self._levels[depth].kept = False
                self._close(self._levels[depth])
            self._check_points = points[1:-1:2] + points[-1:]

    def _forget(self, depth: int) -> None:
        """Drop the levels from `depth` on."""
        while len(self._levels) > depth:
            self._close(self._levels.pop())
        while self._check_points and self._check_points[-1] >= depth:
            self._check_points.pop()

    @staticmethod
    def _close(level: _Level) -> None:
        if level.fd is not None:
            os.close(level.fd)
            level.fd = None
