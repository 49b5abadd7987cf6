# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which copies go, in which order, and where it stops."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.copies.present import Copy, CopyRecord
from stowage_core.drives.recorded import Drive
from stowage_core.eviction.given_back import IN_VAIN
from stowage_core.eviction.plan import DELETED, FULL, LIMIT, Plan, Settings, State, assess, plan
from stowage_core.sizes import Space

NOW = 1_000_000.0


def disk(free: float, files_free: float = 0.5, size: int = 1000) -> Space:
    return Space(size, round(size * free), round(size * free), 1000, round(1000 * files_free))


def state(name: str, allocated: int | None = 50, last_used: float | None = None, **more: Any) -> State:
    values: dict[str, Any] = {"identity": name, "created": 0.0, "inodes": 10, **more}
    return State(name=name, allocated=allocated, last_used=last_used, **values)


def made(space: Space, states: list[State], max_bytes: int = 0, **more: Any) -> Plan:
    return plan(space, states, max_bytes, more.pop("settings", Settings()), NOW, more.pop("booted", 0.0), **more)


def victims(result: Plan) -> list[str]:
    return [victim.name for victim in result.victims]


FIVE = [state("a", 50, 5.0), state("b", 50, 1.0), state("c", 50), state("d", 50, 3.0), state("e", 50)]


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (0.10, []),
        (0.12, []),
        (0.099, ["c", "e"]),
        (0.08, ["c", "e"]),
        (0.05, ["c", "e"]),
        (0.049, ["c", "e", "b"]),
        (0.0, ["c", "e", "b"]),
    ],
)
def test_below_a_tenth_free_until_fifteen_percent(free: float, expected: list[str]) -> None:
    result = made(disk(free), FIVE)
    assert victims(result) == expected
    assert all(victim.reason == FULL for victim in result.victims)
    assert result.triggers == (frozenset([FULL]) if expected else frozenset())


def test_an_eviction_under_way_goes_on_to_its_mark() -> None:
    assert victims(made(disk(0.12), FIVE, under_way=[FULL])) == ["c"]
    assert victims(made(disk(0.15), FIVE, under_way=[FULL])) == []


def test_what_copies_give_back_counts_where_it_is_known() -> None:
    result = made(disk(0.05), FIVE, given={"c": (1, 10), "b": (0, 0)})
    assert victims(result) == ["c", "e", "d"] and result.kept["b"] == IN_VAIN
    assert [victim.allocated for victim in result.victims] == [50, 50, 50], "what they take is told all the same"


def test_what_only_root_may_use_is_not_free() -> None:
    space = Space(size=1000, free=140, avail=90, files=0, files_free=0)
    result = made(space, FIVE)
    assert result.wanted_bytes == 53, "of the 950 that users can have, 15 % are 142.5"
    assert victims(result) == ["c", "e"]


@pytest.mark.parametrize(
    ("limit", "expected"), [(250, []), (249, ["c"]), (200, ["c"]), (199, ["c", "e"]), (1, ["c", "e", "b", "d", "a"])]
)
def test_over_the_limit_until_within(limit: int, expected: list[str]) -> None:
    result = made(disk(0.5), FIVE, limit)
    assert victims(result) == expected
    assert all(victim.reason == LIMIT for victim in result.victims)


def test_the_limit_is_about_what_copies_take_whatever_they_give_back() -> None:
    result = made(disk(0.5), FIVE, 199, given={"c": (0, 0), "e": (1, 1)})
    assert victims(result) == ["c", "e"] and result.blocked == "" and result.over_bytes == 51


def test_copies_that_must_stay_count_for_the_limit() -> None:
    states = [state("a", 500, keep="its drive is not a cache"), state("b", 50), state("c", 50)]
    result = made(disk(0.5), states, 540)
    assert victims(result) == ["b", "c"] and result.blocked == ""


def test_both_triggers_name_the_reason_of_each() -> None:
    result = made(disk(0.09), FIVE, 50)
    assert [(victim.name, victim.reason) for victim in result.victims] == [
        ("c", FULL),
        ("e", FULL),
        ("b", LIMIT),
        ("d", LIMIT),
    ]


def test_inodes_are_pressure_as_bytes_are() -> None:
    result = made(
        disk(0.5, files_free=0.09), [state("a", 0, inodes=40), state("b", 900, inodes=0), state("c", 5, inodes=40)]
    )
    assert victims(result) == ["a", "c"] and result.wanted_inodes == 60 and result.wanted_bytes == 0
    assert made(Space(1000, 500, 500, 0, 0), FIVE).victims == (), "no inodes of its own: no pressure"


def test_inodes_that_were_not_counted_are_not_none() -> None:
    result = made(disk(0.5, files_free=0.09), [state("a", 50, inodes=None), state("b", 50, inodes=60)])
    assert victims(result) == ["b"] and result.kept == {"a": "not measured yet"}


def test_what_frees_nothing_stays() -> None:
    result = made(disk(0.09), [state("a", 0), state("b", 100)])
    assert victims(result) == ["b"] and result.kept == {"a": "would free nothing"}


@pytest.mark.parametrize(
    ("more", "booted", "why"),
    [
        ({"keep": "held by pin r/1"}, 0.0, "held by pin r/1"),
        ({"created": NOW - 599}, 0.0, "it was made only now"),
        ({"created": NOW + 600}, 0.0, "it was made only now"),
        ({"allocated": None}, 0.0, "not measured yet"),
        ({}, NOW - 599, "the host was started only now"),
        ({}, NOW + 5, "the host was started only now"),
        ({"deleted": True}, NOW - 599, "the host was started only now"),
        ({"deleted": True, "forced": True}, NOW - 599, "the host was started only now"),
        ({"deleted": True, "created": NOW}, 0.0, "it was made only now"),
    ],
)
def test_no_candidates(more: dict[str, Any], booted: float, why: str) -> None:
    result = made(disk(0.0), [state("a", **more)], booted=booted)
    assert result.victims == () and result.kept == {"a": why}
    assert result.blocked.startswith("nothing can go: 150 B more must become free; copies that stay: 1: ")


@pytest.mark.parametrize(
    "more", [{"allocated": None}, {"created": NOW, "forced": True}, {"last_used": NOW}, {"created": NOW + 601}]
)
def test_copies_of_deleted_drives_go_first_and_without_a_trigger(more: dict[str, Any]) -> None:
    states = [state("a"), state("b", deleted=True, **more)]
    assert [(victim.name, victim.reason) for victim in made(disk(0.5), states).victims] == [("b", DELETED)]
    assert victims(made(disk(0.09), states)) == ["b", "a"]


def test_what_the_deleted_free_need_not_be_evicted() -> None:
    assert victims(made(disk(0.09), [state("a", 100), state("b", 100, deleted=True)])) == ["b"]


def test_too_little_can_go() -> None:
    result = made(disk(0.0), [state("a", 50), state("b", keep="being filled")])
    assert victims(result) == ["a"]
    assert result.blocked == "too little can go: 100 B more must become free; copies that stay: 1: being filled"
    assert made(disk(0.0), []).blocked.endswith("there are no copies")


def test_leases_are_told_as_one_reason() -> None:
    states = [state(name, keep=f"held by pin {name}/1") for name in "abc"]
    assert made(disk(0.0), states).blocked.endswith("copies that stay: 3: leased")


@pytest.mark.parametrize(
    ("free", "coming", "limit", "names"),
    [
        (0.5, 350, 0, []),
        (0.5, 450, 0, ["a"]),  # 5 % would be free: 10 % more are wanted
        (0.5, 500, 0, ["a", "b"]),
        (0.5, 900, 0, ["a", "b", "c"]),
        (0.09, 0, 0, ["a"]),
        (0.5, 0, 300, []),
        (0.5, 50, 300, ["a"]),
        (0.5, 100, 300, ["a"]),
        (0.5, 101, 300, ["a", "b"]),
    ],
)
def test_room_is_made_for_what_a_fill_still_writes(free: float, coming: int, limit: int, names: list[str]) -> None:
    states = [state(name, 100) for name in "abc"]
    result = made(disk(free), states, limit, coming=coming)
    assert victims(result) == names


SIZES = st.integers(0, 10**15)


@given(
    st.lists(
        st.tuples(SIZES, st.integers(0, 10**6), st.one_of(st.none(), st.floats(0, NOW)), st.booleans()), max_size=30
    ),
    st.integers(1, 10**15),
    st.floats(0, 1),
    SIZES,
)
def test_enough_and_never_one_more(
    copies: list[tuple[int, int, float | None, bool]], size: int, free: float, limit: int
) -> None:
    states = [
        state(f"c{number:02}", allocated, used, inodes=inodes, keep="" if may_go else "stays")
        for number, (allocated, inodes, used, may_go) in enumerate(copies)
    ]
    space = Space(size, int(size * free), int(size * free), 0, 0)
    result = made(space, states, limit)
    freed = sum(victim.allocated for victim in result.victims)
    total = sum(one.allocated or 0 for one in states)

    def is_met(freed: int) -> bool:
        enough = space.free_fraction >= 0.10 or (space.avail + freed) / space.usable >= 0.15
        return enough and (not limit or total - freed <= limit)

    assert is_met(freed) is (result.blocked == "")
    if result.victims:
        assert not is_met(freed - result.victims[-1].allocated)
    keys = [
        (one.last_used is not None, one.last_used or 0.0, one.name)
        for one in states
        if one.name in set(victims(result))
    ]
    assert victims(result) == [key[-1] for key in sorted(keys)]
    assert not set(victims(result)) & set(result.kept)
    assert {one.name for one in states if one.keep} <= set(result.kept)


SPEC = {"sources": [{"node_scope": "placed", "path": ""}], "evictable": True}
SHARED = {"sources": [{"node_scope": "shared", "path": "/lustre"}], "evictable": True}


def drive(identity: str = "1", **more: Any) -> Drive:
    spec = more.pop("spec", SPEC)
    return Drive("ml", {"name": "a"}, spec, identity, **more)


@pytest.mark.parametrize(
    ("drives", "more", "keep"),
    [
        ([drive()], {}, ""),
        ([], {}, "no list of drives has its drive"),
        ([drive("2")], {}, "no list of drives has its drive"),
        ([drive(spec={**SPEC, "evictable": False})], {}, "its drive is not a cache"),
        ([drive(spec=SHARED)], {}, "its drive is not a cache"),
        ([drive()], {"pinned": {"ml.a": "pin r/1"}}, "held by pin r/1"),
        ([drive()], {"filling": {"ml.a"}}, "being filled"),
        ([drive()], {"unknown": {"ml.a": "in use: x"}}, "in use: x"),
        ([drive(state="absent")], {}, ""),
        ([drive(state="absent", spec=None)], {}, ""),
        ([drive("2", state="absent", force=True)], {}, ""),
        ([drive(state="absent")], {"pinned": {"ml.a": "pin r/1"}}, "held by pin r/1"),
        ([drive(state="absent", force=True)], {"pinned": {"ml.a": "pin r/1"}}, ""),
        ([drive(state="absent", force=True)], {"unknown": {"ml.a": "in use: x"}}, "in use: x"),
        ([drive(force=True)], {"pinned": {"ml.a": "pin r/1"}}, "held by pin r/1"),
    ],
)
def test_what_a_declaration_makes_of_a_copy(drives: list[Drive], more: dict[str, Any], keep: str) -> None:
    (found,) = assess([Copy("ml.a", "1", 0.0)], {}, drives, more.pop("pinned", {}), **more)
    assert found.keep == keep
    assert found.deleted is any(one.absent for one in drives)


def test_the_record_of_an_earlier_drive_says_nothing() -> None:
    record = CopyRecord("ml", "a", "0", "", 1, 2, 3, 4, True, 4.0, 5.0)
    (found,) = assess([Copy("ml.a", "1", 0.0)], {"ml.a": record}, [drive()], {})
    assert (found.allocated, found.last_used) == (None, None)
