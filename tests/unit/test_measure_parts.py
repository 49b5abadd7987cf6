# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trees and their parts, counted in one walk, against each measured alone."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from stowage_core.syscalls import open_beneath
from stowage_core.trees import walk
from stowage_core.trees.measure import Scan, Usage
from stowage_core.trees.parts import Begins, Names, Part, measure_parts
from stowage_core.trees.walk import Directory


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

    def begins(names: Names, _directory: Directory) -> list[Part]:
        is_part = names in wanted or (at_depth and len(names) == at_depth)
        return [Part(partial(take, names))] if is_part else []

    def take(names: Names, usage: Usage) -> None:
        assert "/".join(names) not in found
        found["/".join(names)] = usage

    return counted(path, begins, max([at_depth, *map(len, wanted)])), found


def counted(path: Path, begins: Begins, deepest: int) -> Usage:
    """Return what the tree holds, and have its parts counted."""
    whole: list[Usage] = []

    def begins_with_whole(names: Names, directory: Directory) -> list[Part] | None:
        parts = begins(names, directory)
        return None if parts is None else [*([] if names else [Part(whole.append)]), *parts]

    fd = os.open(path, os.O_RDONLY)
    try:
        measure_parts(fd, begins_with_whole, deepest)
    finally:
        os.close(fd)
    return whole[0]


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


def kinds(path: Path, parts: Mapping[str, tuple[bool, bool]], left_out: str = "") -> tuple[Usage, dict[str, Usage]]:
    """Return what the tree holds, and its parts by their way; of each is given whether it is a rest, and hides."""
    found: dict[str, Usage] = {}

    def begins(names: Names, _directory: Directory) -> list[Part] | None:
        if left_out and "/".join(names) == left_out:
            return None
        rest_and_hides = parts.get("/".join(names))
        return [] if rest_and_hides is None else [Part(partial(take, names), *rest_and_hides)]

    def take(names: Names, usage: Usage) -> None:
        found["/".join(names)] = usage

    return counted(path, begins, 9), found


REST, HIDES, PLAIN = (True, False), (False, True), (False, False)


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({"": REST, "a": HIDES}, {"": 1 + 8, "a": 2 + 4}),
        ({"": REST, "a": PLAIN}, {"": 1 + 2 + 4 + 8, "a": 2 + 4}),
        ({"": REST, "a": PLAIN, "a/b": HIDES}, {"": 1 + 2 + 8, "a": 2 + 4, "a/b": 4}),
        ({"": REST, "a": HIDES, "a/b": PLAIN}, {"": 1 + 8, "a": 2 + 4, "a/b": 4}),
        ({"a": REST, "a/b": HIDES}, {"a": 2, "a/b": 4}),
        ({"": REST, "a": REST, "a/b": HIDES, "c": HIDES}, {"": 1 + 2, "a": 2, "a/b": 4, "c": 8}),
    ],
)
def test_a_rest_is_what_no_part_hides(
    tmp_path: Path, parts: dict[str, tuple[bool, bool]], wanted: dict[str, int]
) -> None:
    for name, size in (("file", 1), ("a/file", 2), ("a/b/file", 4), ("c/file", 8)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    whole, found = kinds(tmp_path, parts)
    assert whole.bytes == 1 + 2 + 4 + 8
    assert {name: usage.bytes for name, usage in found.items()} == wanted


def by_hand(tree: Path, part: str, rest: bool, hiding: list[str]) -> tuple[int, int]:
    """Return bytes and files of a part: of all that have a name in it and, of a rest, in nothing below that hides."""
    inodes = {}
    for path in (tree / part).rglob("*"):
        above = {one.relative_to(tree).as_posix() for one in path.parents if one.is_relative_to(tree)}
        hidden = any(one in above and one != part and one.startswith(f"{part}/" if part else "") for one in hiding)
        if not path.is_dir() and not (rest and hidden):
            inodes[path.stat().st_ino] = path.stat().st_size
    return sum(inodes.values()), len(inodes)


@pytest.mark.parametrize("seed", range(5))
def test_rests_and_parts_of_a_random_tree(tree: Path, seed: int) -> None:
    chance = random.Random(seed)
    directories = ["", *(path.relative_to(tree).as_posix() for path in tree.rglob("d*") if path.is_dir())]
    parts = {name: chance.choice((REST, HIDES, PLAIN, (True, True))) for name in chance.sample(directories, 15)}
    _whole, found = kinds(tree, parts)
    hiding = [name for name, (_rest, hides) in parts.items() if hides]
    assert {name: (usage.bytes, usage.files) for name, usage in found.items()} == {
        name: by_hand(tree, name, rest, hiding) for name, (rest, _hides) in parts.items() if name.count("/") < 9
    }


def test_a_hard_link_counts_in_a_rest_that_has_a_name_of_it(tmp_path: Path) -> None:
    (tmp_path / "user/run").mkdir(parents=True)
    (tmp_path / "user/run/file").write_bytes(bytes(100))
    os.link(tmp_path / "user/run/file", tmp_path / "user/run/again")
    parts = {"user": REST, "user/run": HIDES}
    assert {name: usage.bytes for name, usage in kinds(tmp_path, parts)[1].items()} == {"user": 0, "user/run": 100}
    for name in ("beside", "beside too"):
        os.link(tmp_path / "user/run/file", tmp_path / "user" / name)
    whole, found = kinds(tmp_path, parts)
    assert {name: usage.bytes for name, usage in found.items()} == {"user": 100, "user/run": 100}
    assert whole.bytes == 100


def test_what_is_left_out_is_not_counted(tmp_path: Path) -> None:
    for name in ("file", "copies/a/file", "other/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(10))
    whole, found = kinds(tmp_path, {"": REST}, left_out="copies")
    assert (whole.bytes, whole.files, found[""].bytes) == (20, 2, 20)


def test_what_is_missing_in_a_run_is_not_missing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run/bad").mkdir(parents=True)

    def failing(dir_fd: int, name: bytes, *flags: int) -> int:
        if name == b"bad":
            raise OSError(errno.EIO, "")
        return open_beneath(dir_fd, name, *flags)

    monkeypatch.setattr(walk, "open_beneath", failing)
    whole, found = kinds(tmp_path, {"": REST, "run": HIDES})
    assert (whole.complete, found["run"].complete, found[""].complete) == (False, False, True)
