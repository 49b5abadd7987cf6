# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of all kinds to a few directories of files, for the tests of what is to follow them."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from conftest import clear, mounts_at_or_below, opened

from stowage_core.trees.emptying import remove

QUEUE = 16384
"""How many events the kernel keeps for a watch, unless it was told otherwise."""
NAMES = [b"a", b"b", b"\xff\xfe", b"line\nbreak", "ä".encode()]
SUBVOLUME = 256
OFTEN = ["write", "append", "create", "move", "link", "unlink", "rename"]
SELDOM = [
    "open",
    "close",
    "truncate",
    "reserve",
    "punch",
    "map",
    "replace",
    "attribute",
    "mkdir",
    "deep",
    "symlink",
    "rmtree",
    "tmpfile",
    "xattr",
    "many",
    "mount",
    "umount",
    "subvolume",
    "snapshot",
    "drop subvolume",
]
SIZES = [0, 1, 700, 5000, 70000]


def fallocate(fd: int, *options: str) -> None:
    subprocess.run(["fallocate", *options, f"/proc/self/fd/{fd}"], check=True, pass_fds=[fd])


def run_btrfs(*arguments: Any) -> None:
    subprocess.run(["btrfs", "-q", "subvolume", *arguments], check=True, stderr=subprocess.DEVNULL)


@contextmanager
def mounted(point: Path, *options: str) -> Iterator[None]:
    subprocess.run(["mount", *options, str(point)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(point)], check=True)


class Elsewhere:
    """A shell in a mount namespace of its own, with a /proc of its own: that of a container cannot be written to."""

    def __init__(self) -> None:
        self._shell = subprocess.Popen(["unshare", "--mount", "sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._do(b"mount -t proc proc /proc")
        self._queue = Path(f"/proc/{self._shell.pid}/root/proc/sys/fs/fanotify/max_queued_events")

    @contextmanager
    def queue_of(self, events: int) -> Iterator[None]:
        """Have the kernel keep so few events for a watch that begins, and for no other one if that can be helped."""
        if events == QUEUE:
            yield
            return
        self._queue.write_text(str(events))
        try:
            yield
        finally:
            self._queue.write_text(str(QUEUE))

    def _do(self, command: bytes) -> None:
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.write(command + b"; echo\n")
        self._shell.stdin.flush()
        self._shell.stdout.readline()

    def append(self, file: bytes, size: int) -> None:
        quoted = b"'" + file.replace(b"'", b"'\\''") + b"'"
        self._do(b"[ -f %s ] && [ ! -h %s ] && head -c %d /dev/zero >> %s" % (quoted, quoted, size, quoted))

    def close(self) -> None:
        self._shell.communicate()


class Changes:
    """A directory in which changes are made; ``in``, ``in/0`` and ``second`` are to be followed, ``out`` is not."""

    def __init__(self, base: Path, fstype: str, shown: Path, elsewhere: Elsewhere) -> None:
        """Make the directory.

        :param shown: where the directory that *base* is in is mounted once more
        """
        self.base = os.fsencode(base)
        self.fstype = fstype
        self.shown = os.fsencode(shown)
        self.elsewhere = elsewhere
        self.roots = [self.base + b"/in", self.base + b"/in/0", self.base + b"/second"]
        for path in (*self.roots, self.base + b"/in/1/2", self.base + b"/out/3"):
            os.makedirs(path)
            (Path(os.fsdecode(path)) / "file").write_bytes(bytes(100))
        self.held: list[int] = []
        self.number = 0

    def close(self) -> None:
        for fd in self.held:
            os.close(fd)
        clear(Path(os.fsdecode(self.base)))
        with opened(os.path.dirname(self.base)) as fd:
            remove(fd, os.path.basename(self.base))  # subvolumes too

    def is_known(self, _directory: bytes) -> bool:
        """Return whether links made in a directory are told: see the documentation."""
        return False

    @property
    def mounted(self) -> list[bytes]:
        """What is mounted in it; what it is mounted in may have been renamed."""
        return [os.fsencode(point) for point in mounts_at_or_below(Path(os.fsdecode(self.base)))]

    def entries(self) -> tuple[list[bytes], list[bytes]]:
        """Return the directories and the other files, without those that are mounted here."""
        directories, files, mounted = [], [], self.mounted
        for path, below, names in os.walk(self.base):
            if path != self.base:
                directories.append(path)
            below[:] = [name for name in below if os.path.join(path, name) not in mounted]
            files += [os.path.join(path, name) for name in names]
        return sorted(directories), sorted(files)

    def new(self, directory: bytes, name: int) -> bytes:
        self.number += 1
        return os.path.join(directory, NAMES[name % len(NAMES)] + b"%d" % self.number)

    def run(self, what: str, one: int, two: int, size: int) -> None:
        """Do one thing to some of what is there; nothing where that is not possible."""
        directories, files = self.entries()
        directory, other = directories[one % len(directories)], directories[two % len(directories)]
        file = files[one % len(files)] if files else None
        if what == "many":
            for number in range(60):
                os.makedirs(os.path.join(directory, b"many%d" % number, b"in"), exist_ok=True)
        elif what in ("create", "mkdir", "symlink", "deep", "rmtree", "rename", "tmpfile", "xattr", "mount", "umount"):
            with suppress(OSError):
                getattr(self, what)(directory, other, two, size)
        elif what in ("subvolume", "snapshot", "drop subvolume"):
            if self.fstype == "btrfs":
                getattr(self, what.replace(" ", "_"))(directory, directories, two)
        elif what in ("write", "truncate", "reserve", "punch", "map", "close"):
            if self.held:
                self.change_held(what, one, size)
        elif file is not None:
            with suppress(OSError):
                getattr(self, what)(file, other, two, size)

    # Changes of directories

    def create(self, directory: bytes, _other: bytes, two: int, size: int) -> None:
        self.held.append(os.open(self.new(directory, two), os.O_CREAT | os.O_RDWR))
        os.write(self.held[-1], bytes(size))

    def mkdir(self, directory: bytes, _other: bytes, two: int, _size: int) -> None:
        os.mkdir(self.new(directory, two))

    def deep(self, directory: bytes, _other: bytes, two: int, size: int) -> None:
        path = self.new(directory, two) + b"/d" * 12
        os.makedirs(path)
        Path(os.fsdecode(path + b"/file")).write_bytes(bytes(size))

    def symlink(self, directory: bytes, _other: bytes, two: int, size: int) -> None:
        os.symlink(b"x" * (size % 1000 + 1), self.new(directory, two))

    def rmtree(self, directory: bytes, _other: bytes, _two: int, _size: int) -> None:
        if directory not in (self.base + b"/in", self.base + b"/out", self.base + b"/second"):
            shutil.rmtree(directory)

    def rename(self, directory: bytes, other: bytes, two: int, _size: int) -> None:
        if directory not in self.roots or directory == self.roots[1]:
            os.rename(directory, self.new(other, two))

    def tmpfile(self, directory: bytes, _other: bytes, two: int, size: int) -> None:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR)
        self.held.append(fd)
        os.link(f"/proc/self/fd/{fd}", self.new(directory, two), src_dir_fd=fd, follow_symlinks=True)
        os.write(fd, bytes(size))

    def xattr(self, directory: bytes, _other: bytes, _two: int, size: int) -> None:
        os.setxattr(directory, b"user.test", bytes(size % 3000))

    def mount(self, directory: bytes, other: bytes, two: int, size: int) -> None:
        if len(self.mounted) < 3 and directory not in self.roots:
            options = ["--bind", other] if two % 2 else ["-t", "tmpfs", "none"]
            if two % 2 and (directory + b"/").startswith(other + b"/"):
                return
            subprocess.run(["mount", *options, directory], check=True)

    def umount(self, _directory: bytes, _other: bytes, _two: int, _size: int) -> None:
        for point in self.mounted[:1]:
            subprocess.run(["umount", point], check=True)

    def subvolume(self, directory: bytes, _directories: list[bytes], two: int) -> None:
        run_btrfs("create", self.new(directory, two))

    def snapshot(self, directory: bytes, directories: list[bytes], two: int) -> None:
        found = [one for one in directories if os.stat(one).st_ino == SUBVOLUME]
        if found:
            run_btrfs("snapshot", found[two % len(found)], self.new(directory, two))

    def drop_subvolume(self, _directory: bytes, directories: list[bytes], two: int) -> None:
        found = [one for one in directories if os.stat(one).st_ino == SUBVOLUME and one not in self.mounted]
        if found:
            with suppress(subprocess.CalledProcessError):  # not empty of subvolumes
                run_btrfs("delete", found[two % len(found)])

    # Changes of files

    def open(self, file: bytes, _other: bytes, _two: int, _size: int) -> None:
        self.held.append(os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK))

    def append(self, file: bytes, _other: bytes, two: int, size: int) -> None:
        """By its name: here, through a mount elsewhere, and in another mount namespace."""
        if two % 3 == 2:
            self.elsewhere.append(file, size)
            return
        path = file if two % 3 == 0 else self.shown + file[len(os.path.dirname(self.base)) :]
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        os.write(fd, bytes(size))
        os.close(fd)

    def unlink(self, file: bytes, _other: bytes, _two: int, _size: int) -> None:
        self.let_go(file)
        os.unlink(file)

    def move(self, file: bytes, other: bytes, two: int, _size: int) -> None:
        os.rename(file, self.new(other, two))

    def replace(self, file: bytes, other: bytes, two: int, _size: int) -> None:
        _directories, files = self.entries()
        self.let_go(files[two % len(files)])
        os.rename(file, files[two % len(files)])

    def link(self, file: bytes, other: bytes, two: int, _size: int) -> None:
        new = self.new(other, two)
        os.link(file, new, follow_symlinks=False)
        if not self.is_known(other):
            os.chmod(file, 0o600)

    def attribute(self, file: bytes, _other: bytes, _two: int, size: int) -> None:
        os.setxattr(file, b"user.test", bytes(size % 3000))

    def let_go(self, file: bytes) -> None:
        """Hold nothing by a name that goes while the file lives on: what is written so is told nowhere."""
        for fd in [one for one in self.held if os.readlink(b"/proc/self/fd/%d" % one) == file]:
            self.held.remove(fd)
            os.close(fd)

    def change_held(self, what: str, one: int, size: int) -> None:
        fd = self.held[one % len(self.held)]
        path = os.readlink(b"/proc/self/fd/%d" % fd)
        if what == "close" or (path.endswith(b" (deleted)") and os.fstat(fd).st_nlink):
            self.held.remove(fd)
            os.close(fd)
        elif what == "write":
            os.lseek(fd, 0, os.SEEK_END)
            os.write(fd, bytes(size))
        elif what == "truncate":
            os.ftruncate(fd, size * 3)
        elif what == "reserve":
            fallocate(fd, "--keep-size", "--length", str(size + 1))
        elif what == "punch":
            os.posix_fallocate(fd, 0, size + 1)
            fallocate(fd, "--punch-hole", "--length", "8192")
        elif os.fstat(fd).st_size:
            with mmap.mmap(fd, 0) as mapped:
                mapped[len(mapped) // 2] = 1
