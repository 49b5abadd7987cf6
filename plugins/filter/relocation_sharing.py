# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether hosts that share a location would be parted by a step of moving it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.filter.relocation_failures import relocation_failures
from ansible_collections.stowage.host.plugins.filter.relocation_request import runs_group


def relocation_sharing(hostvars: Any, hosts: Any, task: Any) -> list[str]:
    """Return what is in the way, a line for each location that several hosts see.

    Who shares is what the hosts tell of their filesystems; the groups of the inventory add who was not asked.

    :param hosts: those of the play
    :param task: the name under which the answers are registered
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("relocation_sharing: the input must be hostvars, and then a list of hosts")
    asked = list(hosts)
    answers = {host: told for host in asked if isinstance(told := hostvars[host].get(task), Mapping)}
    sharing: dict[str, list[str]] = {}
    for host, told in answers.items():
        if told.get("shared_as"):
            sharing.setdefault(str(told["shared_as"]), []).append(host)
    refused = []
    for place, members in sharing.items():
        groups = {runs_group(hostvars, host) for host in members}
        group = [host for host in hostvars if runs_group(hostvars, host) in groups]
        outside = [host for host in group if host not in asked]
        makers = [host for host in members if answers[host].get("makes_copy")]
        if outside:
            refused.append(f"hosts share {place}, and {', '.join(outside)} was not asked; name it in relocate_hosts")
        elif len(makers) != 1:
            who = f"{', '.join(makers)} would each copy it" if makers else "none of them would copy it"
            refused.append(f"{', '.join(members)} share {place}, and {who}; give them one host_runs_group")
        refused += relocation_failures(hostvars, [host for host in group if host in asked], task)
    return refused


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"relocation_sharing": relocation_sharing}
