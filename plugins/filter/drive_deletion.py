# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say how far the deletion of a drive has come over all hosts, and before it, why it is refused."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.drives.declared import in_use_refusal

Facts = Mapping[str, Any]

_STOPPED_S = 60.0
_WIDEST_NAME = 24
_NAMED = 5


def drive_deletion(hostvars: Any, hosts: Any, workspace: str, drive: str, force: bool = False) -> dict[str, Any]:
    """Return on which hosts the deletion is done, which still hold a copy and why, and what is in its way."""
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("drive_deletion: the input must be hostvars, and its argument a list of hosts")
    names = list(hosts)
    looked = {host: _last(hostvars[host]) for host in names}
    done, holding, not_reached, not_listed = [], {}, [], []
    for host in names:
        result = looked[host]
        if result.get("unreachable"):
            not_reached.append(host)
        elif result.get("skipped"):
            not_listed.append(host)
        elif "deleting" not in result:
            holding[host] = str(result.get("msg") or "it was not asked")
        elif result["unseen"]:
            holding[host] = f"unknown: {result['unseen'][0]}"
        elif drive in result["deleting"][workspace]:
            holding[host] = _why(hostvars[host].get("ansible_facts", {}).get("stowage_storage"), workspace, drive)
        else:
            done.append(host)
    users = {host: those for host in names if (those := _users(looked[host], workspace, drive))}
    found = {"done": done, "holding": holding, "not_reached": not_reached, "not_listed": not_listed}
    return {
        **found,
        "used_by": users,
        "refused": _refused(looked, users, workspace, drive, force),
        "table": _table(f"{workspace}/{drive}", found),
    }


def _last(variables: Facts) -> Facts:
    """Return what a host has told last: while it was waited for, else before."""
    waited: Facts = variables.get("drive_delete_waited") or {}
    told: Facts = variables.get("drive_delete_result") or {}
    return waited if "deleting" in waited else told


def _users(result: Facts, workspace: str, drive: str) -> list[str]:
    return list(result.get("used_by", {}).get(workspace, {}).get(drive, []))


def _refused(
    looked: Mapping[str, Facts], users: Mapping[str, Sequence[str]], workspace: str, drive: str, force: bool
) -> list[str]:
    """Return why nothing is deleted, one line each; hosts that say the same are named together."""
    said: dict[str, list[str]] = {}
    for host, result in looked.items():
        if "msg" in result and not result.get("unreachable") and "deleting" not in result:
            said.setdefault(" ".join(str(result["msg"]).split()), []).append(host)
    refused = [f"{message} (on {_some(hosts)})" for message, hosts in said.items()]
    asked = [result for result in looked.values() if "deleting" in result]
    if not refused and asked and all(drive in result["unknown"][workspace] for result in asked):
        refused.append(
            f"drive {drive} does not exist: no host knows it in workspace {workspace}, or holds a copy of it"
        )
    if not refused and not asked:
        refused.append(f"drive {drive}: no host that has a list of workspace {workspace} was reached")
    if users and not force:
        where = ", ".join(f"{host} ({_some(those)})" for host, those in list(users.items())[:_NAMED])
        more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
        number = sum(map(len, users.values()))
        refused.append(str(in_use_refusal(drive, number, f"end their runs on {where}{more}")))
    return refused


def _why(facts: Facts | None, workspace: str, drive: str) -> str:
    """Return why a host still holds a copy, as far as it has told."""
    if facts is None:
        return "it was not waited for, or is out of reach now"
    daemon, copy = facts["daemon"], f"{workspace}.{drive}"
    if not daemon["installed"]:
        return "there is no daemon, which removes copies: roll the host out"
    if daemon["last_cycle_age_s"] is None or daemon["last_cycle_age_s"] > _STOPPED_S:
        return "the daemon, which removes copies, is not at work: systemctl status stowaged"
    waiting = (facts.get("eviction") or {}).get("waiting", {})
    if copy in waiting:
        return str(waiting[copy])
    runs = sorted({str(one["run"]) for one in facts["leases"] if one["copy"] == copy})
    if runs:
        return f"run {_some(runs)} uses it"
    return "it is being removed, or was in an earlier data location: journalctl -u stowaged"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _table(shown: str, found: Mapping[str, Any], width: int = 68) -> list[str]:
    holding, done = found["holding"], found["done"]
    number = len(holding) + len(done)
    lines = [f"drive {shown}: {len(done)} of {number} hosts hold no copy any more"]
    wide = min(max(map(len, holding), default=0), _WIDEST_NAME)
    for host, why in holding.items():
        head = f"  {host:<{wide}}  "
        said = textwrap.wrap(why, max(width - len(head), 30), break_long_words=False, break_on_hyphens=False)
        lines += [f"{head if index == 0 else ' ' * len(head)}{one}" for index, one in enumerate(said)]
    if found["not_reached"]:
        lines.append("not reached; they delete it at their next rollout, if the tombstone is in the inventory:")
        lines += _names(found["not_reached"], width)
    if found["not_listed"]:
        lines.append("without a list of the workspace in host_drives, and so not asked:")
        lines += _names(found["not_listed"], width)
    return lines


def _names(names: Sequence[str], width: int) -> list[str]:
    indent = "  "
    return textwrap.wrap(
        ", ".join(names), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"drive_deletion": drive_deletion}
