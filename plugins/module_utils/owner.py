# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ownership: the mark on a directory that says that Stowage manages it, and the registry of all marks of a host.

The mark is the extended attribute ``trusted.stowage.owner``. It is set with XATTR_CREATE, which makes it an atomic
claim; only root can write it; it stays with the inode through renames and goes with the filesystem, so a mount that
is missing is seen as a missing owner. The registry is a list of where marks are, and can be made again from them.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import records
from .errors import Refusal, StowageError
from .mounts import Mount, is_pseudo, is_shared
from .paths import is_within
from .places import Places
from .syscalls import NO_DIRECTORY, filesystem_uuid, is_on_block_device, open_beneath, subvolume

XATTR = "trusted.stowage.owner"


@dataclass(frozen=True)
class Mark:
    """Who a directory belongs to."""

    kind: str
    """``data-location``, ``copy`` or ``tier``."""
    name: str
    identity: str
    """Tells an object from another one that was made later under the same name."""
    host: str
    """The host's name in the inventory: machine ids are alike on hosts made from one image."""
    filesystem_uuid: str | None
    inode: int
    time: float
    subvolume: str | None = None
    """On btrfs: a snapshot has all the rest."""

    @property
    def place(self) -> tuple[str | None, str | None, int]:
        """The directory that it was set on."""
        return self.filesystem_uuid, self.subvolume, self.inode


def read_mark(fd: int) -> Mark | None:
    """Return the mark of the directory open at *fd*, or None when it has none of its own.

    A mark that names another place came with a copying tool, or with a snapshot, and is no claim. Reading needs
    CAP_SYS_ADMIN: without it every mark reads as absent.

    :raises StowageError: when there is a mark that cannot be understood
    """
    mark = _raw_mark(fd)
    if mark is None or mark.place != (filesystem_uuid(fd), subvolume(fd), os.fstat(fd).st_ino):
        return None
    return mark


def _raw_mark(fd: int) -> Mark | None:
    try:
        value = os.getxattr(fd, XATTR)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return None
        raise
    try:
        return Mark(**json.loads(value))
    except (ValueError, TypeError) as error:
        raise StowageError(f"{_path_of(fd)}: its owner mark {XATTR} is damaged; look at it with getfattr") from error


def claim(fd: int, kind: str, name: str, identity: str, host: str) -> Mark:
    """Claim the directory open at *fd*.

    :raises Refusal: when it is claimed already, or its filesystem cannot hold the mark
    """
    mark = Mark(kind, name, identity, host, filesystem_uuid(fd), os.fstat(fd).st_ino, time.time(), subvolume(fd))
    if mark.filesystem_uuid is None and is_on_block_device(fd):
        # A later kernel would tell it, and find the mark to be another directory's.
        raise Refusal(
            _path_of(fd),
            f"Linux {os.uname().release} does not tell the UUID of its filesystem, by which its mark is known again",
            "use ext4, XFS or btrfs; of ext4 /dev/disk/by-uuid must have the disk's link",
        )
    value = _encoded(mark)
    if _raw_mark(fd) is not None and read_mark(fd) is None:
        # A copy of another directory's mark is no claim, and must not keep the real owner out.
        os.removexattr(fd, XATTR)
    try:
        os.setxattr(fd, XATTR, value, os.XATTR_CREATE)
    except OSError as error:
        if error.errno == errno.EEXIST:
            owner = read_mark(fd)
            by = f"{owner.kind} {owner.name} of host {owner.host}" if owner else "another process"
            raise Refusal(_path_of(fd), f"is claimed by {by} already", "choose another directory") from error
        if error.errno == errno.EOPNOTSUPP:
            raise Refusal(
                _path_of(fd),
                "its filesystem cannot hold an owner mark (trusted extended attribute)",
                "use ext4, XFS or btrfs",
            ) from error
        if error.errno == errno.EPERM:
            raise Refusal(
                _path_of(fd), "setting its owner mark is not permitted", "run as root with CAP_SYS_ADMIN"
            ) from error
        raise
    return mark


def renew(fd: int, mark: Mark, *, name: str, identity: str, host: str) -> None:
    """Replace one's own *mark* in one step: between giving it up and claiming anew it would be nobody's."""
    value = replace(mark, name=name, identity=identity, host=host, time=time.time())
    os.setxattr(fd, XATTR, _encoded(value), os.XATTR_REPLACE)


def release(fd: int, mark: Mark) -> None:
    """Give up the claim *mark* on the directory open at *fd*; another owner's mark stays, and is refused."""
    current = read_mark(fd)
    if current != mark:
        raise Refusal(_path_of(fd), f"is not claimed by {mark.kind} {mark.name}")
    os.removexattr(fd, XATTR)


def _encoded(mark: Mark) -> bytes:
    return json.dumps(asdict(mark), sort_keys=True).encode("ascii")


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _entry(mark: Mark) -> dict[str, Any]:
    return {"kind": mark.kind, "name": mark.name, "identity": mark.identity, "host": mark.host}


class Registry:
    """Where this host's claims are: kind, name, identity and host by path. Change it under the host lock only."""

    def __init__(self, places: Places) -> None:
        self._path = places.claims_json

    def all(self) -> dict[str, dict[str, Any]]:
        """Return what is registered."""
        claims: dict[str, dict[str, Any]] = (records.read(self._path) or {}).get("claims", {})
        return claims

    def is_lost(self) -> bool:
        """Return whether this host has no registry: nothing was ever claimed, or the system was installed anew."""
        return records.read(self._path) is None

    def claims(self, mounts: Sequence[Mount]) -> dict[str, dict[str, Any]]:
        """Return what is registered or, when the registry is lost, what the marks on the host's own disks say."""
        if not self.is_lost():
            return self.all()
        return {path: _entry(mark) for path, mark in find_marks(mounts).items()}

    def rebuild(self, claims: Mapping[str, Mapping[str, Any]]) -> None:
        """Write a lost registry anew."""
        records.write(self._path, {"claims": dict(claims)})

    def add(self, path: str, mark: Mark) -> None:
        claims = self.all()
        claims[path] = _entry(mark)
        records.write(self._path, {"claims": claims})

    def remove(self, path: str) -> None:
        claims = self.all()
        if claims.pop(path, None) is not None:
            records.write(self._path, {"claims": claims})


def find_marks(mounts: Sequence[Mount], depth: int = 4) -> dict[str, Mark]:
    """Return every marked directory, by path, at most *depth* levels below where a local filesystem is mounted.

    Marks inside a marked data location are not listed: copies are found from it. Nothing is followed, no other mount
    is entered, and a directory that is mounted in several places is found in one.
    """
    found: dict[str, Mark] = {}
    for mount in mounts:
        if is_pseudo(mount.fstype) or is_shared(mount.fstype) or _is_part(mount, mounts):
            continue
        try:
            fd = os.open(mount.point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue  # unmounted since the table was read, or a mounted file
        try:
            _find_below(fd, mount.point.rstrip("/"), depth, found)
        finally:
            os.close(fd)
    once = {mark.place: path for path, mark in reversed(found.items())}
    return {path: mark for path, mark in found.items() if once[mark.place] == path}


def _is_part(mount: Mount, mounts: Sequence[Mount]) -> bool:
    """Return whether *mount* shows only a part of what another mount shows: a bind mount, such as a worker's."""
    return any(
        other.device == mount.device and other.root != mount.root and is_within(mount.root, other.root)
        for other in mounts
    )


def _find_below(fd: int, path: str, depth: int, found: dict[str, Mark]) -> None:
    mark = read_mark(fd)
    if mark is not None:
        found[path or "/"] = mark
        return
    if depth == 0:
        return
    with os.scandir(fd) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        try:
            child = open_beneath(fd, os.fsencode(name))
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                continue  # gone or replaced since it was listed, or another mount, which has its own turn
            raise
        try:
            _find_below(child, f"{path}/{name}", depth - 1, found)
        finally:
            os.close(child)
