# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""In which directories of a filesystem something changes, as the kernel's fanotify tells.

A mark on the whole filesystem sees changes through every mount of it, in every namespace. The kernel tells the
directory that has the changed name, not the name: while an event waits, others of its directory become one with it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

from .errors import WatchError
from .handles import BTRFS_TOP, open_handle

_libc = ctypes.CDLL(None, use_errno=True)

_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_REPORT_DIR_FID = 0x1, 0x2, 0x400
_FAN_MARK_ADD, _FAN_MARK_FILESYSTEM = 0x1, 0x100
_FAN_MODIFY, _FAN_ATTRIB, _FAN_CLOSE_WRITE = 0x2, 0x4, 0x8
_FAN_MOVED_FROM, _FAN_MOVED_TO, _FAN_CREATE, _FAN_DELETE = 0x40, 0x80, 0x100, 0x200
_FAN_ONDIR = 0x40000000
_FAN_Q_OVERFLOW = 0x4000
_GROWS = _FAN_MOVED_TO | _FAN_CREATE
# A close tells what was written through a mapping of the file.
_CHANGES = (
    _FAN_MODIFY
    | _FAN_ATTRIB
    | _FAN_CLOSE_WRITE
    | _FAN_MOVED_FROM
    | _FAN_MOVED_TO
    | _FAN_CREATE
    | _FAN_DELETE
    | _FAN_ONDIR
)

_EVENT = struct.Struct("=IBBHQii")  # length, version, reserved, length of this, mask, descriptor, process
_VERSION = 3
_INFO = struct.Struct("=BBH8x")  # kind of information, padding, its length, the filesystem's id; a handle follows
_HANDLES = (1, 3)  # the parent of the file that changed, and the directory that changed itself
_READ = 64 * 1024

_REFUSALS = {
    errno.EPERM: "watching a filesystem takes the capability CAP_SYS_ADMIN",
    errno.ENOSYS: "this kernel has no fanotify",
    errno.EINVAL: "this kernel cannot tell directories that change (Linux 5.9 is the first that can)",
    errno.EMFILE: "there are too many watches (fs.fanotify.max_user_groups)",
    errno.ENODEV: "the filesystem has no id",
    errno.EXDEV: "the filesystem has several ids",
    errno.EOPNOTSUPP: "the filesystem has no handles of directories",
    errno.ENOSPC: "there are too many watches (fs.fanotify.max_user_marks)",
}


class Lost(Exception):
    """More has changed than the kernel keeps: what has changed is not known any more."""


class Changes:
    """The directories of one filesystem that change, from now on."""

    def __init__(self, fd: int) -> None:
        flags = ctypes.c_uint(_FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_REPORT_DIR_FID)
        self._fd: int = _libc.fanotify_init(flags, ctypes.c_uint(os.O_RDONLY))
        if self._fd < 0:
            raise _refused(ctypes.get_errno())
        try:
            self.mark(fd)
        except WatchError:
            self.close()
            raise

    def mark(self, fd: int) -> None:
        """Watch the filesystem that the directory *fd* is on."""
        number = self._mark(fd)
        if number == errno.EXDEV:  # a subvolume of btrfs, which has an id of its own
            try:
                top = open_handle(fd, BTRFS_TOP)
            except OSError as error:
                raise _refused(number) from error
            try:
                number = self._mark(top)
            finally:
                os.close(top)
        if number:
            raise _refused(number)

    def _mark(self, fd: int) -> int:
        flags = ctypes.c_uint(_FAN_MARK_ADD | _FAN_MARK_FILESYSTEM)
        arguments = (ctypes.c_int(self._fd), flags, ctypes.c_uint64(_CHANGES), ctypes.c_int(fd), ctypes.c_char_p(b"."))
        return ctypes.get_errno() if _libc.fanotify_mark(*arguments) != 0 else 0

    def fileno(self) -> int:
        """Return the descriptor that is readable while changes wait."""
        return self._fd

    def watched(self) -> set[str]:
        """Return the devices, ``major:minor`` as in mountinfo, of the filesystems watched: none that was unmounted."""
        devices = set()
        with open(f"/proc/self/fdinfo/{self._fd}", "rb") as info:
            for line in info:
                if line.startswith(b"fanotify sdev:"):
                    number = int(line.split()[1][len(b"sdev:") :], 16)
                    devices.add(f"{number >> 20}:{number & 0xFFFFF}")
        return devices

    def read(self) -> bytes:
        """Return changes that wait, for `directories`; empty when none do."""
        try:
            return os.read(self._fd, _READ)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """End watching."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def directories(changes: bytes) -> Iterator[tuple[bytes, bool]]:
    """Return the handles, as in `handles`, of the directories that changed, and whether names may have come there.

    :raises Lost: when changes are missing, or are not of the form that is known
    """
    at, end = 0, len(changes)
    while at < end:
        length, version, _reserved, own, mask, _fd, _pid = _EVENT.unpack_from(changes, at)
        if mask & _FAN_Q_OVERFLOW or version != _VERSION or length < own + _INFO.size:
            raise Lost
        kind, _padding, size = _INFO.unpack_from(changes, at + own)
        if kind not in _HANDLES:
            raise Lost
        yield changes[at + own + _INFO.size : at + own + size], bool(mask & _GROWS)
        at += length


def _refused(number: int) -> WatchError:
    return WatchError(_REFUSALS.get(number, os.strerror(number)))
