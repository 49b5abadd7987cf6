# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import mounts as mount_table
from . import records
from .errors import Refusal, StowageError, printable
from .mounts import Mount, of_path
from .places import Places
from .syscalls import filesystem_uuid, is_on_block_device, subvolume

XATTR = "trusted.stowage.owner"
_CAP_SYS_ADMIN = 21


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


def borne_by(fd: int) -> str:
    """Return whose owner mark the directory open at *fd* bears, in words; empty for none.

    Other than :func:`read_mark` this also tells of one that names another place, or is damaged: who is to be careful
    does not ask whether a mark holds here.
    """
    try:
        mark = _raw_mark(fd)
    except StowageError:
        return "a damaged owner mark"
    return printable(f"the owner mark of {mark.kind} {mark.name} of host {mark.host}") if mark is not None else ""


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


def is_seen() -> bool:
    """Return whether this process can read marks: to any other every directory looks as if it was nobody's."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        effective = next(line.split()[1] for line in status if line.startswith("CapEff:"))
    with open("/proc/self/uid_map", encoding="ascii") as users:
        everybody = users.read().split() == ["0", "0", str(0xFFFFFFFF)]
    return everybody and bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


def entry_of(mark: Mark, mount: Mount) -> dict[str, Any]:
    """Return how a claim is registered.

    :param mount: what the directory was reached through: only there its mark can be missed
    """
    entry = {"kind": mark.kind, "name": mark.name, "identity": mark.identity, "host": mark.host}
    return {**entry, "filesystem": mark.filesystem_uuid, "mounted": [mount.point, mount.root]}


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

    def rebuild(self, claims: Mapping[str, Mapping[str, Any]]) -> None:
        """Write a lost registry anew."""
        records.write(self._path, {"claims": dict(claims)})

    def add(self, path: str, mark: Mark) -> None:
        claims = self.all()
        claims[path] = entry_of(mark, of_path(path, mount_table.read()))
        records.write(self._path, {"claims": claims})

    def remove(self, path: str) -> None:
        claims = self.all()
        if claims.pop(path, None) is not None:
            records.write(self._path, {"claims": claims})
