# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say which network mounts the workers of a run need: what each host exports, and what each host mounts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.drives import refs as drive_refs
from ansible_collections.stowage.host.plugins.module_utils.drives.reasons import Reason
from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.needed import holders, needed
from ansible_collections.stowage.host.plugins.module_utils.placement import asked as placement_asked
from ansible_collections.stowage.host.plugins.plugin_utils.host_drives import Lists
from ansible_collections.stowage.host.plugins.plugin_utils.machines import end


def network_mounts(hostvars: Any, hosts: Any, refs: Any, workspace: Any) -> dict[str, Any]:
    """Return what hosts export and mount so that a worker on each of *hosts* has its drives, and what cannot be.

    :param refs: the drives of a worker of the run
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("network_mounts: the input must be hostvars, and its first argument a list of hosts")
    names = sorted({str(host) for host in hosts})
    lists = Lists(hostvars)
    try:
        read = drive_refs.read(refs)
        declared = {host: lists.of(host) for host in names}
        name = placement_asked.choose_workspace(workspace, declared.values()) if read else ""
        asked = placement_asked.ask(read, name, declared, set(hostvars)) if read else {}
        wanted = {host: one for host, one in asked.items() if not isinstance(one, Reason)}
        ends = {node: end(hostvars, node) for node in {*names, *holders(wanted)}}
        found = needed(name, wanted, ends)
    except StowageError as error:
        raise AnsibleFilterError(f"network_mounts: {error}") from error
    refused = {host: [one.text] for host, one in asked.items() if isinstance(one, Reason)}
    return {**found.to_json(), "refused": {**refused, **found.to_json()["refused"]}}


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"network_mounts": network_mounts}
