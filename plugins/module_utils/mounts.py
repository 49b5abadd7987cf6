# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mount table (mountinfo), and which filesystems are shared between hosts."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable

from .errors import StowageError
from .paths import is_within, relation
from .syscalls import filesystem_uuid, mount_id

SHARED_TYPES = frozenset(
    (
        "9p",
        "acfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "mmfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "quobyte",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "wekafs",
    )
)
"""Filesystem types that several hosts may see at once. ``virtiofs`` and ``9p`` are an outer machine's directories."""

_LOCAL_FUSE = frozenset(("fuse.bindfs", "fuse.gocryptfs", "fuse.mergerfs", "fuse.unionfs", "fuseblk"))
_PSEUDO_TYPES = frozenset(
    (
        "autofs",
        "binder",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fuse.gvfsd-fuse",
        "fuse.lxcfs",
        "fuse.portal",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nfsd",
        "nsfs",
        "overlay",
        "proc",
        "pstore",
        "ramfs",
        "resctrl",
        "rootfs",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "squashfs",
        "sysfs",
        "tmpfs",
        "tracefs",
    )
)
_OCTAL = re.compile(rb"\\([0-7]{3})")
_MOST_LINKS = 40
"""How many symbolic links the kernel follows on the way to one file."""


def is_pseudo(fstype: str) -> bool:
    """Return whether a filesystem of this type holds no data of its own that outlives a reboot."""
    return fstype in _PSEUDO_TYPES


def is_shared(fstype: str) -> bool:
    """Return whether a filesystem of this type may be seen by several hosts; unknown FUSE ones are taken to be."""
    if fstype in _LOCAL_FUSE or is_pseudo(fstype):
        return False
    return fstype in SHARED_TYPES or fstype == "fuse" or fstype.startswith("fuse.")


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo; paths are decoded with ``os.fsdecode``."""

    id: int
    parent: int
    device: str
    """``major:minor`` of the superblock: on btrfs not the ``st_dev`` of its files."""
    root: str
    """The directory inside the filesystem that is mounted."""
    point: str
    options: tuple[str, ...]
    fstype: str
    source: str
    super_options: tuple[str, ...]

    @property
    def read_only(self) -> bool:
        return "ro" in self.options or "ro" in self.super_options


def unescaped(field: bytes) -> str:
    """Return a field of mountinfo, fstab or an export table with the octal escapes of its white space undone."""
    return os.fsdecode(_OCTAL.sub(lambda match: bytes((int(match.group(1), 8),)), field))


def table_lines(text: bytes) -> list[bytes]:
    """Return the lines of a table of the kernel's: names in it may hold any byte but the escaped line feed."""
    lines = text.split(b"\n")
    return lines if lines[-1] else lines[:-1]


def parse(text: bytes) -> list[Mount]:
    """Return the mounts of a mountinfo file in its order: a later mount lies over an earlier one at the same place.

    :raises StowageError: when a line is not of the kernel's form
    """
    mounts = []
    for line in table_lines(text):
        fields = line.split(b" ")
        try:
            dash = fields.index(b"-", 6)
            number, parent, device, root, point, options = fields[:6]
            fstype, source, super_options = fields[dash + 1 : dash + 4]
            mount = Mount(
                int(number),
                int(parent),
                device.decode("ascii"),
                unescaped(root),
                unescaped(point),
                tuple(unescaped(options).split(",")),
                unescaped(fstype),
                unescaped(source),
                tuple(unescaped(super_options).split(",")),
            )
        except (ValueError, UnicodeDecodeError) as error:
            raise StowageError(f"mountinfo: cannot read the line {line!r}") from error
        mounts.append(mount)
    return mounts


def read(pid: int | str = "self") -> list[Mount]:
    """Return the mounts that process *pid* sees."""
    with open(f"/proc/{pid}/mountinfo", "rb") as stream:
        return parse(stream.read())


def of_all_namespaces() -> Iterator[list[Mount]]:
    """Yield the mounts of each mount namespace that has a process, as one of its processes sees them."""
    seen = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{process}/mountinfo", "rb") as stream:  # else it has ended
            first = stream.readline()
            number = first.partition(b" ")[0]  # that of a mount is in no other namespace
            if number and number not in seen:
                seen.add(number)
                yield parse(first + stream.read())


def of_path(path: str, mounts: Sequence[Mount]) -> Mount:
    """Return the mount that an absolute, resolved *path* lies on, by its text: the path need not exist.

    Where a path leads that may lead over symbolic links, :func:`follow` tells.
    """
    best: Mount | None = None
    for mount in mounts:
        if is_within(path, mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    if best is None:
        raise StowageError(f"{path}: no mount covers it; is this path absolute and /proc readable?")
    return best


def answers_at_once(mount: Mount) -> bool:
    """Return whether nothing but a disk of this host is waited for: no server, nor what mounts when it is looked at."""
    return not is_shared(mount.fstype) and mount.fstype != "autofs"


def follow(path: str, mounts: Sequence[Mount], touch: Callable[[Mount], bool] = answers_at_once) -> tuple[str, Mount]:
    """Return where an absolute *path* leads over symbolic links, and the mount that this is on; it need not exist.

    Links are read one by one, so that nothing is waited for which *touch* does not allow; what is behind that is taken
    as it is written.

    :param touch: given a mount before anything on it is looked at
    """
    over: dict[int, dict[str, Mount]] = {}
    for one in mounts:
        if one.parent != one.id:
            over.setdefault(one.parent, {})[one.point] = one
    way = [("/", of_path("/", mounts), True)]
    parts = deque(path.split("/"))
    links = 0
    while parts:
        part = parts.popleft()
        if part in ("", "."):
            continue
        if part == "..":
            way = way[:-1] or way
            continue
        here, mount, may = way[-1]
        there = os.path.join(here, part)
        # A directory that something is mounted below is none of the links, and a local one stays in memory.
        is_known = any(is_within(point, there) for point in over.get(mount.id, ()))
        if not is_known or is_shared(mount.fstype):
            may = may and touch(mount)
        target = None if is_known or not may or links == _MOST_LINKS else _target(there)
        if target is not None:
            links += 1
            parts.extendleft(reversed(target.split("/")))
            if target.startswith("/"):
                del way[1:]
            continue
        while there in over.get(mount.id, ()):
            mount = over[mount.id][there]
        way.append((there, mount, may))
    real, mount, _may = way[-1]
    return real, mount


def _target(path: str) -> str | None:
    """Return where the link at *path* points to; None when there is none, or nobody can tell."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def place_in_filesystem(path: str, mount: Mount) -> str:
    """Return where *path*, which lies on *mount*, is within the filesystem."""
    relative = os.path.relpath(path, mount.point)
    return mount.root if relative == "." else os.path.join(mount.root, relative)


@dataclass(frozen=True)
class Located:
    """Where a resolved path is: by its name, and in its filesystem, of which a bind mount may show a part elsewhere."""

    path: str
    device: str
    place: str

    @classmethod
    def of(cls, path: str, mounts: Sequence[Mount]) -> Located:
        mount = of_path(path, mounts)
        return cls(path, mount.device, place_in_filesystem(path, mount))

    def lies_to(self, other: Located) -> str:
        """Return how it lies to *other*, as a verb; empty when they lie apart by name and in their filesystem."""
        lies = relation(self.path, other.path)
        return lies or (relation(self.place, other.place) if self.device == other.device else "")


def names_of(path: str, mounts: Sequence[Mount]) -> list[str]:
    """Return every name of what is at *path*: itself, and where other mounts show it."""
    here = Located.of(path, mounts)
    names = [path]
    for mount in mounts:
        if mount.device == here.device and is_within(here.place, mount.root):
            name = os.path.normpath(os.path.join(mount.point, os.path.relpath(here.place, mount.root)))
            if of_path(name, mounts) is mount and name not in names:  # else something lies over it there
                names.append(name)
    return names


def with_mount_of(fd: int, mounts: Sequence[Mount]) -> Sequence[Mount]:
    """Return *mounts*, read anew where opening *fd* has mounted what it is on."""
    number = mount_id(fd)
    return mounts if any(mount.id == number for mount in mounts) else read()


def of_fd(fd: int, mounts: Sequence[Mount]) -> Mount:
    """Return the mount that *fd* was opened through, whatever has been mounted over it since."""
    number = mount_id(fd)
    for mount in mounts:
        if mount.id == number:
            return mount
    raise StowageError(f"mount {number}: not in this process's mount table; it was unmounted or is another namespace's")


@dataclass(frozen=True)
class FilesystemId:
    """What tells one filesystem from another that may be mounted in its place later."""

    fstype: str
    uuid: str | None
    source: str

    @property
    def described(self) -> str:
        """Its type and what tells it from others of that type, for messages."""
        return f"{self.fstype} {self.uuid or self.source}"

    def matches(self, other: FilesystemId) -> bool:
        """Return whether both are the same filesystem: by UUID where there is one, else by type and source.

        A local disk's device name may change at a boot, a network filesystem's source is its name.
        """
        if self.uuid is not None or other.uuid is not None:
            return self.uuid == other.uuid
        return (self.fstype, self.source) == (other.fstype, other.source)

    def to_json(self) -> dict[str, Any]:
        return {"fstype": self.fstype, "uuid": self.uuid, "source": self.source}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FilesystemId:
        return cls(value["fstype"], value["uuid"], value["source"])


def identify(fd: int, mounts: Sequence[Mount]) -> FilesystemId:
    """Return the identity of the filesystem that *fd* is on."""
    mount = of_fd(fd, mounts)
    return FilesystemId(mount.fstype, filesystem_uuid(fd), mount.source)
