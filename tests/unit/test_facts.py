# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of this very host, and their compact part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.stowage.host.plugins.modules import storage_facts
from stowage_core.facts import networks
from stowage_core.facts import report as facts
from stowage_core.facts.networks import Address, Nfs, RdmaPort
from stowage_core.places import Places

RETURNED = yaml.safe_load(storage_facts.RETURN)["ansible_facts"]["contains"]["stowage_storage"]["contains"]


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, Any]:
    return facts.gather(Places.under(str(tmp_path)), {"site": "eu-west"})


def test_what_is_documented_is_what_is_returned(bare: dict[str, Any]) -> None:
    assert set(bare) == set(RETURNED)
    assert set(bare["compact"]) == set(RETURNED["compact"]["contains"])
    for name in ("filesystems", "recommended", "nfs"):
        found = bare[name][0] if isinstance(bare[name], list) else bare[name]
        assert set(found) == set(RETURNED[name]["contains"]), name
    # Where the root is an overlay, as in a container, it is no filesystem that holds data.
    assert all(one["system_disk"] for one in bare["filesystems"] if one["mount"] == "/")


def test_they_can_be_sent(bare: dict[str, Any]) -> None:
    assert json.loads(json.dumps(bare)) == bare
    assert bare["problems"] == []
    assert bare["compact"]["labels"] == {"site": "eu-west"}
    assert bare["compact"]["data_location"] is None


def test_rdma_ports_with_their_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    active = RdmaPort("mlx5_0", 1, "InfiniBand", "ACTIVE", "400 Gb/sec", "fe80:0000:0000:0000", ("fe80::1",), ("ib0",))
    down = RdmaPort("mlx5_1", 1, "InfiniBand", "DOWN", "", "", (), ("ib1",))
    here = [
        Address("lo", "127.0.0.1", 8, "host"),
        Address("eth0", "192.0.2.11", 24, "global"),
        Address("ib0", "10.10.0.11", 24, "global"),
        Address("ib1", "10.11.0.11", 24, "global"),
        Address("ib0", "fe80::1", 64, "link"),
    ]
    monkeypatch.setattr(networks, "rdma_ports", lambda: [active, down])
    monkeypatch.setattr(networks, "addresses", lambda: here)
    monkeypatch.setattr(networks, "is_down", lambda device: device == "ib1")
    monkeypatch.setattr(networks, "nfs", lambda: Nfs({"exportfs": "/e", "mount.nfs": "/m", "rpc.nfsd": "/n"}, ()))
    found = facts.gather(Places.under(str(tmp_path)), {})
    assert set(found["rdma"][0]) == set(RETURNED["rdma"]["contains"])
    assert set(found["addresses"][0]) == set(RETURNED["addresses"]["contains"])
    assert [port["addresses"] for port in found["rdma"]] == [["10.10.0.11"], ["10.11.0.11"]]
    shown = [(address["address"], address["up"]) for address in found["addresses"]]
    assert shown == [("192.0.2.11", True), ("10.10.0.11", True), ("10.11.0.11", False), ("fe80::1", True)]
    compact = found["compact"]
    assert compact["addresses"] == ["192.0.2.11/24", "10.10.0.11/24"]
    assert compact["rdma"] == [
        {
            "link_layer": "InfiniBand",
            "subnet_prefix": "fe80:0000:0000:0000",
            "active": True,
            "addresses": ["10.10.0.11"],
        },
        {"link_layer": "InfiniBand", "subnet_prefix": "", "active": False, "addresses": ["10.11.0.11"]},
    ]
    assert compact["nfs"] == {"can_export": True, "can_mount": True}


def test_the_compact_part_is_small() -> None:
    """A thousand copies on each of a thousand hosts still fit in a fact cache."""
    copy = {"present": True, "bytes": 107 * 10**9, "workspace": "team", "drive": "drive", "identity": None}
    gone = {**copy, "present": False}
    full = {
        "gathered": 1.0,
        "data_location": {
            "path": "/mnt/nvme0/stowage",
            "available": True,
            "size_bytes": 1,
            "free_bytes": 1,
            "max_bytes": 0,
            "used_bytes": None,
            "reserved_bytes": 0,
            "identity": "i",
        },
        "copies": {**{f"team.drive-{number}": copy for number in range(1000)}, "team.gone": gone},
        "drives": {},
        "filesystems": [
            {
                "shared": True,
                "mount": "/lustre",
                "mounts": ["/lustre", "/home"],
                "fstype": "lustre",
                "source": "a@o2ib:/b",
                "answers": True,
                "uuid": None,
            },
            {"shared": False},
        ],
        "addresses": [],
        "rdma": [],
        "nfs": {"can_export": False, "can_mount": True, "tools": {}},
    }
    compact = facts.compact(full, {})
    assert len(compact["copies"]) == 1000 and "identity" not in compact["data_location"]
    assert compact["shared"] == [
        {
            "mount": "/lustre",
            "mounts": ["/lustre", "/home"],
            "fstype": "lustre",
            "source": "a@o2ib:/b",
            "answers": True,
        }
    ]
    assert len(json.dumps(compact)) < 50_000


CACHE = {"name": "cache", "identity": "now", "used_by": []}


@pytest.mark.parametrize(
    ("drives", "identity", "usable"),
    [
        ({"ml": [{**CACHE, "state": "present"}]}, "now", True),
        ({"ml": [{**CACHE, "state": "present"}]}, None, True),
        ({"ml": [{**CACHE, "state": "present"}]}, "earlier", False),
        ({"ml": [{**CACHE, "state": "absent"}]}, "now", False),
        ({"ml": []}, "now", False),
        ({}, "now", True),
        ({"other": [{**CACHE, "state": "absent"}]}, "now", True),
    ],
    ids=["its drive's", "not measured", "an earlier drive's", "being deleted", "an orphan", "no list yet", "another's"],
)
def test_copies_that_a_run_can_use(drives: dict[str, Any], identity: str | None, usable: bool) -> None:
    copy = {"present": True, "bytes": 7, "workspace": "ml", "drive": "cache", "identity": identity}
    facts_of_copies = {
        "gathered": 1.0,
        "data_location": None,
        "copies": {"ml.cache": copy},
        "drives": drives,
        "filesystems": [],
        "addresses": [],
        "rdma": [],
        "nfs": {"can_export": False, "can_mount": False},
    }
    assert facts.compact(facts_of_copies, {})["copies"] == ({"ml.cache": 7} if usable else {})
