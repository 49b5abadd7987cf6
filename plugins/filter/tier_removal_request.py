# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What taking a backend off a site is asked for, judged before any host is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.filter.survey_bool import survey_bool
from ansible_collections.stowage.host.plugins.filter.survey_text import survey_text
from ansible_collections.stowage.host.plugins.module_utils.drives.declared import check_name
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal, StowageError, quoted
from ansible_collections.stowage.host.plugins.plugin_utils.tiers import UNREADABLE, Declared, tiers_of


def tier_removal_request(
    hostvars: Any, hosts: Any, name: Any, confirm: Any, allow_unreached: Any = ""
) -> dict[str, Any]:
    """Return what is to be done, or under ``refused`` in one line why nothing is.

    :param hosts: those of the play; the inventory's others are not asked
    """
    if not isinstance(hostvars, Mapping) or isinstance(hosts, str) or not isinstance(hosts, Iterable):
        raise AnsibleFilterError("tier_removal_request: the input must be hostvars, and then a list of hosts")
    try:
        return {"refused": "", **_request(hostvars, list(hosts), name, confirm, allow_unreached)}
    except StowageError as error:
        return {"refused": " ".join(str(error).split())}


def _request(
    hostvars: Mapping[str, Any], hosts: list[str], name: Any, confirm: Any, allow_unreached: Any
) -> dict[str, Any]:
    if not survey_text(name):
        raise Refusal("tier_remove_name", "name the backend")
    backend = check_name(name, "tier_remove_name")
    if confirm != backend:
        what = f"give the name of the backend again, {backend}, to take it off its hosts, with what it was to clean"
        raise Refusal("tier_remove_confirm", what)
    allowed = survey_bool(allow_unreached)
    if allowed is None:
        what = f"{quoted(str(allow_unreached))} must be true or false"
        raise Refusal("tier_remove_allow_unreached", what)
    declared = Declared(hostvars)
    selected, declaring, expected = [], [], []
    for host in hostvars:
        backends, tiers = declared.of(host), tiers_of(hostvars[host])
        for one in [] if isinstance(backends, str) else backends:
            if one.name == backend:
                declaring.append(host)
                if any(True for _tier in one.tiers(host)):
                    selected.append(host)
        holds = tiers == UNREADABLE or not isinstance(tiers, str) and any(one["backend"] == backend for one in tiers)
        # A declaration that cannot be read, or a record: it may well be there.
        if holds or host in selected or isinstance(backends, str):
            expected.append(host)
    return {
        "backend": backend,
        "still_declared": bool(declaring),
        "asked": hosts,
        "selected": selected,
        "expected": expected,
        "not_asked": [host for host in expected if host not in hosts],
        "allow_unreached": allowed,
    }


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tier_removal_request": tier_removal_request}
