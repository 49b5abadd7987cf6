# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Having room made, copies of deleted drives removed, and what lies aside put back: by children, one a data location.

What is done is decided in :mod:`stowaged.eviction_decision`; here it is seen what there is, done, and told.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable

from stowage_core import events
from stowage_core.copies import present as copies
from stowage_core.data_location import locations as data_locations
from stowage_core.data_location.locations import DataLocation, NotThere
from stowage_core.errors import StowageError, one_line
from stowage_core.eviction import evict as eviction
from stowage_core.eviction import plan as eviction_plan
from stowage_core.eviction import stop as eviction_stop
from stowage_core.places import Places
from stowage_core.sizes import Space, decimal
from stowage_core.trees.pace import Pace

from . import eviction_decision as decision
from . import settings, tables, use_service
from .children import Children, Ending, Message, Send
from .declared import DATA_LOCATION, Declared
from .eviction_decision import Decision, Known, Outcome, Seen
from .figures import Figures, eviction_key
from .filling import Fillings
from .loop import Timer
from .sections import Sections
from .settings import Settings
from .writer import Writer

SILENCE_S = 180.0
"""Longer than one look at all processes, or the write leases of a large copy, may take."""
RATE = 10_000.0
"""Files deleted per second at most."""


def terms(
    places: Places, location: DataLocation, before: Settings, chosen: Decision, making_room: bool
) -> tuple[DataLocation, eviction_plan.Settings]:
    """Return what a run may remove as it is declared now: never more than what was decided when it began.

    :param before: the settings that were in force then; they stay so while the new ones are wrong
    :param making_room: whether it goes on with what had begun before
    """
    present = data_locations.load(places)
    try:
        now = settings.load(places)
    except (StowageError, OSError):
        now = before
    is_present = present is not None and present.identity == location.identity
    if present is not None and is_present:
        location = present
    caches = chosen.caches and is_present and now.evict == "on"
    limits = replace(now.limits, caches=caches)
    if making_room:
        limits = replace(limits, start_free=limits.stop_free)
    return replace(location, max_bytes=location.max_bytes if caches and chosen.limit else 0), limits


def _deleted(declared: Declared) -> set[str]:
    return {drive.copy_name for drive in declared.drives if drive.absent}


@dataclass
class _Work:
    """A child at work in a data location."""

    chosen: Decision
    seen: Seen
    outcome: Outcome = field(default_factory=Outcome)
    aside: dict[str, str] = field(default_factory=dict)


@dataclass
class _Place:
    """What is known of a data location, and what was told of it."""

    location: DataLocation
    known: Known = field(default_factory=Known)
    work: _Work | None = None
    told: tuple[str, str] = ("", "")
    kept: dict[str, str] = field(default_factory=dict)
    """By copy, why it stays, as it was said last."""


class Evicting:
    """One child at a time in each data location; what is due is decided from figures that are there already."""

    def __init__(
        self,
        places: Places,
        children: Children,
        sections: Sections,
        figures: Figures,
        fillings: Fillings,
        holds: Callable[[str], bool | None],
        writer: Writer,
        say: Callable[[str], None],
        later: Callable[[float], Timer],
        mode: str,
    ) -> None:
        self._places = places
        self._children = children
        self._sections = sections
        self._figures = figures
        self._fillings = fillings
        self._holds = holds
        self._writer = writer
        self._say = say
        self._later = later
        self._mode = mode
        self._in_use = use_service.asking(places.use_socket)
        self._of: dict[str, _Place] = {}
        self._timer: Timer | None = None
        before = sections.last("evictions") or {}
        removed, removed_bytes = before.get("removed"), before.get("removed_bytes")
        self._removed: dict[str, int] = removed if isinstance(removed, dict) else {}
        self._removed_bytes = removed_bytes if isinstance(removed_bytes, int) else 0
        self._declared = Declared()
        self._plan: list[dict[str, Any]] = []
        self._plan_made: float | None = None
        self._planned: tuple[str, ...] = ()
        if before.get("mode", mode) != mode:
            self._writer.do(self._lift)

    def change_mode(self, mode: str) -> None:
        """Take on what an operator has decided anew: no copy goes any more that would not go under it."""
        if mode == self._mode:
            return
        self._mode = mode
        for place in self._of.values():
            place.known = decision.retried(place.known)
            if place.work is not None and place.work.chosen.caches:
                self._withdraw(place, place.work, f"stopped, because evict is {mode} now")
        self._writer.do(self._lift)

    def _withdraw(self, place: _Place, work: _Work, why: str) -> None:
        work.outcome = replace(work.outcome, withdrawn=True)
        self._children.stop(eviction_key(place.location), why)

    def _lift(self) -> str:
        """Let another try be made although removing did not help before."""
        try:
            eviction_stop.lift(self._places)
        except OSError as error:
            return one_line(error)
        return ""

    def decide(self, declared: Declared, configuration: Settings, answer: Message | None) -> None:
        """Start what is due, given what the data location just answered."""
        present = declared.data_location
        locations = {location.identity: location for location in declared.former}
        if present is not None:
            locations[present.identity] = present
        self._of = {identity: self._of.get(identity, _Place(one)) for identity, one in locations.items()}
        if _deleted(declared) - _deleted(self._declared):
            self._figures.hurry()  # their copies may have been made since copies were listed
            for place in self._of.values():
                if place.work is not None and place.work.chosen.action == decision.PLAN:
                    self._withdraw(place, place.work, "a plan was stopped, because a drive was deleted")
        until = float("inf")
        for identity, place in self._of.items():
            place.location = locations[identity]
            if declared is not self._declared:
                place.known = decision.retried(place.known)
            is_present = present is not None and identity == present.identity
            seen = (
                self._seen(place, declared, configuration, answer) if is_present else self._seen_former(place, declared)
            )
            place.known = decision.observed(seen, place.known)
            now = time.monotonic()
            chosen = decision.decide(seen, place.known, now)
            self._do(place, seen, chosen, configuration)
            place.known = decision.started(place.known, chosen, now)
            until = min(until, chosen.until)
            if is_present and not self._is_planned(seen, place):
                self._plan, self._plan_made, self._planned = [], None, ()
            self._tell_blocked(place)
        self._declared = declared
        self._wake_at(until)
        self.publish()

    def _is_planned(self, seen: Seen, place: _Place) -> bool:
        """Return whether there is any reason left for a plan."""
        wanted = seen.mode != "off" and seen.expired or decision.is_pressed(seen, place.known)
        return seen.there and (wanted or place.work is not None)

    def _wake_at(self, until: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._later(max(0.0, until - time.monotonic())) if until < float("inf") else None

    # -- What there is

    def _seen_former(self, place: _Place, declared: Declared) -> Seen:
        deleted = _deleted(declared)
        return Seen(
            mode=self._mode,
            former=True,
            busy=self._children.running(eviction_key(place.location)),
            deleted=bool(deleted),
            held=self._held(deleted),
        )

    def _held(self, names: set[str]) -> frozenset[str]:
        """Return which copies a lease holds, or may hold."""
        return frozenset(name for name in names if self._holds(name) is not False)

    def _seen(self, place: _Place, declared: Declared, configuration: Settings, answer: Message | None) -> Seen:
        # Another filesystem, or none, may be in its place: there is nothing that could be removed, or be planned.
        if answer is None or not answer["available"]:
            return Seen(mode=self._mode, there=False)
        location, space = place.location, Space.from_json(answer["filesystem"])
        coming = self._fillings.reserved_bytes(location)
        least = min(eviction_plan.free_fraction(space, coming), space.files_free_fraction)
        limits = configuration.limits
        deleted = _deleted(declared)
        return Seen(
            mode=self._mode,
            busy=self._children.running(eviction_key(location)),
            measuring=self._figures.measuring_copies,
            age=self._figures.copies_age(),
            below_start=least < limits.start_free,
            below_stop=least < limits.stop_free,
            close=least < limits.stop_free + decision.CLOSE,
            over_limit=bool(location.max_bytes) and self._figures.allocated() + coming > location.max_bytes,
            deleted=any(copy.name in deleted for copy in self._figures.copies()),
            held=self._held(deleted),
            expired=self._has_expired(declared, limits),
        )

    def _has_expired(self, declared: Declared, limits: eviction_plan.Settings) -> bool:
        """Return whether a copy was not used for as long as its drive says."""
        drives = {(drive.copy_name, drive.identity): drive for drive in declared.drives if drive.idle_ttl_s}
        found = [copy for copy in self._figures.copies() if drives and (copy.name, copy.identity) in drives]
        states = eviction_plan.assess(found, self._figures.copy_records() if found else {}, drives.values(), {})
        return any(eviction_plan.has_expired(state, limits) for state in states)

    # -- What is done

    def _do(self, place: _Place, seen: Seen, chosen: Decision, configuration: Settings) -> None:
        if chosen.action == decision.MEASURE:
            self._figures.hurry()
        elif chosen.action == decision.INTERRUPT:
            self._figures.make_way()
        elif chosen.action != decision.WAIT:
            self._start(place, seen, chosen, configuration)

    def _start(self, place: _Place, seen: Seen, chosen: Decision, configuration: Settings) -> None:
        location = place.location
        renew = partial(terms, self._places, location, configuration, chosen, place.known.making_room)
        known = {} if seen.former else self._figures.copy_records()
        place.work = _Work(chosen, seen)

        def body(send: Send) -> None:
            try:
                if chosen.action == decision.RECOVER:
                    eviction.recover(
                        self._places, location, caches=chosen.caches, rate=RATE, report=send, in_use=self._in_use
                    )
                elif chosen.action == decision.PLAN:
                    plan = eviction.current_plan(
                        self._places,
                        location,
                        configuration.limits,
                        figures=known,
                        pace=Pace(),
                        alive=lambda: send({}),
                    )
                    victims = [
                        {"copy": one.name, "reason": one.reason, "allocated": one.allocated} for one in plan.victims
                    ]
                    send({"plan": victims, "blocked": plan.blocked, "looked_at": plan.looked_at})
                else:
                    result = eviction.evict(
                        self._places, *renew(), renew=renew, figures=known, rate=RATE, report=send, in_use=self._in_use
                    )
                    found = {"blocked": result.blocked, "kept": len(result.kept), "removed": len(result.removed)}
                    send({"result": {**found, "waiting": result.waiting}})
            except NotThere:
                if not seen.former:
                    raise
                send({"absent": True})

        self._children.start(
            eviction_key(location), body, partial(self._take, place), partial(self._end, place), SILENCE_S
        )

    def _take(self, place: _Place, message: Message) -> None:
        """Take in a step of the work."""
        work = place.work
        if work is None:
            return
        step, name = message.get("step"), message.get("copy", "")
        if step == "planned" and work.chosen.caches:
            known = self._figures.copy_records()
            self._plan = [
                {"copy": name, "reason": reason, "allocated": (known[name].allocated or 0) if name in known else 0}
                for name, reason in zip(message["victims"], message["reasons"])
            ]
            self._plan_made = time.time()
        elif step == "emptied":
            work.aside.pop(name, None)
            self._count(place, message)
        elif step == "put back":
            work.aside.pop(name, None)
            self._say(f"copy {name}: put back")
        elif step in ("kept aside", "left"):
            what = message["why"] if step == "kept aside" else f"could not be deleted: {message['why']}"
            work.aside[name] = what
            self._tell_aside(place, name, what)
        elif step in ("kept", "foreign"):
            self._say_kept(place, name, message["why"])
        elif "plan" in message:
            self._plan, self._plan_made = message["plan"], time.time()
            self._note_plan(place.location.path)
            work.outcome = replace(work.outcome, blocked=message["blocked"], looked_at=message["looked_at"])
        elif "absent" in message:
            work.outcome = replace(work.outcome, absent=True)
        elif "result" in message:
            work.outcome = replace(work.outcome, **message["result"])
        if step in ("planned", "emptied"):
            self.publish()

    def _count(self, place: _Place, message: Message) -> None:
        name, reason = message["copy"], message["reason"]
        place.kept.pop(name, None)
        self._removed[reason] = self._removed.get(reason, 0) + 1
        self._removed_bytes += message.get("allocated") or 0
        self._say(f"copy {name}: removed: {message.get('why', eviction_plan.REASONS[reason])}")
        if place.work is not None and not place.work.seen.former:
            self._figures.removed(name)
            self._plan = [one for one in self._plan if one["copy"] != name]

    def _end(self, place: _Place, ending: Ending) -> None:
        work, place.work = place.work, None
        if work is None:
            return
        outcome = replace(work.outcome, aside=work.aside)
        if outcome.withdrawn:
            self._say(f"eviction: {ending.error}")
        elif ending.error:
            what = f"no progress for {SILENCE_S:g} s" if ending.silent else ending.error
            outcome = replace(outcome, error=what)
        if work.chosen.action == decision.REMOVE:
            if work.chosen.caches:
                self._plan, self._plan_made = [], None
            if not (outcome.error or outcome.absent or outcome.withdrawn):
                self._tell_waiting(place, outcome.waiting)
        place.known = decision.ended(work.seen, place.known, work.chosen, outcome, time.monotonic())
        self._tell_blocked(place)
        self.publish()
        self._wake_at(0.0)

    # -- What is told

    def _note_plan(self, path: str) -> None:
        names = tuple(one["copy"] for one in self._plan)
        if names and names != self._planned:
            total = decimal(sum(one["allocated"] for one in self._plan))
            first = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            self._tell("EvictionPlanned", f"{path}: {tables.copies(len(names))} ({total}) would be removed: {first}")
        self._planned = names

    def _tell_blocked(self, place: _Place) -> None:
        """Say that copies cannot go, and that they can again; how many are short changes with every look."""
        before, now = place.told, decision.blocked(place.known)
        kind, why = now
        if kind and (kind != before[0] or (kind == decision.FAILED and why != before[1])):
            what = f"copies cannot be removed: {why}" if kind == decision.FAILED else why
            self._tell("EvictionBlocked", f"{place.location.path}: {what}")
        elif before[0] and not kind:
            self._tell("EvictionUnblocked", f"{place.location.path}: eviction is not blocked any more")
        place.told = now

    def _tell_waiting(self, place: _Place, waiting: Mapping[str, str]) -> None:
        for name, why in waiting.items():
            if name not in place.known.waiting:
                message = f"Copy stays on {place.location.host} although its drive was deleted: {why}"
                self._record_of("DeletionWaits", copies.described(name), message)
            self._say_kept(place, name, why)

    def _tell_aside(self, place: _Place, name: str, why: str) -> None:
        if name not in place.known.aside:
            self._record_of("CopyAside", copies.described(name), f"Copy on {place.location.host}: {why}")
        self._say_kept(place, name, why)

    def _say_kept(self, place: _Place, name: str, why: str) -> None:
        if place.kept.get(name) != why:
            place.kept[name] = why
            self._say(f"copy {name}: stays: {why}{self._where(place)}")

    def _where(self, place: _Place) -> str:
        present = self._declared.data_location
        is_present = present is not None and present.identity == place.location.identity
        return "" if is_present else f" (in the earlier data location {place.location.path})"

    def _tell(self, reason: str, message: str) -> None:
        self._say(message)
        self._record_of(reason, DATA_LOCATION, message)

    def _record_of(self, reason: str, object_name: str, message: str) -> None:
        self._writer.do(partial(self._record, reason, object_name, message, time.time()))

    def _record(self, reason: str, object_name: str, message: str, when: float) -> str:
        recorded = events.record(self._places, object=object_name, reason=reason, message=message, time=when)
        return "" if recorded else f"{self._places.events}: the event {reason} could not be recorded"

    def publish(self) -> None:
        kind, why = "", ""
        waiting: dict[str, str] = {}
        aside = []
        # The present data location is the last one: it has the last word.
        for place in self._of.values():
            where = self._where(place)
            of_place = decision.blocked(place.known)
            if of_place[0]:
                kind, why = of_place[0], of_place[1] + where
            waiting.update({name: text + where for name, text in place.known.waiting.items()})
            aside += [
                {"copy": name, "location": place.location.path, "why": text}
                for name, text in sorted(place.known.aside.items())
            ]
        self._sections.put(
            "evictions",
            {
                "mode": self._mode,
                "removed": self._removed,
                "removed_bytes": self._removed_bytes,
                "blocked": bool(kind),
                "reason": kind,
                "why": why,
                "plan": self._plan,
                "plan_made": self._plan_made,
                "waiting": waiting,
                "aside": aside,
            },
        )
