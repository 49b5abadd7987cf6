# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The old content of a moved location, beneath the mount at its old path: set aside there, and deleted in the end.

Should the mount at the old path ever be missing, whoever writes by a stored path must not find the old content there,
and take it for the present one. So it lies in a directory that only root can enter, in an old directory that nobody but
root can enter either.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from ..errors import StowageError, printable
from ..syscalls import open_beneath, rename_noreplace
from ..trees.emptying import empty

_PREFIX = b".stowage-moved-"


def name_of(identity: str) -> bytes:
    """Return the name of the directory in which the old content lies."""
    return _PREFIX + os.fsencode(identity)


def is_set_aside(fd: int) -> bool:
    """Return whether the content of the directory open at *fd* lies aside, or was deleted, whichever host did it."""
    return any(name.startswith(_PREFIX) for name in names_in(fd)) or not stat.S_IMODE(os.fstat(fd).st_mode)


def set_aside(fd: int, identity: str) -> None:
    """Move everything in the old directory, open at *fd*, aside; what was cut short is gone on with."""
    name = name_of(identity)
    # First: whoever has passed it already is told by the state of the content.
    os.fchmod(fd, 0)
    if name not in names_in(fd):
        os.mkdir(name, 0o700, dir_fd=fd)
    inner = open_beneath(fd, name)
    try:
        for each in names_in(fd):
            if each != name:
                rename_noreplace(fd, each, inner, each)
        os.fsync(inner)
        os.fsync(fd)
    finally:
        os.close(inner)


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


def names_in(fd: int) -> list[bytes]:
    """Return what is in a directory, in order."""
    # Opened anew: btrfs does not list what has come since a directory was opened.
    again = open_beneath(fd, b".")
    try:
        return sorted(map(os.fsencode, os.listdir(again)))
    finally:
        os.close(again)
