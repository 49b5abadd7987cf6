# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mount tables of all mount namespaces, and what they say about the use of a directory.

Besides mounts of a directory these are overlays, which hold their layers without any mount or descriptor that a table
would show: only the paths given when they were mounted are known.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from . import mounts as mount_table
from .errors import StowageError, printable
from .mounts import Mount, unescaped
from .paths import is_within
from .syscalls import enter_mount_namespace

_GONE = (errno.ENOENT, errno.ESRCH, errno.EINVAL)  # EINVAL: a task that has ended and is not reaped has no namespace
_FIRST = 4096
_LAYER_OPTIONS = ("upperdir", "workdir", "lowerdir+", "datadir+")
_NAMESPACE_ROOT = re.compile(r"mnt:\[(\d+)\]")


@dataclass(frozen=True)
class View:
    """A mount table as somebody sees it: ``point`` and ``parent`` mean something only within one view."""

    seen_by: str
    mounts: Sequence[Mount]


@dataclass
class Overlay:
    """One overlay filesystem, however often it is mounted."""

    where: str
    """A place where it is mounted, for messages."""
    absolute: list[tuple[str, ...]]
    """Each layer's path, in every reading that its escapes allow."""
    relative: list[tuple[str, ...]]
    found: set[tuple[str, ...]] = field(default_factory=set)
    """The absolute ones that led to something somewhere."""


def place_in_filesystem(path: str, mount: Mount) -> str:
    """Return where *path*, which lies on *mount*, is within the filesystem."""
    relative = os.path.relpath(path, mount.point)
    return mount.root if relative == "." else os.path.join(mount.root, relative)


def layer_paths(super_options: bytes) -> list[tuple[str, ...]]:
    """Return the layers that an overlay's options, as mountinfo shows them, name.

    Depending on the kernel's age and on how it was mounted, a backslash before a colon, comma or backslash is an
    escape or part of the name: such a layer has two readings.
    """
    layers = []
    for raw in super_options.split(b","):
        name, _equals, value = raw.partition(b"=")
        key = os.fsdecode(name)
        text = unescaped(value)
        if key == "lowerdir":
            parts = re.findall(r"(?:\\.|[^:\\])+", text, re.DOTALL)
        elif key in _LAYER_OPTIONS:
            parts = [text]
        else:
            continue
        layers += [tuple(dict.fromkeys((part, re.sub(r"\\(.)", r"\1", part)))) for part in parts if part]
    return layers


def overlays_of(text: bytes, seen_by: str) -> dict[str, Overlay]:
    """Return the overlays of a mountinfo file by device; an ``ecryptfs`` mount holds a directory in the same way."""
    found: dict[str, Overlay] = {}
    for line in text.splitlines():
        fields = line.split(b" ")
        dash = fields.index(b"-", 6)
        fstype, source, options = fields[dash + 1 : dash + 4]
        if fstype == b"overlay":
            layers = layer_paths(options)
        elif fstype == b"ecryptfs":
            layers = [(unescaped(source),)]
        else:
            continue
        device = fields[2].decode("ascii")
        if device not in found:
            found[device] = Overlay(
                f"{printable(fields[4])} in {seen_by}",
                [layer for layer in layers if layer[0].startswith("/")],
                [layer for layer in layers if not layer[0].startswith("/")],
            )
    return found


class Namespaces:
    """Every mount namespace that can be found, entered one after the other by the calling process.

    The process must have one thread and is left in the namespace it began in.

    :param unknown: told what could not be found out, as one line
    """

    def __init__(self, unknown: Callable[[str], None]) -> None:
        self.views: list[View] = []
        self.devices: dict[int, str] = {}
        """The device of every mount, by its id: these are unique among all namespaces."""
        self.tables: dict[int, View] = {}
        """The whole table of each namespace, by its inode number."""
        self.overlays: dict[str, Overlay] = {}
        self.layers: list[tuple[os.stat_result, str]] = []
        """What the layers' paths led to, and whose layer it is."""
        self._unknown = unknown
        self._pages: set[tuple[int, bytes]] = set()
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._home_id = os.fstat(self._home).st_ino
        self._enter(self._home, self._home_id, "this host")

    def add_task(self, pid: int, tid: int, described: Callable[[], str]) -> int | None:
        """Look at the namespace of a task and at the table as it sees it; return the namespace's number."""
        base = f"/proc/{pid}/task/{tid}"
        try:
            number = _namespace_number(os.readlink(f"{base}/ns/mnt"))
            if number not in self.tables:
                fd = os.open(f"{base}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    self._enter(fd, number, described())
                finally:
                    os.close(fd)
            # A task with another root sees a part that may be hidden from the namespace's own root.
            with open(f"{base}/mountinfo", "rb", buffering=0) as stream:
                page = os.read(stream.fileno(), _FIRST)
                if (number, page) not in self._pages:
                    self._pages.add((number, page))
                    self._add_view(page + _rest(stream.fileno()), f"the root of {described()}")
        except OSError as error:
            if error.errno not in _GONE:
                self._unknown(f"the mounts that {described()} sees: {error.strerror}")
            return None
        return number

    def add_descriptor(self, path: str, number: int, described: str) -> None:
        """Look at a namespace that somebody holds open."""
        if number in self.tables:
            return
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _GONE:
                self._unknown(f"a mount namespace held by {described}: {error.strerror}")
            return
        try:
            if os.fstat(fd).st_ino == number:
                self._enter(fd, number, described)
        finally:
            os.close(fd)

    def finish(self) -> None:
        """Resolve as this host sees them the layers that no namespace of their overlay could resolve."""
        self._resolve_layers(self.overlays)
        for overlay in self.overlays.values():
            for layer in overlay.absolute:
                if layer not in overlay.found:
                    path = printable(layer[0])
                    self._unknown(f"the overlay at {overlay.where} has the layer {path}, which cannot be found")

    def _enter(self, fd: int, number: int, described: str) -> None:
        waiting = [(os.dup(fd), number, described)]
        try:
            while waiting:
                current, number, described = waiting.pop()
                try:
                    if number not in self.tables:
                        waiting += self._look_from_within(current, number, described)
                finally:
                    os.close(current)
        finally:
            for left, _number, _described in waiting:
                os.close(left)

    def _look_from_within(self, fd: int, number: int, described: str) -> list[tuple[int, int, str]]:
        """Read a namespace's table and return the namespaces that are pinned in it."""
        where = "this host" if number == self._home_id else f"the mount namespace of {described}"
        try:
            enter_mount_namespace(fd)
        except OSError as error:
            self._unknown(f"{where}: it cannot be entered ({error.strerror})")
            self.tables[number] = View(where, ())
            return []
        try:
            with open(os.open("self/mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc), "rb") as stream:
                text = stream.read()
            view = self._add_view(text, where)
            self.tables[number] = view
            self._resolve_layers({device: self.overlays[device] for device in overlays_of(text, where)})
            return list(self._pinned(view))
        finally:
            enter_mount_namespace(self._home)

    def _pinned(self, view: View) -> Iterator[tuple[int, int, str]]:
        for mount in view.mounts:
            match = _NAMESPACE_ROOT.fullmatch(mount.root) if mount.fstype == "nsfs" else None
            if match is None or int(match.group(1)) in self.tables:
                continue
            described = f"{printable(mount.point)} in {view.seen_by}"
            try:
                fd = os.open(mount.point, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                self._unknown(f"the mount namespace at {described}: {error.strerror}")
                continue
            if os.fstat(fd).st_ino == int(match.group(1)):
                yield fd, int(match.group(1)), described
            else:
                os.close(fd)
                self._unknown(f"the mount namespace at {described}: something else is mounted over it")

    def _add_view(self, text: bytes, seen_by: str) -> View:
        view = View(seen_by, mount_table.parse(text))
        self.views.append(view)
        for mount in view.mounts:
            self.devices[mount.id] = mount.device
        for device, overlay in overlays_of(text, seen_by).items():
            self.overlays.setdefault(device, overlay)
        return view

    def _resolve_layers(self, overlays: dict[str, Overlay]) -> None:
        for overlay in overlays.values():
            for layer in overlay.absolute:
                for path in layer:
                    try:
                        status = os.stat(path)
                    except OSError as error:
                        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                            self._unknown(
                                f"the layer {printable(path)} of the overlay at {overlay.where}: {error.strerror}"
                            )
                        continue
                    overlay.found.add(layer)
                    self.layers.append((status, f"a layer of the overlay at {overlay.where}"))


def uses(view: View, device: str, place: str, around: Sequence[str]) -> Iterator[str]:
    """Tell each mount in *view* that makes the directory at *place* of the filesystem *device* a used one.

    :param around: directories that hold nothing but such directories: a mount of one of them is a use of all
    """
    by_id = {mount.id: mount for mount in view.mounts}
    for mount in view.mounts:
        if mount.device == device and (is_within(mount.root, place) or mount.root in around):
            yield f"mounted at {printable(mount.point)} in {view.seen_by}"
        above = by_id.get(mount.parent)
        if above is None or above is mount or above.device != device or not is_within(mount.point, above.point):
            continue
        if is_within(place_in_filesystem(mount.point, above), place):
            yield f"{printable(mount.fstype)} is mounted inside it, at {printable(mount.point)} in {view.seen_by}"


def _namespace_number(link: str) -> int:
    match = _NAMESPACE_ROOT.fullmatch(link)
    if match is None:
        raise StowageError(f"{printable(link)}: not the name of a mount namespace")
    return int(match.group(1))


def _rest(fd: int) -> bytes:
    parts: list[bytes] = []
    while True:
        data = os.read(fd, 1 << 16)
        if not data:
            return b"".join(parts)
        parts.append(data)
