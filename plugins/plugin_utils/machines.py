# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory and the fact cache know of a machine, for filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal
from ansible_collections.stowage.host.plugins.module_utils.placement.machines import Machine, machine


def machine_of(hostvars: Mapping[str, Any], name: str) -> Machine:
    """Return machine *name*; of one that is not in the inventory nothing is known."""
    return of_variables(name, hostvars[name]) if name in hostvars else machine(name, None)


def of_variables(name: str, variables: Mapping[str, Any], up: bool = True) -> Machine:
    """Return the machine *name* that has these variables.

    :param up: False when it has just been asked, and did not answer
    :raises Refusal: when its variables are wrong, or cannot be had
    """
    try:
        facts = variables.get("ansible_facts", {}).get("stowage_storage", {}).get("compact")
        topology, address = (variables.get(f"stowage_{which}") for which in ("topology", "nfs_address"))
    except (AnsibleError, UndefinedError) as error:
        raise Refusal(f"variables of {name}", " ".join(str(error).split()), "correct them") from error
    return machine(name, facts, topology, up, address)
