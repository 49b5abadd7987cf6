# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is taken on this host, by path, and keeping apart from it: one list for layouts, data locations and drives.

Whoever takes a path reads this under the host lock, so that two that are made at once cannot take the same.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from . import records
from .data_location import locations as data_locations
from .differences import Differences
from .drives import recorded as drive_records
from .errors import Refusal, StowageError, printable
from .mark_search import find_marks
from .mounts import Located, Mount, follow, is_shared, names_of, of_path, place_in_filesystem
from .owner import Registry, entry_of, is_seen, read_mark
from .places import Places
from .syscalls import DIRECTORY, NO_DIRECTORY, filesystem_uuid, mount_id, open_beneath
from .volumes import recorded as volumes

Entry = Mapping[str, Any]

THERE, STALE, UNSEEN = "there", "stale", "unseen"
"""What a registered claim is: marked; no more, though its filesystem is mounted as it was; or nobody can tell now."""


@dataclass(frozen=True)
class Claims:
    """What is claimed on this host: as it is registered or, when the registry is lost, by the marks on its disks."""

    entries: Mapping[str, Entry]
    """Kind, name, identity and host by path; what is dropped now is left out."""
    lost: bool = False
    host: str = ""
    unseen: frozenset[str] = frozenset()
    """Paths of claims that cannot be seen now: their disk is not mounted."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """What is done with registered claims that are no more, by path."""
    warnings: Sequence[str] = ()

    def note(self, differences: Differences) -> None:
        """Note how the registry differs."""
        if self.lost and self.entries and self.host:
            differences.note("claims found by their marks", sorted(self.entries), [])
        if self.dropped:
            differences.note("claims that are no more", [], sorted(self.dropped))

    def register(self, registry: Registry, differences: Differences) -> None:
        """Make the registry what was read; an empty one is written too, so that the next run need not search."""
        if self.lost and self.host:
            write = partial(registry.rebuild, self.entries)
            if self.entries:
                differences.do("register what was found by its mark", write)
            elif not differences.check_mode:
                write()
        for path, action in sorted(self.dropped.items()):
            differences.do(action, partial(registry.remove, path))


def read(places: Places, host: str, mounts: Sequence[Mount], forget: Iterable[str] = ()) -> Claims:
    """Return what is claimed on *host*.

    A registered claim whose mark is gone from its filesystem is dropped, one whose disk is not mounted only when its
    identity is in *forget*.

    :param host: its name in the inventory; when it is not known, marks of all hosts count and nothing is registered
    :raises Refusal: when a claim in *forget* is there
    """
    registry = Registry(places)
    if registry.is_lost():
        search = find_marks(mounts)
        found = {
            path: entry_of(mark, search.mounts[path])
            for path, mark in search.marks.items()
            if not host or mark.host == host
        }
        return Claims(found, True, host, warnings=search.unseen)
    registered = registry.all()
    states = {path: state_of(path, entry, mounts) for path, entry in registered.items()}
    dropped = {}
    warnings = []
    forgotten = set(forget)
    for path, entry in registered.items():
        what = f"the claim of the {_kind(entry)} {path}"
        if states[path] == STALE:
            dropped[path] = f"drop the claim of {path}, whose mark is gone"
            warnings.append(f"{what} is dropped: its filesystem is mounted, and its mark is gone")
        elif entry["identity"] in forgotten:
            if states[path] == THERE:
                raise Refusal(
                    f"forget: {entry['identity']}",
                    f"the {_kind(entry)} {path} is there, and would be given up when its disk is away next",
                    "take it off the list",
                )
            dropped[path] = f"give up {path}, whose disk is gone"
    entries = {path: entry for path, entry in registered.items() if path not in dropped}
    unseen = frozenset(path for path in entries if states[path] == UNSEEN)
    return Claims(entries, False, host, unseen, dropped, warnings)


def state_of(path: str, entry: Entry, mounts: Sequence[Mount]) -> str:
    """Return whether the registered claim of *path* is there, is no more, or cannot be seen."""
    mount = of_path(path, mounts)
    if is_shared(mount.fstype) or entry.get("mounted") != [mount.point, mount.root] or not is_seen():
        return UNSEEN
    try:
        root = os.open(mount.point, DIRECTORY)
        try:
            if mount_id(root) != mount.id or filesystem_uuid(root) != entry["filesystem"]:
                return UNSEEN
            fd = open_beneath(root, os.fsencode(os.path.relpath(path, mount.point)))
        finally:
            os.close(root)
    except OSError as error:
        return STALE if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) else UNSEEN
    try:
        mark = read_mark(fd)
    except (OSError, StowageError):
        return UNSEEN
    finally:
        os.close(fd)
    return THERE if mark is not None and mark.identity == entry["identity"] else STALE


def owner_of(path: str, mounts: Sequence[Mount]) -> str:
    """Return what the resolved *path*, or a directory above it, is marked as: also by another host; empty for nobody's.

    Marks of other hosts, whose disk was moved here, are not in the registry. A bind mount has the directories above
    what it shows elsewhere.
    """
    return next(filter(None, (_owner_by_name(name, mounts) for name in names_of(path, mounts))), "")


def owner_around(path: str, mounts: Sequence[Mount]) -> str:
    """Return what a directory above the resolved *path* is marked as, in the same way."""
    names = (os.path.dirname(name) for name in names_of(path, mounts) if name != "/")
    return next(filter(None, (_owner_by_name(name, mounts) for name in names)), "")


def _owner_by_name(path: str, mounts: Sequence[Mount]) -> str:
    while not is_shared(of_path(path, mounts).fstype):
        try:
            fd = os.open(path, DIRECTORY)
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
        else:
            try:
                mark = read_mark(fd)
            finally:
                os.close(fd)
            if mark is not None:
                return f"the {mark.kind.replace('-', ' ')} {printable(path)} of host {mark.host}"
        if path == "/":
            break
        path = os.path.dirname(path)
    return ""


def _kind(entry: Entry) -> str:
    return str(entry["kind"]).replace("-", " ")


def _named(entry: Entry) -> str:
    """Return whose a claim is, where the host may have several of its kind."""
    return f" {entry['name']}" if entry["kind"] == "tier" and entry.get("name") else ""


def of_stowage(places: Places, entries: Mapping[str, Entry], unseen: Collection[str] = ()) -> dict[str, str]:
    """Return what is Stowage's own on this host: nothing else may be laid over it, or into it.

    :param entries: what is claimed, by path
    :param unseen: those of them that are not there now
    """
    taken = dict.fromkeys((places.etc, places.var, places.run), "Stowage's own directory")
    for path, entry in entries.items():
        gone = f" (not mounted; if it is gone for good, forget: {entry['identity']})" if path in unseen else ""
        taken[path] = f"the {_kind(entry)}{_named(entry)}{gone}"
    for location in data_locations.load_former(places):
        taken[location.path] = "the former data location"
    present = data_locations.load(places)
    if present is not None:
        taken[present.path] = "the data location"
    return taken


def of_layout(places: Places) -> dict[str, str]:
    """Return the locations of the storage layout, its volume root, and the volumes that are registered."""
    layout = records.read(places.layout_json) or {}
    taken = {layout["volume_root"]: "the volume root"} if layout.get("volume_root") else {}
    return {**of_volumes(places), **of_locations(places), **taken}


def of_locations(places: Places) -> dict[str, str]:
    """Return the locations of the storage layout."""
    layout = records.read(places.layout_json) or {}
    return {location["path"]: f"the storage layout's {name}" for name, location in layout.get("locations", {}).items()}


def of_volumes(places: Places) -> dict[str, str]:
    """Return the volumes, which may lead out of the volume root over a link."""
    return {volume.path: f"the {volume.described}" for volume in volumes.load(places).values()}


def of_protected(places: Places) -> dict[str, str]:
    """Return the paths that no run may have mounted."""
    layout = records.read(places.layout_json) or {}
    return {str(path): "the protected path" for path in layout.get("protected_paths", ())}


def of_root(places: Places) -> dict[str, str]:
    """Return the root of the storage layout, in which others may lie beside its locations."""
    layout = records.read(places.layout_json) or {}
    return {layout["root"]: "the storage root"} if layout.get("root") else {}


def of_drives(places: Places, host: str) -> dict[str, str]:
    """Return the sources of drives that name a path on *host*."""
    return _sources(drive_records.load_all(places), host)


def of_drives_here(places: Places) -> dict[str, str]:
    """Return the sources of drives that name a path on this host, by the name that each workspace knows it as."""
    found: dict[str, str] = {}
    for workspace in drive_records.workspaces(places):
        record = records.read(drive_records.record_path(places, workspace)) or {}
        found.update(_sources(drive_records.load(places, workspace) or [], str(record.get("host", ""))))
    return found


def _sources(drives: Iterable[drive_records.Drive], host: str) -> dict[str, str]:
    return {
        path: f"source {index} of drive {drive.workspace}/{drive.name},"
        for drive in drives
        for index, path in drive.sources_on(host)
    }


def around_drives(places: Places, entries: Mapping[str, Entry], unseen: Collection[str] = ()) -> dict[str, str]:
    """Return what sources of drives are apart from: what Stowage, the storage layout and its volumes keep for others.

    A source in one of these would give workers another run, the state, or a volume that nobody grants to them.
    """
    return {**of_layout(places), **of_stowage(places, entries, unseen), **of_protected(places)}


def located(path: str, mounts: Sequence[Mount]) -> Located:
    """Return where a path is that may lead over symbolic links: on a shared filesystem, as it is written.

    That blocks whoever looks at it while its servers are away.
    """
    real, mount = follow(path, mounts)
    return Located(real, mount.device, place_in_filesystem(real, mount))


def overlapping(
    path: str, taken: Mapping[str, str], mounts: Sequence[Mount], but: Iterable[str] = ()
) -> tuple[str, str, str] | None:
    """Return how the resolved *path* lies to the first of *taken* that it overlaps: a verb, what that is, and where.

    An alias is an overlap: a symbolic link, and a bind mount of it, of a part of it or of what is around it.

    :param but: verbs of :func:`.paths.relation` that are no matter
    """
    here = Located.of(path, mounts)
    for other, what in sorted(taken.items()):
        lies = here.lies_to(located(other, mounts))
        if lies and lies not in but:
            return lies, what, other
    return None


def check_apart(
    name: str, path: str, taken: Mapping[str, str], mounts: Sequence[Mount], remedy: str, but: Iterable[str] = ()
) -> None:
    """Refuse the resolved *path*, which an operator knows as *name*, when it overlaps any of *taken*."""
    found = overlapping(path, taken, mounts, but)
    if found is not None:
        lies, what, other = found
        raise Refusal(name, f"it {lies} {what} {other}", remedy)
