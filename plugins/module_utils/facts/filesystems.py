# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mounted filesystems of a host: on which disks they are, how much room they have, and which one to recommend.

A shared filesystem whose servers are gone blocks whoever asks it anything. It is asked in a child process, with a
deadline; what the mount table alone tells is always reported.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Callable, Union

from ..forked import fork
from ..mounts import Mount, is_pseudo, is_shared, of_path
from ..paths import is_within
from ..runs.holders import start_time
from ..sizes import Space
from ..syscalls import filesystem_uuid
from .disks import FASTEST_FIRST, RAID, UNKNOWN, Disks

SHARED = "shared"
DEADLINE = 1.0
"""Seconds that all shared filesystems together have to answer. A busy server may well take half of one."""

_SYSTEM_POINTS = ("/", "/boot", "/boot/efi", "/efi", "/usr", "/var")
_BOOT_POINTS = ("/boot", "/boot/efi", "/efi")
_WITHOUT_OWNERS = frozenset(("exfat", "fuseblk", "hfsplus", "iso9660", "msdos", "ntfs", "ntfs3", "udf", "vfat"))
_ON_THE_SYSTEM_DISK = "/var/lib/stowage-data"
_NO_ANSWER = "does not answer"

Answer = Union[Space, str]
"""The room on a filesystem, or why it is not known."""


@dataclass(frozen=True)
class Filesystem:
    """One mounted filesystem, however often it is mounted."""

    mount: Mount
    """Where an operator looks for it: of all its mounts the one nearest to the root directory."""
    points: tuple[str, ...]
    """Every mount point."""
    kind: str
    """The word for its disk, or ``shared``."""
    devices: tuple[str, ...]
    """The names of the block devices that it is on; none where sysfs does not tell, as for ZFS."""
    disks: frozenset[str]
    """The names of the disks under it; what stands for them (a ZFS pool) where sysfs does not tell."""
    uuid: str | None
    answer: Answer
    folder: str
    """The folder for a data location on it, unless an operator wants another."""
    system_disk: bool = False
    taken: str = ""
    """What is in the way of every folder that could be recommended on it."""

    @property
    def shared(self) -> bool:
        return self.kind == SHARED

    @property
    def space(self) -> Space | None:
        return self.answer if isinstance(self.answer, Space) else None

    @property
    def unfit(self) -> str:
        """Why a data location cannot be on it, or ""."""
        if self.shared:
            return "shared: a data location must be on this machine's own disk"
        if not isinstance(self.answer, Space):
            return self.answer
        if self.mount.read_only:
            return "read-only"
        if self.mount.point in _BOOT_POINTS:
            return "for starting the system"
        if is_within(self.mount.point, "/run"):
            return "below /run, whose mounts are not kept"
        if self.mount.fstype in _WITHOUT_OWNERS:
            return f"{self.mount.fstype} cannot hold owner marks"
        return f"taken by {self.taken}" if self.taken else ""


@dataclass(frozen=True)
class Recommendation:
    """The filesystem to put the data location on, if there is one to recommend, and why."""

    filesystem: Filesystem | None
    reason: str


def survey(mounts: Sequence[Mount], disks: Disks, sys: str = "/sys", deadline: float = DEADLINE) -> list[Filesystem]:
    """Return every filesystem that holds data, each once, in the order of their mount points."""
    groups = _by_device(mounts)
    shared = {device: group for device, group in groups.items() if is_shared(group[0].fstype)}
    answers = ask({device: group[0].point for device, group in shared.items()}, deadline)
    found = [_shared(group, answers[device]) for device, group in shared.items()]
    found += [_local(group, mounts, disks, sys) for device, group in groups.items() if device not in shared]
    system = system_disks(found)
    found = [replace(filesystem, system_disk=bool(filesystem.disks & system)) for filesystem in found]
    return sorted(found, key=lambda filesystem: filesystem.mount.point)


def _by_device(mounts: Sequence[Mount]) -> dict[str, list[Mount]]:
    """Return the visible mounts of each filesystem that holds data, the one nearest to the root directory first."""
    topmost = {mount.point: mount for mount in mounts}
    groups: dict[str, list[Mount]] = {}
    for mount in sorted(topmost.values(), key=lambda mount: (len(mount.point), mount.point)):
        if not is_pseudo(mount.fstype):
            groups.setdefault(mount.device, []).append(mount)
    return groups


def _shared(group: Sequence[Mount], answer: Answer) -> Filesystem:
    points = tuple(mount.point for mount in group)
    return Filesystem(group[0], points, SHARED, (), frozenset(), None, answer, folder="")


def _local(group: Sequence[Mount], mounts: Sequence[Mount], disks: Disks, sys: str) -> Filesystem:
    mount = group[0]
    answer, uuid = _look(mount.point)
    devices = _devices(mount, uuid, disks, sys)
    return Filesystem(
        mount=mount,
        points=tuple(each.point for each in group),
        kind=_kind(devices, disks),
        devices=tuple(devices),
        disks=at_the_bottom(devices, disks, mounts) or frozenset((_stand_in(mount),)),
        uuid=uuid,
        answer=answer,
        folder=_folder(mount, mounts),
    )


def keep_apart(filesystems: Iterable[Filesystem], what_overlaps: Callable[[str], str | None]) -> list[Filesystem]:
    """Return *filesystems* with folders that are free, and what is in the way where none is.

    :param what_overlaps: what is taken on this host that overlaps a folder
    """
    return [_with_free_folder(filesystem, what_overlaps) for filesystem in filesystems]


def _with_free_folder(filesystem: Filesystem, what_overlaps: Callable[[str], str | None]) -> Filesystem:
    if not filesystem.folder or filesystem.unfit:
        return filesystem
    taken = what_overlaps(filesystem.folder)
    if taken is None:
        return filesystem
    other = filesystem.folder.removesuffix("-data") + "-data"
    if what_overlaps(other) is None:
        return replace(filesystem, folder=other)
    return replace(filesystem, taken=taken)


def recommend(filesystems: Iterable[Filesystem]) -> Recommendation:
    """Return the recommended filesystem, by the order of Astraeus's drives.

    A local disk that is not the system disk, the fastest medium first, then the most free space.
    """
    filesystems = list(filesystems)
    fit = [filesystem for filesystem in filesystems if not filesystem.unfit]
    free = ", and not taken already," if any(filesystem.taken for filesystem in filesystems) else ""
    if not fit:
        return Recommendation(None, f"this machine has no local disk that is mounted and writable{free.rstrip(',')}")
    others = [filesystem for filesystem in fit if not filesystem.system_disk]
    if not others:
        return Recommendation(
            None, f"every local disk mounted here{free} is the system disk; it is allowed, with a warning"
        )
    best = min(others, key=_preference)
    reason = f"{best.kind}, not the system disk"
    if len(others) > 1:
        alike = [filesystem for filesystem in others if filesystem.kind == best.kind]
        reason += "; the fastest kind here" if len(alike) < len(others) else ""
        reason += f"; the most free space of {len(alike)} such" if len(alike) > 1 else ""
    return Recommendation(best, reason)


def _preference(filesystem: Filesystem) -> tuple[int, int, str]:
    room = filesystem.space.avail if filesystem.space is not None else 0
    return (FASTEST_FIRST.index(filesystem.kind), -room, filesystem.mount.point)


def system_disks(filesystems: Iterable[Filesystem]) -> frozenset[str]:
    """Return the names of the disks that hold the operating system."""
    return frozenset().union(
        *(filesystem.disks for filesystem in filesystems if any(point in _SYSTEM_POINTS for point in filesystem.points))
    )


def _folder(mount: Mount, mounts: Sequence[Mount]) -> str:
    if of_path(_ON_THE_SYSTEM_DISK, mounts).device == mount.device:
        return _ON_THE_SYSTEM_DISK
    return mount.point.rstrip("/") + "/stowage"


def _look(point: str) -> tuple[Answer, str | None]:
    """Return the room on a local filesystem, and its UUID."""
    try:
        fd = os.open(point, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        return _in_words(error), None
    try:
        return Space.of(fd), filesystem_uuid(fd)
    except OSError as error:
        return _in_words(error), None
    finally:
        os.close(fd)


def _in_words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


# -- Which disks a filesystem is on


def _devices(mount: Mount, uuid: str | None, disks: Disks, sys: str) -> list[str]:
    """Return the devices that a local filesystem is on."""
    device = disks.of_number(mount.device)
    if device is not None:
        return [device.name]
    # btrfs and bcachefs have device numbers of their own.
    if mount.fstype == "btrfs" and uuid is not None:
        members = _btrfs_members(uuid, sys) & set(disks.devices)
        if members:
            return sorted(members)
    named = (disks.of_path(path) for path in mount.source.split(":"))
    return [each.name for each in named if each is not None]


def _stand_in(mount: Mount) -> str:
    """Return a name for the disks of a filesystem that sysfs does not tell them of: its pool, or its source."""
    pool = mount.source if mount.source.startswith("/") else mount.source.split("/")[0]
    return f"{mount.fstype} {pool}"


def _btrfs_members(uuid: str, sys: str) -> set[str]:
    try:
        return set(os.listdir(os.path.join(sys, "fs/btrfs", uuid, "devices")))
    except FileNotFoundError:
        return set()


def _kind(devices: Sequence[str], disks: Disks) -> str:
    if not devices:
        return UNKNOWN
    under = {disk for name in devices for disk in disks.under(name)}
    return RAID if len(devices) > 1 and len(under) > 1 else disks.kind(devices[0])


def at_the_bottom(devices: Iterable[str], disks: Disks, mounts: Sequence[Mount]) -> frozenset[str]:
    """Return the disks under *devices*. An image whose file is on this host is on that file's disk."""
    found: set[str] = set()
    for disk in {disk for name in devices for disk in disks.under(name)}:
        holder = _holder(disks.devices[disk].backing_file, mounts)
        below = disks.of_number(holder.device) if holder is not None else None
        found |= disks.under(below.name) if below is not None else {disk}
    return frozenset(found)


def _holder(backing_file: str, mounts: Sequence[Mount]) -> Mount | None:
    """Return the mount that an image's file is on; None for another machine's file or a shared mount."""
    if not backing_file.startswith("/"):
        return None
    mount = of_path(backing_file, mounts)
    return None if is_shared(mount.fstype) or not os.path.exists(backing_file) else mount


# -- Asking shared filesystems


def ask(points: Mapping[str, str], deadline: float = DEADLINE) -> dict[str, Answer]:
    """Ask the filesystem at each mount point for its room, and return the answers by the same keys (device numbers).

    Each is asked in a child of its own, all at once. A child that has not answered in time is killed; one that cannot
    be killed is left, and its filesystem is not asked again as long as it is there.
    """
    if not points:
        return {}
    stuck = _stuck_children()
    answers: dict[str, Answer] = dict.fromkeys(points, _NO_ANSWER)
    waiting: dict[int, tuple[str, int]] = {}
    for device, point in points.items():
        if _child_name(device) not in stuck:
            reader, pid = _start(device, point)
            waiting[reader] = (device, pid)
    end = time.monotonic() + deadline
    poll = select.poll()
    for reader in waiting:
        poll.register(reader, select.POLLIN)
    children = {pid for _device, pid in waiting.values()}
    while waiting:
        left = end - time.monotonic()
        ready = poll.poll(left * 1000) if left > 0 else []
        if not ready:
            break
        for reader, _event in ready:
            device, _pid = waiting.pop(reader)
            poll.unregister(reader)
            answers[device] = _answer(os.read(reader, _MESSAGE.size))
            os.close(reader)
    for reader, (_device, pid) in waiting.items():
        os.kill(pid, signal.SIGKILL)
        os.close(reader)
    _reap(children, 0.02)
    return answers


_MESSAGE = struct.Struct("=i5Q")


def _start(device: str, point: str) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = fork(lambda: _tell(device, point, writer))
    os.close(writer)
    return reader, pid


def _tell(device: str, point: str, writer: int) -> None:
    # A child that stays behind must not keep the connection open that the module answers on.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write(_child_name(device))
    os.write(writer, _message(point))


def _message(point: str) -> bytes:
    try:
        fd = os.open(point, os.O_PATH | os.O_CLOEXEC)
        space = Space.of(fd)
    except OSError as error:
        return _MESSAGE.pack(error.errno or errno.EIO, 0, 0, 0, 0, 0)
    return _MESSAGE.pack(0, space.size, space.free, space.avail, space.files, space.files_free)


def _answer(message: bytes) -> Answer:
    if len(message) != _MESSAGE.size:
        return _NO_ANSWER
    number, *figures = _MESSAGE.unpack(message)
    return os.strerror(number).lower() if number else Space(*figures)


def _reap(children: set[int], patience: float) -> None:
    end = time.monotonic() + patience
    while children:
        children = {pid for pid in children if os.waitpid(pid, os.WNOHANG) == (0, 0)}
        if time.monotonic() >= end:
            return
        time.sleep(0.001)


def _child_name(device: str) -> str:
    return f"stow-{device}"[:15]


def _stuck_children() -> set[str]:
    """Return the names of children of earlier runs that are still waiting for an answer; only root's own count."""
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        path = os.path.join("/proc", entry)
        try:
            if os.stat(path).st_uid != os.geteuid():
                continue
            with open(os.path.join(path, "comm"), encoding="utf-8", errors="replace") as comm:
                name = comm.read().rstrip("\n")
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended since it was listed
        if name.startswith("stow-") and start_time(int(entry)) is not None:  # else it has ended, and is not reaped yet
            found.add(name)
    return found
