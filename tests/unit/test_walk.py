# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Going through trees of every shape."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core import syscalls
from stowage_core.trees import walk as walk_file
from stowage_core.trees.emptying import empty
from stowage_core.trees.walk import Problem, Waiting, Walk


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def nest(path: Path, names: list[str]) -> None:
    """Make each name a directory in the one before, however long the path gets."""
    fd = os.open(path, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def no_problem(problem: Problem) -> None:
    pytest.fail(str(problem))


def held() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_everything_is_visited_once_and_parents_first(tmp_path: Path) -> None:
    for name in ("a/b/c", "a/d", "e"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("1", "a/2", "a/b/3", "a/b/c/4", "e/5"):
        (tmp_path / name).touch()
    problems: list[Problem] = []
    paths, files = [], []
    with opened(tmp_path) as fd:
        walk = Walk(fd, problems.append)
        for directory in walk:
            paths.append(walk.path())
            files += [walk.path(entry.name) for entry in directory.files()]
    assert sorted(paths) == [".", "a", "a/b", "a/b/c", "a/d", "e"]
    assert all(paths.index(os.path.dirname(path) or ".") < paths.index(path) for path in paths[1:])
    assert sorted(files) == ["1", "a/2", "a/b/3", "a/b/c/4", "e/5"]
    assert problems == []


def test_directories_below_are_visited_when_the_caller_lists_nothing(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    with opened(tmp_path) as fd:
        assert sum(1 for _directory in Walk(fd, no_problem)) == 3


def test_symbolic_links_are_files(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "outside/secret").mkdir(parents=True)
    (tmp_path / "tree/link").symlink_to("../outside")
    with opened(tmp_path / "tree") as fd:
        assert [entry.name for directory in Walk(fd, no_problem) for entry in directory.files()] == ["link"]


def test_names_are_any_bytes(tmp_path: Path) -> None:
    names = [b"\xff\xfe", b"line\nbreak", b"\x1b[31m", "ü".encode(), b" "]
    for name in names:
        os.mkdir(os.path.join(os.fsencode(tmp_path), name))
        open(os.path.join(os.fsencode(tmp_path), name, name), "xb").close()
    with opened(tmp_path) as fd:
        found = [entry.name for directory in Walk(fd, no_problem) for entry in directory.files()]
    assert sorted(os.fsencode(name) for name in found) == sorted(names)


@pytest.mark.parametrize("beside", [[], ["a"], ["a", "z"]], ids=["chain", "two each", "three each"])
def test_depth_is_bounded_by_nothing_and_descriptors_are(tmp_path: Path, beside: list[str]) -> None:
    depth = 700
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        for _level in range(depth):
            for name in ["down", *beside]:
                os.mkdir(name, dir_fd=fd)
            below = os.open("down", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
    finally:
        os.close(fd)
    with opened(tmp_path) as root_fd:
        before = held()
        most = visited = 0
        left: list[str] = []
        for _directory in Walk(root_fd, no_problem, lambda parent_fd, name: left.append(name)):
            visited += 1
            if visited % 16 == 0:
                most = max(most, held())
        assert visited == 1 + depth * (1 + len(beside))
        assert len(left) == visited - 1
        assert most - before <= 320
        assert held() == before
        assert empty(root_fd).left == ()


def test_side_branches_longer_than_the_window_keep_descriptors_bounded(tmp_path: Path) -> None:
    stem = [f"s{number}" for number in range(150)]
    nest(tmp_path, stem)
    with opened(tmp_path) as root_fd:
        fd = os.dup(root_fd)
        for number, name in enumerate(stem):
            if number % 3 == 0:
                nest(Path(f"/proc/self/fd/{fd}"), [f"b{level}" for level in range(70)])
            below = os.open(name, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)
        before = held()
        most = visited = 0
        for _directory in Walk(root_fd, no_problem, lambda parent_fd, name: None):
            visited += 1
            if visited % 16 == 0:
                most = max(most, held())
        assert visited == 1 + 150 + 50 * 70
        assert most - before <= 340
        assert empty(root_fd).left == ()


def test_what_vanishes_between_listing_and_opening_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with opened(tmp_path) as fd:
        visits = 0
        for directory in Walk(fd, no_problem):
            directory.finish()
            if visits == 0:
                (tmp_path / "a").rmdir()
                (tmp_path / "b").rmdir()
                (tmp_path / "b").symlink_to("/etc")
            visits += 1
    assert visits == 1


@pytest.mark.parametrize("swap", ["moved", "replaced", "link"])
def test_a_level_that_is_another_when_opened_again_is_given_up(tmp_path: Path, swap: str) -> None:
    """Levels far up are closed; what is found at their place on the way back must be the same directory."""
    top = tmp_path / "tree"
    (top / "swapped").mkdir(parents=True)
    names = [f"d{number}" for number in range(200)]
    nest(top / "swapped", names)
    level = top / "swapped"
    for name in names[:60]:
        level = level / name
        (level / "waits").mkdir()  # some are listed, and so visited, after the way down
    (top / "waits too").mkdir()
    aside = tmp_path / "aside"
    problems: list[Problem] = []
    with opened(top) as fd:
        walk = Walk(fd, problems.append)
        paths = []
        for directory in walk:
            directory.finish()
            paths.append(walk.path())
            if len(walk._levels) == 202:
                (top / "swapped").rename(aside)
                if swap == "replaced":
                    (top / "swapped/d0/waits").mkdir(parents=True)
                elif swap == "link":
                    (top / "swapped").symlink_to(aside)
    assert "waits too" in paths
    assert [(problem.path, problem.missing) for problem in problems] == [("swapped", True)]
    assert "moved or replaced" in str(problems[0])
    with opened(tmp_path) as fd:
        empty(fd)


@pytest.mark.parametrize(
    ("number", "missing"),
    [(errno.EACCES, True), (errno.EIO, True), (errno.ESTALE, True), (errno.EXDEV, False)],
)
def test_what_cannot_be_opened_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, missing: bool
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/c").mkdir(parents=True)
    real = syscalls.open_beneath

    def refuse(fd: int, name: bytes) -> int:
        if name == b"b":
            raise OSError(number, os.strerror(number))
        return real(fd, name)

    monkeypatch.setattr(walk_file, "open_beneath", refuse)
    problems: list[Problem] = []
    with opened(tmp_path) as fd:
        assert sum(1 for _directory in Walk(fd, problems.append)) == 3
    what = "another filesystem is mounted there" if number == errno.EXDEV else os.strerror(number)
    assert problems == [Problem("a/b", what, missing)]


NAMED = st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name).map(os.fsdecode)


@given(st.lists(st.tuples(NAMED, st.integers(min_value=0, max_value=2**64 - 1)) | st.none(), max_size=20))
def test_what_waits_comes_back_the_last_first(steps: list[tuple[str, int] | None]) -> None:
    waiting, wanted = Waiting(), list[tuple[str, int]]()
    for step in steps:
        if step is not None:
            waiting.add(*step)
            wanted.append(step)
        elif wanted:
            assert waiting.pop() == wanted.pop()
        assert len(waiting) == len(wanted)
    assert [waiting.pop() for _one in wanted] == wanted[::-1]


def test_many_that_wait_take_little() -> None:
    """Whoever makes a run may make as many directories in it as he likes."""
    tracemalloc.start()
    try:
        waiting = Waiting()
        for number in range(300_000):
            waiting.add(f"directory-{number}", number)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000, "tuples take 50 MB"
    finally:
        tracemalloc.stop()


def test_large_directories_are_read_in_the_order_of_inodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        (tmp_path / f"{number * 7919 % 101:03d}").touch()
    monkeypatch.setattr(walk_file, "_LARGE_DIRECTORY", 0)
    monkeypatch.setattr(walk_file, "_BATCH", 20)
    with opened(tmp_path) as fd:
        found = [(entry.name, entry.inode()) for directory in Walk(fd, no_problem) for entry in directory.files()]
    assert len({name for name, _inode in found}) == 50
    inodes = [inode for _name, inode in found]
    for start in range(0, 50, 20):
        assert inodes[start : start + 20] == sorted(inodes[start : start + 20])


def test_a_directory_can_be_given_away_while_another_waits(tmp_path: Path) -> None:
    for name in ("a/x", "b/x", "c/x"):
        (tmp_path / name).mkdir(parents=True)
    with opened(tmp_path) as fd:
        walk = Walk(fd, no_problem, prefix="above")
        given = []
        visited = []
        for directory in walk:
            directory.finish()
            visited.append(walk.path())
            offer = walk.split()
            if offer is not None:
                other_fd, path = offer
                given.append(path)
                other = Walk(other_fd, no_problem, prefix=path)
                visited += [other.path() for _directory in other]
                os.close(other_fd)
    assert given
    assert sorted(visited) == sorted(["above", *(f"above/{name}{below}" for name in "abc" for below in ("", "/x"))])


def test_paths_in_messages_stay_one_short_line(tmp_path: Path) -> None:
    nest(tmp_path, ["n\n" * 100] * 60)
    with opened(tmp_path) as fd:
        walk = Walk(fd, no_problem)
        longest = max((walk.path() for _directory in walk), key=len)
        assert len(longest) <= 1010
        assert "\n" not in longest
        empty(fd)


def test_ending_early_closes_everything(tmp_path: Path) -> None:
    nest(tmp_path, ["d"] * 100)
    with opened(tmp_path) as fd:
        before = held()
        walk = iter(Walk(fd, no_problem))
        for _step in range(90):
            next(walk)
        walk.close()  # type: ignore[attr-defined]
        assert held() == before
        empty(fd)
