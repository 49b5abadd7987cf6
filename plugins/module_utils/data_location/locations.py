# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data location of a host: the one folder where it keeps its copies of placed drives, and those it had before."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from .. import mounts as mount_table
from .. import records
from ..differences import Differences
from ..drives.recorded import Found, Holdings
from ..errors import Refusal, StowageError
from ..mounts import FilesystemId, Mount
from ..owner import XATTR, Mark, read_mark
from ..places import Places
from ..syscalls import DIRECTORY, NO_DIRECTORY, open_beneath

KIND = "data-location"
COPY = "copy"
DRIVES = b"drives"
LOCKS = b".stowage/locks"
PENDING = b".stowage-trash/pending"
CONDEMNED = b".stowage-trash/condemned"


@dataclass(frozen=True)
class DataLocation:
    """A folder that was chosen for this host's copies, as it is recorded."""

    path: str
    max_bytes: int
    """The most that drive copies may take; 0 is no limit but the disk."""
    host: str
    filesystem: FilesystemId
    identity: str
    left: float = 0.0
    """When another folder was chosen instead; 0 for the present one."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DataLocation:
        known = {key: value[key] for key in ("path", "host", "identity")}
        given = {key: value[key] for key in ("max_bytes", "left") if key in value}
        filesystem = FilesystemId.from_json(value["filesystem"])
        return records.typed(cls, {"max_bytes": 0, **known, **given, "filesystem": filesystem})

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "path": self.path,
            "host": self.host,
            "filesystem": self.filesystem.to_json(),
            "identity": self.identity,
        }
        value.update({"left": self.left} if self.left else {"max_bytes": self.max_bytes})
        return value


class NotThere(StowageError):
    """A data location cannot be reached as the one that was chosen: nothing may be made or removed in it.

    :param reason: ``missing``, ``filesystem`` (not mounted, or another one in its place), ``mark`` or ``inode``
    """

    def __init__(self, location: DataLocation, reason: str, rule: str) -> None:
        self.path = location.path
        self.reason = reason
        super().__init__(
            f"data location {location.path}: {rule}; bring its disk back, or, if it is gone for good,"
            f" give it up with forget: {location.identity}"
        )


def load(places: Places) -> DataLocation | None:
    """Return this host's data location, or None when none has been chosen."""
    value = records.read(places.data_location_json)
    return None if value is None else _parsed(value, places.data_location_json)


def is_present(places: Places, location: DataLocation) -> bool:
    """Return whether a data location is the one that this host uses now."""
    present = load(places)
    return present is not None and present.identity == location.identity


def load_former(places: Places) -> list[DataLocation]:
    """Return the data locations that this host had before and that may still hold copies."""
    path = places.former_locations_json
    return [_parsed(value, path) for value in (records.read(path) or {}).get("locations", [])]


def write(path: str, value: Mapping[str, Any], differences: Differences) -> None:
    """Write the record of a data location where it differs."""
    if not records.is_current(path, records.dumps(value)):
        differences.do(f"write {path}", partial(records.write, path, value))


def _parsed(value: Mapping[str, Any], path: str) -> DataLocation:
    try:
        return DataLocation.from_json(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise records.RecordError(f"{path}: not a data location ({error!r}); roll the host out again") from error


def open_verified(location: DataLocation, mounts: Sequence[Mount] | None = None) -> int:
    """Return a descriptor of *location*, proven to be the folder that was chosen and on the filesystem it was on.

    :param mounts: the mount table; read now when left out
    :raises NotThere: when it is not; whoever asks must then leave the path alone
    """
    try:
        fd = os.open(location.path, DIRECTORY)
    except OSError as error:
        raise NotThere(location, "missing", f"cannot be opened ({(error.strerror or '').lower()})") from error
    try:
        verify(fd, location, mount_table.read() if mounts is None else mount_table.with_mount_of(fd, mounts))
    except BaseException:
        os.close(fd)
        raise
    return fd


def verify(fd: int, location: DataLocation, mounts: Sequence[Mount]) -> None:
    """Refuse with NotThere unless *fd* is the folder that *location* records."""
    try:
        filesystem = mount_table.identify(fd, mounts)
        mark = read_mark(fd)
    except (StowageError, OSError) as error:
        raise NotThere(location, "mark", f"cannot be verified ({error})") from error
    if not filesystem.matches(location.filesystem):
        raise NotThere(
            location,
            "filesystem",
            f"its filesystem ({location.filesystem.described}) is not mounted here, but {filesystem.described} is",
        )
    if mark is None and has_mark(fd):
        raise NotThere(location, "inode", "its owner mark is another directory's: this one was copied or restored")
    if mark is None:
        raise NotThere(location, "mark", "it has no owner mark: it is another folder of the same name")
    if (mark.kind, mark.identity, mark.host) != (KIND, location.identity, location.host):
        raise NotThere(location, "mark", f"it is marked as another {mark.kind}, of host {mark.host}")


def has_mark(fd: int) -> bool:
    """Return whether there is a mark of any kind, also one that came with a copying tool."""
    try:
        os.getxattr(fd, XATTR)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise
    return True


def check_reported(host: str, filesystems: Sequence[Any]) -> None:
    """Refuse a host of which no local filesystem is known: nothing says what a path on it would mean."""
    if not filesystems:
        raise Refusal("", f"machine {host} has not reported its disks yet", "wait until it is up, then choose again")


class Held(NamedTuple):
    """A copy that is in a data location."""

    path: str
    mark: Mark
    aside: bool
    """Whether an eviction has set it aside: nobody can use it until it is put back, if it is."""


@dataclass(frozen=True)
class Contents:
    """What is in a data location, where copies are."""

    copies: Sequence[Held]
    strangers: Sequence[str]
    """Paths of all else: files, symlinks, mounts, directories that are not marked as this host's copies."""


def copy_mark(fd: int, location: DataLocation) -> Mark | None:
    """Return the mark of the directory open at *fd* when it is one of a copy in *location*, else None."""
    mark = read_mark(fd)
    return mark if mark is not None and (mark.kind, mark.host) == (COPY, location.host) else None


def contents(fd: int, location: DataLocation, parts: Sequence[bytes] = (DRIVES, PENDING)) -> Contents:
    """Return what is in the verified data location open at *fd*: which copies are here is decided nowhere else.

    :raises FileNotFoundError: when one of *parts* is not there
    """
    copies: list[Held] = []
    strangers: list[str] = []
    for part in parts:
        parent = open_beneath(fd, part)
        try:
            for name in sorted(os.listdir(parent)):
                path = os.path.join(location.path, os.fsdecode(part), name)
                try:
                    mark = _copy_mark_of(parent, name, location)
                except FileNotFoundError:
                    continue  # removed since it was listed
                if mark is not None and (part == PENDING or mark.name == name):
                    copies.append(Held(path, mark, part == PENDING))
                else:
                    strangers.append(path)
        finally:
            os.close(parent)
    return Contents(copies, strangers)


def _copy_mark_of(parent: int, name: str, location: DataLocation) -> Mark | None:
    try:
        child = open_beneath(parent, os.fsencode(name))
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            return None  # a file, a symlink, another mount
        raise
    try:
        return copy_mark(child, location)
    finally:
        os.close(child)


def holdings(locations: Sequence[DataLocation], mounts: Sequence[Mount]) -> Holdings:
    """Return the copies in *locations*, with those that are set aside and may be put back."""
    copies: list[Found] = []
    strangers: list[str] = []
    unseen: list[StowageError] = []
    for location in locations:
        try:
            fd = open_verified(location, mounts)
        except NotThere as error:
            unseen.append(error)
            continue
        try:
            for part in (DRIVES, PENDING):
                with suppress(FileNotFoundError):
                    found = contents(fd, location, (part,))
                    copies += [Found(one.mark.name, one.path, one.mark.identity) for one in found.copies]
                    strangers += found.strangers
        finally:
            os.close(fd)
    return Holdings(copies, strangers, unseen)
