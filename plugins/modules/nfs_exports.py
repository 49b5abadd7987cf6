#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export sources of drives to single machines."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_exports
short_description: Export sources of drives over NFS, each to one machine
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Exports sources of drives that this host holds, as Astraeus's network mounts want it. Each export is to the address
    of one machine, stands in a file of its own in C(/etc/exports.d), is live at once, and is read back from the server.
  - Which directory is exported comes from the drive as it was rolled out on this host. It must be within what its
    workspace may use, be mounted, and lie in directories that only root can change, because the server looks it up by
    its name again and again.
  - Exports that others have made are never touched, and the server is never restarted. With O(exports[].rdma), the
    server is made to listen for RDMA on port 20049 once, by its list of ports, which is read back too.
  - An export that is there read-write stays so when it is asked for read-only, because another run of the machine may
    write to it.
  - Nothing is withdrawn with O(state=present). What is exported of another directory or to another address than is
    asked for stays so, because the machine may have it mounted, and RV(exports[].reason) says that its runs are to be
    released first. An export of the same directory to the same address that somebody else has made is refused.
  - The module fails when one of the exports cannot be made; the others are made all the same, and RV(exports) says what
    came of each.
options:
  host_name:
    description: The name of this host in the inventory.
    type: str
    required: true
  exports:
    description: The exports.
    type: list
    elements: dict
    required: true
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
      client:
        description: The machine that mounts it, by its name in the inventory.
        type: str
        required: true
      address:
        description: The address that the machine mounts it from. Required when O(state=present).
        type: str
        default: ""
      mode:
        description: Whether the machine may write to it.
        type: str
        choices: [ReadOnly, ReadWrite]
        default: ReadOnly
      rdma:
        description: Whether the machine mounts it over RDMA.
        type: bool
        default: false
      squash:
        description:
          - Whose requests are taken for those of nobody. C(root) is root only, C(all) is everybody, C(none) is no one.
        type: str
        choices: [root, all, none]
        default: root
      anonymous_uid:
        description: The user that they are taken for; the server's nobody by default.
        type: int
      anonymous_gid:
        description: The group that they are taken for; the server's nobody by default.
        type: int
      serial:
        description:
          - With O(state=absent), the RV(exports[].serial) of the export that the machine has unmounted. When it was
            asked for anew since, within the last hour, it stays. Empty withdraws whatever there is.
        type: str
        default: ""
  state:
    description:
      - Whether they are exported. An export is withdrawn only after the machine has unmounted it, which is for the
        caller to see to, because a machine that still has it mounted would get errors.
      - With V(absent), one of which there is no record is found by its file, and somebody else's export stays.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  check_mode:
    description: Predicts changes, diff and actions; whether the server can listen for RDMA is only seen by a run.
  diff_mode:
    description: Shows the lines of the files, and the options that the server has of each export.
  platform:
    description: Linux with systemd and the kernel's NFS server. Must be run as root.
seealso:
  - module: stowage.host.nfs_mounts
  - module: stowage.host.drives
"""

EXAMPLES = r"""
- name: Let gpu-02 read the dataset
  stowage.host.nfs_exports:
    host_name: "{{ inventory_hostname }}"
    exports:
      - workspace: vision
        drive: imagenet
        client: gpu-02
        address: 10.10.0.12
        rdma: true

- name: Withdraw it when gpu-02 has unmounted it
  stowage.host.nfs_exports:
    host_name: "{{ inventory_hostname }}"
    exports:
      - workspace: vision
        drive: imagenet
        client: gpu-02
        serial: "{{ unmounted.mounts[0].serial }}"
    state: absent

- name: Withdraw it by hand, as gpu-02 is gone for good
  stowage.host.nfs_exports:
    host_name: "{{ inventory_hostname }}"
    exports:
      - workspace: vision
        drive: imagenet
        client: gpu-02
    state: absent
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["export /mnt/nvme0/imagenet to 10.10.0.12"]
exports:
  description: What came of each.
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
    client:
      description: The machine.
      type: str
      sample: gpu-02
    client_address:
      description: The only address that it is exported to.
      type: str
      sample: 10.10.0.12
    path:
      description: The directory; empty when it was refused, or when nothing was known of it.
      type: str
      sample: /mnt/nvme0/imagenet
    read_only:
      description: Whether it is exported read-only.
      type: bool
      sample: true
    fsid:
      description: What clients know it by.
      type: str
      sample: 0f1d0b5e-0e0e-5c3c-9d1f-2f1f0f8f6f5f
    state:
      description: C(Exported), C(Released) or C(Failed).
      type: str
      sample: Exported
    reason:
      description:
        - Why it failed, or why it is still exported otherwise than it was asked for, or why it was not withdrawn.
      type: str
      sample: ""
    time:
      description: Since when, in seconds since 1970.
      type: float
      sample: 1790000000.5
    serial:
      description: Another one each time that it was asked for, which alone is no change.
      type: str
      sample: 1c0f9a52f0b64f6f8f0f6a3b8f1f2a77
    renewed:
      description: When it was asked for last, in seconds since 1970.
      type: float
      sample: 1790000000.5
no_rdma:
  description: Why the server does not listen for RDMA although that is asked for; empty when it does.
  returned: success, or when some could not be made
  type: str
  sample: ""
"""

from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import PartlyFailed
from ansible_collections.stowage.host.plugins.module_utils.locks import network_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.exporting import (
    Exporting,
    read_asked,
    read_key,
)
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.records import FAILED, shown_export
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.server import Server
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.services.systemd_units import Systemctl

ARGUMENT_SPEC = {
    "host_name": {"type": "str", "required": True},
    "exports": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "workspace": {"type": "str", "required": True},
            "drive": {"type": "str", "required": True},
            "source": {"type": "int", "default": 0},
            "client": {"type": "str", "required": True},
            "address": {"type": "str", "default": ""},
            "mode": {"type": "str", "choices": ["ReadOnly", "ReadWrite"], "default": "ReadOnly"},
            "rdma": {"type": "bool", "default": False},
            "squash": {"type": "str", "choices": ["root", "all", "none"], "default": "root"},
            "anonymous_uid": {"type": "int"},
            "anonymous_gid": {"type": "int"},
            "serial": {"type": "str", "default": ""},
        },
    },
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def make(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    params, places = module.params, Places()
    systemctl = Systemctl(module.get_bin_path("systemctl", required=True), module.run_command)
    host = params["host_name"]
    present = params["state"] == "present"
    asked = [read_asked(one, host) for one in params["exports"]] if present else []
    serials = {read_key(one): one["serial"] for one in params["exports"]}
    with nullcontext() if module.check_mode else network_lock(places, alone=True):
        exporting = Exporting(places, host, Server(systemctl, differences), module.run_command, differences)
        found, no_rdma = exporting.export(asked) if present else (exporting.withdraw(serials), "")
    results = {"exports": [shown_export(one) for one in found], "no_rdma": no_rdma}
    failed = [one for one in found if one.state == FAILED or (present and one.reason)]
    if failed:
        raise PartlyFailed("; ".join(dict.fromkeys(one.reason for one in failed)), results)
    return results


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), make)


if __name__ == "__main__":
    main()
