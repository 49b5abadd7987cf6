# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hosts' figures add up to: room, users and teams, tracked files, tiers, volumes, network mounts, events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    users, teams = _Owners(), _Owners()
    kinds: dict[str, Sum] = {}
    known: list[str] = []
    incomplete: list[str] = []
    measured = None
    for host in asked:
        told = mapping(mapping(host.facts).get("accounts"))
        name = text(host.name)
        if not told:
            continue
        known.append(name)
        measured = oldest(measured, moment(told.get("measured")))
        if truth(told.get("complete")) is False:
            incomplete.append(name)
        count = mapping(told.get("count"))
        users.add(name, mapping(told.get("users")), whole(count.get("users")))
        teams.add(name, mapping(told.get("teams")), whole(count.get("teams")))
        for kind, size in mapping(told.get("tracked")).items():
            kinds.setdefault(text(kind), Sum()).add(whole(size))
    return {
        "hosts": len(known),
        "unknown": len(asked) - len(known),
        "incomplete": incomplete,
        # On how many hosts there are so many users or teams that they tell of the largest only.
        "in_part": {"users": len(users.in_part), "teams": len(teams.in_part)},
        "measured": measured,
        "users": users.ranked(),
        "teams": teams.ranked(),
        "tracked": {kind: {"bytes": total.total, "unmeasured": total.unknown} for kind, total in kinds.items()},
    }


class _Owners:
    """The users, or the teams, of many hosts."""

    def __init__(self) -> None:
        self.in_part: set[str] = set()
        """The hosts that tell of the largest only: each may have something of all others."""
        self._found: dict[str, _Owner] = {}

    def add(self, host: str, told: Told, count: int | None) -> None:
        """Add what a host tells of its *count* owners."""
        if count is not None and count > len(told):
            self.in_part.add(host)
        for name, one in told.items():
            self._found.setdefault(text(name), _Owner()).add(host, mapping(one))

    def ranked(self) -> list[Part]:
        """Return the owners, the largest first."""
        owners = [{"name": name, **one.part(self.in_part)} for name, one in self._found.items()]
        return sorted(owners, key=lambda one: (-(one["bytes"] or 0), one["name"]))


class _Owner:
    def __init__(self) -> None:
        self._hosts: set[str] = set()
        self._bytes = Sum()
        self._runs = Sum()
        self._quotas: list[Part] = []

    def add(self, host: str, account: Told) -> None:
        size, quota = whole(account.get("bytes")), whole(account.get("quota"))
        self._hosts.add(host)
        self._bytes.add(size)
        self._runs.add(whole(account.get("runs")))
        if quota:
            since = moment(account.get("exceeded_since"))
            self._quotas.append({"host": host, "bytes": size, "quota": quota, "exceeded_since": since})

    def part(self, in_part: set[str]) -> Part:
        """Return the sums, how many hosts are not in them (``unmeasured``), and the quotas, the most pressed first."""
        return {
            "bytes": self._bytes.total,
            "runs": self._runs.total,
            "hosts": self._bytes.known,
            "unmeasured": self._bytes.unknown + len(in_part - self._hosts),
            "quotas": sorted(self._quotas, key=lambda one: (-(one["bytes"] or 0) / one["quota"], one["host"])),
        }


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
