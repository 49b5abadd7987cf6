# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/place.yml, run by Ansible over a fact cache, with a connection that nobody can open."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from ansible.plugins.loader import cache_loader
from playbooks_lab import AWAY, HERE, Lab, Played

DRIVES = {
    "ml": [
        {
            "metadata": {"name": "hf-cache"},
            "spec": {"sources": [{"node_scope": "placed"}], "size_hint_bytes": 107374182400},
        },
        {
            "metadata": {"name": "scratch"},
            "spec": {"sources": [{"node_scope": "local-any", "path": "/srv/scratch"}]},
        },
    ]
}
OF_ALL = {**AWAY, "host_drives": DRIVES}
HOSTS = {
    "gpu-01": OF_ALL,
    "gpu-02": {**OF_ALL, "stowage_topology": {"site": "eu", "rack": 7}},
    "gpu-03": OF_ALL,
}


NUMBERS = itertools.count(1)


def facts(free: int | None, *copies: str) -> dict[str, Any]:
    place = {"path": "/d", "available": True, "free_bytes": free, "used_bytes": 0, "max_bytes": 0}
    compact = {
        "labels": {},
        "data_location": place if free is not None else None,
        "copies": dict.fromkeys(copies),
        "shared": [],
        "rdma": [],
        "addresses": [f"192.0.2.{next(NUMBERS)}/24"],
        "nfs": {"can_export": True, "can_mount": True},
    }
    return {"stowage_storage": {"compact": compact}}


class Site:
    """Hosts of which something is in the fact cache."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.facts = str(lab.home / "facts")
        self.hosts: dict[str, dict[str, Any]] = dict(HOSTS)
        lab.environment |= {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": self.facts}
        # How Ansible keeps facts in a file differs between its releases.
        cache = cache_loader.get("jsonfile", _uri=self.facts)
        for name, value in {"gpu-01": facts(None), "gpu-02": facts(10**12), "gpu-03": facts(0, "ml.hf-cache")}.items():
            cache.set(name, value)

    def change(self, **hosts: dict[str, Any]) -> None:
        """Change the variables of hosts in the inventory."""
        for name, variables in hosts.items():
            self.hosts[name.replace("_", "-")] = {**self.hosts[name.replace("_", "-")], **variables}

    def place(self, variables: dict[str, Any], *arguments: str) -> Played:
        return self.lab.play("place", *arguments, hosts=self.hosts, variables=variables)


@pytest.fixture
def site(lab: Lab) -> Site:
    return Site(lab)


def test_a_run_is_placed_by_the_cached_facts(site: Site) -> None:
    played = site.place({"place_drives": "hf-cache:/cache"})
    assert played.status == 0, played.output
    assert played.stats == {
        "stowage_placement_host": "gpu-03",
        "stowage_placement_hosts": ["gpu-03", "gpu-02"],
        "stowage_placement_waiting": [],
    }
    for line in (
        "2 of 3 hosts can take a run with hf-cache (workspace ml)",
        "   1  gpu-03  has a copy of drive hf-cache",
        "      Choose where to keep data on gpu-01",
    ):
        assert f'"{line}"' in played.output
    assert max(map(len, played.output.split("PLAY RECAP")[0].replace("*", "").splitlines())) <= 80


def test_nobody_can_take_it(site: Site) -> None:
    refs = [{"name": "hf-cache", "mount_path": "/x"}, {"name": "imagenet"}]
    played = site.place({"place_drives": refs}, "-l", "gpu-01:gpu-02")
    assert played.status == 2, played.output
    assert played.stats == {
        "stowage_placement_host": "",
        "stowage_placement_hosts": [],
        "stowage_placement_waiting": ["drive imagenet does not exist", "Choose where to keep data on gpu-01"],
    }
    assert played.refusal == (
        "no host can take the run: drive imagenet does not exist; Choose where to keep data on gpu-01"
    )


NAME_THEM = "place_drives: name the drives, as name or name:/mount/path, comma-separated"


# What the filter refuses is in the table of its tests; here is one of each, and what the playbook itself looks at.
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, NAME_THEM),
        ({"place_drives": " ", "place_gather": "maybe"}, NAME_THEM),
        (
            {"place_drives": "hf-cache", "place_gather": "maybe"},
            'place_gather: "maybe" is neither true nor false; correct it',
        ),
        ({"place_drives": False}, "Invalid task: datavolume_refs must be a list"),
        ({"place_drives": {}}, "Invalid task: datavolume_refs must be a list"),
        ({"place_drives": "hf-cache", "place_workspace": 0}, "workspace: 0 is not a name"),
        (
            {"place_drives": ",", "place_gather": "yes"},
            "Invalid task: datavolume_refs ',' name no drive; name the drives, as name or name:/mount/path, comma-",
        ),
        (
            {"place_drives": "hf-cache", "place_workspace": "mi", "place_hosts": "", "place_gather": True},
            "workspace mi: there is none of this name; host_drives has ml",
        ),
        (
            {"place_drives": '[{"name": "hf-cache"}]', "place_workspace": "", "place_gather": ""},
            "Invalid task: data volume hf-cache: mount_path must be absolute",
        ),
        (
            {"place_drives": "hf-cache", "place_hosts": "gpu-1"},
            'place_hosts "gpu-1": gpu-1 matches no host of the inventory',
        ),
    ],
)
def test_what_cannot_be_placed_is_refused(site: Site, variables: dict[str, Any], message: str) -> None:
    played = site.place(variables)
    assert played.status == 2, played.output
    assert played.refusal.startswith(message)
    # Nobody was asked anything.
    assert "Look at the storage" not in played.output


def test_hosts_of_mixed_inventories(site: Site) -> None:
    """The first host has another workspace only, one has another list, and the limit leaves the others out."""
    scratch = [
        {"metadata": {"name": "scratch"}, "spec": {"sources": [{"node_scope": "local-any", "path": "{{ at }}"}]}}
    ]
    site.change(
        gpu_01={"host_drives": {"vision": []}},
        gpu_02={"host_drives": {"ml": scratch}, "at": "/local"},
        gpu_03={"at": "/unused"},
    )
    played = site.place({"place_drives": "scratch", "place_workspace": "ml"})
    assert played.status == 0, played.output
    assert played.stats["stowage_placement_hosts"] == ["gpu-02", "gpu-03"]
    assert '"      machine gpu-01 has no workspace ml in host_drives"' in played.output
    assert '"Given another drive of that name than most; a workspace should have"' in played.output
    played = site.place({"place_drives": "scratch"}, "-l", "gpu-01")
    assert played.status == 2 and "drive scratch does not exist" in played.output


def test_json_text_and_a_run_without_drives(site: Site) -> None:
    played = site.place({"place_drives": '[{"name": "hf-cache", "mount_path": "/x"}]'})
    assert played.status == 0, played.output
    assert played.stats["stowage_placement_host"] == "gpu-03"
    played = site.place({"place_drives": []})
    assert played.status == 0, played.output
    assert played.stats["stowage_placement_hosts"] == ["gpu-01", "gpu-02", "gpu-03"]


def test_facts_are_gathered_when_asked_for(site: Site) -> None:
    site.change(
        gpu_01={**HERE, "stowage_topology": {"site": "eu"}},
        gpu_03={**HERE, "ansible_python_interpreter": "/bin/false"},
    )
    played = site.place({"place_drives": "scratch", "place_gather": "Yes"})
    assert played.status == 0, played.output
    # Whoever is out of reach is no candidate, whatever the cache remembers, and is shown.
    assert "1 of 3 hosts can take a run with scratch (workspace ml)" in played.output
    assert played.stats["stowage_placement_hosts"] == ["gpu-01"]
    assert '"      machine gpu-02 did not answer"' in played.output
    assert '"      machine gpu-03 could not report its storage: ' in played.output
    found = cache_loader.get("jsonfile", _uri=site.facts).get("gpu-01")["stowage_storage"]
    assert found["compact"]["labels"] == {"site": "eu"}


def test_a_drive_on_a_host_that_does_not_answer(site: Site) -> None:
    drive = {"metadata": {"name": "imagenet"}, "spec": {"sources": [{"node": "gpu-02", "path": "/srv/imagenet"}]}}
    site.change(gpu_01={**HERE, "host_drives": {"ml": [drive]}}, gpu_02={"host_drives": {"ml": [drive]}})
    played = site.place({"place_drives": "imagenet", "place_gather": "true"}, "-l", "gpu-01:gpu-02")
    assert played.status == 2, played.output
    assert played.stats["stowage_placement_waiting"] == [
        "drive imagenet: source 0 is on machine gpu-02 which is Down",
        "machine gpu-02 did not answer",
    ]
    assert played.refusal.startswith("no host can take the run: drive imagenet: source 0 is on machine gpu-02 which is")


def test_no_host_answers(site: Site) -> None:
    played = site.place({"place_drives": "scratch", "place_gather": "true"}, "-l", "gpu-02:gpu-03")
    assert played.status == 2, played.output
    assert played.refusal == "no host can take the run: 2 machines did not answer"
    assert played.stats["stowage_placement_waiting"] == [
        "machine gpu-02 did not answer",
        "machine gpu-03 did not answer",
    ]
