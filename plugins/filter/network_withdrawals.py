# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say which exports are to be withdrawn, because the hosts that they are for have unmounted them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.plugin_utils.exports_told import told_of

_RELEASED = "Released"
_SOURCE = ("workspace", "drive", "source")


def network_withdrawals(hostvars: Any, hosts: Any, unmounted: str, withdrawn: str) -> dict[str, Any]:
    """Return by host that holds drives what it is to withdraw, and by host that read them what has been withdrawn.

    :param unmounted: the variable that module nfs_mounts was registered in on *hosts*
    :param withdrawn: the one that module nfs_exports was registered in on the others, once it has run
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("network_withdrawals: the input must be hostvars, and its argument a list of hosts")
    exports: dict[str, list[dict[str, Any]]] = {}
    done: dict[str, list[dict[str, Any]]] = {}
    left: dict[str, list[dict[str, Any]]] = {}
    for host in map(str, hosts):
        done[host], left[host] = [], []
        for mount in (hostvars[host].get(unmounted) or {}).get("mounts", ()):
            if mount["state"] != _RELEASED:
                continue
            source = {field: mount[field] for field in _SOURCE}
            # A host may have had another name when it mounted it.
            export = {**source, "client": mount.get("client") or host, "serial": mount.get("serial", "")}
            exports.setdefault(mount["node"], []).append(export)
            reason = _why_not(hostvars, mount["node"], export, withdrawn)
            if reason is None:
                done[host].append({**source, "serial": export["serial"]})
            else:
                left[host].append({**source, "node": mount["node"], "reason": reason})
    return {
        "nodes": sorted(node for node in exports if node in hostvars),
        "exports": exports,
        "withdrawn": done,
        "left": left,
    }


def _why_not(hostvars: Mapping[str, Any], node: str, export: Mapping[str, Any], withdrawn: str) -> str | None:
    """Return why *node* has not withdrawn *export*; None when it has."""
    if node not in hostvars:
        return (
            f"machine {node} is not in the inventory: name it there as it was, or withdraw it there by hand "
            "(nfs_exports); of one that is gone for good, forget it here (nfs_mounts, state: withdrawn)"
        )
    down = f"machine {node} is Down"
    told = told_of(hostvars[node].get(withdrawn), node, export, down=down, otherwise="it was not withdrawn")
    if isinstance(told, str):
        return told
    return None if told["state"] == _RELEASED else str(told["reason"])


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"network_withdrawals": network_withdrawals}
