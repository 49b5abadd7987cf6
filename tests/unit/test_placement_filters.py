# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook place works with: the filter over hostvars, and the table."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.filter.placement import FilterModule as Placement
from ansible_collections.stowage.host.plugins.filter.placement_table import FilterModule as Table

placement = Placement().filters()["placement"]
placement_table = Table().filters()["placement_table"]

DRIVES = [
    {
        "metadata": {"name": "hf-cache"},
        "spec": {"sources": [{"node_scope": "placed"}], "size_hint_bytes": 107374182400},
    },
    {"metadata": {"name": "imagenet"}, "spec": {"sources": [{"node": "gpu-01", "path": "/mnt/nvme0/imagenet"}]}},
]


def variables(free: int | None = None, copies: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """The variables of a host; without a data location when nothing is free."""
    place = {"path": "/d", "available": True, "free_bytes": free, "used_bytes": 0, "max_bytes": 0}
    compact = {
        "labels": {"site": "eu"},
        "data_location": place if free is not None else None,
        "copies": dict.fromkeys(copies),
        "shared": [],
        "rdma": [],
    }
    return {"ansible_facts": {"stowage_storage": {"compact": compact}}, **more}


HOSTVARS = {
    "gpu-01": variables(stowage_topology={"site": "eu", "rack": "r1"}),
    "gpu-02": variables(10**12, stowage_topology={"rack": "r1"}),
    "gpu-03": variables(0, ("ml.hf-cache",)),
    "gpu-04": variables(4 * 10**10),
    "gpu-05": variables(10**12, stowage_topology={"site": "us"}),
    "gpu-06": {},
    "elsewhere": {},
}
FOUND = placement(HOSTVARS, [name for name in HOSTVARS if name != "elsewhere"], "hf-cache,imagenet", "ml", DRIVES)


def test_what_the_variables_say() -> None:
    assert FOUND["candidates"] == ["gpu-03", "gpu-02"]
    assert {host: one["reasons"] or one["preferred"] for host, one in FOUND["hosts"].items()} == {
        "gpu-01": ["Choose where to keep data on gpu-01"],
        "gpu-02": ["drive imagenet is on gpu-01: same rack"],
        "gpu-03": ["has a copy of drive hf-cache"],
        "gpu-04": ["drive hf-cache needs 107 GB at this machine's data location, 40.0 GB free"],
        "gpu-05": ["drive imagenet is on gpu-01, in another site (eu)"],
        "gpu-06": ["machine gpu-06 has not reported its storage yet; gather its facts"],
    }
    assert (FOUND["workspace"], FOUND["drives"]) == ("ml", ["hf-cache", "imagenet"])


def test_the_machine_of_a_drive_counts_outside_the_hosts_too() -> None:
    found = placement(HOSTVARS, ["gpu-05"], [{"name": "imagenet", "mount_path": "/data"}], "ml", DRIVES)
    assert found["waiting"] == ["drive imagenet is on gpu-01, in another site (eu)"]


def test_what_is_documented_is_what_is_returned() -> None:
    directory = __file__.rsplit("/", 3)[0] + "/plugins/filter"
    with open(f"{directory}/placement.yml", encoding="utf-8") as stream:
        documented = yaml.safe_load(stream)["RETURN"]["_value"]["sample"]
    assert set(documented) == set(FOUND)
    assert set(documented["hosts"]["gpu-02"]) == set(FOUND["hosts"]["gpu-02"])
    assert set(documented["refused"][0]) == set(FOUND["refused"][0])


class Undefined(dict[str, Any]):
    def get(self, name: str, default: Any = None) -> Any:
        raise UndefinedError("'nowhere'\nis undefined")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ([], ["a"], "d", "ml", DRIVES),
            "placement: the input must be hostvars, and its first argument a list of hosts",
        ),
        ((HOSTVARS, "a", "d", "ml", DRIVES), "placement: the input must be hostvars, and its first argument a list of"),
        (
            (HOSTVARS, None, "d", "ml", DRIVES),
            "placement: the input must be hostvars, and its first argument a list of",
        ),
        (
            (HOSTVARS, ["gpu-01"], "hf-cache:x", "ml", DRIVES),
            "placement: Invalid task: data volume hf-cache: mount_path must be absolute",
        ),
        (
            (HOSTVARS, ["gpu-01"], "hf-cache", "m.l", DRIVES),
            "placement: workspace: 'm.l' is not a name; only lowercase",
        ),
        ((HOSTVARS, ["gpu-01"], "hf-cache", "ml", [{}]), "placement: drives[0]: metadata.name: required"),
        (
            ({"a": {"stowage_topology": {"sites": "x"}}}, ["a"], "hf-cache", "ml", DRIVES),
            "placement: stowage_topology of a: 'sites' is no label; did you mean site?",
        ),
        (
            ({"a": Undefined(stowage_topology="")}, ["a"], "hf-cache", "ml", DRIVES),
            "placement: variables of a: 'nowhere' is undefined",
        ),
    ],
)
def test_any_other_input_is_an_error(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(AnsibleFilterError) as refused:
        placement(*arguments)
    assert str(refused.value).startswith(message)


# -- The table


def test_the_table() -> None:
    assert placement_table(FOUND) == [
        "2 of 6 hosts can take a run with hf-cache, imagenet (workspace ml)",
        "   1  gpu-03  has a copy of drive hf-cache",
        "   2  gpu-02  drive imagenet is on gpu-01: same rack",
        "",
        "Not on",
        "  gpu-01",
        "      Choose where to keep data on gpu-01",
        "  gpu-04",
        "      drive hf-cache needs 107 GB at this machine's data location,",
        "      40.0 GB free",
        "  gpu-05",
        "      drive imagenet is on gpu-01, in another site (eu)",
        "  gpu-06",
        "      machine gpu-06 has not reported its storage yet; gather its",
        "      facts",
    ]


def test_a_large_site_is_told_in_a_few_lines() -> None:
    hosts = {f"gpu-{number:04}": variables(10**12 if number % 2 else None) for number in range(1000)}
    found = placement(hosts, hosts, "hf-cache", "ml", DRIVES)
    assert placement_table(found, lines=2) == [
        "500 of 1000 hosts can take a run with hf-cache (workspace ml)",
        "   1  gpu-0001",
        "   2  gpu-0003",
        "  and 498 more candidates",
        "",
        "Not on",
        "  gpu-0000, gpu-0002, gpu-0004 and 497 more",
        "      Choose where to keep data on the machines",
    ]


def test_reasons_that_differ_from_host_to_host() -> None:
    hosts = {f"gpu-{number}": variables(number * 10**9) for number in range(4)}
    table = placement_table(placement(hosts, hosts, "hf-cache", "ml", DRIVES), lines=3)
    assert table[:3] == ["0 of 4 hosts can take a run with hf-cache (workspace ml)", "", "Not on"]
    assert table[-1] == "  and 1 more reason"


@pytest.mark.parametrize("width", [40, 68, 120])
def test_lines_are_as_wide_as_they_may_be_and_names_whole(width: int) -> None:
    long = "a-host-with-a-name-that-goes-on-and-on.example.org"
    hosts = {**HOSTVARS, long: variables(0, ("ml.hf-cache",), stowage_topology={"rack": "r1"})}
    lines = placement_table(placement(hosts, hosts, "hf-cache,imagenet", "ml", DRIVES), width)
    assert sum(long in line for line in lines) == 1
    assert all(len(line) <= width for line in lines if long not in line)


def test_a_run_without_drives() -> None:
    assert placement_table(placement({"a": {}}, ["a"], [], "ml", [])) == [
        "1 of 1 host can take a run with no drive",
        "   1  a",
    ]


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (None, {}, "the input must be the result of the filter stowage.host.placement"),
        ({"candidates": []}, {}, "the input must be the result of the filter stowage.host.placement"),
        (FOUND, {"width": 39}, "width must be a whole number, at least 40"),
        (FOUND, {"width": "wide"}, "width must be a whole number, at least 40"),
        (FOUND, {"lines": 0}, "lines must be a whole number, at least 1"),
    ],
)
def test_what_cannot_be_shown_is_an_error(value: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=f"^placement_table: {message}"):
        placement_table(value, **options)
