#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tie services to the mounts that they need."""

from __future__ import annotations

DOCUMENTATION = r"""
module: mount_dependency
short_description: Start services only with their paths mounted, and stop them before these go
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Gives each service a drop-in that orders it after the mounts of its paths, pulls these in, fails its start when
    nothing is mounted there, and stops the service when one of them is unmounted, also by hand.
  - Symbolic links in the paths are resolved first, because systemd does not.
  - A path that no mount unit covers is refused, because systemd would silently do nothing for it. A mount that somebody
    made by hand has no unit that brings it back at the next boot, and is refused too.
  - Does not start, stop or restart a service. A running service whose mount is missing is refused, because systemd
    would stop it as soon as it sees the drop-in.
options:
  dependencies:
    description: The services and the paths that each of them needs.
    type: list
    elements: dict
    required: true
    suboptions:
      service:
        description:
          - The service, with or without C(.service). It must exist. Of a template, name the instance.
        type: str
        required: true
      paths:
        description:
          - The paths that it needs, mount points or directories below them.
          - Required when O(dependencies[].state=present).
        type: list
        elements: str
        default: []
      state:
        description: Whether the drop-in is there. Only a drop-in that this module wrote is ever removed.
        type: str
        choices: [present, absent]
        default: present
  allow_root:
    description:
      - Accept paths on the root filesystem, which is always mounted, instead of refusing them. They add nothing to the
        drop-in, and a service with only such paths has none.
    type: bool
    default: false
  complete:
    description:
      - O(dependencies) names all services of the host. Of any other that this module has tied there is a warning,
        because nothing is untied for not being named.
    type: bool
    default: false
  immutable_mount_points:
    description:
      - Make the empty directory underneath each mount immutable, so that nothing can be written there while its disk is
        missing. A directory that is not empty is refused. The flag stays when the dependency is removed.
    type: bool
    default: false
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  check_mode:
    description: Predicts the changes, the diff and the actions of a run, also when the services do not exist yet.
  diff_mode:
    description: Shows the lines of the drop-ins and the mount points that differ.
  platform:
    description: Linux with systemd. Must be run as root.
seealso:
  - module: stowage.host.storage_layout
"""

EXAMPLES = r"""
- name: Let the worker run only while its disks are mounted
  stowage.host.mount_dependency:
    dependencies:
      - service: tuneplane-worker
        paths:
          - /mnt/checkpoints/runs
          - /mnt/nvme0/cache
      - service: slurmd
        paths:
          - /mnt/nvme0
    immutable_mount_points: true

- name: Untie it again
  stowage.host.mount_dependency:
    dependencies:
      - service: tuneplane-worker
        state: absent
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["write /etc/systemd/system/slurmd.service.d/50-stowage-mounts.conf", "systemctl daemon-reload"]
dependencies:
  description: What each service was tied to.
  returned: success
  type: list
  elements: dict
  contains:
    service:
      description: The name of the service, without aliases.
      type: str
      sample: slurmd.service
    drop_in:
      description: The file that ties it.
      type: str
      sample: /etc/systemd/system/slurmd.service.d/50-stowage-mounts.conf
    paths:
      description: The paths, without symbolic links.
      type: list
      elements: str
      sample: ["/mnt/nvme0"]
    mount_points:
      description: The mounts that cover them.
      type: list
      elements: str
      sample: ["/mnt/nvme0"]
"""

from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.locks import host_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.services.mount_dependencies import Tying, parse
from ansible_collections.stowage.host.plugins.module_utils.services.systemd_units import Systemctl

ARGUMENT_SPEC = {
    "dependencies": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "service": {"type": "str", "required": True},
            "paths": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
    },
    "allow_root": {"type": "bool", "default": False},
    "complete": {"type": "bool", "default": False},
    "immutable_mount_points": {"type": "bool", "default": False},
}


def make(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    params = module.params
    systemctl = Systemctl(module.get_bin_path("systemctl", required=True), module.run_command)
    with nullcontext() if module.check_mode else host_lock(Places()):
        asked = parse(params["dependencies"])
        tying = Tying(
            systemctl, differences, params["allow_root"], params["immutable_mount_points"], params["complete"]
        )
        dependencies = tying.tie(asked)
    for warning in tying.warnings:
        module.warn(warning)
    return {"dependencies": [dependency.to_json() for dependency in dependencies]}


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), make)


if __name__ == "__main__":
    main()
