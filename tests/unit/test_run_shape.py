# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of runs and the numbers of their attempts."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import Refusal
from stowage_core.paths import check_path
from stowage_core.runs.shape import MAX_ATTEMPT, RunName, check_attempt, next_attempt


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("", "e", "r"), "user: must not be empty"),
        (("ann", "e/f", "r"), "experiment: 'e/f' may not contain a slash; it is the name of one directory"),
        (("ann", "e", "."), "run_id: '.' may not begin with a dot; choose another name"),
        (("ann", "..", "r"), "experiment: '..' may not begin with a dot; choose another name"),
        ((".stowage-trash", "e", "r"), "user: '.stowage-trash' may not begin with a dot; choose another name"),
        (("ann", "e", "a\nb"), "run_id: 'a\\nb' may not contain control characters"),
        (("ann", "e", "a\x85b"), "run_id: 'a\\xc2\\x85b' may not contain control characters"),
        (("ann", "e", "é" * 121), "run_id: is 242 bytes long; at most 240 are allowed"),
        (("ann", "e", "r "), "run_id: 'r ' may not begin or end with whitespace"),
        (("\u00a0ann", "e", "r"), "user: '\\xc2\\xa0ann' may not begin or end with whitespace"),
        (("lost+found", "e", "r"), "user: 'lost+found' is the filesystem's own directory; choose another name"),
        (("a" * 241, "e", "r"), "user: is 241 bytes long; at most 240 are allowed"),
        (("ann", "e", "\ud800"), "run_id: '\\ud800' is not a file name on this system"),
    ],
)
def test_refused(names: tuple[str, str, str], message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        RunName.checked(*names)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    "names",
    [("ann", "llama-sft", "2026-03-04 1"), ("a" * 240, "é" * 120, "r" * 240), ("ann", "\udcff", "r.1")],
)
def test_a_run_is_found_by_its_name(names: tuple[str, str, str]) -> None:
    run = RunName.checked(*names)
    assert RunName.parsed(str(run)) == run and RunName.is_one(run)
    assert f"{run.user}/{run.in_user}" == str(run)


@given(st.text())
def test_whatever_is_accepted_is_the_name_of_one_directory(name: str) -> None:
    try:
        run = RunName.checked("ann", "e", name)
    except Refusal as refusal:
        assert "\n" not in str(refusal)
        return
    assert os.path.normpath(f"/runs/{run}").split("/")[1:] == ["runs", "ann", "e", name]
    assert RunName.is_one(run)
    assert check_path(f"/runs/{run}") == f"/runs/{run}", "what is made can be rendered"


@pytest.mark.parametrize("name", ["ann", "ann/e", "ann/e/r/work", "ann//r", "/ann/e/r"])
def test_no_name_of_a_run(name: str) -> None:
    with pytest.raises(Refusal):
        RunName.parsed(name)


@pytest.mark.parametrize(
    ("names", "is_one"),
    [
        (("ann", "e", "r"), True),
        (("ann", "e"), False),
        (("ann", "e", "r", "work"), False),
        ((".stowage-trash", "pending", "17"), False),
        (("ann", "e", ".stowage-new-0"), False),
        (("", "e", "r"), False),
        (("lost+found", "e", "r"), False),
    ],
)
def test_a_run_by_where_it_is(names: tuple[str, ...], is_one: bool) -> None:
    assert RunName.is_one(names) == is_one


@pytest.mark.parametrize(
    ("given", "attempt"), [(None, None), ("next", "next"), ("1", 1), (str(MAX_ATTEMPT), MAX_ATTEMPT)]
)
def test_attempt(given: str | None, attempt: object) -> None:
    assert check_attempt(given) == attempt


@pytest.mark.parametrize("text", ["", "0", "-1", "01", "1.0", "Next", " 1", "1\n", "٣", str(MAX_ATTEMPT + 1)])
def test_no_attempt(text: str) -> None:
    with pytest.raises(Refusal, match="must be next, or a number from 1 to 999999999"):
        check_attempt(text)


@pytest.mark.parametrize(
    ("names", "number"),
    [
        ([], 1),
        (["1", "2"], 3),
        (["10", "9"], 11),
        (["7", "notes", ".stowage-new-0", "08", "-9", "1e3", "٣"], 8),
        (["99999999999999999999"], 1),
    ],
)
def test_next_attempt(names: list[str], number: int) -> None:
    assert next_attempt(names) == number


def test_no_attempt_after_the_last() -> None:
    with pytest.raises(Refusal, match="there is an attempt 999999999, and no number after it; rename that one"):
        next_attempt([str(MAX_ATTEMPT)])


@given(st.lists(st.text(max_size=8)))
def test_the_next_attempt_is_no_name_there(names: list[str]) -> None:
    assert str(next_attempt(name for name in names if name != str(MAX_ATTEMPT))) not in names
