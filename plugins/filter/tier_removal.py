# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say how far a backend is off its hosts, and before anything is deleted, what is in the way."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.plugin_utils.tiers import UNREADABLE, Facts

NOT_CLEANED = "TierNotCleaned"

_DONE = ("TierCleaned", "TierReleased")
_NAMED = 5
_WIDEST_NAME = 24


def tier_removal(hostvars: Any, request: Any, check_mode: bool = False) -> dict[str, Any]:
    """Return which hosts held a tier of the backend, what became of it, and what is in the way.

    :param request: what the filter ``tier_removal_request`` returned
    """
    if not isinstance(hostvars, Mapping) or not isinstance(request, Mapping) or "asked" not in request:
        text = "the input must be hostvars, and its argument the result of the filter tier_removal_request"
        raise AnsibleFilterError(f"tier_removal: {text}")
    backend, expected = request["backend"], request["expected"]
    found: dict[str, Any] = {"done": {}, "failed": {}}
    found.update({names: [] for names in ("holding", "missing", "not_reached", "unknown", "beside")})
    refused: dict[str, list[str]] = {}
    for host in request["asked"]:
        told = {task: _told(hostvars[host], task) for task in ("facts", "predicted", "done")}
        if any(one.get("unreachable") for one in told.values()):
            found["not_reached" if host in expected or told["predicted"] else "unknown"].append(host)
            continue
        tiers = _tiers(told["facts"])
        if isinstance(tiers, str):
            refused.setdefault(f"what it holds is not known: {tiers}", []).append(host)
            continue
        if not any(tier["backend"] == backend for tier in tiers):
            if host in expected:
                found["missing"].append(host)
            continue
        found["holding"].append(host)
        if host not in request["selected"]:
            found["beside"].append(host)
        predicted, done = told["predicted"], told["done"]
        if predicted and "removed" not in predicted or _unsettled(predicted):
            refused.setdefault(_message(predicted), []).append(host)
        elif not check_mode and done and ("removed" not in done or _unsettled(done)):
            found["failed"][host] = _message(done)
        elif done or check_mode:
            found["done"][host] = "; ".join(tier["message"] for tier in (done or predicted).get("removed", []))
    texts = [f"{message} (on {_some(hosts)})" for message, hosts in refused.items()]
    if not texts and not found["holding"] and not found["not_reached"] and not request["not_asked"]:
        texts.append(f"backend {backend}: no host that was asked holds a tier of it; correct the name")
    return {
        **found,
        "not_asked": list(request["not_asked"]),
        "refused": texts,
        "said": _said(backend, found, request, check_mode),
        "table": _table(_said(backend, found, request, check_mode), found, request),
    }


def _told(variables: Facts, task: str) -> Facts:
    """Return what a host has answered to a task of the playbook; nothing when it was not asked."""
    told: Facts = variables.get(f"tier_remove_{task}") or {}
    return {} if told.get("skipped") else told


def _tiers(told: Facts) -> Sequence[Facts] | str:
    """Return the tiers that a host has told of, or why it has not."""
    facts = told.get("ansible_facts", {}).get("stowage_storage")
    if facts is None:
        return _message(told)
    if facts["tiers"] is None:
        return "; ".join([UNREADABLE, *facts.get("problems", [])[:_NAMED]])
    return list(facts["tiers"])


def _unsettled(told: Facts) -> bool:
    return bool(told.get("failed")) or any(tier["reason"] not in _DONE for tier in told.get("removed", []))


def _message(told: Facts) -> str:
    return " ".join(str(told.get("msg") or "it was not asked").split())


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _said(backend: str, found: Facts, request: Facts, check_mode: bool) -> str:
    number = len(found["holding"]) + len(found["not_reached"]) + len(request["not_asked"])
    hosts = f"{len(found['done'])} of {number} host{'' if number == 1 else 's'}"
    if check_mode:
        return f"backend {backend}: would be taken off {hosts}; nothing was changed"
    return f"backend {backend}: it is off {hosts}"


def _table(title: str, found: Facts, request: Facts, width: int = 68) -> list[str]:
    lines = _wrapped(title, width, "", "    ")
    rows = {**found["failed"], **found["done"]}
    wide = min(max(map(len, rows), default=0), _WIDEST_NAME)
    for host, why in rows.items():
        head = f"  {host:<{wide}}  "
        said = textwrap.wrap(why, max(width - len(head), 30), break_long_words=False, break_on_hyphens=False)
        lines += [f"{head if index == 0 else ' ' * len(head)}{one}" for index, one in enumerate(said)]
    for names, what in (
        (found["beside"], "of these, no longer in a group of the backend, and found by their claims:"),
        (found["missing"], "were to hold one, and show none (never rolled out, off already, or record lost):"),
        (found["not_reached"], f"{NOT_CLEANED}: out of reach; they keep content and claim until it is run again:"),
        (request["not_asked"], f"{NOT_CLEANED}: outside of --limit or tier_remove_hosts:"),
        (found["unknown"], "out of reach and in no group of the backend; whether they hold a claim is not known:"),
    ):
        if names:
            lines += [what, *_wrapped(", ".join(names), width, "  ", "  ")]
    return lines


def _wrapped(text: str, width: int, first: str, others: str) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"tier_removal": tier_removal}
