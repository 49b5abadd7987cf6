# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choosing, changing and clearing the data location of this host.

Each operation finds out everything first, notes what differs, and only then acts, so that a prediction is what a run
does. What is acted on is held open: no path is looked up twice.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .. import claims, host_name, records
from .. import mounts as mount_table
from ..differences import Differences
from ..drives.recorded import Holdings
from ..errors import Refusal, StowageError
from ..locks import location_lock
from ..owner import Mark, Registry, claim, read_mark
from ..paths import check_path, resolve
from ..places import Places
from ..services.lasting_mounts import LastingMounts
from . import locations as data_locations
from .adoption import ADOPTED, Adoption, find_adoptions, reserve, take_in, take_over
from .folder import Folder, give_up, make_part
from .former import counted, find_unrecorded, is_being_emptied, load_known, sort_former, write_former
from .locations import KIND, DataLocation, NotThere
from .place import check_place, disk_under, read_mounts

SYSTEM_DISK_WARNING = "this is the system disk: drive copies share its space with the operating system"


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


def choose(places: Places, choice: Choice, differences: Differences) -> Outcome:
    """Make *choice* the data location of this host; a change leaves the copies of the former one where they are."""
    with _alone(places, differences), contextlib.ExitStack() as stack:
        return _Choosing(places, choice, differences, stack).run()


def _alone(places: Places, differences: Differences) -> contextlib.AbstractContextManager[None]:
    """Keep everybody from making a copy between the look at what there is and the change."""
    return contextlib.nullcontext() if differences.check_mode else location_lock(places, alone=True)


class _Choosing:
    """One choice: what is there, what is wanted, and the way from one to the other."""

    def __init__(self, places: Places, choice: Choice, differences: Differences, stack: contextlib.ExitStack) -> None:
        self.places = places
        self.choice = choice
        self.host = choice.host
        self.differences = differences
        self.stack = stack
        self.registry = Registry(places)
        self.path = resolve(check_path(choice.path, "path"))
        os.path.exists(os.path.join(self.path, "."))  # this may have a disk mounted, so before the table is read
        self.mounts = read_mounts(choice.host)
        self.warnings: list[str] = []
        self.known = load_known(places, choice.forget, self.mounts, differences)
        self.recorded = self.known.present
        self.claimed = claims.read(places, self.host, self.mounts, choice.forget)
        self.warnings.extend(self.claimed.warnings)
        self.claims = self.claimed.entries

    def run(self) -> Outcome:
        choice = self.choice
        mount = check_place(self.path, self.host, self.mounts, LastingMounts.read())
        self._check_host()
        self._check_apart()
        folder = Folder.open(self.path, self.differences.check_mode, self.warnings, self.stack)
        self._check_recorded_is_there(folder)
        folder.check_marks_possible(mount)
        folder = replace(folder, mark=self._mark(folder.fd))
        self._check_no_clone(folder)
        adoptions = find_adoptions(self.places, choice.adopt, self.host, choice.adopt_from, folder.fd, self.warnings)
        folder.check_content(bool(adoptions))
        self._check_taken_over(folder, bool(adoptions))
        disk, on_system_disk = disk_under(mount, self.mounts)
        if on_system_disk:
            self.warnings.append(SYSTEM_DISK_WARNING)

        wanted = self._wanted(folder)
        unrecorded = find_unrecorded(self.claims, self.known, self.host, self.mounts)
        kept, empty = sort_former(self.known, unrecorded, wanted, self.mounts, self.warnings)
        takeovers = self._takeovers(folder, kept)
        if choice.adopt_from and not takeovers and not adoptions:
            rule = f"nothing here is host {choice.adopt_from}'s any more, and another disk of its might be taken over"
            self.warnings.append(f"adopt_from: {rule}; take it out")
        kept = [replace(location, host=self.host) if location.path in takeovers else location for location in kept]
        self._note(wanted, folder, kept, takeovers)
        for adoption in adoptions:
            self.differences.note(f"copy {adoption.name}", ADOPTED, adoption.state)
        self._act(wanted, folder, kept, empty, takeovers, adoptions)
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
            raise host_name.renamed(name, "it was chosen", recorded.host, self.host)
        if recorded.path != self.path:
            raise Refusal(
                name, f"it still belongs to {old}", "take it over where it is first, and change it afterwards"
            )

    def _check_apart(self) -> None:
        """Refuse a folder that overlaps anything else that is taken on this host."""
        own = {location.path for location in self.known.all}
        own.update(path for path, each in self.claims.items() if (path, each["kind"]) == (self.path, KIND))
        others = {
            **claims.of_stowage(self.places, self.claims, self.claimed.unseen),
            **dict.fromkeys(own, "this host's data location"),
        }
        # The present one may be chosen again, and one that is given up is in nobody's way.
        for path in (*(own & {self.path}), *(location.path for location in self.known.gone)):
            others.pop(path, None)
        taken = {**claims.of_layout(self.places), **claims.of_drives(self.places, self.host), **others}
        claims.check_apart(f"path {self.path}", self.path, taken, self.mounts, "choose a folder apart from it")
        around = claims.owner_around(self.path, self.mounts)
        if around:
            raise Refusal(f"path {self.path}", f"it is inside {around}", "choose a folder apart from it")

    def _check_recorded_is_there(self, folder: Folder) -> None:
        if folder.fd is None and self.recorded is not None and self.recorded.path == self.path:
            raise NotThere(self.recorded, "missing", "the folder is not there")

    def _mark(self, fd: int | None) -> Mark | None:
        """Return the mark of the folder when it is this host's, or refuse it."""
        if fd is None:
            return None
        mark = read_mark(fd)
        ours = (self.host, self.choice.adopt_from)
        recorded = self.recorded
        if recorded is not None and recorded.path == self.path:
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

    def _check_no_clone(self, folder: Folder) -> None:
        """Refuse a clone of the present data location, which has the same mark: both would be this host's."""
        recorded = self.recorded
        if recorded is None or folder.mark is None or recorded.identity != folder.mark.identity:
            return
        try:
            original = data_locations.open_verified(recorded, self.mounts)
        except NotThere:
            return  # the same disk, mounted in another place
        self.stack.callback(os.close, original)
        if not os.path.sameopenfile(original, folder.nearest):
            raise Refusal(
                f"path {self.path}",
                f"it is a clone of the data location {recorded.path}, which is there too",
                "unmount one of them, or choose another folder",
            )

    def _check_taken_over(self, folder: Folder, adopting: bool) -> None:
        """Refuse to begin an empty data location where another host's was to be found: its disk is not mounted."""
        old = self.choice.adopt_from
        to_be_made = self.differences.check_mode and not os.path.lexists(os.path.dirname(self.path))
        if old and folder.mark is None and self.recorded is None and not adopting and not to_be_made:
            raise Refusal(
                f"path {self.path}",
                f"it is not the data location of host {old}, which adopt_from is to take over",
                "mount its disk, or take adopt_from out",
            )

    def _wanted(self, folder: Folder) -> DataLocation:
        identity = folder.mark.identity if folder.mark is not None else str(uuid.uuid4())
        filesystem = mount_table.identify(folder.nearest, self.mounts)
        recorded = self.recorded
        if recorded is not None and recorded.identity == identity and filesystem.matches(recorded.filesystem):
            filesystem = recorded.filesystem  # a disk's device name may change at any boot
        return DataLocation(self.path, self.choice.max_bytes, self.host, filesystem, identity)

    def _takeovers(self, folder: Folder, former: Sequence[DataLocation]) -> dict[str, int]:
        """Return the folders, open, that still belong to the host that is given up for this one."""
        old = self.choice.adopt_from
        folders = {}
        if folder.mark is not None and folder.mark.host == old != self.host:
            folders[self.path] = folder.nearest
        for location in former:
            if location.host == old != self.host:
                try:
                    folders[location.path] = data_locations.open_verified(location, self.mounts)
                except NotThere:
                    continue  # it has been warned of, and keeps its old host until it can be seen
                self.stack.callback(os.close, folders[location.path])
        return folders

    def _note(
        self, wanted: DataLocation, folder: Folder, kept: Sequence[DataLocation], takeovers: Mapping[str, int]
    ) -> None:
        note, recorded, mark = self.differences.note, self.recorded, folder.mark
        note("path", wanted.path, recorded.path if recorded is not None else None)
        note("max_bytes", wanted.max_bytes, recorded.max_bytes if recorded is not None else None)
        note("host", wanted.host, recorded.host if recorded is not None else None)
        note(f"folder {self.path}", "a directory", "a directory" if folder.fd is not None else "absent")
        note(f"mark of {self.path}", f"data location of {self.host}", f"data location of {mark.host}" if mark else None)
        for path in takeovers:
            note(f"copies in {path}", f"of {self.host}", f"of {self.choice.adopt_from}")
        folder.note_parts(self.differences)
        self.claimed.note(self.differences)
        note("registered claim", True, mark is not None and self._is_registered(wanted))
        note("former", sorted(one.path for one in kept), sorted(one.path for one in self.known.former))

    def _is_registered(self, wanted: DataLocation) -> bool:
        found = self.claims.get(self.path, {})
        claim = {"kind": KIND, "name": self.path, "identity": wanted.identity, "host": self.host}
        return claim == {key: found.get(key) for key in claim}

    def _act(
        self,
        wanted: DataLocation,
        folder: Folder,
        kept: Sequence[DataLocation],
        empty: Sequence[DataLocation],
        takeovers: Mapping[str, int],
        adoptions: Sequence[Adoption],
    ) -> None:
        """Go from what is to what is wanted, or predict it: in check mode nothing is done and no folder made."""
        do = self.differences.do
        fds = [folder.fd] if folder.fd is not None else []

        def inside(work: Callable[[int], object]) -> Callable[[], object]:
            return lambda: work(fds[0])

        if not fds:
            do(f"make directory {self.path}", lambda: fds.append(folder.make(self.stack)))
        for path, taken in takeovers.items():
            old = self.choice.adopt_from
            do(f"take {path} and its copies over from {old}", partial(take_over, taken, path, old, self.host))
        if folder.mark is None:
            mark = partial(claim, kind=KIND, name=self.path, identity=wanted.identity, host=self.host)
            do(f"mark {self.path} as the data location of {self.host}", inside(mark))
        for part in folder.missing_parts():
            path = os.path.join(self.path, os.fsdecode(part))
            do(f"make {path} root's alone", inside(partial(make_part, part)))
        self._rebuild_registry(empty)
        if not self._is_registered(wanted):
            do(f"register {self.path}", inside(partial(self._register, wanted)))
        # The former ones first: a run that is cut short in between must not forget where copies are.
        write_former(self.places, kept, self.differences)
        data_locations.write(self.places.data_location_json, wanted.to_json(), self.differences)
        for adoption in adoptions:
            if adoption.state != ADOPTED:
                do(f"take {adoption.name} in as a copy", inside(partial(take_in, adoption, self.host)))
        if not self.differences.check_mode:
            reserve(self.places, adoptions)

    def _rebuild_registry(self, empty: Sequence[DataLocation]) -> None:
        """Register what was found by its mark, and take out what is given up."""
        do, registry = self.differences.do, self.registry
        self.claimed.register(registry, self.differences)
        for location in empty:
            do(f"give up {location.path}, and leave the folder", partial(give_up, location, self.mounts, registry))
        for location in self.known.gone:
            if location.path not in self.claimed.dropped:
                do(f"give up {location.path}, whose disk is gone", partial(registry.remove, location.path))

    def _register(self, wanted: DataLocation, fd: int) -> None:
        own = read_mark(fd)
        if own is None:
            raise StowageError(f"{self.path}: its owner mark is gone again; is another program removing it?")
        self.registry.add(self.path, replace(own, name=self.path))
        recorded = self.recorded
        if recorded is not None and recorded.identity == wanted.identity and recorded.path != wanted.path:
            self.registry.remove(recorded.path)

    def _holdings(self, wanted: DataLocation) -> Holdings:
        """Return what is in the data location after a run, or is there before one that only predicts."""
        present = data_locations.load(self.places)
        if present is None or present.identity != wanted.identity:
            return Holdings()
        return data_locations.holdings([present], self.mounts)


def clear(places: Places, host: str, forget: Sequence[str], differences: Differences) -> Outcome:
    """Take this host's data location away; refused while the host holds, or may hold, any copy."""
    with _alone(places, differences):
        return _clear(places, host, forget, differences)


def _clear(places: Places, host: str, forget: Sequence[str], differences: Differences) -> Outcome:
    mounts = read_mounts(host)
    known = load_known(places, forget, mounts, differences)
    claimed = claims.read(places, host, mounts, forget)
    warnings = list(claimed.warnings)
    _check_holds_nothing(host, {one.path: data_locations.holdings([one], mounts) for one in known.all})
    for location in known.all:
        if is_being_emptied(location, mounts):
            raise Refusal(
                "data location", f"{location.path} is still being emptied by stowaged", "clear it when that is done"
            )
    if known.present is not None:
        differences.note("path", None, known.present.path)
        differences.note("max_bytes", None, known.present.max_bytes)
    differences.note("former", [], sorted(location.path for location in known.former))
    registry = Registry(places)
    for location in known.all:
        differences.do(f"give up {location.path}, and leave the folder", partial(give_up, location, mounts, registry))
    for location in known.gone:
        if location.path not in claimed.dropped:
            differences.do(f"give up {location.path}, whose disk is gone", partial(registry.remove, location.path))
    claimed.note(differences)
    claimed.register(registry, differences)
    if os.path.lexists(places.data_location_json):
        path = places.data_location_json
        differences.do(f"remove {path}", partial(records.remove, path))
    write_former(places, [], differences)
    return Outcome(None, "", Holdings(), [], warnings)


def _check_holds_nothing(host: str, held: Mapping[str, Holdings]) -> None:
    found = {path: len(holdings.copies) for path, holdings in held.items() if holdings.copies}
    if found:
        where = ", ".join(f"{number} below {path}" for path, number in found.items())
        raise Refusal(
            "data location",
            f"host {host} holds {counted(sum(found.values()))} ({where})",
            "delete their drives (state: absent) and wait until the copies are gone",
        )
    strangers = {path: len(holdings.strangers) for path, holdings in held.items() if holdings.strangers}
    if strangers:
        where = ", ".join(f"{number} below {path}/drives" for path, number in strangers.items())
        raise Refusal("data location", f"what has no mark may be a copy ({where})", "look at it and move it away")
    for holdings in held.values():
        for error in holdings.unseen:
            raise Refusal("data location", f"host {host} may hold copies that cannot be seen", str(error))
