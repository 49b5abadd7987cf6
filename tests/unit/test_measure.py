# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counting trees, in one process and in several."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core import syscalls
from stowage_core.errors import StowageError
from stowage_core.trees import workers as measure_workers
from stowage_core.trees.inode_set import InodeSet
from stowage_core.trees.measure import Scan, Usage
from stowage_core.trees.pace import Pace, Pacer, Rate
from stowage_core.trees.tally import FirstProblems
from stowage_core.trees.walk import Walk


def expected(path: Path) -> Usage:
    """The same, the plain way."""
    seen: dict[tuple[int, int], os.stat_result] = {}
    for directory, names, files in os.walk(path):
        for name in [*names, *files, "."]:
            status = os.lstat(os.path.join(directory, name))
            seen[status.st_dev, status.st_ino] = status
    directories = [status for status in seen.values() if stat.S_ISDIR(status.st_mode)]
    files_only = [status for status in seen.values() if not stat.S_ISDIR(status.st_mode)]
    return Usage(
        bytes=sum(status.st_size for status in files_only),
        directory_bytes=sum(status.st_size for status in directories),
        allocated=sum(status.st_blocks for status in seen.values()) * 512,
        linked=sum(status.st_blocks for status in files_only if status.st_nlink > 1) * 512,
        files=len(files_only),
        directories=len(directories),
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some thousand files, hard links within and across directories, symbolic links and a FIFO."""
    chance = random.Random(1)
    tmp_path = tmp_path_factory.mktemp("measured")
    directories = [tmp_path / "tree"]
    directories[0].mkdir()
    for number in range(150):
        directories.append(chance.choice(directories) / f"d{number}")
        directories[-1].mkdir()
    files = []
    for number in range(2000):
        files.append(chance.choice(directories) / f"f{number}")
        files[-1].write_bytes(bytes(chance.choice([0, 1, 5000])))
    for number in range(500):
        os.link(chance.choice(files), chance.choice(directories) / f"l{number}")
    (tmp_path / "tree/link").symlink_to("/etc")
    os.mkfifo(tmp_path / "tree/fifo")
    with open(tmp_path / "tree/sparse", "wb") as sparse:
        sparse.truncate(10**12)
    return directories[0]


@pytest.fixture
def root_fd(tree: Path) -> Iterator[int]:
    fd = os.open(tree, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("pace", [None, Pace(1.0)])
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_totals_are_those_of_every_inode_once(tree: Path, root_fd: int, workers: int, pace: Pace | None) -> None:
    assert Scan(workers, pace).measure(root_fd) == expected(tree)


def test_a_scan_that_is_broken_off_leaves_nothing_open(tree: Path, root_fd: int) -> None:
    before = os.listdir("/proc/self/fd")
    steps = iter(range(2))

    def check() -> None:
        if next(steps, None) is None:
            raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        Scan(check=check).measure(root_fd)
    assert os.listdir("/proc/self/fd") == before


def test_inodes_are_files_and_directories() -> None:
    assert Usage(files=3, directories=2).inodes == 5


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2**64 - 1) | st.integers(0, 600))))
def test_an_inode_set_is_a_set(inodes: list[tuple[int, int]]) -> None:
    small = InodeSet()
    plain: set[tuple[int, int]] = set()
    for inode in inodes:
        assert small.add(*inode) == (inode not in plain)
        plain.add(inode)


def unreadable(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real = syscalls.open_beneath

    def refuse(fd: int, name: bytes) -> int:
        if name.startswith(b"d1"):
            raise OSError(number, os.strerror(number))
        return real(fd, name)

    monkeypatch.setattr("stowage_core.trees.walk.open_beneath", refuse)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_cannot_be_read_makes_the_usage_incomplete(
    root_fd: int, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    unreadable(monkeypatch, 13)
    usage = Scan(workers=workers).measure(root_fd)
    assert not usage.complete
    assert len(usage.problems) == 17
    assert all(text.endswith(": Permission denied") for text in usage.problems[:16])
    assert usage.problems[16].startswith("and ")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_mount_below_is_told_and_is_not_incomplete(
    root_fd: int, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    unreadable(monkeypatch, 18)
    usage = Scan(workers=workers).measure(root_fd)
    assert usage.complete
    assert usage.problems[0].endswith(": another filesystem is mounted there")


def moving(monkeypatch: pytest.MonkeyPatch, move: Callable[[int, bytes], None]) -> None:
    """Have something happen to a directory between its listing and its opening."""
    real = syscalls.open_beneath

    def open_late(fd: int, name: bytes) -> int:
        move(fd, name)
        return real(fd, name)

    monkeypatch.setattr("stowage_core.trees.walk.open_beneath", open_late)


def rename(fd: int, name: bytes) -> None:
    os.rename(name, name + b"x", src_dir_fd=fd, dst_dir_fd=fd)


def remove(fd: int, name: bytes) -> None:
    shutil.rmtree(os.path.join(b"/proc/self/fd", b"%d" % fd, name))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("move", "size", "complete"),
    [
        (lambda fd, name: rename(fd, name) if name == b"d0" else None, 5 + 7, True),  # it has its other name now
        (lambda fd, name: rename(fd, name) if name.startswith(b"d0") else None, 5, False),  # and again and again
        (lambda fd, name: remove(fd, name) if name == b"d0" else None, 5, True),  # came and went
    ],
)
def test_a_directory_that_is_gone_is_looked_for_under_another_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
    move: Callable[[int, bytes], None],
    size: int,
    complete: bool,
) -> None:
    (tmp_path / "d0").mkdir()
    (tmp_path / "d0/file").write_bytes(bytes(7))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_bytes(bytes(5))
    moving(monkeypatch, move)
    fd = os.open(tmp_path, os.O_RDONLY)
    usage = Scan(workers=workers).measure(fd)
    os.close(fd)
    assert (usage.bytes, usage.complete) == (size, complete)
    assert usage.problems == (() if complete else (".: something in it gets another name again and again",))


_RENAMING = """
import os, sys
number = 0
while True:
    os.rename(f"x{number}", f"x{number + 1}")
    number += 1
    if number == 100:
        print(flush=True)
"""


@pytest.mark.parametrize("is_dir", [True, False])
def test_a_name_that_changes_all_the_time_makes_nothing_free(tmp_path: Path, is_dir: bool) -> None:
    for number in range(300):
        (tmp_path / f"{number}").mkdir() if is_dir else (tmp_path / f"{number}").touch()
    big = tmp_path / "x0/big" if is_dir else tmp_path / "x0"
    big.parent.mkdir(exist_ok=True)
    with open(big, "wb") as file:
        file.truncate(10**12)
    fd = os.open(tmp_path, os.O_RDONLY)
    with subprocess.Popen([sys.executable, "-c", _RENAMING], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            usages = [Scan().measure(fd) for _round in range(20)]
        finally:
            process.kill()
            os.close(fd)
    assert [usage for usage in usages if usage.complete and usage.bytes < 10**12] == []


_WORKING = """
import os, shutil, time
number = 0
while True:
    number += 1
    open("status.tmp", "w").close()
    os.replace("status.tmp", "status")
    open("lock", "w").close()
    os.unlink("lock")
    os.makedirs(f"checkpoint-{number}.tmp/a")
    os.rename(f"checkpoint-{number}.tmp", f"checkpoint-{number}")
    shutil.rmtree(f"checkpoint-{number - 3}", ignore_errors=True)
    for old in (2, 1, 0):
        open(f"log.{old}", "a").close()
        os.rename(f"log.{old}", f"log.{old + 1}")
    if number == 10:
        print(flush=True)
    time.sleep(0.001)
"""


def test_files_that_come_and_go_as_ever_leave_a_measurement_complete(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}").touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    with subprocess.Popen([sys.executable, "-c", _WORKING], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            usages = [Scan().measure(fd) for _round in range(50)]
        finally:
            process.kill()
            os.close(fd)
    assert sum(usage.complete for usage in usages) >= 48


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_directory_that_is_removed_while_it_is_visited_is_empty(tmp_path: Path, is_listed: bool) -> None:
    (tmp_path / "one/two").mkdir(parents=True)
    fd = os.open(tmp_path, os.O_RDONLY)
    problems = FirstProblems()
    walk = Walk(fd, problems.add)
    try:
        for directory in walk:
            if walk.depth:
                assert walk.names == ("one",)
                if is_listed:
                    list(directory.files())
                shutil.rmtree(tmp_path / "one")
    finally:
        os.close(fd)
    assert problems.texts() == ()


def test_a_file_that_gets_its_name_while_it_is_measured_counts_once(tmp_path: Path) -> None:
    for number in range(3000):  # more than the kernel lists at once
        (tmp_path / f"{number:04}.tmp").write_bytes(b"x")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        problems = FirstProblems()
        files = []
        for directory in Walk(fd, problems.add):
            for entry in directory.files():
                if entry.name.endswith(".tmp"):
                    os.rename(entry.name, entry.name[:-4], src_dir_fd=fd, dst_dir_fd=fd)
                    directory.gone(entry)
                else:
                    files.append(entry.inode())
    finally:
        os.close(fd)
    assert len(files) == len(set(files)) == 3000 and problems.complete


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_a_worker_that_fails_is_an_error_and_no_hang(
    root_fd: int, monkeypatch: pytest.MonkeyPatch, how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    parent = os.getpid()
    real = Walk.split

    def split(self: Walk) -> tuple[int, str] | None:
        assert os.getpid() != parent
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("told on stderr")

    monkeypatch.setattr(Walk, "split", split)
    with pytest.raises(StowageError, match="a process ended before it was done"):
        Scan(workers=2).measure(root_fd)
    assert how == "killed" or "told on stderr" in capfd.readouterr().err
    monkeypatch.setattr(Walk, "split", real)
    assert Scan(workers=2).measure(root_fd).complete


def test_workers_die_with_their_parent(root_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, told = os.pipe()

    def wait(*_arguments: object) -> None:
        os.write(told, os.getpid().to_bytes(4, "little"))
        time.sleep(60)

    monkeypatch.setattr(measure_workers, "close_all_but", wait)
    middle = os.fork()
    if not middle:
        Scan(workers=2).measure(root_fd)
        os._exit(0)
    workers = [int.from_bytes(os.read(seen, 4), "little") for _number in range(2)]
    os.kill(middle, signal.SIGKILL)
    os.waitpid(middle, 0)
    deadline = time.monotonic() + 5
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.close(seen)
    os.close(told)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_pace_is_a_share_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    pacer = Pacer(Pace(0.25))
    for _step in range(1000):
        now[0] += 0.001
        pacer.step()
    assert sum(slept) == pytest.approx(3.0, rel=0.05)
    assert max(slept) <= 0.020
    now[0] += 10  # a disk that hung: no long sleep for it
    pacer.step()
    assert slept[-1] <= 0.1


def test_a_rate_is_kept_and_not_caught_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    rate = Rate(100)
    for _step in range(50):
        rate.did(10)
    assert now[0] == pytest.approx(5.0)
    now[0] += 60
    for _step in range(50):
        rate.did(10)
    assert now[0] == pytest.approx(70.0, abs=0.2)
