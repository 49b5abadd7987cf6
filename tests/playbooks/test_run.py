# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/run_prepare.yml and run_release.yml over several hosts, which a module without a host answers for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
HOSTS = ("gpu-01", "gpu-02", "gpu-03")
RUN = {"run_hosts": "all", "run_name": "r", "run_workspace": "ml", "run_drives": "cache"}

ANSWERS = '''#!/usr/bin/python
"""Answers as the test says, in stead of drive_mount, and notes what it was asked."""
import json, os
from ansible.module_utils.basic import AnsibleModule

TEXTS = ("run", "worker", "workspace", "host_name", "datavolume_refs")
TYPES = {**dict.fromkeys(TEXTS, "raw"), "confirm_within": "int", "timeout": "int", "force": "bool"}
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
mounts = [] if waiting else [mount]
module.exit_json(
    changed=True, actions=[], mounts=mounts, docker=[], kubernetes={}, waiting=waiting,
    used_by={"cache": answer.get("used_by", [])},
)
'''

NO_NETWORK_MOUNTS = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({"host_name": {}, "state": {}}, supports_check_mode=True)
module.exit_json(changed=False, mounts=[])
"""


class Site:
    """An inventory whose hosts have no host behind them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        collection = home / "collections/ansible_collections/stowage/host"
        modules = collection / "plugins/modules"
        modules.mkdir(parents=True)
        for path in [*REPOSITORY.iterdir(), *(REPOSITORY / "plugins").iterdir()]:
            if path.name not in ("plugins", "modules"):
                (collection / path.relative_to(REPOSITORY)).symlink_to(path)
        answering = {"drive_mount.py": ANSWERS, "nfs_mounts.py": NO_NETWORK_MOUNTS}
        for path in (REPOSITORY / "plugins/modules").glob("*.py"):
            if path.name in answering:
                (modules / path.name).write_text(answering[path.name])
            else:
                (modules / path.name).symlink_to(path)

    def play(
        self,
        playbook: str,
        variables: dict[str, Any],
        *options: str,
        answers: dict[str, Any] | None = None,
        hosts: dict[str, dict[str, Any]] | None = None,
    ) -> str:
        """Run a playbook and return what it says; ``status`` is how it ends, ``asked`` what hosts were asked."""
        (self.home / "answers.json").write_text(json.dumps(answers or {}))
        (self.home / "asked").write_text("")
        local = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
        }
        known = {
            name: {**local, "ansible_remote_tmp": str(self.home / name), **more}
            for name, more in (hosts or dict.fromkeys(HOSTS, {})).items()
        }
        (self.home / "inventory.json").write_text(json.dumps({"all": {"hosts": known}}))
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_COLLECTIONS_PATH": str(self.home / "collections"),
            "ANSIBLE_SHOW_CUSTOM_STATS": "true",
            "ANSIBLE_NOCOLOR": "true",
            "ANSIBLE_FORKS": "20",
            "ANSIBLE_PIPELINING": "true",
        }
        command = [sys.executable, "-m", "ansible", "playbook", f"stowage.host.{playbook}", "-i", "inventory.json"]
        done = subprocess.run(
            [*command, "-e", json.dumps(variables), *options],
            cwd=self.home,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        self.status = done.returncode
        self.asked = [json.loads(line) for line in (self.home / "asked").read_text().splitlines()]
        return done.stdout + done.stderr

    def states(self) -> list[tuple[str, str]]:
        return [(host, state) for host, state, _given in self.asked]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def stats(output: str) -> dict[str, Any]:
    """Return what the next job of a workflow is told; nothing when there is none."""
    if "CUSTOM STATS:" not in output:
        return {}
    text = output.split("CUSTOM STATS:", 1)[1].split("RUN:", 1)[1]
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text.lstrip())[0]
    return found


def failures(output: str) -> dict[str, str]:
    """Return the last message that each host failed with."""
    lines = re.findall(r"^fatal: \[(\S+)\]: \S+ => (\{.*\})$", output, re.MULTILINE)
    found = {host: str(json.loads(said)["msg"]) for host, said in lines}
    assert not any("\n" in text for text in found.values())
    return found


def shown(output: str) -> list[str]:
    return [line.strip(' ",') for line in output.splitlines()]


# -- What is refused before any host is asked

SECONDS = "is no number of seconds"
DRIVES = "give name or name:/mount/path, comma-separated, or [] for a worker without drives"
OF_BOTH = [
    ({"run_name": ""}, 'run_name: "" names no run; give its name'),
    ({"run_name": "  "}, 'run_name: "  " names no run; give its name'),
    ({"run_name": None}, "run_name: null names no run; give its name"),
    ({"run_name": ["r"]}, 'run_name: ["r"] names no run; give its name'),
    ({"run_worker": ["w"]}, 'run_worker: ["w"] names no worker; give its name, or leave it blank'),
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
    ({"run_wait": "soon"}, f'run_wait: "soon" {SECONDS}; give a whole one, or leave it blank for 600'),
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
    (
        {"run_name": "", "run_wait": "x"},
        'run_name: "" names no run; give its name; run_wait: "x" is no number of seconds; give a whole one, or leave it'
        " blank for 600",
    ),
]
OF_RELEASE = [
    *OF_BOTH,
    ({"run_wait": "soon"}, f'run_wait: "soon" {SECONDS}; give a whole one, or leave it blank for 60'),
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
    output = site.play(playbook, {"run_hosts": "all"}, hosts=hosts)
    assert site.status == 2 and site.asked == [], output
    assert failures(output) == {name: text for name, (_given, text) in zip(hosts, cases)}


# -- What is asked for

BLANK = {"run_worker": "", "run_wait": "", "run_confirm_within": " ", "run_force": ""}


def test_blank_is_the_default(site: Site) -> None:
    """As AWX gives the fields of a survey that nobody has filled in."""
    output = site.play("run_prepare", {**RUN, **BLANK, "run_hosts": "gpu-01"})
    assert site.status == 0, output
    same = {"run": "r", "worker": "gpu-01", "workspace": "ml", "host_name": "gpu-01", "datavolume_refs": "cache"}
    assert site.asked[0] == ["gpu-01", "predicted", same]
    ((host, state, given),) = site.asked[1:]
    assert (host, state, given) == (
        "gpu-01",
        "prepared",
        {**same, "confirm_within": 3600, "timeout": given["timeout"]},
    )
    assert 0 < given["timeout"] <= 60
    (mount,) = stats(output)["stowage_run"]["gpu-01"]["mounts"]
    assert mount["source"] == "/run/stowage/pins/r/1"
    assert {"Run r on gpu-01", "/data/cache  drive cache, read-write", f"is {mount['source']}"} <= set(shown(output))

    output = site.play("run_release", {**RUN, **BLANK, "run_hosts": "gpu-01"})
    assert site.status == 0, output
    assert site.asked == [["gpu-01", "released", {"run": "r", "worker": "", "timeout": 60, "force": False}]]
    assert stats(output) == {"stowage_run_released": {"gpu-01": ["unmount drive cache at /data/cache"]}}


def test_what_is_given_counts(site: Site) -> None:
    given = {"run_worker": "w0", "run_wait": "0", "run_confirm_within": 90, "run_force": "true", "run_hosts": "gpu-02"}
    output = site.play("run_prepare", {**RUN, **given, "run_drives": []})
    assert site.status == 0, output
    _host, _state, asked = site.asked[-1]
    assert (asked["worker"], asked["datavolume_refs"], asked["confirm_within"], asked["timeout"]) == ("w0", [], 90, 0)
    output = site.play("run_release", {**RUN, **given})
    assert site.status == 0, output
    assert site.asked == [["gpu-02", "released", {"run": "r", "worker": "w0", "timeout": 0, "force": True}]]


# -- All hosts, or none


def test_no_host_is_changed_when_one_refuses(site: Site) -> None:
    refused = "drive cache does not exist"
    output = site.play("run_prepare", RUN, answers={"gpu-02": {"predicted": refused}})
    assert site.status == 2 and failures(output) == {"gpu-02": refused}, output
    assert sorted(site.states()) == [(host, "predicted") for host in HOSTS] and not stats(output)


def test_no_host_is_changed_when_one_is_out_of_reach(site: Site) -> None:
    hosts: dict[str, dict[str, Any]] = dict.fromkeys(HOSTS, {})
    hosts["gpu-02"] = {"ansible_connection": "ssh", "ansible_ssh_executable": "/bin/false"}
    output = site.play("run_prepare", RUN, hosts=hosts)
    assert site.status != 0 and "gpu-02" in failures(output), output
    assert {state for _host, state in site.states()} == {"predicted"}


def test_what_was_mounted_is_released_when_a_host_fails_after_all(site: Site) -> None:
    """Of a worker that had mounts before, what it has stays; and so it does where it cannot be released."""
    answers = {
        "gpu-02": {"prepared": "no memory"},
        "gpu-03": {"used_by": ["r/gpu-03"]},
        "gpu-04": {"released": "worker gpu-04 of run r: busy"},
    }
    hosts: dict[str, dict[str, Any]] = dict.fromkeys((*HOSTS, "gpu-04"), {})
    output = site.play("run_prepare", {**RUN, "run_confirm_within": "60"}, answers=answers, hosts=hosts)
    assert site.status == 2 and not stats(output), output
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
    found = failures(output)
    assert found.keys() == expected.keys()
    for host, text in expected.items():
        assert re.fullmatch(text, found[host]), found[host]


def test_what_takes_too_long_is_given_up_everywhere(site: Site) -> None:
    waits = "Waiting for drive cache to be filled on gpu-01"
    output = site.play("run_prepare", {**RUN, "run_wait": "0"}, answers={"gpu-01": {"waiting": [waits]}})
    assert site.status == 2, output
    told = f"{waits}; that took more than 0 s: see to it, then prepare again, or raise run_wait"
    assert failures(output) == {
        host: (told if host == "gpu-01" else f"run r could not be prepared on gpu-01: {told}")
        + "; what was mounted here is released"
        for host in HOSTS
    }


# -- Check mode


def test_check_mode_hands_nothing_on_and_says_what_would_be(site: Site) -> None:
    answers = {"gpu-02": {"waiting": ["Waiting for drive cache to be filled on gpu-02"]}}
    output = site.play("run_prepare", RUN, "--check", answers=answers)
    assert site.status == 0 and not stats(output), output
    would = "would have this, but nothing is mounted in check mode"
    lines = shown(output)
    assert f"Run r on gpu-01 {would}" in lines and f"Run r on gpu-02 {would}" in lines
    assert "/data/cache  drive cache, read-write" in lines and answers["gpu-02"]["waiting"][0] in lines
    assert "/run/stowage/pins" not in output

    output = site.play("run_release", RUN, "--check")
    assert site.status == 0 and not stats(output), output
    assert "Run r on gpu-01: this would be done, but nothing is in check mode" in shown(output)
