#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lay out a host's storage: one root, eleven locations, and an environment that names them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: storage_layout
short_description: Lay out a host's storage by purpose
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Gives eleven purposes (runs, caches, packages, buffers, state) a directory each, below one root or wherever an
    override says, and keeps them apart.
  - The root and the default directories are made when they are missing. An override must exist, and is never made
    or changed. Nothing is ever moved, and no directory is changed below the ones named here.
  - Paths are taken as they are written, without expansion of C(~) or variables.
  - Writes the layout to C(/etc/stowage/layout.json) and an environment file for services, and restarts the services
    that read it when it has changed.
options:
  root:
    description:
      - The directory below which everything is by default.
    type: str
    required: true
  overrides:
    description:
      - Where a location is instead of its default, by name. A value is a path, or a dictionary of O(overrides) with
        V(path), V(require_mount) (the path must lie on a mount, that is, not on the root filesystem) and
        V(mount_point) (the mount must be exactly there; this implies V(require_mount)).
      - An empty value means the default. The names are V(runs), V(cache), V(hf_hub_cache), V(hf_datasets_cache),
        V(modelscope_cache), V(hub_cache), V(dataset_cache), V(volume_cache), V(packages), V(reflow) and V(state).
      - Moving V(cache) moves the caches below it that have no override of their own.
    type: dict
    default: {}
  volume_root:
    description:
      - Where registered external volumes are. It must exist, and lie apart from the root and from every location.
    type: str
  protected_paths:
    description:
      - What no run may have mounted into its containers, such as the database, credentials and the telemetry spool. The
        state, the packages, other runs and Stowage's own directories are protected in any case. They need not exist.
    type: list
    elements: str
    default: []
  require_mount:
    description:
      - The root must lie on a mount, that is, not on the root filesystem. An existing empty directory does not prove
        that its disk is mounted.
      - Whatever this says, a path at or below a mount that is in C(/etc/fstab) or has a mount or automount unit is
        refused while that is not mounted.
    type: bool
    default: false
  mount_point:
    description:
      - The root must lie on the mount that is exactly here. This implies O(require_mount).
    type: str
  accept_new_filesystem:
    description:
      - Accept that a location is on another filesystem than when the layout was last written. Without it that is
        refused, because a disk that is not mounted looks like this.
    type: bool
    default: false
  owner:
    description:
      - The user, by name or number, that owns the default directories. The root when it is made, C(runs), C(cache) and
        what is between C(cache) and a cache are C(root)'s with mode C(0755) always, because whoever could write to them
        could put a link in place of what others have there.
      - Without it, directories that exist keep their owner and new ones are C(root)'s.
    type: str
  group:
    description:
      - The group, by name or number, of the default directories but those.
      - Without it, directories that exist keep their group and new ones are C(root)'s.
    type: str
  mode:
    description:
      - The mode of the default directories but those, as an octal number in quotes that begins with V(0). Where it
        lets others than the owner write, C(reflow) gets the sticky bit too, so that nobody renames what others have.
      - Without it, directories that exist keep their mode and new ones get V(0755).
    type: str
  users:
    description:
      - The users, by name or number, that must be able to read, write and enter every location, and to read and enter
        O(volume_root), C(runs) and C(cache). Each is checked as that user, so that access lists, read-only mounts and
        root squash count.
    type: list
    elements: str
    default: []
  environment_file:
    description:
      - The file that names the layout for services (C(EnvironmentFile=)) and shells.
    type: str
    default: /etc/stowage/stowage.env
  environment_prefix:
    description:
      - What the names in it begin with, such as V(TUNEPLANE_).
    type: str
    default: STOWAGE_
  framework_environment_file:
    description:
      - A file that names the framework caches, C(HF_HUB_CACHE), C(HF_DATASETS_CACHE) and C(MODELSCOPE_CACHE), for
        processes of the host. Nothing else is set, and no C(HF_HOME).
      - Without it there is none.
    type: str
  container_environment_file:
    description:
      - A file with what training containers are told, for C(docker run --env-file), the same as the filter
        P(stowage.host.framework_environment#filter) returns. It names the caches, and C(HF_HOME) in the container's
        own C(/tmp), so processes of the host may not read it. It has no quotes, whatever characters a path holds.
      - Without it there is none.
    type: str
  restart:
    description:
      - The units that read the environment files. Those of them that are active are restarted when one has changed.
    type: list
    elements: str
    default: []
  host_name:
    description:
      - The host's name in the inventory. On a host that was installed anew it tells directories that are this host's
        from those of other hosts, whose disk was moved here. Without it all count, and none is registered.
    type: str
    default: ""
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  check_mode:
    description: Predicts the changes, the diff and the actions of a run, also before the owner and the users are made.
  diff_mode:
    description: Shows the directories, locations, filesystems and lines of the environment file that differ.
  platform:
    description: Linux with systemd. Must be run as root.
notes:
  - Hosts that share runs must agree on the layout. The filter P(stowage.host.site_disagreements#filter) finds those
    that do not.
seealso:
  - module: stowage.host.mount_dependency
  - plugin: stowage.host.site_disagreements
    plugin_type: filter
  - plugin: stowage.host.framework_environment
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Keep everything below one directory
  stowage.host.storage_layout:
    root: /srv/stowage
    owner: trainer
    group: trainer
    mode: "02775"

- name: Keep runs on a disk of their own and the caches on another, for TunePlane
  stowage.host.storage_layout:
    root: /srv/tuneplane
    overrides:
      runs:
        path: /mnt/checkpoints/runs
        require_mount: true
      cache:
        path: /mnt/nvme0/cache
        mount_point: /mnt/nvme0
    volume_root: /srv/volumes
    users:
      - tuneplane
    environment_file: /etc/tuneplane/storage.env
    environment_prefix: TUNEPLANE_
    restart:
      - tuneplane-worker.service
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["make directory /srv/stowage/runs"]
locations:
  description: The eleven locations by name.
  returned: success
  type: dict
  sample:
    runs:
      path: /srv/stowage/runs
      override: false
      require_mount: false
      mount_point: /
      filesystem:
        fstype: ext4
        uuid: 0d1b6f0e-9a5b-4b43-8f3e-5f6f0b0b6a10
        source: /dev/vda1
root:
  description: The root of the layout.
  returned: success
  type: str
  sample: /srv/stowage
volume_root:
  description: The root of external volumes, or nothing.
  returned: success
  type: str
  sample: /srv/volumes
protected_paths:
  description: What no run may have mounted into its containers, beside the layout's own.
  returned: success
  type: list
  elements: str
  sample: ["/var/lib/postgresql"]
environment_prefix:
  description: What the names in the environment file begin with.
  returned: success
  type: str
  sample: STOWAGE_
environment_files:
  description:
    - The environment file, those of the framework caches and for training containers when there are any, and earlier
      ones that are still there.
  returned: success
  type: list
  elements: str
  sample: ["/etc/stowage/stowage.env"]
settings:
  description: The settings of the layout by name, without a prefix, for the comparison of hosts.
  returned: success
  type: dict
  sample:
    STORAGE_ROOT: /srv/stowage
    RUNS_ROOT: /srv/stowage/runs
restarted:
  description: The units that were restarted, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: ["tuneplane-worker.service"]
"""

from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.layout import overrides as layout_overrides
from ansible_collections.stowage.host.plugins.module_utils.layout.change import Request, lay_out
from ansible_collections.stowage.host.plugins.module_utils.layout.found import MountRule
from ansible_collections.stowage.host.plugins.module_utils.layout.rules import check_apart, resolve
from ansible_collections.stowage.host.plugins.module_utils.locks import host_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.services.systemd_units import Systemctl

ARGUMENT_SPEC = {
    "root": {"type": "str", "required": True},
    "overrides": {"type": "dict", "default": {}},
    "volume_root": {"type": "str"},
    "protected_paths": {"type": "list", "elements": "str", "default": []},
    "require_mount": {"type": "bool", "default": False},
    "mount_point": {"type": "str"},
    "accept_new_filesystem": {"type": "bool", "default": False},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "mode": {"type": "str"},
    "users": {"type": "list", "elements": "str", "default": []},
    "environment_file": {"type": "str", "default": "/etc/stowage/stowage.env"},
    "environment_prefix": {"type": "str", "default": "STOWAGE_"},
    "framework_environment_file": {"type": "str"},
    "container_environment_file": {"type": "str"},
    "restart": {"type": "list", "elements": "str", "default": []},
    "host_name": {"type": "str", "default": ""},
}


_OF_PATHS = ("root", "overrides", "volume_root", "require_mount", "mount_point")


def make(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    params = module.params
    overrides, rules = layout_overrides.parse(params["overrides"])
    layout = resolve(params["root"], overrides, params["volume_root"])
    check_apart(layout)
    root_rule = MountRule.of("root", params["require_mount"], params["mount_point"])
    rules = layout_overrides.for_all(layout, root_rule, rules)
    request = Request(**{name: value for name, value in params.items() if name not in _OF_PATHS})
    systemctl = Systemctl(module.get_bin_path("systemctl", required=True), module.run_command)
    host = Places()
    with nullcontext() if module.check_mode else host_lock(host):
        outcome = lay_out(host, layout, rules, request, systemctl, differences)
    for warning in outcome.warnings:
        module.warn(warning)
    return {**outcome.record, "settings": layout.settings(), "restarted": outcome.restarted}


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), make)


if __name__ == "__main__":
    main()
