# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directories of a storage layout that are ours to make: which, whose they are to be, and making them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from .. import own_files
from ..accounts import group_name, owner_name
from ..errors import Refusal, StowageError
from ..syscalls import DIRECTORY
from .found import Place, opened
from .rules import BY_NAME, OF_ROOT, Layout


@dataclass(frozen=True)
class Ownership:
    """Owner, group and mode of a directory; a number is None while there is no such user or group yet."""

    owner: str
    group: str
    mode: int
    uid: int | None
    gid: int | None

    @classmethod
    def of(cls, status: os.stat_result) -> Ownership:
        return cls(
            owner_name(status.st_uid),
            group_name(status.st_gid),
            stat.S_IMODE(status.st_mode),
            status.st_uid,
            status.st_gid,
        )

    @property
    def others_write(self) -> bool:
        """Whether others than its owner may write to it; the group's permission stands for an access list too."""
        return bool(self.mode & (stat.S_IWGRP | stat.S_IWOTH))

    @property
    def described(self) -> str:
        return f"mode {self.mode:04o}, owner {self.owner}:{self.group}"


def parse_mode(text: str) -> int:
    """Return the mode that locations are to have, or refuse it."""
    mode = own_files.parse_mode(text, "mode")
    if mode & 0o002 and not mode & 0o1000:
        rule = f"{text} would let everybody replace the locations below the root"
        raise Refusal("mode", rule, "take that permission away, or add the sticky bit")
    return mode


@dataclass(frozen=True)
class Wanted:
    """What was asked for of the directories that are ours to make; None is as it is, and root's 0755 when made."""

    owner: str | None = None
    group: str | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None

    def onto(self, present: Ownership | None) -> Ownership:
        base = _ROOTS if present is None else present
        return Ownership(
            base.owner if self.owner is None else self.owner,
            base.group if self.group is None else self.group,
            base.mode if self.mode is None else self.mode,
            base.uid if self.owner is None else self.uid,
            base.gid if self.group is None else self.gid,
        )


_ROOTS = Ownership("root", "root", 0o755, 0, 0)


def wanted_of(name: str, wanted: Wanted, present: Ownership | None) -> Ownership:
    """Return whose the location *name* is to be: what others work in is asked for, what is above that is root's.

    Where names say whose something is, those who may write can make directories, and rename none but their own.
    """
    if name in OF_ROOT:
        return _ROOTS
    its = wanted.onto(present)
    sticky = name in BY_NAME and wanted.mode is not None and its.others_write
    return replace(its, mode=its.mode | stat.S_ISVTX) if sticky else its


def ownership(path: str) -> Ownership | None:
    """Return who owns the directory at *path*, which has no symlinks, or None when there is nothing."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(status.st_mode):
        raise Refusal(path, "is not a directory", "move it away")
    return Ownership.of(status)


def make(path: str, wanted: Ownership) -> None:
    """Make the directory *path*, or give an existing one its owner, group and mode; never what is in it."""
    if wanted.uid is None or wanted.gid is None:
        raise StowageError(f"{path}: there is no {wanted.owner}:{wanted.group} on this host; make them first")
    parent, name = os.path.split(path)
    with opened(parent) as parent_fd:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent_fd)
        fd = os.open(name, DIRECTORY, dir_fd=parent_fd)
        try:
            os.fchown(fd, wanted.uid, wanted.gid)
            os.fchmod(fd, wanted.mode)
        finally:
            os.close(fd)


def steps(parent: str, path: str) -> list[str]:
    """Return the directories from below *parent* down to *path*, outermost first."""
    below = path[len(parent.rstrip("/")) :].strip("/").split("/")
    return [parent.rstrip("/") + "/" + "/".join(below[:length]) for length in range(1, len(below) + 1)]


@dataclass(frozen=True)
class Directory:
    """A directory that is ours to make, as it is and as it is to be."""

    path: str
    present: Ownership | None
    wanted: Ownership

    @property
    def differs(self) -> bool:
        return self.present != self.wanted


def directories(layout: Layout, places: Mapping[str, Place], wanted: Wanted) -> list[Directory]:
    """Return the directories that are ours to make, outermost first.

    The root and those above it are made when they are missing, and else left: they may hold more than a layout. What is
    above a location that others work in is root's, so that nobody else can put a link in its place.
    """
    root = places["root"]
    plan: dict[str, Directory] = {}
    for path in () if root.exists else steps(root.existing, root.real):
        plan[path] = Directory(path, None, _ROOTS)
    for name in layout.defaults:
        for path in steps(places[layout.parent(name)].real, places[name].real):
            present = ownership(path)
            its = wanted_of(name, wanted, present) if path == places[name].real else _ROOTS
            plan[path] = Directory(path, present, its)
    return list(plan.values())
