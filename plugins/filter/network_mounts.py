# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say which network mounts the workers of a run need: what each host exports, and what each host mounts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.drives import refs as drive_refs
from ansible_collections.stowage.host.plugins.module_utils.drives.reasons import Reason, is_down
from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.needed import NetworkMount, holders, needed
from ansible_collections.stowage.host.plugins.module_utils.placement import asked as placement_asked
from ansible_collections.stowage.host.plugins.module_utils.placement.machines import Machine
from ansible_collections.stowage.host.plugins.plugin_utils.exports_told import told_of
from ansible_collections.stowage.host.plugins.plugin_utils.host_drives import Lists
from ansible_collections.stowage.host.plugins.plugin_utils.machines import machine_of, of_variables

_RUN = ("hosts", "drives", "workspace")
_NOT_EXPORTED = "it was not exported"


def network_mounts(hostvars: Any, run: Any, exported: str = "", looked: str = "") -> dict[str, Any]:
    """Return what hosts export and mount so that the workers of *run* have their drives, and what cannot be.

    :param run: the ``hosts`` of the workers, the ``drives`` of each, and the ``workspace``
    :param exported: the variable that the exports were registered in, once there are some
    :param looked: the variable that the look at the machines that hold drives was registered in
    """
    if not isinstance(hostvars, Mapping) or not isinstance(run, Mapping) or not set(_RUN) <= set(run):
        raise AnsibleFilterError(
            f"network_mounts: the input must be hostvars, and its argument a dictionary with {', '.join(_RUN)}"
        )
    names = sorted({str(host) for host in run["hosts"]})
    lists = Lists(hostvars)
    try:
        refs = drive_refs.read(run["drives"])
        workspace = str(run["workspace"]).strip()
        # What a host cannot have for another reason it says itself, when the run is prepared there.
        asked = placement_asked.ask(refs, workspace, {host: lists.of(host) for host in names}, set(hostvars))
        wanted = {host: one for host, one in asked.items() if not isinstance(one, Reason)}
        nodes = holders(wanted)
        found = needed(workspace, wanted, {name: _machine(hostvars, name, looked) for name in {*names, *nodes}})
    except StowageError as error:
        raise AnsibleFilterError(f"network_mounts: {error}") from error
    mounts: dict[str, list[dict[str, Any]]] = {}
    for one in found.mounts:
        state = _exported(hostvars, one, exported) if exported else {}
        mounts.setdefault(one.client, []).append({**one.to_mount(), **state})
    exports: dict[str, list[dict[str, Any]]] = {}
    for one in found.mounts:
        exports.setdefault(one.node, []).append(one.to_export())
    clients = sorted(host for host, those in wanted.items() if holders({host: those}))
    return {
        "nodes": sorted(nodes),
        "clients": clients,
        "exports": exports,
        "mounts": mounts,
        "refused": {host: list(why) for host, why in found.refused.items()},
    }


def _machine(hostvars: Mapping[str, Any], name: str, looked: str) -> Machine:
    if name not in hostvars or not looked:
        return machine_of(hostvars, name)
    return of_variables(name, hostvars[name], not hostvars[name].get(looked, {}).get("unreachable"))


def _exported(hostvars: Mapping[str, Any], one: NetworkMount, registered: str) -> dict[str, str]:
    """Return what the machine that holds a drive has said of its export; nobody knows of what while it says nothing."""
    result = hostvars[one.node].get(registered)
    down = is_down(one.drive, one.source, one.node).rule
    export = told_of(result, one.node, one._asdict(), down=down, otherwise=_NOT_EXPORTED)
    if isinstance(export, str):
        return {"export": "", "not_exported": export}
    no_rdma = result.get("no_rdma") if one.way.rdma else ""
    return {**_told(export, one), **({"no_rdma": f"{one.node}: {no_rdma}"} if no_rdma else {})}


def _told(export: Mapping[str, Any], one: NetworkMount) -> dict[str, str]:
    """Return of which directory an export is, why it is not as it was asked for, and which of them it is."""
    path, reason, is_exported = export["path"], export["reason"], export["state"] == "Exported"
    if is_exported and reason and (path != one.export or export["client_address"] == one.way.client_address):
        path = one.export  # it is of another one from before, and not only to another address
    why = reason or ("" if is_exported else _NOT_EXPORTED)
    return {"export": path, "not_exported": why, "serial": export["serial"]}


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"network_mounts": network_mounts}
