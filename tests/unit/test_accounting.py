# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Totals by user, team and kind, and quotas: what is exceeded, since when, and what is kept again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.accounting import exceeded, quotas
from stowage_core.accounting.exceeded import EXCEEDED, KEPT, accounts, changes
from stowage_core.accounting.quotas import Quotas
from stowage_core.accounting.totals import (
    KINDS,
    UNLISTED,
    UNMEASURED,
    UNSEEN,
    Location,
    Missing,
    Rest,
    Shares,
    Team,
    Totals,
    Unavailable,
    User,
    keep_largest,
    totals,
)
from stowage_core.layout.rules import NAMES

GB = 10**9


def runs(shares: Shares | None, size: int | None = 100, **more: Any) -> Location:
    return Location("runs", "/runs", **{"bytes": size, "measured": 10.0, "complete": True, "shares": shares, **more})


def location(name: str, size: int | None = 100, **more: Any) -> Location:
    return Location(name, f"/{name}", **{"bytes": size, "measured": 20.0, "complete": True, **more})


RUNS = runs(Shares({"ann": User(2, 60), "bob": User(1, 40)}, {"vision": Team(70, 2)}, 10.0))
REFLOW = location("reflow", 7, shares=Shares({"ann": User(reflow_bytes=5), "eve": User(reflow_bytes=2)}))


# -- Totals


def test_users_have_runs_and_reflow() -> None:
    found = totals([RUNS, REFLOW])
    assert {name: (one.bytes, one.runs, one.runs_bytes, one.reflow_bytes) for name, one in found.users.items()} == {
        "ann": (65, 2, 60, 5),
        "bob": (40, 1, 40, 0),
        "eve": (2, 0, 0, 2),
    }
    assert found.teams == {"vision": Team(70, 2)}
    assert (found.complete, found.measured, found.users_complete, found.teams_complete) == (True, 10.0, True, True)


def test_the_cache_is_the_parent_of_caches() -> None:
    cache = location("cache", 1000, shares=Shares(rest=3))
    caches = [location("hf_hub_cache", 500), location("dataset_cache", 400)]
    found = totals([cache, *caches, location("root", 9), location("state", 1)])
    assert found.tracked == {
        "runs": None,
        "reflow": None,
        "caches": 900,
        "packages": None,
        "state": 1,
        "other": 3 + 9,
    }
    assert found.tracked_bytes == 913


def test_a_host_that_measures_nothing() -> None:
    found = totals([])
    assert (found.complete, found.measured, found.users, found.tracked_bytes) == (True, None, {}, None)


@pytest.mark.parametrize(
    ("locations", "unavailable", "measured", "users_complete", "teams_complete"),
    [
        # The last complete figures of what is missing stay, with their time.
        ([runs(RUNS.shares, complete=False, reason="gone"), REFLOW], [("runs", "gone")], 10.0, False, False),
        ([RUNS, location("reflow", None, measured=None, complete=False)], [("reflow", UNMEASURED)], None, False, True),
        ([RUNS, REFLOW, location("state", complete=False, reason="gone")], [("state", "gone")], 10.0, True, True),
        # Measured by an earlier version, which did not look whose it is.
        ([runs(None)], [("runs", UNMEASURED)], None, False, False),
    ],
)
def test_incomplete(
    locations: list[Location],
    unavailable: list[tuple[str, str]],
    measured: float | None,
    users_complete: bool,
    teams_complete: bool,
) -> None:
    found = totals(locations)
    assert [(one.location, one.reason) for one in found.unavailable] == unavailable
    assert (found.complete, found.measured) == (False, measured)
    assert (found.users_complete, found.teams_complete) == (users_complete, teams_complete)
    assert locations[0].shares is None or found.users["ann"].runs_bytes == 60


def test_damaged_stamps_leave_the_teams_as_they_were() -> None:
    damaged = Unavailable("runs", "/var/lib/stowage/run_teams/ann.json", "not valid JSON")
    found = totals([runs(Shares({"ann": User(1, 50)}, {"vision": Team(70, 2)}, 4.0, [damaged]))])
    assert list(found.unavailable) == [damaged]
    assert (found.complete, found.users_complete, found.teams_complete) == (False, True, False)
    assert found.measured == 4.0 and found.teams == {"vision": Team(70, 2)}


names = st.text(min_size=1, max_size=5)
counts = st.integers(min_value=0, max_value=2**62)
shares_of_runs = st.builds(
    Shares,
    st.dictionaries(names, st.builds(User, counts, counts)),
    st.dictionaries(names, st.builds(Team, counts, counts)),
    st.just(1.0),
    missing=st.none() | st.builds(Missing, st.dictionaries(names, names), st.dictionaries(names, names), st.booleans()),
)
shares_of_reflow = st.builds(
    Shares,
    st.dictionaries(names, st.builds(User, reflow_bytes=counts)),
    unproven=st.builds(Rest, counts, counts, counts, names),
    beyond=st.builds(Rest, counts, counts, counts, names),
)
some = st.lists(st.sampled_from([name for name in NAMES if name not in ("runs", "reflow", "cache")]), unique=True)


@given(shares_of_runs, shares_of_reflow, some, st.data())
def test_sums_agree(of_runs: Shares, of_reflow: Shares, others: list[str], data: st.DataObject) -> None:
    sizes = {name: data.draw(counts) for name in others}
    cache, rest, root = data.draw(counts), data.draw(counts), data.draw(counts)
    found = totals(
        [
            runs(of_runs, 11),
            location("reflow", 13, shares=of_reflow),
            location("cache", cache, shares=Shares(rest=rest)),
            location("root", root),
            *(location(name, size) for name, size in sizes.items()),
        ]
    )
    users = sum(one.runs_bytes for one in of_runs.users.values())
    reflow = sum(one.reflow_bytes for one in of_reflow.users.values())
    assert sum(one.bytes for one in found.users.values()) == users + reflow
    assert set(found.users) == {*of_runs.users, *of_reflow.users}
    assert sum(one.runs for one in found.users.values()) == sum(one.runs for one in of_runs.users.values())
    assert found.tracked_bytes == 11 + 13 + rest + root + sum(sizes.values())
    assert set(found.tracked) == set(KINDS)


@given(shares_of_runs | shares_of_reflow)
def test_shares_survive_a_record(shares: Shares) -> None:
    assert Shares.from_json(json.loads(json.dumps(shares.to_json()))) == shares


@pytest.mark.parametrize(
    "value",
    [
        {},
        {**Shares().to_json(), "users": []},
        {**Shares().to_json(), "users": {"ann": {"runs": "1"}}},
        {**Shares().to_json(), "teams": {"vision": 1}},
        {**Shares().to_json(), "rest": "much"},
        {**Shares().to_json(), "missing": {"users": [], "teams": {}, "unseen": False}},
        {**Shares().to_json(), "missing": {"users": {}, "teams": {}, "unseen": "no"}},
        {**Shares().to_json(), "damaged": [{"path": "/x"}]},
        {**Shares().to_json(), "unproven": {"count": "1", "bytes": 0, "first": ""}},
    ],
)
def test_what_are_no_shares(value: dict[str, Any]) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError)):
        Shares.from_json(value)


# -- Quotas


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], ["must be a mapping with users, teams, default_user and default_team"]),
        ({"user": {}}, ["user: no such quota; did you mean users?"]),
        ({"users": ["ann"]}, ["users: must be a mapping of names to sizes"]),
        (
            {"users": {"ann": "lots"}, "default_team": -1},
            [
                "users: ann: 'lots' is not a size; write bytes or a quantity such as 500G or 4Ti",
                "default_team: -1 is not a whole number of bytes from 0 to 2^63-1",
            ],
        ),
        (
            {"users": {"a/b": "1T", "": 5, ".x": 5}, "teams": {"a\nb": 5}},
            [
                "users: 'a/b' may not contain a slash; it is the name of one directory",
                "users: must not be empty",
                "users: '.x' may not begin with a dot; choose another name",
                r"teams: 'a\nb' may not contain control characters",
            ],
        ),
        ({"users": {"ann": None}}, ["users: ann: must be a whole number of bytes or a quantity such as 500G or 4Ti"]),
        ({"users": {"ann": "1Ti", "bob": 0}, "teams": None, "default_user": "500G", "default_team": 0}, []),
    ],
)
def test_what_is_wrong_with_quotas(value: Any, said: list[str]) -> None:
    assert quotas.problems_of(value) == said


def test_defaults_and_exceptions() -> None:
    found = Quotas.of({"users": {"ann": "1Ti", "root": 0}, "default_user": "500G", "teams": {"vision": 7}})
    assert [found.of_user(name) for name in ("ann", "root", "bob")] == [1 << 40, None, 500 * GB]
    assert [found.of_team(name) for name in ("vision", "speech")] == [7, None]
    assert Quotas.of({}) == Quotas.of({"users": None, "default_user": None}) == Quotas()


# -- What is exceeded


def of(size: int | None, complete: bool = True) -> Totals:
    """Return totals in which one user has so much; None is nothing at all."""
    users = {} if size is None else {"ann": User(1, size)}
    return Totals(5.0, [], users, complete, {}, True, {})


def one(value: dict[str, Any]) -> tuple[int | None, float | None]:
    entry = value["users"]["ann"]
    return entry["quota"], entry["exceeded_since"]


LIMIT = Quotas(users={"ann": 100})


@pytest.mark.parametrize(
    ("size", "complete", "limit", "since", "reason"),
    [
        (101, True, LIMIT, 1.0, ""),  # still
        (101, False, LIMIT, 1.0, ""),
        (100, True, LIMIT, None, KEPT),
        (100, False, LIMIT, 1.0, ""),  # what is missing has not become less
        (101, True, Quotas(users={"ann": 200}), None, KEPT),
        (101, False, Quotas(users={"ann": 200}), None, KEPT),
        (101, False, Quotas(), None, KEPT),
        (50, False, Quotas(users={"ann": 60}), 1.0, ""),  # lowered
    ],
)
def test_an_exceeded_quota(size: int, complete: bool, limit: Quotas, since: float | None, reason: str) -> None:
    before = accounts(of(150), LIMIT, {}, 1.0)
    assert one(before) == (100, 1.0)
    after = accounts(of(size, complete), limit, before, 2.0)
    assert one(after) == (limit.of_user("ann"), since)
    assert [change.reason for change in changes(before, after)] == ([reason] if reason else [])


def test_words() -> None:
    kept, over = (accounts(of(size), LIMIT, {}, 1.0) for size in (90, 101))
    assert changes({}, over) == [("user/ann", EXCEEDED, "user ann uses 101 B of 100 B")]
    assert changes(over, kept) == [("user/ann", KEPT, "user ann uses 90 B of 100 B, which is within the quota again")]
    without = accounts(of(101), Quotas(), over, 2.0)
    assert changes(over, without) == [("user/ann", KEPT, "user ann has no quota any more")]
    gone = accounts(of(None), LIMIT, over, 2.0)
    assert changes(over, gone) == [("user/ann", KEPT, "user ann has nothing any more")]


def partial(users: dict[str, User], teams: dict[str, Team], missing: Missing) -> Totals:
    """Return totals of runs that were measured, and not to the end."""
    return totals([runs(Shares(users, teams, 10.0, missing=missing), complete=False, reason="ann/x: no"), REFLOW])


def test_one_whose_part_lacks_something_freezes_nobody_else() -> None:
    limits = Quotas(users={"ann": 50, "bob": 30, "eve": 1}, teams={"vision": 60, "speech": 1})
    teams = {"vision": Team(70, 2), "speech": Team(5, 1)}
    before = accounts(totals([runs(Shares(dict(RUNS.shares.users), teams, 10.0)), REFLOW]), limits, {}, 1.0)
    assert [one["exceeded_since"] for one in before["users"].values()] == [1.0, 1.0, 1.0]
    found = partial(
        {"ann": User(1, 10), "bob": User(1, 20)},
        {"vision": Team(10, 1), "speech": Team(1, 1)},
        Missing({"ann": "ann/x: no"}, {"vision": "ann/x: no"}),
    )
    now = accounts(found, limits, before, 2.0)
    users = {name: (one["bytes"], one["exceeded_since"], one["missing"]) for name, one in now["users"].items()}
    assert users == {"ann": (65, 1.0, "ann/x: no"), "bob": (20, None, ""), "eve": (2, 1.0, "")}
    shown = {name: (one["bytes"], one["exceeded_since"], one["missing"]) for name, one in now["teams"].items()}
    assert shown == {"vision": (70, 1.0, "ann/x: no"), "speech": (1, None, "")}
    assert not now["complete"] and [one["location"] for one in now["unavailable"]] == ["runs"]
    more = partial({"ann": User(1, 90)}, {}, Missing({"ann": "ann/x: no"}))
    later = accounts(more, limits, now, 3.0)
    assert later["users"]["ann"]["bytes"] == 95 and "bob" not in later["users"], "more was found, and bob has nothing"


def test_who_was_not_come_across_keeps_what_he_had() -> None:
    limits = Quotas(users={"ann": 50, "bob": 30}, teams={"vision": 60})
    before = accounts(totals([RUNS, REFLOW]), limits, {}, 1.0)
    # What is left of ann is in reflow; of bob nothing was seen.
    now = accounts(partial({"carl": User(1, 7)}, {}, Missing(unseen=True)), limits, before, 2.0)
    assert {name: one["bytes"] for name, one in now["users"].items()} == {"ann": 65, "bob": 40, "eve": 2, "carl": 7}
    assert now["users"]["ann"]["exceeded_since"] == now["users"]["bob"]["exceeded_since"] == 1.0
    assert now["teams"]["vision"]["exceeded_since"] == 1.0 and now["teams"]["vision"]["bytes"] == 70
    assert now["users"]["ann"]["missing"] == UNSEEN


def test_only_the_largest_are_told_from_each_other() -> None:
    users = {name: User(reflow_bytes=size) for name, size in (("ann", 5), ("bob", 50), ("cid", 6), ("dan", 50))}
    rest = keep_largest(users, Rest(), 3)
    assert set(users) == {"bob", "cid", "dan"} and rest == Rest(1, 5, 5, "ann")
    assert keep_largest(users, rest, 2) == Rest(2, 11, 6, "ann") and set(users) == {"bob", "dan"}
    assert keep_largest(users, rest, 2) == rest


def test_who_is_only_added_up_evades_no_quota() -> None:
    beyond = Shares({"ann": User(reflow_bytes=900)}, beyond=Rest(7, 3000, 800, "x"))
    reflow = location("reflow", 5000, shares=beyond)
    limits = Quotas({"eve": 700, "zoe": 800, "ann": 500, "free": 0}, default_user=1000)
    found = accounts(totals([RUNS, reflow]), limits, {}, 1.0)
    # Of them nobody has more than 800, so that of those with less eve alone may be over.
    assert (found["beyond"]["users"], found["beyond"]["others"], found["complete"]) == (["eve"], False, False)
    assert found["users"]["ann"]["exceeded_since"]
    in_runs = [name for name in RUNS.shares.users if name != "ann"]  # type: ignore[union-attr]
    assert all(found["users"][name]["missing"] == UNLISTED for name in in_runs)
    empty = location("reflow", 5000, shares=Shares(beyond=Rest(7, 0, 0, "x")))
    assert not any(one["missing"] for one in accounts(totals([RUNS, empty]), limits, {}, 1.0)["users"].values())
    tight = accounts(totals([RUNS, reflow]), Quotas(default_user=799), {}, 1.0)
    assert tight["beyond"]["others"] is True
    assert accounts(totals([RUNS, REFLOW]), Quotas(default_user=1), {}, 1.0)["beyond"]["others"] is False


def test_quotas_of_whom_nothing_is_known_are_told() -> None:
    limits = Quotas(users={"ann": 1, "anne": 1, "service": 0}, teams={"visoin": 1})
    assert accounts(totals([RUNS, REFLOW]), limits, {}, 1.0)["unmatched"] == {"users": ["anne"], "teams": ["visoin"]}


def test_figures_that_got_lost_are_no_zero() -> None:
    over = accounts(of(101), LIMIT, {}, 1.0)
    assert accounts(of(None, complete=False), LIMIT, over, 2.0)["users"] == over["users"]
    assert accounts(of(None), LIMIT, over, 2.0)["users"] == {}


@pytest.mark.parametrize("value", [{"users": {}}, {"users": [], "teams": {}}, {"users": {"ann": 5}, "teams": {}}])
def test_what_are_no_accounts(value: dict[str, Any]) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError)):
        exceeded.check(value)


@given(shares_of_runs, shares_of_reflow)
def test_accounts_survive_a_record(of_runs: Shares, of_reflow: Shares) -> None:
    found = totals([runs(of_runs), location("reflow", shares=of_reflow)])
    made = accounts(found, Quotas(default_user=5, default_team=9), {}, 1.0)
    recorded = json.loads(json.dumps(made))
    exceeded.check(recorded)
    assert recorded == made and accounts(found, Quotas(default_user=5, default_team=9), recorded, 2.0) == made
