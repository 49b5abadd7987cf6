# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The old content of a moved location, beneath the mount at its old path: set aside there, and deleted in the end.

Should the mount at the old path ever be missing, whoever writes by a stored path must not find the old content there,
and take it for the present one. So it lies in a directory that only root can enter, in an old directory that nobody but
root can enter either.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

from ..errors import StowageError, printable
from ..syscalls import open_beneath, rename_noreplace
from ..trees.emptying import empty
from .content import names_in

_PREFIX = b".stowage-moved-"


def name_of(identity: str) -> bytes:
    """Return the name of the directory in which the old content lies."""
    return _PREFIX + os.fsencode(identity)


def is_by_another(fd: int, identity: str) -> bool:
    """Return whether another host has set aside, or deleted, the content of the directory open at *fd*."""
    names = names_in(fd)
    if name_of(identity) in names:
        return False
    return any(name.startswith(_PREFIX) for name in names) or not (names or stat.S_IMODE(os.fstat(fd).st_mode))


def set_aside(fd: int, identity: str) -> None:
    """Move everything in the old directory, open at *fd*, aside; what was cut short is gone on with.

    :raises StowageError: when something stays where it is
    """
    name = name_of(identity)
    # First: whoever has passed it already is told by the state of the content.
    os.fchmod(fd, 0)
    if name not in names_in(fd):
        os.mkdir(name, 0o700, dir_fd=fd)
    inner = open_beneath(fd, name)
    try:
        for each in names_in(fd):
            if each != name:
                _move(fd, inner, each)
        os.fsync(inner)
        os.fsync(fd)
    finally:
        os.close(inner)


def put_back(fd: int, identity: str, mode: int) -> None:
    """Move what lies aside back into the old directory, open at *fd*, whose mode was *mode*."""
    name = name_of(identity)
    if name in names_in(fd):
        inner = open_beneath(fd, name)
        try:
            for each in names_in(inner):
                _move(inner, fd, each)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=fd)
    os.fchmod(fd, mode)
    os.fsync(fd)


def _move(fd: int, to_fd: int, name: bytes) -> None:
    try:
        rename_noreplace(fd, name, to_fd, name)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        remedy = "see lsattr, take its flags off (chattr -ia), and run it again"
        raise StowageError(f"{printable(name)} in the old directory cannot be moved: {remedy}") from error


def delete(fd: int, identity: str, progress: Callable[[int, int], None]) -> None:
    """Delete what lies aside in the old directory, open at *fd*.

    :param progress: called again and again while it goes; what it raises ends the work
    :raises StowageError: when something stays
    """
    name = name_of(identity)
    if name in names_in(fd):
        inner = open_beneath(fd, name)
        try:
            left = empty(inner, progress=progress).left
        finally:
            os.close(inner)
        if left:
            raise StowageError(f"what cannot be deleted: {'; '.join(left)}")
        os.rmdir(name, dir_fd=fd)
    came = names_in(fd)
    if came:
        raise StowageError(f"{printable(came[0])} is in the old directory, and was not moved: look at it")
