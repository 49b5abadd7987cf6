# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A directory that root alone enters, and one user: an access list says so, which that user cannot change."""

from __future__ import annotations

import errno
import os
import struct

_ACCESS_LIST = "system.posix_acl_access"
_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
"""Whom an entry is for, as the kernel numbers them."""
_NOBODY = 0xFFFFFFFF
"""What stands for a number where an entry has none."""


def admit(fd: int, uid: int) -> None:
    """Let the user *uid* pass through root's directory open at *fd*, and nobody else but root.

    Where there are no access lists, root alone passes.
    """
    os.fchmod(fd, 0o700)  # nobody passes while it changes: the mask of a list that is there goes with it
    entries = [(_OWNER, 7, _NOBODY), (_GROUP, 0, _NOBODY), (_OTHERS, 0, _NOBODY)]
    if uid:
        entries += [(_USER, 1, uid), (_MASK, 1, _NOBODY)]
    try:
        os.setxattr(fd, _ACCESS_LIST, _VERSION + b"".join(_ENTRY.pack(*entry) for entry in sorted(entries)))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
