#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Register the external volumes of a host, and whose runs may read which part of them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volume
short_description: Register the external volumes of a host, and who may read them
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Registers existing material that others own, below the host's volume root, and grants parts of it to the runs of
    users and teams, or to single runs. The list is complete. What is not on it is no volume any more.
  - Nothing is granted by a name. A volume without grants is given to nobody, and so is what is merely mounted below the
    volume root.
  - Nothing is ever made, changed, emptied or measured in a volume. The module writes C(/etc/stowage/volumes.json)
    alone. M(stowage.host.drive_mount) gives a run what it is granted, read-only.
  - A grant that is taken away is gone for workers that are prepared from then on. Those that have it keep it until they
    end, and a warning names them. A volume that workers still have is not taken off the list.
  - What is mounted for a run is reached on the host by root and by the owner of the run's directory alone.
  - A volume that is registered and not there now keeps its registration, with a warning, and its grants can be changed.
options:
  volumes:
    description:
      - All volumes of this host.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description:
          - What the volume is called, which is also the directory below C($VOLUMES_DIR) that a worker has it in. Lower
            case letters, digits and dashes.
        type: str
        required: true
      path:
        description:
          - Where it is, below the volume root; there under its name when left out. It must exist. Symbolic links on the
            way are followed where root alone could have put them.
          - It must lie, also where the links lead, apart from the storage layout and its protected paths, data
            locations, tiers and Stowage's own directories, from other volumes, and from sources of drives.
        type: str
      require_mount:
        description:
          - Whether the volume is there only while the mount that it is on now, with the same filesystem, is mounted. An
            empty directory does not prove that.
          - When left out, it stays as it was recorded for this path, and is true for a new one that is not on the root
            filesystem.
        type: bool
      grants:
        description:
          - Whose runs may read what. What several grants give a run is put together. Of folders inside each other it
            has the outer one.
        type: list
        elements: dict
        default: []
        suboptions:
          sub_path:
            description:
              - A folder of the volume; empty for all of it. No symbolic link in it is followed. It must be there when a
                run is prepared.
            type: str
            default: ""
          users:
            description:
              - The users whose runs may read it, as their directories below the runs location are called.
            type: list
            elements: str
            default: []
          teams:
            description:
              - The teams whose runs may read it, as runs are stamped with them when they are made.
            type: list
            elements: str
            default: []
          runs:
            description:
              - Single runs that may read it, as C(user/experiment/run_id).
            type: list
            elements: str
            default: []
  volume_root:
    description:
      - The volume root. Give it where the storage layout is made true in the same play, so that check mode knows it
        before. Another one than the layout's is refused.
      - When left out, it is that of the layout.
    type: str
  accept_new_filesystem:
    description:
      - Accept that a volume is on another filesystem than when it was recorded. Without it that counts as not there,
        because a disk that is not mounted looks like this.
    type: bool
    default: false
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  check_mode:
    description: Predicts the changes and the diff, also before the storage layout is made true.
  diff_mode:
    description: Shows the volumes that differ, with their grants.
seealso:
  - module: stowage.host.drive_mount
  - module: stowage.host.storage_layout
"""

EXAMPLES = r"""
- name: Register two volumes
  stowage.host.volume:
    volumes:
      - name: models
        grants:
          - sub_path: llama
            teams: [vision, speech]
          - users: [ann]
      - name: patients
        path: /srv/volumes/hospital/patients
        require_mount: true
        grants:
          - sub_path: study-12
            runs: [bob/study-12/final]

- name: Take all volumes off a host
  stowage.host.volume:
    volumes: []
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["write /etc/stowage/volumes.json"]
volumes:
  description: The volumes as they are recorded, by name.
  returned: success
  type: list
  elements: dict
  sample:
    - name: models
      path: /srv/volumes/models
      require_mount: true
      mount_point: /srv/volumes/models
      filesystem: {fstype: nfs4, uuid: null, source: "nas-1:/models"}
      grants:
        - {sub_path: llama, users: [], teams: [speech, vision], runs: []}
"""

import os
from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal
from ansible_collections.stowage.host.plugins.module_utils.locks import host_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.volumes.change import declare, volume_root
from ansible_collections.stowage.host.plugins.module_utils.volumes.declared import check_volumes

_NAMES = {"type": "list", "elements": "str", "default": []}
ARGUMENT_SPEC = {
    "volumes": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "path": {"type": "str"},
            "require_mount": {"type": "bool"},
            "grants": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "sub_path": {"type": "str", "default": ""},
                    "users": _NAMES,
                    "teams": _NAMES,
                    "runs": _NAMES,
                },
            },
        },
    },
    "volume_root": {"type": "str"},
    "accept_new_filesystem": {"type": "bool", "default": False},
}


def make(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise Refusal("volume", "must be run as root", "set become: true")
    params, places = module.params, Places()
    with nullcontext() if module.check_mode else host_lock(places):
        wanted = params["volumes"]
        root = volume_root(places, params["volume_root"], module.check_mode) if wanted else ""
        outcome = declare(places, check_volumes(wanted, root), differences, params["accept_new_filesystem"])
    for warning in outcome.warnings:
        module.warn(warning)
    return {"volumes": [volume.to_json() for volume in outcome.volumes]}


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), make)


if __name__ == "__main__":
    main()
