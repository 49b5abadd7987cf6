#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make daemon and exporter run what is installed, with the settings that are written."""

from __future__ import annotations

DOCUMENTATION = r"""
module: daemon_service
short_description: Make daemon and exporter run what is installed
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Writes the units and the settings of daemon and exporter, and has both enabled and running. The application itself
    must have been put at C(/usr/local/bin/stowage) before.
  - Makes the system user C(stowage-use), as whom C(stowage-use@.service) looks whether copies are in use.
  - What has to be restarted or reloaded is found out from the host, not from what this run has written. So a run that
    failed half way is made good by the next one.
  - A service is restarted when its process was not started with this unit and application, and when it does not run.
    The daemon is reloaded when the settings in force are not those in its file.
  - Refuses wrong settings by the daemon's own rules before anything is written, and fails when a service does not run
    or the daemon does not accept its configuration.
  - The role P(stowage.host.daemon#role) has the units, and is the usual way to use this.
options:
  application:
    description:
      - The SHA-256 of the application, in hexadecimal digits.
    type: str
    required: true
  units:
    description:
      - The text of the units by name, C(stowaged.service), C(stowage-exporter.service), C(stowage-leases.path),
        C(stowage-leases.service), C(stowage-use.socket), C(stowage-use@.service) and C(stowage-fill@.service).
      - Each begins with the line C(# Written by Stowage. Local changes are lost.). A unit on the host without this line
        is somebody else's, and is refused.
    type: dict
    required: true
  made_of:
    description:
      - What the units are made of, to be checked before they are written, because the service manager ignores most of
        what is wrong. The names are V(cpu_weight), V(memory_high), V(exporter_listen), V(exporter_certificate),
        V(exporter_key), V(exporter_client_ca), V(exporter_textfile) and V(exporter_user).
    type: dict
    default: {}
  settings:
    description:
      - The settings in C(/etc/stowage/daemon.json).
    type: dict
    required: true
    suboptions:
      host:
        description: The name of the host in the inventory.
        type: str
        required: true
      evict:
        description: Whether the daemon removes copies, only plans it, or does not look.
        type: str
        choices: ["on", "plan", "off"]
        default: plan
      cycle_s:
        description: Seconds between two looks at the host, from 0.1 to 3600.
        type: float
        default: 10
      scan_interval_s:
        description: Seconds between two measurements of sizes, from 1 to 86400.
        type: float
        default: 300
      minimum_age_s:
        description: Copies younger than this many seconds are not evicted, from 0 to 31536000.
        type: float
        default: 600
      boot_grace_s:
        description: Nothing is evicted in this many seconds after the start of the host, from 0 to 86400.
        type: float
        default: 600
      measure_shared:
        description: Whether this host measures locations on filesystems that several hosts share.
        type: bool
        default: false
      fill_engine:
        description:
          - What runs the containers that fill copies. V(auto) is the first of V(podman) and V(docker) that is there.
        type: str
        choices: [auto, podman, docker]
        default: auto
      quotas:
        description:
          - How much users and teams may have, in bytes or as quantities such as V(500G) or V(4Ti). 0 is no quota.
        type: dict
        default: {}
        suboptions:
          users:
            description: Quotas of single users, by name.
            type: dict
            default: {}
          teams:
            description: Quotas of single teams, by name.
            type: dict
            default: {}
          default_user:
            description: The quota of every other user.
            type: raw
            default: 0
          default_team:
            description: The quota of every other team.
            type: raw
            default: 0
      disk_watermark_pct:
        description:
          - How full a filesystem that holds a location may be before new jobs are held, a percentage from 0 to 100.
            With V(0) no filesystem holds them, neither a full nor a missing one.
        type: float
        default: 90
      watch:
        description: Whether filesystems are watched, so that a measurement looks only at what has changed.
        type: bool
        default: true
      watch_off:
        description: Absolute paths, without symbolic links, of which each is on a filesystem that is not to be watched.
        type: list
        elements: str
        default: []
      full_listing_interval_s:
        description:
          - Seconds after which at most all of a directory that is watched is looked at again, from 1 to 604800.
        type: float
        default: 21600
      watch_memory_mb:
        description: MiB that what watches one filesystem may remember, from 4 to 65536.
        type: int
        default: 64
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  check_mode:
    description: Predicts the changes, the diff and the actions of a run, also on a host without the daemon.
  diff_mode:
    description: Shows the lines of the files that differ, directories, and what runs.
  platform:
    description: Linux with systemd. Must be run as root.
"""

EXAMPLES = r"""
- name: Run the daemon
  stowage.host.daemon_service:
    application: "{{ lookup('ansible.builtin.file', application, rstrip=false) | hash('sha256') }}"
    units: "{{ units }}"
    settings:
      host: "{{ inventory_hostname }}"
      evict: plan
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["write /etc/stowage/daemon.json", "reload stowaged.service"]
"""

import os
import stat
import time
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils import own_files, records
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal, StowageError
from ansible_collections.stowage.host.plugins.module_utils.locks import host_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.services import daemon_settings, daemon_units
from ansible_collections.stowage.host.plugins.module_utils.services.systemd_units import Properties, Systemctl

ARGUMENT_SPEC = {
    "application": {"type": "str", "required": True},
    "units": {"type": "dict", "required": True},
    "made_of": {"type": "dict", "default": {}},
    "settings": {
        "type": "dict",
        "required": True,
        "options": {
            "host": {"type": "str", "required": True},
            "evict": {"type": "str", "choices": ["on", "plan", "off"], "default": "plan"},
            "cycle_s": {"type": "float", "default": 10},
            "scan_interval_s": {"type": "float", "default": 300},
            "minimum_age_s": {"type": "float", "default": 600},
            "boot_grace_s": {"type": "float", "default": 600},
            "measure_shared": {"type": "bool", "default": False},
            "fill_engine": {"type": "str", "choices": ["auto", "podman", "docker"], "default": "auto"},
            "quotas": {
                "type": "dict",
                "default": {},
                "options": {
                    "users": {"type": "dict", "default": {}},
                    "teams": {"type": "dict", "default": {}},
                    "default_user": {"type": "raw", "default": 0},
                    "default_team": {"type": "raw", "default": 0},
                },
            },
            "disk_watermark_pct": {"type": "float", "default": 90},
            "watch": {"type": "bool", "default": True},
            "watch_off": {"type": "list", "elements": "str", "default": []},
            "full_listing_interval_s": {"type": "float", "default": 21600},
            "watch_memory_mb": {"type": "int", "default": 64},
        },
    },
}

ACCEPT_S = 30.0
_PROPERTIES = ("ActiveState", "MainPID", "NeedDaemonReload", "UnitFileState")
_RUNS = ("active", "reloading")


def settings_of(given: Mapping[str, Any], made_of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings as they are written, or refuse all that is wrong with them and the units' at once."""
    problems = daemon_settings.problems_of(given) + daemon_settings.problems_of_units(made_of)
    if problems:
        raise StowageError("settings: " + "; ".join(problems))
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value for name, value in given.items()
    }


def units_of(given: Mapping[str, Any], application: str) -> dict[str, str]:
    """Return the text of each unit with its stamp, by path."""
    wrong = sorted(set(given) ^ set(daemon_units.NAMES))
    if wrong:
        raise Refusal("units", f"exactly {', '.join(daemon_units.NAMES)} are needed", f"see {wrong[0]}")
    for name, text in given.items():
        if not isinstance(text, str) or not own_files.is_ours(text.encode()):
            raise Refusal(name, "its text must begin with Stowage's header", f"begin it with {own_files.HEADER!r}")
    return {daemon_units.unit_path(name): daemon_units.stamped(text, application) for name, text in given.items()}


def check_program(module: AnsibleModule) -> None:
    """Refuse a program of somebody else, and in a run also another build than the units were stamped for."""
    path = daemon_units.PROGRAM
    if os.path.lexists(path) and not daemon_units.is_program(path):
        raise Refusal(path, "was not written by Stowage", "move it away")
    if not module.check_mode and module.sha256(path) != module.params["application"]:
        raise Refusal(path, "is missing, or not the application that was asked for", "install that first")


def wrong_directories(differences: Differences, places: Places) -> list[str]:
    """Note and return the directories that are missing, or are not as the exporter needs them."""
    wrong = []
    for path, mode in daemon_units.directories(places).items():
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            now = None
        else:
            now = f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"
        if differences.note(f"directory {path}", f"{stat.filemode(stat.S_IFDIR | mode)} 0:0", now):
            wrong.append(path)
    return wrong


def body(module: AnsibleModule, differences: Differences) -> Mapping[str, Any]:
    settings = settings_of(module.params["settings"], module.params["made_of"])
    units = units_of(module.params["units"], module.params["application"])
    places = Places()
    with nullcontext() if module.check_mode else host_lock(places):
        Service(module, differences, places).make_true(units, settings)
    return {}


class Service:
    """Daemon and exporter on this host."""

    def __init__(self, module: AnsibleModule, differences: Differences, places: Places) -> None:
        self._module = module
        self._differences = differences
        self._places = places
        self._started = time.time()
        self._systemctl = Systemctl(module.get_bin_path("systemctl", required=True), module.run_command)

    def make_true(self, units: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        """Compare and refuse first, then change what differs."""
        differences, systemctl = self._differences, self._systemctl
        check_program(self._module)
        wanted = {path: text.encode() for path, text in units.items()}
        wanted[daemon_units.TMPFILES] = daemon_units.tmpfiles(self._places).encode()
        wanted[daemon_units.SYSUSERS] = daemon_units.sysusers().encode()
        differing = {path: data for path, data in wanted.items() if self._note(path, data, own_files.read_ours(path))}
        data = records.dumps(settings)
        # In Stowage's own directory, so ours by its place.
        if self._note(self._places.daemon_json, data, own_files.read(self._places.daemon_json)):
            differing[self._places.daemon_json] = data
        directories = wrong_directories(differences, self._places)
        user = differences.note(f"user {daemon_units.USE_USER}", True, daemon_units.has_user())
        now = systemctl.show(daemon_units.LOADED, _PROPERTIES)
        stale = [name for name in daemon_units.LOADED if now[name]["NeedDaemonReload"] == "yes"]
        differences.note("units that systemd has to read again", [], stale)
        disabled = [
            name
            for name in daemon_units.SERVICES
            if differences.note(f"at every boot {name}", "enabled", now[name]["UnitFileState"])
        ]
        restart = [name for name in daemon_units.SERVICES if self._runs_another(name, now[name])]
        start = [name for name in daemon_units.WAITING if differences.note(name, "active", now[name]["ActiveState"])]
        reload = daemon_units.DAEMON not in restart and self._runs_with_other_settings(settings)

        for path, content in differing.items():
            differences.do(f"write {path}", partial(records.write_bytes, path, content))
        if directories:
            differences.do(f"make {', '.join(directories)}", self._make_directories)
        if user:
            differences.do(f"make user {daemon_units.USE_USER}", self._make_user)
        if stale or any(path in units for path in differing):
            differences.do("systemctl daemon-reload", systemctl.daemon_reload)
        for name in disabled:
            differences.do(f"enable {name}", partial(systemctl.tell, "enable", name))
        for name in restart:
            differences.do(f"restart {name}", partial(self._restart, name, now[name]["ActiveState"]))
        if reload:
            differences.do(f"reload {daemon_units.DAEMON}", partial(systemctl.tell, "reload", daemon_units.DAEMON))
        for name in start:
            differences.do(f"start {name}", partial(systemctl.tell, "start", name))
        if not self._module.check_mode:
            self._verify(settings, self._started if reload else 0.0)

    def _note(self, path: str, wanted: bytes, found: tuple[bytes, int] | None) -> bool:
        data, mode = found if found is not None else (None, 0o644)
        differs = self._differences.note(path, own_files.in_lines(wanted), own_files.in_lines(data))
        return self._differences.note(f"mode of {path}", "0644", f"{mode:04o}") or differs

    def _runs_another(self, name: str, now: Properties) -> bool:
        """Note and return whether a service does not run, or was started with another unit or application."""
        wanted = daemon_units.stamp_of(self._module.params["units"][name], self._module.params["application"])
        runs = daemon_units.running_stamp(now["MainPID"]) or "unknown" if now["ActiveState"] in _RUNS else None
        return self._differences.note(f"running {name}", wanted, runs)

    def _state(self, section: str) -> Mapping[str, Any]:
        try:
            return records.read(os.path.join(self._places.state_dir, f"{section}.json")) or {}
        except records.RecordError:
            return {}  # the daemon writes it anew when it is reloaded

    def _runs_with_other_settings(self, settings: Mapping[str, Any]) -> bool:
        config = self._state("config")
        differs = self._differences.note("settings in force", settings, config.get("settings"))
        return self._differences.note("error of the configuration", "", config.get("error", "")) or differs

    def _make_directories(self) -> None:
        program = self._module.get_bin_path("systemd-tmpfiles", required=True)
        _code, _out, err = self._module.run_command([program, "--create", daemon_units.TMPFILES])
        for path in wrong_directories(Differences(), self._places):
            raise Refusal(path, f"cannot be made the directory it must be ({' '.join(err.split())})", "move it away")

    def _make_user(self) -> None:
        program = self._module.get_bin_path("systemd-sysusers", required=True)
        _code, _out, err = self._module.run_command([program, daemon_units.SYSUSERS])
        if not daemon_units.has_user():
            problem = " ".join(err.split()) or "it does not say why"
            raise Refusal(f"user {daemon_units.USE_USER}", f"systemd-sysusers does not make it: {problem}", "make it")

    def _restart(self, name: str, state: str) -> None:
        if state == "failed":
            self._systemctl.tell("reset-failed", name)  # else it may have been started too often to be started again
        since = time.time()
        try:
            self._systemctl.restart(name)
        except StowageError as error:
            words = self._last_words(name, since) or error
            raise Refusal(name, f"does not start: {words}", f"see journalctl -u {name}") from error

    def _last_words(self, name: str, since: float) -> str:
        """Return the last line that the service itself has written since a time, empty when it has not."""
        program = self._module.get_bin_path("journalctl")
        if program is None:
            return ""
        self._module.run_command([program, "--sync"])
        arguments = ["--quiet", "--no-pager", "--output=cat", f"--since=@{since:.6f}", "--lines=1"]
        _code, out, _err = self._module.run_command([program, *arguments, f"_SYSTEMD_UNIT={name}"])
        return " ".join(str(out).split())

    def _verify(self, settings: Mapping[str, Any], since: float) -> None:
        """Fail when a service does not run or does not act on what was written: that would look like success.

        :param since: when it was told to; it has looked at all that is declared when a cycle has ended after that
        """
        for name, unit in self._systemctl.show(daemon_units.SERVICES + daemon_units.WAITING, ("ActiveState",)).items():
            if unit["ActiveState"] not in _RUNS:
                words = self._last_words(name, self._started) or f"it is {unit['ActiveState']}"
                raise Refusal(name, f"does not run: {words}", f"see journalctl -u {name}")
        end = time.monotonic() + ACCEPT_S
        while True:
            looked = self._state("cycle").get("time", 0.0) > since
            config = self._state("config")
            if looked and config.get("settings") == settings and not config.get("error"):
                return
            if time.monotonic() > end:
                why = config.get("error") or "it goes on with earlier settings"
                rule = f"does not accept its configuration: {why}"
                raise Refusal(daemon_units.DAEMON, rule, "see stowage check-config")
            time.sleep(0.1)


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), body)


if __name__ == "__main__":
    main()
