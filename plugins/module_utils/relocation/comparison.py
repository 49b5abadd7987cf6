# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a tree is a whole copy of another one: found out by reading both, not by what made the copy.

Compared are types, owners, modes, times, extended attributes, access lists, targets of links, which names are one file,
and every byte. What was just written is read from the disk, and not from memory.
"""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from ..errors import printable
from ..sizes import decimal
from ..syscalls import NO_DIRECTORY, open_beneath, syncfs
from ..trees.walk import Directory, Problem, Walk
from ..use.child import answer_of, nothing, progress
from .content import is_of_mkfs, names_in
from .copying import NOT_COPIED
from .recorded import State

DEADLINE_S = 600.0
"""How long a single file's disk may be silent."""

_MOST = 20
_PIECE = 1 << 20
_MODULUS = 1 << 128
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DESCRIPTORS = 1 << 16
_GRAINS = (1, 100, 1000, 10**9)
"""The times of some filesystems are whole microseconds, or seconds: nanoseconds each."""
_OF_THE_FILESYSTEM = (*NOT_COPIED, "system.nfs4_acl", "btrfs.compression", "security.ima", "security.evm")


@dataclass
class Compared:
    """What a comparison has found."""

    differences: list[str] = field(default_factory=list)
    """The first of them, one line each."""
    count: int = 0
    """How many there are."""
    files: int = 0
    bytes: int = 0
    was: State = State(0, "", "")
    """The tree that was compared with."""


def compare(old_fd: int, new_fd: int, say: Callable[[str], None] = nothing) -> Compared:
    """Compare the tree open at *new_fd* with that open at *old_fd*, in a child of this process.

    :param say: told now and then how far it is
    :raises NoAnswerError: when it cannot be done, or a disk is silent
    """
    answer = answer_of(lambda: asdict(_Comparison(old_fd, new_fd, say).run()), DEADLINE_S)
    return Compared(**{**answer, "was": State(**answer["was"])})


def state_of(fd: int, itself: bool = True, aside: str = "") -> State:
    """Return the state of the tree open at *fd*, by looking at every inode in it.

    :param itself: whether the directory itself counts
    :param aside: where in it a directory is whose content counts as if it were not in there
    :raises StowageError: when something in it cannot be looked at
    """
    return State(**answer_of(lambda: asdict(_state_of(fd, itself, aside)), DEADLINE_S))


def _state_of(fd: int, itself: bool, aside: str) -> State:
    problems: list[Problem] = []
    changes = _Changes()
    way = tuple(aside.split("/")) if aside else ()
    # Opened anew: btrfs does not list what has come since a directory was opened.
    walk = Walk(open_beneath(fd, b"."), problems.append)
    top = os.fstat(fd)
    for directory in walk:
        progress()
        if walk.depth == 1 and is_of_mkfs(top, walk.names[0], directory.status):
            directory.leave_out()
            continue
        inside = _common(walk.names, way)
        depth = walk.depth - inside if inside == len(way) else walk.depth
        # What only leads to what counts does not count itself.
        if walk.depth > inside or (itself and not walk.depth):
            changes.add(directory.status, depth)
        for entry in directory.files():
            progress()
            changes.add(entry.stat(follow_symlinks=False), depth + 1)
    if problems:
        raise OSError(f"cannot be looked at: {problems[0]}")
    return changes.state


def changed_last(fd: int, aside: str) -> str:
    """Return where in the tree open at *fd* the last change was, by its time.

    :param aside: where in it a directory is that does not count itself
    """
    return str(answer_of(lambda: _changed_last(fd, aside.split("/")), DEADLINE_S))


def _changed_last(fd: int, way: Sequence[str]) -> str:
    found, when = "", 0
    walk = Walk(open_beneath(fd, b"."), nothing)
    for directory in walk:
        progress()
        if walk.depth > _common(walk.names, way) and directory.status.st_ctime_ns >= when:
            found, when = walk.path(), directory.status.st_ctime_ns
        for entry in directory.files():
            progress()
            change = entry.stat(follow_symlinks=False).st_ctime_ns
            if change >= when:
                found, when = walk.path(entry.name), change
    return found


def _common(names: Sequence[str], way: Sequence[str]) -> int:
    """Return how many of the first names are those of the way."""
    count = 0
    while count < min(len(names), len(way)) and names[count] == way[count]:
        count += 1
    return count


class _Changes:
    """The state of a tree, whose inodes come in any order."""

    def __init__(self) -> None:
        self._entries = self._changes = self._kept = 0

    def add(self, status: os.stat_result, depth: int) -> None:
        """Add an inode.

        :param depth: how many levels below the top it is
        """
        self._entries += 1
        change = _number_of(status, status.st_ctime_ns)
        # A sum, which every number changes, and which is one whatever the order.
        self._changes += change
        if depth:
            self._kept += change if depth > 1 else _number_of(status, status.st_mtime_ns)

    @property
    def state(self) -> State:
        changes, kept = (f"{number % _MODULUS:032x}" for number in (self._changes, self._kept))
        return State(self._entries, changes, kept)


def _number_of(status: os.stat_result, time: int) -> int:
    text = f"{status.st_ino} {status.st_mode} {status.st_size} {time}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")


class _Comparison:
    def __init__(self, old_fd: int, new_fd: int, say: Callable[[str], None]) -> None:
        self._old_fd, self._new_fd = old_fd, new_fd
        self._say = say
        self._found = Compared()
        self._copies: dict[tuple[int, int], tuple[int, int]] = {}
        """The file that the copy of each file with several names is."""
        self._originals: dict[tuple[int, int], tuple[int, int]] = {}
        self._was = _Changes()

    def run(self) -> Compared:
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        syncfs(self._new_fd)
        open_directories: list[int] = []
        top = os.fstat(self._old_fd)
        walk = Walk(open_beneath(self._old_fd, b"."), lambda problem: self._differs("", str(problem)))
        for directory in walk:
            progress()
            self._say(f"{self._found.files} files with {decimal(self._found.bytes)} are compared")
            if walk.depth == 1 and is_of_mkfs(top, walk.names[0], directory.status):
                directory.leave_out()
                continue
            while len(open_directories) > walk.depth:
                os.close(open_directories.pop())
            try:
                if walk.depth:
                    new_fd = open_beneath(open_directories[-1], os.fsencode(walk.names[-1]))
                else:
                    new_fd = open_beneath(self._new_fd, b".")
            except OSError as error:
                if error.errno not in NO_DIRECTORY:
                    raise
                self._differs(walk.path(), "is no directory in the copy")
                directory.leave_out()
                continue
            open_directories.append(new_fd)
            self._compare_directory(walk, directory, new_fd)
        self._found.was = self._was.state
        return self._found

    def _differs(self, path: str, what: str) -> None:
        self._found.count += 1
        if len(self._found.differences) < _MOST:
            self._found.differences.append(f"{path}: {what}" if path else what)

    def _compare_directory(self, walk: Walk, directory: Directory, new_fd: int) -> None:
        old_fd = directory.fd
        new = os.fstat(new_fd)
        self._was.add(directory.status, walk.depth)
        for what in (*_of_inodes(directory.status, new), *_of_attributes(attributes(old_fd), attributes(new_fd))):
            self._differs(walk.path(), what)
        names, copied = (set(map(os.fsdecode, names_in(fd))) for fd in (old_fd, new_fd))
        for name in sorted(copied - names):
            self._differs(walk.path(name), "is in the copy only")
        for name in sorted(names - copied):
            self._differs(walk.path(name), "is missing in the copy")
        for entry in directory.files():
            progress()
            if entry.name in copied:
                for what in self._of_file(old_fd, new_fd, entry.name, walk.depth + 1):
                    self._differs(walk.path(entry.name), what)

    def _of_file(self, old_fd: int, new_fd: int, name: str, depth: int) -> Iterator[str]:
        old, new = (os.stat(name, dir_fd=fd, follow_symlinks=False) for fd in (old_fd, new_fd))
        self._was.add(old, depth)
        yield from _of_inodes(old, new)
        if stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode):
            return
        yield from _of_attributes(_attributes_of(old_fd, name), _attributes_of(new_fd, name))
        if stat.S_ISLNK(old.st_mode):
            targets = {os.readlink(os.fsencode(name), dir_fd=fd) for fd in (old_fd, new_fd)}
            if len(targets) > 1:
                yield "is a link to something else in the copy"
        known = self._copies.get((old.st_dev, old.st_ino))
        yield from self._of_names(old, new)
        if stat.S_ISREG(old.st_mode) and known is None:
            self._found.files += 1
            self._found.bytes += old.st_size
            if old.st_size == new.st_size and not _same_content(old_fd, new_fd, os.fsencode(name), old.st_size):
                yield "has another content in the copy"

    def _of_names(self, old: os.stat_result, new: os.stat_result) -> Iterator[str]:
        """Tell whether the names of one file are names of one file in the copy, too, and no others."""
        if old.st_nlink == 1 and new.st_nlink == 1:
            return
        one, other = (old.st_dev, old.st_ino), (new.st_dev, new.st_ino)
        if self._copies.setdefault(one, other) != other or self._originals.setdefault(other, one) != one:
            yield "is not one file with the same names in the copy"


def _of_inodes(old: os.stat_result, new: os.stat_result) -> Iterator[str]:
    if stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode):
        yield "is of another type in the copy"
        return
    if stat.S_IMODE(old.st_mode) != stat.S_IMODE(new.st_mode):
        yield f"mode {stat.S_IMODE(old.st_mode):04o} is {stat.S_IMODE(new.st_mode):04o} in the copy"
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        yield f"owner {old.st_uid}:{old.st_gid} is {new.st_uid}:{new.st_gid} in the copy"
    if not any(old.st_mtime_ns // grain * grain == new.st_mtime_ns for grain in _GRAINS):
        yield "its time differs in the copy"
    if not stat.S_ISDIR(old.st_mode) and old.st_size != new.st_size:
        yield f"size {old.st_size} is {new.st_size} in the copy"
    if (stat.S_ISCHR(old.st_mode) or stat.S_ISBLK(old.st_mode)) and old.st_rdev != new.st_rdev:
        yield "is another device in the copy"


def _of_attributes(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"extended attribute {printable(name)} differs in the copy"


def attributes(fd: int) -> dict[str, bytes]:
    """Return the extended attributes of what is open at *fd* that belong to the content."""
    return {name: os.getxattr(fd, name) for name in os.listxattr(fd) if name not in _OF_THE_FILESYSTEM}


def _attributes_of(dir_fd: int, name: str) -> dict[str, bytes]:
    # By its path: a link or a device has no other way to them.
    place = b"/proc/self/fd/%d/" % dir_fd + os.fsencode(name)
    names = [one for one in os.listxattr(place, follow_symlinks=False) if one not in _OF_THE_FILESYSTEM]
    return {one: os.getxattr(place, one, follow_symlinks=False) for one in names}


def differences_of_root(old_fd: int, new_fd: int) -> list[str]:
    """Return how the directory open at *new_fd* itself differs from that open at *old_fd*."""
    of_inodes = _of_inodes(os.fstat(old_fd), os.fstat(new_fd))
    return [*of_inodes, *_of_attributes(attributes(old_fd), attributes(new_fd))]


def _same_content(old_dir: int, new_dir: int, name: bytes, size: int) -> bool:
    old, new = (os.open(name, _READ, dir_fd=fd) for fd in (old_dir, new_dir))
    try:
        os.posix_fadvise(new, 0, 0, os.POSIX_FADV_DONTNEED)
        at = 0
        while at < size:
            progress()
            at = min(_next_data(old, at, size), _next_data(new, at, size))
            piece = os.pread(old, _PIECE, at)
            if piece != _whole(new, at, len(piece)):
                return False
            if not piece:
                break
            at += len(piece)
        return os.fstat(old).st_size == os.fstat(new).st_size == size
    finally:
        os.close(old)
        os.close(new)


def _next_data(fd: int, at: int, size: int) -> int:
    """Return where the next data of a sparse file begins."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size  # nothing but a hole follows


def _whole(fd: int, at: int, length: int) -> bytes:
    pieces = []
    while length:
        piece = os.pread(fd, length, at)
        if not piece:
            break
        pieces.append(piece)
        at, length = at + len(piece), length - len(piece)
    return b"".join(pieces)
