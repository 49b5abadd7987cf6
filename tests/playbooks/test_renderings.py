# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that a playbook renders from an inventory, for each target, without asking any host for more than its name."""

from __future__ import annotations

import json
from typing import Any

from playbooks_lab import HERE, Lab, Played

HOSTS = {
    "gpu-01": {
        **HERE,
        "host_storage_root": "/srv/{{ site }}",
        "host_storage_overrides": {"runs": {"path": "/mnt/runs", "require_mount": True}},
        "host_environment_prefix": "TUNEPLANE_",
        "site": "tuneplane",
    }
}
RUN = {"path": "/mnt/runs/ann/llm/1", "work": "/mnt/runs/ann/llm/1/work", "run": "ann/llm/1"}
PREPARED = {
    "mounts": [
        {
            "source": "/run/stowage/pins/r/1",
            "target": "/data",
            "read_only": True,
            "drive": "imagenet",
            "source_index": 0,
        }
    ]
}
OF_KUBERNETES = "claim='data', claims={'runs_root': 'run-data'}"
RENDERED = {
    "environment": "framework_environment",
    "docker": "render_run('docker', made, prepared.mounts)",
    "kubernetes": f"render_run('kubernetes', made, prepared.mounts, root='/claims/t', nodes=2, {OF_KUBERNETES})",
    "slurm": "render_run('slurm', made, root='/lustre/t')",
    "compose": "render_platform('compose')",
    "helm": f"render_platform('helm', {OF_KUBERNETES})",
    "settings": f"render_platform('settings', {OF_KUBERNETES})",
}


def play(lab: Lab, **rendered: str) -> Played:
    """Run a playbook that renders each for the host, and writes what it was given."""
    content = {name: f"{{{{ hostvars['gpu-01'] | stowage.host.{one} }}}}" for name, one in rendered.items()}
    copy = {"content": "{{ rendered | to_json }}", "dest": f"{lab.home}/rendered.json", "mode": "0644"}
    task = {"name": "Render", "ansible.builtin.copy": copy, "vars": {"rendered": content}}
    (lab.home / "render.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    return lab.play("render.yml", hosts=HOSTS, variables={"made": RUN, "prepared": PREPARED})


def test_every_target_from_an_inventory(lab: Lab) -> None:
    played = play(lab, **RENDERED)
    assert played.status == 0, played.output
    found: dict[str, Any] = json.loads((lab.home / "rendered.json").read_text())
    assert found["environment"]["HF_HOME"] == "/tmp/tuneplane-hf"
    assert found["docker"]["arguments"][:2] == ["--mount", f"type=bind,source={RUN['path']},target={RUN['path']}"]
    assert "HF_HUB_CACHE=/srv/tuneplane/cache/hf/hub" in found["docker"]["arguments"]
    mounts = found["kubernetes"]["container"]["volumeMounts"]
    assert mounts[0] == {"name": "runs-root", "mountPath": RUN["path"], "subPath": "ann/llm/1"}
    assert mounts[1] == {"name": "storage-root", "mountPath": "/claims/t/cache/hf/hub", "subPath": "cache/hf/hub"}
    assert found["kubernetes"]["demands"][0] == "claim run-data must be ReadWriteMany: 2 nodes write to runs"
    assert found["slurm"]["environment"]["HF_HOME"] == f"{RUN['work']}/.hf"
    assert found["slurm"]["environment"]["HF_HUB_CACHE"] == "/lustre/t/cache/hf/hub"
    assert found["slurm"]["run"]["work"] == RUN["work"]
    assert [one["source"] for one in found["compose"]["volumes"]] == ["/mnt/runs", "/srv/tuneplane"]
    assert found["helm"]["storageLocations"][0]["existingClaim"] == "run-data"
    assert json.loads(found["settings"]["TUNEPLANE_K8S_STORAGE_PVCS"]) == {"runs_root": "run-data"}


def test_what_no_run_is_given_is_refused_in_one_line(lab: Lab) -> None:
    state = "[{'source': '/srv/tuneplane/state', 'target': '/state', 'read_only': true}]"
    played = play(lab, job=f"render_run('docker', made, {state})")
    assert played.status != 0
    assert "render_run: inputs[0]: '/srv/tuneplane/state' was not prepared for a run" in played.output
