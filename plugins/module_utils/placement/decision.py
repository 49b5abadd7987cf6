# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a run may start, and why not elsewhere: Astraeus's placement over what the machines have reported.

The reasons are those of Astraeus's drives, word for word. Some are Stowage's own, for what is certain to fail and has
no reason there: a machine that does not answer or that nothing is known of, and a data location that is not mounted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ..drives import reasons
from ..drives.declared import ON_ONE_MACHINE, PLACED, SHARED, copy_name
from ..drives.reasons import CHOOSE_ON_SEVERAL, Reason
from ..drives.refs import Wanted
from ..network_mounts.transport import NotReported, NoWay, decide
from ..sizes import decimal
from .machines import Machine, machine
from .ranking import prefer

Asked = Union[Sequence[Wanted], Reason]
"""What a worker would mount on a machine, or why that is wrong whatever the machine has."""


@dataclass(frozen=True)
class Verdict:
    """Whether one machine may take the run."""

    host: str
    reasons: tuple[Reason, ...] = ()
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
            "reasons": [reason.text for reason in self.reasons],
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
        """Each kind of reason with the machines that it is true of, the most frequent first.

        What differs from machine to machine is told of all of them in one line.
        """
        kinds: dict[str, list[tuple[str, Reason]]] = {}
        for verdict in self.verdicts:
            for reason in verdict.reasons:
                kinds.setdefault(reason.several or reason.text, []).append((verdict.host, reason))
        told = [
            (_told([reason for _host, reason in kind]), [host for host, _reason in kind]) for kind in kinds.values()
        ]
        return sorted(told, key=lambda item: (-len(item[1]), item[0]))

    @property
    def waiting(self) -> list[str]:
        """Why the run waits, in Astraeus's words, the most frequent first; nothing while there is a candidate."""
        if self.candidates:
            return []
        found = [reason for verdict in self.verdicts for reason in verdict.reasons]
        choosing = {reason.text for reason in found if reason.several == CHOOSE_ON_SEVERAL}
        several = choosing if len(choosing) > 1 else set()
        counted = Counter(CHOOSE_ON_SEVERAL if reason.text in several else reason.text for reason in found)
        return sorted(counted, key=lambda text: (-counted[text], text))

    def to_json(self) -> dict[str, Any]:
        return {
            "candidates": self.candidates,
            "hosts": {verdict.host: verdict.to_json() for verdict in self.verdicts},
            "refused": [{"reason": reason, "hosts": hosts} for reason, hosts in self.refused],
            "waiting": self.waiting,
        }


def _told(kind: Sequence[Reason]) -> str:
    """Return reasons of one kind in one line."""
    if len({reason.text for reason in kind}) == 1:
        return kind[0].text
    amounts = [reason.amount for reason in kind]
    return kind[0].several.format(count=len(kind), least=decimal(min(amounts)), most=decimal(max(amounts)))


def holders(wanted: Iterable[Wanted]) -> set[str]:
    """Return the names of the machines that drives on one machine are on: they count although no run goes there."""
    sources = [one.source for one in wanted if one.source is not None]
    return {source["node"] for source in sources if source["node_scope"] == ON_ONE_MACHINE}


def place(asked: Mapping[str, Asked], machines: Mapping[str, Machine], workspace: str) -> Placement:
    """Return which hosts may take a worker, and in which order they are preferred.

    :param asked: what the worker would mount on each host; mostly one and the same list
    :param machines: what is known of the hosts, and of the machines that hold drives
    """
    known: dict[int, list[tuple[Wanted, Machine | None]]] = {}
    refused, candidates = [], []
    for host in sorted(asked):
        here, wanted = machines.get(host) or machine(host, None), asked[host]
        if isinstance(wanted, Reason):
            refused.append(Verdict(host, (wanted,)))
            continue
        drives = known.get(id(wanted))
        if drives is None:
            drives = known[id(wanted)] = _with_holders(wanted, machines)
        why = why_not(here, workspace, drives)
        if why:
            refused.append(Verdict(host, tuple(why)))
        else:
            candidates.append((host, prefer(here, workspace, drives)))
    candidates.sort(key=lambda item: item[1].figures, reverse=True)  # a stable sort: equals stay in the order of names
    ranked = [
        Verdict(host, rank=rank, preferred=preference.words) for rank, (host, preference) in enumerate(candidates, 1)
    ]
    return Placement([*ranked, *refused])


def _with_holders(wanted: Sequence[Wanted], machines: Mapping[str, Machine]) -> list[tuple[Wanted, Machine | None]]:
    """Return each source once, with the machine that it is on where it is on one machine."""
    # A source that is mounted twice, at two places, is one source: its copy needs its room once.
    once = {(one.name, one.ref.source_index): one for one in wanted}
    nodes = {name: machines.get(name) or machine(name, None) for name in holders(wanted)}
    return [(one, nodes.get(one.source["node"]) if one.source is not None else None) for one in once.values()]


def why_not(here: Machine, workspace: str, wanted: Iterable[tuple[Wanted, Machine | None]]) -> list[Reason]:
    """Return why a machine cannot take a worker, one reason a drive at least; nothing when it can."""
    if not here.up:
        return [Reason("", f"machine {here.name} did not answer", "{count} machines did not answer")]
    found: list[Reason] = []
    room = _Room(here.data_location or {})
    for one, holder in wanted:
        if one.spec is None or one.source is None:
            found.append(Reason("", f"drive {one.name} does not exist"))
            continue
        scope, eligible = one.source["node_scope"], one.source["eligible_nodes"]
        if eligible and here.name not in eligible:
            found.append(reasons.not_usable(one.name, one.ref.source_index, here.name))
        elif scope == PLACED:
            found += _no_copy(here, copy_name(workspace, one.name), one, room)
        elif scope == SHARED and not here.shares(one.source["path"]):
            found.append(reasons.not_shared_here(one.name, one.source["path"]))
        elif scope == ON_ONE_MACHINE and holder is not None and holder.name != here.name:
            found += _out_of_reach(here, holder, one)
    return list(dict.fromkeys(found))


def _no_copy(here: Machine, copy: str, one: Wanted, room: _Room) -> list[Reason]:
    """Return why the machine cannot have a copy of a placed drive."""
    location = here.data_location
    if here.facts is None:
        return [reasons.not_reported(here.name)]
    if location is None:
        return [reasons.choose_data_location(here.name)]
    if not location["available"]:
        rule = f"the data location of {here.name} is not available: {location['path']} is not mounted, or not its own"
        several = "the data locations of {count} machines are not available: not mounted, or not their own"
        return [Reason("", rule, several)]
    if here.holds(copy) or one.spec is None:
        return []
    return room.take(one.name, one.spec["size_hint_bytes"])


def _out_of_reach(here: Machine, holder: Machine, one: Wanted) -> list[Reason]:
    """Return why the machine cannot read a drive that is on another one, as far as anything is known of both."""
    there = holder if holder.up else holder._replace(facts=None)  # what it had says nothing of when it is up again
    try:
        decide(str((one.spec or {})["transport"]), there, here, one.name, one.ref.source_index)
    except NotReported:
        pass  # who prepares the run looks at both first
    except NoWay as error:
        return [error.reason]
    return []


class _Room:
    """The room of a data location, from which each copy that the run would make takes its part. Unknown is None.

    What fills under way are still going to write is taken already.
    """

    def __init__(self, location: Mapping[str, Any]) -> None:
        free, used, reserved = (location.get(field) for field in ("free_bytes", "used_bytes", "reserved_bytes"))
        self._free = None if free is None else max(0, free - (reserved or 0))
        self._held = None if used is None else used + (reserved or 0)
        self._limit: int = location.get("max_bytes") or 0

    def take(self, drive: str, size: int) -> list[Reason]:
        """Take *size* bytes for a copy, or return why there is no room for it; 0 is unknown, and always fits."""
        short: list[Reason] = []
        if not size:
            return short
        needs, here = f"drive {drive} needs {decimal(size)}", "this machine's data location"
        several = f"{needs} at {here}: {{count}} hosts have between {{least}} and {{most}}"
        if self._free is not None and size > self._free:
            rule = f"{needs} at {here}, {decimal(self._free)} free"
            short.append(Reason("", rule, f"{several} free", self._free))
        if self._limit and self._held is not None and self._held + size > self._limit:
            rule = f"{needs}; {here} holds {decimal(self._held)} of its {decimal(self._limit)} limit"
            short.append(Reason("", rule, f"{several} left of their limit", max(0, self._limit - self._held)))
        if not short:
            self._free = None if self._free is None else self._free - size
            self._held = None if self._held is None else self._held + size
        return short
