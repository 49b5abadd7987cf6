# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records are replaced as a whole, and a record that cannot be used is said, not guessed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core import records
from stowage_core.records import RecordError


def test_written_once(tmp_path: Path) -> None:
    path = str(tmp_path / "new" / "record.json")
    assert records.read(path) is None
    assert records.write(path, {"b": 1, "a": [None, True]}) is True
    assert records.write(path, {"a": [None, True], "b": 1}) is False
    assert records.read(path) == {"a": [None, True], "b": 1}
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o644
    assert records.write(path, {"a": [None, True], "b": 1}, mode=0o600) is True
    assert os.listdir(tmp_path / "new") == ["record.json"]


def test_a_failed_write_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "record.json")
    records.write(path, {"old": 1})

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        records.write(path, {"new": 1})
    assert records.read(path) == {"old": 1}
    assert os.listdir(tmp_path) == ["record.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_damage_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(content)
    with pytest.raises(RecordError) as error:
        records.read(str(path))
    assert str(error.value).startswith(f"{path}: not ") and "\n" not in str(error.value)


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("{}")
    (tmp_path / "record.json").symlink_to("target")
    with pytest.raises(RecordError):
        records.read(str(tmp_path / "record.json"))
    records.write(str(tmp_path / "record.json"), {"a": 1})
    assert (tmp_path / "target").read_text() == "{}"


def test_remove(tmp_path: Path) -> None:
    path = str(tmp_path / "record.json")
    assert records.remove(path) is False
    records.write(path, {})
    assert records.remove(path) is True
    assert records.read(path) is None


@given(st.binary(max_size=40))
def test_names_of_any_bytes_survive(name: bytes) -> None:
    assert os.fsencode(json.loads(records.dumps({"name": os.fsdecode(name)}))["name"]) == name
