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
  immutable_mount_points:
    description:
      - Make the empty directory underneath each mount immutable, so that nothing can be written there while its disk is
        missing. A directory that is not empty is refused. The flag stays when the dependency is removed.
    type: bool
    default: false
attributes:
  check_mode:
    description: Predicts the changes and the diff of a run, also when the services do not exist yet.
    support: full
  diff_mode:
    description: Shows the drop-ins and mount points that differ.
    support: full
  platform:
    description: Linux with systemd.
    support: full
    platforms: linux
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

import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils import (
    mount_points,
    mounts,
    own_files,
    records,
    systemd_units,
)
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal, StowageError
from ansible_collections.stowage.host.plugins.module_utils.locks import host_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.paths import check_path, resolve
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.systemd_units import Properties, Systemctl

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
    "immutable_mount_points": {"type": "bool", "default": False},
}

_UNITS = "/etc/systemd/system"
_DROP_IN = "50-stowage-mounts.conf"
_PROPERTIES = ("ActiveState", "DropInPaths", "FragmentPath", "NeedDaemonReload", "Where")


@dataclass(frozen=True)
class Dependency:
    """A service, the resolved paths that it needs, and the mounts that cover them."""

    service: str
    present: bool
    paths: tuple[str, ...]
    mount_points: tuple[str, ...] = ()

    @property
    def drop_in(self) -> str:
        return f"{_UNITS}/{self.service}.d/{_DROP_IN}"

    @property
    def content(self) -> bytes | None:
        if not self.paths:
            return None
        return systemd_units.render_mount_drop_in(self.paths, self.mount_points)


def asked_for(module: AnsibleModule) -> list[Dependency]:
    """Return what was asked for, with symlinks resolved."""
    dependencies = []
    for item in module.params["dependencies"]:
        service = systemd_units.service_name(item["service"])
        present = item["state"] == "present"
        paths = [resolve(check_path(path, service)) for path in item["paths"]]
        if present and not paths:
            raise Refusal(service, "needs at least one path", "name its paths, or set state to absent")
        dependencies.append(Dependency(service, present, tuple(dict.fromkeys(paths)) if present else ()))
    return dependencies


def canonical(module: AnsibleModule, dependency: Dependency, units: Mapping[str, Properties]) -> Dependency:
    """Return *dependency* with the service's own name instead of an alias; refuse a service that cannot have one."""
    unit = units[dependency.service]
    state = unit["LoadState"]
    if dependency.present and state == "not-found":
        if not module.check_mode:
            raise Refusal(dependency.service, "there is no such service on this host", "install it first")
        module.warn(f"{dependency.service}: there is no such service on this host; taken to be installed before a run")
    elif dependency.present and state != "loaded":
        raise Refusal(dependency.service, f"systemd has it as {state}", "see systemctl status")
    name = unit["Id"] if state == "loaded" else dependency.service
    return Dependency(name, dependency.present, dependency.paths)


def covering(
    module: AnsibleModule, dependency: Dependency, units: Mapping[str, Properties], table: Sequence[mounts.Mount]
) -> Dependency:
    """Return *dependency* with the mount points of its paths; refuse a path that no lasting mount unit covers."""
    points, kept = [], []
    for path in dependency.paths:
        mounted = mounts.of_path(path, table).point
        lasting = next(
            (
                point
                for point, unit in systemd_units.mount_units_above(path).items()
                if units[unit]["LoadState"] == "loaded" and units[unit]["FragmentPath"]
            ),
            "/",
        )
        if lasting == mounted == "/":
            if module.params["allow_root"]:
                continue
            if module.check_mode and not os.path.lexists(path):
                module.warn(f"{dependency.service}: {path} does not exist; taken to be mounted before a run")
                kept.append(path)
                continue
            raise Refusal(
                dependency.service,
                f"{path} is on the root filesystem and no mount unit covers it: systemd would silently do nothing",
                "mount its disk by fstab or a mount unit, or set allow_root",
            )
        if len(mounted) > len(lasting):
            raise Refusal(
                dependency.service,
                f"{path} is on the mount at {mounted}, which has no unit and would not come back at the next boot",
                "add it to fstab or give it a mount unit, then daemon-reload",
            )
        if len(lasting) > len(mounted):
            if units[dependency.service]["ActiveState"] == "active":
                raise Refusal(
                    dependency.service,
                    f"it is running and nothing is mounted at {lasting}: systemd would stop it at once",
                    "mount that, or stop the service first",
                )
            module.warn(
                f"{dependency.service}: nothing is mounted at {lasting} now; it starts only once that is mounted"
            )
        kept.append(path)
        points.append(lasting)
    return Dependency(dependency.service, dependency.present, tuple(kept), tuple(dict.fromkeys(points)))


def plan(
    module: AnsibleModule, systemctl: Systemctl, table: Sequence[mounts.Mount]
) -> tuple[list[Dependency], dict[str, Properties]]:
    """Return the dependencies with everything known about them, and the units as systemd has them."""
    asked = asked_for(module)
    names = [dependency.service for dependency in asked]
    for dependency in asked:
        for path in dependency.paths:
            names.extend(systemd_units.mount_units_above(path).values())
    units = systemctl.show(names, _PROPERTIES)
    units.update({unit["Id"]: unit for unit in list(units.values())})
    dependencies = [covering(module, canonical(module, dependency, units), units, table) for dependency in asked]
    services = [dependency.service for dependency in dependencies]
    for service in services:
        if services.count(service) > 1:
            raise Refusal(service, "is named more than once", "put its paths into one entry")
    return dependencies, units


def body(module: AnsibleModule, differences: Differences) -> Mapping[str, Any]:
    with nullcontext() if module.check_mode else host_lock(Places()):
        return tie(module, differences)


def tie(module: AnsibleModule, differences: Differences) -> Mapping[str, Any]:
    systemctl = Systemctl(module.get_bin_path("systemctl", required=True), module.run_command)
    table = mounts.read()
    dependencies, units = plan(module, systemctl, table)

    def do(action: str, work: Callable[[], object]) -> None:
        if not module.check_mode:
            work()
        differences.act(action)

    immutable = [
        point
        for point in dict.fromkeys(point for dependency in dependencies for point in dependency.mount_points)
        if module.params["immutable_mount_points"]
        and differences.note(f"immutable underneath {point}", True, mount_points.is_immutable(point, table))
    ]
    differing = []
    stale = False
    for dependency in dependencies:
        current = own_files.read(dependency.drop_in, systemd_units.is_ours, dependency.service)
        if differences.note(f"drop-in {dependency.drop_in}", text(dependency.content), text(current)):
            differing.append(dependency)
        elif not loaded(dependency, units[dependency.service]):
            # A run that failed between the file and the reload has left this; it is not in effect yet.
            stale = differences.note(
                f"loaded {dependency.drop_in}", dependency.content is not None, not dependency.content
            )

    for point in immutable:
        do(f"make the directory underneath {point} immutable", partial(mount_points.make_immutable, point, table))
    for dependency in differing:
        verb = "remove" if dependency.content is None else "write"
        do(f"{verb} {dependency.drop_in}", partial(put, dependency))
    if differing or stale:
        do("systemctl daemon-reload", systemctl.daemon_reload)
        if not module.check_mode:
            verify(systemctl, dependencies)
    return {
        "dependencies": [
            {
                "service": dependency.service,
                "drop_in": dependency.drop_in,
                "paths": list(dependency.paths),
                "mount_points": list(dependency.mount_points),
            }
            for dependency in dependencies
        ]
    }


def text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")


def put(dependency: Dependency) -> None:
    """Write the drop-in, or remove it and the directory that was made for it."""
    if dependency.content is not None:
        records.write_bytes(dependency.drop_in, dependency.content)
        return
    records.remove(dependency.drop_in)
    directory = os.path.dirname(dependency.drop_in)
    if not os.listdir(directory):
        os.rmdir(directory)


def loaded(dependency: Dependency, unit: Properties) -> bool:
    """Return whether systemd has the drop-in, or its absence, in effect."""
    if unit["LoadState"] != "loaded":
        return True
    there = dependency.drop_in in shlex.split(unit["DropInPaths"])
    return there == (dependency.content is not None) and not (there and unit["NeedDaemonReload"] == "yes")


def verify(systemctl: Systemctl, dependencies: Sequence[Dependency]) -> None:
    """Fail when systemd does not use what was written: what silently does not act is worse than nothing."""
    units = systemctl.show([dependency.service for dependency in dependencies], _PROPERTIES)
    for dependency in dependencies:
        if not loaded(dependency, units[dependency.service]):
            raise StowageError(f"{dependency.service}: systemd does not use {dependency.drop_in}; see systemctl status")


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), body)


if __name__ == "__main__":
    main()
