# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Seeing that room has to be made, saying so, and letting a child make it where the operator has opted in.

A copy of a drive that was deleted goes in every mode: the operator asked for that. Copies of cache drives go only with
``evict: on``; with ``plan`` it is said which would go.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Callable

from stowage_core import copies, events, eviction, eviction_plan, eviction_stop
from stowage_core.copies import CopyRecord
from stowage_core.data_locations import DataLocation, NotThere
from stowage_core.errors import StowageError, one_line
from stowage_core.places import Places
from stowage_core.sizes import Space, decimal

from . import tables, use_service
from .children import Children, Ending, Message, Send
from .declared import DATA_LOCATION, Declared
from .figures import Figures, eviction_key
from .filling import Fillings
from .sections import Sections
from .settings import Settings
from .writer import Writer

SILENCE_S = 180.0
"""Longer than one look at all processes, or the write leases of a large copy, may take."""
RETRY_S = 60.0
"""How long nothing is tried again after a run that did not reach its mark."""
RETRY_DELETED_S = 300.0
FRESH_S = 60.0
"""How old the sizes of copies may be when some are chosen: with older ones more would go than has to."""
PLAN_S = 30.0
RATE = 10_000.0
"""Files deleted per second at most."""


def without_marks(limits: eviction_plan.Settings) -> eviction_plan.Settings:
    """Return limits under which, without a limit of bytes, all that is left to go are copies of deleted drives."""
    return replace(limits, start_free=0.0, stop_free=0.0, expire=False)


def with_last_use(places: Places, figures: Mapping[str, CopyRecord]) -> tuple[dict[str, CopyRecord], dict[str, str]]:
    """Return the figures with the last use of each copy as it is recorded now, and why copies must stay.

    A copy whose last use cannot be read is not one that was never used.
    """
    found, unknown = {}, {}
    for name, one in figures.items():
        try:
            record = copies.load_record(places, name)
        except StowageError as error:
            found[name], unknown[name] = one, str(error)
            continue
        recorded = record.last_used if record is not None and record.identity == one.identity else None
        uses = [use for use in (one.last_used, recorded) if use is not None]
        found[name] = replace(one, last_used=max(uses, default=None))
    return found, unknown


class Evicting:
    """One run at a time in each data location; whether one is due is decided from figures that are there already."""

    def __init__(
        self,
        places: Places,
        children: Children,
        sections: Sections,
        figures: Figures,
        fillings: Fillings,
        writer: Writer,
        say: Callable[[str], None],
        soon: Callable[[], None],
        mode: str,
    ) -> None:
        self._places = places
        self._children = children
        self._sections = sections
        self._figures = figures
        self._fillings = fillings
        self._writer = writer
        self._say = say
        self._soon = soon
        self._mode = mode
        self._in_use = use_service.asking(places.use_socket)
        self._recovered: str | None = None
        self._under_way = False
        self._making_room = ""
        """The key of the child that removes what ``evict: on`` lets go, while it does."""
        self._wait_until = 0.0
        self._hurried = float("-inf")
        self._swept = float("-inf")
        before = sections.last("evictions") or {}
        removed, removed_bytes = before.get("removed"), before.get("removed_bytes")
        self._removed: dict[str, int] = removed if isinstance(removed, dict) else {}
        self._removed_bytes = removed_bytes if isinstance(removed_bytes, int) else 0
        self._declared = Declared()
        self._waiting: dict[str, str] = {}
        self._plan: list[dict[str, Any]] = []
        self._plan_made: float | None = None
        self._planned: tuple[str, ...] = ()
        self._blocked = ""
        self._kept: dict[str, str] = {}
        if before.get("mode", mode) != mode:
            self._writer.do(self._lift)

    def change_mode(self, mode: str) -> None:
        """Take on what an operator has decided anew: no copy goes any more that would not go under it."""
        if mode == self._mode:
            return
        self._mode = mode
        self._wait_until = 0.0
        if self._making_room and mode != "on":
            self._children.stop(self._making_room, f"stopped, because evict is {mode} now")
            self._making_room = ""
        self._writer.do(self._lift)

    def _lift(self) -> str:
        """Let another try be made although removing did not help before."""
        try:
            eviction_stop.lift(self._places)
        except OSError as error:
            return one_line(error)
        return ""

    def decide(self, declared: Declared, configuration: Settings, answer: Message | None) -> None:
        """Start what is due, given what the data location just answered."""
        location = declared.data_location
        if declared is not self._declared:
            self._declared, self._wait_until = declared, 0.0  # what was in the way may not be any more
        if location is None or answer is None or not answer["available"]:
            # Another filesystem, or none, is in its place: there is nothing that could be removed, or be planned.
            self._settle()
        elif not self._children.running(eviction_key(location)) and not self._figures.measuring_copies:
            if self._recovered != location.identity:
                if time.monotonic() >= self._wait_until:
                    self._recover(location)
            elif self._figures.copies_known:
                self._act(location, declared, configuration, answer["filesystem"])
        self._sweep_former(declared, configuration)
        self.publish()

    def _sweep_former(self, declared: Declared, configuration: Settings) -> None:
        """Now and then, while there are deleted drives, remove their copies from earlier data locations too."""
        if not any(drive.absent for drive in declared.drives) or time.monotonic() - self._swept < RETRY_DELETED_S:
            return
        self._swept = time.monotonic()
        for location in declared.former:
            if not self._children.running(eviction_key(location)):
                body = partial(self._remove_deleted, location, without_marks(configuration.limits))
                self._children.start(eviction_key(location), body, self._take_former, self._end_former, SILENCE_S)

    def _remove_deleted(self, location: DataLocation, limits: eviction_plan.Settings, send: Send) -> None:
        try:
            former = replace(location, max_bytes=0)
            eviction.evict(self._places, former, limits, rate=RATE, report=send, in_use=self._in_use)
        except NotThere as error:
            send({"step": "left", "copy": "any", "why": str(error)})

    def _take_former(self, message: Message) -> None:
        if message.get("step") == "emptied":
            self._count(message)
        elif message.get("step") in ("kept", "left"):
            self._say(f"copy {message['copy']}: stays in an earlier data location: {message['why']}")

    def _end_former(self, ending: Ending) -> None:
        if ending.error:
            self._say(f"removing copies of deleted drives from earlier data locations: {ending.error}")

    def _act(
        self, location: DataLocation, declared: Declared, configuration: Settings, filesystem: Mapping[str, Any]
    ) -> None:
        gone = {drive.copy_name for drive in declared.drives if drive.absent}
        deleted = any(copy.name in gone for copy in self._figures.copies())
        self._under_way = self._under_way and configuration.evict == "on"
        limits = configuration.limits
        pressed = configuration.evict != "off" and self._is_pressed(location, filesystem)
        expired = configuration.evict != "off" and self._has_expired(declared, limits)
        if not pressed:
            self._settle(expired)
        if not deleted:
            self._waiting = {}
        if not (deleted or pressed or expired) or time.monotonic() < self._wait_until:
            return
        if configuration.evict == "on" and pressed:
            if self._under_way:
                limits = replace(limits, start_free=limits.stop_free)
            if self._figures.copies_age() > FRESH_S:
                if time.monotonic() - self._hurried > FRESH_S:
                    self._hurried = time.monotonic()
                    self._figures.hurry()
            else:
                self._start(location, limits, True)
        elif configuration.evict == "on" and expired:
            self._start(replace(location, max_bytes=0), replace(without_marks(limits), expire=True), False)
        elif deleted:
            self._start(replace(location, max_bytes=0), without_marks(limits), False)
        else:
            self._start_plan(location, limits)

    def _is_pressed(self, location: DataLocation, filesystem: Mapping[str, Any]) -> bool:
        space = Space.from_json(filesystem)
        limits = eviction_plan.Settings()
        mark = limits.stop_free if self._under_way else limits.start_free
        coming = self._fillings.reserved_bytes(location)
        over = location.max_bytes and self._figures.allocated() + coming > location.max_bytes
        free = eviction_plan.free_fraction(space, coming)
        return bool(over) or free < mark or space.files_free_fraction < mark

    def _has_expired(self, declared: Declared, limits: eviction_plan.Settings) -> bool:
        """Return whether a copy was not used for as long as its drive says."""
        drives = {(drive.copy_name, drive.identity): drive for drive in declared.drives if drive.idle_ttl_s}
        found = [copy for copy in self._figures.copies() if drives and (copy.name, copy.identity) in drives]
        states = eviction_plan.assess(found, self._figures.copy_records() if found else {}, drives.values(), {})
        return any(eviction_plan.has_expired(state, limits, time.time()) for state in states)

    def _settle(self, planned: bool = False) -> None:
        """Room need not be made, or cannot.

        :param planned: whether copies may be planned to go for another reason
        """
        self._under_way = False
        if not planned:
            self._plan, self._plan_made = [], None
            self._planned = ()
        self._note_blocked("", "")

    # -- Children

    def _recover(self, location: DataLocation) -> None:
        def body(send: Send) -> None:
            eviction.recover(self._places, location, empty=True, rate=RATE, report=send, in_use=self._in_use)

        def end(ending: Ending) -> None:
            if ending.error:
                self._say(f"finishing an earlier eviction: {ending.error}")
                self._wait_until = time.monotonic() + RETRY_S
            else:
                self._recovered = location.identity
                self._soon()

        self._children.start(eviction_key(location), body, self._take, end, SILENCE_S)

    def _start(self, location: DataLocation, limits: eviction_plan.Settings, by_pressure: bool) -> None:
        known = self._figures.copy_records()

        def body(send: Send) -> None:
            figures, unknown = with_last_use(self._places, known)
            result = eviction.evict(
                self._places,
                location,
                limits,
                figures=figures,
                kept=unknown,
                rate=RATE,
                report=send,
                in_use=self._in_use,
            )
            found = {"blocked": result.blocked, "kept": len(result.kept), "removed": len(result.removed)}
            send({"result": {**found, "waiting": result.waiting}})

        def end(ending: Ending) -> None:
            stopped = (by_pressure or limits.expire) and not self._making_room
            self._making_room = ""
            if ending.error:
                self._say(f"eviction: {ending.error}")
                self._wait_until = 0.0 if stopped else time.monotonic() + RETRY_S
                self._recovered = None

        key = eviction_key(location)
        if by_pressure:
            self._under_way = True
        if by_pressure or limits.expire:
            self._making_room = key
        self._children.start(key, body, lambda message: self._take(message, location.path, by_pressure), end, SILENCE_S)

    def _start_plan(self, location: DataLocation, limits: eviction_plan.Settings) -> None:
        known = self._figures.copy_records()

        def body(send: Send) -> None:
            figures, unknown = with_last_use(self._places, known)
            plan = eviction.current_plan(self._places, location, limits, figures=figures, kept=unknown)
            victims = [{"copy": one.name, "reason": one.reason, "allocated": one.allocated} for one in plan.victims]
            send({"plan": victims, "blocked": plan.blocked})

        def take(message: Message) -> None:
            self._plan, self._plan_made = message["plan"], time.time()
            self._note_plan(location.path)
            self._note_blocked(message["blocked"], location.path)

        def end(ending: Ending) -> None:
            if ending.error:
                self._say(f"planning an eviction: {ending.error}")

        self._wait_until = time.monotonic() + PLAN_S
        self._children.start(eviction_key(location), body, take, end, SILENCE_S)

    def _take(self, message: Message, path: str = "", by_pressure: bool = False) -> None:
        """Take in a step of a run."""
        step = message.get("step")
        if step == "planned":
            known = self._figures.copy_records()
            self._plan = [
                {"copy": name, "reason": reason, "allocated": (known[name].allocated or 0) if name in known else 0}
                for name, reason in zip(message["victims"], message["reasons"])
            ]
            self._plan_made = time.time()
        elif step == "emptied":
            self._count(message)
            self._figures.removed(message["copy"])
            self._plan = [one for one in self._plan if one["copy"] != message["copy"]]
        elif step in ("kept", "kept aside", "foreign", "left"):
            if self._kept.get(message["copy"]) != message["why"]:
                self._kept[message["copy"]] = message["why"]
                self._say(f"copy {message['copy']}: stays: {message['why']}")
        elif step == "put back":
            self._say(f"copy {message['copy']}: put back")
        elif "result" in message:
            self._finish(message["result"], path, by_pressure)
        if step in ("planned", "emptied"):
            self.publish()

    def _count(self, message: Message) -> None:
        reason = message["reason"]
        self._kept.pop(message["copy"], None)
        self._removed[reason] = self._removed.get(reason, 0) + 1
        self._removed_bytes += message.get("allocated") or 0
        self._say(f"copy {message['copy']}: removed: {message.get('why', eviction_plan.REASONS[reason])}")

    def _finish(self, result: Mapping[str, Any], path: str, by_pressure: bool) -> None:
        self._plan, self._plan_made = [], None
        self._waiting = result["waiting"]
        if by_pressure:
            self._note_blocked(result["blocked"], path)
        if result["blocked"] or result["kept"] or not result["removed"]:
            # What is deleted by force is let go by its workers' leases meanwhile, and what is too fresh grows older.
            soon = by_pressure or not result["kept"] or any(drive.force for drive in self._declared.drives)
            self._wait_until = time.monotonic() + (RETRY_S if soon else RETRY_DELETED_S)

    # -- What is said about it

    def _note_plan(self, path: str) -> None:
        names = tuple(one["copy"] for one in self._plan)
        if names and names != self._planned:
            total = decimal(sum(one["allocated"] for one in self._plan))
            first = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            self._tell("EvictionPlanned", f"{path}: {tables.copies(len(names))} ({total}) would be removed: {first}")
        self._planned = names

    def _note_blocked(self, blocked: str, path: str) -> None:
        if blocked and not self._blocked:
            self._tell("EvictionBlocked", f"{path}: {blocked}")
        elif self._blocked and not blocked:
            self._say("eviction is not blocked any more")
        self._blocked = blocked

    def _tell(self, reason: str, message: str) -> None:
        self._say(message)
        self._writer.do(partial(self._record, reason, message, time.time()))

    def _record(self, reason: str, message: str, when: float) -> str:
        recorded = events.record(self._places, object=DATA_LOCATION, reason=reason, message=message, time=when)
        return "" if recorded else f"{self._places.events}: the event {reason} could not be recorded"

    def publish(self) -> None:
        self._sections.put(
            "evictions",
            {
                "mode": self._mode,
                "removed": self._removed,
                "removed_bytes": self._removed_bytes,
                "blocked": bool(self._blocked),
                "why": self._blocked,
                "plan": self._plan,
                "plan_made": self._plan_made,
                "waiting": self._waiting,
            },
        )
