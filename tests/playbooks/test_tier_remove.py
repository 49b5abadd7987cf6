# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook tier_remove, run by Ansible over hosts that only seem to be some, with stand-ins for its modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playbooks_lab import AWAY, HERE, Lab, Played

# WANT_JSON: a program that is given the file with its arguments, in the host's own directory for temporary files.
STAND_IN = '''#!/usr/bin/python
"""WANT_JSON"""
import json, os, sys
arguments = json.load(open(sys.argv[1]))
directory = sys.argv[1].rpartition("/ansible-tmp-")[0]
home, host = os.path.split(directory)
module = "%s"
with open(os.path.join(home, "asked"), "a") as asked:
    check = "check" if arguments["_ansible_check_mode"] else "do"
    print(host, module, check, *arguments.get("backends", []), *arguments.get("forget", []), file=asked)
answers = json.load(open(os.path.join(home, "answers.json")))[host][module]
number = sum(line.split()[:2] == [host, module] for line in open(os.path.join(home, "asked")))
print(json.dumps(answers[min(number, len(answers)) - 1]))
'''
CONFIRMED = "-e tier_remove_name=chat -e tier_remove_confirm=chat"
BUSY = "tier chat/0: TierNotCleaned: /mnt/kv: process 7 (store) is a store process on it; stop it first"

Play = Callable[..., Played]


@pytest.fixture
def play(lab: Lab) -> Play:
    """Run the playbook; a host without answers is out of reach."""
    for name in ("storage_facts", "tier_directory"):
        lab.stand_in(name, STAND_IN % name)

    def run(arguments: str, answers: dict[str, Any], *more: str, selected: str = "", **variables: Any) -> Played:
        group = {"hosts": selected.split(), "capacity_per_member": "1Gi", "local_disks": [{"path": "/mnt/kv"}]}
        declared = [{"name": "chat", "members": [group]}] if selected else []
        hosts = {
            name: {**(HERE if name in answers else AWAY), "host_kv_caches": declared, **variables}
            for name in (*answers, *more)
        }
        return lab.play("tier_remove", *arguments.split(), hosts=hosts, answers=answers)

    return run


def holding(*results: dict[str, Any], backend: str = "chat") -> dict[str, Any]:
    tiers = [{"backend": backend, "position": 0, "path": "/mnt/kv", "survey": None}]
    facts = {"ansible_facts": {"stowage_storage": {"tiers": tiers}}}
    return {"storage_facts": [facts], "tier_directory": list(results)}


def told(reason: str = "TierCleaned", **more: Any) -> dict[str, Any]:
    return {"changed": True, "removed": [{"name": "chat/0", "reason": reason, "message": f"/mnt/kv: {reason}"}], **more}


def test_every_host_that_holds_a_tier_is_judged_and_then_cleaned(play: Play) -> None:
    answers = {
        "gpu-01": holding(told()),
        "gpu-02": holding(told()),  # no group selects it any more
        "gpu-03": holding(backend="code"),
    }
    played = play(CONFIRMED, answers, selected="gpu-01")
    assert played.status == 0, played.output
    asked = [line for line in played.asked if "storage_facts" not in line]
    assert sorted(asked[:2]) == ["gpu-01 tier_directory check chat", "gpu-02 tier_directory check chat"]
    assert sorted(asked[2:]) == ["gpu-01 tier_directory do chat", "gpu-02 tier_directory do chat"]
    assert played.table("backend chat")[0] == "backend chat: it is off 2 of 2 hosts"
    assert "The inventory still declares the backend chat." in played.output
    assert played.stats == {
        "stowage_tier_remove_done": ["gpu-01", "gpu-02"],
        "stowage_tier_remove_failed": {},
        "stowage_tier_remove_not_reached": [],
        "stowage_tier_remove_not_asked": [],
    }


def test_what_one_host_refuses_changes_no_host(play: Play) -> None:
    refused = told("TierNotCleaned", failed=True, msg=BUSY)
    played = play(CONFIRMED, {"gpu-01": holding(told()), "gpu-02": holding(refused)})
    assert played.status == 2
    assert played.refusal == f"{BUSY} (on gpu-02)"
    assert not any(" do " in line and "tier_directory" in line for line in played.asked)


def test_a_host_whose_records_cannot_be_read_changes_no_host(play: Play) -> None:
    facts = {"ansible_facts": {"stowage_storage": {"tiers": None, "problems": ["/var/x.json: not valid JSON"]}}}
    played = play(CONFIRMED, {"gpu-01": holding(told()), "gpu-02": {"storage_facts": [facts]}})
    assert played.status == 2
    assert played.refusal == (
        "what it holds is not known: its records of tiers cannot be read; /var/x.json: not valid JSON (on gpu-02)"
    )
    assert not any(" do " in line and "tier_directory" in line for line in played.asked)


def test_hosts_out_of_reach_are_named_and_fail_it_unless_allowed(play: Play) -> None:
    answers = {"gpu-01": holding(told())}
    played = play(CONFIRMED, answers, "gpu-02", "cpu-01", selected="gpu-01 gpu-02")
    assert played.status == 2
    assert "1 not reached (TierNotCleaned): run it again when they are up" in played.refusal
    table = played.table("backend chat")
    assert "TierNotCleaned: out of reach; they keep content and claim until it is run again:" in table
    assert table[-1] == "  cpu-01" and "  gpu-02" in table
    assert played.stats["stowage_tier_remove_not_reached"] == ["gpu-02"]
    assert [line for line in played.asked if line.startswith("gpu-01 tier_directory do")]
    allowed = play(f"{CONFIRMED} -e tier_remove_allow_unreached=true", answers, "gpu-02", selected="gpu-01 gpu-02")
    assert allowed.status == 0, allowed.output


def test_a_host_that_was_cut_short_is_said_and_fails_it(play: Play) -> None:
    partly = told("TierPartlyCleaned", failed=True, msg="tier chat/0: TierPartlyCleaned: stopped, 256 files")
    played = play(CONFIRMED, {"gpu-01": holding(told(), partly), "gpu-02": holding(told())})
    assert played.status == 2
    assert played.stats["stowage_tier_remove_failed"] == {"gpu-01": partly["msg"]}
    assert played.stats["stowage_tier_remove_done"] == ["gpu-02"]


def test_hosts_outside_are_named(play: Play) -> None:
    answers = {"gpu-01": holding(told()), "gpu-02": holding(told())}
    played = play(f"{CONFIRMED} -e tier_remove_hosts=gpu-01", answers, selected="gpu-01 gpu-02")
    assert played.status == 0, played.output
    assert played.stats["stowage_tier_remove_not_asked"] == ["gpu-02"]
    assert not any(line.startswith("gpu-02") for line in played.asked)


def test_check_mode_says_what_would_be_done(play: Play) -> None:
    played = play(f"{CONFIRMED} --check", {"gpu-01": holding(told())}, host_kv_caches_forget=["i-1"])
    assert played.status == 0, played.output
    assert "would be taken off 1 of 1 host; nothing was changed" in played.output
    assert {line.split()[2] for line in played.asked} == {"check"}
    assert played.asked[1] == "gpu-01 tier_directory check chat i-1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-e tier_remove_name=chat", "tier_remove_confirm: give the name of the backend again, chat"),
        ("-e tier_remove_name= -e tier_remove_confirm=", "tier_remove_name: name the backend"),
        (f"{CONFIRMED} -e tier_remove_allow_unreached=perhaps", "must be true or false"),
    ],
)
def test_what_is_not_confirmed_asks_no_host(play: Play, arguments: str, message: str) -> None:
    played = play(arguments, {"gpu-01": holding(told())})
    assert played.status == 2 and message in played.refusal
    assert played.asked == []


def test_a_wrong_name_is_refused(play: Play) -> None:
    played = play(CONFIRMED, {"gpu-01": holding(backend="code")})
    assert played.refusal == "backend chat: no host that was asked holds a tier of it; correct the name"
