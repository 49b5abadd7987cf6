# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The copy while it is made: in a directory of the new one that only root can enter.

What makes the copy also deletes what is not in the location any more. So nobody else may ever have put anything there,
also not while the host was down or the move given up. And nobody finds half a copy.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..errors import Refusal, printable
from ..syscalls import open_beneath, rename_noreplace
from . import signs
from .comparison import attributes, differences_of_root
from .content import names_in

_CONTENT = b"content"


def place_of(identity: str) -> str:
    """Return where in the new directory the copy is made."""
    return os.fsdecode(signs.copy(identity) + b"/" + _CONTENT)


def is_roots_only(fd: int) -> bool:
    """Return whether only root can have put anything into the directory open at *fd*, since it was made so."""
    status = os.fstat(fd)
    return status.st_uid == 0 and not stat.S_IMODE(status.st_mode) & 0o077


def close_up(fd: int) -> None:
    os.fchown(fd, 0, 0)
    os.fchmod(fd, 0o700)


def keep_for_root(fd: int, path: str) -> None:
    """Make the empty directory open at *fd* one that only root can enter.

    :raises Refusal: when something is in it
    """
    _check_empty(fd, path)
    before = os.fstat(fd)
    close_up(fd)
    try:
        _check_empty(fd, path)
    except Refusal:
        os.fchown(fd, before.st_uid, before.st_gid)
        os.fchmod(fd, stat.S_IMODE(before.st_mode))
        raise


def _check_empty(fd: int, path: str) -> None:
    there = names_in(fd)
    if there:
        rule = f"{path} is not empty: {printable(there[0])} came meanwhile"
        raise Refusal("relocate_to", rule, "name an empty directory")


@contextmanager
def staged(fd: int, identity: str) -> Iterator[int]:
    """Open the directory in which the copy is made, with all of it in there; *fd* is the new directory."""
    name = signs.copy(identity)
    outer = _made(fd, name)
    try:
        content = _made(outer, _CONTENT)
    finally:
        os.close(outer)
    try:
        for each in names_in(fd):
            if each != name:
                rename_noreplace(fd, each, content, each)
        yield content
    finally:
        os.close(content)


def _made(fd: int, name: bytes) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=fd)
    return open_beneath(fd, name)


def sign(fd: int, identity: str) -> None:
    """Have the new directory, open at *fd*, say that it holds a copy; an empty one says nothing."""
    if names_in(fd):
        os.close(_made(fd, signs.copy(identity)))
        os.fsync(fd)


def unpack(fd: int, identity: str) -> None:
    """Give what was copied its place in the new directory, open at *fd*, which stays root's only."""
    name = signs.copy(identity)
    outer = open_beneath(fd, name)
    try:
        content = open_beneath(outer, _CONTENT)
        try:
            for each in names_in(content):
                rename_noreplace(content, each, fd, each)
        finally:
            os.close(content)
        os.rmdir(_CONTENT, dir_fd=outer)
    finally:
        os.close(outer)
    os.rmdir(name, dir_fd=fd)
    os.fsync(fd)


def open_up(old_fd: int, new_fd: int, path: str) -> None:
    """Make the new directory itself what the old one is: with its owner, mode, attributes and time.

    :raises Refusal: when it cannot be all of that
    """
    wanted, there = attributes(old_fd), attributes(new_fd)
    for name in there.keys() - wanted.keys():
        os.removexattr(new_fd, name)
    for name, value in wanted.items():
        os.setxattr(new_fd, name, value)
    status = os.fstat(old_fd)
    os.fchown(new_fd, status.st_uid, status.st_gid)
    os.fchmod(new_fd, stat.S_IMODE(status.st_mode))
    os.utime(new_fd, ns=(status.st_atime_ns, status.st_mtime_ns))
    left = differences_of_root(old_fd, new_fd)
    if left:
        raise Refusal(path, f"it cannot be made what the old directory is: {left[0]}", "name another filesystem")
