# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deleting drives: who uses them, over one host and over all, and what an operator is told."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.filter.drive_deletion import drive_deletion
from stowage_core import records
from stowage_core.differences import Differences
from stowage_core.drives import host as drives_host
from stowage_core.drives import recorded as drive_records
from stowage_core.drives.declared import check_lists
from stowage_core.errors import Refusal
from stowage_core.places import Places
from stowage_core.runs import holders, pins
from stowage_core.runs.pins import Pin

PLACED: dict[str, Any] = {"metadata": {"name": "imagenet"}, "spec": {"sources": [{"node_scope": "placed"}]}}
TOMBSTONE: dict[str, Any] = {"metadata": {"name": "imagenet"}, "state": "absent"}
FORCED = {**TOMBSTONE, "force": True}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places.under(str(tmp_path))
    declare(made, PLACED)
    return made


def declare(places: Places, *drives: dict[str, Any], check_mode: bool = False) -> drives_host.Outcome:
    lists = check_lists([{"name": "vision", "drives": list(drives)}])
    return drives_host.declare(places, "gpu-01", lists, "", Differences(check_mode))


def use(places: Places, run: str, worker: str = "", drive: str = "imagenet", number: int = 1, **more: Any) -> Pin:
    """Record a lease, as taking one does; nothing is mounted."""
    deadline = holders.boot_time() + more.pop("seconds", 60)
    pin = Pin(
        run, number, worker, more.pop("workspace", "vision"), drive, 0, "", "", "ReadOnly", "/data", pins.RESERVED,
        deadline, holders.boot_id(), time.time(),
    )  # fmt: skip
    records.write(pin.record_path(places), pin.to_json())
    return pin


def test_a_drive_that_is_used_is_not_deleted(places: Places) -> None:
    use(places, "finetune", "w0")
    use(places, "finetune", "w0", number=2)
    use(places, "finetune", "w1", number=3)
    use(places, "old", seconds=-1)
    use(places, "other", drive="mnist")
    use(places, "namesake", workspace="nlp")
    before = records.read(drive_records.record_path(places, "vision"))
    for check_mode in (True, False):
        with pytest.raises(Refusal) as refused:
            declare(places, TOMBSTONE, check_mode=check_mode)
        assert str(refused.value) == (
            "DATAVOLUME_IN_USE: drive imagenet is used by 2 live worker(s);"
            " end their runs on this host (finetune/w0, finetune/w1), or set force"
        )
    assert records.read(drive_records.record_path(places, "vision")) == before, "nothing was changed"


def test_by_force_it_is(places: Places) -> None:
    pin = use(places, "finetune", "w0")
    assert pins.ended(places, pin) == ""
    for check_mode in (True, False, False):
        outcome = declare(places, FORCED, check_mode=check_mode)
        assert outcome.users("vision") == {"imagenet": ["finetune/w0"]}
    assert pins.ended(places, pin) == "its drive was deleted by force"
    declare(places, FORCED)
    declare(places, TOMBSTONE)  # it is deleted already


def test_a_lease_that_cannot_be_read_may_be_of_any_drive(places: Places) -> None:
    use(places, "finetune")
    Path(places.pins_dir, "finetune", "1.json").write_text("{")
    with pytest.raises(records.RecordError, match="pin finetune/1: its record cannot be used"):
        declare(places, TOMBSTONE)
    declare(places, PLACED)
    outcome = declare(places, FORCED)
    (warning,) = outcome.warnings
    assert warning.startswith("who uses the drives that are deleted is unknown: pin finetune/1: its record")


def test_a_tombstone_of_what_nobody_knows(places: Places) -> None:
    unknown = {"metadata": {"name": "imagenett"}, "state": "absent"}
    assert [one.name for one in declare(places, PLACED, unknown, check_mode=True).unknown] == ["imagenett"]
    assert declare(places, PLACED, unknown).unknown != ()
    assert list(declare(places, PLACED, unknown).unknown) == [], "now it knows it"
    assert list(declare(places, PLACED).unknown) == []


# -- Over all hosts


def result(
    deleting: bool = False, users: list[str] | None = None, unknown: bool = False, **more: Any
) -> dict[str, Any]:
    names = ["imagenet"]
    told = {
        "deleting": {"vision": names if deleting else []},
        "used_by": {"vision": {"imagenet": users} if users else {}},
        "unknown": {"vision": names if unknown else []},
        "unseen": [],
    }
    return {"drive_delete_result": {**told, **more}}


def found(force: bool = False, **hosts: dict[str, Any]) -> dict[str, Any]:
    named = {name.replace("_", "-"): told for name, told in hosts.items()}
    return drive_deletion(named, list(named), "vision", "imagenet", force)


def test_used_on_any_host() -> None:
    told = found(gpu_01=result(True, ["a/0", "b/0"]), gpu_02=result(), gpu_03=result(users=["a/1"]))
    assert told["refused"] == [
        "DATAVOLUME_IN_USE: drive imagenet is used by 3 live worker(s);"
        " end their runs on gpu-01 (a/0, b/0), gpu-03 (a/1), or set force"
    ]
    assert told["used_by"] == {"gpu-01": ["a/0", "b/0"], "gpu-03": ["a/1"]}
    assert found(True, gpu_01=result(True, ["a/0"]))["refused"] == []


MANAGED = "DATAVOLUME_MANAGED: drive model-llama is managed by model/llama; delete model/llama instead"


def test_what_hosts_refuse_is_said_once() -> None:
    refused = {"drive_delete_result": {"failed": False, "msg": MANAGED}}
    told = found(gpu_01=refused, gpu_02=refused, gpu_03=result())
    assert told["refused"] == [f"{MANAGED} (on gpu-01, gpu-02)"]


def test_a_drive_that_nobody_knows() -> None:
    assert found(gpu_01=result(unknown=True), gpu_02=result(unknown=True))["refused"] == [
        "drive imagenet does not exist: no host knows it in workspace vision, or holds a copy of it"
    ]
    assert found(gpu_01=result(unknown=True), gpu_02=result())["refused"] == []


def test_nobody_was_asked() -> None:
    away: dict[str, Any] = {"drive_delete_result": {"unreachable": True, "msg": "no route"}}
    skipped = {"drive_delete_result": {"skipped": True}}
    assert found(gpu_01=away, gpu_02=skipped)["refused"] == [
        "drive imagenet: no host that has a list of workspace vision was reached"
    ]


def facts(**more: Any) -> dict[str, Any]:
    value = {
        "daemon": {"installed": True, "last_cycle_age_s": 3.0},
        "leases": [],
        "eviction": {"waiting": {}},
        **more,
    }
    return {"ansible_facts": {"stowage_storage": value}}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "it was not waited for, or is out of reach now"),
        (facts(daemon={"installed": False}), "there is no daemon, which removes copies: roll the host out"),
        (
            facts(daemon={"installed": True, "last_cycle_age_s": None}),
            "the daemon, which removes copies, is not at work: systemctl status stowaged",
        ),
        (facts(eviction={"waiting": {"vision.imagenet": "held by pin r/1"}}), "held by pin r/1"),
        (facts(leases=[{"copy": "vision.imagenet", "run": "r"}, {"copy": "x", "run": "y"}]), "run r uses it"),
        (facts(), "it is being removed, or was in an earlier data location: journalctl -u stowaged"),
    ],
)
def test_why_a_host_still_holds_a_copy(more: dict[str, Any], why: str) -> None:
    told = found(gpu_01={**result(deleting=True), **more}, gpu_02=result())
    assert (told["holding"], told["done"]) == ({"gpu-01": why}, ["gpu-02"])


def test_what_it_told_last_counts() -> None:
    waited = {"drive_delete_waited": result()["drive_delete_result"]}
    assert found(gpu_01={**result(deleting=True), **waited})["done"] == ["gpu-01"]
    skipped = {"drive_delete_waited": {"skipped": True}}
    assert found(gpu_01={**result(), **skipped})["done"] == ["gpu-01"]


def test_the_table() -> None:
    told = found(
        gpu_01=result(),
        gpu_02={
            **result(deleting=True),
            **facts(
                eviction={
                    "waiting": {"vision.imagenet": "in use: process 4711 (python) has its working directory in it"}
                }
            ),
        },
        gpu_03=result(unseen=["data location /data: is not there"]),
        gpu_04={"drive_delete_result": {"unreachable": True}},
        gpu_05={"drive_delete_result": {"skipped": True}},
    )
    assert told["table"] == [
        "drive vision/imagenet: 1 of 3 hosts hold no copy any more",
        "  gpu-02  in use: process 4711 (python) has its working directory in",
        "          it",
        "  gpu-03  unknown: data location /data: is not there",
        "not reached; they delete it at their next rollout, if the tombstone is in the inventory:",
        "  gpu-04",
        "without a list of the workspace in host_drives, and so not asked:",
        "  gpu-05",
    ]
    assert (told["not_reached"], told["not_listed"]) == (["gpu-04"], ["gpu-05"])


def test_wrong_input() -> None:
    with pytest.raises(AnsibleFilterError, match="the input must be hostvars"):
        drive_deletion([], "gpu-01", "vision", "imagenet")
