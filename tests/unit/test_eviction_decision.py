# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is done now about the copies in a data location, by tables, and as sequences of what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowaged.eviction_decision import (
    BLOCKED,
    CLOSE_S,
    DELETED,
    EXPIRED,
    FAILED,
    FRESH_S,
    HALTED,
    INTERRUPT,
    KEPT_S,
    LOOK_S,
    MEASURE,
    PLAN,
    PLAN_S,
    RECOVER,
    REMOVE,
    RETRY_S,
    ROOM,
    SHORT,
    WAIT,
    Decision,
    Known,
    Outcome,
    Seen,
    blocked,
    decide,
    ended,
    is_pressed,
    observed,
    retried,
    started,
)

NOW = 1000.0
LATER = NOW + 10
QUIET = {RECOVER: NOW + LOOK_S}
"""What lies aside was looked for just now."""
SEEN = Seen(age=10.0)
KNOWN = Known(recovered=True, due=QUIET)
FULL: dict[str, Any] = {"below_start": True, "below_stop": True}


def chosen(seen: dict[str, Any], known: dict[str, Any]) -> tuple[str, set[str]]:
    decision = decide(replace(SEEN, **seen), replace(KNOWN, **known), NOW)
    return decision.action, set(decision.parts)


@pytest.mark.parametrize(
    ("seen", "known", "action", "parts"),
    [
        # Nothing to be done, or nothing that can be
        ({}, {}, WAIT, set()),
        ({"there": False, **FULL, "mode": "on", "deleted": True}, {"recovered": False, "due": {}}, WAIT, set()),
        ({"busy": True, **FULL, "mode": "on"}, {"recovered": False, "due": {}}, WAIT, set()),
        # What lies aside comes first, and again now and then, in every mode
        ({}, {"recovered": False, "due": {}}, RECOVER, {RECOVER}),
        ({"mode": "off"}, {"recovered": False, "due": {}}, RECOVER, {RECOVER}),
        ({"former": True, "age": float("inf")}, {"recovered": False, "due": {}}, RECOVER, {RECOVER}),
        ({"mode": "on", **FULL}, {"recovered": False, "due": {}}, RECOVER, {RECOVER}),
        ({"mode": "on", **FULL}, {"recovered": False, "due": {RECOVER: LATER}}, WAIT, set()),
        ({}, {"due": {RECOVER: NOW}}, RECOVER, {RECOVER}),
        ({"former": True}, {"due": {RECOVER: NOW}}, RECOVER, {RECOVER}),
        ({"measuring": True}, {"due": {RECOVER: NOW}}, RECOVER, {RECOVER}),
        # The mode
        ({"mode": "on", **FULL}, {}, REMOVE, {ROOM}),
        ({"mode": "plan", **FULL}, {}, PLAN, {PLAN}),
        ({"mode": "off", **FULL}, {}, WAIT, set()),
        ({"mode": "on", "expired": True}, {}, REMOVE, {EXPIRED}),
        ({"mode": "plan", "expired": True}, {}, PLAN, {PLAN}),
        ({"mode": "off", "expired": True}, {}, WAIT, set()),
        *(({"mode": mode, "deleted": True}, {}, REMOVE, {DELETED}) for mode in ("on", "plan", "off")),
        # One run does all that there is a reason for
        ({"mode": "on", **FULL, "deleted": True, "expired": True}, {}, REMOVE, {ROOM, DELETED, EXPIRED}),
        ({"mode": "plan", **FULL, "deleted": True, "expired": True}, {}, REMOVE, {DELETED}),
        ({"mode": "on", **FULL, "deleted": True}, {"due": {**QUIET, DELETED: LATER}}, REMOVE, {ROOM, DELETED}),
        # A tombstone that cannot go hides neither the plan nor that room is made
        ({"mode": "plan", **FULL, "deleted": True}, {"due": {**QUIET, DELETED: LATER}}, PLAN, {PLAN}),
        ({"mode": "plan", **FULL, "deleted": True}, {"due": {**QUIET, DELETED: LATER, PLAN: LATER}}, WAIT, set()),
        ({"mode": "on", **FULL, "deleted": True}, {"due": {**QUIET, ROOM: LATER}}, REMOVE, {ROOM, DELETED}),
        # A limit is held against fresh sizes, a full disk does not wait for them
        ({"mode": "on", "over_limit": True, "age": FRESH_S + 1}, {}, MEASURE, set()),
        ({"mode": "on", "over_limit": True, "age": FRESH_S + 1}, {"asked": NOW - 1}, WAIT, set()),
        ({"mode": "on", "over_limit": True, "age": FRESH_S + 1, "measuring": True}, {}, WAIT, set()),
        ({"mode": "on", "over_limit": True, "age": FRESH_S}, {}, REMOVE, {ROOM}),
        ({"mode": "on", **FULL, "age": 3000.0}, {}, REMOVE, {ROOM}),
        ({"mode": "on", **FULL, "age": float("inf")}, {}, REMOVE, {ROOM}),
        ({"mode": "plan", **FULL, "age": float("inf")}, {}, WAIT, set()),
        # A measurement holds copies open: it is ended for a full disk, once until one has come to its end
        ({"mode": "on", **FULL, "measuring": True}, {}, INTERRUPT, set()),
        ({"mode": "on", **FULL, "measuring": True, "age": 100.0}, {"interrupted": NOW - 50}, WAIT, set()),
        ({"mode": "on", **FULL, "measuring": True, "age": 10.0}, {"interrupted": NOW - 50}, INTERRUPT, set()),
        ({"mode": "on", **FULL, "measuring": True, "age": float("inf")}, {}, WAIT, set()),
        ({"mode": "on", **FULL, "measuring": True}, {"due": {**QUIET, ROOM: LATER}}, WAIT, set()),
        ({"mode": "on", "deleted": True, "measuring": True}, {}, WAIT, set()),
        ({"mode": "plan", **FULL, "measuring": True}, {}, PLAN, {PLAN}),
        # A plan for which files were looked at stands until copies were measured again
        ({"mode": "plan", **FULL}, {"due": {**QUIET, PLAN: float("inf")}, "looked_at": NOW - 10}, WAIT, set()),
        ({"mode": "plan", **FULL}, {"due": {**QUIET, PLAN: float("inf")}, "looked_at": NOW - 11}, PLAN, {PLAN}),
        # It goes on beyond the mark at which it began
        ({"mode": "on", "below_stop": True}, {}, WAIT, set()),
        ({"mode": "on", "below_stop": True}, {"making_room": True}, REMOVE, {ROOM}),
        ({"mode": "plan", "below_stop": True}, {"making_room": True}, WAIT, set()),
        # An earlier data location: copies of deleted drives, and nothing else
        ({"former": True, "mode": "on", "deleted": True, "age": float("inf")}, {}, REMOVE, {DELETED}),
        ({"former": True, "mode": "on", **FULL, "expired": True}, {}, WAIT, set()),
    ],
)
def test_what_is_done_now(seen: dict[str, Any], known: dict[str, Any], action: str, parts: set[str]) -> None:
    assert chosen(seen, known) == (action, parts)


@pytest.mark.parametrize(
    ("seen", "known", "until"),
    [
        ({}, {}, NOW + LOOK_S),
        ({"mode": "on", **FULL}, {"due": {**QUIET, ROOM: LATER}}, LATER),
        ({"mode": "off", **FULL}, {"due": {**QUIET, ROOM: LATER}}, NOW + LOOK_S),
        ({"there": False}, {}, float("inf")),
        ({"busy": True}, {}, float("inf")),
    ],
)
def test_until_when_it_waits(seen: dict[str, Any], known: dict[str, Any], until: float) -> None:
    decision = decide(replace(SEEN, **seen), replace(KNOWN, **known), NOW)
    assert (decision.action, decision.until) == (WAIT, until)


@pytest.mark.parametrize(
    ("seen", "known", "caches", "limit"),
    [
        ({"mode": "on", **FULL}, {}, True, True),
        ({"mode": "on", **FULL, "age": FRESH_S + 1}, {}, True, False),
        ({"mode": "plan", "deleted": True}, {}, False, True),
        ({"mode": "off", "deleted": True}, {}, False, True),
        ({"mode": "on", "former": True, "deleted": True}, {}, False, True),
        ({"mode": "on"}, {"recovered": False, "due": {}}, True, False),
        ({"mode": "plan"}, {"recovered": False, "due": {}}, False, False),
        ({"mode": "off"}, {"recovered": False, "due": {}}, False, False),
        ({"mode": "on", "former": True}, {"recovered": False, "due": {}}, False, False),
    ],
)
def test_what_it_may_remove(seen: dict[str, Any], known: dict[str, Any], caches: bool, limit: bool) -> None:
    decision = decide(replace(SEEN, **seen), replace(KNOWN, **known), NOW)
    assert (decision.caches, decision.limit) == (caches, limit)


def test_a_plan_for_which_files_were_looked_at_is_made_again_after_an_event() -> None:
    seen = replace(SEEN, mode="plan", below_start=True, below_stop=True)
    known = started(KNOWN, PLANNING, NOW)
    assert ended(seen, known, PLANNING, Outcome(), NOW).due[PLAN] == NOW + PLAN_S
    known = ended(seen, known, PLANNING, Outcome(looked_at=1), NOW)
    assert known.looked_at == NOW and known.due[PLAN] == float("inf") and observed(seen, known).due == known.due
    assert PLAN not in retried(known).due
    assert PLAN not in observed(replace(seen, below_start=False), known).due, "room was made by others"
    failed = ended(seen, started(known, PLANNING, NOW), PLANNING, Outcome(error="why"), NOW)
    assert decide(replace(seen, age=0.0), failed, NOW + 1).action != PLAN, "one that failed is not tried at once"


REMOVING = Decision(REMOVE, frozenset({ROOM}), caches=True, limit=True)
DELETING = Decision(REMOVE, frozenset({DELETED}))
EXPIRING = Decision(REMOVE, frozenset({EXPIRED}), caches=True)
RECOVERING = Decision(RECOVER, frozenset({RECOVER}))
PLANNING = Decision(PLAN, frozenset({PLAN}))
PRESSED = replace(SEEN, mode="on", below_start=True, below_stop=True)


@pytest.mark.parametrize(
    ("decision", "part"), [(REMOVING, ROOM), (DELETING, DELETED), (RECOVERING, RECOVER), (PLANNING, PLAN)]
)
def test_every_error_is_a_state_until_it_works_again(decision: Decision, part: str) -> None:
    seen = replace(PRESSED, mode="plan" if part == PLAN else "on", deleted=True)
    failed = ended(seen, KNOWN, decision, Outcome(error="pin r/1: its record cannot be used"), NOW)
    assert blocked(failed) == (FAILED, "pin r/1: its record cannot be used")
    assert failed.due[part] == NOW + RETRY_S
    assert blocked(observed(seen, failed)) == blocked(failed), "it stays for as long as there is a reason for the work"
    again = ended(seen, failed, decision, Outcome(removed=1), NOW + 100)
    assert blocked(again) == ("", "")


@pytest.mark.parametrize(("decision", "recovered"), [(REMOVING, False), (RECOVERING, False), (PLANNING, True)])
def test_what_was_cut_short_may_have_left_something_aside(decision: Decision, recovered: bool) -> None:
    failed = ended(PRESSED, KNOWN, decision, Outcome(error="ended with signal 9"), NOW)
    assert failed.recovered is recovered
    if decision is REMOVING:
        assert decide(PRESSED, failed, NOW).action == RECOVER, "at once"


@pytest.mark.parametrize(
    ("seen", "error_of"),
    [
        ({"mode": "on"}, ROOM),
        ({"mode": "off", **FULL}, ROOM),
        ({"mode": "plan", **FULL}, ROOM),
        ({"mode": "on", **FULL}, PLAN),
        ({"mode": "on", **FULL}, DELETED),
        ({"mode": "plan", "expired": True}, EXPIRED),
        ({"there": False}, RECOVER),
    ],
)
def test_an_error_is_gone_with_the_reason_for_the_work(seen: dict[str, Any], error_of: str) -> None:
    known = replace(KNOWN, errors={error_of: "why"})
    assert blocked(known) == (FAILED, "why")
    assert blocked(observed(replace(SEEN, **seen), known)) == ("", "")


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", ""), ("nothing can go: 5 B more", SHORT), ("stopped: the copies removed were to give back 5 B", HALTED)],
)
def test_a_mark_that_cannot_be_reached(text: str, kind: str) -> None:
    for decision in (REMOVING, PLANNING):
        known = ended(PRESSED, KNOWN, decision, Outcome(blocked=text), NOW)
        assert blocked(known) == (kind, text) and kind in ("", *BLOCKED)
        assert blocked(observed(replace(PRESSED, below_start=False, below_stop=False), known)) == ("", "")


def test_what_was_never_measured_is_not_said_to_block() -> None:
    """A full disk does not wait for the first measurement after a start; when that did not do, what follows does."""
    unmeasured = replace(PRESSED, age=float("inf"))
    known = ended(unmeasured, KNOWN, REMOVING, Outcome(blocked="nothing can go", kept=1), NOW)
    assert blocked(known) == ("", "")
    assert decide(unmeasured, known, NOW).action == WAIT and decide(PRESSED, known, NOW).action == REMOVE
    known = ended(unmeasured, KNOWN, REMOVING, Outcome(removed=1, blocked="stopped: why"), NOW)
    assert blocked(known) == (HALTED, "stopped: why")


WAITS = {"ml.a": "held by pin r/1"}
HELD = {"held": frozenset({"ml.a"})}
IN_USE = {"ml.b": "in use: mounted in the mount namespace of process 4711"}
"""As of a container whose lease was ended by force."""


@pytest.mark.parametrize(
    ("decision", "seen", "outcome", "wait"),
    [
        (REMOVING, {}, Outcome(removed=3), 0.0),
        (REMOVING, {}, Outcome(removed=3, blocked="too little can go"), RETRY_S),
        (REMOVING, {}, Outcome(removed=3, kept=1), RETRY_S),
        (REMOVING, {}, Outcome(), RETRY_S),
        (DELETING, {}, Outcome(removed=1), 0.0),
        (DELETING, {}, Outcome(waiting=WAITS), RETRY_S),
        (DELETING, {}, Outcome(waiting=IN_USE, kept=1), RETRY_S),
        (DELETING, HELD, Outcome(waiting={**WAITS, **IN_USE}, kept=2), RETRY_S),
        (DELETING, HELD, Outcome(waiting=WAITS, kept=1), KEPT_S),
        (EXPIRING, {}, Outcome(kept=1), KEPT_S),
        (DELETING, {"former": True}, Outcome(), KEPT_S),
    ],
)
def test_when_it_is_tried_again(decision: Decision, seen: dict[str, Any], outcome: Outcome, wait: float) -> None:
    began = replace(PRESSED, **seen)
    known = ended(began, replace(KNOWN, held=began.held), decision, outcome, NOW)
    assert [known.due[part] for part in decision.parts] == [NOW + wait]


def test_why_copies_of_deleted_drives_wait() -> None:
    seen = replace(SEEN, deleted=True)
    known = ended(seen, KNOWN, DELETING, Outcome(waiting=WAITS), NOW)
    assert known.waiting == WAITS and blocked(known) == ("", "")
    assert observed(seen, known).waiting == WAITS
    assert observed(replace(seen, deleted=False), known).waiting == {}


def test_what_is_deleted_is_tried_again_as_soon_as_a_lease_on_it_has_ended() -> None:
    both, one = (replace(SEEN, deleted=True, held=frozenset(names)) for names in ({"ml.a", "ml.b"}, {"ml.a"}))
    kept = Outcome(waiting={"ml.a": "held by pin r/1", "ml.b": "held by pin r/2"}, kept=2)
    began = observed(both, KNOWN)
    known = ended(both, began, DELETING, kept, NOW)
    assert decide(both, observed(both, known), NOW + 1).action == WAIT, "nothing has changed"
    assert decide(one, observed(one, known), NOW + 1).parts == {DELETED}
    # It ended while the work was under way, which had found it held.
    known = ended(both, observed(replace(one, busy=True), began), DELETING, kept, NOW)
    assert decide(one, observed(one, known), NOW + 1).parts == {DELETED}
    known = ended(one, observed(one, known), DELETING, kept, NOW + 1)
    assert decide(one, observed(one, known), NOW + 2).action == WAIT, "once"
    # Room is not tried for again: what was in its way may be much else.
    pressed = replace(PRESSED, deleted=True)
    known = replace(KNOWN, due={**QUIET, ROOM: LATER, DELETED: LATER}, held=frozenset({"ml.a"}))
    assert observed(pressed, known).due == {**QUIET, ROOM: LATER}


def test_what_lies_aside_is_looked_after_again() -> None:
    aside = {"ml.a": "kept aside, as a new copy has its name: in use: …"}
    known = ended(SEEN, replace(KNOWN, recovered=False), RECOVERING, Outcome(aside=aside), NOW)
    assert known.recovered and known.aside == aside and known.due[RECOVER] == NOW + KEPT_S
    known = ended(SEEN, known, RECOVERING, Outcome(), NOW + KEPT_S)
    assert known.aside == {} and known.due[RECOVER] == NOW + KEPT_S + LOOK_S


def test_a_location_that_is_not_there() -> None:
    """Nobody is alarmed: that it is missing is told elsewhere, and an earlier one may be away for good."""
    former = Seen(former=True, deleted=True)
    known = ended(former, Known(), RECOVERING, Outcome(absent=True), NOW)
    assert blocked(known) == ("", "") and decide(former, known, NOW + RETRY_S).action == WAIT
    assert decide(former, known, NOW + KEPT_S).action == RECOVER
    away = observed(replace(SEEN, there=False), replace(KNOWN, errors={ROOM: "why"}, short="why", making_room=True))
    assert blocked(away) == ("", "") and not away.making_room
    assert decide(SEEN, away, NOW).action == RECOVER, "it is back"


def test_work_that_the_operator_has_withdrawn() -> None:
    known = ended(PRESSED, started(KNOWN, REMOVING, NOW), REMOVING, Outcome(withdrawn=True), NOW)
    seen = replace(PRESSED, mode="plan")
    known = observed(seen, known)
    assert blocked(known) == ("", "") and not known.making_room
    assert decide(seen, known, NOW).action == RECOVER


def test_something_declared_anew_is_tried_at_once_and_forgets_no_error() -> None:
    failed = ended(PRESSED, KNOWN, PLANNING, Outcome(error="why"), NOW)
    again = retried(failed)
    assert again.due == {} and again.errors == {PLAN: "why"}


@pytest.mark.parametrize("mode", ["on", "plan", "off"])
def test_making_room_ends_with_the_pressure(mode: str) -> None:
    known = started(KNOWN, REMOVING, NOW)
    assert known.making_room and is_pressed(replace(SEEN, mode="on", below_stop=True), known)
    assert observed(replace(SEEN, mode="on", below_stop=True), known).making_room
    assert not observed(replace(SEEN, mode=mode), known).making_room


OUTCOMES = st.sampled_from(
    [
        Outcome(error="ended with exit status 1"),
        Outcome(absent=True),
        Outcome(blocked="nothing can go"),
        Outcome(kept=1, waiting=WAITS, blocked="nothing can go"),
        Outcome(waiting=WAITS),
        Outcome(aside={"ml.a": "why"}),
        Outcome(),
    ]
)


@given(
    st.builds(
        Seen,
        mode=st.sampled_from(["on", "plan", "off"]),
        former=st.booleans(),
        age=st.sampled_from([10.0, 100.0, float("inf")]),
        below_start=st.booleans(),
        below_stop=st.just(True),
        over_limit=st.booleans(),
        deleted=st.booleans(),
        held=st.sampled_from([frozenset(), frozenset({"ml.a"})]),
        expired=st.booleans(),
    ),
    st.lists(OUTCOMES, min_size=1, max_size=5),
)
def test_nothing_is_started_every_cycle_in_vain_and_nothing_is_hidden(seen: Seen, outcomes: list[Outcome]) -> None:
    """Ten minutes of cycles, in which no work ever gets anywhere."""
    known, begun = Known(), []
    for cycle in range(60):
        now = NOW + 10 * cycle
        known = observed(seen, known)
        decision = decide(seen, known, now)
        known = started(known, decision, now)
        if decision.action in (REMOVE, PLAN, RECOVER):
            begun.append(decision)
            known = ended(seen, known, decision, outcomes[cycle % len(outcomes)], now)
        elif decision.action == WAIT:
            assert decision.until > now
    most = {REMOVE: 600 / RETRY_S + 1, PLAN: 600 / PLAN_S + 1, RECOVER: 2 * 600 / RETRY_S + 2}
    for action, number in most.items():
        assert sum(one.action == action for one in begun) <= number * (3 if action == REMOVE else 1), action
    if all(not one.error and not one.absent for one in outcomes) and not seen.former:
        parts = {part for one in begun for part in one.parts}
        assert not seen.deleted or DELETED in parts
        if seen.below_start and seen.mode == "plan" and seen.age < float("inf"):
            assert PLAN in parts
        if seen.below_start and seen.mode == "on":
            assert ROOM in parts


def test_a_disk_that_a_burst_may_fill_is_looked_at_more_often() -> None:
    known = Known(recovered=True, due={RECOVER: 1000.0})
    close = Seen(mode="on", age=10.0, close=True)
    assert decide(close, known, 100.0) == Decision(WAIT, until=100.0 + CLOSE_S)
    assert decide(replace(close, mode="plan"), known, 100.0).until == 1000.0, "nothing goes then"
    assert decide(close, known, 998.0).until == 1000.0
