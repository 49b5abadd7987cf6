# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""On which hosts a step of moving a location has failed, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError


def relocation_failures(hostvars: Any, hosts: Any, task: Any) -> list[str]:
    """Return a line for each cause, with the hosts that it is of.

    :param hosts: those of the play
    :param task: the name under which the results are registered
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("relocation_failures: the input must be hostvars, and then a list of hosts")
    causes: dict[str, list[str]] = {}
    for host in hosts:
        why = _why(hostvars[host].get(task))
        if why:
            causes.setdefault(why, []).append(host)
    return [f"{why} (on {', '.join(of)})" for why, of in causes.items()]


def _why(told: Any) -> str:
    if not isinstance(told, Mapping):
        return "it was not asked"
    if told.get("skipped"):
        return ""
    if told.get("unreachable"):
        return "it is out of reach"
    # A failure that was not to end the play does not say so. Modules of ours have a message only then.
    done = "rc" in told and told["rc"] == 0 or ("stage" in told or "settings" in told) and not told.get("msg")
    if done and not told.get("failed"):
        return ""
    return " ".join(str(told.get("stderr") or told.get("msg") or "it failed").split())


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"relocation_failures": relocation_failures}
