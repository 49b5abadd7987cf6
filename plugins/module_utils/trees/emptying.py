# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deleting everything in a directory, as root, whatever a worker has put there.

Goes down by descriptors as `walk` does: no symbolic link is followed and no mount entered, and nothing but directories
is ever opened. A mount point below stays and is reported, and so is what root has made immutable or append-only: no
worker can do that, so somebody wanted it to stay. A btrfs subvolume goes like a directory, even a read-only one.

The tree must be out of its users' reach, such as below a trash directory that only root can enter. Whoever can move a
directory out of the tree while its content is deleted would lose that content where it is then.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ..syscalls import open_beneath
from .pace import Rate
from .tally import FirstProblems
from .walk import Directory, Walk

_SUBVOLUME_INODE = 256
_BTRFS_IOC_SUBVOL_GETFLAGS = 0x80089419
_BTRFS_IOC_SUBVOL_SETFLAGS = 0x4008941A
_BTRFS_SUBVOL_RDONLY = 2

_FILES_A_STEP = 256
_STEPS_A_SECOND = 50


@dataclass(frozen=True)
class Emptied:
    """What was deleted, and what is left and why."""

    files: int
    directories: int
    left: tuple[str, ...]


def empty(
    dir_fd: int,
    *,
    rate: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    files_a_step: int = _FILES_A_STEP,
) -> Emptied:
    """Delete everything in a directory, not the directory itself.

    :param rate: files deleted per second at most
    :param progress: called now and then with the files and directories deleted so far; what it raises ends the work
    :param files_a_step: after how many files it is called
    """
    work = _Emptying(dir_fd, rate, progress, files_a_step)
    while work.once() and work.left:
        pass  # what came, or was passed over by the filesystem's listing, while its directory was emptied
    return Emptied(work.files, work.directories, work.left)


def remove(
    parent_fd: int, name: bytes, *, rate: float | None = None, progress: Callable[[int, int], None] | None = None
) -> Emptied:
    """Delete a directory and everything in it; one that is not there raises `FileNotFoundError`."""
    dir_fd = open_beneath(parent_fd, name)
    try:
        done = empty(dir_fd, rate=rate, progress=progress)
    finally:
        os.close(dir_fd)
    if done.left:
        return done
    os.rmdir(name, dir_fd=parent_fd)
    return Emptied(done.files, done.directories + 1, ())


class _Emptying:
    def __init__(
        self, dir_fd: int, rate: float | None, progress: Callable[[int, int], None] | None, files_a_step: int
    ) -> None:
        self._dir_fd = dir_fd
        self._rate = Rate(rate)
        self._files_a_step = files_a_step if rate is None else max(1, min(files_a_step, int(rate / _STEPS_A_SECOND)))
        self._progress = progress
        self.files = 0
        self.directories = 0
        self.left: tuple[str, ...] = ()

    def once(self) -> bool:
        """Go through the tree once and return whether anything was deleted."""
        before = self.files + self.directories
        problems = FirstProblems()
        walk = Walk(self._dir_fd, problems.add, leaving=lambda parent_fd, name: self._rmdir(walk, parent_fd, name))
        for directory in walk:
            if directory.status.st_ino == _SUBVOLUME_INODE:
                try:
                    _make_writable(directory.fd)
                except OSError as error:
                    walk.problem(error)
            self._unlink_files(walk, directory)
        self.left = problems.texts()
        return self.files + self.directories > before

    def _unlink_files(self, walk: Walk, directory: Directory) -> None:
        fd = directory.fd
        files = 0
        for entry in directory.files(by_inode=True):  # a tenth to a quarter faster
            try:
                os.unlink(entry.name, dir_fd=fd)
            except FileNotFoundError:
                continue
            except OSError as error:
                walk.problem(error, entry.name)
                continue
            files += 1
            if files == self._files_a_step:
                self._did(files)
                files = 0
        self._did(files)

    def _did(self, files: int) -> None:
        self.files += files
        self._rate.did(files)
        if self._progress is not None:
            self._progress(self.files, self.directories)

    def _rmdir(self, walk: Walk, parent_fd: int, name: str) -> None:
        try:
            os.rmdir(name, dir_fd=parent_fd)
        except FileNotFoundError:
            return
        except OSError as error:
            walk.problem(error, name)
            return
        self.directories += 1


def _make_writable(fd: int) -> None:
    """A worker may make its own btrfs subvolume read-only; then nothing in it could be deleted."""
    try:
        (flags,) = struct.unpack("=Q", fcntl.ioctl(fd, _BTRFS_IOC_SUBVOL_GETFLAGS, bytes(8)))
        if flags & _BTRFS_SUBVOL_RDONLY:
            fcntl.ioctl(fd, _BTRFS_IOC_SUBVOL_SETFLAGS, struct.pack("=Q", flags & ~_BTRFS_SUBVOL_RDONLY))
    except OSError as error:
        if error.errno not in (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP):  # not btrfs, or no subvolume's root
            raise
