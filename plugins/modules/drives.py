#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Declare the complete lists of the workspaces' drives on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: drives
short_description: Declare the complete list of each workspace's drives on a host
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Records on a host the complete list of the drives of one or more workspaces, each drive exactly as in Astraeus's
    API (C(metadata) and C(spec)), with defaults filled in. Everything that is wrong with the lists is reported at once.
  - A drive that leaves the list without a tombstone leaves its copies behind. They are reported as orphans, and nothing
    ever deletes them until a tombstone names their drive.
  - A drive keeps its identity as long as it stays in the list. One that is made again is another drive, and does not
    have the copies of the former one.
  - On a host that has no list of a workspace, as after it was installed anew, its copies in the data location say which
    drives they are of.
  - Workspaces that are not named are left as they are. Only where the host was renamed, see O(adopt_from), its new name
    is recorded for them too.
  - A source that names a path on hosts must lie within the workspace's O(host_paths), as it is written and, on this
    host, where it leads once symlinks are followed. Nothing is granted unless it is named there.
  - The directory of a source on this host is made, and gets its owner and mode, where C(spec.permissions) says so. A
    source on a shared filesystem is left to the host that is named in its C(node).
  - A drive that live workers on this host use is not deleted unless it is forced.
  - What Astraeus's API accepts and does nothing where it is set, such as C(idle_ttl_seconds) of a drive without copies,
    is accepted with a warning.
options:
  workspaces:
    description:
      - The complete list of each workspace, as a dictionary of C(name) and C(drives). One call for all of them keeps
        the number of calls independent of the number of drives.
      - A drive is a dictionary of C(metadata) (C(name), C(labels)) and C(spec) (C(sources), C(transport), C(evictable),
        C(size_hint_bytes), C(fill), C(permissions), C(idle_ttl_seconds)) as in Astraeus's API, and may have C(state)
        and C(force) beside them.
      - A source is a dictionary of C(node_scope) (V(placed), empty, V(shared), V(local-any)), C(node), C(path),
        C(mount_path), C(mode) and C(eligible_nodes). On its host it must lie apart from the locations and the
        protected paths of the storage layout, from the volume root and volumes, and from what is Stowage's own, also
        where symbolic links lead.
      - C(state) V(absent) makes the entry a tombstone, and the copies of the drive are deleted. It needs no C(spec).
        C(force) deletes them although workers use the drive, whose mounts are released, and is allowed only there. What
        the kernel shows to be in use stays until it is not.
      - Types are not converted, so that a body means here what it means there.
    type: list
    elements: raw
    required: true
  host_name:
    description:
      - The host's name in the inventory, as sources name it. Another one than is recorded on the host is refused.
    type: str
    required: true
  adopt_from:
    description:
      - The name that the host had before, when it was renamed. Without effect afterwards.
      - Where the host has a data location, that is taken over first, with the same option of
        M(stowage.host.data_location).
    type: str
    default: ""
  machines:
    description:
      - The names of all hosts. A source that names another one is refused; without the list any name is accepted.
    type: list
    elements: str
  host_paths:
    description:
      - The directories of the hosts that drives of each workspace may name, by the name of the workspace. A workspace
        that is not in it may name none.
      - Without it what was granted before stays, which is nothing at first.
    type: dict
  managed_by:
    description:
      - The object that the drives are managed for, such as V(model/llama). The lists are then complete for that object
        only, and the workspace's other drives are left as they are. What is granted is the workspace's own; leave
        O(host_paths) out.
    type: str
    default: ""
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  diff_mode:
    description: Shows each drive that differs, by workspace and name; identities are left out.
seealso:
  - module: stowage.host.data_location
"""

EXAMPLES = r"""
- name: Declare all drives of a workspace
  stowage.host.drives:
    host_name: "{{ inventory_hostname }}"
    host_paths:
      vision: [/mnt/nvme0/datasets]
    workspaces:
      - name: vision
        drives:
          - metadata:
              name: hf-cache
            spec:
              sources:
                - node_scope: placed
                  path: ""
                  mount_path: /root/.cache/huggingface
                  mode: ReadWrite
              evictable: true
              size_hint_bytes: 107374182400
          - metadata:
              name: imagenet
            spec:
              sources:
                - node: gpu-01
                  path: /mnt/nvme0/datasets/imagenet
                  mount_path: /data
                  mode: ReadOnly
              transport: Auto

- name: Have scratch made on the host, for one user
  stowage.host.drives:
    host_name: "{{ inventory_hostname }}"
    host_paths:
      vision: [/srv/scratch]
    workspaces:
      - name: vision
        drives:
          - metadata:
              name: scratch
            spec:
              sources:
                - node_scope: local-any
                  path: /srv/scratch/vision
                  mode: ReadWrite
              permissions:
                create: true
                owner_uid: 1000
                owner_gid: 1000
                dir_mode: "2770"
                apply: true

- name: Delete a drive and every copy of it
  stowage.host.drives:
    host_name: "{{ inventory_hostname }}"
    workspaces:
      - name: vision
        drives:
          - metadata:
              name: hf-cache
            state: absent
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["record the drives of workspace vision"]
drives:
  description: The names of the drives that are declared on the host, by workspace; tombstones are left out.
  returned: success
  type: dict
  sample:
    vision: [hf-cache, imagenet]
deleting:
  description: The names of the drives whose copies on this host are still to be deleted, by workspace.
  returned: success
  type: dict
  sample:
    vision: [hf-cache]
begun:
  description:
    - The names of the drives whose deletion begins, by workspace. This host had no tombstone of them, or one that did
      not force it. Those that it never knew and has nothing of are left out.
  returned: success
  type: dict
  sample:
    vision: [hf-cache]
used_by:
  description:
    - The live workers on this host that use the drives that are deleted, as run and worker, by workspace and drive.
  returned: success
  type: dict
  sample:
    vision:
      hf-cache: [finetune-1/w0]
unread:
  description: Why leases could not be read. Who uses the drives that are deleted is unknown then.
  returned: success
  type: list
  elements: str
  sample: []
kinds:
  description: What the drives that are deleted were, where this host knows it, by workspace and drive.
  returned: success
  type: dict
  sample:
    vision:
      hf-cache: a drive kept on the machines' data locations
unknown:
  description: The names of the tombstones of drives that this host never knew and has nothing of, by workspace.
  returned: success
  type: dict
  sample:
    vision: [hf-cahce]
unseen:
  description: Why data locations could not be looked into. What they hold is unknown, and not deleted.
  returned: success
  type: list
  elements: str
  sample: []
orphans:
  description: Copies on this host whose drive is in no list, or was made again. Nothing deletes them.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: Workspace and drive.
      type: str
    path:
      description: Where the copy is.
      type: str
  sample:
    - name: vision.old-weights
      path: /mnt/nvme0/stowage/drives/vision.old-weights
"""

import os
from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils import host_name
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.drives import grants
from ansible_collections.stowage.host.plugins.module_utils.drives import host as drives_host
from ansible_collections.stowage.host.plugins.module_utils.drives.declared import check_lists, hidden, without_effect
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal
from ansible_collections.stowage.host.plugins.module_utils.locks import host_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.places import Places

ARGUMENT_SPEC = {
    "workspaces": {"type": "list", "elements": "raw", "required": True},
    "host_name": {"type": "str", "required": True},
    "adopt_from": {"type": "str", "default": ""},
    "machines": {"type": "list", "elements": "str"},
    "host_paths": {"type": "dict"},
    "managed_by": {"type": "str", "default": ""},
}


def make(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise Refusal("drives", "must be run as root, who alone can read owner marks", "set become: true")
    params = module.params
    workspaces, params["workspaces"] = params["workspaces"], hidden(params["workspaces"])  # Ansible shows what is there
    places = Places()
    host_name.check(places, params["host_name"], params["adopt_from"])
    machines = set(params["machines"]) if params["machines"] is not None else None
    lists = check_lists(workspaces, machines)
    host_paths = None
    if params["host_paths"] is not None:
        if params["managed_by"]:
            raise Refusal("host_paths", "is the workspace's own, not that of an object's drives", "leave it out")
        host_paths = grants.check_host_paths(params["host_paths"], lists)
    with nullcontext() if module.check_mode else host_lock(places):
        outcome = drives_host.declare(places, params["host_name"], lists, params["managed_by"], differences, host_paths)
    for warning in [*without_effect(lists), *outcome.warnings]:
        module.warn(warning)
    return {
        "drives": outcome.names(absent=False),
        "deleting": outcome.deleting(),
        "used_by": {name: outcome.users(name) for name in lists},
        "unread": list(outcome.unread),
        "kinds": outcome.kinds(),
        "begun": {name: [one.name for one in outcome.begun if one.workspace == name] for name in lists},
        "unknown": {name: [one.name for one in outcome.unknown if one.workspace == name] for name in lists},
        "unseen": [str(error) for error in outcome.holdings.unseen],
        "orphans": [{"name": orphan.copy_name, "path": orphan.path} for orphan in outcome.orphans],
    }


def main() -> None:
    # The variables of a fill may be secrets: no arguments in the host's log.
    run(AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True, no_log=True), make)


if __name__ == "__main__":
    main()
