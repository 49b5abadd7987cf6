# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""When a tier of whole files is looked at next, and what a daemon knows of it; what goes is tried on real disks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stowage_core import records
from stowage_core.errors import StowageError
from stowage_core.places import Places
from stowage_core.tiers import recorded
from stowage_core.tiers.declared import Backend, Eviction, MemberGroup, Tier
from stowage_core.tiers.files_eviction import Limits
from stowage_core.tiers.files_keeping import HORIZON_S, Growth, Round, Terms, rest_s
from stowage_core.tiers.recorded import Claimed
from stowaged import metrics, status
from stowaged.declared import HostTier
from stowaged.settings import Settings
from stowaged.tier_evicting import terms

LIMITS = Limits(1000, 100)  # 900 bytes and 90 files are the high mark
FIRST = Round(began=50.0, found=(910, 0), left=(800, 0))


@pytest.mark.parametrize(
    ("before", "last", "rest"),
    [
        (None, Round(50.0, (500, 5), (500, 5)), None),  # nothing had to go: the filesystem is watched again
        (None, FIRST, 1.0),  # how fast it fills is not known yet
        (None, replace(FIRST, is_cut=True), 0.0),
        (None, replace(FIRST, blocked="nothing can go"), None),
        (None, replace(FIRST, blocked="nothing can go", young=True), 1.0),
        (None, replace(FIRST, blocked="nothing can go", young=True, seconds=2.0), 10.0),
        # 10 bytes came in a second, and 90 may.
        (FIRST, Round(51.0, (810, 0), (810, 0)), 4.5),
        # 400 bytes a second: there is a quarter of a second.
        (FIRST, Round(51.0, (1200, 0), (800, 0)), 0.25),
        (FIRST, Round(51.0, (801, 0), (801, 0)), None),
        (FIRST, Round(51.0, (700, 0), (700, 0)), None),
        (FIRST, Round(51.0, (800, 30), (800, 30)), 1.0),  # files are limited as well
        (FIRST, Round(51.0, (950, 0), (950, 0)), 0.0),
    ],
)
def test_rest(before: Round | None, last: Round, rest: float | None) -> None:
    assert rest_s(LIMITS, before, last) == (None if rest is None else pytest.approx(rest))


def test_what_is_not_limited_does_not_hurry() -> None:
    last = Round(51.0, (10**9, 10**6), (10**9, 10**6))
    assert rest_s(Limits(0, 10**9), replace(FIRST, left=(0, 0)), last) is None
    assert HORIZON_S * 10 < 10**9 / 10**6


@pytest.mark.parametrize(
    ("feared", "found", "was_others"),
    [
        ((200, 10), (199, 10), False),
        ((200, 10), (150, 10), False),
        ((200, 10), (149, 10), True),
        ((200, 30), (101, 29), False),
        ((200, 30), (101, 11), True),
    ],
)
def test_who_filled_the_filesystem(feared: tuple[int, int], found: tuple[int, int], was_others: bool) -> None:
    assert Growth((100, 10), feared).was_others(found) is was_others


# -- What is declared now

TIER = Tier("/mnt/kv", 1000, 0, Eviction())
GROUP = MemberGroup(hosts=("gpu-01",), store="files", tier=TIER)
ONE = HostTier("chat", 0, "/mnt/kv", GROUP, TIER)
BEFORE = Settings(host="gpu-01", evict="on")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path))


def declare(places: Places, group: MemberGroup = GROUP, is_declared: bool = True, **settings: Any) -> None:
    records.write(places.daemon_json, {"host": "gpu-01", "evict": "on", **settings})
    backend = Backend("chat", (group,), is_declared=is_declared)
    records.write(places.tiers_json, recorded.backends_json([backend]))
    recorded.write_claimed(places, {"chat/0": Claimed("/mnt/kv", "one", 1.0)})


def test_terms_are_those_that_are_declared_now(places: Places) -> None:
    declare(places, replace(GROUP, tier=replace(TIER, capacity=7)))
    assert terms(places, ONE, BEFORE) == Terms("chat/0", "/mnt/kv", "one", Limits(7, 0))


@pytest.mark.parametrize(
    ("group", "settings"),
    [
        (replace(GROUP, tier=replace(TIER, eviction=None)), {}),
        (replace(GROUP, store="mooncake"), {}),
        (replace(GROUP, hosts=("gpu-02",)), {}),
        (GROUP, {"evict": "plan"}),
        (GROUP, {"evict": "off"}),
        (GROUP, {"is_declared": False}),
    ],
)
def test_nothing_goes_that_is_not_declared_any_more(
    places: Places, group: MemberGroup, settings: dict[str, Any]
) -> None:
    declare(places, group, **settings)
    assert terms(places, ONE, BEFORE) is None


def test_settings_that_are_wrong_leave_the_earlier_ones_in_force(places: Places) -> None:
    declare(places, nonsense=True)
    assert terms(places, ONE, BEFORE) is not None


def test_a_tier_that_is_not_claimed_is_not_touched(places: Places) -> None:
    declare(places)
    recorded.write_claimed(places, {"chat/0": Claimed("/mnt/other", "one", 1.0)})
    with pytest.raises(StowageError, match="/mnt/kv: is not claimed by this host"):
        terms(places, ONE, BEFORE)


# -- What is shown

SHOWN = {
    "backend": "chat",
    "position": 0,
    "path": "/mnt/kv",
    "allocated": 800,
    "files": 8,
    "looked": 1.0,
    "evicted_bytes": 4096,
    "evicted_files": 1,
    "reason": "short",
    "why": "nothing can go: 2 files above the low mark; files that stay: 10: open",
    "planned_bytes": 8192,
    "planned_files": 2,
}


def test_metrics() -> None:
    page = metrics.render("tier_evictions", {"mode": "on", "tiers": [SHOWN]}).decode()
    labels = 'backend="chat",position="0"'
    for line in (
        f"stowage_tier_evicted_bytes_total{{{labels}}} 4096.0",
        f"stowage_tier_evicted_files_total{{{labels}}} 1.0",
        f'stowage_tier_eviction_blocked{{{labels},reason="short"}} 1.0',
        f'stowage_tier_eviction_blocked{{{labels},reason="failed"}} 0.0',
        f"stowage_tier_eviction_planned_bytes{{{labels}}} 8192.0",
        f"stowage_tier_eviction_planned_files{{{labels}}} 2.0",
    ):
        assert line in page.splitlines()


def test_status() -> None:
    state: dict[str, Any] = {"tier_evictions": {"mode": "on", "tiers": [SHOWN]}}
    assert status.is_blocked(state)
    lines = status.render(state, None, 2.0)
    assert f"! chat/0: files cannot be removed: {SHOWN['why']}" in lines
    assert "chat/0: 2 files, 8.2 kB, would be removed (evict: plan)" in lines
    assert "chat/0: 1 file removed since the host was started, 4.1 kB" in lines
    assert not status.is_blocked({"tier_evictions": {"mode": "on", "tiers": [{**SHOWN, "reason": ""}]}})
