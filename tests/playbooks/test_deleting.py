# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks drive_delete, uninstall and data_location, run by Ansible over hosts that only seem to be some.

Their modules are stand-ins: each says on a host what the test has told for it, and that it was asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playbooks_lab import AWAY, HERE, Lab, Played

MODULES = ("drives", "storage_facts", "uninstall", "data_location")
# WANT_JSON: a program that is given the file with its arguments, in the host's own directory for temporary files.
STAND_IN = '''#!/usr/bin/python
"""WANT_JSON"""
import json, os, sys
arguments = json.load(open(sys.argv[1]))
directory = sys.argv[1].rpartition("/ansible-tmp-")[0]
home, host = os.path.split(directory)
module = "%s"
with open(os.path.join(home, "asked"), "a") as asked:
    force = (arguments.get("workspaces") or [{"drives": [{}]}])[0]["drives"][-1].get("force", "")
    print(host, module, "check" if arguments["_ansible_check_mode"] else "do", *([force] if force else []), file=asked)
answers = json.load(open(os.path.join(home, "answers.json")))[host][module]
number = sum(line.split()[:2] == [host, module] for line in open(os.path.join(home, "asked")))
print(json.dumps(answers[min(number, len(answers)) - 1]))
'''
PLACED = {"sources": [{"node_scope": "placed"}]}
CONFIRMED = "-e drive_delete_name=imagenet -e drive_delete_confirm=imagenet"


Play = Callable[..., Played]


@pytest.fixture
def play(lab: Lab) -> Play:
    """Run a playbook: ``play(playbook, arguments, hosts, answers)``; a host without answers is out of reach.

    It was asked which host, which module, and whether to change anything.
    """
    for name in MODULES:
        lab.stand_in(name, STAND_IN % name)

    def run(
        playbook: str,
        arguments: str,
        hosts: dict[str, Any],
        answers: dict[str, dict[str, list[Any]]] | None = None,
        strategy: str = "linear",
    ) -> Played:
        answers = answers or {}
        lab.environment["ANSIBLE_STRATEGY"] = strategy
        known = {name: {**(HERE if name in answers else AWAY), **variables} for name, variables in hosts.items()}
        return lab.play(playbook, *arguments.split(), hosts=known, answers=answers)

    return run


# -- drive_delete


def declaring(workspace: str = "vision", **entry: Any) -> dict[str, Any]:
    entry = entry or {"spec": PLACED}
    return {
        "host_drives": {
            workspace: [{"metadata": {"name": "imagenet"}, **entry}, {"metadata": {"name": "b"}, "spec": PLACED}]
        }
    }


def told(deleting: bool = False, **more: Any) -> dict[str, Any]:
    return {
        "drives": {"vision": []},
        "deleting": {"vision": ["imagenet"] if deleting else []},
        "begun": {"vision": ["imagenet"] if deleting else []},
        "used_by": {"vision": {}},
        "unknown": {"vision": []},
        "kinds": {"vision": {}},
        "unread": [],
        "unseen": [],
        **more,
    }


def facts(running: bool = True) -> dict[str, Any]:
    daemon = {"installed": True, "running": running, "last_cycle_age_s": 2.0}
    return {"ansible_facts": {"stowage_storage": {"daemon": daemon, "leases": [], "eviction": None}}}


UP_AGAIN = "run it again when they are up, or set drive_delete_allow_unreached=true"


def test_a_drive_is_deleted_where_it_can_be_and_one_failure_comes_after_the_table(play: Play) -> None:
    """Mixed lists, a host that says no in the end, one whose copy stays, one out of reach, one outside of the limit."""
    hosts = {
        "gpu-00": declaring("nlp"),
        "gpu-01": declaring(),
        "gpu-02": declaring(),
        "gpu-03": declaring(),
        "gpu-04": declaring(),
        "gpu-05": declaring(),
    }
    answers = {
        "gpu-00": {"drives": []},
        "gpu-01": {"drives": [told(True), {**told(True), "changed": True}, told()]},
        "gpu-02": {"drives": [told(True)], "storage_facts": [facts(running=False)]},
        "gpu-03": {"drives": [told(True), {"failed": True, "msg": "DATAVOLUME_IN_USE: a run came between"}]},
    }
    choice = "-e drive_delete_workspace=vision -e drive_delete_wait=1 --limit !gpu-05"
    played = play("drive_delete", f"{CONFIRMED} {choice}", hosts, answers)
    said = "drive vision/imagenet: 1 of 5 hosts hold no copy any more"
    stopped = "the daemon, which removes copies, is not at work: systemctl status stowaged"
    refused = "DATAVOLUME_IN_USE: a run came between"
    assert played.status == 2, played.output
    assert " ".join(" ".join(played.table("drive vision/imagenet")).split()) == " ".join(
        [
            said,
            f"gpu-02 {stopped}",
            f"gpu-03 {refused}",
            "not reached; they delete it at their next rollout, if the tombstone is in the inventory: gpu-04",
            "not asked, as outside of --limit or drive_delete_hosts; they keep it, whoever uses it there: gpu-05",
            "without a list of the workspace in host_drives, and so not asked: gpu-00",
        ]
    )
    assert played.stats == {
        "stowage_drive_delete_done": ["gpu-01"],
        "stowage_drive_delete_holding": {"gpu-02": stopped, "gpu-03": refused},
        "stowage_drive_delete_not_reached": ["gpu-04"],
        "stowage_drive_delete_not_asked": ["gpu-05"],
    }
    away, failure = played.failures
    assert "Failed to create temporary directory" in away, "Ansible says so of a host out of reach, and goes on"
    assert failure == f"{said}; 1 not reached: {UP_AGAIN}; see the table above"
    assert "The inventory still declares the drive." in played.output
    assert "unknown error" not in played.output.lower()
    assert [line for line in played.asked if "gpu-01" in line] == [
        "gpu-01 drives check True",  # so that it says who uses it
        "gpu-01 drives do",
        "gpu-01 drives check",
    ]
    assert not [line for line in played.asked if "gpu-00" in line or "gpu-05" in line]


@pytest.mark.parametrize(
    ("arguments", "answer", "refused", "asked"),
    [
        ("-e drive_delete_wait=ten", {}, "drive_delete_wait: 'ten' must be a whole number of seconds", 0),
        (
            "-e drive_delete_force= -e drive_delete_wait= -e drive_delete_workspace=vision -e drive_delete_hosts=",
            {"used_by": {"vision": {"imagenet": ["r/w0"]}}},
            "DATAVOLUME_IN_USE: drive imagenet is used by 1 live worker(s);"
            " end their runs on gpu-01 (r/w0), or set drive_delete_force=true",
            1,
        ),
    ],
)
def test_what_is_not_deleted(play: Play, arguments: str, answer: dict[str, Any], refused: str, asked: int) -> None:
    answers = {"gpu-01": {"drives": [told(True, **answer)]}, "gpu-02": {"drives": []}}
    hosts = {"gpu-01": declaring(), "gpu-02": declaring("nlp")}
    played = play("drive_delete", f"{CONFIRMED} {arguments}", hosts, answers)
    assert played.status == 2 and len(played.failures) == 1 and played.failures[0].startswith(refused), played.output
    assert played.asked == ["gpu-01 drives check True"] * asked


@pytest.mark.parametrize("arguments", ["-e drive_delete_wait=0", "--check"])
def test_hosts_out_of_reach_make_it_fail_unless_they_may_be(play: Play, arguments: str) -> None:
    """An AWX workflow goes on where it succeeds."""
    hosts = {f"gpu-0{number}": declaring(state="absent") for number in range(3)}
    answers = {"gpu-00": {"drives": [told()]}}
    played = play("drive_delete", f"{CONFIRMED} {arguments}", hosts, answers)
    assert played.status == 2 and played.failures[-1].startswith("drive vision/imagenet: "), played.output
    assert played.failures[-1].endswith(f"; 2 not reached: {UP_AGAIN}; see the table above")
    assert played.stats["stowage_drive_delete_not_reached"] == ["gpu-01", "gpu-02"]
    played = play("drive_delete", f"{CONFIRMED} {arguments} -e drive_delete_allow_unreached=true", hosts, answers)
    assert played.status == 0 and "gpu-01, gpu-02" in " ".join(played.table("drive vision/imagenet")), played.output


def test_other_deletions_of_the_inventory_are_not_carried_out(play: Play) -> None:
    hosts = {"gpu-01": declaring(), "gpu-02": declaring()}
    answers = {
        "gpu-01": {"drives": [told(True)]},
        "gpu-02": {"drives": [told(True, begun={"vision": ["b", "imagenet"]})]},
    }
    played = play("drive_delete", f"{CONFIRMED} -e drive_delete_force=true", hosts, answers)
    assert played.status == 2 and played.failures == [
        "drive imagenet: with it others would be deleted, whose tombstones are not rolled out yet: b (on gpu-02);"
        " roll these hosts out first, or leave them out"
    ], played.output
    assert sorted(played.asked) == ["gpu-01 drives check True", "gpu-02 drives check True"]


@pytest.mark.parametrize("strategy", ["free", "host_pinned"])
def test_hosts_are_judged_together_whatever_the_site_s_strategy(play: Play, strategy: str) -> None:
    hosts = {f"gpu-0{number}": declaring() for number in range(3)}
    answers = {host: {"drives": [told(True)]} for host in hosts}
    answers["gpu-02"] = {"drives": [told(True, used_by={"vision": {"imagenet": ["r/w0"]}})]}
    played = play("drive_delete", CONFIRMED, hosts, answers, strategy)
    assert played.status == 2 and len(played.failures) == 1, played.output
    assert sorted(played.asked) == [f"{host} drives check True" for host in hosts]


def test_deleted_everywhere(play: Play) -> None:
    kinds = {"vision": {"imagenet": "scratch on each machine"}}
    answers = {"gpu-01": {"drives": [told(kinds=kinds)]}}
    played = play("drive_delete", CONFIRMED, {"gpu-01": declaring(state="absent")}, answers)
    assert played.status == 0, played.output
    assert " ".join(" ".join(played.table("drive vision/imagenet")).split()) == (
        "drive vision/imagenet: deleted on 1 of 1 host; it was scratch on each machine and had no copies:"
        " only the name is gone, nothing on disk was touched"
    )
    assert played.failures == [] and "still declares" not in played.output
    assert played.asked == ["gpu-01 drives check True", "gpu-01 drives do"]


# -- uninstall


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        ("--limit gpu-01", "give the pattern of hosts again, all, to take Stowage off 1 host (gpu-01)"),
        ("-e uninstall_hosts=gpu-01 -e uninstall_confirm=all", "give the pattern of hosts again, gpu-01, to take"),
    ],
)
def test_uninstalling_is_confirmed(play: Play, arguments: str, refused: str) -> None:
    answers = {name: {"uninstall": [{}]} for name in ("gpu-01", "gpu-02")}
    played = play("uninstall", arguments, dict.fromkeys(answers, {}), answers)
    assert played.status == 2, played.output
    (failure,) = played.failures
    assert failure.startswith(f"uninstall_confirm: {refused}") and played.asked == []


def test_what_is_uninstalled_is_what_was_confirmed(play: Play) -> None:
    report = {"layout": None, "data_location": None, "copies": {}, "leases": [], "former_data_locations": []}
    answer = {
        "uninstall": [{"aside": [], "changed": True}],
        "storage_facts": [{"ansible_facts": {"stowage_storage": report}}],
    }
    answers = {"gpu-01": answer, "gpu-02": answer}
    played = play("uninstall", "-e uninstall_hosts= -e uninstall_confirm=all", dict.fromkeys(answers, {}), answers)
    assert played.status == 0, played.output
    assert sorted(line for line in played.asked if "uninstall" in line) == [
        "gpu-01 uninstall do",
        "gpu-02 uninstall do",
    ]


# -- data_location


def test_a_data_location_that_would_not_be_chosen(play: Play) -> None:
    """A host whose inventory is wrong, one out of reach; a size for no folder, and blank for what is declared."""
    disks = {"ansible_facts": {"stowage_storage": {"disks": [], "recommended": None, "filesystems": []}}}
    answers = {
        name: {"storage_facts": [disks], "data_location": [{"folder": "/mnt/a"}]} for name in ("gpu-01", "gpu-02")
    }
    hosts: dict[str, Any] = {"gpu-01": {"host_data_location": "/mnt/a"}, "gpu-02": {}}
    played = play("data_location", "-e data_location_max_bytes=5G -e data_location_path=", hosts, answers)
    assert played.status == 2 and played.asked == [], played.output
    assert sorted(played.failures) == [
        "data_location_max_bytes: without data_location_path nothing is chosen; give both",
        "host_data_location of gpu-01: must be a dictionary with path and max_bytes",
    ]
