# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The records of network mounts: on the machine that mounts, and on the machine that exports."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .. import records
from ..places import Places

PENDING, EXPORTED, BOUND, RELEASING, RELEASED, FAILED = STATES = (
    "Pending",
    "Exported",
    "Bound",
    "Releasing",
    "Released",
    "Failed",
)
EXPORT_STATES = (EXPORTED, RELEASED, FAILED)

_One = TypeVar("_One")


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

    @property
    def key(self) -> tuple[str, str, int]:
        return self.workspace, self.drive, self.source

    @property
    def device(self) -> str:
        """What is mounted, as ``mount`` takes it and the mount table shows it."""
        address = f"[{self.server_address}]" if ":" in self.server_address else self.server_address
        return f"{address}:{self.export}"


@dataclass(frozen=True)
class ExportRecord:
    """One source of a drive that this machine holds, as it is exported to another."""

    workspace: str
    drive: str
    source: int
    client: str
    client_address: str
    path: str
    read_only: bool
    fsid: str
    state: str
    reason: str
    time: float


def mounts_path(places: Places) -> str:
    return os.path.join(places.var, "network_mounts.json")


def exports_path(places: Places) -> str:
    return os.path.join(places.var, "network_exports.json")


def load_mounts(places: Places) -> list[MountRecord]:
    """Return the network mounts of this machine.

    :raises RecordError: when they cannot be read
    """
    return _load(mounts_path(places), "mounts", MountRecord, lambda one: one.state in STATES)


def load_exports(places: Places) -> list[ExportRecord]:
    """Return what this machine exports, or has exported.

    :raises RecordError: when they cannot be read
    """
    return _load(exports_path(places), "exports", ExportRecord, lambda one: one.state in EXPORT_STATES)


def _load(path: str, key: str, cls: Callable[..., _One], is_sound: Callable[[_One], bool]) -> list[_One]:
    value = records.read(path)
    if value is None:
        return []
    try:
        found = [records.typed(cls, one) for one in value[key]]
    except (KeyError, TypeError) as error:
        raise records.RecordError(f"{path}: not a list of network {key} ({error!r}); make them again") from error
    for one in found:
        if not is_sound(one):
            raise records.RecordError(f"{path}: a state that there is not, in {one!r}; make it again")
    return found
