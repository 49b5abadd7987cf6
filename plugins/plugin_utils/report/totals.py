# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hosts' figures add up to: room, users and teams, tracked files, tiers, volumes, network mounts, events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .hosts import Asked
from .told import Measured, Part, Sum, Told, mapping, mappings, moment, oldest, text, truth, whole

UNREACHABLE = "Unreachable"
"""A network mount whose server does not answer, or which is not there any more."""

_EVENTS = 200


def space(hosts: Sequence[Part]) -> Part:
    """Return the room of all local filesystems, and of the shared ones, each of which counts once for the fleet."""
    local = _Room()
    shared: dict[tuple[str, str], Part] = {}
    for host in hosts:
        for one in host["filesystems"]:
            if not one["shared"]:
                local.add(one)
                continue
            key = (one["fstype"], one["source"])
            if key not in shared or shared[key]["size_bytes"] is None:
                shared[key] = one
    together = _Room()
    for one in shared.values():
        together.add(one)
    return {"local": local.part(), "shared": together.part()}


class _Room:
    def __init__(self) -> None:
        self._sums = {field: Sum() for field in ("size_bytes", "used_bytes", "free_bytes")}

    def add(self, one: Part) -> None:
        for field, total in self._sums.items():
            total.add(one[field])

    def part(self) -> Part:
        size = self._sums["size_bytes"]
        totals = {field: one.total for field, one in self._sums.items()}
        return {"filesystems": size.known + size.unknown, "unknown": size.unknown, **totals}


# -- Whose the space is


def accounts(asked: Sequence[Asked]) -> Part:
    """Return what users and teams have on all hosts, and the tracked files by kind.

    A runs location that several hosts see is measured by one of them, so nothing counts twice.
    """
    users: dict[str, Part] = {}
    teams: dict[str, Part] = {}
    kinds: dict[str, Sum] = {}
    known: list[str] = []
    incomplete: list[str] = []
    measured = None
    in_part = 0
    for host in asked:
        told = mapping(mapping(host.facts).get("accounts"))
        name = text(host.name)
        if not told:
            continue
        known.append(name)
        in_part += any((whole(number) or 0) > len(mapping(told.get(kind))) for kind, number in _counts(told))
        measured = oldest(measured, moment(told.get("measured")))
        if truth(told.get("complete")) is False:
            incomplete.append(name)
        _owners(users, name, told.get("users"))
        _owners(teams, name, told.get("teams"))
        for kind, size in mapping(told.get("tracked")).items():
            kinds.setdefault(text(kind), Sum()).add(whole(size))
    return {
        "hosts": len(known),
        "unknown": len(asked) - len(known),
        "incomplete": incomplete,
        # Hosts with so many users or teams that they tell of the largest only.
        "in_part": in_part,
        "measured": measured,
        "users": _ranked(users),
        "teams": _ranked(teams),
        "tracked": {kind: {"bytes": total.total, "unmeasured": total.unknown} for kind, total in kinds.items()},
    }


def _counts(told: Told) -> Iterable[tuple[str, Any]]:
    return ((kind, mapping(told.get("count")).get(kind)) for kind in ("users", "teams"))


def _owners(found: dict[str, Part], host: str, told: object) -> None:
    for name, one in mapping(told).items():
        account = mapping(one)
        owner = found.setdefault(text(name), {"name": text(name), "total": Sum(), "runs": Sum(), "quotas": []})
        size, quota = whole(account.get("bytes")), whole(account.get("quota"))
        owner["total"].add(size)
        owner["runs"].add(whole(account.get("runs")))
        if quota:
            since = moment(account.get("exceeded_since"))
            owner["quotas"].append({"host": host, "bytes": size, "quota": quota, "exceeded_since": since})


def _ranked(found: dict[str, Part]) -> list[Part]:
    """Return the owners, the largest first, each with its quotas, the most pressed first."""
    owners = [
        {
            "name": one["name"],
            "bytes": one["total"].total,
            "runs": one["runs"].total,
            "hosts": one["total"].known + one["total"].unknown,
            "quotas": sorted(one["quotas"], key=lambda quota: (-(quota["bytes"] or 0) / quota["quota"], quota["host"])),
        }
        for one in found.values()
    ]
    return sorted(owners, key=lambda one: (-(one["bytes"] or 0), one["name"]))


# -- Objects of many hosts


def network_mounts(asked: Sequence[Asked]) -> list[Part]:
    """Return all network mounts: those in trouble first, then those with something to tell."""
    found = [_network_mount(text(host.name), one) for host, one in _of_all(asked, "network_mounts")]
    calm = ("Bound", "Released")
    return sorted(
        found,
        key=lambda one: (one["state"] in calm, not one["message"], one["workspace"], one["drive"], one["host"]),
    )


def _network_mount(host: str, told: Part) -> Part:
    state = text(told.get("state"))
    answers, available = truth(told.get("answers")), truth(told.get("available"))
    if state == "Bound" and (answers is False or available is False):
        state = UNREACHABLE
    fields = ("workspace", "drive", "node", "path", "proto", "reason", "message")
    return {
        "host": host,
        "state": state,
        "source": whole(told.get("source")),
        "read_only": truth(told.get("read_only")),
        "answers": answers,
        "time": moment(told.get("time")),
        **{field: text(told.get(field)) for field in fields},
    }


def tiers(asked: Sequence[Asked]) -> list[Part]:
    """Return the KV-cache backends, each with the tiers that hosts hold of it."""
    found: dict[str, list[Part]] = {}
    for host, one in _of_all(asked, "tiers"):
        found.setdefault(text(one.get("backend")), []).append(_tier(text(host.name), one))
    return [_backend(name, those) for name, those in sorted(found.items())]


def _tier(host: str, told: Part) -> Part:
    sizes = ("position", "capacity", "allocated", "bytes", "files", "buckets", "keys")
    states = ("claimed", "full", "filling", "settings_differ", "writable", "complete")
    return {
        "host": host,
        "path": text(told.get("path")),
        "store": text(told.get("store")),
        "measured": moment(told.get("measured")),
        **{field: whole(told.get(field)) for field in sizes},
        **{field: truth(told.get(field)) for field in states},
        "trouble": [words for words, is_so in _troubles(told) if is_so],
    }


def _troubles(told: Part) -> Iterable[tuple[str, bool]]:
    yield "is not claimed", told.get("claimed") is False
    yield "cannot be seen", told.get("claimed") is None
    yield "its filesystem is filling", told.get("filling") is True
    yield "its store has other settings", told.get("settings_differ") is True
    yield "is not writable for its store", told.get("writable") is False


def _backend(name: str, those: list[Part]) -> Part:
    total, capacity = Measured(), Sum()
    for one in those:
        total.add(one, "allocated")
        capacity.add(one["capacity"])
    return {
        "backend": name,
        "stores": sorted({one["store"] for one in those if one["store"]}),
        "capacity": capacity.total,
        "full": sum(one["full"] is True for one in those),
        "troubled": sum(bool(one["trouble"]) for one in those),
        **total.part(),
        "tiers": those,
    }


def volumes(asked: Sequence[Asked]) -> list[Part]:
    """Return the registered volumes, each with where it is and is not available."""
    found: dict[str, Part] = {}
    for host, one in _of_all(asked, "volumes"):
        name, path = text(one.get("name")), text(one.get("path"))
        empty: Part = {"name": name, "paths": [], "hosts": 0, "unavailable": [], "unknown": 0, "grants": 0, "users": 0}
        volume = found.setdefault(name, empty)
        volume["hosts"] += 1
        if path not in volume["paths"]:
            volume["paths"].append(path)
        available = truth(one.get("available"))
        volume["unknown"] += available is None
        if available is False:
            volume["unavailable"].append(text(host.name))
        volume["grants"] = max(volume["grants"], _number(one.get("grants")))
        volume["users"] += _number(one.get("used_by"))
    return [found[name] for name in sorted(found)]


def _number(value: object) -> int:
    return len(value) if isinstance(value, (list, dict)) else whole(value) or 0


def events(asked: Sequence[Asked]) -> list[Part]:
    """Return the last events of all hosts, the newest first."""
    fields = ("object", "reason", "message")
    found: list[Part] = [
        {"host": text(host.name), "time": moment(one.get("time")), **{field: text(one.get(field)) for field in fields}}
        for host, one in _of_all(asked, "events")
    ]
    return sorted(found, key=lambda one: -(one["time"] or 0))[:_EVENTS]


def _of_all(asked: Sequence[Asked], kind: str) -> Iterable[tuple[Asked, Part]]:
    for host in asked:
        for one in mappings(mapping(host.facts).get(kind)):
            yield host, dict(one)


def not_known(asked: Sequence[Asked], kind: str) -> list[str]:
    """Return the hosts of which it is not known what they have of a kind."""
    return [text(host.name) for host in asked if mapping(host.facts).get(kind) is None]
