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
  require_mount:
    description:
      - The root must lie on a mount, that is, not on the root filesystem. An existing empty directory does not prove
        that its disk is mounted.
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
      - The user, by name or number, that owns the default directories, and the root when it is made.
      - Without it, directories that exist keep their owner and new ones are C(root)'s.
    type: str
  group:
    description:
      - The group, by name or number, of the default directories, and of the root when it is made.
      - Without it, directories that exist keep their group and new ones are C(root)'s.
    type: str
  mode:
    description:
      - The mode of the default directories, and of the root when it is made, as an octal number in quotes that begins
        with V(0).
      - Without it, directories that exist keep their mode and new ones get V(0755).
    type: str
  users:
    description:
      - The users, by name or number, that must be able to read, write and enter every location, and to read and enter
        O(volume_root). Each is checked as that user, so that access lists, read-only mounts and root squash count.
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
  restart:
    description:
      - The units that read the environment file. Those of them that are active are restarted when it has changed.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    description: Predicts the changes and the diff of a run, also when the owner and the users do not exist yet.
    support: full
  diff_mode:
    description: Shows the directories, locations and environment that differ.
    support: full
  platform:
    description: Linux with systemd.
    support: full
    platforms: linux
notes:
  - Hosts that share runs must agree on the layout. The filter P(stowage.host.layout_disagreements#filter) finds those
    that do not.
seealso:
  - module: stowage.host.mount_dependency
  - plugin: stowage.host.layout_disagreements
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
environment_prefix:
  description: What the names in the environment file begin with.
  returned: success
  type: str
  sample: STOWAGE_
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

import os
import re
import stat
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.stowage.host.plugins.module_utils import (
    accounts,
    environment_file,
    layout_directories,
    mounts,
    own_files,
    records,
)
from ansible_collections.stowage.host.plugins.module_utils.access_check import check_users
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal, StowageError
from ansible_collections.stowage.host.plugins.module_utils.layout import (
    NAMES,
    Layout,
    check_apart,
    check_prefix,
    moved,
    resolve,
)
from ansible_collections.stowage.host.plugins.module_utils.layout_directories import Wanted
from ansible_collections.stowage.host.plugins.module_utils.layout_places import (
    MountRule,
    Place,
    check_same_filesystem,
    find_all,
)
from ansible_collections.stowage.host.plugins.module_utils.locks import host_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.mounts import FilesystemId
from ansible_collections.stowage.host.plugins.module_utils.paths import check_path
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.systemd_units import Systemctl, unit_name

ARGUMENT_SPEC = {
    "root": {"type": "str", "required": True},
    "overrides": {"type": "dict", "default": {}},
    "volume_root": {"type": "str"},
    "require_mount": {"type": "bool", "default": False},
    "mount_point": {"type": "str"},
    "accept_new_filesystem": {"type": "bool", "default": False},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "mode": {"type": "str"},
    "users": {"type": "list", "elements": "str", "default": []},
    "environment_file": {"type": "str", "default": "/etc/stowage/stowage.env"},
    "environment_prefix": {"type": "str", "default": "STOWAGE_"},
    "restart": {"type": "list", "elements": "str", "default": []},
}


def expect(module: AnsibleModule, name: str, rule: str) -> None:
    """Refuse what must be there before; in check mode an earlier task may have been going to make it."""
    if not module.check_mode:
        raise Refusal(name, rule, "make it first")
    module.warn(f"{name}: {rule}; taken to be made before a run")


def overrides_of(module: AnsibleModule) -> tuple[dict[str, str | None], dict[str, MountRule]]:
    """Return the paths and the mount rules of the overrides, by name."""
    paths: dict[str, str | None] = {}
    rules: dict[str, MountRule] = {}
    for name, value in module.params["overrides"].items():
        given = value if isinstance(value, dict) else {"path": value}
        path, required, point = (given.get(key) for key in ("path", "require_mount", "mount_point"))
        if set(given) - {"path", "require_mount", "mount_point"} or not isinstance(path or "", str):
            raise Refusal(name, "its override must be a path, or a dictionary of path, require_mount and mount_point")
        if not path and (required or point):
            raise Refusal(name, "its override has a rule for its mount and no path", "give it a path")
        paths[name] = path
        try:
            rules[name] = MountRule.of(name, boolean(required or False), point)
        except TypeError:
            raise Refusal(name, f"require_mount cannot be {required!r}", "give true or false") from None
    return paths, rules


def wanted_of(module: AnsibleModule) -> Wanted:
    """Return who is to own the directories that are ours to make."""
    owner, group, mode = (module.params[name] for name in ("owner", "group", "mode"))
    uid = None if owner is None else accounts.find_owner(owner)
    gid = None if group is None else accounts.find_group(group)
    if owner is not None and uid is None:
        expect(module, "owner", f"there is no user {owner!r} on this host")
    if group is not None and gid is None:
        expect(module, "group", f"there is no group {group!r} on this host")
    return Wanted(
        owner if uid is None else accounts.owner_name(uid),
        group if gid is None else accounts.group_name(gid),
        None if mode is None else mode_of(mode),
        uid,
        gid,
    )


def mode_of(text: str) -> int:
    if not re.fullmatch(r"0[0-7]{3,4}", text):
        raise Refusal("mode", f"{text!r} must be an octal number that begins with 0", 'write it in quotes, like "0755"')
    mode = int(text, 8)
    if mode & 0o002 and not mode & 0o1000:
        rule = f"{text} would let everybody replace the locations below the root"
        raise Refusal("mode", rule, "take that permission away, or add the sticky bit")
    return mode


def users_of(module: AnsibleModule) -> list[accounts.User]:
    users = []
    for name in module.params["users"]:
        user = accounts.find_user(name)
        if user is None:
            expect(module, "users", f"there is no user {name!r} on this host")
        else:
            users.append(user)
    return users


def units_of(module: AnsibleModule, systemctl: Systemctl) -> dict[str, bool]:
    """Return the units to restart and whether each is active; refuse one that does not exist."""
    units = systemctl.show([unit_name(name) for name in module.params["restart"]], ["ActiveState"])
    for name, properties in units.items():
        if properties["LoadState"] == "not-found":
            expect(module, "restart", f"there is no unit {name} on this host")
    return {name: unit["ActiveState"] not in ("inactive", "failed", "deactivating") for name, unit in units.items()}


class Restarts:
    """The units that wait for a restart, kept until each is done or a reboot has started them anew."""

    def __init__(self, host: Places, environment_path: str) -> None:
        self._path = os.path.join(host.run, "restarts.json")
        self._environment_path = environment_path
        self._all = records.read(self._path) or {}

    def due(self, units: Mapping[str, bool], changed: bool) -> list[str]:
        """Return those of *units* that read what has changed now, or in a run that failed before it restarted them."""
        left = self._all.get(self._environment_path, [])
        return [unit for unit, active in units.items() if (changed and active) or unit in left]

    def keep(self, units: list[str]) -> None:
        rest = {path: waiting for path, waiting in self._all.items() if path != self._environment_path}
        if units:
            rest[self._environment_path] = units
        if rest:
            records.write(self._path, rest)
        else:
            records.remove(self._path)


def former_layout(path: str) -> dict[str, Any]:
    """Return the recorded layout, or an empty one."""
    record = records.read(path)
    if record is None:
        return {"root": None, "volume_root": None, "environment_prefix": None, "locations": {}}
    try:
        for location in record["locations"].values():
            FilesystemId.from_json(location["filesystem"])
            location["path"] + location["mount_point"]
        record["root"], record["volume_root"], record["environment_prefix"]
    except (AttributeError, KeyError, TypeError) as error:
        raise StowageError(f"{path}: is not a layout ({error!r}); move it away and roll out again") from error
    return record


def paths_of(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of a recorded layout by name."""
    paths = {name: location["path"] for name, location in record["locations"].items()}
    return {**paths, **{name: record[name] for name in ("root", "volume_root") if record[name] is not None}}


def record_of(
    layout: Layout,
    places: Mapping[str, Place],
    rules: Mapping[str, MountRule],
    prefix: str,
    former: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the layout as it is recorded. A disk whose device got another name at a boot stays the one recorded."""
    locations = {}
    for name in NAMES:
        filesystem = places[name].filesystem
        if name in former["locations"]:
            recorded = FilesystemId.from_json(former["locations"][name]["filesystem"])
            filesystem = recorded if recorded.matches(filesystem) else filesystem
        locations[name] = {
            "path": places[name].path,
            "override": name in layout.overridden,
            "require_mount": rules[name].required,
            "mount_point": places[name].mount.point,
            "filesystem": filesystem.to_json(),
        }
    return {
        "root": layout.root,
        "volume_root": layout.volume_root,
        "environment_prefix": prefix,
        "locations": locations,
    }


def body(module: AnsibleModule, differences: Differences) -> Mapping[str, Any]:
    overrides, rules = overrides_of(module)
    layout = resolve(module.params["root"], overrides, module.params["volume_root"])
    check_apart(layout)
    rules["root"] = MountRule.of("root", module.params["require_mount"], module.params["mount_point"])
    for name in layout.defaults:
        rules[name] = rules[layout.parent(name)]
    for name in layout.overridden:
        rules.setdefault(name, MountRule())
    host = Places()
    with nullcontext() if module.check_mode else host_lock(host):
        return lay_out(module, differences, host, layout, rules)


def lay_out(
    module: AnsibleModule, differences: Differences, host: Places, layout: Layout, rules: Mapping[str, MountRule]
) -> Mapping[str, Any]:
    """Compare and refuse first, then change what differs."""
    prefix = check_prefix(module.params["environment_prefix"])
    environment_path = check_path(module.params["environment_file"], "environment_file")
    wanted, users = wanted_of(module), users_of(module)
    systemctl = Systemctl(module.get_bin_path("systemctl", required=True), module.run_command)
    units = units_of(module, systemctl)
    former = former_layout(host.layout_json)
    places = find_all(layout, mounts.read())
    for name in ("root", *NAMES):
        rules[name].check(name, places[name])
        if name in former["locations"] and not module.params["accept_new_filesystem"]:
            check_same_filesystem(name, places[name], former["locations"][name])

    changing = [one for one in layout_directories.directories(layout, places, wanted) if one.differs]
    for directory in changing:
        now = None if directory.present is None else directory.present.to_json()
        differences.note(f"directory {directory.path}", directory.wanted.to_json(), now)
    check_users(users, places, wanted, [one.path for one in changing if one.present is not None])
    record = record_of(layout, places, rules, prefix, former)
    note_record(differences, record, former)
    environment = environment_file.render(layout.settings(prefix))
    environment_differs = note_environment(differences, environment_path, environment)
    restarts = Restarts(host, environment_path)
    due = restarts.due(units, environment_differs)
    differences.note("restarted", due, [])
    for sentence in moved(layout, paths_of(former)):
        module.warn(sentence)

    def do(action: str, work: Callable[[], object]) -> None:
        if not module.check_mode:
            work()
        differences.act(action)

    for directory in changing:
        verb = "make" if directory.present is None else "set owner and mode of"
        do(f"{verb} directory {directory.path}", partial(layout_directories.make, directory.path, directory.wanted))
    if changing and not module.check_mode:
        check_users(users, find_all(layout, mounts.read()), wanted)
    if record != former:
        do(f"write {host.layout_json}", partial(records.write, host.layout_json, record))
    if environment_differs:
        if not module.check_mode:
            restarts.keep(due)
        do(f"write {environment_path}", partial(records.write_bytes, environment_path, environment))
    for number, unit in enumerate(due, 1):
        do(f"restart {unit}", partial(systemctl.restart, unit))
        if not module.check_mode:
            restarts.keep(due[number:])
    return {**record, "settings": layout.settings(), "restarted": due}


def note_record(differences: Differences, record: Mapping[str, Any], former: Mapping[str, Any]) -> None:
    """Note how the layout differs from the recorded one."""
    for key in ("root", "volume_root", "environment_prefix"):
        differences.note(key, record[key], former[key])
    for name in NAMES:
        differences.note(f"location {name}", record["locations"][name], former["locations"].get(name))


def note_environment(differences: Differences, path: str, wanted: bytes) -> bool:
    """Note how the environment file differs, and return whether it does; refuse one that is not ours."""
    now = own_files.read(path, environment_file.is_ours, "environment_file")
    text = None if now is None else now.decode("utf-8", "replace")
    differs = differences.note(f"environment {path}", wanted.decode("utf-8"), text)
    if now is not None:
        mode = f"{stat.S_IMODE(os.stat(path).st_mode):04o}"
        differs = differences.note(f"mode of {path}", "0644", mode) or differs
    return differs


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), body)


if __name__ == "__main__":
    main()
