# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the playbooks site and uninstall show: hosts that disagree, and what is left."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.filter.leftovers import FilterModule as Leftovers
from ansible_collections.stowage.host.plugins.filter.site_disagreements import FilterModule as Site

site_disagreements = Site().filters()["site_disagreements"]
leftovers = Leftovers().filters()["leftovers"]

HOSTS: dict[str, dict[str, Any]] = {
    "a": {"host_storage_root": "/srv/s"},
    "b": {"host_storage_root": "/srv//s/", "host_storage_overrides": {"runs": {"path": "/mnt/runs"}}},
    "c": {"host_storage_root": "/srv/s", "host_runs_group": "other"},
    "d": {"host_storage_root": "/elsewhere", "host_runs_group": ""},
    "e": {},
}


def test_a_host_outside_the_limit_is_compared() -> None:
    assert site_disagreements(HOSTS, ["a"]) == {
        "refused": ["default: RUNS_ROOT is /srv/s/runs on a; /mnt/runs on b"],
        "not_compared": [],
    }


@pytest.mark.parametrize("hosts", [["c"], ["d"], ["e"], []])
def test_hosts_that_share_with_nobody_here(hosts: list[str]) -> None:
    assert site_disagreements(HOSTS, hosts)["refused"] == []


class Undefined(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise UndefinedError("'nowhere' is undefined")


def test_hosts_that_cannot_be_compared() -> None:
    wrong = {"f": {"host_storage_root": "relative"}, "g": Undefined(host_storage_root="")}
    found = site_disagreements({**HOSTS, **wrong}, ["c"])
    assert found["refused"] == []
    assert [one.split(" ")[0] for one in found["not_compared"]] == ["f", "g"]
    assert "'nowhere' is undefined" in found["not_compared"][1]


@pytest.mark.parametrize(("hostvars", "hosts"), [([], ["a"]), ({}, "a"), ({}, None)])
def test_any_other_input_is_an_error(hostvars: Any, hosts: Any) -> None:
    with pytest.raises(AnsibleFilterError, match="must be hostvars"):
        site_disagreements(hostvars, hosts)


def test_what_is_left() -> None:
    facts = {
        "layout": {
            "root": "/srv/s",
            "locations": {
                "runs": {"path": "/mnt/runs", "override": True},
                "cache": {"path": "/mnt/cache", "override": True},
                "hub_cache": {"path": "/mnt/cache/hubs", "override": False},
                "state": {"path": "/srv/s/state", "override": False},
            },
        },
        "data_location": {"path": "/mnt/nvme0/stowage"},
        "former_data_locations": [{"path": "/mnt/old", "left": None}],
        "copies": {
            "ml.one": {"present": True, "bytes": 107_000_000_000},
            "ml.two": {"present": None, "bytes": None},
            "ml.gone": {"present": False, "bytes": 5},
        },
        "leases": [{"workspace": "ml", "drive": "one", "run": "r1"}],
    }
    assert leftovers(facts)[:-2] == [
        "directory /srv/s, with the locations below it",
        "directory /mnt/cache/hubs",
        "data location /mnt/nvme0/stowage",
        "copy ml.one, 107 GB",
        "copy ml.two, not measured",
        "former data location /mnt/old",
        "lease of ml/one by run r1: a mount below /run/stowage/pins",
    ]


def test_what_lies_aside_is_left_too() -> None:
    facts = {"layout": None, "data_location": None, "former_data_locations": [], "copies": {}, "leases": []}
    aside = [
        {"path": "/d/condemned/ml.a.full-1", "name": "ml.a", "condemned": True},
        {"path": "/d/pending/ml.b.full-1", "name": "ml.b", "condemned": False},
        {"path": "/d/pending/x", "name": "", "condemned": False},
    ]
    assert leftovers(facts, aside)[:-2] == [
        "/d/condemned/ml.a.full-1, of copy ml.a, which was being removed",
        "/d/pending/ml.b.full-1, of copy ml.b, whose place a new one has",
        "/d/pending/x, which is no copy of this host",
    ]


def test_nothing_but_records_is_left() -> None:
    facts = {"layout": None, "data_location": None, "former_data_locations": [], "copies": {}, "leases": []}
    assert [line.split(" ")[0] for line in leftovers(facts)] == ["records", "/run/stowage,"]


def test_tiers_of_which_nothing_is_known_are_left() -> None:
    facts = {"layout": None, "data_location": None, "former_data_locations": [], "copies": {}, "leases": []}
    assert leftovers({**facts, "tiers": None})[0] == "KV-cache tiers, of which the records cannot be read"


@pytest.mark.parametrize("facts", [None, {}, {"layout": None}])
def test_anything_else_has_no_leftovers(facts: Any) -> None:
    with pytest.raises(AnsibleFilterError, match="run stowage.host.storage_facts first"):
        leftovers(facts)
