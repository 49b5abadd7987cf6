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
from contextlib import suppress

from ..errors import StowageError, printable
from ..syscalls import open_beneath, rename_noreplace
from ..trees.emptying import empty
from . import signs
from .content import names_in


def is_begun(fd: int) -> bool:
    """Return whether a host that shares the directory open at *fd* has set its content aside, or a part of it."""
    return not stat.S_IMODE(os.fstat(fd).st_mode) and any(_is_sign(fd, name) for name in names_in(fd))


def is_done(fd: int) -> bool:
    """Return whether a host that shares the directory open at *fd* has set aside, or deleted, all that was in it."""
    return is_begun(fd) and len(names_in(fd)) == 1


def _is_sign(fd: int, name: bytes) -> bool:
    return name.startswith(signs.MOVED) and signs.is_roots(fd, name)


def set_aside(fd: int, identity: str) -> None:
    """Move everything in the old directory, open at *fd*, aside; what was cut short is gone on with.

    :raises StowageError: when something stays where it is
    """
    name = signs.moved(identity)
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
    name = signs.moved(identity)
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


def delete(fd: int, identity: str, progress: Callable[[int, int], None], with_sign: bool) -> None:
    """Delete what lies aside in the old directory, open at *fd*.

    :param with_sign: whether an empty directory is left of it, by which others know that something lay there
    :param progress: called again and again while it goes; what it raises ends the work
    :raises StowageError: when something stays
    """
    name = signs.moved(identity)
    if name in names_in(fd):
        inner = open_beneath(fd, name)
        try:
            left = empty(inner, progress=progress).left
        finally:
            os.close(inner)
        if left:
            raise StowageError(f"what cannot be deleted: {'; '.join(left)}")
        if not with_sign:
            os.rmdir(name, dir_fd=fd)
    came = [one for one in names_in(fd) if one != name]
    if came:
        raise StowageError(f"{printable(came[0])} is in the old directory, and was not moved: look at it")


def leave(path: str, identity: str) -> None:
    """Remove the old directory at *path*, which is empty but for that sign."""
    for directory in (os.path.join(os.fsencode(path), signs.moved(identity)), os.fsencode(path)):
        with suppress(FileNotFoundError):
            os.rmdir(directory)
