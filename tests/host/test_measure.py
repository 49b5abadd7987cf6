# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Totals on real filesystems are those of du, whatever a worker has put there."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import opened

from stowage_core.trees.emptying import empty
from stowage_core.trees.measure import Scan, Usage
from stowage_core.use.child import answer_of

NOBODY = 65534
# What the largest file may be: ext4 holds 16 TiB less one block, the others 8 EiB less one byte.
LARGEST = {"ext4": 17 * 10**12, "xfs": 7 * 10**18, "btrfs": 7 * 10**18}


def du(path: Path, *options: str) -> int:
    done = subprocess.run(
        ["du", "-s", "--block-size=1", *options, str(path)], check=True, text=True, stdout=subprocess.PIPE
    )
    return int(done.stdout.split()[0])


def du_counts_directories() -> bool:
    """Coreutils up to 9.1 adds the directories' own sizes to an apparent size."""
    first = subprocess.run(["du", "--version"], check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()[0]
    found = re.search(r"(\d+)\.(\d+)", first)
    assert found is not None, first
    return (int(found[1]), int(found[2])) < (9, 2)


def usage_of(path: Path, workers: int = 1) -> Usage:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return Scan(workers=workers).measure(fd)
    finally:
        os.close(fd)


def assert_equals_du(path: Path) -> Usage:
    usage = usage_of(path)
    assert usage == usage_of(path, workers=2) == usage_of(path, workers=5)
    assert usage.complete, usage.problems
    apparent = usage.bytes + (usage.directory_bytes if du_counts_directories() else 0)
    assert (apparent, usage.allocated) == (du(path, "--apparent-size"), du(path))
    assert usage.inodes == du(path, "--inodes")
    return usage


@contextmanager
def nested(path: Path, depth: int, *beside: str) -> Iterator[None]:
    """Directories in each other, each with more directories beside it and a file at the very end."""
    fd = os.open(path, os.O_RDONLY)
    for _level in range(depth):
        for name in ("down", *beside):
            os.mkdir(name, dir_fd=fd)
        below = os.open("down", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    file = os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.write(file, bytes(12345))
    os.fsync(file)
    os.close(file)
    os.close(fd)
    yield
    with opened(path) as root_fd:
        assert empty(root_fd).left == ()


def test_files_of_all_sizes_and_kinds(disk: Path) -> None:
    for number in range(300):
        directory = disk / f"d{number % 7}" / f"e{number % 5}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}").write_bytes(bytes(number**2))
    (disk / "short link").symlink_to("x")
    (disk / "long link").symlink_to("y" * 1000)
    (disk / "outside").symlink_to("/usr")
    os.mkfifo(disk / "fifo")
    os.mknod(disk / "device", 0o600 | 0o020000, os.makedev(1, 3))
    (disk / "setuid").write_bytes(b"x")
    (disk / "setuid").chmod(0o4755)
    for name in (b"\xff\xfe", b"line\nbreak", b"\x1b[2J", b" "):
        (Path(os.fsdecode(os.path.join(os.fsencode(disk), name)))).write_bytes(name)
    os.sync()
    assert assert_equals_du(disk).files == 300 + 3 + 3 + 4


def test_a_large_directory(disk: Path) -> None:
    with opened(disk) as fd:
        for number in range(40_000):
            os.close(os.open(f"{number:x}-some-longer-name", os.O_CREAT, dir_fd=fd))
    assert assert_equals_du(disk).files == 40_000
    with opened(disk) as fd:
        assert empty(fd).files == 40_000


def test_hard_links_count_once_within_and_across_directories(disk: Path) -> None:
    for number in range(50):
        (disk / f"d{number}").mkdir()
    for number in range(500):
        file = disk / f"d{number % 50}" / f"f{number}"
        file.write_bytes(bytes(5000))
        os.link(file, disk / f"d{number % 50}" / f"same{number}")
        os.link(file, disk / f"d{(number + 17) % 50}" / f"other{number}")
    os.sync()
    usage = assert_equals_du(disk)
    assert (usage.files, usage.bytes) == (500, 500 * 5000)


def test_a_sparse_file_of_exabytes(disk: Path, fstype: str) -> None:
    with open(disk / "sparse", "wb") as file:
        file.truncate(LARGEST[fstype])
    (disk / "small").write_bytes(b"x" * 100)
    os.sync()
    usage = assert_equals_du(disk)
    assert usage.bytes == LARGEST[fstype] + 100
    assert usage.allocated < 10**6


@pytest.mark.parametrize(("depth", "beside"), [(20_000, ()), (5000, ("a", "z"))], ids=["chain", "bush"])
def test_far_below_the_longest_path(disk: Path, depth: int, beside: tuple[str, ...]) -> None:
    with nested(disk, depth, *beside):
        usage = usage_of(disk)
        assert usage == usage_of(disk, workers=2)
        assert usage.complete
        assert (usage.bytes, usage.files) == (12345, 1)
        assert usage.directories == 1 + depth * (1 + len(beside))
        assert usage.bytes + usage.directory_bytes * du_counts_directories() == du(disk, "--apparent-size")


def test_a_subvolume_belongs_to_the_tree(small_disk: Callable[..., Any]) -> None:
    disk: Path = small_disk("btrfs").path
    subprocess.run(["btrfs", "-q", "subvolume", "create", str(disk / "subvolume")], check=True)
    (disk / "subvolume/below").mkdir()
    (disk / "subvolume/below/file").write_bytes(bytes(777))
    os.sync()
    usage = assert_equals_du(disk)
    assert (usage.bytes, usage.directories) == (777, 3)


def test_what_is_mounted_below_is_not_counted(disk: Path, small_disk: Callable[..., Any]) -> None:
    (disk / "own").mkdir()
    (disk / "own/file").write_bytes(bytes(100))
    (disk / "other").mkdir()
    (disk / "bound").mkdir()
    (disk / "bound file").touch()
    other = small_disk("ext4")
    (other.path / "large").write_bytes(bytes(100_000))
    for source, place in ((other.path, "other"), (disk / "own", "bound"), (other.path / "large", "bound file")):
        subprocess.run(["mount", "--bind", str(source), str(disk / place)], check=True)
    for workers in (1, 2):
        usage = usage_of(disk, workers)
        assert usage.complete
        assert (usage.bytes, usage.files, usage.directories) == (100, 1, 2)
        assert sorted(usage.problems) == [
            f"{place}: another filesystem is mounted there" for place in ("bound file", "bound", "other")
        ]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_may_not_be_read_makes_it_incomplete(disk: Path, workers: int) -> None:
    (disk / "open").mkdir()
    (disk / "open/file").write_bytes(bytes(10))
    (disk / "closed").mkdir()
    (disk / "closed/file").write_bytes(bytes(1000))
    (disk / "closed").chmod(0o700)

    def as_nobody() -> dict[str, Any]:
        with opened(disk) as fd:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            return Scan(workers=workers).measure(fd).to_json()

    usage = answer_of(as_nobody, deadline_s=10)
    assert not usage["complete"]
    assert usage["problems"] == ["closed: Permission denied"]
    assert usage["bytes"] == 10
