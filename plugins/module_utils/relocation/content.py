# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a directory is content: all of it, but for what mkfs has made at the top of a filesystem."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from ..errors import StowageError
from ..sizes import decimal
from ..syscalls import open_beneath
from ..trees.walk import Problem, Walk
from ..use.child import answer_of, progress

OF_MKFS = b"lost+found"
_DEADLINE_S = 600.0
_TOP_OF_EXT, _OF_FSCK = 2, 11
"""The inodes of the top of an ext4 filesystem, and of the directory that mkfs makes there for fsck."""


def is_of_mkfs(top: os.stat_result, name: str | bytes, status: os.stat_result) -> bool:
    """Return whether an entry of the directory *top* was made by mkfs: that neither moves nor goes."""
    return os.fsencode(name) == OF_MKFS and (top.st_ino, status.st_ino) == (_TOP_OF_EXT, _OF_FSCK)


def names_in(fd: int) -> list[bytes]:
    """Return what is in a directory, in order."""
    # Opened anew: btrfs does not list what has come since a directory was opened.
    again = open_beneath(fd, b".")
    try:
        top = os.fstat(again)
        names = sorted(map(os.fsencode, os.listdir(again)))
        if OF_MKFS in names and is_of_mkfs(top, OF_MKFS, os.stat(OF_MKFS, dir_fd=again, follow_symlinks=False)):
            names.remove(OF_MKFS)
        return names
    finally:
        os.close(again)


@dataclass(frozen=True)
class Amount:
    """How much there is in a tree."""

    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.files} files with {decimal(self.bytes)}"


def amount_in(fd: int) -> Amount:
    """Return how much is below the directory open at *fd*.

    :raises StowageError: when something in it cannot be looked at
    """
    files, size = answer_of(lambda: _amount_in(fd), _DEADLINE_S)
    return Amount(files, size)


def _amount_in(fd: int) -> tuple[int, int]:
    problems: list[Problem] = []
    files = size = 0
    for directory in Walk(open_beneath(fd, b"."), problems.append):
        for entry in directory.files():
            progress()
            status = entry.stat(follow_symlinks=False)
            files += 1
            size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    if problems:
        raise StowageError(f"cannot be looked at: {problems[0]}")
    return files, size
