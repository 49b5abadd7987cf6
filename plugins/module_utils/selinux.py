# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The label that lets containers use a directory on a host with SELinux."""

from __future__ import annotations

import errno
import os

from .errors import Refusal

AT = "/sys/fs/selinux"
XATTR = "security.selinux"
LABEL = b"system_u:object_r:container_file_t:s0\0"
"""Level s0, without categories: copies and scratch are for the containers of many runs."""


def is_enabled(at: str = AT) -> bool:
    return os.path.exists(os.path.join(at, "enforce"))


def label(fd: int, at: str = AT) -> bool:
    """Label the directory open at *fd*, which was made just now, for containers; return whether there was need to.

    What is made in it later has its type from it. A filesystem that is mounted with one label for all keeps that.
    """
    if not is_enabled(at):
        return False
    try:
        os.setxattr(fd, XATTR, LABEL)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return False
        if error.errno == errno.EINVAL:
            rule = "the SELinux policy of this host has no container_file_t"
            raise Refusal(os.readlink(f"/proc/self/fd/{fd}"), rule, "install container-selinux") from error
        raise
    return True
