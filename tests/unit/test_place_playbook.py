# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""playbooks/place.yml, run by Ansible over a fact cache, with a connection that nobody can open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.plugins.loader import cache_loader

REPOSITORY = Path(__file__).resolve().parents[2]
INVENTORY = {
    "all": {
        "vars": {
            # Whoever opens a connection fails.
            "ansible_ssh_executable": "/bin/false",
            "host_drives": {
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
            },
        },
        "hosts": {"gpu-01": {}, "gpu-02": {"stowage_topology": {"site": "eu", "rack": 7}}, "gpu-03": {}},
    }
}


def facts(free: int | None, *copies: str) -> dict[str, Any]:
    place = {"path": "/d", "available": True, "free_bytes": free, "used_bytes": 0, "max_bytes": 0}
    compact = {
        "labels": {},
        "data_location": place if free is not None else None,
        "copies": dict.fromkeys(copies),
        "shared": [],
        "rdma": [],
    }
    return {"stowage_storage": {"compact": compact}}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "inventory.json").write_text(json.dumps(INVENTORY))
    collections = tmp_path / "collections/ansible_collections/stowage"
    collections.mkdir(parents=True)
    (collections / "host").symlink_to(REPOSITORY)
    # How Ansible keeps facts in a file differs between its releases.
    cache = cache_loader.get("jsonfile", _uri=str(tmp_path / "facts"))
    for name, value in {"gpu-01": facts(None), "gpu-02": facts(10**12), "gpu-03": facts(0, "ml.hf-cache")}.items():
        cache.set(name, value)
    return tmp_path


def play(site: Path, *arguments: str) -> tuple[int, str]:
    """Return how place.yml ends, and what it says."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(site),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_CACHE_PLUGIN": "jsonfile",
        "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(site / "facts"),
        "ANSIBLE_COLLECTIONS_PATH": str(site / "collections"),
        "ANSIBLE_LOCALHOST_WARNING": "false",
        "ANSIBLE_SHOW_CUSTOM_STATS": "true",
    }
    command = [sys.executable, "-m", "ansible", "playbook", "stowage.host.place", "-i", "inventory.json", *arguments]
    done = subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def stats(output: str) -> dict[str, Any]:
    """Return what the next job of a workflow is told."""
    text = output.split("CUSTOM STATS:", 1)[1].split("RUN:", 1)[1]
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text.lstrip())[0]  # warnings may follow
    return found


def test_a_run_is_placed_by_the_cached_facts(site: Path) -> None:
    status, output = play(site, "-e", "place_drives=hf-cache:/cache")
    assert status == 0, output
    assert stats(output) == {
        "stowage_placement_host": "gpu-03",
        "stowage_placement_hosts": ["gpu-03", "gpu-02"],
        "stowage_placement_waiting": [],
    }
    for line in (
        "2 of 3 hosts can take a run with hf-cache (workspace ml)",
        "   1  gpu-03  has a copy of drive hf-cache",
        "      Choose where to keep data on gpu-01",
    ):
        assert f'"{line}"' in output
    assert max(map(len, output.split("PLAY RECAP")[0].replace("*", "").splitlines())) <= 80


def test_nobody_can_take_it(site: Path) -> None:
    refs = json.dumps({"place_datavolume_refs": [{"name": "hf-cache", "mount_path": "/x"}, {"name": "imagenet"}]})
    status, output = play(site, "-e", refs, "-l", "gpu-01:gpu-02")
    assert status == 2, output
    assert stats(output) == {
        "stowage_placement_host": "",
        "stowage_placement_hosts": [],
        "stowage_placement_waiting": ["drive imagenet does not exist", "Choose where to keep data on gpu-01"],
    }
    assert "no host can take the run: drive imagenet does not exist; Choose where to keep data on gpu-01" in output


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ("place_drives=", "place_drives: name the drives, as name or name:/mount/path, comma-separated"),
        ("place_drives=a place_workspace=mi", "place_workspace: mi is no workspace; host_drives has ml"),
        ("place_drives=hf-cache:data", "Invalid task: data volume hf-cache: mount_path must be absolute"),
    ],
)
def test_what_cannot_be_placed_is_refused(site: Path, variables: str, message: str) -> None:
    status, output = play(site, "-e", variables)
    assert status == 2 and message in " ".join(output.split()), output


def test_facts_are_gathered_when_asked_for(site: Path) -> None:
    inventory = json.loads((site / "inventory.json").read_text())
    here = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
    inventory["all"]["hosts"]["gpu-01"] = {**here, "stowage_topology": {"site": "eu"}}
    (site / "inventory.json").write_text(json.dumps(inventory))
    status, output = play(site, "-e", "place_drives=scratch place_gather=true", "-l", "gpu-01:gpu-02")
    assert status == 0, output
    # Whoever is out of reach is no candidate, whatever the cache remembers.
    assert "1 of 1 host can take a run with scratch (workspace ml)" in output
    assert stats(output)["stowage_placement_hosts"] == ["gpu-01"]
    found = cache_loader.get("jsonfile", _uri=str(site / "facts")).get("gpu-01")["stowage_storage"]
    assert found["compact"]["labels"] == {"site": "eu"}


def test_no_host_answers(site: Path) -> None:
    status, output = play(site, "-e", "place_drives=scratch place_gather=true", "-l", "gpu-02")
    assert status == 2 and "none of the hosts could be asked" in output, output
