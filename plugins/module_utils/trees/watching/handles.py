# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Handles of directories: the kernel's names for them that no renaming changes and no later directory is given.

A handle is what user space gets of ``struct file_handle``, its length and type included, as it also is in events.
"""

from __future__ import annotations

import ctypes
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)

_AT_EMPTY_PATH = 0x1000
_HEAD = struct.Struct("=Ii")  # bytes of the handle, type
_MOST = 128
BTRFS_TOP = _HEAD.pack(20, 0x4D) + struct.pack("=QQI", 256, 5, 0)
"""The root of a btrfs filesystem, which may be mounted nowhere: mounts may show subvolumes only."""
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Namer:
    """Asks for handles, with one buffer for all of them."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(_HEAD.size + _MOST)
        self._mount = ctypes.c_int()
        self._arguments = (
            ctypes.c_char_p(b""),
            self._buffer,
            ctypes.byref(self._mount),
            ctypes.c_int(_AT_EMPTY_PATH),
        )

    def handle(self, fd: int) -> bytes:
        """Return the handle of what *fd* is."""
        buffer = self._buffer
        _HEAD.pack_into(buffer, 0, _MOST, 0)
        if _libc.name_to_handle_at(ctypes.c_int(fd), *self._arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        (size,) = struct.unpack_from("=I", buffer)
        return buffer.raw[: _HEAD.size + (size + 3 & ~3)]

    def mount_of(self, fd: int) -> tuple[bytes, int]:
        """Return the handle, and the id in mountinfo of the mount that *fd* was opened through."""
        handle = self.handle(fd)
        return handle, self._mount.value


def open_handle(mount_fd: int, handle: bytes) -> int:
    """Open the directory of a handle through the mount that *mount_fd* was opened through.

    :raises OSError: ESTALE when there is no such directory any more
    """
    fd = _libc.open_by_handle_at(ctypes.c_int(mount_fd), ctypes.c_char_p(handle), ctypes.c_int(_FLAGS))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(fd)
