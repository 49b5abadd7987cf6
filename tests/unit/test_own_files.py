# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are replaced only when they are ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stowage_core.differences import Differences
from stowage_core.errors import Refusal
from stowage_core.own_files import HEADER, in_lines, is_ours, is_there, keep, parse_mode, read, read_ours

OURS = HEADER.encode() + b"\n" + b"A=1\n" * 100_000


def test_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OURS)
    (tmp_path / "file").chmod(0o640)
    assert read_ours(str(tmp_path / "file")) == read(str(tmp_path / "file")) == (OURS, 0o640)


def test_what_is_ours() -> None:
    assert is_ours(OURS)
    assert not is_ours(b"A=1\n" + OURS) and not is_ours(b"") and not is_ours(OURS[1:])


def test_whether_ours_is_there(tmp_path: Path) -> None:
    (tmp_path / "ours").write_bytes(OURS)
    (tmp_path / "theirs").write_bytes(b"A=1\n")
    (tmp_path / "link").symlink_to("ours")
    assert [is_there(str(tmp_path / name)) for name in ("ours", "theirs", "link", "none")] == [
        True,
        False,
        False,
        False,
    ]


def test_others_are_read_where_they_may_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"A=1\n")
    assert read(str(tmp_path / "file")) == (b"A=1\n", 0o644)


def test_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read_ours(str(tmp_path / "missing")) is None
    assert read_ours(str(tmp_path / "file" / "below")) is None


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("foreign", "was not written by Stowage; name another file, or move this one away"),
        ("empty", "was not written by Stowage; name another file, or move this one away"),
        ("link", "is a symbolic link; name the file itself, or remove the link"),
        ("directory", "is not a regular file; name another one, or move it away"),
        ("fifo", "is not a regular file; name another one, or move it away"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, kind: str, rule: str) -> None:
    path = tmp_path / "file"
    if kind == "foreign":
        path.write_bytes(b"A=1\n")
    elif kind == "empty":
        path.touch()
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(Refusal) as refusal:
        read_ours(str(path), "environment_file")
    assert str(refusal.value) == f"environment_file: {path} {rule}"


@pytest.mark.parametrize(("text", "mode"), [("0755", 0o755), ("02775", 0o2775), ("0000", 0)])
def test_mode(text: str, mode: int) -> None:
    assert parse_mode(text, "mode") == mode


@pytest.mark.parametrize("text", ["493", "755", "1023", "u+x", "", "0999", "07777 ", "0755\n"])
def test_a_mode_that_yaml_may_have_changed(text: str) -> None:
    with pytest.raises(Refusal, match="^files: .* must be an octal number that begins with 0; write it in quotes"):
        parse_mode(text, "files")


def test_a_diff_shows_lines_and_tells_every_difference() -> None:
    assert in_lines(None) is None
    assert in_lines(b"A=1\nB=\xff\n") == ["A=1", "B=\\xff", ""]
    assert in_lines(b"A=1") != in_lines(b"A=1\n")


def test_a_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    for check_mode, wanted, action in [
        (True, OURS, f"write {path}"),
        (False, OURS, f"write {path}"),
        (False, None, f"remove {path}"),
    ]:
        differences = Differences(check_mode)
        assert keep("unit", str(path), wanted, differences)
        assert (differences.actions, list(differences.diff()["after"])) == ([action], [f"unit {path}"])
        assert path.exists() is (wanted is not None and not check_mode)
        if not check_mode:
            assert not keep("unit", str(path), wanted, Differences())
    path.write_text("theirs\n")
    for wanted in (OURS, None):
        with pytest.raises(Refusal, match="was not written by Stowage"):
            keep("unit", str(path), wanted, Differences())
    assert path.read_text() == "theirs\n"
