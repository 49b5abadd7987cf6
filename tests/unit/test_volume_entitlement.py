# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a host's volumes a run may read, by whose run it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.volumes.declared import Grant
from stowage_core.volumes.entitled import Entitlement, Whose, covers, entitled, is_covered, is_granted, outermost

ANN = Whose("ann/tune/1", "ann", "vision")
BOB = Whose("bob/tune/1", "bob", "")


@pytest.mark.parametrize(
    ("grant", "whose", "granted"),
    [
        (Grant("", users=("ann",)), ANN, True),
        (Grant("", users=("ann",)), BOB, False),
        (Grant("", users=("bob", "ann")), BOB, True),
        (Grant("", teams=("vision",)), ANN, True),
        (Grant("", teams=("speech",)), ANN, False),
        (Grant("", runs=("ann/tune/1",)), ANN, True),
        (Grant("", runs=("ann/tune/2",)), ANN, False),
        (Grant(""), ANN, False),
        # A run without a team is in none, whatever a team is called.
        (Grant("", teams=("",)), BOB, False),
        # A user is no team, and a team is no user.
        (Grant("", users=("vision",)), ANN, False),
        (Grant("", teams=("ann",)), ANN, False),
        (Grant("", users=("ann/tune/1",)), ANN, False),
        (Grant("", users=("Ann",)), ANN, False),
    ],
)
def test_a_grant(grant: Grant, whose: Whose, granted: bool) -> None:
    assert is_granted(grant, whose) is granted


@pytest.mark.parametrize(
    ("sub_paths", "outer"),
    [
        ([], []),
        (["a", "b"], ["a", "b"]),
        (["a/b", "a"], ["a"]),
        (["a", "ab", "a-b"], ["a", "a-b", "ab"]),
        (["", "a", "b/c"], [""]),
        (["a/b/c", "a/b", "a/c"], ["a/b", "a/c"]),
        (["a", "a"], ["a"]),
    ],
)
def test_the_outer_of_folders_in_each_other(sub_paths: list[str], outer: list[str]) -> None:
    assert outermost(sub_paths) == outer


def test_what_several_grants_give_is_put_together() -> None:
    grants = {
        "models": [Grant("llama/7b", users=("ann",)), Grant("llama", teams=("vision",)), Grant("qwen", users=("bob",))],
        "all": [Grant("", runs=("ann/tune/1",)), Grant("x", users=("ann",))],
        "none": [],
        "other": [Grant("", users=("eve",))],
    }
    assert entitled(grants, ANN) == [Entitlement("all", ""), Entitlement("models", "llama")]
    assert entitled(grants, BOB) == [Entitlement("models", "qwen")]
    assert entitled({}, ANN) == []


def test_what_is_covered() -> None:
    have = [Entitlement("models", "llama"), Entitlement("all", "")]
    assert is_covered(have, "models", "llama/7b") and is_covered(have, "all", "") and is_covered(have, "all", "x")
    assert not is_covered(have, "models", "") and not is_covered(have, "models", "llama2")
    assert not is_covered(have, "others", "llama")


PARTS = st.lists(st.sampled_from(["a", "b", "ab", "a-b"]), max_size=4).map("/".join)
NAMES = st.sampled_from(["ann", "bob", "vision", "speech"])
RUNS = st.sampled_from(["ann/tune/1", "bob/tune/1"])
GRANTS = st.builds(
    Grant,
    PARTS,
    *(st.lists(names, max_size=2).map(tuple) for names in (NAMES, NAMES, RUNS)),
)
VOLUMES = st.dictionaries(st.sampled_from(["models", "data"]), st.lists(GRANTS, max_size=5))
WHOSE = st.sampled_from([ANN, BOB, Whose("vision/tune/1", "vision", "speech")])


@given(st.lists(PARTS))
def test_outermost_folders_hold_all_and_none_holds_another(sub_paths: list[str]) -> None:
    found = outermost(sub_paths)
    assert set(found) <= set(sub_paths)
    assert all(any(covers(outer, path) for outer in found) for path in sub_paths)
    assert not any(covers(one, other) for one in found for other in found if one != other)


@given(VOLUMES, WHOSE)
def test_a_run_has_what_a_grant_for_it_says_and_no_more(volumes: dict[str, list[Grant]], whose: Whose) -> None:
    found = entitled(volumes, whose)
    for volume, grants in volumes.items():
        for grant in grants:
            assert not is_granted(grant, whose) or is_covered(found, volume, grant.sub_path)
    for volume, sub_path in found:
        assert any(grant.sub_path == sub_path and is_granted(grant, whose) for grant in volumes[volume])
    assert len(set(found)) == len(found)


@given(VOLUMES, st.sampled_from(["models", "data"]), GRANTS)
def test_another_grant_takes_nothing_away(volumes: dict[str, list[Grant]], volume: str, grant: Grant) -> None:
    more = {**volumes, volume: [*volumes.get(volume, []), grant]}
    found = entitled(more, ANN)
    assert all(is_covered(found, *one) for one in entitled(volumes, ANN))
