# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a tier of whole files go: the marks, the order, what stays, and how full it may be by now."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import Refusal
from stowage_core.mounts import Mount
from stowage_core.sizes import Space
from stowage_core.tiers.declared import FILES, MOONCAKE, Eviction, MemberGroup, Tier, Watermark
from stowage_core.tiers.files_eviction import (
    DEEP,
    LINKED,
    MOST_NAMES,
    YOUNG,
    YOUNG_S,
    Estimate,
    Excess,
    Limits,
    Plan,
    Victim,
    check_access_times,
    short,
)

NOW = 1_800_000_000 * 10**9
DEVICE = 7
NO_LIMIT = Limits(0, 0)


@dataclass(frozen=True)
class File:
    """What os.scandir gives of a file."""

    name: str
    blocks: int = 8
    written: int = 100
    """How many seconds ago."""
    read: int = 100
    changed: int = 100
    links: int = 1
    inode: int = 1
    device: int = DEVICE
    kind: int = stat.S_IFREG
    gone: bool = False

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self.kind == stat.S_IFREG

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        assert not follow_symlinks
        if self.gone:
            raise FileNotFoundError
        atime, mtime, ctime = (NOW - ago * 10**9 for ago in (self.read, self.written, self.changed))
        seconds = [each // 10**9 for each in (atime, mtime, ctime)]
        fields = (self.kind | 0o644, self.inode, self.device, self.links, 0, 0, 0, *seconds)
        names = {"st_blocks": self.blocks, "st_atime_ns": atime, "st_mtime_ns": mtime, "st_ctime_ns": ctime}
        return os.stat_result(fields, names)


def plan_of(limits: Limits, files: Iterable[File], most: int = 1000, directory: str | None = "") -> Plan:
    plan = Plan(limits, NOW, most)
    plan.take(directory, DEVICE, files)
    return plan


def names(victims: Iterable[Victim]) -> list[str]:
    return [victim.name for victim in victims]


# -- Limits


@pytest.mark.parametrize(
    ("allocated", "files", "above", "excess"),
    [
        (0, 0, False, (0, 0)),
        (900, 0, False, (100, 0)),
        (901, 0, True, (101, 0)),
        (0, 45, False, (0, 5)),
        (0, 46, True, (0, 6)),
        (901, 46, True, (101, 6)),
        (10**15, 10**9, True, (10**15 - 800, 10**9 - 40)),
    ],
)
def test_marks(allocated: int, files: int, above: bool, excess: tuple[int, int]) -> None:
    limits = Limits(1000, 50)
    assert limits.is_above(allocated, files) is above
    found = limits.excess(allocated, files)
    assert (found.allocated, found.files) == excess


def test_no_limit_is_never_above() -> None:
    assert not NO_LIMIT.is_above(10**18, 10**12)
    assert not NO_LIMIT.excess(10**18, 10**12)


def test_the_marks_are_90_and_80_unless_declared() -> None:
    group = MemberGroup(store=FILES)
    tier = Tier("/t", 1000, 0, Eviction())
    assert Limits.of(group, tier) == Limits(1000, 0, Watermark(90, 80), False)
    other = replace(tier, key_limit=9, eviction=Eviction(True, "LRU", Watermark(50, 10)))
    assert Limits.of(group, other) == Limits(1000, 9, Watermark(50, 10), True)
    assert Limits.of(group, replace(tier, eviction=Eviction(True, "FIFO"))) == Limits(1000, 0)


def test_a_live_store_and_a_tier_without_eviction_are_left_alone() -> None:
    tier = Tier("/t", 1000, 0, Eviction())
    assert Limits.of(MemberGroup(store=MOONCAKE), tier) is None
    assert Limits.of(MemberGroup(store=FILES), replace(tier, eviction=None)) is None
    assert Limits.of(MemberGroup(store=FILES), replace(tier, eviction=Eviction(False))) is None


# -- The order and what stays


def test_fifo_goes_by_the_time_of_writing_then_by_name() -> None:
    files = [File("b", written=50, read=1000), File("d", written=60), File("a", written=50), File("c", written=60)]
    assert names(plan_of(Limits(0, 1), files).oldest()) == ["c", "d", "a", "b"]


def test_lru_goes_by_the_time_of_reading() -> None:
    files = [File("a", read=10, written=900), File("b", read=30, written=5), File("c", read=20)]
    assert names(plan_of(Limits(0, 1, by_last_read=True), files).oldest()) == ["b", "c", "a"]


def test_what_changed_only_now_stays_and_counts() -> None:
    files = [File("new", written=10**6, changed=1), File("ahead", changed=-3), File("old"), File("later", changed=-60)]
    plan = plan_of(Limits(1, 0), files)
    assert names(plan.oldest()) == ["later", "old"]
    assert plan.kept == {YOUNG: 2}
    assert (plan.files, plan.allocated) == (4, 4 * 4096)


def test_only_regular_files_of_its_own_filesystem_count() -> None:
    others = [File("link", kind=stat.S_IFLNK), File("fifo", kind=stat.S_IFIFO), File("mount", device=9)]
    plan = plan_of(Limits(1, 0), [*others, File("gone", gone=True), File("unlinked", links=0)])
    assert (plan.files, plan.allocated, names(plan.oldest())) == (0, 0, [])


def test_hard_links_count_once_and_go_together() -> None:
    plan = Plan(Limits(1, 0), NOW)
    plan.take("x", DEVICE, [File("b", links=2, inode=5)])
    plan.take("", DEVICE, [File("a", links=2, inode=5), File("c")])
    assert (plan.files, plan.allocated) == (2, 2 * 4096)
    assert list(plan.oldest())[0] == Victim(NOW - 100 * 10**9, "a", "", 4096, (("b", "x"),))


@pytest.mark.parametrize("file", [File("a", links=2), File("a", links=MOST_NAMES + 1)])
def test_a_file_with_a_name_elsewhere_stays(file: File) -> None:
    plan = plan_of(Limits(1, 0), [file])
    assert names(plan.oldest()) == []
    assert plan.kept == {LINKED: 1}
    assert plan.files == 1


def test_what_is_too_deep_counts_and_stays() -> None:
    plan = plan_of(Limits(1, 0), [File("a"), File("b", links=1)], directory=None)
    assert (plan.files, names(plan.oldest()), plan.kept) == (2, [], {DEEP: 2})


def test_what_frees_nothing_goes_only_for_the_number_of_files() -> None:
    files = [File("hole", blocks=0, written=900), File("data", blocks=80)]
    assert names(plan_of(Limits(1000, 0), files).victims()) == ["data"]
    assert names(plan_of(Limits(0, 2), files).victims()) == ["hole"]


def test_between_the_marks_nothing_goes() -> None:
    files = [File(str(number)) for number in range(9)]
    assert names(plan_of(Limits(0, 10), files).victims()) == []
    assert names(plan_of(Limits(0, 10), [*files, File("9")]).victims()) == ["0", "1"]


FILE = st.builds(
    File,
    name=st.text("abc", min_size=1, max_size=3),
    blocks=st.integers(0, 20),
    written=st.integers(0, 30),
    read=st.integers(0, 30),
    changed=st.integers(-10, 30),
)


@given(
    st.lists(FILE, max_size=60, unique_by=lambda file: file.name),
    st.integers(0, 200_000),
    st.integers(0, 60),
    st.tuples(st.integers(1, 100), st.integers(1, 100)).filter(lambda marks: marks[1] < marks[0]),
    st.booleans(),
    st.integers(1, 40),
)
def test_plan(
    files: list[File], capacity: int, key_limit: int, marks: tuple[int, int], by_last_read: bool, most: int
) -> None:
    limits = Limits(capacity, key_limit, Watermark(*marks), by_last_read)
    plan = plan_of(limits, files, most)
    total = sum(file.blocks for file in files) * 512
    assert (plan.allocated, plan.files) == (total, len(files))
    excess = plan.excess()
    assert bool(excess) == limits.is_above(total, len(files))
    chosen = names(plan.victims())
    by_name = {file.name: file for file in files}
    assert len(set(chosen)) == len(chosen)

    def time_of(file: File) -> tuple[int, str]:
        return -(file.read if by_last_read else file.written), file.name

    candidates = sorted((f for f in files if not -YOUNG_S <= f.changed < YOUNG_S), key=time_of)
    assert all(by_name[name] in candidates for name in chosen)
    # Oldest first, and none is passed over but one that would free nothing.
    wanted = []
    for file in candidates:
        if not excess:
            break
        if excess.files > 0 or (file.blocks and excess.allocated > 0):
            wanted.append(file.name)
            excess.shrink(file.blocks * 512)
    assert chosen == wanted[: len(chosen)]
    assert chosen == wanted or plan.is_cut


@given(st.lists(FILE, max_size=60, unique_by=lambda file: file.name), st.integers(1, 20))
def test_a_plan_that_remembers_few_remembers_the_oldest(files: list[File], most: int) -> None:
    limits = Limits(0, 1)
    everything = names(plan_of(limits, files).oldest())
    plan = plan_of(limits, files, most)
    some = names(plan.oldest())
    assert some == everything[: len(some)]
    assert len(some) == len(everything) or (plan.is_cut and len(some) >= most)


# -- The estimate

SPACE = Space(size=10_000, free=6_000, avail=5_000, files=100, files_free=60)


def test_all_that_comes_to_the_filesystem_may_have_come_to_the_tier() -> None:
    estimate = Estimate(1000, 10, SPACE)
    estimate.saw(replace(SPACE, free=5_500, files_free=50))
    assert (estimate.allocated, estimate.files) == (1500, 20)
    estimate.saw(replace(SPACE, free=9_000, files_free=90))  # a neighbor has removed something
    assert (estimate.allocated, estimate.files) == (1500, 20)
    estimate.saw(replace(SPACE, free=8_000, files_free=80))
    assert (estimate.allocated, estimate.files) == (2500, 30)


def test_where_inodes_are_not_counted_bytes_tell_of_files() -> None:
    space = replace(SPACE, files=0, files_free=0)
    estimate = Estimate(0, 10, space)
    estimate.saw(replace(space, free=space.free - 5120))
    assert estimate.files == 20


# -- Words


@pytest.mark.parametrize(
    ("excess", "removed", "kept", "text"),
    [
        (Excess(2_000_000, 0), 0, {}, "nothing can go: 2.0 MB above the low mark; files that stay: none"),
        (
            Excess(0, 1),
            3,
            {YOUNG: 4, "open": 5},
            f"too little can go: 1 file above the low mark; files that stay: 5: open, 4: {YOUNG}",
        ),
    ],
)
def test_short(excess: Excess, removed: int, kept: dict[str, int], text: str) -> None:
    assert short(excess, removed, kept) == text


# -- Times of access


def mount(*options: str) -> Mount:
    return Mount(30, 1, "8:1", "/", "/disk", options, "ext4", "/dev/sda1", ("rw",))


@pytest.mark.parametrize("options", [("rw", "relatime"), ("rw", "noatime"), ("ro",)])
def test_lru_is_refused_where_reading_leaves_no_trace(options: tuple[str, ...]) -> None:
    check_access_times("tier chat/0", Limits(1, 0), mount(*options))
    check_access_times("tier chat/0", None, mount(*options))
    with pytest.raises(
        Refusal, match=f"it is mounted {options[-1]}; mount it with strictatime, or use the policy FIFO"
    ):
        check_access_times("tier chat/0", Limits(1, 0, by_last_read=True), mount(*options))


def test_lru_is_taken_with_strictatime() -> None:
    check_access_times("tier chat/0", Limits(1, 0, by_last_read=True), mount("rw", "nodiratime"))
