# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deleting trees."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowage_core.trees.emptying import Emptied, empty, remove


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree"
    path.mkdir()
    return path


@pytest.fixture
def fd(tree: Path) -> Iterator[int]:
    opened = os.open(tree, os.O_RDONLY)
    yield opened
    os.close(opened)


def test_everything_goes_and_the_directory_stays(tree: Path, fd: int) -> None:
    (tree / "a/b/c").mkdir(parents=True)
    for name in ("1", "a/2", "a/b/c/3"):
        (tree / name).write_bytes(b"x" * 5000)
    assert empty(fd) == Emptied(files=3, directories=3, left=())
    assert list(tree.iterdir()) == []
    assert empty(fd) == Emptied(0, 0, ())


def test_what_is_outside_stays(tree: Path, fd: int, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x" * 5000)
    (tree / "link to directory").symlink_to("../outside")
    (tree / "link to file").symlink_to("../outside/file")
    os.link(outside / "file", tree / "hard link")
    done = empty(fd)
    assert (done.files, done.left) == (3, ())
    assert (outside / "file").read_bytes() == b"x" * 5000


def test_all_kinds_of_files_go_unopened(tree: Path, fd: int) -> None:
    os.mkfifo(tree / "fifo")  # opening it would block
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tree / "socket")) if len(str(tree)) < 90 else (tree / "socket").touch()
    (tree / "setuid").touch()
    (tree / "setuid").chmod(0o6755)
    (tree / "none").touch(0)
    for name in (b"\xff", b"a\nb", b"-rf", b"*", b" "):
        open(os.path.join(os.fsencode(tree), name), "xb").close()
    done = empty(fd)
    assert (done.files, done.left) == (9, ())
    assert list(tree.iterdir()) == []


def test_remove_takes_the_directory_too(tree: Path, tmp_path: Path) -> None:
    (tree / "a").mkdir()
    (tree / "a/file").touch()
    parent_fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert remove(parent_fd, b"tree") == Emptied(1, 2, ())
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(FileNotFoundError):
            remove(parent_fd, b"tree")
        (tmp_path / "link").symlink_to("/etc")
        with pytest.raises(NotADirectoryError):
            remove(parent_fd, b"link")
    finally:
        os.close(parent_fd)


def test_what_cannot_be_deleted_is_reported_and_the_rest_goes(
    tree: Path, fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tree / name).mkdir()
        for file in ("goes", "stays"):
            (tree / name / file).touch()
    real = os.unlink

    def unlink(name: str, *, dir_fd: int) -> None:
        if name == "stays":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink)
    done = empty(fd)
    monkeypatch.undo()
    assert (done.files, done.directories) == (2, 0)
    assert "a/stays: Operation not permitted" in done.left
    assert "b/stays: Operation not permitted" in done.left
    assert sorted(str(path.relative_to(tree)) for path in tree.rglob("*")) == ["a", "a/stays", "b", "b/stays"]


def test_what_comes_while_it_is_emptied_goes_too(tree: Path, fd: int) -> None:
    (tree / "a").mkdir()
    (tree / "a/file").touch()
    came: list[int] = []

    def progress(files: int, _directories: int) -> None:
        if files and not came:
            came.append(files)
            (tree / "a/late").mkdir()
            (tree / "a/late/file").touch()

    done = empty(fd, progress=progress)
    assert (done.files, done.directories, done.left) == (2, 2, ())
    assert list(tree.iterdir()) == []


def test_progress_may_end_the_work(tree: Path, fd: int) -> None:
    for number in range(2000):
        (tree / str(number)).touch()

    class Stopped(Exception):
        pass

    def progress(files: int, _directories: int) -> None:
        if files >= 512:
            raise Stopped

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Stopped):
        empty(fd, progress=progress)
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(os.listdir(tree)) == 2000 - 512
    assert empty(fd).files == 2000 - 512


def test_a_rate_is_kept(tree: Path, fd: int) -> None:
    for number in range(100):
        (tree / str(number)).touch()
    start = time.monotonic()
    assert empty(fd, rate=400).files == 100
    assert 0.2 <= time.monotonic() - start < 1
