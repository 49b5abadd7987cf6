# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say how far the deletion of a drive has come over all hosts, and before it, why it is refused."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.drives.declared import PLACED, in_use_refusal, kind
from ansible_collections.stowage.host.plugins.module_utils.errors import did_you_mean

Facts = Mapping[str, Any]

_WIDEST_NAME = 24
_NAMED = 5
_KEPT_ON_MACHINES = kind({"sources": [{"node_scope": PLACED}]})


def drive_deletion(hostvars: Any, request: Any, check_mode: bool = False) -> dict[str, Any]:
    """Return on which hosts the deletion is done, which still hold a copy and why, and what is in its way.

    :param request: what the filter ``drive_deletion_request`` returned
    """
    if not isinstance(hostvars, Mapping) or not isinstance(request, Mapping) or "asked" not in request:
        text = "the input must be hostvars, and its argument the result of the filter drive_deletion_request"
        raise AnsibleFilterError(f"drive_deletion: {text}")
    workspace, drive = request["workspace"], request["drive"]
    predicted = {host: _told(hostvars[host], "predicted") for host in request["asked"]}
    done, holding, failed, not_reached, kinds = [], {}, [], [], set()
    for host in request["asked"]:
        variables = hostvars[host]
        declared, waited = _told(variables, "declared"), _told(variables, "waited")
        if "deleting" not in predicted[host] or declared.get("unreachable"):
            not_reached.append(host)
            continue
        if "deleting" not in declared:
            failed.append(host)
            holding[host] = " ".join(str(declared.get("msg") or "it was not told").split())
            continue
        last = waited if "deleting" in waited else declared
        kinds |= {of_drive for name, of_drive in last["kinds"][workspace].items() if name == drive}
        if last["unseen"]:
            holding[host] = f"unknown: {last['unseen'][0]}"
        elif drive in last["deleting"][workspace]:
            facts = _told(variables, "facts").get("ansible_facts", {}).get("stowage_storage")
            holding[host] = "it holds a copy" if check_mode else _why(facts, f"{workspace}.{drive}")
        else:
            done.append(host)
    found = {
        "done": done,
        "holding": holding,
        "failed": failed,
        "not_reached": not_reached,
        "not_asked": list(request["not_asked"]),
        "not_listed": list(request["not_listed"]),
    }
    had_copies = not kinds or bool(holding) or _KEPT_ON_MACHINES in kinds
    said = f"drive {workspace}/{drive}: {_said(found, '' if had_copies else min(kinds), check_mode)}"
    users = {host: those for host, result in predicted.items() if (those := _users(result, workspace, drive))}
    return {
        **found,
        "used_by": users,
        "refused": _refused(predicted, users, workspace, drive, request["force"]),
        "said": said,
        "table": _table(said, found),
    }


def _told(variables: Facts, task: str) -> Facts:
    """Return what a host has answered to a task of the playbook; nothing when it was not asked."""
    told: Facts = variables.get(f"drive_delete_{task}") or {}
    return told


def _users(result: Facts, workspace: str, drive: str) -> list[str]:
    return list(result.get("used_by", {}).get(workspace, {}).get(drive, []))


def _refused(
    predicted: Mapping[str, Facts], users: Mapping[str, Sequence[str]], workspace: str, drive: str, force: bool
) -> list[str]:
    """Return why nothing is deleted, one line each; hosts that say the same are named together."""
    said: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for host, result in predicted.items():
        for other in result.get("begun", {}).get(workspace, []):
            if other != drive:
                others.setdefault(other, []).append(host)
        if "deleting" not in result and not result.get("unreachable"):
            said.setdefault(" ".join(str(result.get("msg") or "it was not asked").split()), []).append(host)
        for why in [] if force else result.get("unread", []):
            said.setdefault(f"who uses the drive is unknown: {why}", []).append(host)
    refused = [f"{message} (on {_some(hosts)})" for message, hosts in said.items()]
    if others:
        which = ", ".join(f"{other} (on {_some(hosts)})" for other, hosts in sorted(others.items()))
        rule = f"with it others would be deleted, whose tombstones are not rolled out yet: {which}"
        refused.append(f"drive {drive}: {rule}; roll these hosts out first, or leave them out")
    asked = [result for result in predicted.values() if "deleting" in result]
    if not refused and asked and all(drive in result["unknown"][workspace] for result in asked):
        near = did_you_mean(drive, sorted({name for result in asked for name in result["drives"][workspace]}))
        what = f"no host that was asked knows it in workspace {workspace}, or holds a copy of it"
        refused.append(f"drive {drive} does not exist: {what}" + (f"; {near}" if near else ""))
    if not refused and not asked:
        refused.append(f"drive {drive}: no host with workspace {workspace} was reached: {_some(list(predicted))}")
    if users and not force:
        where = ", ".join(f"{host} ({_some(those)})" for host, those in list(users.items())[:_NAMED])
        more = f" and {len(users) - _NAMED} more" if len(users) > _NAMED else ""
        remedy = f"end their runs on {where}{more}, or set drive_delete_force=true"
        refused.append(str(in_use_refusal(drive, sum(map(len, users.values())), remedy)))
    return refused


def _why(facts: Facts | None, copy: str) -> str:
    """Return why a host still holds a copy, as far as it has told."""
    if facts is None:
        return "it was not waited for, or is out of reach now"
    daemon = facts["daemon"]
    if not daemon["installed"]:
        return "there is no daemon, which removes copies: roll the host out"
    if not daemon["running"]:
        return "the daemon, which removes copies, is not at work: systemctl status stowaged"
    waiting = (facts.get("eviction") or {}).get("waiting") or {}
    if copy in waiting:
        return str(waiting[copy])
    runs = sorted({str(one["run"]) for one in facts["leases"] if one["copy"] == copy})
    if runs:
        return f"run {_some(runs)} uses it"
    return "it is being removed, or was in an earlier data location: journalctl -u stowaged"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _said(found: Mapping[str, Any], without_copies: str, check_mode: bool) -> str:
    """Return what is true of how many of all hosts that are to lose the drive, asked or not.

    :param without_copies: what the drive was, when it is of a kind that has none
    """
    done, holding = len(found["done"]), len(found["holding"])
    number = done + holding + len(found["not_reached"]) + len(found["not_asked"])
    hosts = f"of {number} host{'' if number == 1 else 's'}"
    if check_mode:
        return f"would be deleted on {done + holding - len(found['failed'])} {hosts}; nothing was changed"
    if without_copies:
        what = f"it was {without_copies} and had no copies: only the name is gone, nothing on disk was touched"
        return f"deleted on {done} {hosts}; {what}"
    return f"{done} {hosts} {'holds' if number == 1 else 'hold'} no copy any more"


def _table(title: str, found: Mapping[str, Any], width: int = 68) -> list[str]:
    holding = found["holding"]
    lines = _wrapped(title, width, "", "    ")
    wide = min(max(map(len, holding), default=0), _WIDEST_NAME)
    for host, why in holding.items():
        head = f"  {host:<{wide}}  "
        said = textwrap.wrap(why, max(width - len(head), 30), break_long_words=False, break_on_hyphens=False)
        lines += [f"{head if index == 0 else ' ' * len(head)}{one}" for index, one in enumerate(said)]
    for names, what in (
        ("not_reached", "not reached; they delete it at their next rollout, if the tombstone is in the inventory:"),
        ("not_asked", "not asked, as outside of --limit or drive_delete_hosts; they keep it, whoever uses it there:"),
        ("not_listed", "without a list of the workspace in host_drives, and so not asked:"),
    ):
        if found[names]:
            lines += [what, *_wrapped(", ".join(found[names]), width, "  ", "  ")]
    return lines


def _wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"drive_deletion": drive_deletion}
