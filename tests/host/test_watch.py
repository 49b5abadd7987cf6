# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A watched tree has the totals of a scan and of du, whatever is done to it between two looks.

`STOWAGE_WATCH_EXAMPLES=2000` has so many programs of changes tried on each filesystem instead of a few.
"""

from __future__ import annotations

import errno
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from changes_lab import OFTEN, QUEUE, SELDOM, SIZES, Changes, Elsewhere, mounted, run_btrfs
from conftest import opened
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_measure import du, du_counts_directories, nested

from stowage_core.trees.measure import Scan, Usage
from stowage_core.trees.parts import Begins, Names, Part, measure_parts
from stowage_core.trees.walk import Directory, Walk
from stowage_core.trees.watching import Watch, WatchError, engine, mounts_below, tree
from stowage_core.trees.watching.forest import Forest
from stowage_core.trees.watching.listing import Listed, Lister
from stowage_core.use import exports

EXAMPLES = int(os.environ.get("STOWAGE_WATCH_EXAMPLES", "25"))


def scanned(path: bytes) -> Usage:
    with opened(path) as fd:
        usage = Scan().measure(fd)
    return replace(usage, problems=tuple(sorted(usage.problems)))


class BrokenOff(Exception):
    """Nobody wants to know any more."""


class World(Changes):
    """A directory in which a program of changes runs, and the watch that has to follow."""

    def __init__(
        self, base: Path, fstype: str, settles_s: float | None, loses: bool, shown: Path, elsewhere: Elsewhere
    ) -> None:
        super().__init__(base, fstype, shown, elsewhere)
        self.exact = settles_s is None  # else what is written back meanwhile is not looked for
        self.loses = loses  # events, as few may wait
        with ExitStack() as stack:  # the kernel allows few watches at a time: none may be left behind
            with opened(self.base) as fd, elsewhere.queue_of(32 if loses else QUEUE):
                self.watch = Watch(fd, settles_s=settles_s, check=self.step)
                stack.callback(self.watch.close)
            stack.pop_all()
        self.steps_left = -1

    def step(self) -> None:
        if not self.steps_left:
            raise BrokenOff
        self.steps_left -= 1

    def close(self) -> None:
        self.watch.close()
        super().close()

    def is_known(self, directory: bytes) -> bool:
        with opened(directory) as fd:
            return self.watch.knows(fd)

    def run(self, what: str, one: int, two: int, size: int) -> None:
        if what == "check":
            self.check(self.roots[one % len(self.roots)])
        elif what == "parts":
            self.check_parts(self.roots[one % len(self.roots)], two)
        elif what == "forget":
            with suppress(FileNotFoundError), opened(self.roots[one % len(self.roots)]) as fd:
                self.watch.forget(fd)
        elif what == "break":
            self.steps_left = two % 7
            with suppress(BrokenOff, FileNotFoundError), opened(self.roots[one % len(self.roots)]) as fd:
                self.watch.measure(fd)
            self.steps_left = -1
        elif what == "drain":
            self.watch.drain()
        else:
            super().run(what, one, two, size)

    def check(self, root: bytes) -> None:
        """Measure one root, and compare with what a scan finds before and after: the same, as nothing changes."""
        if not os.path.isdir(root):
            return
        before = scanned(root)
        with opened(root) as fd:
            usage = self.watch.measure(fd)
            if not self.loses:
                assert self.watch.knows(fd)
        after = scanned(root)
        usage = replace(usage, problems=tuple(sorted(usage.problems)))
        if not self.exact:
            usage, before, after = (replace(one, allocated=0, linked=0) for one in (usage, before, after))
        if before == after:
            assert usage == before, (usage, before)

    def check_parts(self, root: bytes, seed: int) -> None:
        """Some directories are parts, of each kind, and some are left out, one of them for the watch as well."""
        if not os.path.isdir(root):
            return
        ways = [os.fsdecode(one[len(root) + 1 :]) for one in self.entries()[0] if one.startswith(root + b"/")]
        out: Names = tuple(ways[seed % len(ways)].split("/")) if ways and seed % 3 else ()
        deepest = max(seed % 4, len(out))

        def watched(fd: int, begins: Begins, deepest: int) -> None:
            self.watch.measure_parts(fd, begins, deepest, out or None)

        def parts(count: Callable[[int, Begins, int], None]) -> dict[Names, Usage]:
            found: dict[Names, Usage] = {}

            def begins(names: Names, directory: Directory) -> list[Part] | None:
                kind = (sum(map(len, names)) + seed) % 6 if names else 0
                if kind == 5 or (out and names == out):
                    return None
                assert os.fstat(directory.fd).st_ino == directory.status.st_ino

                def take(usage: Usage) -> None:
                    assert names not in found
                    kept = replace(usage, problems=tuple(sorted(usage.problems)))
                    found[names] = kept if self.exact else replace(kept, allocated=0)

                return [Part(take, rest=kind in (1, 2), hides=kind in (2, 3))] if kind < 4 else []

            with opened(root) as fd:
                count(fd, begins, deepest)
            return found

        before = parts(measure_parts)
        found = parts(watched)
        if before == parts(measure_parts):
            assert found == before

    def compare_with_du(self) -> None:
        if self.mounted:  # du goes into what is mounted
            return
        os.sync()
        root = Path(os.fsdecode(self.roots[0]))
        with opened(self.roots[0]) as fd:
            usage = self.watch.measure(fd)
        assert usage.complete
        apparent = usage.bytes + (usage.directory_bytes if du_counts_directories() else 0)
        assert apparent == du(root, "--apparent-size")
        if self.exact:
            assert usage.allocated == du(root)


LOOKS = ["check", "parts"]
WHATS = [*LOOKS, *LOOKS, *OFTEN, *OFTEN, *SELDOM, "forget", "break", "break", "drain"]
STEPS = st.lists(
    st.tuples(st.sampled_from(WHATS), st.integers(0, 50), st.integers(0, 50), st.sampled_from(SIZES)),
    min_size=10,
    max_size=60,
)


def run_programs(disk: Path, fstype: str, shown: Path, elsewhere: Elsewhere) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(STEPS, st.sampled_from([0.0, 0.0, None]), st.sampled_from([False, False, False, True]), st.booleans())
    def programs(steps: list[tuple[str, int, int, int]], settles_s: float | None, loses: bool, each_time: bool) -> None:
        base = Path(tempfile.mkdtemp(prefix="world-", dir=disk))
        world = World(base, fstype, settles_s, loses, shown, elsewhere)
        try:
            for root in world.roots:
                world.check(root)
            for step in steps:
                world.run(*step)
                if each_time:
                    world.check(world.roots[0])
            for root in world.roots:
                world.check(root)
                world.check(root)
            world.compare_with_du()
        finally:
            world.close()

    programs()


def test_programs(disk: Path, fstype: str, shown: Path, elsewhere: Elsewhere) -> None:
    run_programs(disk, fstype, shown, elsewhere)


def test_programs_in_memory(tmp_path: Path, elsewhere: Elsewhere) -> None:
    disk, shown = tmp_path / "disk", tmp_path / "shown"
    disk.mkdir()
    shown.mkdir()
    with mounted(disk, "-t", "tmpfs", "none"), mounted(shown, "--bind", str(disk)):
        run_programs(disk, "tmpfs", shown, elsewhere)


def test_a_world_that_cannot_begin_leaves_no_watch_behind(
    disk: Path, fstype: str, shown: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def refused(_events: int) -> Iterator[None]:
        yield
        raise OSError(errno.EIO, "refused")

    monkeypatch.setattr(elsewhere, "queue_of", refused)
    with pytest.raises(OSError, match="refused"):
        World(disk / "world", fstype, 0.0, False, shown, elsewhere)
    assert not [one for one in os.listdir("/proc/self/fd") if "fanotify" in link_of(one)]


def link_of(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:  # that of the list itself
        return ""


@contextmanager
def watching(path: Path, **settings: Any) -> Iterator[Watch]:
    with opened(os.fsencode(path)) as fd:
        watch = Watch(fd, **settings)
    try:
        yield watch
    finally:
        watch.close()


def measured(watch: Watch, path: Path) -> Usage:
    """Return what a tree holds, which is to be what a scan finds and to be known then."""
    with opened(os.fsencode(path)) as fd:
        usage = watch.measure(fd)
        assert watch.knows(fd)
    assert usage.complete
    assert replace(usage, problems=tuple(sorted(usage.problems))) == scanned(os.fsencode(path))
    return usage


TAKES = """
import os, sys
from stowage_core.trees.watching import Watch

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))

root = os.open(sys.argv[1], os.O_RDONLY)
with os.scandir(root) as names:
    list(names)
watch = Watch(root, settles_s=float(sys.argv[2]))
before = resident()
watch.measure(root)
watch.measure(root)
(known,) = watch._known.values()
print(known.state_bytes, resident() - before, watch.how_many_unsteady())
"""


def test_what_is_known_takes_the_memory_that_it_is_taken_to(tmp_path: Path) -> None:
    with mounted(tmp_path, "-t", "tmpfs", "none"):
        for number in range(30_000):
            path = tmp_path / f"{number // 300}" / f"{number}"
            path.mkdir(parents=True)
            (path / "file").touch()
        for settles_s, unsteady in ((0, 0), (3600, 30_000)):
            command = [sys.executable, "-c", TAKES, str(tmp_path), f"{settles_s}"]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            estimate, taken, how_many = map(int, told.split())
            assert how_many >= unsteady
            assert taken * 0.6 < estimate < taken * 1.6, (settles_s, estimate, taken)


def test_only_what_changed_is_listed_again(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[int] = []
    list_one = Lister.list

    def noted(self: Lister, directory: Directory, walk: Walk) -> Listed:
        listed.append(directory.status.st_ino)
        return list_one(self, directory, walk)

    monkeypatch.setattr(Lister, "list", noted)
    for number in range(30):
        (disk / f"{number}").mkdir()
        (disk / f"{number}/file").write_bytes(bytes(100))
    os.sync()
    with watching(disk, settles_s=0.0) as watch, open(disk / "7/file", "ab", buffering=0) as file:
        before = time.time()
        measured(watch, disk)
        assert len(listed) == 31
        measured(watch, disk)
        assert len(listed) == 31
        file.write(b"x")
        assert select.select([watch], [], [], 5)[0]
        assert measured(watch, disk).bytes == 3001
        assert listed[31:] == [(disk / "7").stat().st_ino]
        with opened(os.fsencode(disk)) as fd:
            began = watch.listed(fd)
            assert began is not None and before <= began <= time.time()
            watch.forget(fd)
            assert not watch.knows(fd)
            assert watch.listed(fd) is None
        measured(watch, disk)
        assert len(listed) == 32 + 31


def test_how_many_directories_are_listed_each_time_is_told(disk: Path) -> None:
    for name in ("settled", "holes", "images", "linked", "outside"):
        (disk / "tree" / name).mkdir(parents=True)
        (disk / "tree" / name / "file").write_bytes(b"12345")
    (disk / "tree/outside").rename(disk / "outside")
    os.link(disk / "outside/file", disk / "tree/linked/other")
    os.truncate(disk / "tree/holes/file", 100_000)
    os.truncate(disk / "tree/images/file", 100_000)
    os.sync()
    with ExitStack() as stack:
        fd = stack.enter_context(opened(os.fsencode(disk / "tree")))
        watch = Watch(fd, settles_s=0)
        stack.callback(watch.close)
        assert watch.how_many_unsteady() == 0, "nothing is known yet"
        usage = watch.measure(fd)
        assert (usage.directories, watch.how_many_unsteady()) == (5, 3)
        (disk / "tree/holes/file").unlink()
        watch.measure(fd)
        watch.measure(fd)  # what has changed is looked at once more
        assert watch.how_many_unsteady() == 2
        watch.forget(fd)
        watch.measure(fd)
        assert watch.how_many_unsteady() == 2


def test_wherever_it_is_broken_off_what_is_known_stays_right(disk: Path) -> None:
    left = -1

    def check() -> None:
        nonlocal left
        if not left:
            raise BrokenOff
        left -= 1

    tree, other = disk / "tree", disk / "other"
    for name in ("a/b/c", "d/e", "f"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_bytes(bytes(100))
    other.mkdir()
    os.link(tree / "f/file", other / "same")
    with watching(disk, settles_s=0.0, check=check) as watch:
        measured(watch, other)
        for number in range(12):
            # What is new in depth, moved, removed, and linked, each in directories that are listed one after the other.
            (tree / f"new{number}/in/it").mkdir(parents=True)
            (tree / f"new{number}/beside").mkdir()
            (tree / f"new{number}/in/it/file").write_bytes(bytes(1000 + number))
            os.rename(tree / "a/b/c", tree / "moved")
            os.rename(tree / "moved", tree / f"new{number}/c")
            os.symlink("x", tree / "d/e/link")
            shutil.rmtree(tree / "f")
            (tree / "f").mkdir()
            os.link(other / "same", tree / "f/file")
            os.sync()
            left = number
            with pytest.raises(BrokenOff), opened(os.fsencode(tree)) as fd:
                watch.measure(fd)
            left = -1
            os.rename(tree / f"new{number}/c", tree / "a/b/c")
            (tree / "d/e/link").unlink()
            os.sync()
            measured(watch, tree)
            measured(watch, other)
        assert watch.losses == 0


def test_events_that_were_lost_are_made_up_for(disk: Path, elsewhere: Elsewhere) -> None:
    files = [disk / f"{number}" / "file" for number in range(50)]
    for file in files:
        file.parent.mkdir()
        file.write_bytes(bytes(10))
    os.sync()
    with elsewhere.queue_of(20), watching(disk, settles_s=0.0) as watch:
        measured(watch, disk)
        assert watch.drain() and watch.losses == 0
        for file in files:
            file.write_bytes(bytes(20))
        assert not watch.drain() and watch.losses == 1
        with opened(os.fsencode(disk)) as fd:
            assert not watch.knows(fd)
        os.sync()
        assert measured(watch, disk).bytes == 1000


@pytest.mark.parametrize("queue", [20, 4], ids=["taken in time", "lost"])
def test_what_changes_while_parts_are_counted(
    disk: Path, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, queue: int
) -> None:
    monkeypatch.setattr(engine, "_DRAIN_S", 0.0)
    for number in range(50):
        (disk / f"{number}").mkdir()
        for below in range(6):
            (disk / f"{number}/{below}").mkdir()
            (disk / f"{number}/{below}/file").write_bytes(bytes(10))
    os.sync()
    sizes: list[int] = []

    def begins(names: Names, _directory: Directory) -> list[Part]:
        for below in range(6 if names else 0):
            (disk / names[0] / f"{below}/file").write_bytes(bytes(20))
        return [Part(lambda usage: sizes.append(usage.bytes))]

    with elsewhere.queue_of(queue), watching(disk, settles_s=0.0) as watch, opened(os.fsencode(disk)) as fd:
        watch.measure(fd)
        watch.measure_parts(fd, begins, 1)
        assert sizes == [6 * 10] * 50 + [50 * 6 * 10]
        assert (watch.knows(fd) and watch.drain()) is (queue == 20)
        os.sync()
        assert measured(watch, disk).bytes == 50 * 6 * 20


def test_what_is_mounted_below_may_change(disk: Path) -> None:
    (disk / "a/b").mkdir(parents=True)
    (disk / "a/b/file").write_bytes(bytes(100))
    (disk / "file").touch()
    os.sync()
    with watching(disk, settles_s=0.0) as watch:
        assert measured(watch, disk).bytes == 100
        with mounted(disk / "a/b", "-t", "tmpfs", "none"):
            assert measured(watch, disk).problems == ("a/b: another filesystem is mounted there",)
            (disk / "a").rename(disk / "c")
            usage = measured(watch, disk)
            assert (usage.bytes, usage.problems) == (0, ("c/b: another filesystem is mounted there",))
            (disk / "c").rename(disk / "a")
        assert measured(watch, disk).bytes == 100
        with mounted(disk / "file", "--bind", str(disk / "a/b/file")):
            assert measured(watch, disk).bytes == 200
            (disk / "a/b/file").write_bytes(bytes(300))
            os.sync()
            assert measured(watch, disk).bytes == 600
        assert measured(watch, disk).bytes == 300


def tables_read(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that grows by each mount table that is read."""
    tables: list[bytes] = []
    read = mounts_below.read_table
    monkeypatch.setattr(mounts_below, "read_table", lambda: (tables.append(text := read()), text)[1])
    return tables


def test_the_mount_table_is_read_when_it_may_have_changed(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_read(monkeypatch)
    (disk / "a/b").mkdir(parents=True)
    os.sync()
    with watching(disk, settles_s=0.0) as watch:
        measured(watch, disk)
        tables.clear()
        for _number in range(20):
            measured(watch, disk)
        assert not tables
        with mounted(disk / "a/b", "-t", "tmpfs", "none"):
            for name in ("c", "d"):
                next(disk.glob("[acd]")).rename(disk / name)
                assert measured(watch, disk).problems == (f"{name}/b: another filesystem is mounted there",)
            assert tables
            (disk / "d").rename(disk / "a")
        assert not measured(watch, disk).problems
        tables.clear()
        measured(watch, disk)
        assert not tables


def test_what_is_mounted_elsewhere_on_the_disk_costs_nothing(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tables_read(monkeypatch)
    trees = [disk / f"tree{number}" for number in range(3)]
    for path in (*(one / "in" for one in trees), disk / "elsewhere/place"):
        path.mkdir(parents=True)
    os.sync()
    with watching(disk, settles_s=0.0) as watch, mounted(disk / "elsewhere/place", "-t", "tmpfs", "none"):
        for one in trees:
            measured(watch, one)
        tables.clear()
        for _number in range(5):
            for one in trees:
                measured(watch, one)
        assert not tables
        (disk / "elsewhere").rename(trees[1] / "in/moved")
        for one in trees:
            problems = ("in/moved/place: another filesystem is mounted there",) if one == trees[1] else ()
            assert measured(watch, one).problems == problems
        (trees[1] / "in/moved").rename(disk / "elsewhere")
        assert not measured(watch, trees[1]).problems
        tables.clear()
        measured(watch, trees[1])
        assert not tables


def test_other_names_are_looked_for_once_and_step_by_step(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have been listed while each was the only one: such a search looks at every directory, at the pace."""
    steps = searched = 0
    has_names = tree.Tree._has_names

    def noted(self: tree.Tree, handle: bytes, wanted: frozenset[int]) -> bool:
        nonlocal searched
        searched += 1
        return has_names(self, handle, wanted)

    def step() -> None:
        nonlocal steps
        steps += 1

    monkeypatch.setattr(tree.Tree, "_has_names", noted)
    root, out = disk / "tree", disk / "out"
    out.mkdir()
    for number in range(200):
        (root / f"{number}").mkdir(parents=True)
    for name in ("first", "second", "third"):
        for number in range(200):
            (root / f"{number}/{name}").write_bytes(b"x")
    os.sync()
    with watching(disk, settles_s=0.0, check=step) as watch:
        measured(watch, root)
        for number in range(3):
            os.link(root / f"{number}/second", out / f"{number}")
            os.utime(root / f"{number}/second")  # a link made where nothing is known is not told
            measured(watch, root)
        assert searched == 0, "what has got a name elsewhere had no other one here"
        os.link(out / "0", root / "100/name")
        steps = 0
        measured(watch, root)
        assert searched > 0 and steps >= searched
        found = searched
        os.link(out / "0", root / "101/name")
        measured(watch, root)
        assert searched == found


def test_a_search_for_other_names_that_was_broken_off_is_taken_up_again(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_searching = False
    has_names = tree.Tree._has_names

    def searching(self: tree.Tree, handle: bytes, wanted: frozenset[int]) -> bool:
        nonlocal is_searching
        is_searching = breaks
        return has_names(self, handle, wanted)

    def check() -> None:
        if is_searching:
            raise BrokenOff

    monkeypatch.setattr(tree.Tree, "_has_names", searching)
    # Which inodes the files of a directory get is up to the filesystem.
    monkeypatch.setattr(Forest, "may_have", lambda self, node, inodes: True)
    for number in range(50):
        (disk / f"{number}").mkdir()
    for name in ("first", "second", "third"):
        for number in range(50):
            (disk / f"{number}/{name}").write_bytes(b"x")
    (disk / "new").mkdir()
    os.sync()
    with watching(disk, settles_s=0.0, check=check) as watch, opened(os.fsencode(disk)) as fd:
        measured(watch, disk)
        os.link(disk / "49/second", disk / "new/name")
        for breaks in (True, True, False):
            is_searching = False
            if breaks:
                with pytest.raises(BrokenOff):
                    watch.measure(fd)
                assert watch.knows(fd)
        assert measured(watch, disk).files == 150
        with open(disk / "new/name", "ab", buffering=0) as file:
            file.write(b"yz")
        os.sync()
        assert measured(watch, disk).bytes == 152
        assert watch.losses == 0


def test_an_upper_layer_of_an_overlay(disk: Path) -> None:
    for name in ("lower", "upper", "work", "merged"):
        (disk / name).mkdir()
    (disk / "lower/file").write_bytes(bytes(10))
    layers = f"lowerdir={disk}/lower,upperdir={disk}/upper,workdir={disk}/work"
    with watching(disk, settles_s=0.0) as watch:
        measured(watch, disk)
        with mounted(disk / "merged", "-t", "overlay", "-o", layers, "none"):
            for size in (20, 30):
                with open(disk / "merged/file", "ab", buffering=0) as file:
                    file.write(bytes(size))
                    os.sync()
                    measured(watch, disk)
            assert measured(watch, disk).bytes == 10 + 60


def test_nothing_is_opened_in_trees_that_lie_in_what_is_left_out(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    open_walked, open_known = Walk._open, tree.open_handle

    def walked(parent_fd: int, name: str) -> tuple[int, os.stat_result]:
        fd, status = open_walked(parent_fd, name)
        found.append(os.readlink(f"/proc/self/fd/{fd}"))
        return fd, status

    def known(mount_fd: int, handle: bytes) -> int:
        fd = open_known(mount_fd, handle)
        found.append(os.readlink(f"/proc/self/fd/{fd}"))
        return fd

    monkeypatch.setattr(Walk, "_open", staticmethod(walked))
    monkeypatch.setattr(tree, "open_handle", known)
    copy = disk / "root/data/copy"
    for path in (copy / "in", copy / "holes", copy / "mounted", disk / "root/runs", disk / "new"):
        path.mkdir(parents=True)
        (path / "file").write_bytes(bytes(100))
    os.truncate(copy / "holes/file", 100_000)
    (copy / "in/link").hardlink_to(disk / "root/runs/file")
    os.sync()

    def rest() -> int:
        sizes: list[int] = []

        def begins(names: Names, _directory: Directory) -> list[Part] | None:
            return None if names == ("data",) else [] if names else [Part(lambda usage: sizes.append(usage.bytes))]

        found.clear()
        with opened(os.fsencode(disk / "root")) as fd:
            watch.measure_parts(fd, begins, 1, ("data",))
            assert watch.knows(fd)
            sizes.append(sizes[0])
            measure_parts(fd, begins, 1)
        assert not any(path.startswith(str(copy)) for path in found)
        assert sizes[0] == sizes[2]
        return sizes[0]

    with watching(disk, settles_s=0.0) as watch:
        assert rest() == 100
        assert measured(watch, copy).bytes == 100_000 + 3 * 100
        assert rest() == 100
        with open(copy / "in/file", "ab", buffering=0) as file, mounted(copy / "mounted", "-t", "tmpfs", "none"):
            file.write(b"x")
            assert rest() == 100
        (disk / "new").rename(disk / "root/new")
        (copy / "in/other").hardlink_to(disk / "root/new/file")
        with open(disk / "root/runs/file", "ab", buffering=0) as file:
            file.write(b"x")
        os.sync()
        assert measured(watch, copy).bytes == 100_000 + 2 * 101 + 2 * 100
        assert rest() == 201
        # What is left out now is another directory: then all is looked at again.
        (disk / "root/data").rename(disk / "root/was")
        (disk / "root/data").mkdir()
        assert rest() == 100_000 + 2 * 101 + 2 * 100


def test_far_below_the_longest_path(disk: Path) -> None:
    with nested(disk, 3000, "a"), watching(disk, settles_s=0.0) as watch:
        assert measured(watch, disk).bytes == 12345
        with opened(os.fsencode(disk)) as fd:
            for _level in range(2999):
                below = os.open("down", os.O_RDONLY, dir_fd=fd)
                os.dup2(below, fd)
                os.close(below)
            os.mkdir("new", dir_fd=fd)
            os.close(os.open("new/file", os.O_CREAT, dir_fd=fd))
        assert measured(watch, disk).files == 2


def test_a_filesystem_that_is_unmounted_meanwhile(small_disk: Callable[..., Any], fstype: str) -> None:
    disk = small_disk(fstype)
    (disk.path / "a").mkdir()
    (disk.path / "a/file").write_bytes(bytes(100))
    with watching(disk.path, settles_s=0.0) as watch:
        assert measured(watch, disk.path).bytes == 100
        disk.unmount()
        disk.mount()
        (disk.path / "a/file").write_bytes(bytes(200))
        os.sync()
        with opened(os.fsencode(disk.path)) as fd:
            assert not watch.knows(fd)
        assert measured(watch, disk.path).bytes == 200
        (disk.path / "a/file").write_bytes(bytes(300))
        os.sync()
        assert measured(watch, disk.path).bytes == 300


def test_a_subvolume_that_is_mounted_alone(small_disk: Callable[..., Any]) -> None:
    disk = small_disk("btrfs")
    run_btrfs("create", str(disk.path / "one"))
    disk.unmount()
    disk.mount("subvol=one")
    (disk.path / "a").mkdir()
    with watching(disk.path, settles_s=0.0) as watch:
        measured(watch, disk.path)
        (disk.path / "a/file").write_bytes(bytes(100))
        run_btrfs("snapshot", str(disk.path), str(disk.path / "a/two"))
        (disk.path / "a/two/other").write_bytes(bytes(50))
        os.sync()
        assert measured(watch, disk.path).bytes >= 150
        run_btrfs("delete", str(disk.path / "a/two"))
        assert measured(watch, disk.path).bytes == 100


def test_files_of_two_subvolumes_that_have_one_inode_number(small_disk: Callable[..., Any]) -> None:
    disk = small_disk("btrfs")
    sizes = {disk.path / "one": 5000, disk.path / "two": 70000}
    for root, size in sizes.items():
        run_btrfs("create", str(root))
        (root / "file").write_bytes(bytes(size))
        os.link(root / "file", root / "link")
    assert len({(root / "file").stat().st_ino for root in sizes}) == 1
    os.sync()
    with watching(disk.path, settles_s=0.0) as watch:
        for root in [*sizes, *sizes]:
            assert measured(watch, root).bytes == sizes[root]
        assert measured(watch, disk.path).bytes == 75000


def test_trees_that_were_deleted_are_forgotten_without_a_look_at_all_others_for_each(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_again: list[bytes] = []
    open_handle = tree.open_handle

    def noted(mount_fd: int, handle: bytes) -> int:
        opened_again.append(handle)
        return open_handle(mount_fd, handle)

    monkeypatch.setattr(tree, "open_handle", noted)
    with watching(disk, settles_s=0.0) as watch:
        for number in range(200):
            root = disk / f"{number}"
            root.mkdir()
            measured(watch, root)
        assert len(opened_again) <= 2 * 200
        for _number in range(300):
            root = disk / "short"
            root.mkdir()
            measured(watch, root)
            root.rmdir()
        (known,) = watch._known.values()
        assert len(known.roots) <= 2 * 200 + 1


def test_what_may_have_been_exported_meanwhile_is_listed_again(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The NFS server writes to files without names, and what it has written is told for no directory that is known."""
    table = tmp_path / "etab"
    monkeypatch.setattr(exports, "ALL_TABLE", str(table))
    table.write_text("")
    (disk / "file").write_bytes(b"x")
    os.sync()
    with watching(disk, settles_s=0.0) as watch:
        measured(watch, disk)
        measured(watch, disk)
        assert watch.losses == 0
        new = tmp_path / "new"
        new.write_text("")
        new.rename(table)  # as exportfs does, after an export and again when that was withdrawn
        measured(watch, disk)
        measured(watch, disk)
        assert watch.losses == 1


def test_how_long_the_kernel_takes_to_write_is_asked_each_time(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_write_back_s", lambda: 0.0)
    (disk / "file").write_bytes(b"x")
    os.sync()
    with watching(disk) as watch:
        measured(watch, disk)
        (known,) = watch._known.values()
        assert not known.restless
        monkeypatch.setattr(engine, "_write_back_s", lambda: 1000.0)
        (disk / "file").write_bytes(b"xy")
        measured(watch, disk)
        assert len(known.restless) == 1


def test_what_cannot_be_watched(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WatchError, match="type proc"), watching(Path("/proc")):
        pass
    for number in range(600):
        (disk / f"{number}").mkdir()
    with watching(disk, memory_bytes=50_000) as watch, opened(os.fsencode(disk)) as fd:
        with pytest.raises(WatchError, match="takes more than"):
            watch.measure(fd)
        monkeypatch.setattr(exports, "ALL_TABLE", str(tmp_path / "etab"))
        (tmp_path / "etab").write_text(f"{disk}/7\t*(rw,sync)\n")
        with pytest.raises(WatchError, match="is exported"):
            watch.measure(fd)
    with pytest.raises(WatchError, match="is exported"), watching(disk):
        pass
