#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount sources of drives that other machines hold."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_mounts
short_description: Mount drives of other machines over NFS, with RDMA proved
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Mounts sources of drives that other machines hold and export to this one, by systemd's mount units below
    C(/var/lib/stowage/datavolumes/mounts), now and at every boot. Versions and options are written out, and the mounts
    are hard, so that whoever reads waits for the server and never takes an error for the end of a file.
  - A mount counts as one over RDMA only when the kernel's statistics say so. When RDMA does not work, a drive whose
    transport is C(Auto) is mounted over TCP and its message says why; one whose transport is C(RDMA) fails.
  - What is mounted at such a place and is not what it should be is left alone and refused. Nothing is ever mounted over
    it.
  - A mount that is there read-write stays so when it is asked for read-only, because another run may write to it; each
    worker has it as its own run asks for.
  - A mount that is there stays as it was made, whatever address would be taken now. When another directory is asked
    for, that is refused until it is released.
  - The module fails when one of the mounts cannot be made; the others are made all the same, and RV(mounts) says what
    came of each.
  - Everything is recorded before it is done, so that whatever ended half way is undone by O(state=absent).
options:
  host_name:
    description: The name of this host in the inventory.
    type: str
    required: true
  run:
    description:
      - The run that they are for. When O(state=present) or O(state=pending), it keeps them for an hour, in which nobody
        else's O(state=absent) takes them away before the run uses them.
      - When O(state=absent), it keeps none any more, and in check mode what its workers have counts as released.
    type: str
    default: ""
  mounts:
    description:
      - The network mounts. Unless O(state=present) or O(state=pending), only C(workspace), C(drive) and C(source) of
        each count. Without it, O(state=absent) means all network mounts of the host.
    type: list
    elements: dict
    suboptions:
      workspace:
        description: The workspace of the drive.
        type: str
        required: true
      drive:
        description: The drive.
        type: str
        required: true
      source:
        description: The number of the drive's source, 0 for the first one.
        type: int
        default: 0
      node:
        description:
          - The machine that holds it, by its name in the inventory. Required when O(state=present) or
            O(state=pending).
        type: str
        default: ""
      address:
        description: Its address. Required when O(state=present), unless C(not_exported).
        type: str
        default: ""
      export:
        description:
          - The directory that it exports, as it says itself. Required when O(state=present), unless C(not_exported).
        type: str
        default: ""
      mode:
        description: Whether a worker writes to it.
        type: str
        choices: [ReadOnly, ReadWrite]
        default: ReadOnly
      transport:
        description: The transport of the drive.
        type: str
        choices: [Auto, RDMA, TCP]
        default: Auto
      rdma:
        description: Whether both machines are on one RDMA network, as the filter P(stowage.host.transport#filter) says.
        type: bool
        default: false
      not_exported:
        description: Why the other machine does not export it. Unless it is empty, the mount is recorded as C(Pending).
        type: str
        default: ""
      no_rdma:
        description:
          - Why RDMA cannot be had although both machines have it. Unless it is empty, RDMA is not tried, and the
            message of the mount says why.
        type: str
        default: ""
      serial:
        description:
          - Which export it is, as M(stowage.host.nfs_exports) says. It is handed back when the export is to be
            withdrawn, so that one that was made anew meanwhile is not. When O(state=withdrawn), which one was.
        type: str
        default: ""
  state:
    description:
      - Whether they are mounted. C(absent) unmounts those that no run of this host uses or is about to, and leaves the
        others. A mount whose server does not answer is unmounted by force.
      - C(pending) records only what is to be mounted, before the other machines export it.
      - C(withdrawn) records of mounts that are unmounted here that the other machines export them no more.
    type: str
    choices: [present, pending, absent, withdrawn]
    default: present
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  check_mode:
    description: Predicts changes, diff and actions. Whether a server can be mounted, and over what, only a run can see.
  diff_mode:
    description: Shows the lines of the units, and what is mounted.
  platform:
    description: Linux with systemd and the kernel's NFS client. Must be run as root.
seealso:
  - module: stowage.host.nfs_exports
  - plugin: stowage.host.transport
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Mount the dataset of gpu-01
  stowage.host.nfs_mounts:
    host_name: "{{ inventory_hostname }}"
    mounts:
      - workspace: vision
        drive: imagenet
        node: gpu-01
        address: 10.10.0.11
        export: /mnt/nvme0/imagenet
        rdma: true

- name: Unmount what no run uses any more, once this one is released
  stowage.host.nfs_mounts:
    host_name: "{{ inventory_hostname }}"
    state: absent
    run: finetune-3
  register: unmounted
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["mount 10.10.0.11:/mnt/nvme0/imagenet over rdma"]
mounts:
  description:
    - What came of each. When O(state=absent), those that were unmounted earlier are there too, until their exports are
      known to be withdrawn.
  returned: success, or when some could not be made
  type: list
  elements: dict
  contains:
    workspace:
      description: The workspace of the drive.
      type: str
      sample: vision
    drive:
      description: The drive.
      type: str
      sample: imagenet
    source:
      description: The number of its source.
      type: int
      sample: 0
    node:
      description: The machine that holds it.
      type: str
      sample: gpu-01
    path:
      description: Where it is mounted.
      type: str
      sample: /var/lib/stowage/datavolumes/mounts/vision.imagenet-0
    state:
      description: C(Pending), C(Exported), C(Bound), C(Releasing), C(Released) or C(Failed).
      type: str
      sample: Bound
    reason:
      description: Why it is not C(Bound), or not released.
      type: str
      sample: ""
    proto:
      description: Over what it is mounted, C(rdma) or C(tcp).
      type: str
      sample: rdma
    message:
      description: What is worth knowing of a mount, such as why it is not over RDMA.
      type: str
      sample: "mounted over TCP (RDMA did not work): mount.nfs4: Connection refused"
    read_only:
      description: Whether it is mounted read-only.
      type: bool
      sample: true
    time:
      description: Since when, in seconds since 1970.
      type: float
      sample: 1790000000.5
    client:
      description: The name that it is exported to.
      type: str
      sample: gpu-02
    serial:
      description: Which export it is.
      type: str
      sample: 5d1e6c0a6d0f4e6c9a3b0d3a0f6f7c11
    reserved:
      description: Until when runs keep it that are about to use it, in seconds since 1970, by run.
      type: dict
      sample: {finetune-3: 1790003600.5}
"""

from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import PartlyFailed, Refusal
from ansible_collections.stowage.host.plugins.module_utils.locks import network_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.asked import read_asked
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.client import Client
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.making import Making
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.records import (
    BOUND,
    MountRecord,
    read_key,
    shown_mount,
)
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.releasing import note_withdrawn, release
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.runs.pins import check_run
from ansible_collections.stowage.host.plugins.module_utils.services.systemd_units import Systemctl

ARGUMENT_SPEC = {
    "host_name": {"type": "str", "required": True},
    "run": {"type": "str", "default": ""},
    "mounts": {
        "type": "list",
        "elements": "dict",
        "options": {
            "workspace": {"type": "str", "required": True},
            "drive": {"type": "str", "required": True},
            "source": {"type": "int", "default": 0},
            "node": {"type": "str", "default": ""},
            "address": {"type": "str", "default": ""},
            "export": {"type": "str", "default": ""},
            "mode": {"type": "str", "choices": ["ReadOnly", "ReadWrite"], "default": "ReadOnly"},
            "transport": {"type": "str", "choices": ["Auto", "RDMA", "TCP"], "default": "Auto"},
            "rdma": {"type": "bool", "default": False},
            "not_exported": {"type": "str", "default": ""},
            "no_rdma": {"type": "str", "default": ""},
            "serial": {"type": "str", "default": ""},
        },
    },
    "state": {"type": "str", "choices": ["present", "pending", "absent", "withdrawn"], "default": "present"},
}


def make(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    params, places = module.params, Places()
    state, given, host = params["state"], params["mounts"], params["host_name"]
    run_name = check_run(params["run"]) if params["run"] else ""
    if state != "absent" and given is None:
        raise Refusal("mounts", f"is required when state is {state}", "name the network mounts")
    making = state in ("present", "pending")
    asked = [read_asked(one, host, places, state == "pending") for one in given] if making else []
    keys = None if given is None else [read_key(one) for one in given]
    systemctl = Systemctl(module.get_bin_path("systemctl", required=True), module.run_command)
    journalctl = module.get_bin_path("journalctl", required=True)
    with nullcontext() if module.check_mode else network_lock(places, alone=True):
        client = Client(places, systemctl, module.run_command, journalctl, differences)
        if state == "present":
            found = Making(client, run_name).make(asked)
        elif state == "pending":
            found = Making(client, run_name).expect(asked)
        elif state == "absent":
            found = release(client, keys, run_name)
        else:
            found = note_withdrawn(client, zip(keys or [], [one["serial"] for one in given]))
    results = {"mounts": [shown(one, host) for one in found]}
    failed = [f"drive {one.workspace}/{one.drive} from {one.node}: {one.reason}" for one in found if one.state != BOUND]
    if state == "present" and failed:
        raise PartlyFailed("; ".join(failed), results)
    return results


def shown(one: MountRecord, host: str) -> dict[str, Any]:
    """Return a network mount, with what its export is withdrawn by."""
    return {**shown_mount(one), "client": one.client or host, "serial": one.serial, "reserved": one.reserved}


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), make)


if __name__ == "__main__":
    main()
