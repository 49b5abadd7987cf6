# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that playbooks are told: what matches none is refused, also where --limit takes all of them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from playbooks_lab import AWAY, HERE, REPOSITORY, Lab

RUN = {"run_name": "r", "run_workspace": "ml", "run_drives": "cache"}
HOSTS: dict[str, dict[str, Any]] = dict.fromkeys(("gpu-01", "gpu-02", "gpu-03", "fd00::1"), AWAY)


def unknown(variable: str, pattern: str, parts: str) -> str:
    return f'{variable} "{pattern}": {parts} matches no host of the inventory; correct it'


@pytest.mark.parametrize(
    ("playbook", "variables", "limit", "message"),
    [
        ("site", {"site_hosts": "gpu-01,gpu-77"}, "all", unknown("site_hosts", "gpu-01,gpu-77", "gpu-77")),
        ("site", {"site_hosts": 0}, "all", unknown("site_hosts", "0", "0")),
        ("site", {"site_hosts": False}, "all", unknown("site_hosts", "False", "False")),
        ("place", {"place_hosts": False}, "all", unknown("place_hosts", "False", "False")),
        ("data_location", {"data_location_hosts": 0}, "all", unknown("data_location_hosts", "0", "0")),
        ("drive_delete", {"drive_delete_hosts": False}, "all", unknown("drive_delete_hosts", "False", "False")),
        ("tier_remove", {"tier_remove_hosts": "gpu-99"}, "all", unknown("tier_remove_hosts", "gpu-99", "gpu-99")),
        (
            "uninstall",
            {"uninstall_hosts": 0, "uninstall_confirm": "all"},
            "all",
            unknown("uninstall_hosts", "0", "0"),
        ),
        ("run_prepare", {**RUN, "run_hosts": None}, "gpu-01", 'run_hosts "": names no host; name the hosts'),
        ("run_prepare", {**RUN, "run_hosts": 0}, "all", unknown("run_hosts", "0", "0")),
        (
            "run_release",
            {**RUN, "run_hosts": "gpu-02"},
            "gpu-01",
            'run_hosts "gpu-02": none of its hosts is within --limit; correct one of the two',
        ),
    ],
)
def test_hosts_that_are_not_there_are_refused(
    lab: Lab, playbook: str, variables: dict[str, Any], limit: str, message: str
) -> None:
    played = lab.play(playbook, "--limit", limit, hosts=HOSTS, variables=variables)
    assert played.status == 2 and played.failures == [message], played.output


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("gpu-01:gpu-99", "gpu-99"),
        ("gpu-99:gpu-01", "gpu-99"),
        ("gpu-01 gpu-99", "gpu-99"),
        ("gpu-01:22", "22"),
        ("gpu-98:!gpu-01:gpu-99", "gpu-98, gpu-99"),
        # Where there is a comma, Ansible splits at nothing else, and would leave these two out.
        ("gpu-01:gpu-02,gpu-03", "gpu-01:gpu-02"),
        ("fd00::2", "fd00, 2"),
        ("all[7:9]", "all[7:9]"),
    ],
)
def test_every_part_of_a_pattern_matches_a_host(lab: Lab, pattern: str, parts: str) -> None:
    played = lab.play("run_release", hosts=HOSTS, variables={"run_name": "r", "run_hosts": pattern})
    assert played.status == 2 and played.failures == [unknown("run_hosts", pattern, parts)], played.output


@pytest.mark.parametrize(
    ("pattern", "hosts"),
    [
        ("gpu-01:gpu-03", ["gpu-01", "gpu-03"]),
        (" gpu-01, gpu-03 ", ["gpu-01", "gpu-03"]),
        ("gpu-*:!gpu-02", ["gpu-01", "gpu-03"]),
        ("all[0:1]", ["gpu-01", "gpu-02"]),
        ("gpu-02:all[0:1]", ["gpu-01", "gpu-02"]),
        ("~gpu-0[12]", ["gpu-01", "gpu-02"]),
        ("fd00::1", ["fd00::1"]),
        ("fd00::1,gpu-03", ["fd00::1", "gpu-03"]),
    ],
)
def test_patterns_of_hosts(lab: Lab, pattern: str, hosts: list[str]) -> None:
    """They are those that the play is over; each refuses a run without a name."""
    everywhere = dict.fromkeys(HOSTS, HERE)
    played = lab.play("run_release", hosts=everywhere, variables={"run_name": "", "run_hosts": pattern})
    assert sorted(played.failed) == sorted(hosts), played.output
    assert set(played.failed.values()) == {'run_name: "" names no run; give its name'}


@pytest.mark.parametrize("path", sorted((REPOSITORY / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_every_playbook_checks_its_hosts_first(path: Path) -> None:
    first, *plays = yaml.safe_load(path.read_text())
    assert first["ansible.builtin.import_playbook"] == "parts/hosts.yml"
    variable = first["vars"]["hosts_variable"]
    assert variable in first["vars"]["hosts_pattern"]
    assert any(variable in play["hosts"] for play in plays)
