# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is mounted in a tree: no event tells of it."""

from __future__ import annotations

import os
import select
import stat
from bisect import bisect_left
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from ...mounts import Mount, of_path, parse
from ...syscalls import open_beneath
from ...use.exports import exported

_TABLE = "/proc/self/mountinfo"


class Below(NamedTuple):
    """A mount in a tree, that no other one in it hides."""

    names: tuple[str, ...]
    """The way to it from the root of the tree."""
    device: str


class Table:
    """The mount table at one moment, and what was found out from it."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._device_of: dict[str, str] = {}

    def mount(self, number: int) -> Mount | None:
        """Return the mount of an id."""
        return self._by_id.get(number)

    def has_below(self, number: int) -> bool:
        """Return whether something is mounted on the mount of an id."""
        return number in self._below

    def exported_of(self, device: str) -> list[str]:
        """Return the paths on a device that the NFS server of this host exports."""
        return [path for path in exported() if self._device(path) == device]

    def below(self, root: str, number: int) -> list[Below]:
        """Return what is mounted below the directory at *root* on the mount of that id, sorted."""
        places = self._below.get(number)
        found = [] if places is None else places.within(root)
        names = {tuple(way.split("/")): device for way, device in found if way != "."}
        return [
            Below(way, names[way]) for way in sorted(names) if not any(way[:end] in names for end in range(1, len(way)))
        ]

    def uppers(self, root: str) -> list[str]:
        """Return the upper layers of overlays at or below the directory at *root*, relative to it."""
        return [way for way, _device in self._uppers.within(root)]

    def _device(self, path: str) -> str:
        if path not in self._device_of:
            self._device_of[path] = of_path(path, list(self._by_id.values())).device
        return self._device_of[path]

    @cached_property
    def _by_id(self) -> dict[int, Mount]:
        return {mount.id: mount for mount in parse(self.text)}

    @cached_property
    def _below(self) -> dict[int, _Places]:
        found: dict[int, dict[str, str]] = {}
        for mount in self._by_id.values():
            found.setdefault(mount.parent, {})[mount.point] = mount.device
        return {number: _Places(devices) for number, devices in found.items()}

    @cached_property
    def _uppers(self) -> _Places:
        found = {}
        for mount in self._by_id.values():
            for option in mount.super_options if mount.fstype == "overlay" else ():
                name, _equals, path = option.partition("=")
                if name == "upperdir":
                    found[os.path.normpath(path)] = mount.device
        return _Places(found)


class _Places:
    """Paths and the devices there, many of them: those in a directory are found without a look at the others."""

    def __init__(self, devices: Mapping[str, str]) -> None:
        self._devices = devices
        self._paths = sorted(devices)

    def within(self, root: str) -> list[tuple[str, str]]:
        """Return those at or below a directory, relative to it, with their devices."""
        way = root.rstrip("/")
        start, end = (bisect_left(self._paths, way + after) for after in ("/", chr(ord("/") + 1)))
        found = [(path[len(way) + 1 :], self._devices[path]) for path in self._paths[start:end] if path != root]
        return [(".", self._devices[root]), *found] if root in self._devices else found


class Tables:
    """The mount table, which is long, and read again when it may be another one."""

    def __init__(self) -> None:
        self._fd = os.open(_TABLE, os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        self._changes.register(self._fd, select.POLLPRI | select.POLLERR)
        self._table = Table(read_table())

    def now(self) -> Table:
        """Return the table, read again when the kernel says that a mount has come or gone.

        It does not say that a directory with a mount in it was renamed: see `again`.
        """
        return self.again() if self._changes.poll(0) else self._table

    def again(self) -> Table:
        """Return the table, read again."""
        text = read_table()
        if text != self._table.text:
            self._table = Table(text)
        return self._table

    def close(self) -> None:
        """End."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read_table() -> bytes:
    """Return what the kernel shows of the mounts."""
    with open(_TABLE, "rb") as stream:
        return stream.read()


def is_own_file(root_fd: int, below: Below, device: str) -> bool:
    """Return whether what is mounted is a file of the filesystem itself, which a walk takes for any other file."""
    if below.device != device:
        return False
    try:
        parent_fd = open_parent(root_fd, below)
    except OSError:
        return False
    try:
        found = os.lstat(below.names[-1], dir_fd=parent_fd)
        return not stat.S_ISDIR(found.st_mode) and found.st_dev == os.fstat(parent_fd).st_dev
    except OSError:
        return False
    finally:
        os.close(parent_fd)


def open_parent(root_fd: int, below: Below) -> int:
    """Open the directory in which something is mounted."""
    return open_beneath(root_fd, os.fsencode("/".join(below.names[:-1]) or "."))


def root_path(root_fd: int) -> str:
    """Return where the mount table has a directory."""
    return os.readlink(f"/proc/self/fd/{root_fd}")
