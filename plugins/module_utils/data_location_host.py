# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choosing, changing and clearing the data location of this host.

Each operation finds out everything first, notes what differs, and only then acts, so that a prediction is what a run
does. What is acted on is held open: no path is looked up twice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import copies, data_locations, drive_records, filesystems, records
from . import mounts as mount_table
from .data_locations import CONDEMNED, COPY, DRIVES, KIND, LOCKS, PENDING, DataLocation, NotThere
from .differences import Differences
from .disks import Disks
from .drive_records import Holdings
from .drives import SCRATCH, SHARED, check_name, copy_name, split_copy_name
from .errors import Refusal, StowageError
from .mounts import Mount
from .owner import XATTR, Mark, Registry, claim, find_marks, read_mark, release, renew
from .paths import check_path, is_within, overlap, resolve
from .places import Places
from .syscalls import open_beneath

SHARED_RULE = "a data location must be on this machine's own disk — to use shared storage, make a shared drive instead"
SYSTEM_DISK_WARNING = "this is the system disk: drive copies share its space with the operating system"
_PARTS = (DRIVES, b".stowage", LOCKS, b".stowage-trash", PENDING, CONDEMNED)
_PRIVATE = "0:0 0700"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Choice:
    """What an operator asks for."""

    path: str
    max_bytes: int
    host: str
    """The host's name in the inventory."""
    adopt: Sequence[str] = ()
    """Names of directories below ``drives/`` to take in as copies."""
    adopt_from: str = ""
    """The host whose data location this is by its mark: it was renamed, or its disk was moved here."""
    forget: Sequence[str] = ()
    """Identities of data locations that are gone for good."""


@dataclass(frozen=True)
class Outcome:
    """What is true once the operation is done."""

    location: DataLocation | None
    kind: str
    """The disk in plain words."""
    holdings: Holdings
    former: Sequence[DataLocation]
    warnings: Sequence[str]


def adopt_names(values: Sequence[Any]) -> list[str]:
    """Return copy names, given as such or as dictionaries of ``workspace`` and ``drive``."""
    names = []
    for index, value in enumerate(values):
        where = f"adopt[{index}]"
        if isinstance(value, Mapping):
            if set(value) != {"workspace", "drive"}:
                raise Refusal(where, "must be a dictionary of workspace and drive", "or a name, <workspace>.<drive>")
            value = copy_name(*(check_name(value[key], f"{where}.{key}") for key in ("workspace", "drive")))
        split_copy_name(value, where)
        names.append(value)
    return list(dict.fromkeys(names))


# -- The rules for a path


def check_place(path: str, host: str, mounts: Sequence[Mount], fstab: str) -> Mount:
    """Return the mount that a data location at the resolved *path* would be on, or refuse it."""
    name = f"path {path}"
    data_locations.check_reported(host, [mount for mount in mounts if _is_local(mount)])
    mount = mount_table.of_path(path, mounts)
    if mount_table.is_shared(mount.fstype):
        raise Refusal(name, SHARED_RULE)
    if not _is_local(mount):
        raise Refusal(name, f"{mount.point} is {mount.fstype}, which no disk keeps", "choose a folder on a local disk")
    if mount.read_only:
        raise Refusal(name, f"the filesystem at {mount.point} is read-only", "choose a folder on another disk")
    for point in unmounted_points(path, fstab, mounts):
        raise Refusal(name, f"{point} is in /etc/fstab and is not mounted", "mount it, then choose again")
    return mount


def unmounted_points(path: str, fstab: str, mounts: Sequence[Mount]) -> list[str]:
    """Return the mount points in *fstab* at or above *path* where nothing is mounted."""
    mounted = {mount.point for mount in mounts}
    lines = (line.split() for line in fstab.splitlines() if not line.lstrip().startswith("#"))
    points = {_unescaped(fields[1]).rstrip("/") for fields in lines if len(fields) >= 3}
    return sorted(point for point in points - mounted if point.startswith("/") and is_within(path, point))


def _unescaped(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), field)


def check_unclaimed(path: str, claims: Mapping[str, str]) -> None:
    """Refuse *path* when it overlaps any of *claims*, which names what is at each path."""
    for other, what in sorted(claims.items()):
        real = resolve(other)
        if overlap(path, real):
            relation = "is" if path == real else "is inside" if is_within(path, real) else "contains"
            raise Refusal(f"path {path}", f"it {relation} {what} {other}", "choose a folder apart from it")


def check_components(path: str) -> None:
    """Refuse a resolved *path* when anybody but root could put something else in its place."""
    current = ""
    for component in path.split("/")[1:]:
        _check_safe(current or "/", path)
        current = f"{current}/{component}"
    if os.path.lexists(path):
        _check_safe(path, path)


def _check_safe(directory: str, path: str) -> None:
    try:
        status = os.lstat(directory)
    except FileNotFoundError:
        raise Refusal(
            f"path {path}",
            f"{directory} does not exist, and only the last folder is created",
            "mount the disk that it is for, or create it",
        ) from None
    name = f"path {path}"
    if not stat.S_ISDIR(status.st_mode):
        raise Refusal(name, f"{directory} is not a directory", "choose another folder")
    if status.st_uid != 0:
        raise Refusal(
            name,
            f"{directory} belongs to user {status.st_uid}, who could put another folder in its place",
            f"chown root {directory}, or choose another folder",
        )
    # In a sticky directory nobody but root can rename what root owns; the folder itself has to be root's alone.
    sticky = status.st_mode & stat.S_ISVTX and directory != path
    if status.st_mode & 0o022 and not sticky:
        raise Refusal(
            name,
            f"{directory} can be written by others than root (mode {stat.S_IMODE(status.st_mode):04o}), who could put"
            " another folder in its place",
            f"chmod go-w {directory}, or choose another folder",
        )


def _is_local(mount: Mount) -> bool:
    return not mount_table.is_shared(mount.fstype) and not mount_table.is_pseudo(mount.fstype)


def claims_of(places: Places, registry: Registry, own: Iterable[str], host: str) -> dict[str, str]:
    """Return what a data location must lie apart from on this host, by path.

    :param own: the paths of this host's data locations, which may be claimed by them already
    """
    claims = {places.etc: "Stowage's own", places.var: "Stowage's own", places.run: "Stowage's own"}
    layout = records.read(places.layout_json) or {}
    for name, location in layout.get("locations", {}).items():
        claims[location["path"]] = f"the storage layout's {name}"
    if layout.get("volume_root"):
        claims[layout["volume_root"]] = "the volume root"
    for drive in drive_records.load_all(places):
        for index, path in sources_on(drive, host):
            claims[path] = f"source {index} of drive {drive.workspace}/{drive.name},"
    mine = set(own)
    for path, entry in registry.all().items():
        if entry["kind"] != KIND or path not in mine:
            claims[path] = f"the {entry['kind'].replace('-', ' ')}"
    return claims


def sources_on(drive: drive_records.Drive, host: str) -> list[tuple[int, str]]:
    """Return the sources of *drive*, with their numbers, that name a path on *host*."""
    if drive.spec is None or drive.absent:
        return []
    found = []
    for index, source in enumerate(drive.spec["sources"]):
        everywhere = source["node_scope"] in (SHARED, SCRATCH) and (
            not source["eligible_nodes"] or host in source["eligible_nodes"]
        )
        if everywhere or source["node"] == host:
            found.append((index, source["path"]))
    return found


# -- Choosing


def choose(places: Places, choice: Choice, differences: Differences, check_mode: bool) -> Outcome:
    """Make *choice* the data location of this host; a change leaves the copies of the former one where they are."""
    with contextlib.ExitStack() as stack:
        return _Choosing(places, choice, differences, stack).run(check_mode)


class _Choosing:
    """One choice: what is there, what is wanted, and the way from one to the other."""

    def __init__(self, places: Places, choice: Choice, differences: Differences, stack: contextlib.ExitStack) -> None:
        self.places = places
        self.choice = choice
        self.host = choice.host
        self.differences = differences
        self.stack = stack
        self.registry = Registry(places)
        self.path = resolve(check_path(choice.path, "path"))  # this may have a disk mounted, so first
        self.mounts = read_mounts(choice.host)
        self.warnings: list[str] = []
        self.recorded, self.former, self.gone = _known(places, choice.forget, self.mounts, differences, self.warnings)
        self.lost = lost_marks(places, choice.host, self.mounts)
        self.lost.pop(self.path, None)

    def run(self, check_mode: bool) -> Outcome:
        mount = check_place(self.path, self.host, self.mounts, _fstab())
        self._check_host()
        self._check_apart()
        parent, fd = self._open(check_mode)
        nearest = parent if fd is None else fd
        _check_marks_possible(nearest, self.path, mount)
        mark = self._mark(fd)
        self._check_no_clone(mark, fd)
        adoptions = _Adoptions(self.places, self.choice, fd)
        self.warnings.extend(adoptions.missing)
        if fd is not None and mark is None:
            _check_content(fd, self.path, adoptions)
        disk, on_system_disk = _disk(mount, self.mounts)
        if on_system_disk:
            self.warnings.append(SYSTEM_DISK_WARNING)

        wanted = self._wanted(mark, nearest)
        kept, empty = self._sort_former(wanted)
        takeovers = self._takeovers(fd, mark, kept)
        kept = [replace(location, host=self.host) if location.path in takeovers else location for location in kept]
        self._note(wanted, mark, fd, kept, takeovers)
        adoptions.note(self.differences)
        if not check_mode:
            fd = self._make_folder(parent) if fd is None else fd
            for path, taken in takeovers.items():
                take_over(taken, path, self.choice.adopt_from, self.host, self.differences)
            if mark is None:
                claim(fd, KIND, self.path, wanted.identity, self.host)
                self.differences.act(f"marked {self.path} as the data location of {self.host}")
            make_parts(fd, self.path, self.differences)
            for location in empty:
                _give_up(location, self.mounts, self.registry, self.differences)
            for location in self.gone:
                self.registry.remove(location.path)
            self._record(wanted, fd, kept)
            adoptions.apply(fd, self.differences)
        holdings = self._holdings(wanted)
        self.warnings.extend(
            f"{path} has no mark of this host's copies; it is left alone" for path in holdings.strangers
        )
        return Outcome(wanted, disk, holdings, kept, self.warnings)

    def _check_host(self) -> None:
        recorded, old = self.recorded, self.choice.adopt_from
        if recorded is None or recorded.host == self.host:
            return
        name = f"data location {recorded.path}"
        if recorded.host != old:
            raise Refusal(
                name,
                f"it was chosen when this host was {recorded.host}, and this host is {self.host} now",
                f"if the host was renamed, take it over with adopt_from: {recorded.host}",
            )
        if recorded.path != self.path:
            raise Refusal(
                name, f"it still belongs to {old}", "take it over where it is first, and change it afterwards"
            )

    def _check_apart(self) -> None:
        locations = [*self.former, *([self.recorded] if self.recorded is not None else [])]
        own = [self.path, *(location.path for location in locations)]
        claims = claims_of(self.places, self.registry, own, self.host)
        claims.update({path: f"what is marked as a {mark.kind} of this host," for path, mark in self.lost.items()})
        claims.update({one.path: "this host's data location" for one in locations if one.path != self.path})
        check_unclaimed(self.path, claims)

    def _open(self, check_mode: bool) -> tuple[int, int | None]:
        """Return what the folder is in, or will be, and the folder when it is there."""
        directory, name = os.path.split(self.path)
        if check_mode and not os.path.lexists(directory):
            # An earlier task of the same play may be what makes it.
            self.warnings.append(f"path {self.path}: {directory} does not exist; taken to be made before a run")
            while not os.path.lexists(directory):
                directory, name = os.path.split(directory)
            check_components(directory)
        else:
            check_components(self.path)
        parent = os.open(directory, _FLAGS)
        self.stack.callback(os.close, parent)
        try:
            fd = os.open(name, _FLAGS, dir_fd=parent)
        except FileNotFoundError:
            if self.recorded is not None and self.recorded.path == self.path:
                raise NotThere(self.recorded, "missing", "the folder is not there") from None
            return parent, None
        self.stack.callback(os.close, fd)
        return parent, fd

    def _mark(self, fd: int | None) -> Mark | None:
        """Return the mark of the folder when it is this host's, or refuse it."""
        mark = read_mark(fd) if fd is not None else None
        ours = (self.host, self.choice.adopt_from)
        recorded = self.recorded
        if recorded is not None and recorded.path == self.path and fd is not None:
            if mark is not None and mark.host in ours:
                recorded = replace(recorded, host=mark.host)  # taking over may have been cut short
            data_locations.verify(fd, recorded, self.mounts)
        if mark is None:
            return None
        if mark.kind != KIND:
            raise Refusal(
                f"path {self.path}", f"it is marked as a {mark.kind} of host {mark.host}", "choose another folder"
            )
        if mark.host not in ours:
            raise Refusal(
                f"path {self.path}",
                f"it is the data location of host {mark.host}, and this host is {self.host}",
                f"if its disk was moved here or the host was renamed, take it over with adopt_from: {mark.host}",
            )
        return mark

    def _check_no_clone(self, mark: Mark | None, fd: int | None) -> None:
        """Refuse a clone of the present data location, which has the same mark: both would be this host's."""
        recorded = self.recorded
        if recorded is None or mark is None or fd is None or recorded.identity != mark.identity:
            return
        try:
            original = data_locations.open_verified(recorded, self.mounts)
        except NotThere:
            return  # the same disk, mounted in another place
        self.stack.callback(os.close, original)
        if not os.path.sameopenfile(original, fd):
            raise Refusal(
                f"path {self.path}",
                f"it is a clone of the data location {recorded.path}, which is there too",
                "unmount one of them, or choose another folder",
            )

    def _wanted(self, mark: Mark | None, nearest: int) -> DataLocation:
        identity = mark.identity if mark is not None else str(uuid.uuid4())
        filesystem = mount_table.identify(nearest, self.mounts)
        recorded = self.recorded
        if recorded is not None and recorded.identity == identity and filesystem.matches(recorded.filesystem):
            filesystem = recorded.filesystem  # a disk's device name may change at any boot
        return DataLocation(self.path, self.choice.max_bytes, self.host, filesystem, identity)

    def _sort_former(self, wanted: DataLocation) -> tuple[list[DataLocation], list[DataLocation]]:
        """Return the former locations that may hold something, and those that are known to hold nothing."""
        known = {location.identity: location for location in self.former}
        for path, mark in self.lost.items():
            if mark.kind == KIND:
                known.setdefault(mark.identity, self._found(path, mark))
        if self.recorded is not None:
            known.setdefault(self.recorded.identity, replace(self.recorded, left=time.time()))
        known.pop(wanted.identity, None)  # the present one: chosen again, or mounted in another place
        kept: list[DataLocation] = []
        empty: list[DataLocation] = []
        for location in known.values():
            holdings = data_locations.holdings([location], self.mounts)
            for error in holdings.unseen:
                self.warnings.append(f"former {error}")
            if holdings.copies:
                self.warnings.append(
                    f"the former data location {location.path} keeps {counted(len(holdings.copies))}:"
                    " they are neither moved nor deleted"
                )
            elif not holdings.unseen and _may_hold(location, holdings, self.mounts):
                self.warnings.append(f"the former data location {location.path} is not empty yet, and is remembered")
            (kept if _may_hold(location, holdings, self.mounts) else empty).append(location)
        return kept, empty

    def _found(self, path: str, mark: Mark) -> DataLocation:
        """Return the data location of this host that was found by its mark alone."""
        fd = os.open(path, _FLAGS)
        try:
            return DataLocation(
                path, 0, mark.host, mount_table.identify(fd, self.mounts), mark.identity, left=time.time()
            )
        finally:
            os.close(fd)

    def _takeovers(self, fd: int | None, mark: Mark | None, former: Sequence[DataLocation]) -> dict[str, int]:
        """Return the folders, open, that still belong to the host that is given up for this one."""
        old = self.choice.adopt_from
        folders = {}
        if fd is not None and mark is not None and mark.host == old != self.host:
            folders[self.path] = fd
        for location in former:
            if location.host == old != self.host:
                try:
                    folders[location.path] = data_locations.open_verified(location, self.mounts)
                except NotThere:
                    continue  # it has been warned of, and keeps its old host until it can be seen
                self.stack.callback(os.close, folders[location.path])
        return folders

    def _note(
        self,
        wanted: DataLocation,
        mark: Mark | None,
        fd: int | None,
        kept: Sequence[DataLocation],
        takeovers: Mapping[str, int],
    ) -> None:
        note, recorded = self.differences.note, self.recorded
        note("path", wanted.path, recorded.path if recorded is not None else None)
        note("max_bytes", wanted.max_bytes, recorded.max_bytes if recorded is not None else None)
        note("host", wanted.host, recorded.host if recorded is not None else None)
        note(f"folder {self.path}", "a directory", "a directory" if fd is not None else "absent")
        note(f"mark of {self.path}", f"data location of {self.host}", f"data location of {mark.host}" if mark else None)
        for path in takeovers:
            note(f"copies in {path}", f"of {self.host}", f"of {self.choice.adopt_from}")
        for part in _PARTS:
            note(os.path.join(self.path, os.fsdecode(part)), _PRIVATE, _state(fd, part))
        note("claims found by their marks", sorted(self.lost), [])
        note("registered claim", True, mark is not None and self._is_registered(wanted))
        note("former", sorted(one.path for one in kept), sorted(one.path for one in self.former))

    def _is_registered(self, wanted: DataLocation) -> bool:
        return self.registry.all().get(self.path) == {"kind": KIND, "name": self.path, "identity": wanted.identity}

    def _make_folder(self, parent: int) -> int:
        name = os.fsencode(os.path.basename(self.path))
        os.mkdir(name, 0o755, dir_fd=parent)
        fd = open_beneath(parent, name)
        self.stack.callback(os.close, fd)
        os.fchmod(fd, 0o755)
        os.fsync(parent)
        self.differences.act(f"made the folder {self.path}")
        return fd

    def _record(self, wanted: DataLocation, fd: int, kept: Sequence[DataLocation]) -> None:
        for path, mark in self.lost.items():
            self.registry.add(path, mark)
            self.differences.act(f"registered the {mark.kind} {path}, found by its mark")
        if not self._is_registered(wanted):
            own = read_mark(fd)
            if own is None:
                raise StowageError(f"{self.path}: its owner mark is gone again; is another program removing it?")
            self.registry.add(self.path, replace(own, name=self.path))
        # The former ones first: a run that is cut short in between must not forget where copies are.
        _write_former(self.places, kept, self.differences)
        if records.write(self.places.data_location_json, wanted.to_json()):
            self.differences.act(f"recorded {self.path} in {self.places.data_location_json}")
        moved = self.recorded is not None and self.recorded.identity == wanted.identity
        if moved and self.recorded is not None and self.recorded.path != wanted.path:
            self.registry.remove(self.recorded.path)

    def _holdings(self, wanted: DataLocation) -> Holdings:
        """Return what is in the data location after a run, or is there before one that only predicts."""
        present = data_locations.load(self.places)
        if present is None or present.identity != wanted.identity:
            return Holdings()
        return data_locations.holdings([present], self.mounts)


def lost_marks(places: Places, host: str, mounts: Sequence[Mount]) -> dict[str, Mark]:
    """Return the marks of this host, by path, when their registry is lost: the system was installed anew."""
    if not Registry(places).is_lost():
        return {}
    whole = [one for one in mounts if _is_local(one) and os.path.isdir(one.point) and not _is_part(one, mounts)]
    found: dict[tuple[str | None, int], tuple[str, Mark]] = {}
    for path, mark in find_marks(whole).items():
        if mark.host == host:
            found.setdefault((mark.filesystem_uuid, mark.inode), (path, mark))
    return dict(found.values())


def _is_part(mount: Mount, mounts: Sequence[Mount]) -> bool:
    """Return whether *mount* shows only a part of what another mount shows: a bind mount, such as a worker's."""
    return any(
        other.device == mount.device and other.root != mount.root and is_within(mount.root, other.root)
        for other in mounts
    )


# -- Clearing


def clear(places: Places, host: str, forget: Sequence[str], differences: Differences, check_mode: bool) -> Outcome:
    """Take this host's data location away; refused while the host holds, or may hold, any copy."""
    mounts = read_mounts(host)
    warnings: list[str] = []
    recorded, former, gone = _known(places, forget, mounts, differences, warnings)
    locations = [*([recorded] if recorded is not None else []), *former]
    held = {location.path: data_locations.holdings([location], mounts) for location in locations}
    found = {path: len(holdings.copies) for path, holdings in held.items() if holdings.copies}
    strangers = {path: len(holdings.strangers) for path, holdings in held.items() if holdings.strangers}
    unseen = [error for holdings in held.values() for error in holdings.unseen]
    if found:
        where = ", ".join(f"{number} below {path}" for path, number in found.items())
        raise Refusal(
            "data location",
            f"host {host} holds {counted(sum(found.values()))} ({where})",
            "delete their drives (state: absent) and wait until the copies are gone",
        )
    if strangers:
        where = ", ".join(f"{number} below {path}/drives" for path, number in strangers.items())
        raise Refusal("data location", f"what has no mark may be a copy ({where})", "look at it and move it away")
    if unseen:
        raise Refusal("data location", f"host {host} may hold copies that cannot be seen", str(unseen[0]))
    if recorded is not None:
        differences.note("path", None, recorded.path)
        differences.note("max_bytes", None, recorded.max_bytes)
    differences.note("former", [], sorted(location.path for location in former))
    if not check_mode:
        for location in locations:
            _give_up(location, mounts, Registry(places), differences)
        for location in gone:
            Registry(places).remove(location.path)
        if records.remove(places.data_location_json):
            differences.act(f"removed {places.data_location_json}")
        _write_former(places, [], differences)
    return Outcome(None, "", Holdings(), [], warnings)


# -- Both


def _known(
    places: Places,
    forget: Sequence[str],
    mounts: Sequence[Mount],
    differences: Differences,
    warnings: list[str],
) -> tuple[DataLocation | None, list[DataLocation], list[DataLocation]]:
    """Return the present data location, the former ones, and those of *forget*, which are neither any more."""
    recorded = data_locations.load(places)
    present = recorded.identity if recorded is not None else None
    former = [location for location in data_locations.load_former(places) if location.identity != present]
    gone = []
    for location in [*([recorded] if recorded is not None else []), *former]:
        if location.identity not in forget:
            continue
        try:
            os.close(data_locations.open_verified(location, mounts))
        except NotThere:
            gone.append(location)
        else:
            warnings.append(f"forget: the data location {location.path} is there, and is kept")
    differences.note("given up", sorted(location.path for location in gone), [])
    return (
        recorded if recorded not in gone else None,
        [location for location in former if location not in gone],
        gone,
    )


def _may_hold(location: DataLocation, holdings: Holdings, mounts: Sequence[Mount]) -> bool:
    if holdings.copies or holdings.strangers or holdings.unseen:
        return True
    fd = data_locations.open_verified(location, mounts)
    try:
        return bool(_names(fd, CONDEMNED))  # still to be emptied
    finally:
        os.close(fd)


def _give_up(location: DataLocation, mounts: Sequence[Mount], registry: Registry, differences: Differences) -> None:
    """Take the mark and the empty parts away; the folder itself stays."""
    fd = data_locations.open_verified(location, mounts)
    try:
        for part in reversed(_PARTS):
            try:
                os.rmdir(part, dir_fd=fd)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise
        mark = read_mark(fd)
        if mark is not None:
            release(fd, mark)
    finally:
        os.close(fd)
    registry.remove(location.path)
    differences.act(f"gave up {location.path}; the folder stays")


def _write_former(places: Places, former: Sequence[DataLocation], differences: Differences) -> None:
    value = {"locations": [location.to_json() for location in former]}
    if (former or os.path.exists(places.former_locations_json)) and records.write(places.former_locations_json, value):
        differences.act(f"remembered {len(former)} former data locations in {places.former_locations_json}")


def make_parts(fd: int, path: str, differences: Differences) -> None:
    """Make the directories inside a data location, for root alone; made now, because a full disk cannot make them."""
    for part in _PARTS:
        if _state(fd, part) == _PRIVATE:
            continue
        with contextlib.suppress(FileExistsError):  # it may be there with another owner or mode
            os.mkdir(part, 0o700, dir_fd=fd)
        inner = open_beneath(fd, part)
        try:
            os.fchown(inner, 0, 0)
            os.fchmod(inner, 0o700)
        finally:
            os.close(inner)
        differences.act(f"made {os.path.join(path, os.fsdecode(part))} root's alone")


def take_over(fd: int, path: str, old: str, new: str, differences: Differences) -> None:
    """Make the data location open at *fd*, and the copies in it, those of host *new* where they are of *old*."""
    for part in (DRIVES, PENDING):
        for name in _names(fd, part):
            try:
                child = open_beneath(fd, part + b"/" + name)
            except OSError as error:
                if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
                    continue  # no copy
                raise
            try:
                mark = read_mark(child)
                if mark is not None and (mark.kind, mark.host) == (COPY, old):
                    renew(child, mark, name=mark.name, identity=mark.identity, host=new)
            finally:
                os.close(child)
    # The location last: until then a run that was cut short is seen, and done again.
    mark = read_mark(fd)
    if mark is not None and mark.host == old:
        renew(fd, mark, name=path, identity=mark.identity, host=new)
    differences.act(f"took {path} and its copies over from {old}")


def _check_content(fd: int, path: str, adoptions: _Adoptions) -> None:
    """Refuse a folder without a mark that holds what looks like ours: it was copied, restored, or is someone's."""
    if _names(fd, DRIVES) and not adoptions.names:
        raise Refusal(
            f"path {path}",
            "its folder drives holds something, and there is no mark that it is Stowage's",
            "name the directories to take in with adopt, or choose another folder",
        )
    for part in (PENDING, CONDEMNED):
        if _names(fd, part):
            raise Refusal(
                f"path {path}",
                f"{os.fsdecode(part)} holds something, and there is no mark that it is Stowage's",
                "look at it and move it away, or choose another folder",
            )


def _check_marks_possible(fd: int, path: str, mount: Mount) -> None:
    try:
        os.getxattr(fd, XATTR)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise Refusal(
                f"path {path}",
                f"its filesystem ({mount.fstype}) cannot hold an owner mark (trusted extended attribute)",
                "use ext4, XFS or btrfs",
            ) from error
        if error.errno != errno.ENODATA:
            raise


class _Adoptions:
    """Directories below ``drives/`` that are to become copies, each named by the operator."""

    def __init__(self, places: Places, choice: Choice, fd: int | None) -> None:
        self._path = drive_records.adopted_path(places)
        self._host = choice.host
        self._hosts = (choice.host, choice.adopt_from)
        self._reserved = drive_records.load_adopted(places)
        self._identities: dict[str, str] = {}
        self._marks: dict[str, Mark | None] = {}
        self._undeclared: dict[str, str] = {}
        self.missing: list[str] = []
        for name in choice.adopt:
            workspace, drive = split_copy_name(name, "adopt")
            mark = self._look(fd, name)
            if name in self._marks:
                declared = {one.name: one for one in drive_records.load(places, workspace) or []}.get(drive)
                self._identities[name] = self._identity(name, mark, declared)

    @property
    def names(self) -> list[str]:
        return sorted(self._marks)

    def _look(self, fd: int | None, name: str) -> Mark | None:
        try:
            if fd is None:
                raise FileNotFoundError
            child = open_beneath(fd, DRIVES + b"/" + os.fsencode(name))
        except FileNotFoundError:
            self.missing.append(f"adopt: there is no directory {name} in drives; take it off the list")
            return None
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
                raise Refusal(
                    f"adopt {name}", "it is not a directory on the data location's disk", "move it there"
                ) from error
            raise
        try:
            mark = read_mark(child)
        finally:
            os.close(child)
        if mark is not None and (mark.kind != COPY or mark.host not in self._hosts):
            raise Refusal(
                f"adopt {name}",
                f"it is marked as a {mark.kind} of host {mark.host}",
                f"if the disk was moved here, take all of it over with adopt_from: {mark.host}",
            )
        self._marks[name] = mark
        return mark

    def _identity(self, name: str, mark: Mark | None, declared: drive_records.Drive | None) -> str:
        if declared is None:
            identity = mark.identity if mark is not None else self._reserved.get(name) or str(uuid.uuid4())
            self._undeclared[name] = identity
            return identity
        if not declared.placed or declared.absent:
            if mark is not None and mark.identity == declared.identity:
                return mark.identity
            what = "is to be deleted (state: absent)" if declared.absent else "is not kept on data locations"
            raise Refusal(f"adopt {name}", f"its drive {what}", "take it off the list")
        return declared.identity

    def note(self, differences: Differences) -> None:
        for name in self.names:
            differences.note(f"copy {name}", "adopted", "adopted" if self._is_done(name) else self._before(name))

    def _is_done(self, name: str) -> bool:
        mark, identity = self._marks[name], self._identities[name]
        marked = mark is not None and (mark.name, mark.host, mark.identity) == (name, self._host, identity)
        return marked and (name not in self._undeclared or self._reserved.get(name) == identity)

    def _before(self, name: str) -> str:
        return "without a mark" if self._marks[name] is None else "of another drive or host"

    def apply(self, fd: int, differences: Differences) -> None:
        for name in self.names:
            if self._is_done(name):
                continue
            held = copies.take_lock(fd, name)  # also makes the lock's file, which a full disk could not
            try:
                with copies.opened(fd, DRIVES + b"/" + os.fsencode(name)) as child:
                    mark = read_mark(child)
                    if mark is not None:
                        renew(child, mark, name=name, identity=self._identities[name], host=self._host)
                    else:
                        claim(child, COPY, name, self._identities[name], self._host)
            finally:
                os.close(held)
            differences.act(f"took {name} in as a copy")
        if self._undeclared:
            drive_records.write_adopted(self._path, {**self._reserved, **self._undeclared})


def read_mounts(host: str) -> list[Mount]:
    """Return the mount table, or say that the host cannot tell what it has mounted."""
    try:
        return mount_table.read()
    except FileNotFoundError:
        data_locations.check_reported(host, [])
        raise


def _fstab() -> str:
    try:
        with open("/etc/fstab", encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def _disk(mount: Mount, mounts: Sequence[Mount]) -> tuple[str, bool]:
    """Return the word for the disk under *mount*, and whether it is the system disk."""
    local = [each for each in mounts if not mount_table.is_shared(each.fstype)]
    for filesystem in filesystems.survey(local, Disks.read()):
        if filesystem.mount.device == mount.device:
            return filesystem.kind, filesystem.system_disk
    return "", False


def _names(fd: int, part: bytes) -> list[bytes]:
    try:
        inner = open_beneath(fd, part)
    except FileNotFoundError:
        return []
    try:
        return sorted(os.fsencode(name) for name in os.listdir(inner))
    finally:
        os.close(inner)


def _state(fd: int | None, part: bytes) -> str:
    """Return owner and mode of a directory inside the data location."""
    if fd is None:
        return "absent"
    try:
        inner = open_beneath(fd, part)
    except FileNotFoundError:
        return "absent"
    try:
        status = os.fstat(inner)
    finally:
        os.close(inner)
    return f"{status.st_uid}:{status.st_gid} {stat.S_IMODE(status.st_mode):04o}"


def counted(number: int) -> str:
    return "1 copy" if number == 1 else f"{number} copies"
