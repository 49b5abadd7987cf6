# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an operator should look at, the worst first, each kind once with the hosts that it is true of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ansible_collections.stowage.host.plugins.module_utils.relocation import stages
from ansible_collections.stowage.host.plugins.module_utils.sizes import decimal
from ansible_collections.stowage.host.plugins.module_utils.spans import lasting

from .told import Part, folded, some
from .totals import UNREACHABLE

BAD, WARN = "bad", "warn"

Found = tuple[str, str, str, str]
"""A level, a kind in words, a host, and what it is there."""


def attention(report: Part) -> list[Part]:
    """Return the kinds of trouble in a report, in the order of the functions below."""
    kinds: dict[tuple[str, str], dict[str, list[str]]] = {}
    # What a silent host told before is no news.
    answering = {host["name"] for host in report["hosts"] if host["answers"]}
    news = (one for one in _found(report) if one[2] in answering)
    for level, what, host, text in (*_silent(report["hosts"]), *news):
        kinds.setdefault((level, what), {}).setdefault(host, []).append(text)
    found = [{"level": level, "what": what, "items": _items(hosts)} for (level, what), hosts in kinds.items()]
    return sorted(found, key=lambda one: one["level"] != BAD)


def _items(hosts: Mapping[str, Sequence[str]]) -> list[Part]:
    return [{"host": host, "text": text} for host, texts in hosts.items() for text in folded(texts)]


def _found(report: Part) -> Iterator[Found]:
    hosts = report["hosts"]
    yield from _gates(hosts)
    for host in hosts:
        for one in host["unavailable"]:
            paths = some([f"{path['what']} {path['path']}" for path in one["paths"]])
            yield BAD, "Paths that are not available", host["name"], f"{paths}: {one['reason']}"
    for one in report["network_mounts"]:
        if one["state"] in _OF_MOUNTS:
            why = one["reason"] or "its server does not answer, or it is not mounted any more"
            name = f"{one['workspace']}/{one['drive']} from {one['node']}"
            yield BAD, _OF_MOUNTS[one["state"]], one["host"], f"{name}: {why}"
    for host in hosts:
        for one in host["relocations"]:
            wrong = stages.amiss(one["standing"], one["to"], one["path"])
            if wrong:
                what = "Moved locations whose old path is not as it should be"
                yield BAD, what, host["name"], f"{one['location']}: {wrong}"
    yield from _quotas("user", report["accounts"]["users"], report["made"])
    yield from _quotas("team", report["accounts"]["teams"], report["made"])
    for host in hosts:
        if host["eviction"] and host["eviction"]["blocked"]:
            yield BAD, "Room is wanted and cannot be made", host["name"], host["eviction"]["why"]
    for backend in report["tiers"]:
        for tier in backend["tiers"]:
            for words in tier["trouble"]:
                yield WARN, "KV-cache tiers", tier["host"], f"{backend['backend']} {tier['path']} {words}"
    for host in hosts:
        for one in host["relocations"]:
            if one["stage"] in stages.UNDER_WAY:
                move = f"{one['location']} from {one['path']} to {one['to']}: {one['stage']}"
                yield WARN, "Locations that are being moved", host["name"], move
    yield from _daemons(hosts)
    for host in hosts:
        for problem in host["problems"]:
            yield WARN, "Other problems that hosts tell", host["name"], problem


def _silent(hosts: Sequence[Part]) -> Iterator[Found]:
    for host in hosts:
        if not host["answers"]:
            yield BAD, "Hosts that do not answer" if not host["reached"] else _NO_REPORT, host["name"], host["why"]


_OF_MOUNTS = {"Failed": "Network mounts that failed", UNREACHABLE: "Network mounts that cannot be reached"}
_NO_REPORT = "Hosts that could not report their storage"


def _gates(hosts: Sequence[Part]) -> Iterator[Found]:
    for host in hosts:
        for hold in host["gate"]["holds"]:
            whom = " for a user or team" if hold["user"] or hold["team"] else ""
            yield BAD, f"Gates held{whom}: {hold['reason']}", host["name"], hold["text"]


def _quotas(kind: str, owners: Sequence[Part], now: float) -> Iterator[Found]:
    for owner in owners:
        for quota in owner["quotas"]:
            if quota["exceeded_since"] is not None:
                used = decimal(quota["bytes"]) if quota["bytes"] is not None else "an unknown part"
                since = lasting(max(0.0, now - quota["exceeded_since"]))
                text = f"{kind} {owner['name']} uses {used} of {decimal(quota['quota'])}, for {since}"
                yield BAD, "Quotas exceeded", quota["host"], text


def _daemons(hosts: Sequence[Part]) -> Iterator[Found]:
    for host in hosts:
        daemon = host["daemon"]
        if daemon["installed"] and daemon["running"] is False:
            age = daemon["last_cycle_age_s"]
            last = f"its last cycle was {lasting(age)} before" if age is not None else "it has not ended a cycle"
            yield WARN, "Daemons that are not at work", host["name"], last
