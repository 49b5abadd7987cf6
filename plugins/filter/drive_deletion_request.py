# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What deleting a drive over a site is asked for, judged before any host is asked: one workspace for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleError, AnsibleFilterError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.filter.survey_bool import survey_bool
from ansible_collections.stowage.host.plugins.module_utils.drives.declared import check_drives, check_name
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal, StowageError, did_you_mean, quoted

WAIT_S = 600
_NAMED = 5

Lists = Mapping[str, Any]
"""A host's lists of drives by workspace."""


def drive_deletion_request(
    hostvars: Any,
    hosts: Any,
    name: Any,
    confirm: Any,
    workspace: Any = "",
    force: Any = "",
    wait: Any = "",
    allow_unreached: Any = "",
) -> dict[str, Any]:
    """Return what is to be done, or under ``refused`` in one line why nothing is.

    :param hosts: those of the play; the inventory's others are not asked
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("drive_deletion_request: the input must be hostvars, and then a list of hosts")
    try:
        options = {
            "force": _truth(force, "drive_delete_force"),
            "wait_s": _seconds(wait),
            "allow_unreached": _truth(allow_unreached, "drive_delete_allow_unreached"),
        }
        return {"refused": "", **_request(hostvars, list(hosts), name, confirm, workspace), **options}
    except StowageError as error:
        return {"refused": " ".join(str(error).split())}


def _request(hostvars: Mapping[str, Any], hosts: list[str], name: Any, confirm: Any, workspace: Any) -> dict[str, Any]:
    if _is_blank(name):
        raise Refusal("drive_delete_name", "name the drive")
    drive = check_name(name, "drive_delete_name")
    if confirm != drive:
        what = f"give the name of the drive again, {drive}, to delete it and every copy of it"
        raise Refusal("drive_delete_confirm", what)
    lists: dict[str, Lists] = {}
    unknown: dict[str, str] = {}
    for host in hostvars:
        try:
            lists[host] = _lists(hostvars[host])
        except (AnsibleError, StowageError, UndefinedError) as error:
            unknown[host] = " ".join(str(error).split())
    chosen = _workspace(workspace, lists)
    for host in hosts:
        if host in unknown:
            raise Refusal(f"host_drives of {host}", unknown[host], "correct it")
    asked = [host for host in hosts if chosen in lists[host]]
    if not asked:
        having = [host for host in lists if chosen in lists[host]]
        rule = f"none of the chosen hosts has {chosen} in host_drives"
        remedy = f"choose of {', '.join(having[:_NAMED])}{', …' if len(having) > _NAMED else ''}"
        raise Refusal("drive_delete_workspace", rule, remedy)
    states = _states({host: lists[host][chosen] for host in asked}, chosen, drive)
    return {
        "drive": drive,
        "workspace": chosen,
        "still_declared": "present" in states,
        "asked": asked,
        "not_listed": [host for host in hosts if host not in asked],
        "not_asked": [host for host in hostvars if host not in hosts and (host in unknown or chosen in lists[host])],
    }


def _is_blank(value: Any) -> bool:
    """Return whether a survey variable is left out: AWX hands on an empty text."""
    return value is None or (isinstance(value, str) and not value.strip())


def _truth(value: Any, name: str) -> bool:
    found = survey_bool(value)
    if found is None:
        raise Refusal(name, f"{quoted(str(value))} must be true or false")
    return found


def _seconds(value: Any) -> int:
    if _is_blank(value):
        return WAIT_S
    if isinstance(value, bool) or not re.fullmatch("[0-9]{1,9}", str(value).strip(), re.ASCII):
        raise Refusal("drive_delete_wait", f"{quoted(str(value))} must be a whole number of seconds; 0 does not wait")
    return int(value)


def _lists(variables: Mapping[str, Any]) -> Lists:
    found = variables.get("host_drives")
    if _is_blank(found):
        return {}
    if not isinstance(found, Mapping):
        raise StowageError("must be a dictionary of lists of drives by workspace")
    return dict(found)


def _workspace(value: Any, lists: Mapping[str, Lists]) -> str:
    """Return the workspace that is meant, the same for all hosts."""
    known = sorted({str(name) for of_host in lists.values() for name in of_host})
    there = f"host_drives has {', '.join(known) or 'none'}"
    if _is_blank(value):
        if len(known) != 1:
            raise Refusal("drive_delete_workspace", "name the workspace", there)
        return known[0]
    if value not in known:
        near = did_you_mean(str(value), known)
        rule = f"{quoted(str(value))} is no workspace"
        raise Refusal("drive_delete_workspace", rule, f"{near} {there}" if near else there)
    return str(value)


def _states(drives: Mapping[str, Any], workspace: str, drive: str) -> set[str]:
    """Return in which states a drive is in the workspace's list of each host, or refuse what is wrong with one."""
    seen: list[Any] = []
    states = set()
    for host, one in drives.items():
        try:
            if one in seen:
                continue  # most hosts have the same list
            checked = check_drives(one, name=f"host_drives of {host}: {workspace}")
        except (AnsibleError, StowageError, UndefinedError) as error:
            raise StowageError(str(error).splitlines()[0]) from error
        seen.append(one)
        states |= {entry["state"] for entry in checked if entry["metadata"]["name"] == drive}
    return states


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"drive_deletion_request": drive_deletion_request}
