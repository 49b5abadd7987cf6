# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say which exports are to be withdrawn, because the hosts that they are for have unmounted them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

_RELEASED = "Released"


def network_withdrawals(hostvars: Any, hosts: Any, unmounted: str, withdrawn: str) -> dict[str, Any]:
    """Return by host that holds drives what it is to withdraw, and by host that read them what has been withdrawn.

    :param unmounted: the variable that module nfs_mounts was registered in on *hosts*
    :param withdrawn: the one that module nfs_exports was registered in on the others, once it has run
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("network_withdrawals: the input must be hostvars, and its argument a list of hosts")
    exports: dict[str, list[dict[str, Any]]] = {}
    done: dict[str, list[dict[str, Any]]] = {}
    for host in map(str, hosts):
        done[host] = []
        for mount in (hostvars[host].get(unmounted) or {}).get("mounts", ()):
            if mount["state"] != _RELEASED:
                continue
            key = {field: mount[field] for field in ("workspace", "drive", "source")}
            exports.setdefault(mount["node"], []).append({**key, "client": host})
            # A machine that has left the inventory exports nothing that anybody could withdraw.
            result = hostvars[mount["node"]].get(withdrawn) if mount["node"] in hostvars else {"exports": []}
            if "exports" in (result or {}):
                done[host].append(key)
    return {
        "nodes": sorted(node for node in exports if node in hostvars),
        "exports": exports,
        "withdrawn": done,
    }


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"network_withdrawals": network_withdrawals}
