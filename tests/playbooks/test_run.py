# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/run_prepare.yml and run_release.yml over several hosts, which a module without a host answers for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playbooks_lab import AWAY, HERE, REPOSITORY, Lab, Played

HOSTS = ("gpu-01", "gpu-02", "gpu-03")
RUN = {"run_hosts": "all", "run_name": "r", "run_workspace": "ml", "run_drives": "cache"}

ANSWERS = '''#!/usr/bin/python
"""Answers as the test says, instead of drive_mount, and notes what it was asked. It waits as long as it is told."""
import json, os, time
from ansible.module_utils.basic import AnsibleModule

TEXTS = ("run", "worker", "workspace", "host_name", "datavolume_refs", "volumes_of", "volumes_team")
TYPES = {**dict.fromkeys(TEXTS, "raw"), "confirm_within": "int", "timeout": "int", "force": "bool", "volumes": "list"}
module = AnsibleModule(
    {"state": {"default": "prepared"}, **{name: {"type": kind} for name, kind in TYPES.items()}},
    supports_check_mode=True,
)
home, host = os.path.split(module._remote_tmp)
state = "predicted" if module.check_mode and module.params["state"] == "prepared" else module.params["state"]
with open(f"{home}/asked", "a") as stream:
    given = {name: value for name, value in module.params.items() if value is not None and name != "state"}
    stream.write(json.dumps([host, state, given]) + "\\n")
with open(f"{home}/answers.json") as stream:
    answer = json.load(stream).get(host, {})
if state in answer:
    module.fail_json(msg=answer[state], changed=False, actions=[])
if state == "released":
    module.exit_json(changed=True, actions=["unmount drive cache at /data/cache"])
source = f"/run/stowage/pins/{module.params['run']}/1"
mount = {"source": source, "target": "/data/cache", "read_only": False, "drive": "cache", "source_index": 0}
waiting = answer.get("waiting", [])
if waiting and state == "prepared":
    time.sleep(min(module.params["timeout"], answer.get("seconds", 1)))
    with open(f"{home}/asked") as stream:
        if sum(line.startswith(json.dumps([host, state])[:-1]) for line in stream) > answer.get("times", 10**6):
            waiting = []
    if not waiting and "then" in answer:
        module.fail_json(msg=answer["then"], changed=False, actions=[])
mounts = [] if waiting else [mount]
environment = {}
if module.params["volumes_of"]:
    volume = {"source": source, "target": "/volumes/models", "read_only": True, "volume": "models", "sub_path": ""}
    mounts, environment = [volume], {"VOLUMES_DIR": "/volumes"}
module.exit_json(
    changed=True, actions=[], mounts=mounts, docker=[], kubernetes={}, waiting=waiting, held=answer.get("held", []),
    used_by={}, environment=environment, volumes_left_out=answer.get("left_out", []),
)
'''

NO_NETWORK_MOUNTS = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({"host_name": {}, "run": {}, "state": {}}, supports_check_mode=True)
module.exit_json(changed=False, mounts=[])
"""


class Site:
    """Hosts whose drive_mount answers as the test says."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        lab.stand_in("drive_mount", ANSWERS)
        lab.stand_in("nfs_mounts", NO_NETWORK_MOUNTS)

    def play(
        self,
        playbook: str,
        variables: dict[str, Any],
        *options: str,
        answers: dict[str, Any] | None = None,
        hosts: dict[str, dict[str, Any]] | None = None,
    ) -> Played:
        """Run a playbook; ``asked`` is then what hosts were asked."""
        known = {name: {**HERE, **more} for name, more in (hosts or dict.fromkeys(HOSTS, {})).items()}
        played = self._lab.play(playbook, *options, hosts=known, variables=variables, answers=answers)
        self.asked = [json.loads(line) for line in played.asked]
        return played

    def states(self) -> list[tuple[str, str]]:
        return [(host, state) for host, state, _given in self.asked]


@pytest.fixture
def site(lab: Lab) -> Site:
    return Site(lab)


# -- What is refused before any host is asked

SECONDS = "is no number of seconds"
OF = "is no run; give user/experiment/run_id, or leave it blank for a worker without volumes"
VOLUMES = "names no volume; give names, comma-separated, or leave it blank for all that the run is granted"
DRIVES = "give name or name:/mount/path, comma-separated, or [] for a worker without drives"
OF_BOTH = [
    ({"run_name": ""}, 'run_name: "" names no run; give its name'),
    ({"run_name": "  "}, 'run_name: "  " names no run; give its name'),
    ({"run_name": None}, "run_name: null names no run; give its name"),
    ({"run_name": ["r"]}, 'run_name: ["r"] names no run; give its name'),
    ({"run_name": False}, "run_name: false names no run; give its name"),
    ({"run_worker": ["w"]}, 'run_worker: ["w"] names no worker; give its name, or leave it blank'),
    ({"run_worker": []}, "run_worker: [] names no worker; give its name, or leave it blank"),
    ({"run_worker": False}, "run_worker: false names no worker; give its name, or leave it blank"),
    ({"run_worker": True}, "run_worker: true names no worker; give its name, or leave it blank"),
    ({"run_worker": 0.0}, "run_worker: 0.0 names no worker; give its name, or leave it blank"),
]
OF_PREPARE = [
    *OF_BOTH,
    ({"run_workspace": ""}, 'run_workspace: "" names no workspace; give its name'),
    ({"run_workspace": {"a": 1}}, 'run_workspace: {"a": 1} names no workspace; give its name'),
    ({"run_drives": ""}, f'run_drives: "" names no drive; {DRIVES}'),
    ({"run_drives": " , "}, f'run_drives: " , " names no drive; {DRIVES}'),
    ({"run_drives": None}, f"run_drives: null names no drive; {DRIVES}"),
    ({"run_drives": {"name": "a"}}, f'run_drives: {{"name": "a"}} names no drive; {DRIVES}'),
    ({"run_drives": True}, f"run_drives: true names no drive; {DRIVES}"),
    ({"run_workspace": False}, "run_workspace: false names no workspace; give its name"),
    ({"run_drives": 0}, f"run_drives: 0 names no drive; {DRIVES}"),
    ({"run_wait": "soon"}, f'run_wait: "soon" {SECONDS}; give a whole one, or leave it blank for 600'),
    ({"run_wait": "None"}, f'run_wait: "None" {SECONDS}; give a whole one, or leave it blank for 600'),
    ({"run_wait": False}, f"run_wait: false {SECONDS}; give a whole one, or leave it blank for 600"),
    (
        {"run_confirm_within": False},
        f"run_confirm_within: false {SECONDS} above 0; give a whole one, or leave it blank for 3600",
    ),
    (
        {"run_confirm_within": 0},
        f"run_confirm_within: 0 {SECONDS} above 0; give a whole one, or leave it blank for 3600",
    ),
    ({"run_wait": -1}, f"run_wait: -1 {SECONDS}; give a whole one, or leave it blank for 600"),
    ({"run_wait": 1.5}, f"run_wait: 1.5 {SECONDS}; give a whole one, or leave it blank for 600"),
    ({"run_wait": [1]}, f"run_wait: [1] {SECONDS}; give a whole one, or leave it blank for 600"),
    ({"run_wait": "1" * 10}, f'run_wait: "1111111111" {SECONDS}; give a whole one, or leave it blank for 600'),
    (
        {"run_confirm_within": "0"},
        f'run_confirm_within: "0" {SECONDS} above 0; give a whole one, or leave it blank for 3600',
    ),
    (
        {"run_confirm_within": "1h"},
        f'run_confirm_within: "1h" {SECONDS} above 0; give a whole one, or leave it blank for 3600',
    ),
    ({"run_of": "ann"}, f'run_of: "ann" {OF}'),
    ({"run_of": ["ann/tune/1"]}, f'run_of: ["ann/tune/1"] {OF}'),
    ({"run_of": False}, f"run_of: false {OF}"),
    ({"run_of": "", "run_workspace": "", "run_drives": "[]"}, 'run_workspace: "" names no workspace; give its name'),
    ({"run_of": "a/b/c", "run_workspace": ""}, 'run_workspace: "" names no workspace; give its name'),
    ({"run_team": "vision"}, 'run_team: "vision" is for no run; give run_of, whose team it is'),
    ({"run_of": "a/b/c", "run_team": ["x"]}, 'run_team: ["x"] is no team; give its name, or leave it blank'),
    ({"run_volumes": "models"}, 'run_volumes: "models" is for no run; give run_of, whose volumes they are'),
    ({"run_of": "a/b/c", "run_volumes": []}, f"run_volumes: [] {VOLUMES}"),
    ({"run_of": "a/b/c", "run_volumes": " , "}, f'run_volumes: " , " {VOLUMES}'),
    ({"run_of": "a/b/c", "run_volumes": {"a": 1}}, f'run_volumes: {{"a": 1}} {VOLUMES}'),
    ({"run_of": "a/b/c", "run_volumes": True}, f"run_volumes: true {VOLUMES}"),
    (
        {"run_name": "", "run_wait": "x"},
        'run_name: "" names no run; give its name; run_wait: "x" is no number of seconds; give a whole one, or leave it'
        " blank for 600",
    ),
]
OF_RELEASE = [
    *OF_BOTH,
    ({"run_wait": "soon"}, f'run_wait: "soon" {SECONDS}; give a whole one, or leave it blank for 60'),
    ({"run_wait": False}, f"run_wait: false {SECONDS}; give a whole one, or leave it blank for 60"),
    (
        {"run_force": "perhaps"},
        'run_force: "perhaps" is neither true nor false; give one of them, or leave it blank for false',
    ),
]


@pytest.mark.parametrize(("playbook", "cases"), [("run_prepare", OF_PREPARE), ("run_release", OF_RELEASE)])
def test_what_is_wrong_is_refused_in_one_line(
    site: Site, playbook: str, cases: list[tuple[dict[str, Any], str]]
) -> None:
    """Each case has a host of its own, so that one run is enough for all of them."""
    hosts = {f"case-{number:02}": {**RUN, **given} for number, (given, _text) in enumerate(cases)}
    played = site.play(playbook, {"run_hosts": "all"}, hosts=hosts)
    assert played.status == 2 and site.asked == [], played.output
    assert played.failed == {name: text for name, (_given, text) in zip(hosts, cases)}


# -- What is asked for

BLANK = {
    "run_worker": "",
    "run_wait": "",
    "run_confirm_within": " ",
    "run_force": "",
    "run_of": None,
    "run_volumes": " ",
    "run_team": "",
}


def test_blank_is_the_default(site: Site) -> None:
    """As AWX gives the fields of a survey that nobody has filled in."""
    played = site.play("run_prepare", {**RUN, **BLANK, "run_hosts": "gpu-01"})
    assert played.status == 0, played.output
    same = {"run": "r", "worker": "gpu-01", "workspace": "ml", "host_name": "gpu-01", "datavolume_refs": "cache"}
    assert site.asked[0] == ["gpu-01", "predicted", same]
    assert site.asked[1:] == [["gpu-01", "prepared", {**same, "confirm_within": 3600, "timeout": 0}]]
    (mount,) = played.stats["stowage_run"]["gpu-01"]["mounts"]
    assert mount["source"] == "/run/stowage/pins/r/1"
    assert {"Run r on gpu-01", "/data/cache  drive cache, read-write", f"is {mount['source']}"} <= set(played.lines)

    played = site.play("run_release", {**RUN, **BLANK, "run_hosts": "gpu-01"})
    assert played.status == 0, played.output
    assert site.asked == [["gpu-01", "released", {"run": "r", "worker": "", "timeout": 60, "force": False}]]
    assert played.stats == {"stowage_run_released": {"gpu-01": ["unmount drive cache at /data/cache"]}}


@pytest.mark.parametrize(
    ("given", "asked", "left_out"),
    [
        (
            {"run_of": " ann/tune/1 ", "run_team": " vision "},
            {"workspace": "ml", "datavolume_refs": "cache", "volumes_team": "vision"},
            [],
        ),
        (
            {"run_of": "ann/tune/1", "run_volumes": "models, data", "run_workspace": "", "run_drives": "[]"},
            {"datavolume_refs": "[]", "volumes": ["models", "data"]},
            ["volume far: it does not answer"],
        ),
        (
            {"run_of": "ann/tune/1", "run_volumes": ["models"], "run_workspace": None, "run_drives": []},
            {"datavolume_refs": [], "volumes": ["models"]},
            [],
        ),
    ],
)
def test_volumes_of_a_run(site: Site, given: dict[str, Any], asked: dict[str, Any], left_out: list[str]) -> None:
    """A worker without drives needs no workspace."""
    answers = {"gpu-01": {"left_out": left_out}}
    played = site.play("run_prepare", {**RUN, **given, "run_hosts": "gpu-01"}, answers=answers)
    assert played.status == 0, played.output
    same = {"run": "r", "worker": "gpu-01", "host_name": "gpu-01", "volumes_of": "ann/tune/1", **asked}
    assert site.asked == [
        ["gpu-01", "predicted", same],
        ["gpu-01", "prepared", {**same, "confirm_within": 3600, "timeout": 0}],
    ]
    told = played.stats["stowage_run"]["gpu-01"]
    assert told["mounts"][0]["volume"] == "models" and told["environment"] == {"VOLUMES_DIR": "/volumes"}
    assert told["volumes_left_out"] == left_out
    assert {"/volumes/models  volume models, read-only", *(f"without {one}" for one in left_out)} <= set(played.lines)


def test_what_is_given_counts(site: Site) -> None:
    given = {"run_worker": "w0", "run_wait": "0", "run_confirm_within": 90, "run_force": "true", "run_hosts": "gpu-02"}
    played = site.play("run_prepare", {**RUN, **given, "run_drives": []})
    assert played.status == 0, played.output
    _host, _state, asked = site.asked[-1]
    assert (asked["worker"], asked["datavolume_refs"], asked["confirm_within"], asked["timeout"]) == ("w0", [], 90, 0)
    played = site.play("run_release", {**RUN, **given})
    assert played.status == 0, played.output
    assert site.asked == [["gpu-02", "released", {"run": "r", "worker": "w0", "timeout": 0, "force": True}]]


@pytest.mark.parametrize(("force", "forced"), [("on", True), (1, True), (False, False), ("No", False)])
def test_a_worker_may_be_called_0(site: Site, force: Any, forced: bool) -> None:
    """It is no blank, which would be all workers of the run."""
    given = {**RUN, "run_hosts": "gpu-01", "run_worker": 0, "run_name": 0, "run_force": force}
    site.play("run_release", given)
    assert site.asked == [["gpu-01", "released", {"run": "0", "worker": "0", "timeout": 60, "force": forced}]]


def test_another_worker_is_prepared_and_released_by_its_name(site: Site) -> None:
    answers = {"gpu-01": {"prepared": "no memory"}}
    site.play("run_prepare", {**RUN, "run_hosts": "gpu-01", "run_worker": 0}, answers=answers)
    assert [(state, given["worker"]) for _host, state, given in site.asked] == [
        ("predicted", "0"),
        ("prepared", "0"),
        ("released", "0"),
    ]


# -- Waiting

WAITS = "Waiting for drive cache to be filled on gpu-01"


def test_it_waits_as_long_as_it_takes(site: Site) -> None:
    """What is waited for is shown, each attempt is told of, and none looks like a failure."""
    short = {**RUN, "run_hosts": "gpu-01", "run_wait": "20", "__run_longest_attempt_s": 3}
    played = site.play("run_prepare", short, answers={"gpu-01": {"waiting": [WAITS], "times": 4, "seconds": 0.1}})
    assert played.status == 0 and not played.failures and WAITS in played.lines, played.output
    assert [given["timeout"] for _host, state, given in site.asked if state == "prepared"] == [0, 3, 3, 3, 3]
    assert played.output.count("FAILED - RETRYING: [gpu-01]: Prepare the drives of the worker (") == 3
    assert played.stats["stowage_run"]["gpu-01"]["mounts"]


@pytest.mark.parametrize(
    ("wait", "longest", "attempts"), [("0", 60, [0]), ("1", 60, [0, 1]), ("5", 2, [0, 2, 2, 2]), ("4", 2, [0, 2, 2])]
)
def test_what_takes_too_long_is_given_up_everywhere(site: Site, wait: str, longest: int, attempts: list[int]) -> None:
    given = {**RUN, "run_wait": wait, "__run_longest_attempt_s": longest}
    played = site.play("run_prepare", given, answers={"gpu-01": {"waiting": [WAITS], "seconds": 0.1}})
    assert played.status == 2, played.output
    told = f"{WAITS}; that took more than {wait} s: see to it, then prepare again, or raise run_wait"
    assert played.failed == {
        host: (told if host == "gpu-01" else f"run r could not be prepared on gpu-01: {told}")
        + "; what was mounted here is released"
        for host in HOSTS
    }
    of_it = [(state, given.get("timeout")) for host, state, given in site.asked if host == "gpu-01"]
    assert of_it == [("predicted", None), *(("prepared", seconds) for seconds in attempts), ("released", None)]


def test_a_host_that_fails_while_it_is_waited_for_is_not_asked_again(site: Site) -> None:
    given = {**RUN, "run_hosts": "gpu-01", "run_wait": "9", "__run_longest_attempt_s": 1}
    answer = {"waiting": [WAITS], "times": 2, "seconds": 0.1, "then": "no memory"}
    played = site.play("run_prepare", given, answers={"gpu-01": answer})
    assert played.failed == {"gpu-01": "no memory; what was mounted here is released"}, played.output
    assert [state for _host, state in site.states()] == ["predicted", *["prepared"] * 3, "released"]


BOUNDED = "relocate_watch.yml"
"""It includes itself ever more rarely: see test_relocate.py."""


def test_no_other_tasks_include_themselves() -> None:
    """Each time is a call within a call, of which Python has so many."""
    included: dict[Path, set[Path]] = {}
    for path in [*REPOSITORY.glob("roles/*/tasks/*.yml"), *REPOSITORY.glob("playbooks/parts/*.yml")]:
        names = re.findall(r"(?:include|import)_tasks:\s*(?:file:\s*)?(\S+)", path.read_text())
        included[path] = {path.parent / name for name in names}
    assert any(included.values())
    assert {path.name for path in included if path in _within(included, path)} == {BOUNDED}


def _within(included: dict[Path, set[Path]], path: Path) -> set[Path]:
    within = set(included[path])
    while more := {deeper for one in within for deeper in included.get(one, set())} - within:
        within |= more
    return within


# -- All hosts, or none


def test_no_host_is_changed_when_one_refuses(site: Site) -> None:
    refused = "drive cache does not exist"
    played = site.play("run_prepare", RUN, answers={"gpu-02": {"predicted": refused}})
    assert played.status == 2 and played.failed == {"gpu-02": refused}, played.output
    assert sorted(site.states()) == [(host, "predicted") for host in HOSTS] and not played.stats


def test_no_host_is_changed_when_one_is_out_of_reach(site: Site) -> None:
    hosts: dict[str, dict[str, Any]] = dict.fromkeys(HOSTS, {})
    hosts["gpu-02"] = AWAY
    played = site.play("run_prepare", RUN, hosts=hosts)
    assert played.status != 0 and "gpu-02" in played.failed, played.output
    assert {state for _host, state in site.states()} == {"predicted"}


def test_what_was_mounted_is_released_when_a_host_fails_after_all(site: Site) -> None:
    """Of a worker that had mounts before, what it has stays; and so it does where it cannot be released."""
    answers = {
        "gpu-02": {"prepared": "no memory"},
        "gpu-03": {"held": ["another-drive"]},
        "gpu-04": {"released": "worker gpu-04 of run r: busy"},
    }
    hosts: dict[str, dict[str, Any]] = dict.fromkeys((*HOSTS, "gpu-04"), {})
    played = site.play("run_prepare", {**RUN, "run_confirm_within": "60"}, answers=answers, hosts=hosts)
    assert played.status == 2 and not played.stats, played.output
    assert sorted((host, given) for host, state, given in site.asked if state == "released") == [
        (host, {"run": "r", "worker": host}) for host in ("gpu-01", "gpu-02", "gpu-04")
    ]
    elsewhere = "run r could not be prepared on gpu-02: no memory"
    until = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    expected = {
        "gpu-01": f"{elsewhere}; what was mounted here is released",
        "gpu-02": "no memory; what was mounted here is released",
        "gpu-03": f"{elsewhere}; the worker had mounts here before, and has until {until} what it has now",
        "gpu-04": rf"{elsewhere}; what was mounted here stays until {until} \(worker gpu-04 of run r: busy\)",
    }
    found = played.failed
    assert found.keys() == expected.keys()
    for host, text in expected.items():
        assert re.fullmatch(text, found[host]), found[host]


# -- Check mode


def test_check_mode_hands_nothing_on_and_says_what_would_be(site: Site) -> None:
    answers = {"gpu-02": {"waiting": ["Waiting for drive cache to be filled on gpu-02"]}}
    played = site.play("run_prepare", RUN, "--check", answers=answers)
    assert played.status == 0 and not played.stats, played.output
    would = "would have this, but nothing is mounted in check mode"
    lines = played.lines
    assert f"Run r on gpu-01 {would}" in lines and f"Run r on gpu-02 {would}" in lines
    assert "/data/cache  drive cache, read-write" in lines and answers["gpu-02"]["waiting"][0] in lines
    assert "/run/stowage/pins" not in played.output

    played = site.play("run_release", RUN, "--check")
    assert played.status == 0 and not played.stats, played.output
    assert "Run r on gpu-01: this would be done, but nothing is in check mode" in played.lines
