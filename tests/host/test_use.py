# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What counts as use, directory by directory, and what does not."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from copies_lab import process

from stowage_core import mounts, use, use_child, write_leases
from stowage_core.use import Victim


@pytest.fixture
def drives(disk: Path) -> Path:
    for name in ("ml.a", "ml.b"):
        (disk / "drives" / name / "data").mkdir(parents=True)
        (disk / "drives" / name / "data" / "file").write_text(name)
    return disk / "drives"


@pytest.fixture
def victims(drives: Path) -> Iterator[list[Victim]]:
    with ExitStack() as stack:

        def opened(path: Path) -> int:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, fd)
            return fd

        parent = opened(drives)
        yield [Victim.of(name, opened(drives / name), parent, mounts.read()) for name in ("ml.a", "ml.b")]


def test_this_host_can_be_looked_at_as_a_whole(victims: list[Victim]) -> None:
    """Where one process may not be looked at, nothing is ever proven unused: run these tests in a PID namespace."""
    assert use.in_use(victims) == {"ml.a": [], "ml.b": []}


def test_one_look_for_all_tells_them_apart(drives: Path, victims: list[Victim]) -> None:
    with process("os.chdir(copy); ready()", str(drives / "ml.b" / "data")) as holder:
        (text,) = use.in_use(victims)["ml.b"]
        assert text.startswith(f"process {holder.pid} (python") and str(drives / "ml.b" / "data") in text
        assert use.in_use(victims)["ml.a"] == []


def test_a_name_of_any_bytes_stays_one_line(drives: Path, victims: list[Victim]) -> None:
    name = os.fsencode(drives) + b"/ml.a/\xff\n\x1b"
    os.mkdir(name)
    with process("os.chdir(os.fsencode(copy)); ready()", os.fsdecode(name)):
        (text,) = use.in_use(victims)["ml.a"]
    assert text.isprintable() and text.endswith("\\xff\\n\\x1b")


def test_open_files_elsewhere_on_the_disk_are_no_use(disk: Path, victims: list[Victim]) -> None:
    (disk / "other").mkdir()
    with process("os.chdir(copy); file = open('x', 'w'); ready()", str(disk / "other")):
        assert use.in_use(victims) == {"ml.a": [], "ml.b": []}


def test_a_bind_mount_of_the_whole_disk_is_no_use(disk: Path, victims: list[Victim], tmp_path: Path) -> None:
    subprocess.run(["mount", "--bind", disk, tmp_path], check=True)
    try:
        assert use.in_use(victims) == {"ml.a": [], "ml.b": []}
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_another_subvolume_with_the_same_inode_numbers(small_disk: object, tmp_path: Path) -> None:
    assert callable(small_disk)
    disk = small_disk("btrfs")
    drives = disk.path / "drives"
    for parent in (drives / "ml.a", disk.path / "other"):
        parent.mkdir(parents=True)
        subprocess.run(["btrfs", "-q", "subvolume", "create", parent / "sub"], check=True)
        (parent / "sub" / "file").touch()
    numbers = [os.stat(parent / "sub" / "file").st_ino for parent in (drives / "ml.a", disk.path / "other")]
    assert numbers[0] == numbers[1]
    fds = [os.open(path, os.O_RDONLY) for path in (drives, drives / "ml.a")]
    try:
        victim = Victim.of("ml.a", fds[1], fds[0], mounts.read())
        with process("file = open(copy); ready()", str(disk.path / "other" / "sub" / "file")):
            assert use.in_use([victim])["ml.a"] == []
        for code in ("file = open(copy); ready()", "os.chdir(os.path.dirname(copy)); ready()"):
            with process(code, str(drives / "ml.a" / "sub" / "file")):
                assert len(use.in_use([victim])["ml.a"]) == 1
        with process(
            "import mmap; f = open(copy, 'r+b'); f.truncate(4096); m = mmap.mmap(f.fileno(), 0); ready()",
            str(drives / "ml.a" / "sub" / "file"),
        ):
            assert use.in_use([victim])["ml.a"]
            assert "write lease" in write_leases.open_file(fds[1])
    finally:
        for fd in fds:
            os.close(fd)


def test_a_disk_mounted_by_a_subvolume(small_disk: object, tmp_path: Path) -> None:
    assert callable(small_disk)
    disk = small_disk("btrfs")
    subprocess.run(["btrfs", "-q", "subvolume", "create", disk.path / "top"], check=True)
    (disk.path / "top" / "drives" / "ml.a").mkdir(parents=True)
    (tmp_path / "at").mkdir()
    disk.mount("subvol=top", at=tmp_path / "at")
    fds = [os.open(tmp_path / "at" / "drives" / name, os.O_RDONLY) for name in (".", "ml.a")]
    try:
        victim = Victim.of("ml.a", fds[1], fds[0], mounts.read())
        assert victim.place == "/top/drives/ml.a"
        with process("os.chdir(copy); ready()", str(disk.path / "top" / "drives" / "ml.a")):
            assert use.in_use([victim])["ml.a"]
        (tmp_path / "bound").mkdir()
        subprocess.run(["mount", "--bind", disk.path / "top" / "drives" / "ml.a", tmp_path / "bound"], check=True)
        try:
            assert f"mounted at {tmp_path}/bound" in use.in_use([victim])["ml.a"][0]
        finally:
            subprocess.run(["umount", tmp_path / "bound"], check=True)
    finally:
        for fd in fds:
            os.close(fd)
        subprocess.run(["umount", tmp_path / "at"], check=True)


def test_own_descriptors_are_no_use_but_those_of_others_are(drives: Path, victims: list[Victim]) -> None:
    assert use.in_use(victims)["ml.a"] == []
    fd = os.open(drives / "ml.a", os.O_RDONLY)
    try:
        assert use.in_use(victims)["ml.a"], "not one of those that were named"
    finally:
        os.close(fd)


def test_late_and_failing_looks_are_use(victims: list[Victim], monkeypatch: pytest.MonkeyPatch) -> None:
    assert use.in_use(victims, 0.0)["ml.a"] == ["could not be determined: no answer within 0 s"]

    def fails() -> list[str]:
        raise RuntimeError("broken")

    monkeypatch.setattr(use, "exported", fails)
    assert use.in_use(victims)["ml.b"] == ["could not be determined: RuntimeError: broken"]
    monkeypatch.setattr(use, "exported", lambda: os._exit(3))
    assert use.in_use(victims)["ml.b"] == ["could not be determined: the process that looked died"]


def test_whoever_waits_for_a_look_is_heard(victims: list[Victim], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use, "exported", lambda: time.sleep(60))
    heard: list[str] = []
    use.in_use(victims, 2.5, lambda: heard.append("alive"))
    assert heard[:2] == ["alive", "alive"]


def test_a_path_that_does_not_answer_holds_up_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped helper stands for one that waits for a dead server."""
    answers: dict[str, object] = {}
    prober = use_child.Prober()
    prober.ask("/", lambda identity, number: answers.update(first=identity))
    (pid,) = prober.pids
    os.kill(pid, 19)
    prober.ask("/", lambda identity, number: answers.update(stopped=(identity, number)))
    prober.ask("/etc", lambda identity, number: answers.update(second=identity))
    prober.ask("/none", lambda identity, number: answers.update(missing=(identity, number)))
    prober.finish(0.1)
    for pid in prober.pids:
        os.waitpid(pid, 0)
    assert answers["first"] and answers["second"]
    assert answers["stopped"] == (None, 0) and answers["missing"] == (None, 2)


def test_a_file_leased_by_its_worker_is_open(drives: Path, victims: list[Victim]) -> None:
    assert write_leases.open_file(victims[0].fd) == ""
    os.mkfifo(drives / "ml.a" / "fifo")
    (drives / "ml.a" / "link").symlink_to("/dev/zero")
    os.mknod(drives / "ml.a" / "device", 0o20600, os.makedev(1, 3))
    assert write_leases.open_file(victims[0].fd) == "", "only regular files are opened"
    with open(drives / "ml.a" / "data" / "file"):
        assert "data/file is open somewhere" in write_leases.open_file(victims[0].fd)
    assert write_leases.open_file(victims[1].fd) == ""
    assert "no answer" in write_leases.open_file(victims[1].fd, 0.0)


LEASED = """
import fcntl, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
here, there = socket.socketpair()
fd = os.open(copy, os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
socket.send_fds(here, [b"x"], [fd])
os.close(fd)
ready()
"""


def test_a_lease_of_somebody_else_is_not_waited_for(drives: Path, victims: list[Victim]) -> None:
    with process(LEASED, str(drives / "ml.a" / "data" / "file")):
        assert "another lease is held" in write_leases.open_file(victims[0].fd, 5)


def test_a_file_opened_through_a_link_outside(disk: Path, drives: Path, victims: list[Victim]) -> None:
    os.link(drives / "ml.a" / "data" / "file", disk / "link")
    with process("file = open(copy); ready()", str(disk / "link")):
        assert use.in_use(victims)["ml.a"] and write_leases.open_file(victims[0].fd)
