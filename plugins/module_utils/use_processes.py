# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every task of this host holds on certain filesystems: descriptors, mappings, roots and working directories.

Objects are told apart by device and inode as ``stat`` gives them, which is right on btrfs too. Whether a descriptor
is worth a ``stat`` is known from the mount it was opened through: one on a dead server is never asked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from . import mounts as mount_table
from .errors import printable
from .mounts import is_shared
from .syscalls import same_files, same_fs
from .use_child import Identity, Prober
from .use_mounts import Namespaces

_GONE = (errno.ENOENT, errno.ESRCH)
_PASSES = 5
_PATIENCE_S = 2.0
_MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)", re.MULTILINE)
_INODE = re.compile(rb"^ino:\s*(\d+)", re.MULTILINE)
_NAMESPACE = re.compile(r"mnt:\[(\d+)\]")
_IN_MEMORY = ("pipe:", "socket:", "anon_inode:")


@dataclass
class Held:
    """What is held, and by whom."""

    identities: dict[tuple[int, int], str] = field(default_factory=dict)
    inodes: dict[int, str] = field(default_factory=dict)
    """Of objects that did not answer: their number, which is all that is known."""
    removed: list[tuple[str, str]] = field(default_factory=list)
    """Paths that open objects had before they were removed: they can be linked in again."""
    unknown: list[str] = field(default_factory=list)


class Tasks:
    """One look at all tasks.

    :param devices: the filesystems that matter, as ``major:minor``
    :param own: descriptors of *owner* that are no use: those with which it looks at the directories itself
    """

    def __init__(
        self, namespaces: Namespaces, held: Held, devices: Collection[str], owner: int, own: Collection[int]
    ) -> None:
        self._namespaces = namespaces
        self._held = held
        self._devices = frozenset(devices)
        self._mapped = [b" %02x:%02x " % tuple(int(part) for part in device.split(":")) for device in devices]
        self._owner = owner
        self._own = frozenset(str(fd) for fd in own)
        self._in_memory: set[int] = set()
        self._prober = Prober()
        self._done: set[tuple[int, int]] = set()

    def look(self) -> None:
        """Look at every task, and again at those that have appeared since, until there is no new one."""
        for _pass in range(_PASSES):
            new = False
            for pid in _numbers("/proc"):
                if pid == os.getpid() or pid in self._prober.pids:
                    continue
                try:
                    tids = [tid for tid in _numbers(f"/proc/{pid}/task") if (pid, tid) not in self._done]
                except OSError as error:
                    self._missed(f"process {pid}", error)
                    continue
                if tids:
                    new = True
                    self._done.update((pid, tid) for tid in tids)
                    self._process(pid, tids)
            if not new:
                break
        self._prober.finish(_PATIENCE_S)

    def _process(self, pid: int, tids: list[int]) -> None:
        tables: list[int] = []
        places: list[int] = []
        mapped = False
        for tid in tids:
            namespace = self._namespaces.add_task(pid, tid, lambda: _described(pid))
            base = f"/proc/{pid}/task/{tid}"
            with self._task_may_end(pid):
                if not any(_same(same_files, other, tid) for other in tables):
                    self._descriptors(pid, base)
                    tables.append(tid)
            with self._task_may_end(pid):
                if not any(_same(same_fs, other, tid) for other in places):
                    for name, what in (("cwd", "has as its working directory"), ("root", "has as its root directory")):
                        self._link(pid, f"{base}/{name}", what, namespace)
                    places.append(tid)
            with self._task_may_end(pid):
                # All threads have one memory, but the first may have ended before the others.
                if not mapped:
                    mapped = self._mappings(pid, base)
                    if mapped:
                        self._link(pid, f"{base}/exe", "runs", namespace)

    @contextlib.contextmanager
    def _task_may_end(self, pid: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._missed(_described(pid), error)

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

    def _descriptor(self, pid: int, base: str, directory: int, name: str) -> None:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        try:
            info = os.read(fd, 1024)
        finally:
            os.close(fd)
        match = _MOUNT_ID.search(info)
        if match is None:
            raise OSError(errno.ENODATA, "its descriptors do not tell their mounts")
        mount = int(match.group(1))
        device = self._namespaces.devices.get(mount)
        if mount in self._in_memory or (device is not None and device not in self._devices):
            return
        path = f"{base}/fd/{name}"
        text = os.readlink(path)
        if device is not None:
            status = os.stat(path)  # the filesystem that is being looked at answers
            self._found(Identity(status.st_dev, status.st_ino, status.st_nlink), pid, "holds", text)
        elif text.startswith("/"):
            # A mount that is attached nowhere: detached by its owner, or unmounted lazily.
            number = _INODE.search(info)
            self._ask(path, pid, "holds", text, int(number.group(1)) if number else None, False)
        elif text.startswith(_IN_MEMORY):
            self._in_memory.add(mount)
        else:
            namespace = _NAMESPACE.fullmatch(text)
            if namespace is not None:
                self._namespaces.add_descriptor(path, int(namespace.group(1)), _described(pid))

    def _link(self, pid: int, path: str, what: str, namespace: int | None) -> None:
        text = os.readlink(path)
        elsewhere = False
        table = self._namespaces.tables.get(namespace) if namespace is not None else None
        if table is not None and table.mounts and text.startswith("/"):
            elsewhere = is_shared(mount_table.of_path(text, table.mounts).fstype)
        self._ask(path, pid, what, text, None, elsewhere)

    def _ask(self, path: str, pid: int, what: str, text: str, inode: int | None, elsewhere: bool) -> None:
        def then(identity: Identity | None, number: int) -> None:
            if identity is not None:
                self._found(identity, pid, what, text)
            elif number:
                with self._task_may_end(pid):
                    raise OSError(number, os.strerror(number))
            elif inode is not None:
                self._held.inodes[inode] = f"{_described(pid)} {what} {printable(text)}, which does not answer"
            elif not elsewhere:
                # What is on a network filesystem by its path, and hangs, is not on the disk that does answer.
                self._held.unknown.append(f"{_described(pid)} {what} {printable(text)}, which does not answer")

        self._prober.ask(path, then)

    def _mappings(self, pid: int, base: str) -> bool:
        """Look at the mapped files; return whether there was any memory."""
        with open(f"{base}/maps", "rb") as stream:
            text = stream.read()
        if any(device in text for device in self._mapped):
            for line in text.splitlines():
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
            self._held.inodes[int(fields[4])] = f"{_described(pid)} maps {printable(text)}"
            return
        self._found(Identity(status.st_dev, status.st_ino, status.st_nlink), pid, "maps", text)

    def _found(self, identity: Identity, pid: int, what: str, text: str) -> None:
        key = (identity.dev, identity.ino)
        if key not in self._held.identities:
            self._held.identities[key] = f"{_described(pid)} {what} {printable(text)}"
        if identity.links == 0:
            self._held.removed.append((text, f"{_described(pid)} {what} {printable(text)}"))


def _same(compare: Callable[[int, int], bool], first: int, second: int) -> bool:
    """Return whether two tasks are known to share a table; what cannot be known is looked at."""
    try:
        return compare(first, second)
    except OSError:
        return False


def _numbers(directory: str) -> list[int]:
    return [int(name) for name in os.listdir(directory) if name.isdigit()]


def _described(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as stream:
            return f"process {pid} ({printable(stream.read().rstrip())})"
    except OSError:
        return f"process {pid}"
