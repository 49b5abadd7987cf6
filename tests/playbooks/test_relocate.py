# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook relocate, run by Ansible over hosts that only seem to be some, with stand-ins for its modules."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from jinja2 import Environment
from playbooks_lab import AWAY, HERE, REPOSITORY, Lab, Played

# WANT_JSON: a program that is given the file with its arguments, in the host's own directory for temporary files.
STAND_IN = '''#!/usr/bin/python
"""WANT_JSON"""
import json, os, sys
arguments = json.load(open(sys.argv[1]))
directory = sys.argv[1].rpartition("/ansible-tmp-")[0]
home, host = os.path.split(directory)
module = "%s"
state = arguments.get("state", "planned" if module == "relocation" else arguments["overrides"].get("runs", "") or "old")
state = "new" if isinstance(state, dict) else state
with open(os.path.join(home, "asked"), "a") as asked:
    print(host, "check" if arguments["_ansible_check_mode"] else "do", module, state, file=asked)
answers = json.load(open(os.path.join(home, "answers.json")))[host]
new = {"path": "/mnt/new/runs", "mount_point": "/mnt/new"}
told = {
    "relocation": {
        "stage": {"planned": "", "closed": "closed", "copied": "verified", "given_up": "given up"}.get(state, state),
        "path": "/srv/runs", "to": "/mnt/new/runs", "bytes": 1000, "shared": [False, False], "progress": "half way",
        "shared_as": "", "makes_copy": True,
        "moves": {"runs": ["/srv/runs", "/mnt/new/runs"]}, "references": ["/etc/exports:1: /srv/runs"],
        "unseen": ["/srv/state: 2 files"], "backup": "/var/lib/stowage/relocations/runs-1.tar.gz",
        "overrides": {"runs": new}, "overrides_before": {"runs": ""}, "lines": ["host_storage_overrides:", "  runs: X"],
    },
    "storage_layout": {"settings": {}},
}[module]
told = {"changed": state != "planned", "actions": [] if state in ("planned", "old") else [state], **told}
print(json.dumps({**told, **answers.get("all", {}), **answers.get(state, {})}))
'''
MOVE = {"relocate_location": "runs", "relocate_to": "/mnt/new/runs"}
FAILED = {"failed": True, "msg": "runs: it went wrong", "actions": [], "stage": ""}
BACK = "it is in use as before the move, and jobs are not held"

SSH = """#!/bin/sh
# Runs the command here, but fails as often as there are letters in the file.
if [ -s HOME/lost ]; then
  truncate --size=-1 HOME/lost
  exit 255
fi
for command; do :; done
exec sh -c "$command"
"""

Play = Callable[..., Played]


@pytest.fixture
def play(lab: Lab) -> Play:
    """Run the playbook over two hosts; one without answers is out of reach."""
    for name in ("relocation", "storage_layout"):
        lab.stand_in(name, STAND_IN % name)

    def run(
        answers: dict[str, Any] | None = None,
        *arguments: str,
        reached_by: Mapping[str, Any] | None = None,
        **variables: Any,
    ) -> Played:
        given = {"gpu-01": {}, "gpu-02": {}} if answers is None else answers
        hosts = {
            name: {
                **((reached_by or HERE) if name in given else AWAY),
                "host_storage_root": "/srv",
                "ansible_async_dir": str(lab.home),
            }
            for name in ("gpu-01", "gpu-02")
        }
        return lab.play("relocate", *arguments, hosts=hosts, answers=given, variables={**MOVE, **variables})

    return run


def steps(played: Played, host: str) -> list[str]:
    """What a host was asked to do, without what was only to be predicted."""
    asked = [line.split()[1:] for line in played.asked if line.startswith(host)]
    return [state for how, module, state in asked if how == "do" and (module, state) != ("relocation", "planned")]


def test_every_stage_in_its_order_on_all_hosts(play: Play) -> None:
    played = play(relocate_hook="true 'a b'")
    assert played.status == 0, played.output
    for host in ("gpu-01", "gpu-02"):
        assert steps(played, host) == ["closed", "copied", "switched", "new", "finished"]
    order = [line.split()[-1] for line in played.asked if " do " in line and "planned" not in line]
    assert order == sorted(order, key=["closed", "copied", "switched", "new", "finished"].index), (
        "all take each together"
    )
    assert "still names the old path: /etc/exports:1: /srv/runs" in played.output
    assert "Proved by true a b" in played.output and "not looked at: /srv/state: 2 files" in played.output
    assert "of before is in /var/lib/stowage/relocations/runs-1.tar.gz until" in played.output
    assert played.stats == {
        "stowage_relocate_stage": "finished",
        "stowage_relocate_lines": ["host_storage_overrides:", "  runs: X"],
    }


def test_check_mode_changes_nothing(play: Play) -> None:
    played = play(None, "--check")
    assert played.status == 0, played.output
    assert steps(played, "gpu-01") == [] == steps(played, "gpu-02")
    assert "runs: /srv/runs to /mnt/new/runs, 1000.00 Bytes" in played.output


def test_what_one_host_refuses_changes_no_host(play: Play) -> None:
    played = play({"gpu-01": {}, "gpu-02": {"planned": FAILED}})
    assert played.status == 2 and played.refusal == "runs: it went wrong (on gpu-02)"
    assert steps(played, "gpu-01") == []


def test_a_host_out_of_reach_is_not_left_behind(play: Play) -> None:
    played = play({"gpu-01": {}})
    assert played.status != 0 and "it is out of reach (on gpu-02)" in played.output
    assert steps(played, "gpu-01") == []


def test_what_is_not_rolled_out_is_not_moved(play: Play) -> None:
    played = play({"gpu-01": {"old": {"actions": ["write x"]}}, "gpu-02": {}})
    assert played.status == 2
    assert "the host is not as the inventory declares it: write x; roll it out first" in played.refusal
    assert steps(played, "gpu-02") == []


@pytest.mark.parametrize(
    ("at", "before", "undone"),
    [
        ("closed", [], "given up"),
        ("copied", ["copied"], "given up"),
        ("switched", ["copied", "switched"], "undone"),
        ("new", ["copied", "switched", "new"], "undone"),
    ],
)
def test_what_fails_on_one_host_is_undone_on_all(play: Play, at: str, before: list[str], undone: str) -> None:
    back = {"undone": {"stage": undone}}
    played = play({"gpu-01": back, "gpu-02": {at: FAILED, **back}})
    assert played.status == 2
    assert played.refusal == f"runs: it went wrong (on gpu-02); {BACK}"
    for host in ("gpu-01", "gpu-02"):
        settings = ["old"] if undone == "undone" else []
        assert steps(played, host) == ["closed", *before, "undone", *settings, "given_up"]


def test_a_hook_that_fails_undoes_it(play: Play) -> None:
    played = play(relocate_hook="sh -c 'echo the run does not resume >&2; false'")
    assert played.status == 2
    assert played.refusal == f"the run does not resume (on gpu-01, gpu-02); {BACK}"
    assert steps(played, "gpu-01")[-3:] == ["undone", "old", "given_up"]


def test_what_cannot_be_undone_stays_held_and_is_said(play: Play) -> None:
    played = play({"gpu-01": {"undone": FAILED}, "gpu-02": {}}, relocate_to="", relocate_give_up="true")
    assert played.status == 2
    assert played.refusal == "runs cannot go back; not back: runs: it went wrong (on gpu-01)"
    assert steps(played, "gpu-01") == ["undone"]


@pytest.mark.parametrize("hook", ["", "false"])
def test_settings_that_do_not_switch_back_keep_jobs_held_and_are_said(play: Play, hook: str) -> None:
    """Also when the host says nothing but what is wrong."""
    before = {"undone": {"overrides_before": {"runs": "/srv/was"}}}
    answers = {
        "gpu-01": {**before, "/srv/was": {"msg": "runs: is now on another disk", "settings": None}},
        "gpu-02": {},
    }
    how = {"relocate_hook": hook} if hook else {"relocate_to": "", "relocate_give_up": "true"}
    played = play(answers, **how)
    assert played.status == 2
    assert "not back: runs: is now on another disk (on gpu-01)" in played.refusal and BACK not in played.output
    assert steps(played, "gpu-01")[-2:] == ["undone", "/srv/was"], "jobs stay held"
    assert steps(played, "gpu-02")[-3:] == ["undone", "old", "given_up"]


SHARED = {"shared": [True, True], "shared_as": "nas:/x/runs"}
MAKER, OTHER = {**SHARED, "makes_copy": True}, {**SHARED, "makes_copy": False}


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"relocate_to": "", "relocate_give_up": "true"},
        {"relocate_to": "", "relocate_confirm": "/srv/runs"},
        {"relocate_to": "", "relocate_forget": "true"},
    ],
)
def test_hosts_that_share_it_take_part_in_every_action(play: Play, asked: dict[str, str]) -> None:
    played = play({"gpu-01": {"all": MAKER}, "gpu-02": {"all": OTHER}}, relocate_hosts="gpu-01", **asked)
    assert played.status == 2
    assert "hosts share nas:/x/runs, and gpu-02 was not asked; name it in relocate_hosts" in played.refusal
    assert steps(played, "gpu-01") == []


def test_two_do_not_copy_one_directory(play: Play) -> None:
    played = play({"gpu-01": {"all": MAKER}, "gpu-02": {"all": MAKER}})
    assert "gpu-01, gpu-02 share nas:/x/runs, and gpu-01, gpu-02 would each copy it" in played.refusal
    assert steps(played, "gpu-01") == []


def test_hosts_that_share_it_do_not_finish_ahead_of_who_sets_it_aside(play: Play) -> None:
    played = play({"gpu-01": {"all": MAKER, "finished": FAILED}, "gpu-02": {"all": OTHER}})
    assert played.status == 2 and played.refusal == "runs: it went wrong (on gpu-01); jobs are held"
    assert steps(played, "gpu-01")[-1] == "finished" and "finished" not in steps(played, "gpu-02")


def test_hosts_that_share_it_go_back_together_or_not_at_all(play: Play) -> None:
    give_up = {"relocate_to": "", "relocate_give_up": "true"}
    played = play({"gpu-01": {"all": MAKER}, "gpu-02": {"all": OTHER, "undone": FAILED}}, **give_up)
    assert played.status == 2 and "runs does not go back: runs: it went wrong (on gpu-02)" in played.refusal
    assert steps(played, "gpu-01") == []


def test_given_up(play: Play) -> None:
    played = play(relocate_to="", relocate_give_up="true")
    assert played.status == 0, played.output
    assert steps(played, "gpu-01") == ["undone", "old", "given_up"]


def test_retired_only_when_no_host_refuses(play: Play) -> None:
    tells = {"retired": {"actions": ["delete 41 files with 7 MB"]}}
    played = play({"gpu-01": tells, "gpu-02": tells}, relocate_to="", relocate_confirm="/srv/runs")
    assert played.status == 0, played.output
    assert [line for line in played.asked if "gpu-01" in line] == [
        "gpu-01 check relocation retired",
        "gpu-01 do relocation retired",
    ]
    assert "relocate_forget=true" in played.output and "delete 41 files" in played.output
    played = play({"gpu-01": {}, "gpu-02": {"retired": FAILED}}, relocate_to="", relocate_confirm="/srv/runs")
    assert played.refusal == "runs: it went wrong (on gpu-02)" and steps(played, "gpu-01") == []


def test_how_far_it_is_shows_while_it_goes_on(play: Play, lab: Lab) -> None:
    slow = STAND_IN.replace("print(json", "import time; time.sleep(20 if state == 'copied' else 0)\nprint(json")
    lab.stand_in("relocation", slow % "relocation")
    played = play({"gpu-01": {}}, relocate_hosts="gpu-01")
    assert played.status == 0, played.output
    assert played.output.count("runs: half way") > 1


def test_a_connection_that_is_lost_for_a_while_ends_no_copy(play: Play, lab: Lab) -> None:
    lost = "import time; state == 'copied' and (open(f'{home}/lost', 'w').write('xxx'), time.sleep(8))\nprint(json"
    lab.stand_in("relocation", STAND_IN.replace("print(json", lost) % "relocation")
    ssh = lab.home / "ssh"
    ssh.write_text(SSH.replace("HOME", str(lab.home)))
    ssh.chmod(0o755)
    by_ssh = {
        **HERE,
        "ansible_connection": "ssh",
        "ansible_ssh_executable": str(ssh),
        "ansible_ssh_transfer_method": "piped",
    }
    played = play({"gpu-01": {}}, reached_by=by_ssh, relocate_hosts="gpu-01")
    assert played.status == 0, played.output
    assert steps(played, "gpu-01") == ["closed", "copied", "switched", "new", "finished"]
    assert "runs: the host is not reached, and asked again" in played.output
    assert (lab.home / "lost").read_text() == ""


def test_watching_for_a_week_includes_itself_less_than_a_hundred_times() -> None:
    tasks = (REPOSITORY / "playbooks/parts/relocate_watch.yml").read_text()
    (expression,) = re.findall(r'relocate_pause: "{{ (.*) }}"', tasks)
    longer = Environment(autoescape=True).compile_expression(expression)
    pauses = [2]
    while sum(pauses) < 7 * 86400:
        pauses.append(longer(relocate_pause=pauses[-1]))
    assert pauses[:4] == [2, 3, 4, 6] and max(pauses) == 10800 and len(pauses) < 100


def test_refused_before_any_host_is_asked(play: Play) -> None:
    played = play(relocate_location="run")
    assert played.refusal == "relocate_location: there is no location 'run'; did you mean runs?"
    assert played.asked == []


def test_several_hosts_do_not_share_a_new_directory(play: Play) -> None:
    shared = {"planned": {"shared": [False, True]}}
    played = play({"gpu-01": shared, "gpu-02": shared})
    assert "is seen by several hosts, each of which has a location of its own there" in played.refusal
