# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that playbooks are told: what matches none is refused, also where --limit takes all of them out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
RUN = "-e run_name=r -e run_workspace=ml -e run_drives=cache"


def refusal(home: Path, playbook: str, arguments: str) -> str:
    """Return what the playbook is refused with."""
    hosts = {"gpu-01": {}, "gpu-02": {}}
    inventory = home / "inventory.json"
    inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": {"ansible_ssh_executable": "/bin/false"}}}))
    collections = home / "collections/ansible_collections/stowage"
    collections.mkdir(parents=True)
    (collections / "host").symlink_to(REPOSITORY)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_COLLECTIONS_PATH": str(home / "collections"),
        "ANSIBLE_NOCOLOR": "true",
    }
    command = [sys.executable, "-m", "ansible", "playbook", "-i", str(inventory), f"stowage.host.{playbook}"]
    done = subprocess.run(
        [*command, *arguments.split()], capture_output=True, text=True, check=False, env=environment, cwd=home
    )
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("fatal: ")]
    return str(json.loads(line[line.index("{") :])["msg"])


@pytest.mark.parametrize(
    ("playbook", "arguments", "message"),
    [
        (
            "site",
            "-e site_hosts=gpu-01,gpu-77",
            'site_hosts "gpu-01,gpu-77": gpu-77 matches no host of the inventory; correct it',
        ),
        ("run_prepare", f"{RUN} --limit gpu-01", 'run_hosts "": names no host; name the hosts'),
        (
            "run_release",
            f"{RUN} -e run_hosts=gpu-02 --limit gpu-01",
            'run_hosts "gpu-02": none of its hosts is within --limit; correct one of the two',
        ),
    ],
)
def test_hosts_that_are_not_there_are_refused(playbook: str, arguments: str, message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, playbook, arguments) == message


@pytest.mark.parametrize("path", sorted((REPOSITORY / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_every_playbook_checks_its_hosts_first(path: Path) -> None:
    first, *plays = yaml.safe_load(path.read_text())
    assert first["ansible.builtin.import_playbook"] == "parts/hosts.yml"
    variable = first["vars"]["hosts_variable"]
    assert variable in first["vars"]["hosts_pattern"]
    assert any(variable in play["hosts"] for play in plays)
