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
    refs = json.dumps({"place_drives": [{"name": "hf-cache", "mount_path": "/x"}, {"name": "imagenet"}]})
    status, output = play(site, "-e", refs, "-l", "gpu-01:gpu-02")
    assert status == 2, output
    assert stats(output) == {
        "stowage_placement_host": "",
        "stowage_placement_hosts": [],
        "stowage_placement_waiting": ["drive imagenet does not exist", "Choose where to keep data on gpu-01"],
    }
    assert "no host can take the run: drive imagenet does not exist; Choose where to keep data on gpu-01" in output


def change(site: Path, **hosts: dict[str, Any]) -> None:
    """Change the variables of hosts in the inventory."""
    inventory = json.loads((site / "inventory.json").read_text())
    for name, variables in hosts.items():
        inventory["all"]["hosts"][name.replace("_", "-")].update(variables)
    (site / "inventory.json").write_text(json.dumps(inventory))


def refusal(output: str) -> str:
    """Return what the job ends with: one message, without Ansible's words around it."""
    (line,) = [line for line in output.splitlines() if line.startswith("fatal: ") and " FAILED! " in line]
    return str(json.loads(line[line.index("{") :])["msg"])


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
def test_what_cannot_be_placed_is_refused(site: Path, variables: dict[str, Any], message: str) -> None:
    status, output = play(site, "-e", json.dumps(variables))
    assert status == 2, output
    assert refusal(output).startswith(message)
    # Nobody was asked anything.
    assert "Look at the storage" not in output


def test_hosts_of_mixed_inventories(site: Path) -> None:
    """The first host has another workspace only, one has another list, and the limit leaves the others out."""
    scratch = [
        {"metadata": {"name": "scratch"}, "spec": {"sources": [{"node_scope": "local-any", "path": "{{ at }}"}]}}
    ]
    change(
        site,
        gpu_01={"host_drives": {"vision": []}},
        gpu_02={"host_drives": {"ml": scratch}, "at": "/local"},
        gpu_03={"at": "/unused"},
    )
    status, output = play(site, "-e", "place_drives=scratch place_workspace=ml")
    assert status == 0, output
    assert stats(output)["stowage_placement_hosts"] == ["gpu-02", "gpu-03"]
    assert '"      machine gpu-01 has no workspace ml in host_drives"' in output
    assert '"Given another drive of that name than most; a workspace should have"' in output
    status, output = play(site, "-e", "place_drives=scratch", "-l", "gpu-01")
    assert status == 2 and "drive scratch does not exist" in output


def test_json_text_and_a_run_without_drives(site: Path) -> None:
    status, output = play(site, "-e", json.dumps({"place_drives": '[{"name": "hf-cache", "mount_path": "/x"}]'}))
    assert status == 0, output
    assert stats(output)["stowage_placement_host"] == "gpu-03"
    status, output = play(site, "-e", json.dumps({"place_drives": []}))
    assert status == 0, output
    assert stats(output)["stowage_placement_hosts"] == ["gpu-01", "gpu-02", "gpu-03"]


HERE = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}


def test_facts_are_gathered_when_asked_for(site: Path) -> None:
    change(
        site,
        gpu_01={**HERE, "stowage_topology": {"site": "eu"}},
        gpu_03={**HERE, "ansible_python_interpreter": "/bin/false"},
    )
    status, output = play(site, "-e", "place_drives=scratch place_gather=Yes")
    assert status == 0, output
    # Whoever is out of reach is no candidate, whatever the cache remembers, and is shown.
    assert "1 of 3 hosts can take a run with scratch (workspace ml)" in output
    assert stats(output)["stowage_placement_hosts"] == ["gpu-01"]
    assert '"      machine gpu-02 did not answer"' in output
    assert '"      machine gpu-03 could not report its storage: ' in output
    found = cache_loader.get("jsonfile", _uri=str(site / "facts")).get("gpu-01")["stowage_storage"]
    assert found["compact"]["labels"] == {"site": "eu"}


def test_a_drive_on_a_host_that_does_not_answer(site: Path) -> None:
    drive = {"metadata": {"name": "imagenet"}, "spec": {"sources": [{"node": "gpu-02", "path": "/srv/imagenet"}]}}
    change(site, gpu_01={**HERE, "host_drives": {"ml": [drive]}}, gpu_02={"host_drives": {"ml": [drive]}})
    arguments = ("-e", "place_drives=imagenet place_gather=true", "-l", "gpu-01:gpu-02")
    status, output = play(site, *arguments)
    assert status == 2, output
    assert stats(output)["stowage_placement_waiting"] == [
        "drive imagenet: source 0 is on machine gpu-02 which is Down",
        "machine gpu-02 did not answer",
    ]
    assert refusal(output).startswith(
        "no host can take the run: drive imagenet: source 0 is on machine gpu-02 which is"
    )


def test_no_host_answers(site: Path) -> None:
    status, output = play(site, "-e", "place_drives=scratch place_gather=true", "-l", "gpu-02:gpu-03")
    assert status == 2, output
    assert refusal(output) == "no host can take the run: 2 machines did not answer"
    assert stats(output)["stowage_placement_waiting"] == [
        "machine gpu-02 did not answer",
        "machine gpu-03 did not answer",
    ]
