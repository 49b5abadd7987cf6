# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of one host about storage: all of them for people and reports, and a compact part for placement."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from .. import mounts as mount_table
from ..errors import printable
from ..mounts import Mount
from ..places import Places
from . import filesystems as fs
from . import networks
from .disks import Disks
from .filesystems import Filesystem
from .networks import Address, RdmaPort
from .objects import Objects

Facts = dict[str, Any]

_LOOPBACK = "lo"


def gather(places: Places, labels: Mapping[str, str]) -> Facts:
    """Return this host's facts; what could not be read is listed as ``problems``.

    :param labels: what only an operator knows (site, rack, fabric, NVLink domain); they are passed on to placement
    """
    mounts = mount_table.read()
    disks = Disks.read()
    objects = Objects(places, mounts)
    report = objects.read()
    found = fs.keep_apart(fs.survey(mounts, disks), objects.in_the_way)
    addresses = networks.addresses()
    rdma = [_rdma(port, addresses) for port in networks.rdma_ports()]
    facts: Facts = {
        "gathered": round(time.time(), 3),
        "disks": _disks(disks, found, mounts),
        "filesystems": [_filesystem(each) for each in found],
        "recommended": _recommended(found),
        "addresses": [_address(each) for each in addresses if each.device != _LOOPBACK],
        "rdma": rdma,
        "nfs": _nfs(networks.nfs()),
        "problems": [printable(problem) for problem in objects.problems],
        **report,
    }
    facts["compact"] = compact(facts, labels)
    return facts


def compact(facts: Mapping[str, Any], labels: Mapping[str, str]) -> Facts:
    """Return the part of *facts* that placement needs: little enough to cache for thousands of hosts."""
    location = facts["data_location"]
    fields = ("path", "available", "size_bytes", "free_bytes", "max_bytes", "used_bytes", "reserved_bytes")
    return {
        "gathered": facts["gathered"],
        "labels": dict(labels),
        "data_location": {field: location[field] for field in fields} if location is not None else None,
        "copies": _copies(facts["copies"], facts["drives"]),
        "shared": [
            {field: filesystem[field] for field in ("mount", "mounts", "fstype", "source", "answers")}
            for filesystem in facts["filesystems"]
            if filesystem["shared"]
        ],
        # With their networks: two machines are near each other in one of them.
        "addresses": [
            f"{address['address']}/{address['prefix']}"
            for address in facts["addresses"]
            if address["scope"] == "global" and address["up"]
        ],
        "rdma": [
            {field: port[field] for field in ("link_layer", "subnet_prefix", "active", "addresses")}
            for port in facts["rdma"]
        ],
        "nfs": {"can_export": facts["nfs"]["can_export"], "can_mount": facts["nfs"]["can_mount"]},
        "used_by": {
            f"{workspace}/{drive['name']}": drive["used_by"]
            for workspace, drives in facts["drives"].items()
            for drive in drives
            if drive["used_by"]
        },
    }


def _copies(copies: Mapping[str, Facts], drives: Mapping[str, Sequence[Facts]]) -> dict[str, int | None]:
    """Return the sizes of the copies that a run can use: not those of earlier or deleted drives."""
    listed = {(workspace, drive["name"]): drive for workspace, those in drives.items() for drive in those}
    found = {}
    for name, copy in copies.items():
        drive = listed.get((copy["workspace"], copy["drive"]))
        if drive is not None:
            usable = drive["state"] == "present" and copy["identity"] in (None, drive["identity"])
        else:
            # The first list of a workspace finds its copies again; a later one leaves others as orphans.
            usable = copy["workspace"] not in drives
        if usable and copy["present"] is not False:
            found[name] = copy["bytes"]
    return found


def _disks(disks: Disks, found: Sequence[Filesystem], mounts: Sequence[Mount]) -> list[Facts]:
    system = fs.system_disks(found)
    return [
        {
            "name": device.name,
            "device": device.path,
            "kind": disks.kind(device.name),
            "model": printable(disks.model(device.name)),
            "size_bytes": device.size,
            "system_disk": bool(fs.at_the_bottom([device.name], disks, mounts) & system),
            "mounts": sorted(printable(each.mount.point) for each in found if _is_on(each, device.name, disks)),
            "members": sorted(disks.under(device.name) - {device.name}),
        }
        for device in disks.whole()
    ]


def _is_on(filesystem: Filesystem, name: str, disks: Disks) -> bool:
    """Return whether *filesystem* is on disk *name*, directly or through what is stacked on it."""
    return any(name in disks.stack(device) for device in filesystem.devices)


def _filesystem(filesystem: Filesystem) -> Facts:
    mount, space = filesystem.mount, filesystem.space
    return {
        "mount": printable(mount.point),
        "mounts": [printable(point) for point in filesystem.points],
        "fstype": mount.fstype,
        "source": printable(mount.source),
        "devices": [f"/dev/{name}" for name in filesystem.devices],
        "uuid": filesystem.uuid,
        "options": sorted({printable(option) for option in mount.options + mount.super_options}),
        "kind": filesystem.kind,
        "shared": filesystem.shared,
        "disks": sorted(printable(disk) for disk in filesystem.disks),
        "system_disk": filesystem.system_disk,
        "answers": space is not None,
        "error": "" if space is not None else str(filesystem.answer),
        "size_bytes": space.size if space is not None else None,
        "used_bytes": space.size - space.free if space is not None else None,
        "free_bytes": space.avail if space is not None else None,
        "files": space.files if space is not None else None,
        "files_free": space.files_free if space is not None else None,
        "unfit": filesystem.unfit,
        "folder": printable(filesystem.folder),
    }


def _recommended(found: Sequence[Filesystem]) -> Facts:
    recommendation = fs.recommend(found)
    best = recommendation.filesystem
    return {
        "mount": printable(best.mount.point) if best is not None else None,
        "folder": printable(best.folder) if best is not None else None,
        "kind": best.kind if best is not None else None,
        "reason": recommendation.reason,
    }


def _address(address: Address) -> Facts:
    return {
        "device": address.device,
        "family": address.family,
        "address": address.address,
        "prefix": address.prefix,
        "scope": address.scope,
        "up": not networks.is_down(address.device),
    }


def _rdma(port: RdmaPort, addresses: Sequence[Address]) -> Facts:
    return {
        "device": port.device,
        "port": port.port,
        "link_layer": port.link_layer,
        "state": port.state,
        "active": port.active,
        "rate": port.rate,
        "subnet_prefix": port.subnet_prefix,
        "gids": list(port.gids),
        "netdevs": list(port.netdevs),
        "addresses": [each.address for each in addresses if each.device in port.netdevs and each.scope == "global"],
    }


def _nfs(nfs: networks.Nfs) -> Facts:
    return {
        "tools": dict(nfs.tools),
        "can_export": nfs.can_export,
        "can_mount": nfs.can_mount,
        "listeners": list(nfs.listeners),
    }
