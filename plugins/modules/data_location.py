#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the folder where a host keeps its copies of placed drives."""

from __future__ import annotations

DOCUMENTATION = r"""
module: data_location
short_description: Choose where a host keeps its copies of placed drives
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Makes one folder on a disk of the host's own its data location, the place for its copies of placed drives. The
    folder is marked, so that a disk that is not mounted, or another one in its place, is never taken for it.
  - The folder is created when it is missing; the directory that it is in must exist.
  - A change leaves existing copies where they are. They are neither moved nor deleted, and the former data location is
    remembered as long as it holds any. Clearing is refused while the host holds a copy.
  - Nothing is ever deleted but empty directories that Stowage made.
options:
  path:
    description:
      - The folder. It must be absolute, on a local filesystem, and only root may be able to put another in its place.
      - A folder at or below a mount that is in C(/etc/fstab) or has a mount or automount unit is refused while that is
        not mounted.
      - The system disk is allowed, with a warning. A shared filesystem is refused.
      - Symbolic links in it are resolved, and the resolved path is recorded.
      - Required unless O(state=absent).
    type: str
  max_bytes:
    description:
      - The most that copies may take, as a number of bytes or a quantity such as V(500G) or V(2Ti). V(0) means no limit
        but the disk.
    type: raw
    default: 0
  host_name:
    description:
      - The host's name in the inventory. The folder is marked with it.
      - Another name than the one that is recorded on the host is refused, unless that is in O(adopt_from).
    type: str
    required: true
  adopt:
    description:
      - Directories below C(drives) in the folder to take in as copies, each as C(<workspace>.<drive>) or as a
        dictionary of C(workspace) and C(drive). Nothing is ever taken in that is not named here.
      - The directory becomes the copy of the drive that is declared by that name, or is declared by it next.
      - An orphan, the copy of a drive that was taken off the list and made again, is taken in by the new drive.
    type: list
    elements: raw
    default: []
  adopt_from:
    description:
      - The name of the host whose data location the folder is by its mark, when this host was renamed or the disk was
        moved here. The folder and the copies in it become this host's. Take it out afterwards.
    type: str
    default: ""
  forget:
    description:
      - Identities of data locations of this host whose disk is gone for good. The refusal that a missing disk causes
        shows the identity. One that is there is refused, because it would be given up whenever its disk is away.
    type: list
    elements: str
    default: []
  state:
    description:
      - V(present) chooses the folder. V(absent) clears the data location; the folder stays.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  check_mode:
    description: Predicts the changes, the diff and the actions of a run, also when the folder does not exist yet.
  diff_mode:
    description: Shows the path, the limit, the directories, the marks and the former data locations that differ.
notes:
  - The folder is never guessed. M(stowage.host.storage_facts) reports a host's disks, and which of them is recommended.
seealso:
  - module: stowage.host.drives
  - module: stowage.host.storage_facts
"""

EXAMPLES = r"""
- name: Keep copies on the first NVMe disk, at most two terabytes of them
  stowage.host.data_location:
    path: /mnt/nvme0/stowage
    max_bytes: 2T
    host_name: "{{ inventory_hostname }}"

- name: Take in a dataset that was there before
  stowage.host.data_location:
    path: /mnt/nvme0/stowage
    host_name: "{{ inventory_hostname }}"
    adopt:
      - vision.imagenet

- name: Go on after a host was renamed
  stowage.host.data_location:
    path: /mnt/nvme0/stowage
    host_name: "{{ inventory_hostname }}"
    adopt_from: gpu-old-01

- name: Have no data location any more
  stowage.host.data_location:
    host_name: "{{ inventory_hostname }}"
    state: absent
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["make directory /mnt/nvme0/stowage"]
folder:
  description: The data location with symbolic links resolved, or nothing when there is none.
  returned: success
  type: str
  sample: /mnt/nvme0/stowage
max_bytes:
  description: The most that copies may take; 0 is no limit but the disk.
  returned: success
  type: int
  sample: 2000000000000
filesystem:
  description: The filesystem of the data location, and the word for the disk it is on; empty when there is none.
  returned: success
  type: dict
  sample:
    fstype: xfs
    uuid: 0d1b6f0e-9a5b-4b43-8f3e-5f6f0b0b6a10
    source: /dev/nvme0n1
    disk: NVMe SSD
copies:
  description: The copies in the data location by name, those included that are set aside for eviction.
  returned: success
  type: list
  elements: str
  sample: ["vision.imagenet"]
former:
  description: Former data locations that hold, or may hold, copies.
  returned: success
  type: list
  elements: str
  sample: ["/mnt/nvme1/stowage"]
"""

import os
from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils import host_name
from ansible_collections.stowage.host.plugins.module_utils.data_location.adoption import adopt_names
from ansible_collections.stowage.host.plugins.module_utils.data_location.change import Choice, choose, clear
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal
from ansible_collections.stowage.host.plugins.module_utils.locks import host_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.sizes import parse_quantity

ARGUMENT_SPEC = {
    "path": {"type": "str"},
    "max_bytes": {"type": "raw", "default": 0},
    "host_name": {"type": "str", "required": True},
    "adopt": {"type": "list", "elements": "raw", "default": []},
    "adopt_from": {"type": "str", "default": ""},
    "forget": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def make(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise Refusal("data_location", "must be run as root, who alone can read owner marks", "set become: true")
    params = module.params
    places = Places()
    host_name.check(places, params["host_name"], params["adopt_from"])
    with nullcontext() if module.check_mode else host_lock(places):
        if params["state"] == "absent":
            outcome = clear(places, params["host_name"], params["forget"], differences)
        else:
            if not params["path"]:
                raise Refusal("path", "is required unless state is absent", "name the folder")
            choice = Choice(
                params["path"],
                parse_quantity(params["max_bytes"], "max_bytes"),
                params["host_name"],
                adopt_names(params["adopt"]),
                params["adopt_from"],
                params["forget"],
            )
            outcome = choose(places, choice, differences)
    for warning in outcome.warnings:
        module.warn(warning)
    location = outcome.location
    return {
        "folder": location.path if location is not None else None,
        "max_bytes": location.max_bytes if location is not None else 0,
        "filesystem": {**location.filesystem.to_json(), "disk": outcome.kind} if location is not None else {},
        "copies": sorted(found.copy_name for found in outcome.holdings.copies),
        "former": sorted(former.path for former in outcome.former),
    }


def main() -> None:
    run(AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True), make)


if __name__ == "__main__":
    main()
