# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What moving a location is asked for, judged before any host is asked."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.filter.survey_bool import survey_bool
from ansible_collections.stowage.host.plugins.filter.survey_text import survey_text
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal, StowageError, did_you_mean, quoted
from ansible_collections.stowage.host.plugins.module_utils.layout.rules import NAMES
from ansible_collections.stowage.host.plugins.module_utils.paths import check_path

_WAIT_S = 600


def relocation_request(hostvars: Any, hosts: Any, asked: Any) -> dict[str, Any]:
    """Return what is to be done, or under ``refused`` in one line why nothing is.

    :param hosts: those of the play
    :param asked: the variables of the playbook by name, without ``relocate_``
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("relocation_request: the input must be hostvars, and then a list of hosts")
    try:
        return {"refused": "", **_request(hostvars, list(hosts), asked)}
    except StowageError as error:
        return {"refused": " ".join(str(error).split())}


def _request(hostvars: Mapping[str, Any], hosts: list[str], asked: Mapping[str, Any]) -> dict[str, Any]:
    location = survey_text(asked.get("location"))
    if location not in NAMES:
        remedy = did_you_mean(location, NAMES) or f"name one of {', '.join(NAMES)}"
        if not location:
            raise Refusal("relocate_location", remedy)
        raise Refusal("relocate_location", f"there is no location {quoted(location)}", remedy)
    flags = {name: _flag(asked, name) for name in ("give_up", "forget")}
    confirm, to = survey_text(asked.get("confirm")), survey_text(asked.get("to"))
    said = {"move": bool(to), "retire": bool(confirm), **flags}
    actions = [action for action, is_said in said.items() if is_said]
    if len(actions) != 1:
        one_of = "relocate_to, relocate_confirm, relocate_forget or relocate_give_up"
        raise Refusal(f"location {location}", "say one thing to do", f"give one of {one_of}")
    wait = survey_text(asked.get("wait")) or str(_WAIT_S)
    if not wait.isascii() or not wait.isdigit():
        raise Refusal("relocate_wait", f"{quoted(wait)} is no number of seconds")
    groups: dict[str, list[str]] = {}
    for host in hostvars:
        group = runs_group(hostvars, host)
        if group is not None:
            groups.setdefault(group, []).append(host)
    asked_of = set(hosts)
    return {
        "action": actions[0],
        "location": location,
        "to": check_path(to, "relocate_to") if to else "",
        "confirm": confirm,
        "with_content": survey_text(asked.get("copy")) == "" or _flag(asked, "copy"),
        "hook": _words(asked.get("hook")),
        "wait_s": int(wait),
        "makers": [members[0] for members in groups.values()],
        "not_asked": [host for members in groups.values() for host in members if host not in asked_of],
    }


def runs_group(hostvars: Mapping[str, Any], host: str) -> str | None:
    """Return the group of hosts that share runs with *host*; None when it has no storage layout."""
    if "host_storage_root" not in hostvars[host]:
        return None
    return str(hostvars[host].get("host_runs_group", "default") or host)


def _flag(asked: Mapping[str, Any], name: str) -> bool:
    value = survey_bool(asked.get(name))
    if value is None:
        raise Refusal(f"relocate_{name}", f"{quoted(survey_text(asked.get(name)))} must be true or false")
    return value


def _words(hook: Any) -> list[str]:
    """Return a command as a list of words: given as such, or as a shell would split it."""
    if isinstance(hook, (list, tuple)):
        return [str(word) for word in hook]
    try:
        return shlex.split(survey_text(hook))
    except ValueError as error:
        raise Refusal("relocate_hook", f"cannot be split into words: {error}", "close its quotes") from error


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"relocation_request": relocation_request}
