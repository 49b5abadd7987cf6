# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbook place works with: the filter over hostvars, and the table."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from jinja2 import StrictUndefined
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


ADDRESSES, NUMBERS = ipaddress.ip_address("10.0.0.0"), itertools.count(1)


def variables(free: int | None = None, copies: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    """The variables of a host; without a data location when nothing is free."""
    place = {"path": "/d", "available": True, "free_bytes": free, "used_bytes": 0, "max_bytes": 0}
    compact = {
        "labels": {"site": "eu"},
        "data_location": place if free is not None else None,
        "copies": dict.fromkeys(copies),
        "shared": [],
        "rdma": [],
        "addresses": [f"{ADDRESSES + next(NUMBERS)}/8"],
        "nfs": {"can_export": True, "can_mount": True},
    }
    return {"ansible_facts": {"stowage_storage": {"compact": compact}}, **more}


def site(hosts: dict[str, dict[str, Any]], drives: Sequence[Any] = tuple(DRIVES)) -> dict[str, Any]:
    """The variables of hosts that are given the same drives."""
    lists = {"ml": list(drives)}
    return {name: {"host_drives": lists, **one} for name, one in hosts.items()}


HOSTVARS = site(
    {
        "gpu-01": variables(stowage_topology={"site": "eu", "rack": "r1"}),
        "gpu-02": variables(10**12, stowage_topology={"rack": "r1"}),
        "gpu-03": variables(0, ("ml.hf-cache",)),
        "gpu-04": variables(4 * 10**10),
        "gpu-05": variables(10**12, stowage_topology={"site": "us"}),
        "gpu-06": {},
        "elsewhere": {},
    }
)
FOUND = placement(HOSTVARS, [name for name in HOSTVARS if name != "elsewhere"], "hf-cache,imagenet", "ml")


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
    assert (FOUND["refusal"], FOUND["differing"]) == ("", [])


def test_the_machine_of_a_drive_counts_outside_the_hosts_too() -> None:
    found = placement(HOSTVARS, ["gpu-05"], [{"name": "imagenet", "mount_path": "/data"}])
    assert found["waiting"] == ["drive imagenet is on gpu-01, in another site (eu)"]


def test_what_is_documented_is_what_is_returned() -> None:
    directory = __file__.rsplit("/", 3)[0] + "/plugins/filter"
    with open(f"{directory}/placement.yml", encoding="utf-8") as stream:
        documented = yaml.safe_load(stream)["RETURN"]["_value"]["sample"]
    assert set(documented) == set(FOUND)
    assert set(documented["hosts"]["gpu-02"]) == set(FOUND["hosts"]["gpu-02"])
    assert set(documented["refused"][0]) == set(FOUND["refused"][0])
    assert set(documented["differing"][0]) == {"drive", "hosts"}


# -- Facts that have just been gathered


ANSWERED = {"ansible_facts": {"stowage_storage": {}}, "changed": False}
FOUND_PYTHON = {"discovered_interpreter_python": "/usr/bin/python3"}
SILENT = {"unreachable": True, "msg": "no route to host", "changed": False}


def test_who_does_not_answer_is_no_candidate_and_is_shown() -> None:
    hosts = site({"gpu-01": variables(10**12), "gpu-02": variables(10**12), "gpu-03": variables(10**12)})
    results = {"gpu-01": ANSWERED, "gpu-02": SILENT, "gpu-03": {"msg": "no\nPython", "ansible_facts": FOUND_PYTHON}}
    hosts = {name: {**one, "looked": results[name]} for name, one in hosts.items()}
    found = placement(hosts, hosts, "hf-cache", "ml", "looked")
    assert found["candidates"] == ["gpu-01"]
    assert found["refused"] == [
        {"reason": "machine gpu-02 did not answer", "hosts": ["gpu-02"]},
        {"reason": "machine gpu-03 could not report its storage: no Python", "hosts": ["gpu-03"]},
    ]
    # Nobody was asked: it goes by what there is.
    assert placement(hosts, hosts, "hf-cache", "ml")["candidates"] == list(hosts)


@pytest.mark.parametrize("among", [True, False])
def test_a_drive_on_a_machine_that_does_not_answer(among: bool) -> None:
    hosts = site({"gpu-01": {**variables(), "looked": SILENT}, "gpu-02": {**variables(), "looked": ANSWERED}})
    found = placement(hosts, list(hosts) if among else ["gpu-02"], "imagenet", "ml", "looked")
    assert found["candidates"] == []
    assert found["hosts"]["gpu-02"]["reasons"] == ["drive imagenet: source 0 is on machine gpu-01 which is Down"]


def test_nobody_answers() -> None:
    hosts = site({name: {**variables(10**12), "looked": SILENT} for name in ("gpu-01", "gpu-02")})
    found = placement(hosts, hosts, "hf-cache", "ml", "looked")
    assert (found["refusal"], found["candidates"]) == ("", [])
    assert found["refused"] == [{"reason": "2 machines did not answer", "hosts": ["gpu-01", "gpu-02"]}]


# -- Hosts that the inventory does not give the same


def test_hosts_that_are_given_other_drives_are_judged_by_them_and_named() -> None:
    scratch = {"metadata": {"name": "hf-cache"}, "spec": {"sources": [{"node_scope": "local-any", "path": "/x"}]}}
    hosts = {
        **site({name: variables(10**12) for name in ("gpu-01", "gpu-02")}),
        **site({"gpu-03": variables()}, [scratch]),
        "gpu-04": {**variables(10**12), "host_drives": {"vision": DRIVES}},
        "gpu-05": {**variables(10**12), "host_drives": ["ml"]},
        "gpu-06": variables(10**12),
    }
    found = placement(hosts, hosts, "hf-cache", "ml")
    assert found["candidates"] == ["gpu-01", "gpu-02", "gpu-03"]
    assert found["differing"] == [{"drive": "hf-cache", "hosts": ["gpu-03"]}]
    assert {host: one["reasons"] for host, one in found["hosts"].items() if one["reasons"]} == {
        "gpu-04": ["machine gpu-04 has no workspace ml in host_drives"],
        "gpu-05": ["host_drives: must be a dictionary of workspaces"],
        "gpu-06": ["machine gpu-06 has no workspace ml in host_drives"],
    }
    assert placement_table(found)[-4:] == [
        "Given another drive of that name than most; a workspace should have",
        "one list for the site",
        "  gpu-03",
        "      drive hf-cache",
    ]


def test_templates_of_a_list_are_those_of_the_host() -> None:
    """As Ansible's hostvars: what is written, and what it comes to on each host."""

    class HostVars(dict[str, Any]):
        def raw_get(self, name: str) -> dict[str, Any]:
            sources = [{"node_scope": "local-any", "path": "{{ where }}"}]
            lists = {"ml": [{"metadata": {"name": "scratch"}, "spec": {"sources": sources}}]}
            return {"host_drives": "{{ lists }}" if name == "c" else lists}

    def given(path: Any) -> dict[str, Any]:
        sources = [{"node_scope": "local-any", "path": path}]
        return {**variables(), "host_drives": {"ml": [{"metadata": {"name": "scratch"}, "spec": {"sources": sources}}]}}

    hosts = HostVars({"a": given("/x"), "b": given("/y"), "c": given("/x"), "d": given(StrictUndefined(name="where"))})
    found = placement(hosts, hosts, "scratch")
    assert found["candidates"] == ["a", "b", "c"]
    assert found["differing"] == [{"drive": "scratch", "hosts": ["b"]}]
    assert found["hosts"]["d"]["reasons"] == ["host_drives: 'where' is undefined"]


def test_a_place_that_is_wrong_takes_one_host_out() -> None:
    hosts = site({"gpu-01": {}, "gpu-02": variables(10**12), "gpu-03": variables(10**12, stowage_topology=["eu"])})
    found = placement(hosts, ["gpu-02", "gpu-03"], "hf-cache")
    assert found["candidates"] == ["gpu-02"]
    assert found["waiting"] == []
    assert found["hosts"]["gpu-03"]["reasons"] == [
        "stowage_topology of gpu-03: must be a dictionary; with site, rack, infiniband_fabric, nvlink_domain as far as "
        "they are known"
    ]


# -- What is refused


class Undefined(dict[str, Any]):
    def get(self, name: str, default: Any = None) -> Any:
        if name == "host_drives":
            return self[name]
        raise UndefinedError("'nowhere'\nis undefined")


HERE = site({"gpu-01": variables(10**12)})


@pytest.mark.parametrize(
    ("hosts", "refs", "workspace", "refusal"),
    [
        (HERE, "", "ml", "Invalid task: datavolume_refs '' name no drive; name the drives, as name or name:/mount"),
        (HERE, ",", "ml", "Invalid task: datavolume_refs ',' name no drive; name the drives, as name or name:/mount"),
        (
            HERE,
            "[{'name': 'a'}]",
            "ml",
            "Invalid task: datavolume_refs begin as JSON, and are none (Expecting property",
        ),
        (HERE, None, "ml", "Invalid task: datavolume_refs must be a list"),
        (HERE, "hf-cache:x", "ml", "Invalid task: data volume hf-cache: mount_path must be absolute"),
        (HERE, [{"name": "imagenet"}], "ml", "Invalid task: data volume imagenet: mount_path must be absolute"),
        (HERE, "hf-cache", "m.l", "workspace: 'm.l' is not a name; only lowercase"),
        (HERE, "hf-cache", "mi", "workspace mi: there is none of this name; host_drives has ml"),
        (site({"a": {}}, [{}]), "hf-cache", "ml", "host_drives.ml[0]: metadata.name: required"),
        (
            site({"gpu-02": {}}),
            "hf-cache",
            "ml",
            "host_drives.ml[1] (imagenet): spec.sources[0].node: 'gpu-01' is not a machine of this inventory; did",
        ),
        (
            {"a": {"host_drives": "ml"}},
            "hf-cache",
            "ml",
            "workspace ml: there is none of this name; host_drives has none",
        ),
        ({"a": {}}, "hf-cache", "", "workspace: name the workspace; host_drives has none"),
        (
            site({"gpu-01": {"stowage_topology": {"sites": "x"}}}),
            "hf-cache",
            "ml",
            "stowage_topology of gpu-01: 'sites' is no label; did you mean site?",
        ),
        (
            {"gpu-01": {**HERE["gpu-01"], "stowage_topology": {"sites": "x"}}, "gpu-02": HERE["gpu-01"]},
            "imagenet",
            "ml",
            "stowage_topology of gpu-01: 'sites' is no label; did you mean site?",
        ),
        (
            {"gpu-01": Undefined(HERE["gpu-01"], stowage_topology="")},
            "hf-cache",
            "ml",
            "variables of gpu-01: 'nowhere' is undefined; correct them",
        ),
    ],
)
def test_what_is_wrong_in_itself_is_refused_in_one_line(hosts: Any, refs: Any, workspace: str, refusal: str) -> None:
    found = placement(hosts, hosts, refs, workspace)
    assert found["refusal"].startswith(refusal) and found["refusal"].isprintable()
    assert set(found) == set(FOUND) and not found["candidates"]


@pytest.mark.parametrize(("hostvars", "hosts"), [([], ["a"]), (HOSTVARS, "a"), (HOSTVARS, None)])
def test_any_other_input_is_an_error(hostvars: Any, hosts: Any) -> None:
    with pytest.raises(
        AnsibleFilterError, match=r"^placement: the input must be hostvars, and its first argument a list"
    ):
        placement(hostvars, hosts, "hf-cache", "ml")


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
    hosts = site({f"gpu-{number:04}": variables(10**12 if number % 2 else None) for number in range(1000)}, DRIVES[:1])
    found = placement(hosts, hosts, "hf-cache", "ml")
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


def test_reasons_that_differ_from_host_to_host_are_one() -> None:
    hosts = site({f"gpu-{number:04}": variables(number * 10**7) for number in range(1000)}, DRIVES[:1])
    found = placement(hosts, hosts, "hf-cache", "ml")
    assert placement_table(found) == [
        "0 of 1000 hosts can take a run with hf-cache (workspace ml)",
        "",
        "Not on",
        "  gpu-0000, gpu-0001, gpu-0002 and 997 more",
        "      drive hf-cache needs 107 GB at this machine's data location:",
        "      1000 hosts have between 0 B and 10.0 GB free",
    ]
    # What is returned keeps each reason as Astraeus has it.
    assert found["hosts"]["gpu-0999"]["reasons"] == [
        "drive hf-cache needs 107 GB at this machine's data location, 10.0 GB free"
    ]


def test_more_kinds_of_reasons_than_lines() -> None:
    assert placement_table(FOUND, lines=2)[-1] == "  and 2 more reasons"


@pytest.mark.parametrize("width", [40, 68, 120])
def test_lines_are_as_wide_as_they_may_be_and_names_whole(width: int) -> None:
    long = "a-host-with-a-name-that-goes-on-and-on.example.org"
    hosts = {**HOSTVARS, **site({long: variables(0, ("ml.hf-cache",), stowage_topology={"rack": "r1"})})}
    lines = placement_table(placement(hosts, hosts, "hf-cache,imagenet", "ml"), width)
    assert sum(long in line for line in lines) == 1
    assert all(len(line) <= width for line in lines if long not in line)


def test_a_run_without_drives() -> None:
    assert placement_table(placement({"a": {}}, ["a"], [])) == [
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
