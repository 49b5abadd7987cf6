# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put the facts of many hosts together in one report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.plugin_utils.report import fleet
from ansible_collections.stowage.host.plugins.plugin_utils.report.hosts import Asked


def report_fleet(hostvars: Any, hosts: Any, gathered: str = "") -> str:
    """Return the report on *hosts* as JSON text, those that did not answer included.

    :param gathered: the variable that the gathering of facts was registered in, when they have just been gathered
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("report_fleet: the input must be hostvars, and its first argument a list of hosts")
    names = sorted({str(host) for host in hosts})
    return fleet.dumps(fleet.fleet([_asked(name, hostvars, gathered) for name in names], time.time()))


def _asked(name: str, hostvars: Mapping[str, Any], gathered: str) -> Asked:
    if name not in hostvars:
        return Asked(name, None, "it is not in the inventory")
    # What hosts told is no template; looking for some in it takes longer than everything else.
    as_told: Callable[[str], Mapping[str, Any]] = getattr(hostvars, "raw_get", hostvars.__getitem__)
    variables = as_told(name)
    result = (variables.get(gathered) if gathered else None) or {}
    facts = (variables.get("ansible_facts") or {}).get("stowage_storage")
    if result.get("unreachable"):
        return Asked(name, facts, _one_line(result.get("msg") or "it cannot be reached"), reached=False)
    # Facts may be there without these: Ansible adds which Python it has found, also when the module failed.
    if result and "stowage_storage" not in result.get("ansible_facts", {}):
        return Asked(name, facts, f"it could not report: {_one_line(result.get('msg') or 'no reason given')}")
    return Asked(name, facts, "" if facts is not None else "it has not reported its storage yet")


def _one_line(message: Any) -> str:
    return " ".join(str(message).split())


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"report_fleet": report_fleet}
