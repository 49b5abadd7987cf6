# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data location of a host: the one folder where it keeps its copies of placed drives, and those it had before."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import mounts as mount_table
from . import records
from .errors import StowageError
from .mounts import FilesystemId, Mount
from .owner import XATTR, read_mark
from .places import Places

KIND = "data-location"
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
        return cls(
            value["path"],
            value.get("max_bytes", 0),
            value["host"],
            FilesystemId.from_json(value["filesystem"]),
            value["identity"],
            value.get("left", 0.0),
        )

    def to_json(self) -> Dict[str, Any]:
        value: Dict[str, Any] = {
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

    def __init__(self, path: str, reason: str, rule: str, remedy: str) -> None:
        self.reason = reason
        super().__init__(f"data location {path}: {rule}; {remedy}")


def load(places: Places) -> Optional[DataLocation]:
    """Return this host's data location, or None when none has been chosen."""
    value = records.read(places.data_location_json)
    return None if value is None else _parsed(value, places.data_location_json)


def load_former(places: Places) -> List[DataLocation]:
    """Return the data locations that this host had before and that may still hold copies."""
    path = places.former_locations_json
    return [_parsed(value, path) for value in (records.read(path) or {}).get("locations", [])]


def _parsed(value: Mapping[str, Any], path: str) -> DataLocation:
    try:
        return DataLocation.from_json(value)
    except (KeyError, TypeError, AttributeError) as error:
        raise records.RecordError(f"{path}: not a data location ({error!r}); roll the host out again") from error


def open_verified(location: DataLocation, mounts: Optional[Sequence[Mount]] = None) -> int:
    """Return a descriptor of *location*, proven to be the folder that was chosen and on the filesystem it was on.

    :param mounts: the mount table; read now when left out
    :raises NotThere: when it is not; whoever asks must then leave the path alone
    """
    try:
        fd = os.open(location.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise NotThere(location.path, "missing", f"cannot be opened ({error.strerror})", "look at its disk") from error
        raise NotThere(
            location.path, "missing", "the folder is not there", "mount its disk, or choose another data location"
        ) from error
    try:
        verify(fd, location, mount_table.read() if mounts is None else mounts)
    except BaseException:
        os.close(fd)
        raise
    return fd


def verify(fd: int, location: DataLocation, mounts: Sequence[Mount]) -> None:
    """Refuse with NotThere unless *fd* is the folder that *location* records."""
    try:
        filesystem = mount_table.identify(fd, mounts)
        mark = read_mark(fd)
    except StowageError as error:
        raise NotThere(location.path, "mark", f"cannot be verified ({error})", "nothing is done there") from error
    if not filesystem.matches(location.filesystem):
        raise NotThere(
            location.path,
            "filesystem",
            f"its filesystem ({_described(location.filesystem)}) is not mounted here, but {_described(filesystem)} is",
            "mount its disk, or choose another data location",
        )
    if mark is None and _has_mark(fd):
        raise NotThere(
            location.path,
            "inode",
            "its owner mark belongs to another directory (this one was copied or restored)",
            "bring the original back, or choose another data location",
        )
    if mark is None:
        raise NotThere(
            location.path,
            "mark",
            "it has no owner mark: it is another folder of the same name",
            "bring the original back, or choose another data location",
        )
    if (mark.kind, mark.identity, mark.host) != (KIND, location.identity, location.host):
        raise NotThere(
            location.path,
            "mark",
            f"it is marked as {mark.kind} {mark.name} of host {mark.host}",
            "choose another data location, or take it over with adopt_from",
        )


def _has_mark(fd: int) -> bool:
    """Return whether there is a mark of any kind, also one that came with a copying tool."""
    try:
        os.getxattr(fd, XATTR)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise
    return True


def _described(filesystem: FilesystemId) -> str:
    return f"{filesystem.fstype} {filesystem.uuid or filesystem.source}"
