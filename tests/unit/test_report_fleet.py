# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a report says of hosts and of the fleet, and that what is not known is never a figure."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
import yaml
from fleet_lab import NOW, Fleet
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.stowage.host.plugins.modules import storage_facts
from ansible_collections.stowage.host.plugins.plugin_utils.report import fleet
from ansible_collections.stowage.host.plugins.plugin_utils.report.hosts import LARGEST, Asked, used_pct
from ansible_collections.stowage.host.plugins.plugin_utils.report.told import folded
from stowage_core.errors import Refusal


def report(**facts: Any) -> dict[str, Any]:
    """The report on one host with these facts."""
    return fleet.fleet([Asked("gpu-01", {"gathered": NOW - 5, **facts})], NOW)


def of_host(**facts: Any) -> dict[str, Any]:
    found: dict[str, Any] = report(**facts)["hosts"][0]
    return found


def filesystem(mount: str, used: int | None, free: int | None, **more: Any) -> dict[str, Any]:
    size = None if used is None or free is None else used + free
    told = {"mount": mount, "mounts": [mount], "size_bytes": size, "used_bytes": used, "free_bytes": free}
    return {**told, "answers": size is not None, "shared": False, "error": "", **more}


@pytest.mark.parametrize(
    ("used", "free", "percent"),
    [
        (0, 100, 0),
        (1, 999, 1),  # as df, rounded up
        (93, 7, 93),
        (931, 69, 94),
        (100, 0, 100),
        (0, 0, None),
        (None, 5, None),
        (5, None, None),
    ],
)
def test_how_full_a_filesystem_is(used: int | None, free: int | None, percent: int | None) -> None:
    assert used_pct(used, free) == percent


def test_blocks_that_are_reserved_for_root_count_as_df_counts_them() -> None:
    told = {**filesystem("/", 80, 15), "size_bytes": 100}
    assert of_host(filesystems=[told])["filesystems"][0]["used_pct"] == 85


def test_the_fullest_filesystem_is_one_that_something_is_on() -> None:
    disks = [filesystem("/", 99, 1), filesystem("/mnt/a", 20, 80), filesystem("/mnt/b", 40, 60)]
    lustre = filesystem("/lustre", 98, 2, shared=True)
    assert of_host(filesystems=[*disks, lustre])["fullest"]["mount"] == "/"
    layout = {"locations": {"runs": {"path": "/mnt/a/runs"}, "state": {"path": "/lustre/state"}}}
    found = of_host(filesystems=[*disks, lustre], layout=layout, data_location={"path": "/mnt/b/stowage"})
    assert found["fullest"] == {"mount": "/mnt/b", "used_pct": 40, "free_bytes": 60}
    assert {one["mount"]: one["holds"] for one in found["filesystems"]} == {
        "/": [],
        "/mnt/a": ["runs"],
        "/mnt/b": ["data location"],
        "/lustre": ["state"],
    }


def test_what_a_location_is_on_is_what_its_host_found_out() -> None:
    disks = [filesystem("/", 30, 70), filesystem("/mnt/a", 20, 80)]
    layout = {"locations": {"runs": {"path": "/data/runs", "mount": "/mnt/a"}}}  # over a link
    found = of_host(filesystems=disks, layout=layout)
    assert found["fullest"]["mount"] == "/mnt/a"
    assert [one["holds"] for one in found["filesystems"]] == [[], ["runs"]]


def test_nothing_is_known_of_a_host_that_told_nothing() -> None:
    asked = [Asked("gpu-02", None, "Connection timed out", reached=False)]
    found = fleet.fleet(asked, NOW)
    (host,) = found["hosts"]
    assert (host["answers"], host["why"], host["gathered"]) == (False, "Connection timed out", None)
    assert (host["gate"]["open"], host["fullest"], host["filesystems"], host["leases"]) == (None, None, [], None)
    assert found["summary"]["space"]["local"] == {
        "filesystems": 0,
        "unknown": 0,
        "size_bytes": None,
        "used_bytes": None,
        "free_bytes": None,
    }
    assert found["summary"]["copies"]["bytes"] is None
    assert found["accounts"]["unknown"] == 1 and found["accounts"]["users"] == []
    assert all(hosts == ["gpu-02"] for hosts in found["not_known"].values())
    assert [(one["what"], one["items"]) for one in found["attention"]] == [
        ("Hosts that do not answer", [{"host": "gpu-02", "text": "Connection timed out"}])
    ]


@pytest.mark.parametrize(
    "told",
    [
        {"problems": ["x" * (LARGEST + 1)]},
        {"problems": ["x"] * LARGEST},
        {"problems": functools.reduce(lambda inner, _: [inner], range(100_000), ["x"])},
    ],
    ids=("text", "list", "depth"),
)
def test_a_host_that_tells_too_much_does_not_crowd_out_the_others(told: dict[str, Any]) -> None:
    found = fleet.fleet([Asked("gpu-01", told), Asked("gpu-02", {"filesystems": [filesystem("/", 10, 90)]})], NOW)
    assert [host["answers"] for host in found["hosts"]] == [False, True]
    why = "its facts are larger than 4.0 MB: look at them with the module storage_facts"
    assert [(one["what"], one["items"]) for one in found["attention"]] == [
        ("Hosts that could not report their storage", [{"host": "gpu-01", "text": why}])
    ]
    assert len(fleet.dumps(found)) < 10_000


def test_a_number_that_no_filesystem_could_have_is_not_known() -> None:
    user = {"bytes": 10**400, "quota": 1, "exceeded_since": NOW}
    accounts = {"users": {"ann": user}, "tracked": {"runs": 2**63}}
    sizes = {"size_bytes": 10**400, "used_bytes": 10**400}
    found = report(filesystems=[{**filesystem("/", 10, 90), **sizes}], accounts=accounts)
    assert found["hosts"][0]["filesystems"][0]["used_bytes"] is None
    assert found["accounts"]["users"][0]["bytes"] is None
    assert "ann uses an unknown part of 1 B" in found["attention"][0]["items"][0]["text"]


def test_a_silent_host_has_the_figures_that_it_told_last() -> None:
    facts = {"gathered": NOW - 7200, "filesystems": [filesystem("/", 10, 90)], "gate": {"holds": []}, "problems": ["x"]}
    found = fleet.fleet([Asked("gpu-02", facts, "no route", reached=False)], NOW)
    assert (found["hosts"][0]["problems"], [one["what"] for one in found["attention"]]) == (
        ["x"],
        ["Hosts that do not answer"],
    )
    # It was open then; whether it is now, nobody knows.
    assert (found["hosts"][0]["gate"]["open"], found["summary"]["gates"]["unknown"]) == (None, 1)
    assert found["hosts"][0]["gathered"] == NOW - 7200
    assert found["hosts"][0]["fullest"]["used_pct"] == 10


def test_a_shared_filesystem_counts_once() -> None:
    lustre = filesystem("/lustre", 50, 50, shared=True, fstype="lustre", source="10.0.0.1@o2ib:/fs")
    hung = {**filesystem("/scratch", None, None), "shared": True, "fstype": "lustre", "source": lustre["source"]}
    asked = [
        Asked(f"gpu-{n}", {"filesystems": [filesystem("/", 10, 90), hung if n == 1 else lustre]}) for n in range(3)
    ]
    space = fleet.fleet(asked, NOW)["summary"]["space"]
    assert (space["local"]["filesystems"], space["local"]["size_bytes"]) == (3, 300)
    assert (space["shared"]["filesystems"], space["shared"]["size_bytes"], space["shared"]["unknown"]) == (1, 100, 0)


@pytest.mark.parametrize(
    ("gate", "is_open"),
    [
        (None, None),
        ({}, None),
        ({"holds": "all"}, None),
        ({"holds": []}, True),
        ({"holds": [{"reason": "watermark", "text": "full"}]}, False),
        ({"holds": [{"reason": "quota", "text": "ann", "user": "ann"}]}, True),
        (
            {"holds": [{"reason": "quota", "text": "vision", "team": "vision"}, {"reason": "stale", "text": "old"}]},
            False,
        ),
    ],
)
def test_a_gate_is_open_held_or_not_known(gate: Any, is_open: bool | None) -> None:
    assert of_host(gate=gate)["gate"]["open"] is is_open


def test_what_is_not_available_is_told_with_each_reason_once() -> None:
    gone = {"available": False, "mounted": False, "reason": "its filesystem is not mounted"}
    found = of_host(
        layout={
            "locations": {
                "runs": {**gone, "path": "/mnt/a/runs", "reason": "/mnt/a/runs: its filesystem is not mounted"},
                "cache": {"path": "/c", "mounted": None, "available": True},
                "reflow": {"path": "/r", "mounted": False},  # the daemon has not looked yet
                "state": {**gone, "path": "/s"},
            }
        },
        data_location={"path": "/mnt/b/stowage", "available": False},
        filesystems=[filesystem("/lustre", None, None, shared=True, error="does not answer")],
        drives={
            "ml": [{"name": "a", "sources": [{"path": "/x", "answers": False}, {"path": "/y", "available": False}]}]
        },
        tiers=[{"backend": "chat", "position": 0, "path": "/kv", "claimed": None}],
        volumes=[{"name": "atlas", "path": "/v/atlas", "available": False}],
    )
    told = {one["reason"]: [f"{path['what']} {path['path']}" for path in one["paths"]] for one in found["unavailable"]}
    assert told == {
        "its filesystem is not mounted": ["location runs /mnt/a/runs", "location state /s"],
        "its disk is not mounted": ["location reflow /r"],
        "it is not mounted, or not its own": ["data location /mnt/b/stowage"],
        "does not answer": ["filesystem /lustre", "drive ml/a, source 0 /x"],
        "is not there": ["drive ml/a, source 1 /y", "volume atlas /v/atlas"],
        "it cannot be seen": ["tier chat/0 /kv"],
    }


def unmeasured(location: str, path: str, reason: str) -> dict[str, Any]:
    return {"location": location, "path": path, "reason": reason}


@pytest.mark.parametrize(
    ("location", "unavailable", "told"),
    [
        # Right after a rollout.
        (
            {"available": True, "bytes": None, "complete": False, "reason": ""},
            [unmeasured("runs", "/r", "has not been measured yet")],
            [("location runs", ""), ("users and teams", "")],
        ),
        # A directory that cannot be read.
        (
            {"available": True, "bytes": 5, "complete": False, "reason": "/r: ann/x: Permission denied"},
            [unmeasured("runs", "/r", "/r: ann/x: Permission denied")],
            [("location runs", "ann/x: Permission denied"), ("users and teams", "")],
        ),
        # What is in no location, and stamps of teams that are damaged.
        (
            {"available": True, "bytes": 5, "complete": True, "reason": ""},
            [unmeasured("root", "/s", "/s: lost: Permission denied"), unmeasured("runs", "/v/ann.json", "no JSON")],
            [("users and teams", "location root: lost: Permission denied; location runs: no JSON")],
        ),
    ],
)
def test_what_could_not_be_measured_is_there(
    location: dict[str, Any], unavailable: list[dict[str, Any]], told: list[tuple[str, str]]
) -> None:
    layout = {"locations": {"runs": {"path": "/r", "mounted": None, **location}}}
    accounts = {"measured": None, "complete": False, "unavailable": unavailable}
    found = report(layout=layout, accounts=accounts)
    assert found["attention"] == [] and found["hosts"][0]["unavailable"] == []
    assert [(one["what"], one["reason"]) for one in found["hosts"][0]["incomplete"]] == told


def test_why_a_location_is_not_there_is_told_where_it_is_missing() -> None:
    gone = {
        "path": "/r",
        "available": False,
        "bytes": 5,
        "complete": False,
        "reason": "/r: gone",
        "measured": NOW - 900,
    }
    found = of_host(layout={"locations": {"runs": gone}})
    assert [one["reason"] for one in found["unavailable"]] == ["gone"]
    assert found["incomplete"] == [{"what": "location runs", "measured": NOW - 900, "reason": ""}]


def test_what_is_incomplete_or_not_measured() -> None:
    measured = {"bytes": 5, "complete": True, "measured": NOW}
    found = of_host(
        filesystems=[filesystem("/nfs", 1, 1, shared=True)],
        layout={
            "locations": {
                "runs": {"path": "/r", "bytes": 5, "complete": False, "measured": NOW - 900},
                "cache": {"path": "/c", **measured},
                "state": {"path": "/s"},
                "packages": {"path": "/nfs/p"},  # another host may measure it
            }
        },
        copies={"ml.a": {"present": True}, "ml.b": {"present": False}, "ml.c": measured},
        accounts={"complete": False, "measured": NOW - 900},
    )
    assert [(one["what"], one["measured"]) for one in found["incomplete"]] == [
        ("location runs", NOW - 900),
        ("location state", None),
        ("copy ml.a", None),
        ("users and teams", NOW - 900),
    ]


def drive(*sources: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "imagenet", "state": "present", "used_by": [], "sources": list(sources), **more}


ON_GPU_01 = {"node_scope": "", "node": "gpu-01", "path": "/data"}
MEASURED = {"available": True, "answers": True, "bytes": 700, "files": 7, "complete": True, "measured": NOW - 60}


def listed(*hosts: Asked) -> dict[str, Any]:
    (found,) = fleet.fleet(list(hosts), NOW)["drives"]
    return dict(found)


def test_a_drive_on_one_machine_has_the_figures_of_that_machine() -> None:
    found = listed(
        Asked("gpu-01", {"drives": {"ml": [drive({**ON_GPU_01, **MEASURED}, used_by=["r1/w0"])]}}),
        Asked("gpu-02", {"drives": {"ml": [drive(ON_GPU_01, used_by=["r1/w1", "r2/w0"])]}}),
    )
    assert (found["state"], found["where"], found["messages"]) == ("Available", ["gpu-01:/data"], [])
    assert (found["bytes"], found["files"], found["unmeasured"], found["measured"]) == (700, 7, 0, NOW - 60)
    assert found["answers"] == {"yes": 1, "no": 0}
    assert found["workers"] == ["gpu-01: r1/w0", "gpu-02: r1/w1", "gpu-02: r2/w0"]


@pytest.mark.parametrize(
    ("source", "holder", "state", "message"),
    [
        (ON_GPU_01, "down", "Unreachable", "source 0 is on machine gpu-01 which is Down"),
        (ON_GPU_01, "not asked", "Not known", "source 0 is on machine gpu-01 which was not asked"),
        ({**ON_GPU_01, "answers": False}, "up", "Unavailable", "source 0: /data does not answer on gpu-01"),
        ({**ON_GPU_01, "available": False}, "up", "Unavailable", "source 0: /data is not there on gpu-01"),
        (
            {**ON_GPU_01, "node_scope": "shared"},
            "down",
            "Not known",
            "source 0 is measured by machine gpu-01 which is Down",
        ),
        (
            {"node_scope": "local-any", "path": "/s", "answers": False},
            "up",
            "Unavailable",
            "source 0: /s does not answer",
        ),
    ],
)
def test_why_a_drive_is_not_available(source: dict[str, Any], holder: str, state: str, message: str) -> None:
    facts = {"drives": {"ml": [drive(source)]}}
    asked = [Asked("gpu-02", facts)]
    if holder != "not asked":
        asked.append(
            Asked("gpu-01", None if holder == "down" else facts, "no route" * (holder == "down"), holder == "up")
        )
    found = listed(*asked)
    assert found["state"] == state
    assert found["messages"][0].startswith(message)
    assert found["bytes"] is None and found["unmeasured"] >= 1


def test_a_placed_drive_has_the_sum_of_its_copies() -> None:
    placed = drive({"node_scope": "placed", "path": ""}, evictable=True, size_hint_bytes=100)
    copy = {"workspace": "ml", "drive": "imagenet", "present": True}
    found = listed(
        Asked("gpu-01", {"drives": {"ml": [placed]}, "copies": {"ml.imagenet": {**copy, "bytes": 90, "files": 3}}}),
        Asked(
            "gpu-02",
            {"drives": {"ml": [placed]}, "copies": {"ml.imagenet": copy}, "data_location": {"path": "/d"}},
        ),
    )
    assert (found["bytes"], found["files"], found["unmeasured"]) == (90, 3, 1)
    assert (found["where"], found["size_hint_bytes"]) == (["each machine's data location"], 100)
    assert [(one["host"], one["bytes"], one["folder"]) for one in found["copies"]] == [
        ("gpu-01", 90, ""),
        ("gpu-02", None, "/d/drives/ml.imagenet"),
    ]


def test_scratch_adds_up_over_the_machines() -> None:
    source = {"node_scope": "local-any", "path": "/s"}
    facts = [{**source, **MEASURED}, {**source, **MEASURED, "bytes": 1, "complete": False}, source]
    found = listed(*(Asked(f"gpu-{n}", {"drives": {"ml": [drive(one)]}}) for n, one in enumerate(facts)))
    assert (found["bytes"], found["unmeasured"], found["incomplete"]) == (701, 1, 1)
    assert found["answers"] == {"yes": 2, "no": 0}


@pytest.mark.parametrize(
    ("drives", "state"), [({}, "Not declared"), ({"ml": [{"name": "imagenet", "state": "absent"}]}, "Deleted")]
)
def test_copies_whose_drive_is_gone(drives: dict[str, Any], state: str) -> None:
    copies = {"ml.imagenet": {"workspace": "ml", "drive": "imagenet", "present": True, "bytes": 5}}
    found = listed(Asked("gpu-01", {"drives": drives, "copies": copies}))
    assert (found["state"], found["bytes"]) == (state, 5)


def test_users_add_up_over_hosts_and_the_most_pressed_quota_is_first() -> None:
    def told(size: int | None, since: float | None = None, **more: Any) -> dict[str, Any]:
        users = {
            "ann": {"bytes": size, "runs": 2, "quota": 100, "exceeded_since": since},
            "bo": {"bytes": 9, "runs": 1},
        }
        account = {"measured": NOW - 9, "complete": True, "users": users, "tracked": {"runs": 10, "other": None}}
        return {"accounts": {**account, "count": {"users": 2}, **more}}

    asked = [
        Asked("gpu-01", told(60)),
        Asked("gpu-02", told(120, NOW - 7200, complete=False, measured=None, count={"users": 3})),
        Asked("gpu-03", {}),
    ]
    found = fleet.fleet(asked, NOW)
    accounts = found["accounts"]
    assert (accounts["hosts"], accounts["unknown"], accounts["incomplete"]) == (2, 1, ["gpu-02"])
    assert (accounts["in_part"], accounts["measured"]) == ({"users": 1, "teams": 0}, NOW - 9)
    assert [(one["name"], one["bytes"], one["runs"], one["hosts"], one["unmeasured"]) for one in accounts["users"]] == [
        ("ann", 180, 4, 2, 0),
        ("bo", 18, 2, 2, 0),
    ]
    assert [one["host"] for one in accounts["users"][0]["quotas"]] == ["gpu-02", "gpu-01"]
    assert accounts["tracked"] == {
        "runs": {"bytes": 20, "unmeasured": 0},
        "other": {"bytes": None, "unmeasured": 2},
    }
    quotas = next(one for one in found["attention"] if one["what"] == "Quotas exceeded")
    assert quotas["items"] == [{"host": "gpu-02", "text": "user ann uses 120 B of 100 B, for 2 h"}]


def test_a_sum_says_how_many_hosts_tell_of_others_only() -> None:
    def told(count: int, **sizes: int | None) -> dict[str, Any]:
        users = {name: {"bytes": size, "runs": 1} for name, size in sizes.items()}
        return {"accounts": {"users": users, "teams": {"vision": {"bytes": 1}}, "count": {"users": count, "teams": 1}}}

    asked = [
        Asked("gpu-01", told(1, ann=10)),
        Asked("gpu-02", told(200, bob=900)),  # something of ann may be among the rest
        Asked("gpu-03", told(100, bob=30, ann=None)),
        Asked("gpu-04", told(1, cy=1)),  # these are all
    ]
    accounts = fleet.fleet(asked, NOW)["accounts"]
    assert [(one["name"], one["bytes"], one["hosts"], one["unmeasured"]) for one in accounts["users"]] == [
        ("bob", 930, 2, 0),
        ("ann", 10, 1, 2),
        ("cy", 1, 1, 2),
    ]
    assert [(one["name"], one["unmeasured"]) for one in accounts["teams"]] == [("vision", 0)]
    assert accounts["in_part"] == {"users": 2, "teams": 0}


def test_network_mounts_in_trouble_come_first() -> None:
    mounts = [
        {"workspace": "ml", "drive": "a", "state": "Bound", "answers": True, "available": True, "proto": "rdma"},
        {"workspace": "ml", "drive": "b", "state": "Bound", "answers": False, "available": False, "proto": "tcp"},
        {"workspace": "ml", "drive": "c", "state": "Failed", "reason": "timed out"},
    ]
    found = report(network_mounts=mounts)["network_mounts"]
    assert [(one["drive"], one["state"]) for one in found] == [("b", "Unreachable"), ("c", "Failed"), ("a", "Bound")]


def test_tiers_that_cannot_be_read_are_not_known_rather_than_none() -> None:
    assert report(tiers=None)["not_known"]["tiers"] == ["gpu-01"]
    assert report(tiers=[])["not_known"]["tiers"] == []


def test_events_of_all_hosts_are_the_newest_first() -> None:
    asked = [
        Asked("gpu-01", {"events": [{"time": 1.0, "message": "a"}, {"time": 3.0, "message": "c"}]}),
        Asked("gpu-02", {"events": [{"time": 2.0, "message": "b"}]}),
    ]
    assert [one["message"] for one in fleet.fleet(asked, NOW)["events"]] == ["c", "b", "a"]


def test_trouble_of_one_kind_is_one_with_all_its_hosts() -> None:
    holds = {"holds": [{"reason": "watermark", "text": "full"}]}
    found = fleet.fleet([Asked(f"gpu-{n}", {"gate": holds}) for n in range(50)], NOW)
    assert [(one["what"], len(one["items"])) for one in found["attention"]] == [("Gates held: watermark", 50)]


def test_a_reason_is_told_once_of_each_host() -> None:
    missing = [f"location {name} (/mnt/{name}) is not available: its disk is gone" for name in "abcde"]
    holds = [{"reason": "unavailable", "text": one} for one in (*missing, "location f (/f) is not available: it hangs")]
    found = fleet.fleet([Asked(f"gpu-{n}", {"gate": {"holds": holds}}) for n in range(2)], NOW)
    (kind,) = found["attention"]
    assert [(one["host"], one["text"]) for one in kind["items"]] == [
        (f"gpu-{n}", text)
        for n in range(2)
        for text in (
            "location a (/mnt/a) is not available, location b (/mnt/b) is not available, "
            "location c (/mnt/c) is not available and 2 more: its disk is gone",
            "location f (/f) is not available: it hangs",
        )
    ]


def test_lines_without_a_reason_are_not_put_together() -> None:
    lines = ["user ann uses 2 B of 1 B", "user bob uses 2 B of 1 B", "a: x: y", "b: y", "c: x: y"]
    assert folded(lines) == ["user ann uses 2 B of 1 B", "user bob uses 2 B of 1 B", "a, c: x: y", "b: y"]


@pytest.mark.parametrize(
    ("stage", "moves"), [("held", 1), ("switched", 1), ("finished", 0), ("retired", 0), ("given up", 0)]
)
def test_a_location_that_is_being_moved_needs_attention(stage: str, moves: int) -> None:
    found = report(relocations=[{"location": "runs", "path": "/a", "to": "/b", "stage": stage, "since": NOW}])
    assert len(found["attention"]) == moves
    assert found["hosts"][0]["relocations"][0]["stage"] == stage


@pytest.mark.parametrize(
    ("standing", "text"),
    [
        ("lost", "runs: /b is to be mounted at /a and is not"),
        ("foreign", "runs: /b is mounted at /a, which nobody has recorded"),
    ],
)
def test_an_old_path_that_did_not_come_back_needs_attention(standing: str, text: str) -> None:
    move = {"location": "runs", "path": "/a", "to": "/b", "stage": "retired", "standing": standing, "since": NOW}
    (found,) = report(relocations=[move])["attention"]
    assert (found["level"], found["items"]) == ("bad", [{"host": "gpu-01", "text": text}])


def documented() -> dict[str, Any]:
    """The facts of a host as the documentation of the module storage_facts has them."""
    told = yaml.safe_load(storage_facts.RETURN)["ansible_facts"]["contains"]["stowage_storage"]["contains"]

    def sample(field: dict[str, Any]) -> Any:
        if "contains" not in field:
            return field["sample"]
        one = {name: sample(inner) for name, inner in field["contains"].items()}
        return [one] if field["type"] == "list" else one

    return {name: sample(field) for name, field in told.items()}


def test_everything_that_is_documented_of_a_host_is_understood() -> None:
    found = fleet.fleet([Asked("gpu-01", documented())], NOW)
    (host,) = found["hosts"]
    assert host["fullest"] == {"mount": "/mnt/nvme0", "used_pct": 13, "free_bytes": 3200123904000}
    assert host["filesystems"][0]["holds"] == ["data location"]
    assert (host["gate"]["open"], host["gate"]["watermark_pct"]) == (False, 90.0)
    assert host["gate"]["judged"] is not None and host["gate"]["holds"][0]["reason"] == "watermark"
    assert host["daemon"] == {"installed": True, "running": True, "last_cycle_age_s": 4.2}
    assert [one["name"] for one in host["locations"]] == ["runs"]
    assert (host["unavailable"], host["relocations"][0]["stage"]) == ([], "finished")
    (drive,) = found["drives"]
    assert (drive["name"], drive["bytes"], drive["workers"]) == ("hf-cache", 107000000000, ["gpu-01: finetune-3/w0"])
    assert found["accounts"]["users"][0]["quotas"][0]["exceeded_since"] == 1764419995.0
    assert found["accounts"]["tracked"]["runs"] == {"bytes": 812000000000, "unmeasured": 0}
    (mount,) = found["network_mounts"]
    assert (mount["state"], mount["proto"], mount["node"]) == ("Bound", "rdma", "gpu-01")
    (backend,) = found["tiers"]
    assert (backend["backend"], backend["bytes"], backend["capacity"]) == ("chat", 67141632, 4398046511104)
    (volume,) = found["volumes"]
    assert (volume["name"], volume["grants"], volume["users"]) == ("models", 2, 1)
    assert found["events"][0]["reason"] == "Evicted"
    assert all(hosts == [] for hosts in found["not_known"].values())


_FIELDS = ("path", "locations", "holds", "users", "ann", "quota", "bytes", "sources", "mounts", "measured", "time")
_ANY = st.recursive(
    st.sampled_from([None, True, -1, 10**30, 0.5, float("nan"), "", "<\x00\ud800"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=3),
    max_leaves=6,
)
_PARTS = (
    *("gathered", "filesystems", "layout", "data_location", "drives", "copies", "network_mounts", "tiers", "volumes"),
    *("accounts", "gate", "events", "eviction", "daemon", "leases", "problems"),
)


@given(st.dictionaries(st.sampled_from(_PARTS), _ANY))
def test_no_host_can_spoil_the_report_whatever_it_tells(facts: dict[str, Any]) -> None:
    found = fleet.fleet([Asked("gpu-01", facts), Asked("gpu-02", {"gate": {"holds": []}})], NOW)
    assert [host["name"] for host in found["hosts"]] == ["gpu-01", "gpu-02"]
    assert found["hosts"][1]["gate"]["open"] is True


def test_json_has_nothing_that_is_taken_for_a_template() -> None:
    names = "{{ 1 }} {% x %} {# y #} {{{ z"
    text = fleet.dumps(fleet.fleet([Asked(names, None, "no")], NOW))
    assert not any(mark in text for mark in ("{{", "{%", "{#"))
    assert json.loads(text)["hosts"][0]["name"] == names


def test_a_report_can_be_read_again() -> None:
    known = Fleet(50).hosts
    found = fleet.fleet([Asked(name, facts, "" if facts else "no") for name, facts in known.items()], NOW)
    assert fleet.read(fleet.dumps(found)) == json.loads(json.dumps(found))
    assert fleet.read(found) is found


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "the report: is not valid JSON"),
        ("[]", "the report: is not one of version 1; make it with the filter report_fleet"),
        ({"version": 2, "hosts": []}, "the report: is not one of version 1"),
        (None, "the report: is not one of version 1"),
    ],
)
def test_what_is_no_report_is_refused(value: Any, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        fleet.read(value)
