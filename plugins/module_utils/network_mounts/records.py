# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The records of network mounts: on the machine that mounts, and on the machine that exports."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from .. import records
from ..drives.declared import check_name
from ..errors import Refusal
from ..places import Places
from .exports import Export, argument

PENDING, EXPORTED, BOUND, RELEASING, RELEASED, FAILED = STATES = (
    "Pending",
    "Exported",
    "Bound",
    "Releasing",
    "Released",
    "Failed",
)
EXPORT_STATES = (EXPORTED, RELEASED, FAILED)
WITHDRAWN = "its export is withdrawn"
"""The reason of a mount that is released on both machines."""
RESERVED_S = 3600.0
"""For how long a run that is being prepared keeps a network mount, until it uses it."""
_OVER_KEPT = 100
"""How many records of what is over are kept, the newest: an operator sees what there was, in files that stay small."""
_REMEDY = "remove it, then prepare the runs and release them"
"""What of a record that cannot be read: it is made anew of what is mounted and exported."""

_One = TypeVar("_One", "MountRecord", "ExportRecord")


@dataclass(frozen=True)
class MountRecord:
    """One source of a drive that another machine holds, as it is mounted here."""

    workspace: str
    drive: str
    source: int
    node: str
    """The machine that holds it, by its name in the inventory."""
    state: str
    reason: str
    time: float
    path: str
    """Where it is mounted."""
    server_address: str
    export: str
    """Its path on the server."""
    transport: str
    """What is wanted: ``Auto``, ``RDMA`` or ``TCP``."""
    proto: str
    """What it is mounted over: ``rdma`` or ``tcp``; empty until it was mounted."""
    read_only: bool
    message: str = ""
    client: str = ""
    """This machine, by the name in the inventory that it is exported to."""
    serial: str = ""
    """Which of the exports it is of that the other machine has made one after the other."""
    reserved: Mapping[str, float] = field(default_factory=dict)
    """Until when runs that are being prepared keep it, in seconds since 1970, by run."""

    def __post_init__(self) -> None:
        untils = self.reserved.values() if isinstance(self.reserved, dict) else [None]
        if not all(isinstance(until, (int, float)) for until in untils):
            raise TypeError(f"reserved: {self.reserved!r} says of no run until when")

    @property
    def key(self) -> tuple[str, str, int]:
        return self.workspace, self.drive, self.source

    def reservations(self, now: float) -> dict[str, float]:
        """Return those that count: none lasts longer than it is made for, wherever the clock was set to meanwhile."""
        return {run: until for run, until in self.reserved.items() if 0 < until - now <= RESERVED_S}

    def since(self, before: MountRecord | None) -> MountRecord:
        """Return it with the time of its last change; who keeps it, and its serial, are none."""
        if before is None:
            return self
        same = replace(before, time=self.time, reserved=self.reserved, serial=self.serial) == self
        return replace(self, time=before.time) if same else self

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it on either machine."""
        return self.state == RELEASED and self.reason == WITHDRAWN

    @property
    def device(self) -> str:
        """What is mounted, as ``mount`` takes it and the mount table shows it; empty while nobody knows."""
        return argument(self.server_address, self.export) if self.export else ""


@dataclass(frozen=True)
class ExportRecord(Export):
    """One source of a drive that this machine holds, as it is exported to another, and what came of that."""

    state: str = EXPORTED
    reason: str = ""
    time: float = 0.0
    serial: str = ""
    """Another one each time that it was asked for: a withdrawal is of the one that its machine has unmounted."""
    renewed: float = 0.0
    """When it was asked for last, in seconds since 1970."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is exported: it was withdrawn, or refused before there was anything to withdraw."""
        return self.state == RELEASED or (self.state == FAILED and not self.path)

    @property
    def squashing(self) -> tuple[str, int | None, int | None]:
        return self.squash, self.anonymous_uid, self.anonymous_gid


def of_export(export: Export, state: str, reason: str = "") -> ExportRecord:
    """Return the record of an export, as of now."""
    return ExportRecord(**asdict(export), state=state, reason=reason, time=now())


def now() -> float:
    """Return the time that a record carries, in seconds since 1970."""
    return round(time.time(), 3)


def timed(one: _One, before: _One | None) -> _One:
    """Return *one* with the time of its last change."""
    return before if before is not None and replace(one, time=before.time) == before else one


def read_key(value: Mapping[str, Any]) -> tuple[str, str, int]:
    """Return which source of a drive an entry of a module's list is about, checked."""
    if value["source"] < 0:
        rule = "source must be a whole number, 0 for the first source"
        raise Refusal(f"drive {value['workspace']}/{value['drive']}", rule)
    return check_name(value["workspace"], "workspace"), check_name(value["drive"], "drive"), value["source"]


def shown_export(one: ExportRecord) -> dict[str, Any]:
    """Return what modules tell of an export."""
    fields = ("workspace", "drive", "source", "client", "path", "read_only", "fsid", "state", "reason", "time")
    shown = {field: getattr(one, field) for field in (*fields, "serial", "renewed")}
    return {**shown, "client_address": one.address}


def shown_mount(one: MountRecord) -> dict[str, Any]:
    """Return what modules tell of a network mount."""
    fields = ("workspace", "drive", "source", "node", "path", "state", "reason", "proto", "message", "read_only")
    return {field: getattr(one, field) for field in (*fields, "time")}


def mounts_path(places: Places) -> str:
    return os.path.join(places.var, "network_mounts.json")


def exports_path(places: Places) -> str:
    return os.path.join(places.var, "network_exports.json")


def load_mounts(places: Places) -> list[MountRecord]:
    """Return the network mounts of this machine.

    :raises RecordError: when they cannot be read
    """
    return _load(mounts_path(places), "mounts", MountRecord, lambda one: one.state in STATES)


def find_mount(places: Places, key: tuple[str, str, int]) -> MountRecord | None:
    """Return the network mount of a source of a drive; None when nobody has begun to make it."""
    return next((one for one in load_mounts(places) if one.key == key), None)


def load_exports(places: Places) -> list[ExportRecord]:
    """Return what this machine exports, or has exported.

    :raises RecordError: when they cannot be read
    """
    return _load(exports_path(places), "exports", ExportRecord, lambda one: one.state in EXPORT_STATES)


def write_mounts(places: Places, found: Iterable[MountRecord]) -> None:
    """Record all network mounts of this machine; of those that are over the newest only."""
    listed = [asdict(one) for one in sorted(_kept(found), key=lambda one: one.key)]
    records.write(mounts_path(places), {"mounts": listed})


def write_exports(places: Places, found: Iterable[ExportRecord]) -> None:
    """Record all exports of this machine; of those that are over the newest only."""
    listed = [asdict(one) for one in sorted(_kept(found), key=lambda one: one.key)]
    records.write(exports_path(places), {"exports": listed})


def _kept(found: Iterable[_One]) -> list[_One]:
    latest = sorted(found, key=lambda one: one.time, reverse=True)
    over = [one for one in latest if one.is_over]
    return [one for one in latest if not one.is_over] + over[:_OVER_KEPT]


def _load(path: str, key: str, cls: Callable[..., _One], is_sound: Callable[[_One], bool]) -> list[_One]:
    value = records.read(path, _REMEDY)
    if value is None:
        return []
    try:
        found = [records.typed(cls, one) for one in value[key]]
    except (KeyError, TypeError) as error:
        raise records.RecordError(f"{path}: not a list of network {key} ({error!r}); {_REMEDY}") from error
    for one in found:
        if not is_sound(one):
            raise records.RecordError(f"{path}: a state that there is not, in {one!r}; {_REMEDY}")
    return found
