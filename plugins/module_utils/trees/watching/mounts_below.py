# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is mounted in a tree: no event tells of it."""

from __future__ import annotations

import os
import select
import stat
from functools import cached_property
from typing import NamedTuple

from ...mounts import Mount, of_path, parse
from ...paths import is_within
from ...syscalls import open_beneath
from ...use.exports import exported

_TABLE = "/proc/self/mountinfo"


class Below(NamedTuple):
    """A mount in a tree, that no other one in it hides."""

    names: tuple[str, ...]
    """The way to it from the root of the tree."""
    device: str


class Table:
    """The mount table at one moment."""

    def __init__(self) -> None:
        with open(_TABLE, "rb") as stream:
            self.text = stream.read()

    def mount(self, number: int) -> Mount | None:
        """Return the mount of an id."""
        line = self._lines.get(b"%d" % number)
        return None if line is None else parse(line)[0]

    def has_below(self, number: int) -> bool:
        """Return whether something is mounted on the mount of an id."""
        return b"%d" % number in self._below

    def exported_of(self, device: str) -> list[str]:
        """Return the paths on a device that the NFS server of this host exports."""
        paths = exported()
        mounts = parse(self.text) if paths else []
        return [path for path in paths if of_path(path, mounts).device == device]

    def below(self, root: str, number: int) -> list[Below]:
        """Return what is mounted below the directory at *root* on the mount of that id, sorted."""
        lines = self._below.get(b"%d" % number)
        found: dict[str, str] = {}
        for mount in parse(b"\n".join(lines)) if lines else ():
            if mount.point != root and is_within(mount.point, root):
                found[os.path.relpath(mount.point, root)] = mount.device
        names = {tuple(point.split("/")): device for point, device in found.items()}
        return [
            Below(way, names[way]) for way in sorted(names) if not any(way[:end] in names for end in range(1, len(way)))
        ]

    def uppers(self, root: str) -> list[str]:
        """Return the upper layers of overlays at or below the directory at *root*, relative to it."""
        found = []
        for mount in self._overlays:
            for option in mount.super_options:
                name, _equals, path = option.partition("=")
                if name == "upperdir" and is_within(path, root):
                    found.append(os.path.relpath(path, root))
        return found

    @cached_property
    def _lines(self) -> dict[bytes, bytes]:
        return {line.split(b" ", 1)[0]: line for line in self.text.split(b"\n")}

    @cached_property
    def _below(self) -> dict[bytes, list[bytes]]:
        found: dict[bytes, list[bytes]] = {}
        for line in self._lines.values():
            for parent in line.split(b" ", 2)[1:2]:
                found.setdefault(parent, []).append(line)
        return found

    @cached_property
    def _overlays(self) -> list[Mount]:
        lines = [line for line in self._lines.values() if b" - overlay " in line]
        return list(parse(b"\n".join(lines))) if lines else []


class Tables:
    """The mount table, which is long, and read again when it may be another one."""

    def __init__(self) -> None:
        self._fd = os.open(_TABLE, os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        self._changes.register(self._fd, select.POLLPRI | select.POLLERR)
        self._table = Table()

    def now(self, number: int) -> Table:
        """Return the table as it counts for what the mount of an id shows.

        The kernel tells of a mount that comes or goes, and not of a directory with one in it that is renamed.
        """
        if self._changes.poll(0) or self._table.has_below(number):
            self._table = Table()
        return self._table

    def close(self) -> None:
        """End."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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
