# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors, differences, places, locks and events."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core import events, locks
from stowage_core.differences import Differences
from stowage_core.errors import Refusal, StowageError, printable
from stowage_core.places import Places


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        (Refusal("path", "must be absolute", "begin it with /"), "path: must be absolute; begin it with /"),
        (Refusal("path", "must be absolute"), "path: must be absolute"),
        (Refusal("", "a rule alone"), "a rule alone"),
    ],
)
def test_a_refusal_is_one_line(refusal: Refusal, text: str) -> None:
    assert str(refusal) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (b"plain", "plain"),
        (b"a\nb", "a\\nb"),
        (b"\xff", "\\xff"),
        ("\x1b[31m", "\\x1b[31m"),
        ("é", "é"),
        ("\ud800", "\\ud800"),
    ],
)
def test_printable(name: bytes, text: str) -> None:
    assert printable(name) == text


@given(st.binary())
def test_any_name_is_printable(name: bytes) -> None:
    assert printable(name).isprintable()


@given(st.text())
def test_any_text_is_printable(text: str) -> None:
    assert printable(text).isprintable()


def test_differences() -> None:
    differences = Differences()
    assert differences.note("mode", "0755", "0755") is False
    assert not differences.changed
    assert differences.note("owner", "root", None) is True
    differences.act("set owner")
    assert differences.changed and differences.actions == ["set owner"]
    assert differences.diff() == {"before": {"owner": None}, "after": {"owner": "root"}}


def test_places() -> None:
    assert Places().data_location_json == "/etc/stowage/data_location.json"
    assert Places.under("/x").pins_dir == "/x/run/stowage/pins"


def test_a_lock_is_exclusive(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    held = locks.try_lock(directory, b"ml.hf-cache")
    assert held is not None
    assert locks.try_lock(directory, b"ml.hf-cache") is None
    with pytest.raises(StowageError, match="^ml.hf-cache: held by another process"):
        locks.lock(directory, b"ml.hf-cache", timeout=0.1)
    os.close(held)
    os.close(locks.lock(directory, b"ml.hf-cache"))
    os.close(directory)


def test_the_host_lock(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    with (
        locks.host_lock(places),
        pytest.raises(StowageError, match="held by another process"),
        locks.host_lock(places, timeout=0.1),
    ):
        pass
    with locks.host_lock(places):
        pass


def test_events_are_bounded_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places.under(str(tmp_path))
    monkeypatch.setattr(events, "MAX_BYTES", 1000)
    for number in range(30):
        assert events.record(places, object="drive/ml/a", reason="Evicted", message=f"event {number}")
    assert sorted(os.listdir(places.var)) == ["events.jsonl", "events.jsonl.1"]
    assert [event["message"] for event in events.read(places, 2)] == ["event 28", "event 29"]
    assert os.path.getsize(places.events) < 1300


def test_an_event_that_cannot_be_written_holds_nothing_up(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    os.makedirs(os.path.dirname(places.var))
    Path(places.var).write_text("a file where the directory should be")
    assert events.record(places, object="host", reason="Test", message="lost") is False


def test_an_event_cut_short_is_left_out(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    events.record(places, object="host", reason="Test", message="whole")
    with open(places.events, "a") as stream:
        stream.write('{"message": "cut')
    assert [event["message"] for event in events.read(places)] == ["whole"]
    assert events.record(places, object="host", reason="Test", message="next") is True
    assert [event["message"] for event in events.read(places)] == ["whole", "next"]


def test_everybody_may_read_events(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    before = os.umask(0o077)
    try:
        events.record(places, object="host", reason="Test", message="whole")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (places.events, places.var)] == [0o644, 0o755]
