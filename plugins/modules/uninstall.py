#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Take Stowage off a host, and leave its data."""

from __future__ import annotations

DOCUMENTATION = r"""
module: uninstall
short_description: Take Stowage off a host and leave its data
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Stops daemon and exporter, and removes their units, their settings, the user C(stowage-use) and the application, the
    drop-ins that tie services to their mounts, and the environment files of the layout.
  - What is removed is found on the host. The inventory need not name it any more.
  - Removes only what Stowage has written, known by the header in it, and of C(/usr/local/lib/stowage) only the virtual
    environment that the role made. What is somebody else's stays, with a warning.
  - Unmounts the network mounts of the host, and removes the files of these and of its exports. Refuses before anything
    else is changed when a run or a process uses such a mount, when one cannot be unmounted, or while another machine
    may have a drive of this one mounted.
  - Copies that an eviction had set aside when it was cut short are put back, which the daemon would have done.
  - Leaves all data, that is the directories of the layout, data locations, copies, leases that are held, and the
    records in C(/etc/stowage) and C(/var/lib/stowage).
options:
  environment_files:
    description:
      - Environment files to remove beside the one that the layout was written with.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  diff_mode:
    description: Shows the lines of the files that are removed.
  platform:
    description: Linux with systemd. Must be run as root.
seealso:
  - module: stowage.host.storage_facts
  - plugin: stowage.host.leftovers
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Take Stowage off the host
  stowage.host.uninstall:
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["stop stowaged.service", "remove /usr/local/bin/stowage"]
aside:
  description:
    - What lies aside in data locations and stays there. No daemon is left to empty what was condemned, or to judge a
      copy whose place a new one has taken.
  returned: success
  type: list
  elements: dict
  contains:
    path:
      description: Where it is.
      type: str
    name:
      description: The copy that it is, as workspace and drive; empty for what is none of this host.
      type: str
    condemned:
      description: Whether it was being removed, and may be so in part.
      type: bool
  sample:
    - path: /mnt/nvme0/stowage/.stowage-trash/condemned/ml.old.full-18a1-9f0c11aa
      name: ml.old
      condemned: true
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils import own_files, records
from ansible_collections.stowage.host.plugins.module_utils.copies import aside
from ansible_collections.stowage.host.plugins.module_utils.data_location import locations as data_locations
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal
from ansible_collections.stowage.host.plugins.module_utils.layout import record as layout_record
from ansible_collections.stowage.host.plugins.module_utils.locks import host_lock, network_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.network_mounts import leaving
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.client import Client
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.exporting import Exporting
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.server import CONFIGURATION, Server
from ansible_collections.stowage.host.plugins.module_utils.paths import check_path
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.services import daemon_units, mount_dependencies
from ansible_collections.stowage.host.plugins.module_utils.services.systemd_units import Systemctl

ARGUMENT_SPEC = {"environment_files": {"type": "list", "elements": "str", "default": []}}

_STOPPED = (daemon_units.EXPORTER, daemon_units.LEASES_PATH, daemon_units.DAEMON, daemon_units.USE_SOCKET)


def candidates(places: Places, environment_files: list[str]) -> Iterator[str]:
    """Return the files that may be Stowage's, each once."""
    paths = [daemon_units.unit_path(name) for name in daemon_units.NAMES]
    paths += [
        daemon_units.TMPFILES,
        daemon_units.SYSUSERS,
        CONFIGURATION,
        *mount_dependencies.find_drop_ins(),
        places.environment,
    ]
    paths += layout_record.load(places.layout_json)["environment_files"]
    paths += [check_path(path, "environment_files") for path in environment_files]
    yield from dict.fromkeys(paths)


def ours(module: AnsibleModule, paths: Iterable[str]) -> dict[str, bytes]:
    """Return the content of those of *paths* that Stowage wrote; warn of the others."""
    found = {}
    for path in paths:
        try:
            file = own_files.read_ours(path)
        except Refusal as error:
            module.warn(f"{error.name}: {error.rule}; it stays")
            continue
        if file is not None:
            found[path] = file[0]
    return found


def body(module: AnsibleModule, differences: Differences) -> Mapping[str, Any]:
    places = Places()
    with nullcontext() if module.check_mode else host_lock(places):
        systemctl = Systemctl(module.get_bin_path("systemctl", required=True), module.run_command)
        files = ours(module, candidates(places, module.params["environment_files"]))
        leave_networks(module, systemctl, differences, places)
        stop(systemctl, differences, files)
        left = aside.settle(places, differences, module.warn)
        remove(module, systemctl, differences, places, files)
    return {
        "aside": [
            {"path": one.path, "name": one.copy, "condemned": one.part == data_locations.CONDEMNED} for one in left
        ]
    }


def leave_networks(module: AnsibleModule, systemctl: Systemctl, differences: Differences, places: Places) -> None:
    """Unmount and withdraw what is used over the network, before anything else is changed."""
    with nullcontext() if module.check_mode else network_lock(places, alone=True):
        own = ours(module, leaving.candidates(places))
        client = Client(places, systemctl, module.run_command, "journalctl", differences)
        exporting = Exporting(places, "", Server(systemctl, differences), module.run_command, differences)
        leaving.leave(client, exporting, own)


def stop(systemctl: Systemctl, differences: Differences, files: Mapping[str, bytes]) -> None:
    """Stop and disable what runs: whoever looks at copies afterwards finds them as they stay."""
    own_units = [name for name in _STOPPED if daemon_units.unit_path(name) in files]
    now = systemctl.show(own_units, ("ActiveState", "UnitFileState"))
    running = [name for name in own_units if differences.note(f"state of {name}", "inactive", now[name]["ActiveState"])]
    if daemon_units.unit_path(daemon_units.FILL) in files:
        fills = systemctl.running(daemon_units.FILL)
        running += [name for name in fills if differences.note(f"state of {name}", "inactive", "active")]
    enabled = [name for name in own_units if now[name]["UnitFileState"] == "enabled"]
    for name in enabled:
        differences.note(f"at every boot {name}", "disabled", "enabled")
    for name in running:
        differences.do(f"stop {name}", partial(systemctl.tell, "stop", name))
    for name in enabled:
        differences.do(f"disable {name}", partial(systemctl.tell, "disable", name))


def remove(
    module: AnsibleModule,
    systemctl: Systemctl,
    differences: Differences,
    places: Places,
    files: Mapping[str, bytes],
) -> None:
    """Remove what is not data."""
    for path, content in files.items():
        differences.note(path, None, own_files.in_lines(content))
    more = [places.daemon_json] if os.path.lexists(places.daemon_json) else []
    if os.path.lexists(daemon_units.PROGRAM):
        if daemon_units.is_program(daemon_units.PROGRAM):
            more.append(daemon_units.PROGRAM)
        else:
            module.warn(f"{daemon_units.PROGRAM}: was not written by Stowage; it stays")
    for path in more:
        differences.note(path, None, "present")
    library = daemon_units.is_virtualenv(daemon_units.VIRTUALENV)
    if library:
        differences.note(daemon_units.VIRTUALENV, None, "present")
    elif os.path.lexists(daemon_units.LIBRARY):
        module.warn(f"{daemon_units.LIBRARY}: was not made by Stowage; it stays")
    user = daemon_units.SYSUSERS in files and daemon_units.has_user()
    if user:
        differences.note(f"user {daemon_units.USE_USER}", False, True)

    if user:  # before its file, by which it is known to be Stowage's
        differences.do(f"remove user {daemon_units.USE_USER}", partial(remove_user, module))
    for path in [*files, *more]:
        differences.do(f"remove {path}", partial(remove_file, path))
    if any(path.startswith(daemon_units.UNITS) for path in files):
        differences.do("systemctl daemon-reload", systemctl.daemon_reload)
    if library:
        differences.do(f"remove {daemon_units.VIRTUALENV}", remove_library)


def remove_library() -> None:
    """Remove the virtual environment, and the directory that was made for it when nothing else is in it."""
    shutil.rmtree(daemon_units.VIRTUALENV)
    with suppress(OSError):
        os.rmdir(daemon_units.LIBRARY)


def remove_user(module: AnsibleModule) -> None:
    code, _out, err = module.run_command([module.get_bin_path("userdel", required=True), daemon_units.USE_USER])
    if code != 0:
        raise Refusal(f"user {daemon_units.USE_USER}", f"userdel: {' '.join(err.split())}", "remove it")


def remove_file(path: str) -> None:
    """Remove a file, and the directory of drop-ins that was made for it."""
    records.remove(path)
    directory = os.path.dirname(path)
    if directory.startswith(daemon_units.UNITS + "/") and not os.listdir(directory):
        os.rmdir(directory)


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), body)


if __name__ == "__main__":
    main()
