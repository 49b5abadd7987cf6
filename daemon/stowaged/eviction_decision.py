# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done now about the copies in one data location: a decision that looks at nothing itself.

``decide`` is given what is seen of a data location and what came of earlier work, and returns one action. ``observed``,
``started`` and ``ended`` take in what has changed, and return what is known then; ``blocked`` is what an operator is
told of it. Each part of the work has its own time for the next try, so that none that is in vain hides another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stowage_core.eviction.stop import STOPPED

WAIT, RECOVER, REMOVE, PLAN, MEASURE, INTERRUPT = "wait", "recover", "remove", "plan", "measure", "interrupt"
"""The actions: nothing; put back and finish what lies aside; remove copies; say which would go; let copies be measured
now; end their measurement, which holds them open."""

DELETED, EXPIRED, ROOM = "deleted", "expired", "room"
"""What copies are removed for; with the actions ``recover`` and ``plan`` the parts of the work."""

NEVER = float("-inf")
LOOK_S = 60.0
"""How often it is looked for what lies aside."""
RETRY_S = 60.0
"""How long nothing is tried again after work that did not reach its mark, or failed."""
KEPT_S = 300.0
"""The same where only leases are in the way, whose end is seen, where only the end of a use can change anything about
copies that nobody asked to be removed, and where a data location is not there."""
FRESH_S = 60.0
"""How old the sizes of copies may be when all that they take decides: the limit of the data location."""
PLAN_S = 30.0
"""How long a plan stands for which no files had to be looked at; another one does until copies are measured again."""
CLOSE = 0.05
"""How far above the mark at which eviction ends a disk's free fraction is close: bursts soon fill such a disk."""
CLOSE_S = 5.0
"""How long nothing is looked at while it is close: a burst waits for that, and not for the daemon's whole cycle."""


@dataclass(frozen=True)
class Seen:
    """One data location, and what the operator wants, as it is now."""

    mode: str = "plan"
    there: bool = True
    """Whether it answers and is the one that was chosen. Of a former one only the work itself finds out."""
    former: bool = False
    busy: bool = False
    """Whether a child is at work on its copies."""
    measuring: bool = False
    age: float = float("inf")
    """How many seconds ago the copies were measured to the end; infinite when never since the daemon was started."""
    below_start: bool = False
    """Whether so little is free that eviction begins."""
    below_stop: bool = False
    """Whether less is free than what it goes on to."""
    close: bool = False
    """Whether so little more is free than what eviction goes on to that a burst of writes may soon take it."""
    over_limit: bool = False
    deleted: bool = False
    """Whether there are copies of deleted drives, or may be."""
    held: frozenset[str] = frozenset()
    """The copies of deleted drives that leases hold, or may hold."""
    expired: bool = False


@dataclass(frozen=True)
class Known:
    """What came of earlier work in a data location."""

    recovered: bool = False
    """Whether what lay aside has been looked after since the location is there, and since work there was cut short."""
    making_room: bool = False
    """Whether room is being made: that goes on beyond the mark at which it began."""
    due: Mapping[str, float] = field(default_factory=dict)
    """When each part of the work may be tried next; one that is not in it may be at once."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Why each part of the work could not be done, the last time that it was tried."""
    short: str = ""
    """Why the mark cannot be reached, as it was found last."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Why copies of deleted drives are still there, by name."""
    held: frozenset[str] = frozenset()
    """The copies of deleted drives that leases held when it was looked last."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Why copies still lie aside, by name."""
    asked: float = NEVER
    """When a measurement was asked for."""
    looked_at: float = float("inf")
    """When the last plan had been made, if files of copies were looked at for it; else infinite."""
    interrupted: float = NEVER
    """When a measurement was ended."""


@dataclass(frozen=True)
class Decision:
    """One action."""

    action: str
    parts: frozenset[str] = frozenset()
    """What it is for."""
    until: float = float("inf")
    """When something is due that is not now; infinite when something has to change first."""
    caches: bool = False
    """Whether copies may go that nobody asked to be removed."""
    limit: bool = False
    """Whether the sizes of copies are known well enough to hold them against the location's limit."""


@dataclass(frozen=True)
class Outcome:
    """How an action ended."""

    error: str = ""
    withdrawn: bool = False
    """Whether it was ended because the operator wants something else now."""
    absent: bool = False
    """Whether the data location was not there, so that nothing was done."""
    blocked: str = ""
    looked_at: int = 0
    """Of how many copies the files were looked at for a plan."""
    removed: int = 0
    kept: int = 0
    waiting: Mapping[str, str] = field(default_factory=dict)
    aside: Mapping[str, str] = field(default_factory=dict)


# -- What is wanted


def is_pressed(seen: Seen, known: Known) -> bool:
    """Return whether room has to be made."""
    return seen.mode != "off" and not seen.former and (seen.over_limit or _is_urgent(seen, known))


def _is_urgent(seen: Seen, known: Known) -> bool:
    """Return whether the disk fills up: that does not wait for a measurement."""
    return seen.below_stop if known.making_room and seen.mode == "on" else seen.below_start


def _wanted(seen: Seen, known: Known) -> dict[str, bool]:
    """Return which parts of the work there is any reason for."""
    pressed, on = is_pressed(seen, known), seen.mode == "on"
    expired = seen.expired and seen.mode != "off" and not seen.former
    return {
        RECOVER: True,
        DELETED: seen.deleted,
        EXPIRED: expired and on,
        ROOM: pressed and on,
        PLAN: (pressed or expired) and seen.mode == "plan",
    }


def decide(seen: Seen, known: Known, now: float) -> Decision:
    """Return what is done now."""
    if not seen.there or seen.busy:
        return Decision(WAIT)
    caches = seen.mode == "on" and not seen.former
    wanted = {part for part, is_wanted in _wanted(seen, known).items() if is_wanted}
    due = {part for part in wanted if known.due.get(part, NEVER) <= now}
    if PLAN in wanted and now - seen.age > known.looked_at:
        due.add(PLAN)
    until = [known.due[part] for part in wanted - due] + ([now + CLOSE_S] if seen.close and caches else [])
    rest = Decision(WAIT, until=min(until, default=float("inf")))
    if not known.recovered:
        return Decision(RECOVER, frozenset({RECOVER}), caches=caches) if RECOVER in due else rest
    if seen.age == float("inf") and ROOM in known.due:
        wanted.discard(ROOM)  # what could go by the last sizes that are recorded has gone
        due.discard(ROOM)
    elif ROOM in wanted and not _is_urgent(seen, known) and seen.age > FRESH_S:
        wanted.discard(ROOM)
        if ROOM in due and not seen.measuring and now - known.asked > FRESH_S:
            return Decision(MEASURE)
        due.discard(ROOM)
    parts = wanted & {DELETED, EXPIRED, ROOM}
    if parts & due:
        if not seen.measuring:
            return Decision(REMOVE, frozenset(parts), caches=caches, limit=seen.age <= FRESH_S)
        # Once for each measurement that came to its end: else none ever would while nothing can go.
        if ROOM in due and seen.age < float("inf") and known.interrupted <= now - seen.age:
            return Decision(INTERRUPT)
    if PLAN in due and seen.age < float("inf"):
        return Decision(PLAN, frozenset({PLAN}), caches=True, limit=True)
    return Decision(RECOVER, frozenset({RECOVER}), caches=caches) if RECOVER in due else rest


# -- What becomes of it


def observed(seen: Seen, known: Known) -> Known:
    """Return what is known once there is no reason any more for some parts of the work, or to wait with one."""
    if not seen.there:
        return Known(aside=known.aside, asked=known.asked, interrupted=known.interrupted)
    wanted = _wanted(seen, known)
    gone = {part for part, is_wanted in wanted.items() if not is_wanted}
    due = _without(known.due, _not_held_any_more(known.held, seen.held))
    return replace(
        known,
        making_room=known.making_room and wanted[ROOM],
        errors=_without(known.errors, gone),
        due=_without(due, {PLAN}) if PLAN in gone and due.get(PLAN) == float("inf") else due,
        short=known.short if is_pressed(seen, known) else "",
        waiting=known.waiting if wanted[DELETED] else {},
        held=seen.held,
    )


def retried(known: Known) -> Known:
    """Return what is known after something was declared anew: what was in the way may not be any more."""
    return replace(known, due={})


def started(known: Known, decision: Decision, now: float) -> Known:
    """Return what is known once an action has begun."""
    if decision.action == MEASURE:
        return replace(known, asked=now)
    if decision.action == INTERRUPT:
        return replace(known, interrupted=now)
    if decision.action == PLAN:
        return replace(known, looked_at=float("inf"))
    return replace(known, making_room=known.making_room or ROOM in decision.parts)


def ended(seen: Seen, known: Known, decision: Decision, outcome: Outcome, now: float) -> Known:
    """Return what is known once an action has ended.

    :param seen: what the location was when it began
    """
    parts = decision.parts
    if outcome.withdrawn:
        return replace(known, recovered=False, due=_without(known.due, {*parts, RECOVER}))
    if outcome.absent:
        due = dict.fromkeys((*parts, RECOVER), now + KEPT_S)
        return replace(known, recovered=False, errors=_without(known.errors, parts), due={**known.due, **due})
    if outcome.error:
        due = {**_without(known.due, {RECOVER}), **dict.fromkeys(parts, now + RETRY_S)}
        errors = {**known.errors, **dict.fromkeys(parts, outcome.error)}
        # What it had put aside lies there still.
        return replace(known, recovered=known.recovered and decision.action == PLAN, due=due, errors=errors)
    known = replace(known, errors=_without(known.errors, parts))
    if decision.action == PLAN:
        stands = float("inf") if outcome.looked_at else now + PLAN_S
        looked_at = now if outcome.looked_at else float("inf")
        return replace(known, short=outcome.blocked, due={**known.due, PLAN: stands}, looked_at=looked_at)
    # Every other action has begun with what lay aside.
    look = now + (KEPT_S if outcome.aside else LOOK_S)
    known = replace(known, recovered=True, aside=outcome.aside, due={**known.due, RECOVER: look})
    if decision.action == RECOVER:
        return known
    unmeasured = ROOM in parts and seen.age == float("inf")
    if ROOM in parts:
        # What was not measured yet may do.
        halted = outcome.blocked.startswith(STOPPED)
        known = replace(known, short="" if unmeasured and not halted else outcome.blocked)
    in_vain = not unmeasured and bool(outcome.blocked or outcome.kept or not outcome.removed)
    wait = _wait(seen, parts, outcome) if in_vain else 0.0
    due = {**known.due, **dict.fromkeys(parts, now + wait)}
    return replace(known, waiting=outcome.waiting, due=_without(due, _not_held_any_more(seen.held, known.held)))


def _not_held_any_more(before: frozenset[str], now: frozenset[str]) -> set[str]:
    """Return the part of the work that need not wait, because a lease that was in its way has ended."""
    return {DELETED} if before - now else set()


def _wait(seen: Seen, parts: frozenset[str], outcome: Outcome) -> float:
    # Who deletes a drive waits for it. Of what holds its copies only the end of a lease is seen.
    unwatched = set(outcome.waiting) - seen.held
    return RETRY_S if ROOM in parts or unwatched else KEPT_S


def _without(mapping: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in set(keys)}


# -- What is told


SHORT, HALTED, FAILED = "short", "stopped", "failed"
"""Why eviction is blocked: nothing or too little can go; removing did not help; it could not be done."""
BLOCKED = (SHORT, HALTED, FAILED)


def blocked(known: Known) -> tuple[str, str]:
    """Return why copies that have to go cannot: one of ``BLOCKED`` and a line of text, or two empty texts."""
    for part in (RECOVER, ROOM, EXPIRED, DELETED, PLAN):
        if part in known.errors:
            return FAILED, known.errors[part]
    if known.short:
        return (HALTED if known.short.startswith(STOPPED) else SHORT), known.short
    return "", ""
