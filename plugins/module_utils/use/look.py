# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether directories are in use, by the kernel's evidence: one look at the whole host for all of them.

What counts: a mount of the directory, below it or into it in any mount namespace, an overlay's layer, an NFS export,
a loop device's file, and an open file or directory, mapping, root or working directory of any task. What cannot be
read counts as use of every directory that it may be a use of. Regular files that this cannot see open are the matter
of ``write_leases``.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from .. import mounts as mount_table
from ..errors import StowageError, printable
from ..mounts import Mount, place_in_filesystem
from ..paths import is_within, overlap
from ..syscalls import open_beneath
from ..trees.walk import Problem, Walk
from .child import NoAnswerError, answer_of, nothing, progress
from .exports import exported
from .mounts import Namespaces, Overlay, uses
from .processes import Findings, Tasks

DEADLINE_S = 60.0
_MOST = 20


@dataclass(frozen=True)
class Subject:
    """A copy that is to go, wherever it is at the moment."""

    name: str
    """The copy's name."""
    fd: int
    """Its directory."""
    device: str
    """The filesystem, as mountinfo names it."""
    place: str
    """Where it is within the filesystem."""
    around: tuple[str, ...]
    """Directories within the filesystem that hold nothing but copies."""
    paths: tuple[str, ...]
    """Where it is on this host, and where it was before it was moved aside."""
    mounted: tuple[str, ...] = ()
    """Where it is mounted itself, being all of a filesystem: such a mount is no use."""
    known_by: tuple[str, ...] = ()
    """The names at the end of its path that belong to nothing else together; none when its name alone does."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.known_by or (self.name,)

    @classmethod
    def of(cls, name: str, fd: int, drives_fd: int, mounts: Sequence[Mount]) -> Subject:
        """Return the subject open at *fd*, a copy that has, or had, its place in the directory open at *drives_fd*."""
        mount, path = _located(fd, mounts)
        drives_mount, drives = _located(drives_fd, mounts)
        return cls(
            name,
            fd,
            mount.device,
            place_in_filesystem(path, mount),
            (place_in_filesystem(drives, drives_mount),),
            tuple(dict.fromkeys((path, os.path.join(drives, name)))),
        )

    @classmethod
    def alone(cls, names: Sequence[str], fd: int, before: str, mounts: Sequence[Mount]) -> Subject:
        """Return the subject open at *fd*, which is, or was until it was moved aside, at the resolved path *before*.

        :param names: those at the end of that path by which it is known
        """
        mount, path = _located(fd, mounts)
        place = place_in_filesystem(path, mount)
        paths = tuple(dict.fromkeys((path, before)))
        return cls(names[-1], fd, mount.device, place, (), paths, known_by=tuple(names))


def last_names(path: str) -> tuple[str, ...]:
    """Return the names at the end of a path by which it is known: many directories are called ``runs`` or ``cache``."""
    return tuple(filter(None, path.split("/")))[-2:]


def _located(fd: int, mounts: Sequence[Mount]) -> tuple[Mount, str]:
    mount = mount_table.of_fd(fd, mounts)
    path = os.readlink(f"/proc/self/fd/{fd}")
    if not is_within(path, mount.point):
        raise StowageError(f"{printable(path)}: not below {printable(mount.point)}, where its filesystem is mounted")
    return mount, path


Evidence = dict[str, list[str]]
"""For each copy, by name, the evidence that it is in use, each as one line; an empty list is no use."""


class InUse(Protocol):
    """Whoever looks. When the look fails, or makes no progress for *deadline_s* seconds, every subject is in use."""

    def __call__(
        self, subjects: Sequence[Subject], deadline_s: float = DEADLINE_S, alive: Callable[[], None] = nothing
    ) -> Evidence: ...


def in_use(
    subjects: Sequence[Subject], deadline_s: float = DEADLINE_S, alive: Callable[[], None] = nothing
) -> Evidence:
    """Look at this host, in a child of this process."""
    owner, own = os.getpid(), [subject.fd for subject in subjects]
    return found_or_unknown(subjects, lambda: answer_of(lambda: look(subjects, owner, own), deadline_s, alive))


def found_or_unknown(subjects: Sequence[Subject], ask: Callable[[], Evidence]) -> Evidence:
    """Return what *ask* finds; without an answer every subject is in use."""
    if not subjects:
        return {}
    try:
        return ask()
    except NoAnswerError as error:
        return {subject.name: [f"could not be determined: {error}"] for subject in subjects}


def look(subjects: Sequence[Subject], owner: int, own: Collection[int]) -> Evidence:
    """Look at this host; the calling process must have one thread.

    :param own: descriptors of process *owner* that are no use: those of the subjects with which it asks
    """
    held = Findings()
    namespaces = Namespaces(held.unknown.append)
    tasks = Tasks(namespaces, held, {subject.device for subject in subjects}, owner, own)
    tasks.look()
    namespaces.finish()
    namespaces.close()
    for status, what in namespaces.layers:
        held.identities.setdefault((status.st_dev, status.st_ino), f"it holds {what}")
    for path, device in _loop_devices():
        _hold(held, path, f"{device} is a loop device on {printable(path)}")
    mounts = mount_table.read()
    exports = [(path, os.path.realpath(path)) for path in exported()]
    return {
        subject.name: list(dict.fromkeys(_evidence(subject, held, namespaces, mounts, exports)))[:_MOST]
        for subject in subjects
    }


def _evidence(
    subject: Subject,
    held: Findings,
    namespaces: Namespaces,
    mounts: Sequence[Mount],
    exports: Sequence[tuple[str, str]],
) -> Iterator[str]:
    for text in held.unknown:
        yield f"could not be determined: {text}"
    for view in namespaces.views:
        yield from uses(view, subject.device, subject.place, subject.around, subject.mounted)
    for overlay in namespaces.overlays.values():
        yield from _named(subject, overlay)
    for overlay, text in namespaces.doubts:
        if overlay.shown is None or subject.name in overlay.shown:
            yield _doubtful(overlay, text)
    for path, real in exports:
        if _exports(path, real, subject, mounts):
            yield f"NFS export {printable(path)} reaches it"
    for path, text in held.ended:
        if any(is_within(path, place) for place in subject.paths):
            yield text
    # Opened anew: btrfs does not list what has come since a directory was opened.
    root_fd = open_beneath(subject.fd, b".")
    try:
        yield from _held_inside(root_fd, subject, held, list(namespaces.overlays.values()), namespaces.doubts)
    finally:
        os.close(root_fd)


def _doubtful(overlay: Overlay, text: str) -> str:
    return f"could not be determined: the overlay at {overlay.where} {text}"


def _held_inside(
    root_fd: int, subject: Subject, held: Findings, overlays: Sequence[Overlay], doubts: Sequence[tuple[Overlay, str]]
) -> Iterator[str]:
    """Go through the subject once and compare everything in it with all that is held on this host."""
    numbers = {inode for _device, inode in held.identities} | set(held.inodes)
    relative: dict[str, list[tuple[str, Overlay]]] = {}
    for overlay in overlays:
        for layer in overlay.relative:
            for path in layer:
                relative.setdefault(path.split("/", 1)[0], []).append((path, overlay))
    problems: list[Problem] = []
    devices = set()
    walk = Walk(root_fd, problems.append)
    for directory in walk:
        progress()
        devices.add(directory.status.st_dev)
        yield from _matches(held, directory.status)
        if doubts:
            # Of a layer that shows none of its names, nothing can be opened.
            names = frozenset(os.listdir(directory.fd))
            yield from (_doubtful(overlay, text) for overlay, text in doubts if names & (overlay.shown or frozenset()))
        if relative:
            yield from _relative_layers(directory.fd, relative)
        for entry in directory.files():
            if entry.inode() in numbers:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    yield f"{walk.path(entry.name)} was removed while it was looked at"
                else:
                    yield from _matches(held, status)
    aside = os.path.basename(subject.paths[0])
    rows = [subject.names, *([(aside,)] if aside != subject.names[-1] else [])]
    for device, path, text in held.removed:
        if device in devices and any(_has_row(path.split("/"), row) for row in rows):
            yield text
    for problem in problems:
        yield f"could not be determined: {problem}" if problem.missing else str(problem)


def _matches(held: Findings, status: os.stat_result) -> Iterator[str]:
    text = held.identities.get((status.st_dev, status.st_ino)) or held.inodes.get(status.st_ino)
    if text is not None:
        yield text


def _named(subject: Subject, overlay: Overlay) -> Iterator[str]:
    """Tell an overlay's layer whose path names the subject, or that may lead anywhere."""
    for layer in overlay.absolute + overlay.relative:
        for path in layer:
            parts = path.split("/")
            if _has_row(parts, subject.names) or _begins_in(subject, path):
                yield f"the overlay at {overlay.where} has the layer {printable(path)}"
            if not path.startswith("/") and ".." in parts:
                yield f"could not be determined: the overlay at {overlay.where} has the layer {printable(path)}"


def _has_row(parts: Sequence[str], row: Sequence[str]) -> bool:
    """Return whether *row* is in the names of a path, one after the other."""
    length = len(row)
    return any(tuple(parts[start : start + length]) == tuple(row) for start in range(len(parts) - length + 1))


def _begins_in(subject: Subject, path: str) -> bool:
    """Return whether a relative path may be of the subject, from a directory between those that it is known by.

    Container engines number their layers, and runs are numbered too: it leads into it when the next name is there.
    """
    parts = path.split("/")
    for length in range(1, len(subject.names)):
        if tuple(parts[:length]) == subject.names[-length:]:
            rest = [part for part in parts[length:] if part]
            if not rest or rest[0] == ".." or _leads_on(subject.fd, rest[0]):
                return True
    return False


def _relative_layers(dir_fd: int, relative: dict[str, list[tuple[str, Overlay]]]) -> Iterator[str]:
    """Tell each overlay whose layer would be found from this directory, in which it may have been mounted."""
    for first in relative.keys() & set(os.listdir(dir_fd)):
        for path, overlay in relative[first]:
            if _leads_on(dir_fd, path):
                where = f"the overlay at {overlay.where}"
                yield f"could not be determined: {where} may have its layer {printable(path)} in it"


def _leads_on(dir_fd: int, path: str) -> bool:
    first, *rest = [part for part in path.split("/") if part]
    try:
        status = os.stat(first, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode):
        return stat.S_ISLNK(status.st_mode)  # which may lead there; nothing is below a plain file
    fd = open_beneath(dir_fd, os.fsencode(first))
    try:
        return not rest or rest[0] in os.listdir(fd)
    finally:
        os.close(fd)


def _exports(path: str, real: str, subject: Subject, mounts: Sequence[Mount]) -> bool:
    if any(overlap(one, other) for one in (path, real) for other in subject.paths):
        return True
    mount = mount_table.of_path(real, mounts)
    if mount.device != subject.device:
        return False
    return overlap(place_in_filesystem(real, mount), subject.place)


def _loop_devices() -> Iterator[tuple[str, str]]:
    for place in glob.glob("/sys/block/loop*/loop/backing_file"):
        try:
            with open(place, "rb") as stream:
                yield os.fsdecode(stream.read().rstrip(b"\n")), f"/dev/{place.split('/')[3]}"
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENXIO, errno.ENODEV):  # detached meanwhile
                raise


def _hold(held: Findings, path: str, text: str) -> None:
    try:
        status = os.stat(path)
    except OSError:
        return  # as its opener named it, perhaps in another namespace: the write leases find such a file
    held.identities.setdefault((status.st_dev, status.st_ino), text)
