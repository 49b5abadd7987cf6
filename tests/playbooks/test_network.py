# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network mounts of runs, by run_prepare and run_release over hosts whose modules are stood in for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playbooks_lab import HERE, Lab, Played

RUN = {"run_hosts": "gpu-02,gpu-03", "run_name": "tune", "run_workspace": "vision", "run_drives": "imagenet"}
DRIVES = {
    "vision": [
        {
            "metadata": {"name": "imagenet"},
            "spec": {"sources": [{"node": "gpu-01", "path": "/data/imagenet", "mount_path": "/data"}]},
        }
    ]
}

NOTE = '''#!/usr/bin/python
"""Answers as the test says, and notes what it was asked."""
import json, os
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule(dict.fromkeys(%r, {"type": "raw"}), supports_check_mode=True)
given = module.params
home, host = os.path.split(module._remote_tmp)
with open(f"{home}/answers.json") as stream:
    answer = json.load(stream).get(host, {})
with open(f"{home}/asked", "a") as stream:
    stream.write(json.dumps([%r, host, given.get("state") or "", given]) + "\\n")
'''

STORAGE_FACTS = (
    NOTE % (["labels"], "storage_facts")
    + """
compact = {
    "labels": {},
    "addresses": [f"192.0.2.1{host[-1]}/24"],
    "rdma": [],
    "nfs": {"can_export": True, "can_mount": not answer.get("has_no_client")},
}
module.exit_json(ansible_facts={"stowage_storage": {"compact": compact}})
"""
)

DRIVE_MOUNT = (
    NOTE
    % (
        ["state", "run", "worker", "workspace", "host_name", "datavolume_refs", "confirm_within", "timeout", "force"],
        "drive_mount",
    )
    + """
if "drive_mount" in answer and not module.check_mode and not given["state"]:
    module.fail_json(msg=answer["drive_mount"])
module.exit_json(
    changed=False, actions=[], mounts=[], docker=[], kubernetes={}, waiting=[], held=answer.get("held", []),
    volumes_left_out=[],
)
"""
)

NFS_MOUNTS = (
    NOTE % (["state", "run", "host_name", "mounts"], "nfs_mounts")
    + """
key = {"workspace": "vision", "drive": "imagenet", "source": 0}
released = {**key, "node": "gpu-01", "state": "Released", "reason": "", "client": host, "serial": f"of {host}"}
one = {**key, "node": "gpu-01", "state": "Bound", "proto": "tcp", "message": ""}
module.exit_json(changed=False, actions=[], mounts=[released if given["state"] == "absent" else one])
"""
)

NFS_EXPORTS = (
    NOTE % (["state", "host_name", "exports"], "nfs_exports")
    + """
module.exit_json(changed=False, actions=[], no_rdma="", exports=[
    {**{field: one[field] for field in ("workspace", "drive", "source", "client")},
     "state": "Released" if given["state"] == "absent" else "Exported", "reason": "", "path": "/disks/1/imagenet",
     "client_address": one.get("address", ""), "serial": f"of {one['client']}"}
    for one in given["exports"]
])
"""
)


class Site:
    """gpu-01 holds a drive that workers on gpu-02 and gpu-03 read."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        programs = {"storage_facts": STORAGE_FACTS, "nfs_mounts": NFS_MOUNTS, "nfs_exports": NFS_EXPORTS}
        for module, program in {**programs, "drive_mount": DRIVE_MOUNT}.items():
            lab.stand_in(module, program)

    def play(self, playbook: str, *options: str, answers: dict[str, Any] | None = None) -> Played:
        hosts = {f"gpu-0{number}": {**HERE, "host_drives": DRIVES} for number in (1, 2, 3)}
        played = self._lab.play(playbook, *options, hosts=hosts, variables=RUN, answers=answers)
        self._asked = [json.loads(line) for line in played.asked]
        return played

    @property
    def order(self) -> list[tuple[str, str]]:
        """Which module was asked for which state, each once, in the order of the first time."""
        return list(dict.fromkeys((module, state) for module, _host, state, _given in self._asked))

    def asked(self, module: str, state: str = "") -> dict[str, Any]:
        """Return what each host was asked."""
        return {host: given for one, host, its_state, given in self._asked if (one, its_state) == (module, state)}


@pytest.fixture
def site(lab: Lab) -> Site:
    lab.environment["ANSIBLE_STRATEGY"] = "free"  # whatever the operator's is
    return Site(lab)


def test_what_is_to_be_mounted_is_recorded_then_exported_then_mounted(site: Site) -> None:
    played = site.play("run_prepare")
    assert played.status == 0, played.output
    network = [asked for asked in site.order if asked[0].startswith("nfs")]
    assert network == [("nfs_mounts", "pending"), ("nfs_exports", ""), ("nfs_mounts", "")]
    assert {one["client"] for one in site.asked("nfs_exports")["gpu-01"]["exports"]} == {"gpu-02", "gpu-03"}
    for state in ("pending", ""):
        assert {host: given["run"] for host, given in site.asked("nfs_mounts", state).items()} == {
            "gpu-02": "tune",
            "gpu-03": "tune",
        }
    (mount,) = site.asked("nfs_mounts")["gpu-02"]["mounts"]
    assert (mount["export"], mount["serial"]) == ("/disks/1/imagenet", "of gpu-02")


def test_nothing_is_exported_or_recorded_when_one_worker_cannot_have_it(site: Site) -> None:
    played = site.play("run_prepare", answers={"gpu-03": {"has_no_client": True}})
    assert "gpu-03 has no" in played.refusal
    assert not [asked for asked in site.order if asked[0].startswith("nfs")]


def test_a_run_that_cannot_be_prepared_keeps_no_network_mounts(site: Site) -> None:
    site.play("run_prepare", answers={"gpu-03": {"drive_mount": "no room"}, "gpu-02": {"held": ["imagenet"]}})
    assert {host: given["run"] for host, given in site.asked("nfs_mounts", "absent").items()} == {
        "gpu-02": "tune",
        "gpu-03": "tune",
    }


@pytest.mark.parametrize("options", [[], ["--check"]])
def test_a_release_unmounts_what_the_run_keeps_and_withdraws_just_that(site: Site, options: list[str]) -> None:
    played = site.play("run_release", *options)
    assert played.status == 0, played.output
    network = [asked for asked in site.order if asked[0].startswith("nfs")]
    assert network == [("nfs_mounts", "absent"), ("nfs_exports", "absent"), ("nfs_mounts", "withdrawn")]
    assert site.asked("nfs_mounts", "absent")["gpu-02"]["run"] == "tune"
    exports = site.asked("nfs_exports", "absent")["gpu-01"]["exports"]
    assert sorted((one["client"], one["serial"]) for one in exports) == [
        ("gpu-02", "of gpu-02"),
        ("gpu-03", "of gpu-03"),
    ]
