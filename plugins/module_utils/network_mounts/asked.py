# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network mounts as runs need them, and how their units tell which they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Refusal
from ..paths import check_path
from ..places import Places
from ..runs import pins
from . import mount_units, records
from .exports import check_address
from .mount_units import RDMA, TCP, MountUnit
from .records import BOUND, MountRecord

Key = tuple[str, str, int]

_DESCRIBED = re.compile(r"Stowage: drive ([^/ ]+)/([^/ ]+) source ([0-9]{1,9}) from (.+)")


@dataclass(frozen=True)
class Asked:
    """A network mount as a run needs it."""

    workspace: str
    drive: str
    source: int
    node: str
    address: str
    export: str
    """The path that the other machine exports; empty while it has not told."""
    read_only: bool
    transport: str
    """The drive's: ``Auto``, ``RDMA`` or ``TCP``."""
    rdma: bool
    """Whether both machines are on one RDMA network."""
    not_exported: str = ""
    """Why the other machine does not export it; empty when it does."""
    no_rdma: str = ""
    """Why RDMA cannot be had although both machines have it; empty when it can, or is not wanted."""
    client: str = ""
    """This machine, by its name in the inventory."""
    serial: str = ""
    """Which export it is; empty where nobody says."""

    @property
    def key(self) -> Key:
        return self.workspace, self.drive, self.source

    @property
    def protos(self) -> tuple[str, ...]:
        """What may be mounted, the best first."""
        if not self.rdma:
            return (TCP,)
        return (RDMA,) if self.transport == "RDMA" else (RDMA, TCP)

    def point(self, places: Places) -> str:
        return mount_units.mount_point(places, *self.key)

    def unit(self, places: Places, proto: str) -> MountUnit:
        description = f"Stowage: drive {self.workspace}/{self.drive} source {self.source} from {self.node}"
        return MountUnit(self.point(places), self.address, self.export, proto, self.read_only, description)

    def record(self, places: Places, state: str, reason: str = "", proto: str = "", message: str = "") -> MountRecord:
        return MountRecord(
            *self.key,
            self.node,
            state,
            reason,
            records.now(),
            self.point(places),
            self.address,
            self.export,
            self.transport,
            proto,
            self.read_only,
            message,
            self.client,
            self.serial,
        )


def read_asked(value: Mapping[str, Any], host: str, places: Places, pending: bool = False) -> Asked:
    """Return one entry of the module's list, checked.

    :param pending: whether nothing is exported yet, so that nobody knows what
    """
    name = f"drive {value['workspace']}/{value['drive']}"
    key = records.read_key(value)
    if value["node"] == host:
        raise Refusal(name, f"source {value['source']} is on this machine", "use its path")
    if not value["node"]:
        raise Refusal(name, "node is required when it is to be mounted")
    for required in () if pending or value["not_exported"] else ("address", "export"):
        if not value[required]:
            raise Refusal(name, f"{required} is required when state is present")
    if value["transport"] == "RDMA" and not value["rdma"] and not pending:
        raise Refusal(name, "its transport is RDMA, and rdma is false", "say rdma: true, or transport: Auto")
    mount_units.check_length(name, mount_units.mount_point(places, *key))
    return Asked(
        *key,
        value["node"],
        check_address(value["address"], f"{name}: address") if value["address"] else "",
        check_path(value["export"], f"{name}: export") if value["export"] else "",
        value["mode"] == pins.READ_ONLY,
        value["transport"],
        value["rdma"],
        value["not_exported"],
        value["no_rdma"],
        host,
        value["serial"],
    )


def record_of(unit: MountUnit, places: Places) -> MountRecord | None:
    """Return the record of the network mount that a unit of ours was written for; None when it does not tell."""
    said = _DESCRIBED.fullmatch(unit.description)
    if said is None:
        return None
    key, node = (said[1], said[2], int(said[3])), said[4]
    if mount_units.mount_point(places, *key) != unit.point:
        return None
    one = Asked(*key, node, unit.address, unit.export, unit.read_only, "Auto", unit.proto == RDMA)
    return one.record(places, BOUND, "", unit.proto)
