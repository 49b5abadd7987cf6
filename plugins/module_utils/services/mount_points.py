# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory underneath a mount: nothing can be written into it by mistake once it is immutable.

It is reached through a copy of the mount above it that belongs to no namespace (``open_tree``): what is mounted on the
directory is not in that copy, nobody else sees it, and it is gone when its descriptor is closed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import Refusal, StowageError
from ..mounts import Mount, of_path
from ..syscalls import clone_mount, mount_id, open_beneath

_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS = 0x80086601, 0x40086602
_FS_IMMUTABLE_FL = 0x10


@contextmanager
def underneath(point: str, table: Sequence[Mount]) -> Iterator[int]:
    """Open the directory underneath the mount at *point*, which has no symlinks, mounted or not."""
    above = of_path(os.path.dirname(point), table)
    fd = os.open(above.point, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if mount_id(fd) != above.id:
            raise StowageError(f"{point}: the mounts above it are changing; run again")
        tree = clone_mount(fd, point)
    finally:
        os.close(fd)
    try:
        below = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=tree)
        try:
            directory = open_beneath(below, os.fsencode(os.path.relpath(point, above.point)))
        finally:
            os.close(below)
    finally:
        os.close(tree)
    try:
        yield directory
    finally:
        os.close(directory)


def is_immutable(point: str, table: Sequence[Mount]) -> bool:
    """Return whether the directory underneath *point* is immutable; refuse one that is not and cannot be made so.

    :raises Refusal: when it is not empty, or its filesystem does not know the flag
    """
    with underneath(point, table) as fd:
        if _flags(fd, point) & _FS_IMMUTABLE_FL:
            return True
        count = len(os.listdir(fd))
        if count:
            raise Refusal(
                point,
                f"the directory underneath the mount is not empty ({count} {'entry' if count == 1 else 'entries'})",
                "unmount, look at what was written there, and move it away",
            )
        return False


def make_immutable(point: str, table: Sequence[Mount]) -> None:
    """Make the empty directory underneath *point* immutable."""
    with underneath(point, table) as fd:
        if os.listdir(fd):
            raise StowageError(f"{point}: something was written underneath the mount just now; run again")
        flags = _flags(fd, point) | _FS_IMMUTABLE_FL
        try:
            fcntl.ioctl(fd, _FS_IOC_SETFLAGS, struct.pack("i", flags))
        except OSError as error:
            if error.errno == errno.EPERM:
                raise Refusal(
                    point, "CAP_LINUX_IMMUTABLE is missing on this host", "grant it, or leave it out"
                ) from None
            raise _unsupported(point) from error


def _flags(fd: int, point: str) -> int:
    try:
        answer = fcntl.ioctl(fd, _FS_IOC_GETFLAGS, struct.pack("i", 0))
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):
            raise _unsupported(point) from error
        raise
    return int(struct.unpack("i", answer)[0])


def _unsupported(point: str) -> Refusal:
    rule = "the filesystem underneath the mount knows no immutable flag"
    return Refusal(point, rule, "set immutable_mount_points to false for this host")
