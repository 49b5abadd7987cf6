# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a drive is on this host, for a worker that is to have it: whether it can, what it waits for, and taking it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import claims, selinux
from .. import mounts as mount_table
from ..answers import check_answers
from ..copies import fills
from ..copies import present as copies
from ..data_location import locations as data_locations
from ..data_location.locations import DataLocation
from ..drives import grants, host_paths, permissions, reasons
from ..drives import recorded as drive_records
from ..drives.declared import ON_ONE_MACHINE, PLACED, SCRATCH, SHARED
from ..drives.permissions import Applied, Permissions
from ..drives.recorded import Drive
from ..drives.refs import DriveRef
from ..errors import Refusal, printable
from ..locks import network_lock
from ..mounts import Mount, is_shared
from ..network_mounts.records import BOUND, PENDING, MountRecord, find_mount
from ..owner import Registry
from ..paths import is_within
from ..places import Places
from ..services.lasting_mounts import LastingMounts
from ..syscalls import DIRECTORY
from . import pinning
from .pins import READ_ONLY, Pin, Use


class Look(NamedTuple):
    """What stands between a worker and its drive."""

    waits: str = ""
    """What it has to wait for; empty for nothing."""
    makes: str = ""
    """What is made when it is taken; empty for nothing."""
    starts: str = ""
    """The unit that has to be started so that the wait comes to an end; empty for none."""


class Sight:
    """The mount table, and which mounts the host is to have, as they are now: read once for all drives of a worker.

    What is mounted for good is judged by a new one right before.
    """

    def __init__(self) -> None:
        self.mounts: Sequence[Mount] = mount_table.read()
        self.lasting = LastingMounts.read()

    def mount_of(self, fd: int) -> Mount:
        """Return the mount that *fd* was opened through; where looking has mounted it, the table is read anew."""
        self.mounts = mount_table.with_mount_of(fd, self.mounts)
        return mount_table.of_fd(fd, self.mounts)


@dataclass(frozen=True)
class Source:
    """A source of a drive as a worker of this host is to have it. Its defaults are filled in."""

    places: Places
    host: str
    drive: Drive
    ref: DriveRef
    reader: int = -1
    """Who alone reaches its mount beside root, as a number; below 0 for everybody who knows the run's name."""

    @property
    def name(self) -> str:
        return f"drive {self.drive.name}"

    @property
    def declared(self) -> dict[str, Any]:
        source: dict[str, Any] = (self.drive.spec or {})["sources"][self.ref.source_index]
        return source

    @property
    def scope(self) -> str:
        return str(self.declared["node_scope"])

    @property
    def read_only(self) -> bool:
        return self.ref.mode == READ_ONLY

    @property
    def is_remote(self) -> bool:
        """Whether it is on another machine, and reached through a network mount."""
        return self.scope == ON_ONE_MACHINE and self.declared["node"] != self.host

    @property
    def network_mount(self) -> MountRecord | None:
        """The network mount that it is reached through; None where nobody has begun to make one."""
        key = (self.drive.workspace, self.drive.name, self.ref.source_index)
        return find_mount(self.places, key) if self.is_remote else None

    @property
    def path(self) -> str:
        """Where it is on this host; empty for a copy, or while it is not mounted here."""
        if self.is_remote:
            mount = self.network_mount
            return mount.path if mount is not None else ""
        return "" if self.scope == PLACED else str(self.declared["path"])

    @property
    def use(self) -> Use:
        return Use(
            self.drive.workspace,
            self.drive.name,
            self.ref.source_index,
            self.path,
            self.drive.folder(self.ref.sub_path),
            self.ref.mode,
            self.ref.mount_path,
        )

    # -- Looking

    def look(self, sight: Sight) -> Look:
        """Return what stands between the worker and the drive; nothing is made.

        :raises Refusal: when the drive cannot be had on this host
        """
        eligible = self.declared["eligible_nodes"]
        if eligible and self.host not in eligible:
            raise reasons.not_usable(self.drive.name, self.ref.source_index, self.host).refusal()
        if self.scope == PLACED:
            return self._look_at_copy()
        if self.is_remote:
            wait = self._wait_for_mount()
            if wait:
                return Look(wait)
        with self._found(sight) as found:
            if found.missing:
                self._check_missing(found, sight)
                self._check_sub_path_of_new()
                return Look(makes=f"the directory {printable(found.path)}")
            self._check_found(found, sight)
            os.close(self._open_found(found, sight))
        return Look()

    def _wait_for_mount(self) -> str:
        """Return why the worker has to wait for the network mount, as Astraeus says it; empty when it is there."""
        mount, node = self.network_mount, self.declared["node"]
        if (self.drive.spec or {})["transport"] == "Local":
            raise reasons.only_local(self.drive.name, self.ref.source_index, node).refusal()
        if mount is not None and mount.state == BOUND and (self.read_only or not mount.read_only):
            return ""
        state = mount.state if mount is not None else PENDING
        why = "it is mounted read-only" if state == BOUND else mount.reason if mount is not None else ""
        return f"waiting for {self.drive.name} to be mounted from {node} ({state})" + (f": {why}" if why else "")

    def _look_at_copy(self) -> Look:
        with self._copy() as (location_fd, location, drive, folder):
            fill = fills.look(self.places, location_fd, location, drive)
            if not fill.usable:
                return Look(fill.message, starts=fills.unit(drive.copy_name) if fill.state == fills.WANTED else "")
            if folder is None:
                self._check_sub_path_of_new()
                return Look(makes=f"the copy {drive.copy_name}")
            os.close(self._open_sub_path(folder))
            return Look()

    @contextmanager
    def _copy(self) -> Iterator[tuple[int, DataLocation, Drive, int | None]]:
        """Open the data location, and the folder of the copy in it that workers see; None when it is not there."""
        location = self._location()
        name = self.drive.copy_name
        drive = drive_records.find_placed(self.places, name, self.host)
        location_fd = data_locations.open_verified(location)
        try:
            with copies.existing(location_fd, location, name, drive.identity, drive.path) as folder:
                yield location_fd, location, drive, folder
        finally:
            os.close(location_fd)

    def _location(self) -> DataLocation:
        location = data_locations.load(self.places)
        if location is None:
            raise reasons.choose_data_location(self.host).refusal()
        return location

    def _open_sub_path(self, folder: int) -> int:
        return pinning.open_folder(folder, self.name, self.ref.sub_path)

    def _check_sub_path_of_new(self) -> None:
        if self.ref.sub_path:
            rule = f"the folder {printable(self.ref.sub_path)} in it is not there: the drive is still to be made here"
            raise Refusal(self.name, rule, "make it first, by a run that has the whole drive")

    # -- Directories of this host

    @contextmanager
    def _found(self, sight: Sight) -> Iterator[host_paths.Found]:
        """Open the directory as far as it is there. Scratch is made: so it is under no symbolic link at all."""
        # One that is on a dead server must not hold up more than a child.
        check_answers([(self.name, self.path)])
        with host_paths.opened(self.path, self.name, links=self.scope != SCRATCH) as found:
            mount = sight.mount_of(found.fd)
            if self.scope == SHARED and not is_shared(mount.fstype):
                raise reasons.not_shared_here(self.drive.name, self.path).refusal()
            if not self.is_remote:
                sight.lasting.check(self.name, found.path, sight.mounts)
            yield found

    def _check_missing(self, found: host_paths.Found, sight: Sight) -> None:
        if self.is_remote:
            raise Refusal(self.name, f"{self.path} should be its network mount, and is not there", "mount it anew")
        self._check_apart(found.path, sight)
        granted = grants.load(self.places, self.drive.workspace)
        grants.check_place(self.drive, self.path, granted, found.path)
        permissions.check_makeable(self.drive, self.path, granted, found, self._new)

    def _check_found(self, found: host_paths.Found, sight: Sight) -> None:
        """Refuse what a worker may not have."""
        if self.is_remote:
            self._check_network_mount(found, sight)
        else:
            grants.check(self.places, self.drive, self.ref.source_index, found.fd)
        self._check_apart(found.path, sight)

    def _check_network_mount(self, found: host_paths.Found, sight: Sight) -> None:
        """Refuse what is at the place of the network mount and is not that mount, as an empty directory under it."""
        record, mount = self.network_mount, sight.mount_of(found.fd)
        if record is None or mount.point != record.path:
            raise Refusal(self.name, f"{self.path} should be its network mount, and nothing is mounted there")
        if mount.source != record.device:
            rule = f"{self.path} should be {record.device}, and {printable(mount.source)} is mounted there"
            raise Refusal(self.name, rule, "unmount that, and prepare the run again")

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Open the directory on this host as a worker would have it; nothing is made.

        :raises Refusal: when it is not there, or a worker may not have it
        """
        sight = Sight()
        with self._found(sight) as found:
            if found.missing:
                rule = f"its source {printable(found.path)} is not there"
                raise Refusal(self.name, rule, "make it, or mount its disk")
            self._check_found(found, sight)
            fd = self._open_found(found, sight)
            try:
                yield fd
            finally:
                os.close(fd)

    def _open_found(self, found: host_paths.Found, sight: Sight) -> int:
        """Open the folder that the worker is to have."""
        fd = self._open_sub_path(found.fd)
        try:
            self._check_nothing_below(os.readlink(f"/proc/self/fd/{fd}"), sight)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _check_apart(self, path: str, sight: Sight) -> None:
        """Refuse what leads to others' copies, runs and volumes, to what is protected, or to Stowage's own."""
        taken = claims.around_drives(self.places, Registry(self.places).all())
        if self.is_remote:
            taken = {other: what for other, what in taken.items() if not is_within(path, other)}
        remedy = "choose a directory apart from it"
        claims.check_apart(self.name, path, taken, sight.mounts, remedy)
        claims.check_apart(self.name, path, claims.of_root(self.places), sight.mounts, remedy, but=("is inside",))

    def _check_nothing_below(self, path: str, sight: Sight) -> None:
        """A worker would have an empty directory where something is mounted below, and write into that."""
        for mount in sight.mounts:
            if mount.point != path and is_within(mount.point, path):
                rule = f"{printable(mount.point)} is mounted below {printable(path)}, and a worker would not see it"
                raise Refusal(self.name, rule, "declare a drive for it, and one apart from it")

    @property
    def _permissions(self) -> Permissions:
        return Permissions.of(self.drive.spec or {})

    @property
    def _new(self) -> Permissions | None:
        """With which owner and mode it is made; None when it is not."""
        wanted = self._permissions
        return wanted.of_new if self.scope == SCRATCH or wanted.create else None

    # -- Taking

    def take(
        self, run: str, worker: str, seconds: float, tell: Callable[[Applied], object] = lambda _applied: None
    ) -> Pin:
        """Mount it for a worker, as reserved for *seconds*; what is missing and may be made is made.

        :param tell: called with what of it had another owner or mode than is declared, and was changed
        """
        if self.scope == PLACED:
            return pinning.take(
                self.places,
                self._location(),
                self.drive.copy_name,
                sub_path=self.ref.sub_path,
                run=run,
                worker=worker,
                read_only=self.read_only,
                seconds=seconds,
                target=self.ref.mount_path,
                tell=tell,
                reader=self.reader,
            )
        # Nobody takes a network mount away between the look at it and the pin that keeps it.
        with network_lock(self.places) if self.is_remote else nullcontext():
            return self._taken(run, worker, seconds, tell)

    def _taken(self, run: str, worker: str, seconds: float, tell: Callable[[Applied], object]) -> Pin:
        wait = self._wait_for_mount() if self.is_remote else ""
        if wait:
            raise Refusal(self.name, wait, "prepare the run again")
        sight = Sight()
        with self._found(sight) as found:
            if not found.missing:
                return self._hold(found, sight, run, worker, seconds, tell)
            self._check_missing(found, sight)
            with suppress(permissions.MadeMeanwhile):  # for another worker, as a rule
                self._make()
        # Opened anew, whoever has made it: what is mounted is what was checked.
        sight = Sight()
        with self._found(sight) as found:
            if found.missing:
                raise Refusal(self.name, f"{self.path} is not there any more", "run again")
            return self._hold(found, sight, run, worker, seconds, tell)

    def _hold(
        self,
        found: host_paths.Found,
        sight: Sight,
        run: str,
        worker: str,
        seconds: float,
        tell: Callable[[Applied], object],
    ) -> Pin:
        self._check_found(found, sight)
        applied = self._give(found)
        if applied is not None:
            tell(applied)
            permissions.check_unmarked(self.drive, self.path, applied)
            sight = Sight()  # that may have taken long
        fd = self._open_found(found, sight)
        try:
            return pinning.hold(self.places, self.use, fd, run=run, worker=worker, seconds=seconds, reader=self.reader)
        finally:
            os.close(fd)

    def _make(self) -> None:
        granted = grants.load(self.places, self.drive.workspace)
        with permissions.opened_source(self.drive, self.path, granted, self._new) as (fd, made):
            if made:
                selinux.label(fd)

    def _give(self, found: host_paths.Found, predict: bool = False) -> Applied | None:
        """Give the source the owner and mode that are declared for one that is there already; None for nothing."""
        if self.is_remote:
            return None
        fd = os.open(".", DIRECTORY, dir_fd=found.fd)
        try:
            return permissions.apply_declared(fd, self.drive, self.path, predict=predict)
        finally:
            os.close(fd)

    # -- Predicting

    def foretell(self, sight: Sight) -> Applied | None:
        """Return what of the drive has another owner or mode, and would be changed when it is taken; None for nothing.

        It is gone through as a whole where that is declared.
        """
        if not self._permissions.apply:
            return None
        if self.scope == PLACED:
            with self._copy() as (_location_fd, _location, drive, folder):
                if folder is None:
                    return None
                return permissions.apply_declared(folder, drive, drive.copy_name, predict=True)
        with self._found(sight) as found:
            applied = None if found.missing else self._give(found, predict=True)
        if applied is not None:
            permissions.check_unmarked(self.drive, self.path, applied)
        return applied
