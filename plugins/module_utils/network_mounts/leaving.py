# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking all network mounts and exports of a host away, once nobody uses any of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator

from .. import mounts as mount_table
from .. import own_files
from ..answers import answering
from ..errors import Refusal, StowageError, printable
from ..places import Places
from ..runs import pins
from ..runs.holders import busy_in, listed
from ..services.systemd_units import mount_unit
from . import exports, mount_units, records
from .client import Client
from .exporting import Exporting
from .records import EXPORTED, FAILED, RELEASED, MountRecord
from .releasing import release


def candidates(places: Places) -> Iterator[str]:
    """Return the files that may be those of network mounts and exports."""
    yield from (os.path.join(exports.DIRECTORY, name) for name in exports.file_names())
    yield from mount_units.files(places)


def leave(client: Client, exporting: Exporting, own: Collection[str]) -> None:
    """Unmount and withdraw everything.

    :param own: those of the candidates that Stowage wrote
    :raises Refusal: when something is used, or nobody knows whether it is; nothing is changed then
    """
    client.adopt()
    mounted = [one for one in client.known.values() if one.state != RELEASED]
    units = {mount_units.unit_path(one.path) for one in mounted}
    others = [path for path in own if path.startswith(mount_units.UNITS) and path not in units]
    _check_mounts(client.places, mounted)
    _check_unknown_mounts(others)
    _check_exports(exporting, [path for path in own if path.startswith(exports.DIRECTORY)])
    stuck = [one for one in release(client) if one.state != RELEASED]
    if stuck:
        raise StowageError("; ".join(one.reason for one in stuck))
    for path in others:
        client.remove_unit(path)
    failed = [one for one in exporting.withdraw(dict.fromkeys(exporting.known, "")) if one.state == FAILED]
    if failed:
        raise StowageError("; ".join(one.reason for one in failed))


def _check_mounts(places: Places, mounted: Collection[MountRecord]) -> None:
    used = {(pin.workspace, pin.drive, pin.source): pin.held_by for pin in pins.all_pins(places)}
    table = mount_table.read()
    for one in mounted:
        name = f"network mount of drive {one.workspace}/{one.drive} from {one.node}"
        if one.key in used:
            raise Refusal(name, f"{used[one.key]} uses it", "release the run")
        for run in one.reservations(records.now()):
            raise Refusal(name, f"run {printable(run)} is about to use it", "release the run")
        own_files.read_ours(mount_units.unit_path(one.path), name)
        there = [mount.id for mount in mount_units.at(one.path, table)]
        # Who waits for a server that is down is no user: what hangs is unmounted by force.
        busy = sorted({pid for pids in busy_in(there).values() for pid in pids})
        if busy and answering([one.path]):
            raise Refusal(name, f"{listed(set(busy))} uses {one.path}", "end that")


def _check_unknown_mounts(units: Collection[str]) -> None:
    mounted = {mount_unit(mount.point): mount.point for mount in mount_table.read()}
    for path in units:
        name = os.path.basename(path)
        if name in mounted:
            raise Refusal(mounted[name], "is mounted, and there is no record of it", f"systemctl stop {name}")


def _check_exports(exporting: Exporting, files: Collection[str]) -> None:
    clients: dict[str, set[str]] = {}
    for one in exporting.known.values():
        if one.state == EXPORTED or (one.state == FAILED and exporting.is_live(one)):
            clients.setdefault(one.client, set()).add(f"{one.workspace}/{one.drive}")
    if clients:
        told = "; ".join(f"{client} ({', '.join(sorted(drives))})" for client, drives in sorted(clients.items()))
        rule = f"these machines may have drives of this one mounted: {told}"
        remedy = "release the runs there; of a machine that is gone for good, withdraw them with module nfs_exports"
        raise Refusal("exports", rule, remedy)
    known = {one.file for one in exporting.known.values()}
    for path in files:
        if path not in known:
            remedy = "see that its machine has not mounted it, and withdraw it with module nfs_exports"
            raise Refusal(path, "there is no record of it", remedy)
