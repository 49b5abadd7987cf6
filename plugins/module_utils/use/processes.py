# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every task of this host holds on certain filesystems: descriptors, mappings, roots and working directories.

Objects are told apart by device and inode as ``stat`` gives them, which is right on btrfs too. Whether a descriptor
is worth a ``stat`` is known from the mount it was opened through: one on a dead server is never asked.

Tasks come and go meanwhile, and what they hold may pass to others. The kernel numbers them in their order, so those
that were made during a look are looked at next, again and again, until none was made. Descriptors in flight over a
socket belong to nobody: they are looked at without being received. Where that cannot be done for all of them, who may
receive them is looked at again until there are none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from .. import mounts as mount_table
from ..errors import printable
from ..mounts import is_shared, table_lines
from ..runs.holders import described
from ..syscalls import descriptor_of, same_files, same_fs
from .child import Identity, Resolver, progress
from .mounts import Namespaces

_GONE = (errno.ENOENT, errno.ESRCH)
_REFUSED = (errno.EACCES, errno.EPERM, errno.ENOKEY, errno.EKEYEXPIRED)
"""What a filesystem that another machine or a process serves may say to whoever is not its user."""
_PASSES = 200
_PAUSES_S = (0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4)
_PATIENCE_S = 10.0
_INFO = 4096
_SO_PEEK_OFF, _SCM_PIDFD = 42, 4
_CONTROL = 2048
"""Bytes for the most descriptors that come with one message, 253, and for what else may come with it."""
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)
_INODE = re.compile(rb"^ino:\s*(\d+)", re.MULTILINE)
_IN_FLIGHT = re.compile(rb"^scm_fds:\s*(\d+)", re.MULTILINE)
_GROUP = re.compile(rb"^Tgid:\s*(\d+)", re.MULTILINE)
_NAMESPACE = re.compile(r"mnt:\[(\d+)\]")
_IN_MEMORY = ("pipe:", "socket:", "anon_inode:")


@dataclass
class Findings:
    """What is held, and by whom."""

    identities: dict[tuple[int, int], str] = field(default_factory=dict)
    inodes: dict[int, str] = field(default_factory=dict)
    """Of objects that did not answer: their number, which is all that is known."""
    removed: list[tuple[int, str, str]] = field(default_factory=list)
    """Device and path that open objects had before they were removed: they can be linked in again."""
    ended: list[tuple[str, str]] = field(default_factory=list)
    """Paths of what tasks held that have ended since, perhaps with a successor."""
    unknown: list[str] = field(default_factory=list)


@dataclass
class _Process:
    """What was looked at of a process: the tasks with tables that others do not share."""

    tables: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    mapped: bool = False


@dataclass(frozen=True)
class _Passing:
    """What may be a use, and often is gone a moment later."""

    text: str
    pids: Collection[int]
    """Who has to be looked at again then."""


class Tasks:
    """One look at all tasks.

    :param devices: the filesystems that matter, as ``major:minor``
    :param own: descriptors of *owner* that are no use: those with which it looks at the directories itself
    """

    def __init__(
        self, namespaces: Namespaces, held: Findings, devices: Collection[str], owner: int, own: Collection[int]
    ) -> None:
        self._namespaces = namespaces
        self._held = held
        self._devices = frozenset(devices)
        self._mapped = [b" %02x:%02x " % tuple(int(part) for part in device.split(":")) for device in devices]
        self._owner = owner
        self._own = frozenset(str(fd) for fd in own)
        self._in_memory: set[int] = set()
        self._resolver = Resolver()
        self._done: set[int] = set()
        self._processes: dict[int, _Process] = {}
        self._sockets: defaultdict[int, set[int]] = defaultdict(set)
        self._peeked: set[int] = set()
        self._received: list[int] = []
        self._passing: dict[object, _Passing] = {}
        self._before = self._newest = 0

    def look(self) -> None:
        """Look at every task until nothing new appears and nothing is on its way from one to another."""
        self._settle()
        for pause in _PAUSES_S:
            if not self._passing:
                break
            time.sleep(pause)
            again = {pid for one in self._passing.values() for pid in one.pids}
            self._passing = {}
            self._peeked.clear()
            for pid in again:
                self._processes.pop(pid, None)
                self._group(pid, anew=True)
            self._settle()
        self._resolver.finish(_PATIENCE_S)
        self._held.unknown += [one.text for one in self._passing.values()]
        for fd in self._received:
            os.close(fd)

    def _settle(self) -> None:
        for _pass in range(_PASSES):
            newest = _newest_task()
            if newest < self._newest:  # the numbers have begun anew, and are given a second time
                self._before = self._newest = 0
                self._done.clear()
                self._processes.clear()
            if self._before:
                # Once more those of the pass before: a task has its number a moment before it can be seen.
                for number in range(self._before + 1, newest + 1):
                    self._numbered(number)
            else:
                for pid in _numbers("/proc"):
                    self._group(pid)
            quiet = newest == self._newest
            self._before, self._newest = self._newest, newest
            if quiet and _newest_task() == newest:
                return
        self._held.unknown.append(f"tasks were made faster than they could be looked at, {_PASSES} times")

    def _group(self, pid: int, anew: bool = False) -> None:
        if pid == os.getpid() or pid in self._resolver.pids:
            return
        try:
            tids = [tid for tid in _numbers(f"/proc/{pid}/task") if anew or tid not in self._done]
        except OSError as error:
            self._missed(f"process {pid}", error)
            return
        if tids:
            self._process(pid, tids)

    def _numbered(self, number: int) -> None:
        """Look at a task of which only the number is known: there may be none, or none any more."""
        if number in self._done or number == os.getpid() or number in self._resolver.pids:
            return
        try:
            with open(f"/proc/{number}/status", "rb") as stream:
                group = _GROUP.search(stream.read())
        except OSError as error:
            self._missed(f"task {number}", error)
            return
        if group is not None:
            self._process(int(group.group(1)), [number])

    def _process(self, pid: int, tids: list[int]) -> None:
        known = self._processes.setdefault(pid, _Process())
        self._done.update(tids)
        for tid in tids:
            progress()
            namespace = self._namespaces.add_task(pid, tid, lambda: described(pid))
            base = f"/proc/{pid}/task/{tid}"
            with self._task_may_end(pid):
                if not any(_same(same_files, other, tid) for other in known.tables):
                    self._descriptors(pid, base)
                    known.tables.append(tid)
            with self._task_may_end(pid):
                if not any(_same(same_fs, other, tid) for other in known.places):
                    for name, what in (("cwd", "has as its working directory"), ("root", "has as its root directory")):
                        self._link(pid, f"{base}/{name}", what, namespace)
                    known.places.append(tid)
            with self._task_may_end(pid):
                # All threads have one memory, but the first may have ended before the others.
                if not known.mapped:
                    known.mapped = self._mappings(pid, base)
                    if known.mapped:
                        self._link(pid, f"{base}/exe", "runs", namespace)

    @contextlib.contextmanager
    def _task_may_end(self, pid: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._missed(described(pid), error)

    def _missed(self, who: str, error: OSError) -> None:
        if error.errno not in _GONE:
            self._held.unknown.append(f"{who} cannot be looked at: {error.strerror or error}")

    def _descriptors(self, pid: int, base: str) -> None:
        own = self._own if pid == self._owner else frozenset()
        directory = os.open(f"{base}/fdinfo", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(directory):
                if name not in own:
                    with self._task_may_end(pid):
                        self._descriptor(pid, base, directory, name)
        finally:
            os.close(directory)

    def _descriptor(self, pid: int, base: str, directory: int, name: str, what: str = "holds") -> None:
        info = _read(name, directory)
        mount = _number(_MOUNT_ID, info)
        if mount is None:
            raise OSError(errno.ENODATA, "its descriptors do not tell their mounts")
        if b"scm_fds:" in info:
            self._socket(pid, base, name, info)
        device = self._namespaces.devices.get(mount)
        if mount in self._in_memory or (device is not None and device not in self._devices):
            return
        path = f"{base}/fd/{name}"
        text = os.readlink(path)
        if device is not None:
            try:
                status = os.stat(path)  # the filesystem that is being looked at answers
            except OSError as error:
                self._unanswered(error.errno or errno.EIO, pid, what, text)
            else:
                self._found(Identity(status.st_dev, status.st_ino, status.st_nlink), pid, what, text)
        elif text.startswith("/"):
            # A mount that is attached nowhere: detached by its owner, or unmounted lazily.
            self._ask(path, pid, what, text, _number(_INODE, info), False)
        elif text.startswith(_IN_MEMORY):
            self._in_memory.add(mount)
        else:
            namespace = _NAMESPACE.fullmatch(text)
            if namespace is not None:
                self._namespaces.add_descriptor(path, int(namespace.group(1)), described(pid))

    def _socket(self, pid: int, base: str, name: str, info: bytes) -> None:
        inode, count = _number(_INODE, info), _number(_IN_FLIGHT, info)
        if inode is None:
            raise OSError(errno.ENODATA, "its sockets do not tell their numbers")
        self._sockets[inode].add(pid)
        if not count or inode in self._peeked:
            return
        self._peeked.add(inode)
        try:
            fds = _in_flight(int(base.split("/")[2]), int(name), inode)
        except OSError:
            fds = []  # it has ended, listens, or may not be looked at
        self._received += fds
        mine = f"/proc/{os.getpid()}"
        directory = os.open(f"{mine}/fdinfo", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for fd in fds:
                self._descriptor(pid, mine, directory, str(fd), f"has in flight, to its descriptor {name},")
        finally:
            os.close(directory)
        if len(fds) != count:
            text = f"{count} descriptors are in flight to descriptor {name} of {described(pid)}, a socket"
            self._passing[inode] = _Passing(text, self._sockets[inode])

    def _link(self, pid: int, path: str, what: str, namespace: int | None) -> None:
        text = os.readlink(path)
        elsewhere = False
        table = self._namespaces.tables.get(namespace) if namespace is not None else None
        if table is not None and table.mounts and text.startswith("/"):
            mount = mount_table.of_path(text, table.mounts)
            served = is_shared(mount.fstype) or mount.fstype.startswith("fuse")
            elsewhere = served and mount.device not in self._devices
        self._ask(path, pid, what, text, None, elsewhere)

    def _ask(self, path: str, pid: int, what: str, text: str, inode: int | None, elsewhere: bool) -> None:
        def then(identity: Identity | None, number: int) -> None:
            if identity is not None:
                self._found(identity, pid, what, text)
                if identity.directory and not self._namespaces.has(identity.mount, pid):
                    where = f"{printable(text)}, which is on a mount that is attached nowhere"
                    self._passing["mount", identity.mount] = _Passing(
                        f"{described(pid)} {what} {where}: what is mounted below it cannot be seen", {pid}
                    )
            elif number:
                # What is on a served filesystem by its path, and is refused, is not on the disk that refuses nothing.
                if not (elsewhere and number in _REFUSED):
                    self._unanswered(number, pid, what, text)
            elif inode is not None:
                self._held.inodes[inode] = f"{described(pid)} {what} {printable(text)}, which does not answer"
            elif not elsewhere:
                # Likewise what hangs is not on the disk that does answer.
                self._held.unknown.append(f"{described(pid)} {what} {printable(text)}, which does not answer")

        self._resolver.ask(path, then)

    def _unanswered(self, number: int, pid: int, what: str, text: str) -> None:
        if number in _GONE:
            self._held.ended.append((text, f"{described(pid)}, which has ended since, {what} {printable(text)}"))
        else:
            self._missed(described(pid), OSError(number, os.strerror(number)))

    def _mappings(self, pid: int, base: str) -> bool:
        """Look at the mapped files; return whether there was any memory."""
        with open(f"{base}/maps", "rb") as stream:
            text = stream.read()
        if any(device in text for device in self._mapped):
            for line in table_lines(text):
                fields = line.split(None, 5)
                if b" %s " % fields[3] in self._mapped and fields[4] != b"0":
                    with self._task_may_end(pid):
                        self._mapping(pid, fields)
        return bool(text)

    def _mapping(self, pid: int, fields: list[bytes]) -> None:
        text = os.fsdecode(fields[5]) if len(fields) > 5 else ""
        start, end = (int(part, 16) for part in fields[0].split(b"-"))
        try:
            status = os.stat(f"/proc/{pid}/map_files/{start:x}-{end:x}")
        except PermissionError:
            # Following these links needs more than reading the table; the inode's number is known all the same.
            self._held.inodes[int(fields[4])] = f"{described(pid)} maps {printable(text)}"
            return
        self._found(Identity(status.st_dev, status.st_ino, status.st_nlink), pid, "maps", text)

    def _found(self, identity: Identity, pid: int, what: str, text: str) -> None:
        key = (identity.dev, identity.ino)
        if key not in self._held.identities:
            self._held.identities[key] = f"{described(pid)} {what} {printable(text)}"
        if identity.links == 0:
            self._held.removed.append((identity.dev, text, f"{described(pid)} {what} {printable(text)}"))


def _same(compare: Callable[[int, int], bool], first: int, second: int) -> bool:
    """Return whether two tasks are known to share a table; what cannot be known is looked at."""
    try:
        return compare(first, second)
    except OSError:
        return False


def _in_flight(pid: int, number: int, inode: int) -> list[int]:
    """Return the descriptors that come with the next message to a socket of a process; the message stays there."""
    fd = descriptor_of(pid, number)
    try:
        link = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
    with link:
        # A thread may have a table of its own, with something else by that number. Where its owner has set an offset
        # for peeking, to peek would move it.
        if os.fstat(fd).st_ino != inode or link.getsockopt(socket.SOL_SOCKET, _SO_PEEK_OFF) >= 0:
            return []
        flags = socket.MSG_PEEK | socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        _data, messages, _flags, _address = link.recvmsg(1, _CONTROL, flags)
    found = []
    for _level, kind, data in messages:
        numbers = [number for (number,) in struct.iter_unpack("=i", data[: len(data) // 4 * 4])]
        if kind == socket.SCM_RIGHTS:
            found += numbers
        elif kind == _SCM_PIDFD:
            os.close(numbers[0])
    return found


def _newest_task() -> int:
    """Return the number that the kernel gave to a task last."""
    with open("/proc/loadavg", "rb") as stream:
        return int(stream.read().split()[4])


def _read(name: str, directory: int) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        data = info = os.read(fd, _INFO)
        while len(data) == _INFO:  # more than that only where there are many locks
            data = os.read(fd, _INFO)
            info += data
    finally:
        os.close(fd)
    return info


def _number(pattern: re.Pattern[bytes], text: bytes) -> int | None:
    match = pattern.search(text)
    return int(match.group(1)) if match else None


def _numbers(directory: str) -> list[int]:
    return [int(name) for name in os.listdir(directory) if name.isdigit()]
