# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a declared directory is there: one that exists may be only the place where its disk is missing."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .. import mounts as mount_table
from ..errors import Refusal
from ..mounts import FilesystemId, Mount
from ..services.lasting_mounts import LastingMounts


def check(
    path: str, fd: int, table: Sequence[Mount], mount_point: str | None = None, filesystem: FilesystemId | None = None
) -> Mount:
    """Return the mount that the directory open at *fd* lies on, or refuse it.

    :param path: as it is declared
    :param mount_point: where a filesystem must be mounted for it to be there at all
    :param filesystem: the one that it was on when it was declared
    """
    mount = mount_table.of_fd(fd, table)
    check_mounted(path, os.readlink(f"/proc/self/fd/{fd}"), table)
    if mount_point is not None and mount_point not in (one.point for one in table):
        raise Refusal(path, f"nothing is mounted at {mount_point}", "mount its disk")
    if filesystem is not None and not mount_table.identify(fd, table).matches(filesystem):
        rule = f"its filesystem ({filesystem.described}) is not mounted, another one is in its place"
        raise Refusal(path, rule, "mount its disk or roll the layout out again")
    return mount


def check_mounted(path: str, resolved: str, table: Sequence[Mount]) -> None:
    """Refuse a directory while a mount that the host is to have at it or above it is missing."""
    for one in LastingMounts.read().missing(resolved, table):
        raise Refusal(path, one.missing, one.remedy)
