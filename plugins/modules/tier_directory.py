#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make and claim the directories of KV-cache tiers on a host, and take a deleted backend's off it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tier_directory
short_description: Make, claim and empty the directories of KV-cache tiers
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - A KV-cache backend has member groups, and a group may have a tier, which is a directory on each of its hosts. The
    module makes the directories of this host's groups with the owner that the store needs, and claims each by an owner
    mark. A path that is claimed already, is inside a claimed one or around it is refused, so that each member has one
    path of its own.
  - An existing directory is taken in with what is in it when the store's user owns it and no store process is on it.
    Its group and mode are changed on the directory itself. The owner is changed only of a directory that is claimed
    already, and only of that itself. What is below is never touched.
  - What was in a directory is looked at once, when it is claimed. Its entries, those included whose names begin with a
    dot, are returned and recorded. When that cannot be told, the tier was neither empty nor not empty.
  - A tier stays at its path as long as its group exists. Only the last group of a backend can be dropped, once its
    store is stopped, which gives the claim up and leaves the content. What a tier may hold can change at any time.
  - O(state=absent) takes backends off the host. Where C(clean_after_delete) was declared, the directory is emptied and
    stays, with its owner and mode; elsewhere the content stays. Then the claim is given up.
options:
  host_name:
    description: The host's name in the inventory. Groups name their hosts by it.
    type: str
    required: true
  backends:
    description:
      - The complete list of the site's backends, each with its C(name) and its member groups, C(members), in
        their order. Fields are written in snake case or in camel case.
      - A group has C(hosts), inventory names (every host when left out), C(capacity_per_member), C(image), C(owner),
        C(group), C(mode), C(store) (V(mooncake) or V(files)) and C(local_disks), a list of at most one entry, with
        C(path), C(capacity), C(key_limit), C(eviction) and C(clean_after_delete).
      - Without C(owner) and C(group), those of the image's user are taken when C(image) is on the host and the host has
        docker or podman to ask it with, else 65532 and 0, with a warning. Nothing is pulled.
      - A backend that is not listed any more keeps its claims, and is returned in RV(left).
      - With O(state=absent), the names of the backends that are to go.
    type: list
    elements: raw
    required: true
  adopt_from:
    description:
      - The name of the host whose tiers these are by their marks, when this host was renamed or a disk was moved here.
        Take it out afterwards.
    type: str
    default: ""
  forget:
    description:
      - Identities of tiers whose disk is gone for good. The refusal that a missing disk causes shows the identity. One
        that is there is refused, because it would be given up whenever its disk is away.
    type: list
    elements: str
    default: []
  state:
    description:
      - V(present) makes and claims the tiers of this host. V(absent) takes backends off it.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  check_mode:
    description:
      - Predicts the changes, the diff and the actions of a run, also when a directory does not exist yet. With
        O(state=absent) it says what is in the way, too. How far a cleanup comes cannot be predicted.
  diff_mode:
    description: Shows the directories, marks, surveys and declared backends that differ.
notes:
  - A cleanup has 300 seconds for each tier, from its own start. One that is not done then is stopped, keeps its claim,
    and goes on when the module is run again.
  - A cleanup is refused while a store process is on the directory, or the kernel shows that anything in it is in use.
    It is stopped at once when its claim is gone or another one overlaps it. It never crosses a mount.
  - The store starts neither on a symbolic link nor in a directory that it cannot write to; both are refused here.
seealso:
  - module: stowage.host.storage_facts
  - plugin: stowage.host.tier_survey
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Make and claim this host's tiers
  stowage.host.tier_directory:
    host_name: "{{ inventory_hostname }}"
    backends:
      - name: chat
        members:
          - hosts: "{{ groups['kvcache'] }}"
            capacity_per_member: 500Gi
            local_disks:
              - path: /var/lib/kvcache
                capacity: 4Ti
                key_limit: 10000000
                eviction:
                  policy: LRU
                  watermark: {high: 90, low: 80}

- name: Let the image say who owns the directory
  stowage.host.tier_directory:
    host_name: "{{ inventory_hostname }}"
    backends:
      - name: chat
        members:
          - image: registry.example/store:1
            capacityPerMember: 64Gi
            localDisks:
              - path: /mnt/nvme0/kvcache
                cleanAfterDelete: true

- name: Take a deleted backend off this host
  stowage.host.tier_directory:
    host_name: "{{ inventory_hostname }}"
    backends: [chat]
    state: absent
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["make directory /var/lib/kvcache"]
tiers:
  description: The tiers of this host.
  returned: success, when O(state=present)
  type: list
  elements: dict
  contains:
    name:
      description: Backend and position of the group.
      type: str
    path:
      description: The directory.
      type: str
    owner:
      description: The number of its user.
      type: int
    group:
      description: The number of its group.
      type: int
    mode:
      description: Its mode.
      type: str
    entries_found:
      description: How many entries it had when it was claimed; null when that is not known.
      type: int
    was_empty:
      description: Whether it had none; null when that is not known.
      type: bool
  sample:
    - name: chat/0
      path: /var/lib/kvcache
      owner: 65532
      group: 0
      mode: "0750"
      entries_found: 0
      was_empty: true
left:
  description: What stays on the host although it is not declared any more, one line each.
  returned: success, when O(state=present)
  type: list
  elements: str
  sample: ["tier code/0 /var/lib/code: its backend is not declared any more; stowage.host.tier_remove gives it up"]
removed:
  description: What became of each tier of the backends. In check mode, what is in the way.
  returned: when O(state=absent), also when it failed for one of them
  type: list
  elements: dict
  contains:
    name:
      description: Backend and position of the group.
      type: str
    path:
      description: The directory.
      type: str
    clean:
      description: Whether it was to be emptied.
      type: bool
    reason:
      description:
        - V(TierCleaned), V(TierReleased) (the content stays), V(TierNotCleaned), V(TierSharedPath) or
          V(TierPartlyCleaned). With the last three the tier keeps its claim.
      type: str
    message:
      description: The same in words.
      type: str
    files:
      description: How many files were deleted.
      type: int
  sample:
    - name: chat/0
      path: /var/lib/kvcache
      clean: true
      reason: TierCleaned
      message: "/var/lib/kvcache: 1520 files and 0 directories deleted; it is empty"
      files: 1520
"""

import os
from contextlib import ExitStack, nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils import host_name
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.drives.declared import check_name
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal
from ansible_collections.stowage.host.plugins.module_utils.locks import host_lock, tier_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.tiers.declared import read_backends
from ansible_collections.stowage.host.plugins.module_utils.tiers.host import Declaration, declare
from ansible_collections.stowage.host.plugins.module_utils.tiers.image import read_users
from ansible_collections.stowage.host.plugins.module_utils.tiers.removal import remove

ARGUMENT_SPEC = {
    "host_name": {"type": "str", "required": True},
    "backends": {"type": "list", "elements": "raw", "required": True},
    "adopt_from": {"type": "str", "default": ""},
    "forget": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def body(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise Refusal("tier_directory", "must be run as root, who alone can read owner marks", "set become: true")
    params = module.params
    places = Places()
    host_name.check(places, params["host_name"], params["adopt_from"])
    if params["state"] == "absent":
        names = [check_name(name, "backends") for name in params["backends"]]
        with nullcontext() if module.check_mode else tier_lock(places, names):
            return {"removed": remove(places, params["host_name"], names, differences, params["forget"])}
    return make(module, places, differences)


def make(module: AnsibleModule, places: Places, differences: Differences) -> dict[str, Any]:
    params = module.params
    host = params["host_name"]
    backends = read_backends(params["backends"])
    images = [group.image for backend in backends for _position, group, _tier in backend.tiers(host)]
    # Before any lock: an engine may take its time, or not answer at all.
    users, unread = read_users(images, module.run_command, module.get_bin_path)
    declaration = Declaration(host, backends, users, params["adopt_from"], params["forget"])
    with ExitStack() as locks:
        if not module.check_mode:
            locks.enter_context(tier_lock(places))
            locks.enter_context(host_lock(places))
        outcome = declare(places, declaration, differences)
    for warning in [*unread, *outcome.warnings]:
        module.warn(warning)
    return {"tiers": list(outcome.tiers), "left": list(outcome.left)}


def main() -> None:
    run(AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True), body)


if __name__ == "__main__":
    main()
