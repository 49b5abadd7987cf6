# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say of each tier whether it was empty on all of its hosts before its backend wrote to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.tiers.declared import tier_name
from ansible_collections.stowage.host.plugins.module_utils.tiers.survey import PREEXISTING, verdict
from ansible_collections.stowage.host.plugins.plugin_utils.tiers import UNREADABLE, Declared, Facts, tiers_of

_EMPTY = "Empty"
_OPEN = "NotAnswered"


def tier_survey(hostvars: Any) -> dict[str, dict[str, Any]]:
    """Return the verdict on each tier of the site, by its name."""
    if not isinstance(hostvars, Mapping):
        raise AnsibleFilterError("tier_survey: the input must be hostvars")
    declared = Declared(hostvars)
    answers: dict[str, dict[str, Facts | str]] = {}
    unknown: dict[str, str] = {}
    for host in hostvars:
        tiers = tiers_of(hostvars[host])
        backends = declared.of(host)
        if isinstance(backends, str):
            unknown[host] = f"which tiers it is to have is not known: {backends}"
        else:
            why = tiers if isinstance(tiers, str) else "it has not claimed the directory yet"
            for backend in backends:
                for position, _group, _tier in backend.tiers(host):
                    answers.setdefault(tier_name(backend.name, position), {})[host] = why
        for one in [] if isinstance(tiers, str) else tiers:
            answers.setdefault(tier_name(one["backend"], one["position"]), {})[host] = one
        if tiers == UNREADABLE:
            unknown.setdefault(host, UNREADABLE)
    # Any tier may be on a host of which that is not known: it is waited for, and not passed over.
    for of_hosts in answers.values():
        for host, why in unknown.items():
            of_hosts.setdefault(host, why)
    return {name: _judged(of_hosts) for name, of_hosts in sorted(answers.items())}


def _judged(answers: Mapping[str, Facts | str]) -> dict[str, Any]:
    found: dict[str, int] = {}
    waiting: dict[str, str] = {}
    for host, one in answers.items():
        survey = None if isinstance(one, str) else one["survey"]
        if isinstance(one, str):
            waiting[host] = one
        elif survey is None:
            waiting[host] = "what was in it before it was claimed is not known"
        elif survey["entries"] is None:
            waiting[host] = str(survey["reason"])
        else:
            found[host] = survey["entries"]
    status = verdict([not entries for entries in found.values()] + [None for _host in waiting])
    full = {host: entries for host, entries in found.items() if entries}
    if status is False:
        held = ", ".join(f"{host} ({entries} entr{'y' if entries == 1 else 'ies'})" for host, entries in full.items())
        reason, message = PREEXISTING, f"there was content before: {held}"
    elif status:
        reason, message = _EMPTY, f"it was empty on {'its host' if len(found) == 1 else f'all {len(found)} hosts'}"
    else:
        reason, message = _OPEN, f"not known yet: {', '.join(f'{host}: {why}' for host, why in waiting.items())}"
    return {"was_empty": status, "reason": reason, "message": message, "entries": found, "waiting": waiting}


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tier_survey": tier_survey}
