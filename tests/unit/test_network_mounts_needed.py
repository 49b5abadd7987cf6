# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which network mounts the workers of a run need, from whom, and over what."""

from __future__ import annotations

from typing import Any

from stowage_core.drives.declared import check_drives
from stowage_core.drives.refs import Wanted, read, resolve
from stowage_core.network_mounts.needed import holders, needed
from stowage_core.placement.machines import machine


def drive(name: str, node: str, transport: str = "Auto", mode: str = "ReadOnly") -> dict[str, Any]:
    source = {"node": node, "path": f"/mnt/nvme0/{name}", "mode": mode, "mount_path": f"/data/{name}"}
    return {"metadata": {"name": name}, "spec": {"sources": [source], "transport": transport}}


DRIVES = check_drives(
    [
        drive("imagenet", "gpu-01"),
        drive("results", "gpu-01", "TCP", "ReadWrite"),
        drive("fast", "gpu-02", "RDMA"),
        drive("local", "gpu-01", "Local"),
        {
            "metadata": {"name": "cache"},
            "spec": {"sources": [{"node_scope": "placed", "path": "", "mount_path": "/cache"}]},
        },
    ]
)
EMPTY: dict[str, Any] = {"labels": {}, "rdma": [], "nfs": {"can_export": True, "can_mount": True}}
ENDS = {
    f"gpu-0{number}": machine(f"gpu-0{number}", {**EMPTY, "addresses": [f"192.0.2.1{number}/24"]})
    for number in (1, 2, 3)
}


def wanted(*refs: Any) -> list[Wanted]:
    return resolve(read([{"name": one} if isinstance(one, str) else one for one in refs]), DRIVES)


def test_only_what_is_on_another_machine() -> None:
    both = wanted("imagenet", "cache", "unknown")
    found = needed("vision", {"gpu-01": both, "gpu-02": both}, ENDS)
    (one,) = found.mounts
    assert (one.node, one.client, one.read_only, found.refused) == ("gpu-01", "gpu-02", True, {})
    assert one.to_export() == {
        "workspace": "vision",
        "drive": "imagenet",
        "source": 0,
        "client": "gpu-02",
        "address": "192.0.2.12",
        "mode": "ReadOnly",
        "rdma": False,
    }
    assert one.to_mount() == {
        "workspace": "vision",
        "drive": "imagenet",
        "source": 0,
        "node": "gpu-01",
        "address": "192.0.2.11",
        "export": "/mnt/nvme0/imagenet",
        "mode": "ReadOnly",
        "transport": "Auto",
        "rdma": False,
        "no_rdma": "",
    }
    assert holders({"gpu-01": both}) == set() and holders({"gpu-03": both}) == {"gpu-01"}


def test_one_mount_for_a_source_that_is_mounted_twice_and_writable_when_one_is() -> None:
    twice = wanted("imagenet", {"name": "imagenet", "mount_path": "/out", "mode": "ReadWrite"})
    (one,) = needed("vision", {"gpu-02": twice}, ENDS).mounts
    assert not one.read_only and one.to_mount()["mode"] == "ReadWrite"


def test_what_cannot_be_is_told_by_machine() -> None:
    found = needed("vision", {"gpu-03": wanted("local", "fast", "results"), "gpu-01": wanted("local", "results")}, ENDS)
    assert [(one.drive, one.client) for one in found.mounts] == [("results", "gpu-03")]
    assert found.refused == {
        "gpu-03": [
            "drive local: source 0 is local to machine gpu-01 and its transport is Local",
            "drive fast: its transport is RDMA, and gpu-02 has no active RDMA port with an address; "
            "put both on one RDMA network, or let it be Auto",
        ]
    }


def test_a_machine_that_nothing_is_known_of() -> None:
    found = needed("vision", {"gpu-02": wanted("imagenet")}, {"gpu-02": ENDS["gpu-02"]})
    assert found.mounts == []
    assert found.refused == {"gpu-02": ["machine gpu-01 has not reported its storage yet; gather its facts"]}
