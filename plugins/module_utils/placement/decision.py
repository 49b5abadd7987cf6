# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a run may start, and why not elsewhere: Astraeus's placement over what the machines have reported.

The reasons are those of Astraeus's drives, word for word. Two are Stowage's own, for what is certain to fail and has
no reason there: a machine that nothing is known of, and a data location whose disk is not mounted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..drives.declared import ON_ONE_MACHINE, PLACED, SHARED, copy_name
from ..drives.refs import Wanted
from ..sizes import decimal
from .machines import Machine, machine
from .ranking import prefer

CHOOSE_ON_SEVERAL = "Choose where to keep data on the machines"


@dataclass(frozen=True)
class Verdict:
    """Whether one machine may take the run."""

    host: str
    reasons: tuple[str, ...] = ()
    """Why not; none for a candidate."""
    rank: int | None = None
    """Among the candidates, from 1."""
    preferred: tuple[str, ...] = ()
    """What speaks for a candidate."""

    def to_json(self) -> dict[str, Any]:
        return {
            "candidate": self.rank is not None,
            "rank": self.rank,
            "preferred": list(self.preferred),
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True)
class Placement:
    """Which machines may take the run: the candidates by rank, then the others by name."""

    verdicts: Sequence[Verdict]

    @property
    def candidates(self) -> list[str]:
        return [verdict.host for verdict in self.verdicts if verdict.rank is not None]

    @property
    def refused(self) -> list[tuple[str, list[str]]]:
        """Each reason with the machines that it is true of, the most frequent first."""
        choosing = [verdict.host for verdict in self.verdicts if _choose(verdict.host) in verdict.reasons]
        several = {_choose(host) for host in choosing} if len(choosing) > 1 else set()
        found: dict[str, list[str]] = {}
        for verdict in self.verdicts:
            for reason in verdict.reasons:
                found.setdefault(CHOOSE_ON_SEVERAL if reason in several else reason, []).append(verdict.host)
        return sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))

    @property
    def waiting(self) -> list[str]:
        """Why the run waits; nothing while there is a candidate."""
        return [] if self.candidates else [reason for reason, _hosts in self.refused]

    def to_json(self) -> dict[str, Any]:
        return {
            "candidates": self.candidates,
            "hosts": {verdict.host: verdict.to_json() for verdict in self.verdicts},
            "refused": [{"reason": reason, "hosts": hosts} for reason, hosts in self.refused],
            "waiting": self.waiting,
        }


def holders(wanted: Iterable[Wanted]) -> set[str]:
    """Return the names of the machines that drives on one machine are on: they count although no run goes there."""
    sources = [one.source for one in wanted if one.source is not None]
    return {source["node"] for source in sources if source["node_scope"] == ON_ONE_MACHINE}


def place(hosts: Iterable[str], machines: Mapping[str, Machine], workspace: str, wanted: Sequence[Wanted]) -> Placement:
    """Return which of *hosts* may take a worker that mounts *wanted*, and in which order they are preferred.

    :param machines: what is known of the hosts, and of the machines that hold drives
    """
    # A source that is mounted twice, at two places, is one source: its copy needs its room once.
    once = {(one.name, one.ref.source_index): one for one in wanted}
    nodes = {name: machines.get(name) or machine(name, None) for name in holders(wanted)}
    drives = [(one, nodes.get(one.source["node"]) if one.source is not None else None) for one in once.values()]
    refused, candidates = [], []
    for host in sorted(set(hosts)):
        here = machines.get(host) or machine(host, None)
        reasons = why_not(here, workspace, drives)
        if reasons:
            refused.append(Verdict(host, tuple(reasons)))
        else:
            candidates.append((host, prefer(here, workspace, drives)))
    candidates.sort(key=lambda item: item[1].figures, reverse=True)  # a stable sort: equals stay in the order of names
    ranked = [
        Verdict(host, rank=rank, preferred=preference.words) for rank, (host, preference) in enumerate(candidates, 1)
    ]
    return Placement([*ranked, *refused])


def why_not(here: Machine, workspace: str, wanted: Iterable[tuple[Wanted, Machine | None]]) -> list[str]:
    """Return why a machine cannot take a worker, one reason a drive at least; nothing when it can."""
    reasons: list[str] = []
    room = _Room(here.data_location or {})
    for one, holder in wanted:
        if one.spec is None or one.source is None:
            reasons.append(f"drive {one.name} does not exist")
            continue
        scope, eligible = one.source["node_scope"], one.source["eligible_nodes"]
        if eligible and here.name not in eligible:
            reasons.append(f"drive {one.name}: source {one.ref.source_index} is not usable from machine {here.name}")
        elif scope == PLACED:
            reasons += _no_copy(here, copy_name(workspace, one.name), one, room)
        elif scope == SHARED and not here.shares(one.source["path"]):
            reasons.append(f"drive {one.name}: {one.source['path']} is not on a shared filesystem mounted here")
        elif scope == ON_ONE_MACHINE and holder is not None and holder.name != here.name:
            reasons += _out_of_reach(here, holder, one)
    return list(dict.fromkeys(reasons))


def _no_copy(here: Machine, copy: str, one: Wanted, room: _Room) -> list[str]:
    """Return why the machine cannot have a copy of a placed drive."""
    location = here.data_location
    if here.facts is None:
        return [f"machine {here.name} has not reported its storage yet; gather its facts"]
    if location is None:
        return [_choose(here.name)]
    if not location["available"]:
        return [f"the data location of {here.name} is not available: {location['path']} is not mounted, or not its own"]
    if here.holds(copy) or one.spec is None:
        return []
    return room.take(one.name, one.spec["size_hint_bytes"])


def _out_of_reach(here: Machine, holder: Machine, one: Wanted) -> list[str]:
    """Return why the machine cannot read a drive that is on another one."""
    if one.spec is not None and one.spec["transport"] == "Local":
        source = f"source {one.ref.source_index} is local to machine {holder.name}"
        return [f"drive {one.name}: {source} and its transport is Local"]
    if here.in_another_site(holder):
        return [f"drive {one.name} is on {holder.name}, in another site ({holder.labels['site']})"]
    return []


def _choose(host: str) -> str:
    return f"Choose where to keep data on {host}"


class _Room:
    """The room of a data location, from which each copy that the run would make takes its part. Unknown is None.

    What fills under way are still going to write is taken already.
    """

    def __init__(self, location: Mapping[str, Any]) -> None:
        free, used, reserved = (location.get(field) for field in ("free_bytes", "used_bytes", "reserved_bytes"))
        self._free = None if free is None else max(0, free - (reserved or 0))
        self._held = None if used is None else used + (reserved or 0)
        self._limit: int = location.get("max_bytes") or 0

    def take(self, drive: str, size: int) -> list[str]:
        """Take *size* bytes for a copy, or return why there is no room for it; 0 is unknown, and always fits."""
        short: list[str] = []
        if not size:
            return short
        if self._free is not None and size > self._free:
            free = decimal(self._free)
            short.append(f"drive {drive} needs {decimal(size)} at this machine's data location, {free} free")
        if self._limit and self._held is not None and self._held + size > self._limit:
            held = f"holds {decimal(self._held)} of its {decimal(self._limit)} limit"
            short.append(f"drive {drive} needs {decimal(size)}; this machine's data location {held}")
        if not short:
            self._free = None if self._free is None else self._free - size
            self._held = None if self._held is None else self._held + size
        return short
