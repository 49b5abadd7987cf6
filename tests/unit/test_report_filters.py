# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook report works with: the filter over hostvars, and the table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from fleet_lab import NOW, Fleet

from ansible_collections.stowage.host.plugins.filter.report_fleet import FilterModule as FleetFilter
from ansible_collections.stowage.host.plugins.filter.report_page import FilterModule as PageFilter
from ansible_collections.stowage.host.plugins.filter.report_table import FilterModule as TableFilter

report_fleet = FleetFilter().filters()["report_fleet"]
report_page = PageFilter().filters()["report_page"]
report_table = TableFilter().filters()["report_table"]


def facts(used: int, *holds: str, **more: Any) -> dict[str, Any]:
    disk = {"mount": "/mnt/nvme0", "mounts": ["/mnt/nvme0"], "answers": True, "shared": False}
    room = {"size_bytes": 10**12, "used_bytes": used * 10**10, "free_bytes": (100 - used) * 10**10}
    gate = {"holds": [{"reason": "watermark", "text": one} for one in holds]}
    return {"stowage_storage": {"gathered": NOW, "filesystems": [{**disk, **room}], "gate": gate, **more}}


HOSTVARS = {
    "gpu-01": {"ansible_facts": facts(31), "gathered": {"ansible_facts": facts(31)}},
    "gpu-02": {"ansible_facts": facts(93), "gathered": {"ansible_facts": facts(93, "full")}},
    "gpu-03": {"gathered": {"unreachable": True, "msg": "Failed to connect\nto the host  via ssh"}},
    "gpu-04": {
        "ansible_facts": facts(50),
        "gathered": {"failed": True, "msg": "no Python", "ansible_facts": {"discovered_interpreter_python": "x"}},
    },
    "gpu-05": {},
}
HOSTVARS["gpu-02"]["ansible_facts"] = facts(93, "full", data_location={"path": "/d", "available": False})


def test_every_host_that_was_asked_is_in_the_report() -> None:
    found = json.loads(report_fleet(HOSTVARS, [*HOSTVARS, "gpu-09"], "gathered"))
    assert [(one["name"], one["answers"], one["reached"], one["why"]) for one in found["hosts"]] == [
        ("gpu-01", True, True, ""),
        ("gpu-02", True, True, ""),
        ("gpu-03", False, False, "Failed to connect to the host via ssh"),
        ("gpu-04", False, True, "it could not report: no Python"),
        ("gpu-05", False, True, "it has not reported its storage yet"),
        ("gpu-09", False, True, "it is not in the inventory"),
    ]
    # What a fact cache has of a host that could not report is told.
    assert found["hosts"][3]["fullest"]["used_pct"] == 50


def test_without_gathering_it_goes_by_the_facts_that_there_are() -> None:
    found = json.loads(report_fleet(HOSTVARS, ["gpu-03", "gpu-04"]))
    assert [(one["name"], one["answers"]) for one in found["hosts"]] == [("gpu-03", False), ("gpu-04", True)]


@pytest.mark.parametrize(("hostvars", "hosts"), [(None, ["a"]), ({}, "a"), ({}, None)])
def test_what_is_no_choice_of_hosts_is_an_error(hostvars: Any, hosts: Any) -> None:
    with pytest.raises(AnsibleFilterError, match=r"^report_fleet: the input must be hostvars"):
        report_fleet(hostvars, hosts)


def test_the_page_is_made_of_the_text_or_of_what_was_parsed() -> None:
    text = report_fleet(HOSTVARS, list(HOSTVARS), "gathered")
    assert report_page(text) == report_page(json.loads(text))
    assert report_page(text).startswith("<!DOCTYPE html>")


def test_the_table() -> None:
    text = report_fleet(HOSTVARS, list(HOSTVARS), "gathered")
    assert report_table(text) == [
        "2 of 5 hosts answered, 1 gate held; 1.7 TB of 3.0 TB used on local",
        "filesystems",
        "  Host    Gate  Fullest local filesystem",
        "  gpu-04  -     it could not report: no Python; it told last: 50 %",
        "                /mnt/nvme0, 500 GB free",
        "  gpu-03  -     Failed to connect to the host via ssh",
        "  gpu-05  -     it has not reported its storage yet",
        "  gpu-02  held  93 % /mnt/nvme0, 70.0 GB free, 1 path not available",
        "  gpu-01  open  31 % /mnt/nvme0, 690 GB free",
        "",
        "Needs attention",
        "  Hosts that do not answer: gpu-03",
        "  Hosts that could not report their storage: gpu-04, gpu-05",
        "  Gates held: watermark: gpu-02",
        "  Paths that are not available: gpu-02",
    ]


def test_a_large_fleet_is_told_in_part() -> None:
    known = {
        name: {"ansible_facts": {"stowage_storage": one} if one else {}} for name, one in Fleet(200, 2).hosts.items()
    }
    table = report_table(report_fleet(known, list(known)), lines=3)
    assert "  and 197 more hosts" in table
    assert any(" and " in line and line.endswith(" more") for line in table[table.index("Needs attention") :])


@pytest.mark.parametrize("width", [40, 68, 120])
def test_lines_are_as_wide_as_they_may_be_and_names_whole(width: int) -> None:
    long = "a-host-with-a-name-that-goes-on-and-on.example.org"
    text = report_fleet({**HOSTVARS, long: HOSTVARS["gpu-02"]}, [*HOSTVARS, long], "gathered")
    lines = report_table(text, width)
    assert any(long in line for line in lines)
    assert all(len(line) <= width for line in lines if long not in line)


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        ("{", {}, "the report: is not valid JSON"),
        ({}, {}, "the report: is not one of version 1"),
        ({}, {"width": 39}, "width must be a whole number, at least 40"),
        ({}, {"lines": 0}, "lines must be a whole number, at least 1"),
    ],
)
def test_what_cannot_be_shown_is_an_error(value: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=f"^report_table: {message}"):
        report_table(value, **options)


def test_what_is_no_report_makes_no_page() -> None:
    with pytest.raises(AnsibleFilterError, match=r"^report_page: the report: is not one of version 1"):
        report_page([])
