# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stamps of runs: of which directory they are true, and how they are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core import records
from stowage_core.errors import Refusal
from stowage_core.places import Places
from stowage_core.records import RecordError
from stowage_core.runs import stamps
from stowage_core.runs.shape import RunName
from stowage_core.runs.stamps import Stamp
from stowage_core.syscalls import birth_time


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path / "host"))


ANN = RunName("ann", "sft", "r1")


def test_a_stamp_is_of_one_directory(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with opened(tmp_path / "one") as one, opened(tmp_path / "other") as other:
        stamp = Stamp.of(one, "vision", 1.0)
        assert stamp.birth == birth_time(one)
        assert stamp.matches(one) and not stamp.matches(other)
    (tmp_path / "one").rename(tmp_path / "moved")
    with opened(tmp_path / "moved") as moved:
        assert stamp.matches(moved)


@pytest.mark.parametrize(
    ("inode", "birth", "matches"),
    [(7, 100, True), (7, 101, False), (8, 100, False), (7, None, True), (8, None, False)],
)
def test_what_is_told_of_a_birth_counts(inode: int, birth: int | None, matches: bool) -> None:
    assert Stamp("vision", 7, 100, 1.0).is_of(inode, birth) == matches
    assert Stamp("vision", 7, None, 1.0).is_of(inode, birth) == (inode == 7)


def test_kept_by_user(places: Places) -> None:
    assert stamps.load_all(places) == {}
    first, second, other = Stamp("vision", 1, 2, 3.0), Stamp("speech", 4, None, 5.0), Stamp("vision", 6, 7, 8.0)
    stamps.put(places, ANN, first)
    stamps.put(places, ANN._replace(run_id="r2"), second)
    stamps.put(places, ANN._replace(user="bob"), other)
    assert stamps.load_all(places) == {"ann/sft/r1": first, "ann/sft/r2": second, "bob/sft/r1": other}
    assert stamps.load(places, "ann") == {"sft/r1": first, "sft/r2": second}
    assert (stamps.stamp_of(places, ANN), stamps.stamp_of(places, ANN._replace(run_id="r3"))) == (first, None)
    assert os.stat(stamps.record_path(places, ANN)).st_mode & 0o777 == 0o644
    stamps.put(places, ANN, other)
    stamps.remove(places, ANN, first)
    assert stamps.load(places, "ann")["sft/r1"] == other, "that of another directory stays"
    stamps.remove(places, ANN, other)
    stamps.remove(places, ANN._replace(run_id="r2"), second)
    assert stamps.load_all(places) == {"bob/sft/r1": other}
    assert os.listdir(places.run_teams_dir) == ["bob"], "nothing is left of a user without runs"


def test_one_more_run_is_one_more_file(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: a sweep of thousands of runs is one experiment."""
    for number in range(20):
        stamps.put(places, ANN._replace(run_id=f"r{number}"), Stamp("vision", number, 2, 3.0))
    before = {entry.name: entry.inode() for entry in os.scandir(os.path.dirname(stamps.record_path(places, ANN)))}
    reads: list[str] = []
    read = records.read
    monkeypatch.setattr(records, "read", lambda path, *more: reads.append(path) or read(path, *more))
    stamps.put(places, ANN._replace(run_id="new"), Stamp("vision", 20, 2, 3.0))
    after = {entry.name: entry.inode() for entry in os.scandir(os.path.dirname(stamps.record_path(places, ANN)))}
    assert set(after) - set(before) == {"new.json"} and before.items() <= after.items()
    assert [os.path.basename(path) for path in reads] == ["new.json"]


def test_what_a_killed_writer_has_left_is_no_stamp(places: Places) -> None:
    stamps.put(places, ANN, Stamp("vision", 1, 2, 3.0))
    (directory,) = stamps.directories(places)
    assert directory == os.path.dirname(stamps.record_path(places, ANN))
    left = Path(directory, ".r2.json.abcdefgh")
    left.write_text("{")
    assert list(stamps.load_all(places)) == ["ann/sft/r1"]
    assert records.sweep(directory, older_than_s=-1) == [left.name]


@given(st.text(min_size=1, max_size=60))
def test_any_name_that_a_user_may_have(tmp_path_factory: pytest.TempPathFactory, user: str) -> None:
    try:
        run = RunName.checked(user, "sft", "r1")
    except Refusal:
        return
    places = Places.under(str(tmp_path_factory.mktemp("host")))
    stamps.put(places, run, Stamp("vision", 1, 2, 3.0))
    assert list(stamps.load_all(places)) == [str(run)]


def test_the_longest_names(places: Places) -> None:
    stamps.put(places, RunName.checked("a" * 240, "b" * 240, "c" * 240), Stamp("vision", 1, 2, 3.0))
    assert len(stamps.load_all(places)) == 1


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"team": []},
        {"team": "vision", "inode": "1", "birth": 2, "created": 3.0},
        {"team": "vision", "inode": 1, "created": 3.0},
        {"team": None, "inode": 1, "birth": 2, "created": 3.0},
        {"team": "vision", "inode": 1, "birth": 2, "created": 3.0, "more": 1},
    ],
)
def test_a_damaged_record_is_never_no_team(places: Places, value: dict[str, Any]) -> None:
    bob, stamp = ANN._replace(user="bob"), Stamp("vision", 1, 2, 3.0)
    stamps.put(places, bob, stamp)
    records.write(stamps.record_path(places, ANN), value)
    message = r"ann/sft/r1\.json: not the stamp of a run .*; restore it, or"
    for load in (lambda: stamps.load_all(places), lambda: stamps.load(places, "ann")):
        with pytest.raises(RecordError, match=message):
            load()
    found, (problem,) = stamps.readable(places)
    assert found == {bob: stamp} and "ann/sft/r1.json" in str(problem)
    with pytest.raises(RecordError):
        stamps.put(places, ANN, Stamp("vision", 1, 2, 3.0))
    assert records.read(stamps.record_path(places, ANN)) == value, "it is not written over"


def test_stamps_follow_a_location_that_is_moved(places: Places, tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    runs = [ANN, ANN._replace(run_id="r2"), ANN._replace(user="bob"), ANN._replace(user="eve")]
    for root in (before, after):
        for run in runs[:3]:
            (root / str(run)).mkdir(parents=True)
    for run in runs[:2]:
        with opened(before / str(run)) as fd:
            stamps.put(places, run, Stamp.of(fd, "vision", 1.0))
    for run in runs[2:]:  # of another directory, and of none
        stamps.put(places, run, Stamp("speech", 1, 2, 3.0))
    for _again in range(2):
        with opened(before) as before_fd, opened(after) as after_fd:
            stamps.follow(places, before_fd, after_fd)
        known = stamps.load_all(places)
        for run in runs[:2]:
            with opened(after / str(run)) as fd:
                assert known[str(run)] == Stamp.of(fd, "vision", 1.0)
        assert known["bob/sft/r1"] == known["eve/sft/r1"] == Stamp("speech", 1, 2, 3.0)
