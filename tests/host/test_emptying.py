# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Emptying on real filesystems: everything of the tree goes, and nothing else."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stowage_core.trees.emptying import Emptied, empty, remove


def emptied(path: Path) -> Emptied:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return empty(fd)
    finally:
        os.close(fd)


def quiet(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("beside", [(), ("a",)], ids=["chain", "bush"])
def test_twenty_thousand_nested_directories(disk: Path, beside: tuple[str, ...]) -> None:
    fd = os.open(disk, os.O_RDONLY)
    for _level in range(20_000):
        for name in ("down", *beside):
            os.mkdir(name, dir_fd=fd)
        below = os.open("down", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    assert emptied(disk) == Emptied(0, 20_000 * (1 + len(beside)), ())
    assert list(disk.iterdir()) == []


def test_subvolumes_go_even_read_only_ones_and_nested(small_disk: Callable[..., Any]) -> None:
    disk: Path = small_disk("btrfs").path
    tree = disk / "tree"
    tree.mkdir()
    quiet("btrfs", "subvolume", "create", str(tree / "a"))
    (tree / "a/directory").mkdir()
    quiet("btrfs", "subvolume", "create", str(tree / "a/directory/nested"))
    (tree / "a/directory/nested/file").write_bytes(bytes(10_000))
    quiet("btrfs", "subvolume", "snapshot", "-r", str(tree / "a"), str(tree / "snapshot"))
    quiet("btrfs", "property", "set", str(tree / "a/directory/nested"), "ro", "true")
    quiet("btrfs", "property", "set", str(tree / "a"), "ro", "true")
    fd = os.open(disk, os.O_RDONLY)
    assert remove(fd, b"tree").left == ()
    os.close(fd)
    assert not tree.exists()


def test_a_mount_below_stays_with_its_content(disk: Path, small_disk: Callable[..., Any]) -> None:
    other = small_disk("ext4")
    (other.path / "file").write_bytes(b"data")
    for place in ("deep/other", "bound", "goes"):
        (disk / place).mkdir(parents=True)
    (disk / "bound file").touch()
    (disk / "deep/goes").touch()
    quiet("mount", "--bind", str(other.path), str(disk / "deep/other"))
    quiet("mount", "--bind", str(other.path), str(disk / "bound"))
    quiet("mount", "--bind", str(other.path / "file"), str(disk / "bound file"))
    done = emptied(disk)
    assert (done.files, done.directories) == (1, 1)
    assert {text for text in done.left if "mounted" in text} == {
        f"{place}: another filesystem is mounted there" for place in ("deep/other", "bound")
    }
    assert "bound file: Device or resource busy" in done.left
    assert (other.path / "file").read_bytes() == b"data"
    quiet("umount", str(disk / "deep/other"))
    quiet("umount", str(disk / "bound"))
    quiet("umount", str(disk / "bound file"))
    assert emptied(disk).left == ()
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("flag", ["i", "a"])
def test_what_root_made_immutable_stays_and_is_told(disk: Path, flag: str) -> None:
    for name in ("kept", "goes"):
        (disk / "directory" / name).parent.mkdir(exist_ok=True)
        (disk / "directory" / name).touch()
    quiet("chattr", f"+{flag}", str(disk / "directory/kept"))
    try:
        done = emptied(disk)
        assert (done.files, done.directories) == (1, 0)
        assert "directory/kept: Operation not permitted" in done.left
    finally:
        quiet("chattr", f"-{flag}", str(disk / "directory/kept"))
    assert emptied(disk) == Emptied(1, 1, ())


def test_a_disk_full_to_the_last_byte_can_be_emptied(small_disk: Callable[..., Any], fstype: str) -> None:
    disk = small_disk(fstype)
    tree = disk.path / "tree"
    tree.mkdir()
    for number, size in enumerate((1 << 20, 4096, 1)):
        for directory in range(1000):
            if not filled(tree / f"{number}-{directory}", size):
                break
    fd = os.open(disk.path, os.O_RDONLY)
    done = remove(fd, b"tree")
    os.close(fd)
    assert done.left == ()
    assert done.files > 10
    assert not tree.exists()


def filled(directory: Path, size: int) -> bool:
    """Whether a directory with a hundred files of the size still fits."""
    try:
        directory.mkdir()
        for number in range(100):
            with open(directory / str(number), "wb", buffering=0) as file:
                file.write(bytes(size))
                os.fsync(file.fileno())
    except OSError:
        return False
    return True


def test_kinds_and_names_of_all_sorts(disk: Path) -> None:
    outside = disk / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"stays")
    tree = disk / "tree"
    tree.mkdir()
    (tree / "link").symlink_to("../outside")
    os.link(outside / "file", tree / "hard link")
    os.mkfifo(tree / "fifo")
    os.mknod(tree / "device", 0o600 | 0o060000, os.makedev(7, 0))
    (tree / "setuid").touch()
    (tree / "setuid").chmod(0o6755)
    (tree / "closed").mkdir(0)
    for name in (b"\xff", b"a\nb", b"-rf", b"*"):
        open(os.path.join(os.fsencode(tree), name), "xb").close()
    done = emptied(tree)
    assert (done.files, done.directories, done.left) == (9, 1, ())
    assert (outside / "file").read_bytes() == b"stays"
