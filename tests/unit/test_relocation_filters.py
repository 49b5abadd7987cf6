# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook relocate is asked for, and what it makes of the answers of its hosts."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.filter.relocation_failures import relocation_failures
from ansible_collections.stowage.host.plugins.filter.relocation_request import relocation_request
from ansible_collections.stowage.host.plugins.filter.relocation_sharing import relocation_sharing

ROOT = {"host_storage_root": "/srv"}
HOSTS: dict[str, dict[str, Any]] = {
    "a1": {**ROOT, "host_runs_group": "a"},
    "a2": {**ROOT, "host_runs_group": "a"},
    "b1": {**ROOT, "host_runs_group": "b"},
    "alone": {**ROOT, "host_runs_group": ""},
    "none": {},
}


def asked(hosts: list[str] | None = None, **variables: Any) -> dict[str, Any]:
    return relocation_request(HOSTS, list(HOSTS) if hosts is None else hosts, {"location": "runs", **variables})


@pytest.mark.parametrize(
    ("variables", "action"),
    [
        ({"to": " /mnt/new/runs "}, "move"),
        ({"confirm": "/srv/runs"}, "retire"),
        ({"forget": "yes"}, "forget"),
        ({"give_up": True}, "give_up"),
        ({"to": "/mnt/new", "forget": "", "give_up": "false", "copy": ""}, "move"),
    ],
)
def test_one_thing_is_done(variables: dict[str, Any], action: str) -> None:
    request = asked(**variables)
    assert request["refused"] == "" and request["action"] == action


@pytest.mark.parametrize(
    ("variables", "refused"),
    [
        ({}, "location runs: say one thing to do; give one of relocate_to, relocate_confirm, relocate_forget or"),
        ({"to": "/n", "confirm": "/srv/runs"}, "location runs: say one thing to do"),
        ({"location": "run", "to": "/n"}, "relocate_location: there is no location 'run'; did you mean runs?"),
        ({"location": "", "to": "/n"}, "relocate_location: name one of runs, cache"),
        ({"to": "n"}, "relocate_to: 'n' must be absolute"),
        ({"to": "/n", "copy": "perhaps"}, "relocate_copy: 'perhaps' must be true or false"),
        ({"forget": "perhaps"}, "relocate_forget: 'perhaps' must be true or false"),
        ({"to": "/n", "wait": "10m"}, "relocate_wait: '10m' is no number of seconds"),
        ({"to": "/n", "hook": "a 'b"}, "relocate_hook: cannot be split into words"),
    ],
)
def test_what_is_refused(variables: dict[str, Any], refused: str) -> None:
    assert asked(**variables)["refused"].startswith(refused)


def test_the_rest_of_a_request() -> None:
    request = asked(to="/n", hook="resume --run 'ann/e r'", wait=0, copy="no")
    assert request["hook"] == ["resume", "--run", "ann/e r"] and request["wait_s"] == 0 and not request["with_content"]
    assert asked(to="/n", hook=["a", 1])["hook"] == ["a", "1"]
    assert asked(to="/n")["with_content"] is True and asked(to="/n")["wait_s"] == 600


def test_who_moves_what_several_share() -> None:
    assert asked(to="/n")["makers"] == ["a1", "b1", "alone"] and asked(to="/n")["not_asked"] == []
    assert asked(["a2", "b1"], to="/n")["not_asked"] == ["a1", "alone"]


NFS = {"actions": [], "stage": "", "shared_as": "nas:/x/runs"}
COPIES, FOLLOWS, LOCAL = ({**NFS, **more} for more in ({"makes_copy": True}, {"makes_copy": False}, {"shared_as": ""}))


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ({"a1": LOCAL, "a2": LOCAL, "b1": LOCAL}, []),
        ({"a1": COPIES, "a2": FOLLOWS}, []),
        ({"a1": LOCAL}, []),
        ({"a2": FOLLOWS}, ["hosts share nas:/x/runs, and a1 was not asked; name it in relocate_hosts"]),
        # Two groups, and one directory: what the inventory says of groups is not what counts.
        (
            {"a1": COPIES, "a2": FOLLOWS, "b1": COPIES},
            ["a1, a2, b1 share nas:/x/runs, and a1, b1 would each copy it; give them one host_runs_group"],
        ),
        (
            {"a1": FOLLOWS, "a2": FOLLOWS},
            ["a1, a2 share nas:/x/runs, and none of them would copy it; give them one host_runs_group"],
        ),
        ({"a1": COPIES, "a2": {"unreachable": True}}, ["it is out of reach (on a2)"]),
        ({"a1": COPIES, "a2": {"msg": "its move is finished"}}, ["its move is finished (on a2)"]),
        ({"a1": LOCAL, "a2": {"unreachable": True}}, []),
    ],
)
def test_hosts_that_share_a_location_are_not_parted(answers: dict[str, Any], refused: list[str]) -> None:
    hostvars = {host: {**given, "x": answers.get(host)} for host, given in HOSTS.items()}
    assert relocation_sharing(hostvars, list(answers), "x") == refused


@pytest.mark.parametrize("hosts", ["a1", 7])
def test_wrong_use(hosts: Any) -> None:
    for work in (
        lambda: relocation_request(HOSTS, hosts, {}),
        lambda: relocation_failures(HOSTS, hosts, "x"),
        lambda: relocation_sharing(HOSTS, hosts, "x"),
    ):
        with pytest.raises(AnsibleFilterError):
            work()


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"changed": True, "actions": [], "stage": "closed"}, ""),
        ({"changed": True, "actions": [], "settings": {}}, ""),
        ({"rc": 0, "msg": "", "stderr": "a warning"}, ""),
        ({"skipped": True, "msg": "no"}, ""),
        ({"rc": 1, "msg": "non-zero return code", "stderr": "no\nrun"}, "no run"),
        ({"failed": False, "msg": "refused", "actions": []}, "refused"),
        ({"failed": False, "msg": "given up", "actions": [], "stage": "given up"}, "given up"),
        ({"failed": False, "msg": "MODULE FAILURE", "rc": 1}, "MODULE FAILURE"),
        ({"failed": True, "stage": "closed"}, "it failed"),
        ({"unreachable": True, "msg": "no route"}, "it is out of reach"),
        (None, "it was not asked"),
    ],
)
def test_what_failed(told: Any, why: str) -> None:
    found = relocation_failures({"a": {"x": told}, "b": {"x": told}}, ["a", "b"], "x")
    assert found == ([f"{why} (on a, b)"] if why else [])
