# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the paths of a storage layout lead on this host, and whether the right disk is mounted there."""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .. import mounts as mount_table
from ..answers import check_answers
from ..errors import Refusal, printable
from ..mounts import FilesystemId, Mount
from ..paths import check_path
from .rules import NAMES, Layout, check_apart

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Place:
    """Where an absolute path leads: *real* has no symlinks, and *existing* is as much of it as there is."""

    path: str
    real: str
    existing: str
    mount: Mount
    filesystem: FilesystemId

    @property
    def exists(self) -> bool:
        return self.real == self.existing


def find(path: str, name: str, table: Sequence[Mount]) -> Place:
    """Follow *path* component by component, symlinks included.

    :raises Refusal: when something on the way is no directory, or lies where everybody may put something else instead
    """
    parts = deque(path.strip("/").split("/"))
    links = 0
    here = "/"
    fd = os.open("/", _STEP)
    try:
        while parts:
            part = parts.popleft()
            _check_kept(os.fstat(fd), here, part, name)
            try:
                entry = os.stat(part, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                parts.appendleft(part)
                break
            if stat.S_ISLNK(entry.st_mode):
                links += 1
                if links > 40:
                    raise Refusal(name, f"{path} has too many levels of symbolic links", "name the directory itself")
                target = os.readlink(part, dir_fd=fd)
                parts.extendleft(reversed([step for step in target.split("/") if step not in ("", ".")]))
                if target.startswith("/"):
                    here, fd = "/", _instead(fd, os.open("/", _STEP))
                continue
            if part == "..":
                here = os.path.dirname(here)
                fd = _instead(fd, os.open(here, _STEP))
                continue
            there = os.path.join(here, part)
            if not stat.S_ISDIR(entry.st_mode):
                raise Refusal(name, f"{there} is not a directory", "name a directory")
            here, fd = there, _instead(fd, os.open(part, _STEP, dir_fd=fd))
        real = os.path.normpath(os.path.join(here, *parts))
        return Place(path, real, here, mount_table.of_fd(fd, table), mount_table.identify(fd, table))
    finally:
        os.close(fd)


def _instead(fd: int, new: int) -> int:
    os.close(fd)
    return new


def _check_kept(directory: os.stat_result, path: str, part: str, name: str) -> None:
    if directory.st_mode & stat.S_IWOTH and not directory.st_mode & stat.S_ISVTX:
        raise Refusal(
            name,
            f"everybody may write to {path}, and so replace {printable(part)} in it",
            f"take that away (chmod o-w {path}) or choose another directory",
        )


@contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a path that has no symlinks, component by component, so that one put there meanwhile is not followed."""
    fd = os.open("/", _STEP)
    try:
        for part in path.strip("/").split("/"):
            if part:
                fd = _instead(fd, os.open(part, _STEP, dir_fd=fd))
        yield fd
    finally:
        os.close(fd)


def find_all(layout: Layout, table: Sequence[Mount]) -> dict[str, Place]:
    """Return where every path of *layout* leads, by name.

    :raises Refusal: when one that must exist does not, when symlinks make two of them overlap, or when a default is one
    """
    named = layout.named()
    check_answers(list(named.items()))
    places = {name: find(path, name, table) for name, path in named.items()}
    for name in (*NAMES, "volume_root"):
        if (name in layout.overridden or name == "volume_root") and name in places and not places[name].exists:
            rule = f"{named[name]} does not exist, and an explicit path is never made"
            raise Refusal(name, rule, "make or mount it first")
    check_apart(layout, {place.path: place.real for place in places.values()}.__getitem__)
    for name in layout.defaults:
        parent = places[layout.parent(name)]
        if places[name].real != parent.real + named[name][len(parent.path) :]:
            raise Refusal(
                name,
                f"{named[name]} leads to {places[name].real} through a symbolic link",
                "name that directory as its override",
            )
    return places


@dataclass(frozen=True)
class MountRule:
    """What a location asks of the mount that it lies on: an existing empty directory proves no mount."""

    required: bool = False
    point: str | None = None

    @classmethod
    def of(cls, name: str, required: bool, point: str | None) -> MountRule:
        checked = check_path(point, f"{name}: mount_point") if point else None
        return cls(required or checked is not None, checked)

    def check(self, name: str, place: Place) -> None:
        mounted = place.mount.point
        if self.point is not None and mounted != self.point:
            rule = f"{place.path} is on the mount at {mounted}, and not at {self.point}"
            raise Refusal(name, rule, "mount its disk, or correct mount_point")
        if self.required and mounted == "/":
            raise Refusal(name, f"{place.path} is on the root filesystem, nothing is mounted there", "mount its disk")


def check_same_filesystem(name: str, place: Place, former: Mapping[str, Any]) -> None:
    """Refuse a location whose disk seems to have gone since its *former* record was written."""
    if former["path"] != place.path or former["mount_point"] == "/":
        return
    recorded = FilesystemId.from_json(former["filesystem"])
    if not recorded.matches(place.filesystem):
        raise Refusal(
            name,
            f"{place.path} was on {recorded.described} mounted at {former['mount_point']}, "
            f"and is now on {place.filesystem.described} mounted at {place.mount.point}",
            "mount the right one, or set accept_new_filesystem when the change is meant",
        )
