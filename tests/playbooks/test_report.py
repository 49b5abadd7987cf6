# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/report.yml, run by Ansible with this machine as a host that answers, and others that do not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.plugins.loader import cache_loader
from playbooks_lab import AWAY, HERE, Lab

HOSTS: dict[str, dict[str, Any]] = {
    "gpu-01": {**HERE, "stowage_topology": {"site": "eu"}},
    "gpu-02": AWAY,
    "gpu-03": {**HERE, "ansible_python_interpreter": "/bin/false"},
}


def test_the_report_is_written_with_hosts_that_do_not_answer(lab: Lab) -> None:
    facts = {"stowage_storage": {"gathered": 1764500000.0, "problems": ["told before {{ 7 * 7 }}"]}}
    lab.environment |= {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(lab.home / "facts")}
    cache_loader.get("jsonfile", _uri=str(lab.home / "facts")).set("gpu-02", facts)
    played = lab.play("report", hosts=HOSTS, variables={"report_path": str(lab.home / "monday.html")})
    assert played.status == 0, played.output
    found = json.loads((lab.home / "monday.json").read_text())
    assert [(one["name"], one["answers"], one["reached"]) for one in found["hosts"]] == [
        ("gpu-01", True, True),
        ("gpu-02", False, False),
        ("gpu-03", False, True),
    ]
    assert found["hosts"][0]["filesystems"] and found["hosts"][0]["gathered"] > 1764500000
    # What the fact cache has of a silent host is told, and is no template.
    assert (found["hosts"][1]["gathered"], found["hosts"][1]["problems"]) == (1764500000.0, facts_problems(facts))
    assert found["hosts"][1]["why"] and found["hosts"][2]["why"].startswith("it could not report: ")
    text = (lab.home / "monday.html").read_text()
    assert text.startswith("<!DOCTYPE html>") and "told before {{ 7 * 7 }}" in text
    for name in ("monday.html", "monday.json"):
        assert (lab.home / name).stat().st_mode & 0o777 == 0o640
        assert f"  {lab.home / name}" in played.table("1 of 3 hosts answered")
    assert any(line.startswith("  gpu-02  -     ") for line in played.table("1 of 3 hosts answered"))
    shown = played.output.split("PLAY RECAP")[0].splitlines()
    assert max(len(line) for line in shown if '"' in line and str(lab.home) not in line and "fatal:" not in line) <= 80
    # What is told to placement by a fact cache stays what it was.
    kept = cache_loader.get("jsonfile", _uri=str(lab.home / "facts")).get("gpu-01")
    assert kept["stowage_storage"]["compact"]["labels"] == {"site": "eu"}


def facts_problems(facts: dict[str, Any]) -> list[str]:
    problems: list[str] = facts["stowage_storage"]["problems"]
    return problems


def test_check_mode_writes_nothing(lab: Lab) -> None:
    before = {path.name for path in lab.home.iterdir()}
    played = lab.play("report", "--check", "--diff", hosts={"gpu-02": AWAY, "gpu-01": HERE})
    assert played.status == 0, played.output
    table = played.table("1 of 2 hosts answered")
    assert table[-3:] == [
        "The report would be in",
        *(f"  {lab.home}/stowage-report.{kind}" for kind in ("html", "json")),
    ]
    assert not list(lab.home.glob("stowage-report*"))
    assert "<!DOCTYPE" not in played.output
    assert {path.name for path in lab.home.iterdir()} - before <= {
        "answers.json",
        "asked",
        "inventory.json",
        "gpu-01",
        ".ansible",
    }


def test_no_host_answers(lab: Lab) -> None:
    played = lab.play("report", "-l", "gpu-02", hosts=HOSTS)
    assert played.status == 0, played.output
    assert [one["name"] for one in json.loads((lab.home / "stowage-report.json").read_text())["hosts"]] == ["gpu-02"]
    assert played.table("0 of 1 host answered")[0] == "0 of 1 host answered, 0 gates held; the room is not known"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"report_path": "/nowhere/monday"},
            'report_path "/nowhere/monday": /nowhere is no directory on this machine; make it',
        ),
        ({"report_hosts": "gpu-9"}, 'report_hosts "gpu-9": gpu-9 matches no host of the inventory; correct it'),
    ],
)
def test_what_cannot_be_written_or_asked_is_refused(lab: Lab, variables: dict[str, Any], message: str) -> None:
    played = lab.play("report", hosts=HOSTS, variables=variables)
    assert played.status == 2, played.output
    assert played.refusal.startswith(message)
    assert "Look at the storage" not in played.output
