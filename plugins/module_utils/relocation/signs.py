# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names that a move makes at the top of its two directories, and whether it was root who made them.

A worker may be able to make any name there, but no directory of root's own.
"""

from __future__ import annotations

import os
import stat

MOVED = b".stowage-moved-"
"""The old content lies in it, beneath the mount at the old path."""
COPY = b".stowage-copy-"
"""The copy is made in it; afterwards it says that the directory holds the copy of a move that came to nothing."""


def moved(identity: str) -> bytes:
    return MOVED + os.fsencode(identity)


def copy(identity: str) -> bytes:
    return COPY + os.fsencode(identity)


def is_roots(directory: int | str, name: bytes) -> bool:
    """Return whether an entry is a directory of root's own, which only root can enter.

    :param directory: where it is, by descriptor or by path
    """
    try:
        if isinstance(directory, int):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        else:
            status = os.lstat(os.path.join(os.fsencode(directory), name))
    except (FileNotFoundError, NotADirectoryError):
        return False
    # It may have the set-group-id bit of the directory that it is in.
    return stat.S_ISDIR(status.st_mode) and status.st_uid == 0 and status.st_mode & 0o777 == 0o700
