# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two marks of a fill on a copy: the file that the fill writes last, and that a fill of Stowage's has begun there.

The second is the extended attribute ``trusted.stowage.fill`` of the copy. It is set while the copy is empty and nobody
has it, before anything can be written, and taken away once all that was written is safe on the disk, or before anybody
else is given the copy. So a copy that has it holds nothing but what a fill left that did not finish, and may be
removed; what a copy without it holds may be anybody's.
"""

from __future__ import annotations

import errno
import json
import os
import stat

from ..errors import quoted
from ..owner import Mark
from ..syscalls import NO_DIRECTORY, open_beneath

MARKERS = (b".stowage-filled", b".astralyx-filled")
"""The names that the file may have; the second is Astraeus's."""
XATTR = "trusted.stowage.fill"


def missing_marker(folder_fd: int) -> str:
    """Return what is wrong with the file that a fill writes last; empty when it is there.

    :param folder_fd: the folder that the fill sees
    """
    wrong = f"there is no file {os.fsdecode(MARKERS[0])}"
    for name in MARKERS:
        try:
            fd = open_beneath(folder_fd, name, os.O_PATH)
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                continue
            raise
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
        finally:
            os.close(fd)
        wrong = f"{quoted(name)} is no plain file"
    return wrong


def _value(mark: Mark) -> bytes:
    """It names drive and place: one that came with a copying tool, or is of an earlier drive, says nothing."""
    return json.dumps({"identity": mark.identity, "place": mark.place}).encode("ascii")


def begin(copy_fd: int, mark: Mark) -> None:
    """Note durably that a fill begins in the empty copy open at *copy_fd*, which bears *mark*."""
    os.setxattr(copy_fd, XATTR, _value(mark))
    os.fsync(copy_fd)


def has_begun(copy_fd: int, mark: Mark) -> bool:
    """Return whether all that the copy holds was written by a fill that has not finished."""
    try:
        return os.getxattr(copy_fd, XATTR) == _value(mark)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise


def remove(copy_fd: int) -> None:
    """Note durably that what the copy holds is to stay: the fill has finished, or somebody else is given the copy."""
    try:
        os.removexattr(copy_fd, XATTR)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return
        raise
    os.fsync(copy_fd)
