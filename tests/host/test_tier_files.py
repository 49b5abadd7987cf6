# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Eviction of tiers of whole files, on real filesystems: what goes, and what anybody has open stays."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stowage_core.errors import StowageError
from stowage_core.eviction import write_leases
from stowage_core.tiers import files_eviction, files_round
from stowage_core.tiers.declared import Watermark
from stowage_core.tiers.files_eviction import LINKED, YOUNG, Excess, Limits
from stowage_core.tiers.files_round import APART, CHANGED, MOUNTED, MOVED, OPEN, Removed

SIZE = 8192


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(files_eviction, "YOUNG_S", 0.0)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGIO, before)


def nothing() -> None:
    """Let the work go on."""


def make(tier: Path, *names: str) -> list[Path]:
    """Make files, each written a second after the one before."""
    paths = []
    for number, name in enumerate(names):
        path = tier / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * SIZE)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        paths.append(path)
    time.sleep(0.01)
    return paths


def evict(
    tier: Path, key_limit: int, after_look: Callable[[], Any] = nothing, by_last_read: bool = False
) -> tuple[Removed, Excess]:
    """Evict down to half of *key_limit*."""
    fd = os.open(tier, os.O_RDONLY | os.O_DIRECTORY)
    try:
        limits = Limits(0, key_limit, Watermark(90, 50), by_last_read)
        plan, problems = files_round.look(fd, limits, nothing)
        assert problems.complete
        after_look()
        removed = Removed()
        return removed, files_round.remove(fd, str(tier), plan, removed, nothing)
    finally:
        os.close(fd)


def left(tier: Path) -> list[str]:
    return sorted(str(path.relative_to(tier)) for path in tier.rglob("*") if path.is_file())


def test_the_oldest_go_down_to_the_low_mark(disk: Path) -> None:
    make(disk, "c", "sub/b", "a", "sub/deep/er/d", "sub/e", "f")
    removed, excess = evict(disk, 6)
    assert (removed.files, removed.allocated, bool(excess)) == (3, 3 * SIZE, False)
    assert left(disk) == ["f", "sub/deep/er/d", "sub/e"]
    assert (disk / "sub").is_dir()
    assert evict(disk, 6)[0].files == 0


def test_bytes_are_those_on_the_disk(disk: Path) -> None:
    make(disk, "a", "b", "c", "d")
    with open(disk / "hole", "wb") as file:
        file.truncate(1 << 40)
    fd = os.open(disk, os.O_RDONLY)
    os.sync()
    plan, _problems = files_round.look(fd, Limits(5 * SIZE, 0, Watermark(70, 50)), nothing)
    assert plan.allocated == 4 * SIZE
    removed = Removed()
    excess = files_round.remove(fd, str(disk), plan, removed, nothing)
    os.close(fd)
    assert (removed.allocated, bool(excess)) == (2 * SIZE, False)
    assert left(disk) == ["c", "d", "hole"]


def test_names_are_bytes(disk: Path) -> None:
    names = [b"a\xff\xfe", b"new\nline", "ü".encode(), b"-rf", b" ", b"x" * 255]
    for name in names:
        with open(os.path.join(os.fsencode(disk), name), "wb") as file:
            file.write(b"x")
    time.sleep(0.01)
    removed, excess = evict(disk, 1)
    assert (removed.files, bool(excess)) == (6, False)
    assert os.listdir(disk) == [".stowage-evicting"]


@contextlib.contextmanager
def held_by(program: str, path: Path) -> Iterator[None]:
    """Run a program that holds a file in its own way, until the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{program}\nprint(flush=True); input()", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.communicate(b"\n")


HOLDERS = {
    "reads": "import sys; f = open(sys.argv[1])",
    "writes": "import sys; f = open(sys.argv[1], 'r+b')",
    "appends": "import sys; f = open(sys.argv[1], 'ab')",
    "maps it and has closed it": (
        "import sys, os, mmap; f = os.open(sys.argv[1], 0); m = mmap.mmap(f, 0, 1, 1); os.close(f)"
    ),
    "sends it": (
        "import sys, os, socket, array; a, b = socket.socketpair(); f = os.open(sys.argv[1], 0);"
        "a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f]))]); os.close(f)"
    ),
    "has a read lease": (
        "import sys, os, fcntl; f = os.open(sys.argv[1], 0); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)"
    ),
}


@pytest.mark.parametrize("how", HOLDERS)
def test_an_open_file_stays(disk: Path, how: str) -> None:
    make(disk, "a", "b", "c", "d")
    with held_by(HOLDERS[how], disk / "a"):
        removed, excess = evict(disk, 4)
        assert (removed.files, removed.kept[OPEN], bool(excess)) == (2, 1, False)
        assert left(disk) == ["a", "d"]
    assert (disk / "a").read_bytes() == bytes(SIZE)


def test_a_loop_device_keeps_its_file(disk: Path) -> None:
    make(disk, "a", "b", "c")
    device = subprocess.run(
        ["losetup", "--find", "--show", str(disk / "a")], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    try:
        removed, _excess = evict(disk, 1)
        assert removed.kept[OPEN] == 1
        assert left(disk) == ["a"]
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def test_what_is_opened_between_look_and_removal_stays(disk: Path) -> None:
    paths = make(disk, "a", "b", "c")
    with contextlib.ExitStack() as stack:
        removed, excess = evict(disk, 1, after_look=lambda: stack.enter_context(open(paths[0], "rb")))
        assert removed.kept[OPEN] == 1
        assert excess
    assert left(disk) == ["a"]


def test_what_is_written_or_replaced_between_look_and_removal_stays(disk: Path) -> None:
    paths = make(disk, "a", "b", "c", "d")

    def change() -> None:
        with open(paths[0], "ab") as file:
            file.write(b"more")
        (disk / "new").write_bytes(b"new")
        os.rename(disk / "new", paths[1])
        os.unlink(paths[2])

    removed, excess = evict(disk, 1, after_look=change)
    assert (removed.files, removed.kept[CHANGED]) == (1, 3)
    assert excess
    assert left(disk) == ["a", "b"]
    assert paths[1].read_bytes() == b"new"


def test_what_is_replaced_right_before_it_goes_comes_back(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(disk, "a", "b")
    real = os.rename

    def rename(source: Any, target: Any, **options: Any) -> None:
        if source == b"a":
            (disk / "new").write_bytes(b"new")
            real(disk / "new", disk / "a")
        real(source, target, **options)

    monkeypatch.setattr(files_round.os, "rename", rename)
    removed, _excess = evict(disk, 1)
    assert (removed.files, removed.kept[CHANGED]) == (1, 1)
    assert left(disk) == ["a"]
    assert (disk / "a").read_bytes() == b"new"


def test_whoever_waits_to_open_it_gets_it(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write lease makes them wait; the file goes back to its name before they have it."""
    make(disk, "a", "b")
    real, found = os.rename, []

    def read() -> None:
        with open(disk / "a", "rb") as file:
            found.append((file.read(), os.fstat(file.fileno()).st_nlink))

    reader = threading.Thread(target=read)

    def rename(source: Any, target: Any, **options: Any) -> None:
        if source == b"a":
            reader.start()
            time.sleep(0.3)
        real(source, target, **options)

    monkeypatch.setattr(files_round.os, "rename", rename)
    removed, _excess = evict(disk, 1)
    reader.join()
    assert found == [(bytes(SIZE), 1)]
    assert (removed.files, removed.kept[OPEN]) == (1, 1)
    assert left(disk) == ["a"]


def test_a_name_that_was_taken_meanwhile_is_not_overwritten(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(disk, "a")
    real = os.rename

    def rename(source: Any, target: Any, **options: Any) -> None:
        (disk / "first").write_bytes(b"first")
        real(disk / "first", disk / "a")
        real(source, target, **options)
        (disk / "a").write_bytes(b"second")

    monkeypatch.setattr(files_round.os, "rename", rename)
    removed, _excess = evict(disk, 1)
    assert removed.files == 0
    assert (disk / "a").read_bytes() == b"second"
    (other,) = set(left(disk)) - {"a"}
    assert (disk / other).read_bytes() == b"first"


def test_a_full_disk_has_room_for_eviction(small_disk: Callable[..., Any], fstype: str) -> None:
    point = small_disk(fstype).path
    make_aside(point)
    fill_up(point, SIZE)
    before = len(left(point))
    removed, excess = evict(point, before)
    assert not excess
    assert removed.files == before - before // 2


def fill_up(point: Path, *sizes: int) -> None:
    for size in sizes:
        with contextlib.suppress(OSError):
            for number in range(10**6):
                (point / f"{size:04}-{number:06}").write_bytes(bytes(size))
    time.sleep(0.01)


def make_aside(tier: Path) -> None:
    fd = os.open(tier, os.O_RDONLY | os.O_DIRECTORY)
    files_round.make_aside(fd)
    os.close(fd)


def test_a_disk_that_was_full_before_has_no_way_for_files_to_go(small_disk: Callable[..., Any]) -> None:
    point = small_disk("xfs").path
    fill_up(point, 1 << 20, SIZE, 1, 0)
    before = left(point)
    with pytest.raises(StowageError, match=r"stowage-evicting: there is no room for .* remove any file of the tier"):
        evict(point, 1)
    assert left(point) == before


def test_what_cannot_be_moved_aside_stays(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without moving it, nobody can tell that it is still the file that was looked at."""
    make(disk, "a", "b")

    def rename(source: Any, target: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files_round.os, "rename", rename)
    removed, _excess = evict(disk, 1)
    assert (removed.files, removed.kept) == (0, {"No space left on device": 2})
    assert left(disk) == ["a", "b"]


def test_what_is_written_right_before_the_lease_stays(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = make(disk, "a", "b")
    real = write_leases._lease

    def lease(fd: int) -> StowageError | None:
        if os.path.samestat(os.fstat(fd), os.stat(paths[0])):
            paths[0].write_bytes(b"new")
        return real(fd)

    monkeypatch.setattr(write_leases, "_lease", lease)
    removed, _excess = evict(disk, 1)
    assert (removed.files, removed.kept[CHANGED]) == (1, 1)
    assert paths[0].read_bytes() == b"new"


@pytest.mark.parametrize("what", ["sub", ".", ".."])
@pytest.mark.parametrize("later", [False, True])
def test_what_is_moved_out_with_its_directory_stays(
    disk: Path, monkeypatch: pytest.MonkeyPatch, what: str, later: bool
) -> None:
    """Be it the directory that is moved, the tier, or what that is in; and however far its removal is by then."""
    tier, elsewhere = disk / "on/tier", disk / "elsewhere"
    names = [f"{number:02}" for number in range(20)]
    make(tier, *(f"sub/{name}" for name in names))
    source = Path(os.path.normpath(tier / what))
    real = os.rename

    def rename(name: Any, target: Any, **options: Any) -> None:
        if later:
            real(name, target, **options)
        if name == b"03":
            real(source, elsewhere)
            tier.mkdir(parents=True, exist_ok=True)
            if what != "sub":
                make(tier, *(f"sub/{each}" for each in names))  # of the same names, and as old
        if not later:
            real(name, target, **options)

    monkeypatch.setattr(files_round.os, "rename", rename)
    removed, excess = evict(tier, 1)
    assert removed.files == 3
    assert removed.kept[MOVED] >= 1
    assert excess
    assert [name for name in left(elsewhere) if not name.startswith(".")] == [
        os.path.relpath(tier / "sub" / name, source) for name in names[3:]
    ]
    assert left(tier) == ([] if what == "sub" else [f"sub/{name}" for name in names])


def test_a_directory_in_the_place_of_another_is_left_alone(disk: Path) -> None:
    make(disk / "tier", "sub/a", "sub/b")
    make(disk / "other", "a", "b")

    def swap() -> None:
        os.rename(disk / "tier/sub", disk / "sub")
        os.rename(disk / "other", disk / "tier/sub")

    removed, _excess = evict(disk / "tier", 1, after_look=swap)
    assert removed.files == 2, "what is at its path in the tier, and not newer, is the tier's"
    assert left(disk / "sub") == ["a", "b"]


def test_names_of_one_file_go_back_together(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = disk / "tier"
    make(tier, "one/a", "two/b", "c")
    os.link(tier / "one/a", tier / "two/a")
    time.sleep(0.01)
    real = os.rename

    def rename(name: Any, target: Any, **options: Any) -> None:
        real(name, target, **options)
        if name == b"a" and (tier / "two").exists():
            real(tier / "two", disk / "two")

    monkeypatch.setattr(files_round.os, "rename", rename)
    evict(tier, 1)
    assert left(tier) == ["one/a"]
    assert left(disk / "two") == ["a", "b"]


def test_what_a_killed_round_has_left_aside_comes_out_again(disk: Path) -> None:
    make(disk, "a")
    make_aside(disk)
    aside = disk / ".stowage-evicting"
    assert (aside.stat().st_uid, aside.stat().st_mode & 0o7777) == (0, 0o700)
    os.rename(disk / "a", aside / "0123")
    make_aside(disk)
    (name,) = left(disk)
    assert name.startswith(".stowage-")
    assert (disk / name).read_bytes() == bytes(SIZE)
    fd = os.open(disk, os.O_RDONLY)
    files_round.forget_aside(fd)
    os.close(fd)
    assert os.listdir(disk) == [name]


def test_a_directory_that_others_can_enter_is_not_taken_for_that(disk: Path) -> None:
    make(disk, "a")
    aside = disk / ".stowage-evicting"
    for mode, owner in ((0o750, 0), (0o700, 1000)):
        aside.mkdir(mode)
        os.chown(aside, owner, 0)
        with pytest.raises(StowageError, match="is not Stowage's own directory: others than root can enter it"):
            evict(disk, 1)
        aside.rmdir()
    aside.symlink_to(disk)
    with pytest.raises(StowageError, match="is not Stowage's own directory"):
        evict(disk, 1)
    assert (disk / "a").exists()


def test_a_file_that_is_mounted_elsewhere_stays(disk: Path) -> None:
    tier = disk / "tier"
    make(tier, "sub/a", "sub/b")
    (disk / "seen").touch()
    subprocess.run(["mount", "--bind", str(tier / "sub/a"), str(disk / "seen")], check=True)
    removed, _excess = evict(tier, 1)
    assert (removed.files, removed.kept[MOUNTED]) == (1, 1)
    assert left(tier) == ["sub/a"]


def test_what_is_in_a_subvolume_of_its_own_stays(small_disk: Callable[..., Any]) -> None:
    point = small_disk("btrfs").path
    subprocess.run(["btrfs", "subvolume", "create", str(point / "sub")], check=True, stdout=subprocess.DEVNULL)
    make(point, "sub/a", "b")
    removed, _excess = evict(point, 1)
    assert (removed.files, removed.kept[APART]) == (1, 1)
    assert left(point) == ["sub/a"]


def test_hard_links_go_together_or_not_at_all(disk: Path) -> None:
    tier = disk / "tier"
    make(tier, "a", "sub/b", "c")
    os.link(tier / "a", tier / "sub/a2")
    os.link(tier / "sub/b", disk / "outside")
    os.utime(tier / "c", (1_800_000_000, 1_800_000_000))
    time.sleep(0.01)
    removed, excess = evict(tier, 2)
    assert (removed.files, removed.allocated, removed.kept[LINKED]) == (2, 2 * SIZE, 1)
    assert not excess
    assert left(tier) == ["sub/b"]


def test_a_link_made_between_look_and_removal_keeps_the_file(disk: Path) -> None:
    make(disk, "tier/a")
    removed, _excess = evict(disk / "tier", 1, after_look=lambda: os.link(disk / "tier/a", disk / "outside"))
    assert (removed.files, removed.kept[CHANGED]) == (0, 1)


def test_no_link_is_followed_and_no_mount_entered(disk: Path) -> None:
    tier, outside = disk / "tier", disk / "outside"
    make(tier, "a")
    make(outside, "kept", "sub/kept", "file")
    (tier / "link").symlink_to(outside)
    (tier / "file").symlink_to(outside / "kept")
    (tier / "mounted").mkdir()
    (tier / "over").write_bytes(b"under")
    os.mkfifo(tier / "fifo")
    for source, point in ((outside, tier / "mounted"), (outside / "file", tier / "over")):
        subprocess.run(["mount", "--bind", str(source), str(point)], check=True)
    removed, _excess = evict(tier, 1)
    assert removed.files == 1
    assert left(outside) == ["file", "kept", "sub/kept"]
    assert sorted(os.listdir(tier)) == [".stowage-evicting", "fifo", "file", "link", "mounted", "over"]


def test_a_directory_that_becomes_a_link_is_not_followed(disk: Path) -> None:
    make(disk / "tier", "sub/a")
    make(disk / "outside", "a")

    def swap() -> None:
        os.rename(disk / "tier/sub", disk / "sub")
        (disk / "tier/sub").symlink_to(disk / "outside")

    removed, _excess = evict(disk / "tier", 1, after_look=swap)
    assert removed.files == 0
    assert left(disk / "outside") == ["a"]


def test_what_was_changed_only_now_stays(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_eviction, "YOUNG_S", 5.0)
    make(disk, "a", "b", "c")
    removed, excess = evict(disk, 1)
    assert (removed.files, removed.kept) == (0, {YOUNG: 3})
    assert excess


def test_an_immutable_file_is_told(disk: Path) -> None:
    make(disk, "a", "b")
    subprocess.run(["chattr", "+i", str(disk / "a")], check=True)
    try:
        removed, _excess = evict(disk, 1)
    finally:
        subprocess.run(["chattr", "-i", str(disk / "a")], check=True)
    assert (removed.files, removed.kept["Operation not permitted"]) == (1, 1)


def test_lru_goes_by_last_read(small_disk: Callable[..., Any], fstype: str) -> None:
    point = small_disk(fstype, options="strictatime").path
    make(point, "a", "b", "c", "d")
    (point / "a").read_bytes()
    with open(point / "b", "rb") as file:
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ).close()
    removed, _excess = evict(point, 4, by_last_read=True)
    assert removed.files == 2
    assert left(point) == ["a", "b"]


def test_a_file_read_between_look_and_removal_stays(small_disk: Callable[..., Any], fstype: str) -> None:
    point = small_disk(fstype, options="strictatime").path
    make(point, "a", "b")
    removed, _excess = evict(point, 1, after_look=(point / "a").read_bytes, by_last_read=True)
    assert (removed.files, removed.kept[CHANGED]) == (1, 1)
    assert left(point) == ["a"]
