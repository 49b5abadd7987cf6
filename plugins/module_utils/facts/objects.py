# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that Stowage has on a host, read for a report: what cannot be read is a problem to tell, not an end.

Nothing is asked of a filesystem that other hosts see too; what the daemon last found out about it is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from .. import claims, events, records
from ..copies import fills
from ..data_location import locations as data_locations
from ..data_location.locations import Contents, DataLocation
from ..drives import recorded as drive_records
from ..drives.recorded import Drive
from ..errors import StowageError, one_line, printable
from ..gate import recorded as gate
from ..mounts import Mount, follow, is_shared
from ..network_mounts import records as network_records
from ..network_mounts.records import ExportRecord, MountRecord
from ..owner import Registry
from ..places import Places
from ..relocation import recorded as relocations
from ..runs import pins
from ..runs.pins import Pin
from ..services import daemon_cycle
from ..sizes import Space
from ..tiers import found as tiers
from ..volumes import recorded as volumes
from ..volumes.recorded import Volume

Report = dict[str, Any]
Value = TypeVar("Value")

_MEASURED = ("bytes", "files", "complete", "measured")
"""A measurement; null for what has not been measured, or is measured by another host."""
_OF_TIER = (
    *("allocated", *_MEASURED),
    *("buckets", "written_bytes", "keys", "full", "unaccounted_bytes", "filling", "settings_differ", "writable"),
)
"""What the daemon knows of a tier."""
_EVENTS = 20
"""How many of the last events are told."""
_MOST_ENTRIES = 50
"""How many users and teams are reported: a host may have thousands."""
_UNITS = ("/etc/systemd/system/stowaged.service", "/usr/lib/systemd/system/stowaged.service")


class Objects:
    """Reads the objects of one host."""

    def __init__(self, places: Places, mounts: Sequence[Mount], units: Sequence[str] = _UNITS) -> None:
        self._places = places
        self._mounts = mounts
        self._units = units
        self.problems: list[str] = []
        """What could not be read, or is not as it was declared: one line each."""
        self._taken: dict[str, str] | None = None

    def read(self) -> Report:
        """Return all objects by kind; see RETURN of the module ``storage_facts``."""
        location = self._try(lambda: data_locations.load(self._places), None)
        former: list[DataLocation] = self._try(lambda: data_locations.load_former(self._places), [])
        found: Contents | None = None
        report: Report | None = None
        if location is not None:
            report, found = self._data_location(location)
        copies = self._copies(found)
        if report is not None:
            report["used_bytes"] = _sum(copies)
        leases = self._leases()
        return {
            "layout": self._layout(),
            "data_location": report,
            "former_data_locations": [{"path": one.path, "left": one.left} for one in former],
            "drives": self._drives(pins.used_by(leases)),
            "copies": copies,
            "fills": self._fills(),
            "accounts": self._accounts(),
            "network_mounts": self._network_mounts(),
            "network_exports": self._network_exports(),
            "tiers": self._tiers(),
            "volumes": self._volumes(pins.users_of_volumes(leases)),
            "relocations": self._relocations(),
            "leases": [self._lease(pin) for pin in leases],
            "eviction": self._eviction(),
            "events": self._events(),
            "gate": gate.read(self._places).to_json(),
            "daemon": self._daemon(),
        }

    def in_the_way(self, folder: str) -> str | None:
        """Return what is taken on this host and would be in the way of a data location at *folder*."""
        if self._taken is None:
            nothing: dict[str, str] = {}
            self._taken = self._try(self._read_taken, nothing)
        # The folder of a data location may be chosen again.
        again = self._taken.get(folder, "").endswith("data location")
        taken = {path: what for path, what in self._taken.items() if not (again and path == folder)}
        found = claims.overlapping(folder, taken, self._mounts)
        return None if found is None else found[1].replace("the storage layout's ", "").rstrip(",")

    def _read_taken(self) -> dict[str, str]:
        lists = [drive_records.record_path(self._places, one) for one in drive_records.workspaces(self._places)]
        hosts = {str((records.read(path) or {}).get("host")) for path in lists}
        taken = claims.of_layout(self._places)
        for host in hosts:
            taken.update(claims.of_drives(self._places, host))
        return {**taken, **claims.of_stowage(self._places, Registry(self._places).all())}

    def _try(self, read: Callable[[], Value], otherwise: Value) -> Value:
        try:
            return read()
        except StowageError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(one_line(error))
        return otherwise

    def _record(self, path: str) -> Mapping[str, Any]:
        """Return a record, empty when there is none or it cannot be read."""
        return self._try(lambda: records.read(path), None) or {}

    # -- The data location and its copies

    def _data_location(self, location: DataLocation) -> tuple[Report, Contents | None]:
        """Return the report on the data location, and what is in it (None: cannot be looked at)."""
        report: Report = {
            "path": location.path,
            "max_bytes": location.max_bytes,
            "host": location.host,
            "identity": location.identity,
            "filesystem": location.filesystem.to_json(),
            "available": False,
            "size_bytes": None,
            "free_bytes": None,
            "reserved_bytes": self._try(lambda: fills.reserved_bytes(self._places, location), None),
            "strangers": None,
        }
        _real, mount = follow(location.path, self._mounts)
        if is_shared(mount.fstype):
            self.problems.append(f"data location {location.path}: a shared filesystem ({mount.fstype}) is there now")
            return report, None
        fd = self._try(lambda: data_locations.open_verified(location, self._mounts), None)
        if fd is None:
            return report, None
        try:
            space = Space.of(fd)
            report.update(available=True, size_bytes=space.size, free_bytes=space.avail)
            found = self._try(lambda: data_locations.contents(fd, location), None)
            if found is not None:
                report["strangers"] = [printable(path) for path in found.strangers]
            return report, found
        finally:
            os.close(fd)

    def _copies(self, contents: Contents | None) -> dict[str, Report]:
        """Return the copies that are in the data location, and those that only a record remembers."""
        found = {}
        measured = {name: self._record(path) for name, path in _records(self._places.copies_dir).items()}
        held = contents.copies if contents is not None else ()
        aside = {one.mark.name: one.mark.identity for one in held if one.aside}
        present = {one.mark.name: one.mark.identity for one in held if not one.aside}
        here = {**aside, **present}
        for name in sorted({*measured, *here}):
            record = measured.get(name, {})
            identity = here.get(name, record.get("identity"))
            if record.get("identity") != identity:
                record = {}  # of an earlier copy of that name
            found[printable(name)] = {
                "present": None if contents is None else name in present,
                "aside": None if contents is None else name in aside,
                "workspace": record.get("workspace", name.partition(".")[0]),
                "drive": record.get("drive", name.partition(".")[2]),
                "identity": identity,
                "allocated": record.get("allocated"),
                "last_used": record.get("last_used"),
                **{field: record.get(field) for field in _MEASURED},
            }
        return found

    def _fills(self) -> dict[str, Report]:
        """Return the fills that are under way or have failed since the host was started, by copy."""
        found: list[fills.Record] = self._try(lambda: fills.load_all(self._places), [])
        fields = ("state", "failures", "message", "since", "written_bytes", "reserved_bytes")
        return {
            printable(one.copy): {field: getattr(one, field) for field in fields}
            for one in found
            if one.at_work or one.state == fills.FAILED
        }

    def _accounts(self) -> Report | None:
        """Return whose the space is, of users and teams the largest only; None while nothing was measured."""
        value = self._record(os.path.join(self._places.state_dir, "accounts.json"))
        value = value or self._record(self._places.accounts_json)
        if not value or value.get("tracked_bytes") is None:
            return None
        kinds = ("users", "teams")
        fields = ("measured", "complete", "unavailable", "tracked", "tracked_bytes")
        return {
            **{field: value.get(field) for field in fields},
            **{kind: _largest(value.get(kind, {})) for kind in kinds},
            "count": {kind: len(value.get(kind, {})) for kind in kinds},
        }

    # -- What is declared

    def _layout(self) -> Report | None:
        value = self._record(self._places.layout_json)
        if not value:
            return None
        known = {one["location"]: one for one in self._state("locations")}
        return {
            "root": value.get("root"),
            "volume_root": value.get("volume_root"),
            "protected_paths": value.get("protected_paths", []),
            "environment_prefix": value.get("environment_prefix"),
            "locations": {
                name: self._location(name, one, known.get(name, {}))
                for name, one in sorted(value.get("locations", {}).items())
            },
        }

    def _location(self, name: str, declared: Mapping[str, Any], known: Mapping[str, Any]) -> Report:
        return {
            "path": declared.get("path"),
            "override": declared.get("override", False),
            "mount": printable(follow(str(declared.get("path")), self._mounts)[1].point),
            "mounted": self._mounted(declared),
            **{field: known.get(field) for field in ("available", "reason", *_MEASURED)},
        }

    def _relocations(self) -> list[Report] | None:
        """Return the moves of locations, None when a record of them cannot be read."""
        moves = self._try(lambda: relocations.load_all(self._places), None)
        if moves is None:
            return None
        return [
            {
                "location": one.location,
                "path": printable(one.path),
                "to": printable(one.to),
                "stage": one.stage,
                "doing": one.doing,
                "standing": self._try(partial(one.standing, self._mounts), None),
                "since": one.since,
                "overrides": dict(one.after),
            }
            for one in moves
        ]

    def _mounted(self, declared: Mapping[str, Any]) -> bool | None:
        """Return whether something is mounted where the location says there must be; None where it does not say."""
        point = declared.get("mount_point")
        if not declared.get("require_mount") or not point:
            return None
        return any(mount.point == point for mount in self._mounts)

    def _drives(self, users: Mapping[tuple[str, str], list[str]]) -> dict[str, list[Report]]:
        """Return the drives by workspace: what tells them apart, and what is known of their sources."""
        workspaces: list[str] = self._try(lambda: drive_records.workspaces(self._places), [])
        known = {(one["workspace"], one["drive"], one["source"]): one for one in self._state("drives")}
        return {
            workspace: [
                {**_drive(drive, known), "used_by": users.get((workspace, drive.name), [])}
                for drive in self._load(workspace)
            ]
            for workspace in workspaces
        }

    def _load(self, workspace: str) -> list[Drive]:
        return self._try(lambda: drive_records.load(self._places, workspace), None) or []

    # -- Drives on other machines

    def _network_mounts(self) -> list[Report]:
        """Return the network mounts, with what the daemon last found out about each."""
        found: list[MountRecord] = self._try(lambda: network_records.load_mounts(self._places), [])
        last = self._record(os.path.join(self._places.state_dir, "network_mounts.json")).get("mounts", [])
        known = {(one["workspace"], one["drive"], one["source"]): one for one in last}
        fields = ("answers", "available")
        return [
            {**network_records.shown_mount(one), **{field: known.get(one.key, {}).get(field) for field in fields}}
            for one in found
        ]

    def _network_exports(self) -> list[Report]:
        found: list[ExportRecord] = self._try(lambda: network_records.load_exports(self._places), [])
        return [network_records.shown_export(one) for one in found]

    def _tiers(self) -> list[Report] | None:
        """Return the tiers, with what the daemon last found out about each; None when a record cannot be read.

        Which backends are off a host is decided by this: a host of which it is not known must not look like one of
        them.
        """
        found = self._try(lambda: tiers.found(self._places, self._mounts), None)
        if found is None:
            return None
        known = {(one["backend"], one["position"]): one for one in self._state("tiers")}
        for one in found:
            if not one["claimed"]:
                where = f"tier {one['backend']}/{one['position']} {one['path']}"
                seen = "its directory cannot be seen" if one["claimed"] is None else "it does not bear its owner mark"
                self.problems.append(f"{where}: {seen}; is its disk mounted?")
        return [
            {**one, **{field: known.get((one["backend"], one["position"]), {}).get(field) for field in _OF_TIER}}
            for one in found
        ]

    def _volumes(self, users: Mapping[str, list[str]]) -> list[Report]:
        """Return the volumes, with what the daemon last found out about each; that it is there is not known without."""
        found: dict[str, Volume] = self._try(lambda: volumes.load(self._places), {})
        known = {one["volume"]: one["available"] for one in self._state("volumes")}
        return [
            {
                "name": name,
                "path": one.path,
                "available": known.get(name),
                "grants": len(one.grants),
                "used_by": users.get(name, []),
            }
            for name, one in sorted(found.items())
        ]

    # -- What is going on

    def _leases(self) -> list[Pin]:
        nothing: tuple[list[Pin], list[records.RecordError]] = ([], [])
        found, problems = self._try(lambda: pins.readable(self._places), nothing)
        self.problems += map(str, problems)
        return found

    def _lease(self, pin: Pin) -> Report:
        fields = ("run", "number", "worker", "workspace", "drive", "source", "source_path", "copy", "sub_path", "mode")
        more = ("target", "volume", "run_of", "run_team", "state", "left_s", "created")
        report = {field: getattr(pin, field) for field in (*fields, *more)}
        return {**report, "path": pin.path(self._places), "ended": pins.stale(pin)}

    def _eviction(self) -> Report | None:
        """Return what the daemon last planned to remove, and what keeps the copies of deleted drives; None: unknown."""
        section = self._record(os.path.join(self._places.state_dir, "evictions.json"))
        fields = (
            "mode",
            "plan",
            "plan_made",
            "blocked",
            "reason",
            "why",
            "waiting",
            "aside",
            "removed",
            "removed_bytes",
        )
        return {field: section.get(field) for field in fields} if section else None

    def _events(self) -> list[Report] | None:
        """Return the last events, the oldest first; None when they cannot be read."""
        found = self._try(lambda: events.read(self._places, _EVENTS), None)
        if found is None:
            return None
        fields = ("object", "reason", "message")
        return [
            {"time": one.get("time"), **{field: printable(str(one.get(field, ""))) for field in fields}}
            for one in found
        ]

    def _daemon(self) -> Report:
        """Return whether the daemon is installed and at work, and how long ago it ended a cycle since the start."""
        last = self._record(os.path.join(self._places.state_dir, "cycle.json")).get("time")
        age = None if last is None else round(max(0.0, time.time() - last), 1)
        installed = any(os.path.exists(unit) for unit in self._units)
        return {"installed": installed, "running": daemon_cycle.is_at_work(self._places), "last_cycle_age_s": age}

    def _state(self, section: str) -> list[Mapping[str, Any]]:
        """Return what the daemon last wrote in *section*; nothing when it has not run since the host was started."""
        found: list[Mapping[str, Any]] = self._record(os.path.join(self._places.state_dir, f"{section}.json")).get(
            section, []
        )
        return found


def _largest(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Report]:
    """Return those who have most, and all who have more than their quota."""
    ordered = sorted(entries, key=lambda name: (-entries[name]["bytes"], name))
    exceeding = [name for name in ordered[_MOST_ENTRIES:] if entries[name]["exceeded_since"] is not None]
    fields = ("bytes", "runs", "quota", "exceeded_since")
    return {
        printable(name): {field: entries[name].get(field) for field in fields}
        for name in (*ordered[:_MOST_ENTRIES], *exceeding)
    }


def _drive(drive: Drive, known: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> Report:
    spec = drive.spec or {}
    fields = ("available", "answers", *_MEASURED)
    sources = []
    for index, source in enumerate(spec.get("sources", [])):
        found = known.get((drive.workspace, drive.name, index), {})
        sources.append(
            {
                "node_scope": source.get("node_scope", ""),
                "node": source.get("node", ""),
                "path": source.get("path", ""),
                **{field: found.get(field) for field in fields},
            }
        )
    return {
        "name": drive.name,
        "identity": drive.identity,
        "state": drive.state,
        "evictable": drive.evictable,
        "size_hint_bytes": spec.get("size_hint_bytes", 0),
        "sources": sources,
    }


def _sum(copies: Mapping[str, Mapping[str, Any]]) -> int | None:
    """Return the allocated bytes of all copies; None while one of them has not been measured: unknown is not zero."""
    sizes = [copy["allocated"] for copy in copies.values() if copy["present"] is not False or copy["aside"]]
    return None if None in sizes else sum(sizes)


def _records(directory: str) -> dict[str, str]:
    """Return the paths of the records in *directory* by name."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return {}
    return {
        name[: -len(".json")]: os.path.join(directory, name)
        for name in names
        if name.endswith(".json") and not name.startswith(".")
    }
