# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a volume is there: its filesystem answers, and is the one that it was declared on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .. import claims
from ..answers import check_answers
from ..drives import host_paths
from ..errors import Refusal, printable
from ..mounts import identify
from ..paths import is_within
from ..runs.drives import Sight
from ..runs.pinning import open_folder
from .recorded import Volume


@contextmanager
def opened(volume: Volume, sight: Sight) -> Iterator[host_paths.Found]:
    """Open the directory of a volume.

    :raises Refusal: when it is not there, or not on the mount that it was declared on
    """
    with reached(volume.described, volume.path, sight) as found:
        if found.missing:
            rule = f"{printable(found.path)} is not there"
            raise Refusal(volume.described, rule, "mount its disk, or correct the list of volumes")
        check_mount(volume, found.fd, sight)
        yield found


@contextmanager
def reached(name: str, path: str, sight: Sight) -> Iterator[host_paths.Found]:
    """Open *path*, as far as it is there, over no symbolic link that others than root can have put there.

    :raises StowageError: when its filesystem does not answer, or a mount that the host is to have above it is missing
    """
    check_answers([(name, path)])
    with host_paths.opened(path, name) as found:
        sight.lasting.check(name, found.path, sight.mounts)
        yield found


def check_mount(volume: Volume, fd: int, sight: Sight) -> None:
    """Refuse a directory, open at *fd*, that is not on the mount which the volume was declared on."""
    if not volume.require_mount:
        return
    mount = sight.mount_of(fd)
    if mount.point != volume.mount_point:
        rule = f"{volume.path} was on the mount at {volume.mount_point}, and nothing is mounted there"
        raise Refusal(volume.described, rule, "mount its disk")
    there = identify(fd, sight.mounts)
    if not there.matches(volume.filesystem):
        rule = f"{volume.path} was on {volume.filesystem.described}, and is now on {there.described}"
        raise Refusal(volume.described, rule, "mount the right one, or roll out with accept_new_filesystem")


@contextmanager
def opened_folder(volume: Volume, sub_path: str, sight: Sight, protected: Mapping[str, str]) -> Iterator[int]:
    """Open a folder of a volume, over no symbolic link in it and through no mount in it.

    :param protected: paths that no run may have mounted
    :raises Refusal: when it is not there, is protected or holds what is, or something is mounted below it, which a
        worker would not see
    """
    with opened(volume, sight) as found:
        fd = open_folder(found.fd, volume.described, sub_path)
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
            remedy = "grant the folders beside it, or take it out of the protected paths"
            claims.check_apart(volume.described, path, protected, sight.mounts, remedy)
            for mount in sight.mounts:
                if mount.point != path and is_within(mount.point, path):
                    rule = f"{printable(mount.point)} is mounted in it, and a worker would see an empty directory there"
                    raise Refusal(volume.described, rule, "grant the folders beside it, or mount that elsewhere")
            yield fd
        finally:
            os.close(fd)
