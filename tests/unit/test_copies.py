# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records of copies: they change only when something material does."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from stowage_core import records
from stowage_core.copies import present as copies
from stowage_core.copies.present import CopyRecord
from stowage_core.places import Places
from stowage_core.records import RecordError

GIB = 1 << 30
BEFORE = CopyRecord("ml", "a", "1", "", 10 * GIB, 10 * GIB, 100, 120, True, 1000.0, 500.0)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "filesystem", "written"),
    [
        ({}, 1000 * GIB, False),
        ({"measured": 2000.0, "files": 101}, 1000 * GIB, False),
        ({"bytes": 11 * GIB}, 1000 * GIB, False),
        ({"bytes": 11 * GIB + 1}, 1000 * GIB, True),
        ({"allocated": 9 * GIB - 1}, 1000 * GIB, True),
        ({"bytes": 10 * GIB + GIB // 2}, 50 * GIB, False),
        ({"bytes": 10 * GIB + GIB // 2 + 1}, 50 * GIB, True),
        ({"complete": False}, 1000 * GIB, True),
        ({"path": "x"}, 1000 * GIB, True),
        ({"inodes": 999}, 1000 * GIB, False),
        ({"identity": "2"}, 1000 * GIB, True),
    ],
)
def test_what_is_material(places: Places, change: dict[str, Any], filesystem: int, written: bool) -> None:
    copies.write_record(places, "ml.a", BEFORE)
    after = replace(BEFORE, last_used=None, **change)
    assert copies.record_measured(places, "ml.a", after, filesystem) is written
    now = copies.load_record(places, "ml.a")
    if written:
        assert now == (after if after.identity != BEFORE.identity else replace(after, last_used=500.0))
    else:
        assert now == BEFORE


def test_a_record_from_before_inodes_were_counted(places: Places) -> None:
    value = {key: one for key, one in asdict(BEFORE).items() if key != "inodes"}
    records.write(copies.record_path(places, "ml.a"), value)
    known = copies.load_record(places, "ml.a")
    assert known == replace(BEFORE, inodes=None)
    assert copies.record_measured(places, "ml.a", BEFORE, 1000 * GIB)
    assert copies.load_record(places, "ml.a") == BEFORE


@pytest.mark.parametrize(("before", "after", "written"), [(0, 1, True), (9, 0, True), (5, 9, False), (None, 0, False)])
def test_whether_files_have_several_names_is_material(
    places: Places, before: int | None, after: int, written: bool
) -> None:
    copies.write_record(places, "ml.a", replace(BEFORE, linked=before))
    assert copies.record_measured(places, "ml.a", replace(BEFORE, linked=after), 1000 * GIB) is written


def test_a_copy_appears_and_goes(places: Places) -> None:
    assert copies.load_record(places, "ml.a") is None
    assert copies.record_measured(places, "ml.a", BEFORE, GIB)
    assert copies.forget(places, "ml.a") and not copies.forget(places, "ml.a")


@pytest.mark.parametrize(
    ("before", "now", "written"), [(None, 1.0, True), (0.0, 3599.0, False), (0.0, 3600.0, True), (9.0, 5.0, True)]
)
def test_use_is_recorded_once_an_hour(places: Places, before: Any, now: float, written: bool) -> None:
    copies.write_record(places, "ml.a", replace(BEFORE, last_used=before))
    assert copies.touch_used(places, "ml.a", "1", now=now) is written
    assert copies.load_record(places, "ml.a") == replace(BEFORE, last_used=now if written else before)


HERE = copies.Copy("ml.a", "1", 7.0)


def watch(places: Places, boot: str, now: float, copy: copies.Copy = HERE, ttl: float = 48000.0) -> float:
    return copies.watch(places, copy, ttl, boot, now, 900.0)


def test_a_copy_is_watched(places: Places) -> None:
    assert watch(places, "a", 100.0) == 0.0 and copies.load_record(places, "ml.a") is None
    copies.write_record(places, "ml.a", BEFORE)
    for boot, now, unused in (
        ("a", 100.0, 0.0),
        ("a", 399.0, 0.0),  # not worth a write
        ("a", 400.0, 300.0),
        ("a", 9400.0, 2300.0),  # nobody looked for long: that counts as so much at most
        ("b", 50.0, 2300.0),
        ("b", 650.0, 2900.0),
        ("b", 640.0, 2900.0),
        ("b", 950.0, 3210.0),
    ):
        assert watch(places, boot, now) == unused, (boot, now)
    known = copies.load_record(places, "ml.a")
    assert known is not None and known.last_used == BEFORE.last_used
    assert copies.record_measured(places, "ml.a", replace(BEFORE, files=5, complete=False), GIB)
    assert watch(places, "b", 1350.0) == 3610.0, "measuring does not forget it"
    assert watch(places, "b", 1700.0, HERE._replace(created=8.0)) == 0.0, "one of that name in another data location"
    assert watch(places, "b", 2100.0, HERE._replace(identity="2")) == 0.0


@pytest.mark.parametrize("last_used", [None, 0.0, 5.0, 1e12])
def test_use_begins_it_anew(places: Places, last_used: float | None) -> None:
    copies.write_record(places, "ml.a", replace(BEFORE, last_used=last_used))
    watch(places, "a", 100.0)
    assert watch(places, "a", 700.0) == 600.0
    assert copies.touch_used(places, "ml.a", "1", now=6.0)
    assert copies.load_record(places, "ml.a") == replace(BEFORE, last_used=6.0)
    assert not copies.touch_used(places, "ml.a", "1", now=7.0)
    assert (watch(places, "a", 990.0), watch(places, "a", 1000.0)) == (0.0, 0.0)
    assert watch(places, "a", 1300.0) == 310.0


def test_use_of_a_copy_that_was_never_measured(places: Places) -> None:
    assert copies.touch_used(places, "ml.a", "1", "x", now=5.0)
    assert copies.load_record(places, "ml.a") == CopyRecord("ml", "a", "1", "x", last_used=5.0)


@pytest.mark.parametrize("text", ["{", "{}", '{"workspace": "ml", "stray": 1}'])
def test_an_unreadable_record_is_an_error(places: Places, text: str) -> None:
    path = Path(copies.record_path(places, "ml.a"))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(RecordError, match=r"ml\.a\.json: not "):
        copies.load_record(places, "ml.a")


def test_names_in_events() -> None:
    assert copies.described("ml.hf-cache") == "drive/ml/hf-cache"
