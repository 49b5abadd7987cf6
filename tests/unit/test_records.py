# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records are replaced as a whole, and a record that cannot be used is said, not guessed."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
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


def test_made_readable_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        records.write(str(tmp_path / "a" / "b" / "record.json"), {})
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("a", "a/b", "a/b/record.json")]
    assert modes == [0o755, 0o755, 0o644]


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    left = [".layout.json.a1b2c3_d", ".ml.cache.json.abcdefgh", ".stowage.env.abcdefgh"]
    others = [
        "layout.json",
        ".hidden",
        ".layout.json",
        "layout.json.abcdefgh",
        ".layout.json.ABCDEFGH",
        ".x.txt.abcdefgh",
    ]
    for name in [*left, *others]:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1.0, 1.0))
    (tmp_path / ".new.json.abcdefgh").touch()
    (tmp_path / ".folder.json.abcdefgh").mkdir()
    os.utime(tmp_path / ".folder.json.abcdefgh", (1.0, 1.0))
    (tmp_path / ".link.json.abcdefgh").symlink_to("layout.json")
    assert sorted(records.sweep(str(tmp_path))) == sorted(left)
    kept = [*others, ".new.json.abcdefgh", ".folder.json.abcdefgh", ".link.json.abcdefgh"]
    assert sorted(os.listdir(tmp_path)) == sorted(kept)
    assert records.sweep(str(tmp_path / "missing")) == []


def test_a_writer_that_is_killed_leaves_what_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", lambda *_names: os._exit(9))
    pid = os.fork()
    if not pid:
        records.write(str(tmp_path / "record.json"), {})
    os.waitpid(pid, 0)
    assert len(os.listdir(tmp_path)) == 1
    assert len(records.sweep(str(tmp_path), older_than_s=0.0)) == 1 and os.listdir(tmp_path) == []


@dataclass
class Kept:
    name: str
    size: int
    used: float | None
    whole: bool = True


def test_a_record_of_the_declared_types() -> None:
    assert records.typed(Kept, {"name": "a", "size": 1, "used": None}) == Kept("a", 1, None)
    assert records.typed(Kept, {"name": "a", "size": 1, "used": 2, "whole": False}).used == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 1},
        {"name": None},
        {"size": "4Ti"},
        {"size": 1.5},
        {"size": True},
        {"used": "soon"},
        {"used": float("inf")},
        {"used": float("nan")},
        {"whole": 1},
        {"more": 1},
    ],
)
def test_a_record_of_other_types(wrong: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        records.typed(Kept, {"name": "a", "size": 1, "used": None, **wrong})
