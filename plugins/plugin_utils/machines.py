# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory and the fact cache know of a machine, for filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError, AnsibleFilterError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.module_utils.network_mounts.transport import End
from ansible_collections.stowage.host.plugins.module_utils.placement.machines import machine


def end(hostvars: Mapping[str, Any], name: str) -> End:
    """Return machine *name* as one end of a network mount; of one that is not in the inventory nothing is known.

    :raises Refusal: when its stowage_topology is wrong
    :raises AnsibleFilterError: when its variables cannot be had
    """
    if name not in hostvars:
        return End(machine(name, None))
    try:
        variables = hostvars[name]
        facts = variables.get("ansible_facts", {})
        topology = variables.get("stowage_topology")
        address = variables.get("stowage_nfs_address")
    except (AnsibleError, UndefinedError) as error:
        raise AnsibleFilterError(f"variables of {name}: {' '.join(str(error).split())}") from error
    return End(machine(name, facts.get("stowage_storage", {}).get("compact"), topology), str(address or ""))
