# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters of network mounts: who exports what to whom, what is mounted then, and what is withdrawn in the end."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.filter.network_mounts import FilterModule as Mounts
from ansible_collections.stowage.host.plugins.filter.network_withdrawals import FilterModule as Withdrawals
from ansible_collections.stowage.host.plugins.filter.transport import FilterModule as Transport

network_mounts = Mounts().filters()["network_mounts"]
network_withdrawals = Withdrawals().filters()["network_withdrawals"]
transport = Transport().filters()["transport"]

DRIVES = [
    {
        "metadata": {"name": "imagenet"},
        "spec": {"sources": [{"node": "gpu-01", "path": "/mnt/nvme0/imagenet", "mount_path": "/data"}]},
    },
    {"metadata": {"name": "cache"}, "spec": {"sources": [{"node_scope": "placed", "mount_path": "/cache"}]}},
]
RUN = {"hosts": ["gpu-01", "gpu-02"], "drives": "imagenet,cache", "workspace": "vision"}
EXPORT = {"workspace": "vision", "drive": "imagenet", "source": 0, "client": "gpu-02"}
EXPORTED = {
    **EXPORT,
    "state": "Exported",
    "reason": "",
    "path": "/mnt/disks/nvme0/imagenet",
    "client_address": "192.0.2.12",
    "serial": "s1",
}


def host(number: int, *, roce: str = "", **more: Any) -> dict[str, Any]:
    """*roce*: the state of its port."""
    address = f"192.0.2.1{number}"
    ports = [{"link_layer": "Ethernet", "active": roce == "up", "addresses": [address]}] if roce else []
    compact = {
        "labels": {},
        "addresses": [f"{address}/24"],
        "rdma": ports,
        "nfs": {"can_export": True, "can_mount": True},
    }
    facts = {"stowage_storage": {"compact": compact}}
    return {"host_drives": {"vision": DRIVES}, "ansible_facts": facts, **more}


SITE = {"gpu-01": host(1), "gpu-02": host(2)}


def test_what_a_run_needs() -> None:
    found = network_mounts(SITE, RUN)
    assert (found["nodes"], found["clients"], found["refused"]) == (["gpu-01"], ["gpu-02"], {})
    (export,), (mount,) = found["exports"]["gpu-01"], found["mounts"]["gpu-02"]
    assert EXPORT.items() <= export.items() and export["address"] == "192.0.2.12"
    assert (mount["node"], mount["address"], mount["export"]) == ("gpu-01", "192.0.2.11", "/mnt/nvme0/imagenet")
    assert "not_exported" not in mount


def test_nobody_is_asked_for_what_is_where_it_is_used() -> None:
    found = network_mounts(SITE, {**RUN, "hosts": ["gpu-01"]})
    assert (found["nodes"], found["clients"], found["mounts"]) == ([], [], {})
    assert network_mounts(SITE, {**RUN, "drives": []})["nodes"] == []


@pytest.mark.parametrize(
    ("result", "not_exported", "no_rdma"),
    [
        (None, "machine gpu-01 was not asked: it is outside of --limit, or failed before", ""),
        ({"unreachable": True}, "source 0 is on machine gpu-01 which is Down", ""),
        ({"exports": [EXPORTED], "no_rdma": ""}, "", ""),
        # Their machines have no RDMA: that the server does not listen for it is nothing to this one.
        ({"exports": [EXPORTED], "no_rdma": "no device"}, "", ""),
        ({"exports": [{**EXPORTED, "state": "Failed", "reason": "its disk is away"}]}, "its disk is away", ""),
        ({"msg": "NFS server: this host has\nno exportfs"}, "NFS server: this host has no exportfs", ""),
    ],
)
def test_what_the_machine_that_holds_it_says(result: Any, not_exported: str, no_rdma: str) -> None:
    site = {**SITE, "gpu-01": host(1, **({} if result is None else {"exported": result}))}
    (mount,) = network_mounts(site, RUN, "exported")["mounts"]["gpu-02"]
    assert (mount["not_exported"], mount["no_rdma"]) == (not_exported, no_rdma)


@pytest.mark.parametrize(
    ("told", "export"),
    [
        ({}, "/mnt/disks/nvme0/imagenet"),
        # To another address: it is the directory all the same, for who has it mounted.
        ({"path": "/mnt/nvme0/imagenet", "client_address": "192.0.2.99", "reason": "to 192.0.2.99 still"}, None),
        ({"path": "/mnt/old", "reason": "as /mnt/old still"}, "/mnt/nvme0/imagenet"),
        ({"path": "/mnt/old", "client_address": "192.0.2.99", "reason": "as /mnt/old still"}, "/mnt/nvme0/imagenet"),
        ({"path": "", "state": "Failed", "reason": "its disk is away"}, ""),
    ],
)
def test_what_is_mounted_is_what_the_machine_that_holds_it_exports(told: dict[str, str], export: str | None) -> None:
    site = {**SITE, "gpu-01": host(1, exported={"exports": [{**EXPORTED, **told}]})}
    (mount,) = network_mounts(site, RUN, "exported")["mounts"]["gpu-02"]
    assert mount["export"] == (told["path"] if export is None else export)
    assert (mount["not_exported"], mount["serial"]) == (told.get("reason", ""), "s1")


def test_nobody_knows_what_a_machine_exports_that_says_nothing() -> None:
    (mount,) = network_mounts({**SITE, "gpu-01": host(1)}, RUN, "exported")["mounts"]["gpu-02"]
    assert mount["export"] == ""


def test_who_holds_it_is_down_and_has_never_reported() -> None:
    down = {"host_drives": {"vision": DRIVES}, "looked": {"unreachable": True}}
    found = network_mounts({**SITE, "gpu-01": down}, RUN, looked="looked")
    assert found["refused"] == {"gpu-02": ["drive imagenet: source 0 is on machine gpu-01 which is Down"]}
    found = network_mounts({**SITE, "gpu-01": {**down, "looked": {}}}, RUN, looked="looked")
    assert found["refused"] == {"gpu-02": ["machine gpu-01 has not reported its storage yet; gather its facts"]}


def test_why_it_is_not_over_rdma_although_both_have_it() -> None:
    exported = {"exports": [EXPORTED], "no_rdma": "no device"}
    site = {"gpu-01": host(1, roce="up", exported=exported), "gpu-02": host(2, roce="up")}
    (mount,) = network_mounts(site, RUN, "exported")["mounts"]["gpu-02"]
    assert (mount["rdma"], mount["no_rdma"]) == (True, "gpu-01: no device")
    (mount,) = network_mounts({**site, "gpu-02": host(2, roce="down")}, RUN, "exported")["mounts"]["gpu-02"]
    assert (mount["rdma"], mount["no_rdma"]) == (False, "gpu-02 has no active RDMA port with an address")


def test_a_host_without_the_workspace_needs_nothing() -> None:
    """What it cannot have it says itself."""
    site = {**SITE, "gpu-02": host(2, host_drives={})}
    assert network_mounts(site, RUN)["clients"] == []


@pytest.mark.parametrize("run", [None, "imagenet", {"hosts": []}])
def test_input_that_is_no_run(run: Any) -> None:
    with pytest.raises(AnsibleFilterError, match="a dictionary with hosts, drives, workspace"):
        network_mounts(SITE, run)


def test_transport() -> None:
    assert transport(SITE, "gpu-01", "gpu-02") == {
        "transport": "TCP",
        "server_address": "192.0.2.11",
        "client_address": "192.0.2.12",
        "why": "gpu-01 has no active RDMA port with an address",
        "rdma_is_down": False,
    }
    with pytest.raises(
        AnsibleFilterError, match="transport: drive of gpu-01: its transport is RDMA, and gpu-01 has no active RDMA"
    ):
        transport(SITE, "gpu-01", "gpu-02", "RDMA")


def unmounted(*states: tuple[str, str, str]) -> dict[str, Any]:
    return {
        "unmounted": {
            "mounts": [
                {"workspace": "vision", "drive": drive, "source": 0, "node": node, "state": state}
                for drive, node, state in states
            ]
        }
    }


def test_only_what_is_unmounted_is_withdrawn() -> None:
    site = {"gpu-01": {}, "gpu-02": unmounted(("imagenet", "gpu-01", "Released"), ("coco", "gpu-01", "Bound"))}
    found = network_withdrawals(site, ["gpu-02"], "unmounted", "withdrew")
    assert found["nodes"] == ["gpu-01"]
    assert found["exports"]["gpu-01"] == [{**EXPORT, "serial": ""}]


def test_a_machine_that_has_left_the_inventory_has_withdrawn_nothing() -> None:
    site = {"gpu-02": unmounted(("imagenet", "gone", "Released"))}
    found = network_withdrawals(site, ["gpu-02"], "unmounted", "withdrew")
    assert (found["nodes"], found["withdrawn"]) == ([], {"gpu-02": []})
    (left,) = found["left"]["gpu-02"]
    assert (left["drive"], left["node"]) == ("imagenet", "gone")
    assert left["reason"].startswith("machine gone is not in the inventory: name it there as it was, or withdraw it")


def test_it_is_withdrawn_by_its_serial_and_by_the_name_that_the_client_had() -> None:
    site = {"gpu-01": {"withdrew": {"exports": [{**EXPORT, "client": "old-02", "state": "Released", "reason": ""}]}}}
    site["gpu-02"] = unmounted(("imagenet", "gpu-01", "Released"))
    site["gpu-02"]["unmounted"]["mounts"][0].update(client="old-02", serial="s-1")
    found = network_withdrawals(site, ["gpu-02"], "unmounted", "withdrew")
    assert found["exports"]["gpu-01"] == [{**EXPORT, "client": "old-02", "serial": "s-1"}]
    assert [one["drive"] for one in found["withdrawn"]["gpu-02"]] == ["imagenet"]


@pytest.mark.parametrize(
    ("withdrew", "reason"),
    [
        ({"exports": [{**EXPORT, "state": "Released", "reason": ""}]}, None),
        # Of a client that has asked for it once more.
        ({"exports": [{**EXPORT, "state": "Exported", "reason": "exported anew"}]}, "exported anew"),
        ({"exports": [{**EXPORT, "state": "Failed", "reason": "exportfs: busy"}], "msg": "x"}, "exportfs: busy"),
        ({"exports": [{**EXPORT, "client": "gpu-03", "state": "Released", "reason": ""}]}, "it was not withdrawn"),
        ({"unreachable": True}, "machine gpu-01 is Down"),
        ({"msg": "not valid\nJSON"}, "not valid JSON"),
        (None, "machine gpu-01 was not asked: it is outside of --limit, or failed before"),
    ],
)
def test_what_could_not_be_withdrawn_is_the_next_time(withdrew: Any, reason: str | None) -> None:
    site = {"gpu-01": {"withdrew": withdrew}, "gpu-02": unmounted(("imagenet", "gpu-01", "Released"))}
    found = network_withdrawals(site, ["gpu-02"], "unmounted", "withdrew")
    assert bool(found["withdrawn"]["gpu-02"]) is (reason is None)
    assert [one["reason"] for one in found["left"]["gpu-02"]] == ([] if reason is None else [reason])
