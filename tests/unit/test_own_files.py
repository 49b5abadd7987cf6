# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that are replaced only when they are ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stowage_core.errors import Refusal
from stowage_core.own_files import read


def is_ours(data: bytes) -> bool:
    return data.startswith(b"ours")


def test_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"ours" * 100_000)
    assert read(str(tmp_path / "file"), is_ours) == b"ours" * 100_000


def test_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert read(str(tmp_path / "missing"), is_ours) is None
    assert read(str(tmp_path / "file" / "below"), is_ours) is None


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("foreign", "was not written by Stowage; name another file, or move this one away"),
        ("empty", "was not written by Stowage; name another file, or move this one away"),
        ("link", "is a symbolic link; name the file itself, or remove the link"),
        ("directory", "is not a regular file; name another one"),
        ("fifo", "is not a regular file; name another one"),
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
        read(str(path), is_ours, "environment_file")
    assert str(refusal.value) == f"environment_file: {path} {rule}"
