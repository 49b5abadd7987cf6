# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees and their parts, counted in one walk, against each measured alone."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from stowage_core.syscalls import open_beneath
from stowage_core.trees import walk
from stowage_core.trees.measure import Scan, Usage
from stowage_core.trees.parts import Names, measure_parts


def alone(path: Path) -> Usage:
    fd = os.open(path, os.O_RDONLY)
    try:
        return Scan().measure(fd)
    finally:
        os.close(fd)


def measured(path: Path, *parts: str, at_depth: int = 0) -> tuple[Usage, dict[str, Usage]]:
    """Return what the tree holds, and its parts: those named, and all directories at a depth."""
    wanted = {tuple(part.split("/")) for part in parts}
    found: dict[str, Usage] = {}

    def begins(names: Names) -> bool:
        return names in wanted or len(names) == at_depth

    def take(names: Names, usage: Usage) -> None:
        assert "/".join(names) not in found
        found["/".join(names)] = usage

    fd = os.open(path, os.O_RDONLY)
    try:
        return measure_parts(fd, begins, max([at_depth, *map(len, wanted)]), take), found
    finally:
        os.close(fd)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    chance = random.Random(7)
    directories = [tmp_path / "tree"]
    directories[0].mkdir()
    for number in range(120):
        directories.append(chance.choice(directories) / f"d{number}")
        directories[-1].mkdir()
    files = []
    for number in range(400):
        files.append(chance.choice(directories) / f"f{number}")
        files[-1].write_bytes(bytes(number))
    for number in range(400):
        os.link(chance.choice(files), chance.choice(directories) / f"l{number}")
    return directories[0]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_each_part_is_as_if_it_was_measured_alone(tree: Path, depth: int) -> None:
    whole, parts = measured(tree, at_depth=depth)
    assert whole == alone(tree)
    paths = {path.relative_to(tree).as_posix(): path for path in tree.glob("/".join("*" * depth))}
    assert parts == {name: alone(path) for name, path in paths.items() if path.is_dir()} and parts


def test_parts_in_parts(tmp_path: Path) -> None:
    for name in ("hf/hub/a", "hf/hub/b", "hf/datasets/a", "other/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(100))
    os.link(tmp_path / "hf/hub/a", tmp_path / "hf/datasets/link")
    os.link(tmp_path / "hf/hub/a", tmp_path / "hf/hub/link")
    os.link(tmp_path / "hf/hub/a", tmp_path / "link")
    whole, parts = measured(tmp_path, "hf", "hf/hub", "hf/datasets", "no/such")
    assert (whole.files, whole.bytes) == (4, 400) and whole == alone(tmp_path)
    assert {name: (usage.files, usage.bytes) for name, usage in parts.items()} == {
        "hf": (3, 300),
        "hf/hub": (2, 200),
        "hf/datasets": (2, 200),
    }


def test_a_symbolic_link_is_no_part(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert list(measured(tmp_path, "real", "link")[1]) == ["real"]


def test_a_part_is_incomplete_only_for_what_is_missing_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a/bad", "b/good", "c/good"):
        (tmp_path / name).mkdir(parents=True)

    def failing(dir_fd: int, name: bytes, *flags: int) -> int:
        if name in (b"bad", b"b"):
            raise OSError(errno.EIO, "")
        return open_beneath(dir_fd, name, *flags)

    monkeypatch.setattr(walk, "open_beneath", failing)
    whole, parts = measured(tmp_path, "a", "b", "c")
    assert not whole.complete and sorted(whole.problems) == ["a/bad: Input/output error", "b: Input/output error"]
    assert {name: usage.complete for name, usage in parts.items()} == {"a": False, "c": True}
    assert parts["a"].problems == ("a/bad: Input/output error",)
