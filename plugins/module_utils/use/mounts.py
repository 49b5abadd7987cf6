# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mount tables of all mount namespaces, and what they say about the use of a directory.

Besides mounts of a directory these are overlays, which hold their layers without any mount or descriptor that a table
would show: only the paths given when they were mounted are known. Where such a path leads now need not be where it led
then, so what an overlay shows at its top must be found in the layers that its paths lead to.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .. import mounts as mount_table
from ..errors import StowageError, printable
from ..mounts import Mount, place_in_filesystem, table_lines, unescaped
from ..paths import is_within
from ..syscalls import enter_mount_namespace
from .child import progress

_GONE = (errno.ENOENT, errno.ESRCH, errno.EINVAL)  # EINVAL: a task that has ended and is not reaped has no namespace
_FIRST = 4096
_LAYER_OPTIONS = ("lowerdir", "upperdir", "workdir", "lowerdir+", "datadir+")
_NO_LAYER = "workdir"
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
    work: list[tuple[str, ...]] = field(default_factory=list)
    """Those of them that are held and not shown."""
    found: set[tuple[str, ...]] = field(default_factory=set)
    """The absolute ones that led to something somewhere."""
    bases: list[str] = field(default_factory=list)
    """Where it is mounted: the directory that relative ones are found from is often above."""
    shows_layers: bool = True
    """Whether the names at its top are those in its layers."""
    root: int | None = None
    """Its top, from when it was reached until its layers are proven."""
    shown: frozenset[str] | None = None
    """The names at its top."""
    below: set[str] = field(default_factory=set)
    """The names in the layers found."""

    @property
    def missing(self) -> list[tuple[str, ...]]:
        return [layer for layer in self.absolute if layer not in self.found]

    @property
    def strange(self) -> frozenset[str]:
        """Names at its top that are in none of the layers found."""
        return (self.shown or frozenset()) - self.below

    @property
    def is_proven(self) -> bool:
        """Whether its layers are those that its paths lead to, as far as can be told."""
        reached = self.shown is not None or not self.shows_layers
        return reached and not self.missing and not self.strange and ("/",) not in self.absolute


def layer_paths(super_options: bytes, keys: Sequence[str] = _LAYER_OPTIONS) -> list[tuple[str, ...]]:
    """Return the directories that an overlay's options, as mountinfo shows them, name.

    Depending on the kernel's age and on how it was mounted, a backslash before a colon, comma or backslash is an
    escape or part of the name: such a layer has two readings.
    """
    layers = []
    for raw in super_options.split(b","):
        name, _equals, value = raw.partition(b"=")
        key = os.fsdecode(name)
        if key not in keys:
            continue
        text = unescaped(value)
        parts = re.findall(r"(?:\\.|[^:\\])+", text, re.DOTALL) if key == "lowerdir" else [text]
        layers += [tuple(dict.fromkeys((part, re.sub(r"\\(.)", r"\1", part)))) for part in parts if part]
    return layers


def overlays_of(text: bytes, seen_by: str) -> dict[str, Overlay]:
    """Return the overlays of a mountinfo file by device; an ``ecryptfs`` mount holds a directory in the same way."""
    found: dict[str, Overlay] = {}
    for line in table_lines(text):
        fields = line.split(b" ")
        dash = fields.index(b"-", 6)
        fstype, source, options = fields[dash + 1 : dash + 4]
        if fstype == b"overlay":
            layers, work = layer_paths(options), layer_paths(options, (_NO_LAYER,))
        elif fstype == b"ecryptfs":
            layers, work = [(unescaped(source),)], []
        else:
            continue
        device = fields[2].decode("ascii")
        overlay = found.setdefault(
            device,
            Overlay(
                f"{printable(fields[4])} in {seen_by}",
                [layer for layer in layers if layer[0].startswith("/")],
                [layer for layer in layers if not layer[0].startswith("/")],
                work,
                shows_layers=fstype == b"overlay",
            ),
        )
        overlay.bases.append(unescaped(fields[4]))
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
        self.doubts: list[tuple[Overlay, str]] = []
        """Overlays that may hold directories which their options do not tell, and why."""
        self.layers: list[tuple[os.stat_result, str]] = []
        """What the layers' paths led to, and whose layer it is."""
        self._unknown = unknown
        self._names: dict[tuple[int, int], frozenset[str]] = {}
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

    def has(self, mount: int, pid: int) -> bool:
        """Return whether a mount is in any table; a new one may be in that of its holder or of this host."""
        for who in ("self", str(pid)):
            if mount in self.devices:
                break
            try:
                with open(f"/proc/{who}/mountinfo", "rb") as stream:
                    self._add_view(stream.read(), "this host" if who == "self" else f"process {pid}")
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        return mount in self.devices

    def finish(self) -> None:
        """Resolve as this host sees them the layers that no namespace of their overlay could resolve."""
        unproven = [overlay for overlay in self.overlays.values() if not overlay.is_proven]
        self._resolve(unproven)
        self.doubts = [(overlay, text) for overlay in unproven for text in _doubts(overlay)]

    def close(self) -> None:
        for overlay in self.overlays.values():
            if overlay.root is not None:
                os.close(overlay.root)
        os.close(self._proc)
        os.close(self._home)

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
            here = {mount.device: self.overlays[mount.device] for mount in view.mounts if mount.device in self.overlays}
            self._reach(view.mounts)
            self._resolve([overlay for overlay in here.values() if not overlay.is_proven])
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
            self.overlays.setdefault(device, overlay).bases += overlay.bases
        return view

    def _reach(self, mounts: Sequence[Mount]) -> None:
        """Open the top of each overlay that can be reached from where the process is."""
        for mount in mounts:
            overlay = self.overlays.get(mount.device)
            if overlay is None or overlay.shown is not None or mount.root != "/" or not overlay.shows_layers:
                continue
            try:
                fd = os.open(mount.point, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue  # something else lies over it; there may be another way to it
            if _device(os.fstat(fd)) == mount.device:
                overlay.root, overlay.shown = fd, frozenset()
            else:
                os.close(fd)

    def _resolve(self, overlays: Iterable[Overlay]) -> None:
        for overlay in overlays:
            progress()
            # What is made at the top while this goes on is in a layer before that is listed, not after.
            for listed_anew in (False, True):
                if overlay.root is not None:
                    overlay.shown = frozenset(os.listdir(overlay.root))
                self._find_layers(overlay, listed_anew)
                if not overlay.strange:
                    break
            if overlay.root is not None and overlay.is_proven:
                os.close(overlay.root)
                overlay.root = None

    def _find_layers(self, overlay: Overlay, listed_anew: bool) -> None:
        for layer in overlay.absolute:
            for path in layer:
                try:
                    status = os.stat(path)
                    if layer not in overlay.work and overlay.shows_layers:
                        overlay.below |= self._listed(path, status, listed_anew)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                        where = f"the overlay at {overlay.where}"
                        self._unknown(f"the layer {printable(path)} of {where}: {error.strerror}")
                    continue
                overlay.found.add(layer)
                self.layers.append((status, f"a layer of the overlay at {overlay.where}"))
        for layer in overlay.relative:
            for path in layer:
                for base in _above([*overlay.bases, *(first for first, *_rest in overlay.absolute)]):
                    with contextlib.suppress(OSError):  # only some of these lead to it
                        there = os.path.join(base, path)
                        overlay.below |= self._listed(there, os.stat(there), listed_anew)
                        overlay.found.add(layer)

    def _listed(self, path: str, status: os.stat_result, anew: bool) -> frozenset[str]:
        """Return the names in a layer; many overlays share the lower ones."""
        key = (status.st_dev, status.st_ino)
        if anew or key not in self._names:
            self._names[key] = frozenset(os.listdir(path))
        return self._names[key]


def _doubts(overlay: Overlay) -> Iterator[str]:
    """Tell why it is not known which directories an overlay holds."""
    for layer in overlay.missing:
        yield f"has the layer {printable(layer[0])}, which cannot be found"
    if ("/",) in overlay.absolute:
        yield "has the layer /, which is what the kernel shows for a directory that was mounted nowhere"
    if overlay.shows_layers and overlay.shown is None:
        yield "cannot be looked into: something else is mounted over it"
    # Names may also come from a layer with a relative path that leads nowhere from here.
    if overlay.strange and not overlay.missing and overlay.found.issuperset(overlay.relative):
        name = printable(min(overlay.strange))
        yield f"shows {name}, which is in none of the layers that its paths lead to now"


def _above(paths: Iterable[str]) -> Iterator[str]:
    """Return each directory that is above one of *paths*, once."""
    seen = set()
    for path in paths:
        while path not in seen and path != "/":
            seen.add(path)
            path = os.path.dirname(path)
            if path not in seen:
                yield path


def _device(status: os.stat_result) -> str:
    return f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"


def uses(view: View, device: str, place: str, around: Sequence[str], mounted: Collection[str] = ()) -> Iterator[str]:
    """Tell each mount in *view* that makes the directory at *place* of the filesystem *device* a used one.

    :param around: directories that hold nothing but such directories: a mount of one of them is a use of all
    :param mounted: where a mount of it is no use
    """
    by_id = {mount.id: mount for mount in view.mounts}
    for mount in view.mounts:
        if mount.device == device and mount.root == place and mount.point in mounted:
            continue
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
