# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds jobs: the decision alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.accounting.quotas import Quotas
from stowage_core.gate.judgement import (
    HELD,
    QUOTA,
    UNAVAILABLE,
    WATERMARK,
    Elsewhere,
    Hold,
    elsewhere,
    judge,
    used_percent,
    without_figures,
)

GB = 10**9


def filesystem(point: str, used: int, free: int, **changes: Any) -> dict[str, Any]:
    """A filesystem without anything kept for root, unless *avail* says so."""
    return {
        "id": f"8:{point}",
        "mountpoint": point,
        "size": used + free,
        "free": free,
        "avail": free,
        "shared": False,
        "objects": ["location/runs"],
        **changes,
    }


def location(name: str, **changes: Any) -> dict[str, Any]:
    return {"location": name, "path": f"/mnt/{name}", "available": True, "reason": "", "elsewhere": False, **changes}


def account(used: int, quota: int | None = None, since: float | None = None) -> dict[str, Any]:
    return {"bytes": used, "quota": quota, "exceeded_since": since}


def full(point: str, percent: int, watermark: str = "90") -> str:
    return f"filesystem {point} is {percent} % full, the watermark is {watermark} %"


@pytest.mark.parametrize(
    ("filesystems", "watermark", "texts"),
    [
        ([], 90, []),
        ([filesystem("/a", 90, 10)], 90, []),  # at the mark is not past it
        ([filesystem("/a", 9001, 999)], 90, [full("/a", 91)]),  # as df rounds: always up
        ([filesystem("/a", 93, 7)], 93, []),
        ([filesystem("/a", 93, 7)], 92.5, [full("/a", 93, "92.5")]),
        ([filesystem("/a", 93, 7)], 0, []),
        ([filesystem("/a", 100, 0)], 100, []),
        # An empty disk makes up for no full one, however large it is.
        ([filesystem("/runs", 0, 10**15), filesystem("/cache", 95, 5)], 90, [full("/cache", 95)]),
        # All that are past the mark, the fullest first.
        (
            [filesystem("/a", 92, 8), filesystem("/b", 97, 3), filesystem("/c", 50, 50)],
            90,
            [full("/b", 97), full("/a", 92)],
        ),
        # One filesystem once, by whatever names it is known.
        ([filesystem("/a", 95, 5), filesystem("/a", 95, 5, objects=["data-location"])], 90, [full("/a", 95)]),
        ([filesystem("/a", 95, 5, objects=["data-location"])], 90, [full("/a", 95)]),
        ([filesystem("/a", 95, 5, objects=["tier/chat/0", "location/hf_hub_cache"])], 90, [full("/a", 95)]),
        # What holds only sources of drives or tiers is full as it likes, and what other hosts share is not this one's.
        ([filesystem("/a", 95, 5, objects=["drive/ml/imagenet/0", "tier/chat/0"])], 90, []),
        ([filesystem("/a", 95, 5, shared=True)], 90, []),
        # What is kept for root is neither used nor to be had: 85 of 90.
        ([filesystem("/a", 85, 15, avail=5)], 90, [full("/a", 95)]),
        ([filesystem("/a", 85, 15, avail=5)], 94.5, []),
        ([filesystem("/a", 0, 0)], 90, []),  # without blocks
        ([filesystem("/a\n", 95, 5)], 90, [full("/a\\n", 95)]),
    ],
)
def test_the_most_pressured_filesystem_counts(
    filesystems: list[dict[str, Any]], watermark: float, texts: list[str]
) -> None:
    found = judge(filesystems, [], {}, [], watermark)
    assert [hold.text for hold in found] == texts
    assert all(hold.reason == WATERMARK and hold.holds_all for hold in found)


@given(st.integers(0, 2**60), st.integers(0, 2**60), st.integers(0, 2**50))
def test_what_is_said_is_past_the_mark_and_what_is_not_held_is_not(used: int, avail: int, kept: int) -> None:
    one = filesystem("/a", used, avail + kept, avail=avail)
    held = bool(judge([one], [], {}, [], 90))
    assert held == (used_percent(one) > 90)


@pytest.mark.parametrize(
    ("used", "before", "held"),
    [
        (89.5, full("/a", 91), True),
        (89.5, full("/a", 97), True),  # whatever it was
        (89.0, full("/a", 91), False),
        (89.5, full("/b", 91), False),  # another one was past the mark
        (89.5, "", False),
        (90.5, "", True),
    ],
)
def test_a_full_filesystem_lets_go_one_percent_below_the_mark(used: float, before: str, held: bool) -> None:
    one = filesystem("/a", int(used * 10), 1000 - int(used * 10))
    found = judge([one], [], {}, [], 90, [Hold(WATERMARK, before)])
    assert [hold.text for hold in found] == [full("/a", -int(-used // 1))] * held


@pytest.mark.parametrize(
    ("locations", "watermark", "texts"),
    [
        ([location("runs")], 90, []),
        (
            [location("hf_hub_cache", available=False, reason="/mnt/hf_hub_cache: nothing is mounted there")],
            90,
            ["location hf_hub_cache (/mnt/hf_hub_cache) is not available: nothing is mounted there"],
        ),
        (
            [location("data-location", available=False, reason="/mnt/data-location: missing")],
            90,
            ["data location (/mnt/data-location) is not available: missing"],
        ),
        ([location("runs", available=False)], 90, ["location runs (/mnt/runs) is not available: it was not found"]),
        ([location("runs", available=False, reason="/mnt/runs: missing")], 0, []),
    ],
)
def test_a_missing_location_holds(locations: list[dict[str, Any]], watermark: float, texts: list[str]) -> None:
    found = judge([], locations, {}, [], watermark)
    assert [hold.text for hold in found] == texts
    assert all(hold.reason == UNAVAILABLE and hold.holds_all for hold in found)


ACCOUNTS = {
    "users": {
        "ann": account(1200 * GB, 1000 * GB, 5.0),
        "bob": account(900 * GB, 1000 * GB),
        "eve": account(2000 * GB),
        "zoe": account(10**12 + 1, 10**12, 5.0),
    },
    "teams": {"vision": account(3 * 10**12, 2 * 10**12, 5.0), "ann": account(1)},
}


@pytest.mark.parametrize(
    ("user", "team", "texts"),
    [
        ("", "", []),
        ("bob", "", []),
        ("bob", "ann", []),  # a team that is called as a user is another one
        ("ann", "", ["user ann uses 1.2 TB of 1.0 TB"]),
        ("eve", "vision", ["team vision uses 3.0 TB of 2.0 TB"]),
        ("ann", "vision", ["user ann uses 1.2 TB of 1.0 TB", "team vision uses 3.0 TB of 2.0 TB"]),
        ("zoe", "", ["user zoe uses 1000000000001 B of 1000000000000 B"]),
    ],
)
@pytest.mark.parametrize("watermark", [0, 90])
def test_a_quota_holds_only_whom_it_concerns(user: str, team: str, texts: list[str], watermark: float) -> None:
    found = judge([filesystem("/a", 1, 99)], [location("runs")], ACCOUNTS, [], watermark)
    assert [hold.text for hold in found if hold.concerns(user, team)] == texts
    assert {hold.reason for hold in found} == {QUOTA} and not any(hold.holds_all for hold in found)


RUNS_ELSEWHERE = [location("runs", elsewhere=True), location("reflow")]
REFLOW_ELSEWHERE = [location("runs"), location("reflow", elsewhere=True)]


def not_known(what: str, path: str = "/mnt/runs") -> str:
    rule = "is measured by another host (daemon_shared_measured_by), ask there"
    return f"what {what} uses is not known here: {path} {rule}"


@pytest.mark.parametrize(
    ("locations", "user", "team", "unknown", "held"),
    [
        ([location("runs"), location("reflow")], "ann", "vision", [], []),
        ([], "ann", "vision", [], []),
        (RUNS_ELSEWHERE, "", "", [], []),
        (RUNS_ELSEWHERE, "ann", "", [not_known("user ann")], [not_known("user ann")]),
        # Whoever has no quota cannot have more.
        (RUNS_ELSEWHERE, "service", "vision", [not_known("user service"), not_known("team vision")], []),
        (RUNS_ELSEWHERE, "", "speech", [not_known("team speech")], [not_known("team speech")]),
        (
            REFLOW_ELSEWHERE,
            "ann",
            "speech",
            [not_known("user ann", "/mnt/reflow")],
            [not_known("user ann", "/mnt/reflow")],
        ),
        ([location("hf_hub_cache", elsewhere=True)], "ann", "speech", [], []),
    ],
)
def test_who_is_measured_by_another_host_does_not_pass_by_silence(
    locations: list[dict[str, Any]], user: str, team: str, unknown: list[str], held: list[str]
) -> None:
    quotas = Quotas(users={"service": 0}, teams={"speech": 1}, default_user=5)
    found = Elsewhere.from_json(elsewhere(locations, quotas).to_json())
    assert [hold.text for hold in found.unknown(user, team)] == unknown
    holds = found.holds(user, team)
    assert [hold.text for hold in holds] == held
    assert all(hold.reason == QUOTA and hold.concerns(user, team) and not hold.holds_all for hold in holds)


def test_who_is_only_added_up_is_held_where_he_may_be_over_quota() -> None:
    beyond = {"users": ["eve"], "others": True}
    (hold,) = judge([], [], {"users": {}, "teams": {}, "beyond": beyond}, [], 90)
    assert hold.user == "eve" and hold.text.startswith("what user eve uses is not known: only the 10000 largest users")
    quotas = Quotas(users={"eve": 5, "free": 0}, default_user=1)
    found = Elsewhere.from_json(elsewhere([], quotas, {"beyond": beyond}).to_json())
    assert [one.user for one in found.holds("new", "")] == ["new"]
    assert found.holds("free", "") == found.holds("eve", "") == found.holds("", "vision") == []
    assert elsewhere([], quotas, {"beyond": {"users": [], "others": False}}).holds("new", "") == []


def test_what_somebody_holds_is_held_without_a_watermark() -> None:
    by_hand = Hold(HELD, "the rack is being moved")
    assert judge([filesystem("/a", 95, 5)], [], {}, [by_hand], 0) == [by_hand]
    assert judge([filesystem("/a", 95, 5)], [], {}, [by_hand], 90)[0] == by_hand


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (full("/a", 93), full("/a", 94), True),
        (full("/a", 93), full("/b", 93), False),
        (full("/a", 93, "90"), full("/a", 93, "92.5"), True),
        ("user ann uses 1.2 TB of 1.0 TB", "user ann uses 999 GB of 500 GB", True),
        ("user ann1 uses 1.2 TB of 1.0 TB", "user ann2 uses 1.2 TB of 1.0 TB", False),
        ("has not judged for 2 min: x", "has not judged for 3 h: x", True),
        ("location a (/mnt/3) is not available", "location a (/mnt/4) is not available", False),
        ("moved in 3 days", "moved in 4 days", False),
    ],
)
def test_the_same_with_other_figures(one: str, other: str, same: bool) -> None:
    assert (without_figures(one) == without_figures(other)) is same
