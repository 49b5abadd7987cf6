# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say which hosts may take a run, in which order they are preferred, and why not the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.drives import refs as drive_refs
from ansible_collections.stowage.host.plugins.module_utils.drives.reasons import Reason
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal, StowageError
from ansible_collections.stowage.host.plugins.module_utils.placement import asked as placement_asked
from ansible_collections.stowage.host.plugins.module_utils.placement.decision import Asked, Placement, holders, place
from ansible_collections.stowage.host.plugins.module_utils.placement.machines import Machine
from ansible_collections.stowage.host.plugins.plugin_utils.host_drives import Lists
from ansible_collections.stowage.host.plugins.plugin_utils.machines import of_variables


def placement(hostvars: Any, hosts: Any, refs: Any, workspace: Any = None, gathered: str = "") -> dict[str, Any]:
    """Return the candidates among *hosts* by rank, and each host's reasons; or why the run is refused.

    :param refs: the drives of a worker of the run
    :param workspace: may be left out when the hosts have drives of one only
    :param gathered: the variable that the gathering of facts was registered in, when they have just been gathered
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("placement: the input must be hostvars, and its first argument a list of hosts")
    names = sorted({str(host) for host in hosts})
    found = {"refusal": "", "workspace": "", "drives": [], "differing": [], **Placement(()).to_json()}
    try:
        return {**found, **_placed(hostvars, names, drive_refs.read(refs), workspace, gathered)}
    except StowageError as error:
        return {**found, "refusal": str(error)}


def _placed(
    hostvars: Mapping[str, Any], names: Iterable[str], refs: list[drive_refs.DriveRef], workspace: Any, gathered: str
) -> dict[str, Any]:
    lists = Lists(hostvars)
    asked: dict[str, Asked] = dict.fromkeys(names, [])
    name = ""
    if refs:
        declared = {host: lists.of(host) for host in names}
        name = placement_asked.choose_workspace(workspace, declared.values())
        asked = placement_asked.ask(refs, name, declared, set(hostvars))
    holding = {node for wanted, _hosts in placement_asked.by_list(asked) for node in holders(wanted)}
    machines: dict[str, Machine] = {}
    silent: dict[str, Reason] = {}
    for host in sorted({*asked, *holding} & set(hostvars)):
        try:
            machines[host], fault = _machine(host, hostvars[host], gathered)
        except Refusal as error:
            if host in holding:
                raise
            asked[host] = Reason("", str(error))
        else:
            if fault is not None and host in asked:
                silent[host] = fault
    placement_asked.check_any(asked)
    asked = {**asked, **silent}
    return {
        "workspace": name,
        "drives": [ref.name for ref in refs],
        "differing": [{"drive": drive, "hosts": those} for drive, those in placement_asked.differing(asked)],
        **place(asked, machines, name).to_json(),
    }


def _machine(name: str, variables: Mapping[str, Any], gathered: str) -> tuple[Machine, Reason | None]:
    """Return what is known of a host, and why it cannot be a candidate if that is certain."""
    result = (variables.get(gathered) if gathered else None) or {}
    fault = None
    # Facts may be there without these: Ansible adds which Python it has found, also when the module failed.
    if result and "stowage_storage" not in result.get("ansible_facts", {}) and not result.get("unreachable"):
        what = " ".join(str(result.get("msg") or "no reason given").split())
        fault = Reason("", f"machine {name} could not report its storage: {what}")
    return of_variables(name, variables, up=not result.get("unreachable")), fault


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"placement": placement}
