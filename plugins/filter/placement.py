# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say which hosts may take a run, in which order they are preferred, and why not the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleError, AnsibleFilterError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.module_utils.drives import refs as drive_refs
from ansible_collections.stowage.host.plugins.module_utils.drives.declared import check_drives, check_name
from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.module_utils.placement.decision import holders, place
from ansible_collections.stowage.host.plugins.module_utils.placement.machines import Machine, machine


def placement(hostvars: Any, hosts: Any, refs: Any, workspace: Any, drives: Any) -> dict[str, Any]:
    """Return the candidates among *hosts* by rank, and each host's reasons.

    :param refs: the drives of a worker of the run
    :param drives: the workspace's list, as it is declared
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("placement: the input must be hostvars, and its first argument a list of hosts")
    names = sorted({str(host) for host in hosts})
    try:
        wanted = drive_refs.resolve(drive_refs.read(refs), check_drives(drives))
        machines = {name: _machine(hostvars, name) for name in {*names, *holders(wanted)} if name in hostvars}
        found = place(names, machines, check_name(workspace, "workspace"), wanted)
    except StowageError as error:
        raise AnsibleFilterError(f"placement: {error}") from error
    return {"workspace": workspace, "drives": [one.name for one in wanted], **found.to_json()}


def _machine(hostvars: Mapping[str, Any], name: str) -> Machine:
    try:
        variables = hostvars[name]
        facts = variables.get("ansible_facts", {})
        topology = variables.get("stowage_topology")
    except (AnsibleError, UndefinedError) as error:
        raise AnsibleFilterError(f"placement: variables of {name}: {' '.join(str(error).split())}") from error
    return machine(name, facts.get("stowage_storage", {}).get("compact"), topology)


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"placement": placement}
