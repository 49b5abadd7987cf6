# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a data location may be: on a disk of this host's own, and out of others' reach."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from .. import mounts as mount_table
from ..errors import Refusal
from ..facts import filesystems
from ..facts.disks import Disks
from ..mounts import Mount
from ..services.lasting_mounts import LastingMounts
from . import locations as data_locations

SHARED_RULE = "a data location must be on this machine's own disk — to use shared storage, make a shared drive instead"


def read_mounts(host: str) -> list[Mount]:
    """Return the mount table, or say that the host cannot tell what it has mounted."""
    try:
        return mount_table.read()
    except FileNotFoundError:
        data_locations.check_reported(host, [])
        raise


def is_local(mount: Mount) -> bool:
    return not mount_table.is_shared(mount.fstype) and not mount_table.is_pseudo(mount.fstype)


def check_place(path: str, host: str, mounts: Sequence[Mount], lasting: LastingMounts) -> Mount:
    """Return the mount that a data location at the resolved *path* would be on, or refuse it."""
    name = f"path {path}"
    data_locations.check_reported(host, [mount for mount in mounts if is_local(mount)])
    lasting.check(name, path, mounts)
    mount = mount_table.of_path(path, mounts)
    if mount_table.is_shared(mount.fstype):
        raise Refusal(name, SHARED_RULE)
    if not is_local(mount):
        raise Refusal(name, f"{mount.point} is {mount.fstype}, which no disk keeps", "choose a folder on a local disk")
    if mount.read_only:
        raise Refusal(name, f"the filesystem at {mount.point} is read-only", "choose a folder on another disk")
    return mount


def disk_under(mount: Mount, mounts: Sequence[Mount]) -> tuple[str, bool]:
    """Return the word for the disk under *mount*, and whether it is the system disk."""
    local = [each for each in mounts if not mount_table.is_shared(each.fstype)]
    for filesystem in filesystems.survey(local, Disks.read()):
        if filesystem.mount.device == mount.device:
            return filesystem.kind, filesystem.system_disk
    return "", False


# -- Out of others' reach


def check_components(path: str) -> None:
    """Refuse a resolved *path* when anybody but root could put something else in its place."""
    current = ""
    for component in path.split("/")[1:]:
        _check_safe(current or "/", path)
        current = f"{current}/{component}"
    if os.path.lexists(path):
        _check_safe(path, path)


def _check_safe(directory: str, path: str) -> None:
    name = f"path {path}"
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        raise Refusal(
            name,
            f"{directory} does not exist, and only the last folder is created",
            "mount the disk that it is for, or create it",
        ) from None
    if not stat.S_ISDIR(status.st_mode):
        raise Refusal(name, f"{directory} is not a directory", "choose another folder")
    if status.st_uid != 0:
        raise Refusal(
            name,
            f"{directory} belongs to user {status.st_uid}, who could put another folder in its place",
            f"chown root {directory}, or choose another folder",
        )
    # In a sticky directory nobody but root can rename what root owns; the folder itself has to be root's alone.
    sticky = status.st_mode & stat.S_ISVTX and directory != path
    if status.st_mode & 0o022 and not sticky:
        raise Refusal(
            name,
            f"{directory} can be written by others than root (mode {stat.S_IMODE(status.st_mode):04o}), who could put"
            " another folder in its place",
            f"chmod go-w {directory}, or choose another folder",
        )
