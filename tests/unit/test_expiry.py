# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies that were not used for as long as their drive says (``idle_ttl_seconds``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stowage_core.copies.present import Copy, CopyRecord
from stowage_core.drives.declared import check_drives
from stowage_core.drives.recorded import Drive, Holdings, merge
from stowage_core.eviction.plan import (
    DELETED,
    EXPIRED,
    FULL,
    Plan,
    Settings,
    Victim,
    assess,
    duration,
    has_expired,
    plan,
)
from stowage_core.sizes import Space

NOW = 1_000_000.0
DAY = 86400.0


def drive(name: str, ttl: int = int(DAY), evictable: bool = False, scope: str = "placed", **more: Any) -> Drive:
    source = {"node_scope": scope, "path": "" if scope == "placed" else "/srv"}
    spec = {"sources": [source], "evictable": evictable, "idle_ttl_seconds": ttl}
    entries = check_drives([{"metadata": {"name": name}, "spec": spec, **more}])
    return merge("ml", entries, [], Holdings(), new_identity=lambda: name)[0]


def made(
    *drives: Drive,
    created: float = 0.0,
    unused: float = DAY,
    size: int | None = 10,
    free: int = 500,
    settings: Settings | None = None,
    pinned: dict[str, str] | None = None,
    filling: tuple[str, ...] = (),
    watched: dict[str, Any] | None = None,
) -> Plan:
    names = [one.copy_name for one in drives]
    found = [Copy(one.copy_name, one.identity, created) for one in drives]
    use: dict[str, Any] = {"last_used": None, "unused_s": unused, "watched_copy": created, **(watched or {})}
    known = {one.copy_name: CopyRecord("ml", one.name, one.identity, "", size, size, 1, 2, **use) for one in drives}
    assert len(set(names)) == len(names)
    states = assess(found, known, drives, pinned or {}, filling)
    return plan(Space(1000, free, free, 0, 0), states, 0, settings or Settings(), NOW, 0.0)


@pytest.mark.parametrize("evictable", [True, False])
@pytest.mark.parametrize(
    ("unused", "watched", "goes"),
    [
        (DAY, {}, True),
        (DAY - 1, {}, False),
        (DAY, {"last_used": NOW + 5}, True),  # by a clock that was ahead
        (0.0, {"last_used": 1.0}, False),  # or this one is
        (2 * DAY, {"watched_copy": 5.0}, False),  # a copy in another data location
        (2 * DAY, {"watched_copy": None}, False),
        (2 * DAY, {"identity": "another"}, False),
    ],
)
def test_only_time_that_it_was_watched_counts(
    unused: float, watched: dict[str, Any], goes: bool, evictable: bool
) -> None:
    one = drive("a", evictable=evictable)
    if "identity" in watched:
        record = CopyRecord("ml", "a", "another", "", 10, 10, 1, 2, unused_s=unused, watched_copy=0.0)
        states = assess([Copy("ml.a", "a", 0.0)], {"ml.a": record}, [one], {})
        assert not has_expired(states[0], Settings())
        return
    result = made(one, unused=unused, watched=watched)
    assert result.victims == ((Victim("ml.a", "a", EXPIRED, 10, 2, False, unused),) if goes else ())
    assert (result.triggers, result.blocked) == (frozenset(), "")
    if not goes and not evictable:
        assert result.kept == {"ml.a": "its drive is not a cache"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"pinned": {"ml.a": "pin r/1"}}, "held by pin r/1"),
        ({"filling": ("ml.a",)}, "being filled"),
        ({"settings": Settings(boot_grace_s=2 * NOW)}, "the host was started only now"),
        ({"settings": Settings(minimum_age_s=2 * NOW)}, "its drive is not a cache"),
        ({"settings": Settings(caches=False)}, "its drive is not a cache"),
    ],
)
def test_what_keeps_it(more: dict[str, Any], why: str) -> None:
    result = made(drive("a"), **more)
    assert (result.victims, result.kept) == ((), {"ml.a": why})


@pytest.mark.parametrize(
    "other", [drive("a", ttl=0), drive("a", scope="local-any"), replace(drive("a"), identity="another")]
)
def test_other_drives_do_not_expire(other: Drive) -> None:
    assert other.idle_ttl_s == (int(DAY) if other.identity == "another" else 0)
    states = assess([Copy("ml.a", "a", 0.0)], {}, [other], {})
    assert plan(Space(1000, 500, 500, 0, 0), states, 0, Settings(), NOW, 0.0).victims == ()


def test_a_drive_that_expires_is_no_cache_for_that() -> None:
    result = made(drive("a", ttl=int(2 * NOW)), free=10)
    assert result.victims == () and result.kept == {"ml.a": "its drive is not a cache"}


def test_it_need_not_be_measured() -> None:
    assert [victim.name for victim in made(drive("a"), size=None).victims] == ["ml.a"]


def test_deleted_then_expired_then_evicted() -> None:
    result = made(
        drive("a", ttl=0, evictable=True), drive("b"), drive("c", state="absent"), drive("d", ttl=0), size=60, free=10
    )
    assert [(victim.name, victim.reason) for victim in result.victims] == [
        ("ml.c", DELETED),
        ("ml.b", EXPIRED),
        ("ml.a", FULL),
    ]


def test_what_keeps_the_copies_of_deleted_drives_is_told() -> None:
    result = made(drive("a", state="absent"), drive("b", ttl=0), pinned={"ml.a": "pin r/1"})
    assert result.waiting == {"ml.a": "held by pin r/1"}
    assert made(drive("a", state="absent"), created=NOW).waiting == {"ml.a": "it was made only now"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (2 * DAY - 1, "47 h"),
        (14 * DAY, "14 d"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_why_it_goes() -> None:
    assert Victim("a", "a", FULL, 0, 0).why == "evicted: the disk it is on is nearly full"
    assert Victim("a", "a", EXPIRED, 0, 0).why == "evicted: unused for longer than its drive allows"
