# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what the inventory declares of hosts that share runs, without asking any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleError, AnsibleFilterError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.module_utils.layout.rules import disagreements
from ansible_collections.stowage.host.plugins.plugin_utils import layouts


def site_disagreements(hostvars: Any, hosts: Any) -> dict[str, list[str]]:
    """Return what is refused, and which hosts could not be compared.

    :param hosts: those that are rolled out; a host that shares runs with one of them is compared too
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("site_disagreements: the input must be hostvars, and its argument a list of hosts")
    groups: dict[str, dict[str, dict[str, str]]] = {}
    unknown: dict[str, str] = {}
    for host in hostvars:
        try:
            group, settings = _declared(hostvars[host])
        except (AnsibleError, StowageError, UndefinedError) as error:
            unknown[host] = " ".join(str(error).split())
            continue
        if group and settings:
            groups.setdefault(group, {})[host] = settings
    wanted = set(hosts)
    return {
        "refused": [
            f"{group}: {sentence}"
            for group, compared in sorted(groups.items())
            if wanted & set(compared)
            for sentence in disagreements(compared)
        ],
        "not_compared": [f"{host} ({why})" for host, why in sorted(unknown.items())],
    }


def _declared(variables: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the name under which a host shares runs, and the settings of its layout; empty when it has none."""
    if "host_storage_root" not in variables:
        return "", {}
    return str(variables.get("host_runs_group", "default")), layouts.declared(variables).settings()


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"site_disagreements": site_disagreements}
