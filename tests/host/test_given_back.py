# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evictions of copies whose files have names, or share blocks, elsewhere, on real filesystems."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from copies_lab import NOW, Lab

from stowage_core.copies import present as copies
from stowage_core.eviction import evict as eviction
from stowage_core.eviction import round as rounds
from stowage_core.eviction.given_back import IN_VAIN
from stowage_core.eviction.plan import Settings
from stowage_core.sizes import Space
from stowage_core.trees.pace import Pace

MIB = 1 << 20
SIZE = 32 * MIB
FILESYSTEMS = ["ext4", "xfs", "btrfs"]
REFLINKS = ["xfs", "btrfs"]


def space(lab: Lab) -> Space:
    return Space.of(str(lab.path))


def short(lab: Lab, missing: int) -> Settings:
    """Return settings by which so many bytes more must become free."""
    subprocess.run(["sync", "--file-system", str(lab.path)], check=True)
    now = space(lab)
    mark = (now.avail + missing) / now.usable
    return replace(NOW, start_free=mark, stop_free=mark)


def missing(lab: Lab, settings: Settings) -> int:
    """Return how much less is free than the mark; negative above it."""
    now = space(lab)
    return int(settings.stop_free * now.usable) - now.avail


def gone(result: eviction.Result) -> list[str]:
    return [str(one["copy"]) for one in result.removed]


def of(lab: Lab, *names: str, **more: Any) -> list[Path]:
    """Make copies, the first of which goes first, and return their files."""
    return [lab.copy(name, SIZE, float(number), **more) / "data" / "file" for number, name in enumerate(names)]


def links(lab: Lab, *names: str) -> None:
    """Have copies share one file, and note that they do as a measurement would."""
    first, *others = (lab.at(name) / "data" / "file" for name in names)
    for other in others:
        other.unlink()
        os.link(first, other)
    for name in names:
        record = copies.load_record(lab.places, name)
        assert record is not None
        copies.write_record(lab.places, name, replace(record, linked=SIZE))


def reflinks(first: Path, *others: Path) -> None:
    for other in others:
        other.unlink()
        subprocess.run(["cp", "--reflink=always", str(first), str(other)], check=True)


@pytest.fixture
def host(request: pytest.FixtureRequest, small_disk: Callable[..., Any], tmp_path: Path) -> Lab:
    return Lab(small_disk(request.param, 512 * MIB).path, tmp_path)


on_each = pytest.mark.parametrize("host", FILESYSTEMS, indirect=True)
on_sharing = pytest.mark.parametrize("host", REFLINKS, indirect=True)


def assert_at_the_mark(lab: Lab, settings: Settings, last: int = SIZE) -> None:
    assert missing(lab, settings) <= 0, "the mark is reached"
    assert missing(lab, settings) + last > -MIB, "and one copy less would not have done"


@on_each
def test_a_copy_whose_file_is_in_one_that_stays_is_not_lost_in_vain(host: Lab) -> None:
    of(host, "ml.first", "ml.other", "ml.third")
    of(host, "ml.kept", evictable=False)
    links(host, "ml.first", "ml.kept")
    settings = short(host, SIZE // 2)
    planned = eviction.current_plan(host.places, host.location, settings)
    assert [one.name for one in planned.victims] == ["ml.other"] and planned.kept["ml.first"] == IN_VAIN
    result = host.evict(0, settings)
    assert gone(result) == ["ml.other"] and result.blocked == ""
    assert result.kept == {"ml.first": IN_VAIN}
    assert_at_the_mark(host, settings)


@on_each
def test_what_has_a_name_outside_of_all_copies_is_not_lost_in_vain(host: Lab) -> None:
    (file,) = of(host, "ml.only")
    os.link(file, host.path.parent / "elsewhere")
    result = host.evict(0, short(host, SIZE // 2))
    assert gone(result) == [] and result.kept == {"ml.only": IN_VAIN}
    assert "1: " + IN_VAIN in result.blocked and "stopped" not in result.blocked


@on_each
@pytest.mark.parametrize("wanted", [SIZE // 2, SIZE + SIZE // 2])
def test_copies_with_one_file_go_together(host: Lab, wanted: int) -> None:
    """By what is recorded the first would do; in vain it is looked at alone, and together with the other it is not."""
    of(host, "ml.first", "ml.second", "ml.third", "ml.fourth")
    links(host, "ml.first", "ml.second")
    settings = short(host, wanted)
    planned = eviction.current_plan(host.places, host.location, settings)
    result = host.evict(0, settings)
    expected = ["ml.first", "ml.second", "ml.third"][: 2 + (wanted > SIZE)]
    assert gone(result) == expected and result.blocked == "" and result.kept == {}
    assert [one.name for one in planned.victims] == expected
    assert_at_the_mark(host, settings)


@on_each
def test_a_plan_looks_at_no_more_files_than_matter_and_says_that_it_goes_on(
    host: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_ALIVE_S", 0.0)
    said: list[str] = []
    of(host, "ml.first", "ml.second")
    settings = short(host, SIZE // 2)

    def planned(linked: int) -> int:
        record = copies.load_record(host.places, "ml.first")
        assert record is not None
        copies.write_record(host.places, "ml.first", replace(record, linked=linked))
        plan = eviction.current_plan(
            host.places, host.location, settings, pace=Pace(1.0), alive=lambda: said.append("")
        )
        assert [one.name for one in plan.victims] == ["ml.first"]
        return plan.looked_at

    assert planned(0) == planned(SIZE // 100 - 1) == 0 and not said
    assert planned(SIZE // 100 + 1) == 1 and said


@on_each
def test_what_was_asked_for_goes_whatever_it_gives_back(host: Lab) -> None:
    (file,) = of(host, "ml.dead")
    os.link(file, host.path.parent / "elsewhere")
    host.declare("ml.dead", state="absent")
    assert gone(host.evict(0)) == ["ml.dead"]


@on_sharing
def test_blocks_shared_with_what_stays_are_not_lost_in_vain(host: Lab) -> None:
    first, _other, _third = of(host, "ml.first", "ml.other", "ml.third")
    (kept,) = of(host, "ml.kept", evictable=False)
    reflinks(kept, first)
    settings = short(host, SIZE // 2)
    result = host.evict(0, settings)
    assert gone(result) == ["ml.other"] and result.blocked == "" and result.kept == {"ml.first": IN_VAIN}
    assert_at_the_mark(host, settings)


@on_sharing
@pytest.mark.parametrize("elsewhere", ["inside", "outside"])
def test_blocks_shared_by_files_with_several_names_are_not_lost_in_vain(host: Lab, elsewhere: str) -> None:
    """As in what ``cp --archive`` makes of a tree with hard links, or when a copy that can go has the other name."""
    first, _other = of(host, "ml.first", "ml.other")
    source = host.path.parent / "source"
    source.touch()
    reflinks(first, source)
    os.link(first, first.with_name("again"))
    vain = ["ml.first"]
    if elsewhere == "outside":
        (second,) = of(host, "ml.along")
        links(host, "ml.first", "ml.along")
        vain.insert(0, "ml.along")
    settings = short(host, SIZE // 2)
    result = host.evict(0, settings)
    assert gone(result) == ["ml.other"] and result.blocked == "" and sorted(result.kept) == vain
    assert_at_the_mark(host, settings)


@on_sharing
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (SIZE // 2, ["ml.third"]),
        (SIZE + SIZE // 2, ["ml.third", "ml.fourth"]),
        (2 * SIZE + SIZE // 2, ["ml.third", "ml.fourth", "ml.first", "ml.second"]),
    ],
)
def test_copies_that_share_blocks_with_each_other_go_together_when_nothing_else_does(
    host: Lab, wanted: int, expected: list[str]
) -> None:
    first, second, *_others = of(host, "ml.first", "ml.second", "ml.third", "ml.fourth")
    reflinks(first, second)
    settings = short(host, wanted)
    result = host.evict(0, settings)
    assert gone(result) == expected and result.blocked == ""
    assert sorted(result.kept) == sorted({"ml.first", "ml.second"} - set(expected))
    assert_at_the_mark(host, settings)


def copied(host: Lab, *names: str) -> list[Path]:
    """Make copies as ``cp`` does of a source on the same disk, which stays."""
    source, *files = (host.path.parent / "source", *of(host, *names))
    shutil.copyfile(files[0], source)
    reflinks(source, *files)
    return files


@on_sharing
def test_copies_of_a_source_on_the_same_disk_are_not_lost_in_vain_while_others_do(host: Lab) -> None:
    copied(host, "ml.first", "ml.second")
    host.copy("ml.other", SIZE, 9.0)
    settings = short(host, SIZE // 2)
    result = host.evict(0, settings)
    assert gone(result) == ["ml.other"] and result.blocked == ""
    assert result.kept == {"ml.first": IN_VAIN, "ml.second": IN_VAIN}
    assert_at_the_mark(host, settings)


@on_sharing
def test_when_nothing_else_does_copies_of_a_source_go_and_eviction_stops(host: Lab) -> None:
    copied(host, "ml.first", "ml.second", "ml.third", "ml.fourth")
    result = host.evict(0, short(host, SIZE // 2))
    assert gone(result) == ["ml.first", "ml.second"] and "became free" in result.blocked


@on_sharing
def test_what_copies_that_go_anyway_share_with_each_other_comes_back(host: Lab) -> None:
    files = copied(host, "ml.first", "ml.second")
    (host.path.parent / "source").unlink()
    for file in files:
        file.with_name("own").write_bytes(os.urandom(SIZE // 4))
    host.copy("ml.third", SIZE, 9.0)
    settings = short(host, SIZE + SIZE // 4)
    result = host.evict(0, settings)
    assert gone(result) == ["ml.first", "ml.second"] and result.blocked == "" and result.kept == {}
    assert_at_the_mark(host, settings)


@on_sharing
def test_a_copy_that_goes_for_what_is_its_own_does_not_stop_eviction_with_what_is_not(host: Lab) -> None:
    for file in copied(host, "ml.first", "ml.second"):
        file.with_name("own").write_bytes(os.urandom(SIZE // 4))
    host.copy("ml.third", SIZE, 9.0)
    settings = short(host, SIZE + SIZE // 4)
    result = host.evict(0, settings)
    assert gone(result) == ["ml.first", "ml.second", "ml.third"] and result.blocked == "" and result.kept == {}
    assert_at_the_mark(host, settings)


@on_sharing
def test_of_copies_that_share_more_than_is_told_apart_one_goes_at_a_time(
    host: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gives back what it has alone for sure; what is free then is read before another one goes."""
    monkeypatch.setattr(rounds, "MOST_UNITS", 0)
    (kept,) = of(host, "ml.kept", evictable=False)
    for file in of(host, "ml.first", "ml.second", "ml.third"):
        shutil.copyfile(file, file.with_name("own"))
        reflinks(kept, file)
    settings, rounds_of = short(host, 2 * SIZE - SIZE // 2), []
    result = host.evict(
        0, settings, report=lambda said: rounds_of.extend([said] if said.get("step") == "freed" else [])
    )
    assert gone(result) == ["ml.first", "ml.second"] and result.blocked == "" and len(rounds_of) == 2
    assert_at_the_mark(host, settings)


@on_sharing
def test_blocks_that_a_copy_shares_with_itself_come_back(host: Lab) -> None:
    (file,) = of(host, "ml.twice")
    second = file.with_name("second")
    second.touch()
    reflinks(file, second)
    settings = short(host, SIZE // 2)
    result = host.evict(0, settings)
    assert gone(result) == ["ml.twice"] and result.blocked == ""
    assert_at_the_mark(host, settings)


@pytest.mark.parametrize("host", ["btrfs"], indirect=True)
def test_what_a_snapshot_holds_is_not_lost_in_vain(host: Lab, small_disk: Callable[..., Any], tmp_path: Path) -> None:
    of(host, "ml.first", "ml.second")
    root = str(host.path.parent)
    subprocess.run(["btrfs", "-q", "subvolume", "snapshot", "-r", root, f"{root}/snapshot"], check=True)
    result = host.evict(0, short(host, SIZE // 2))
    assert gone(result) == [] and result.blocked.endswith(f"2: {IN_VAIN}")


@on_each
def test_no_copy_goes_when_others_have_made_room_meanwhile(host: Lab) -> None:
    of(host, "ml.first", "ml.second")
    ballast = host.path.parent / "ballast"
    shutil.copyfile(host.at("ml.first") / "data" / "file", ballast)
    settings = short(host, SIZE // 2)

    def make_room(step: str, _copy: str) -> None:
        if step == "aside" and ballast.exists():
            ballast.unlink()
            subprocess.run(["sync", "--file-system", str(host.path)], check=True)
            root = os.open(host.path, os.O_RDONLY)
            try:
                eviction._settled(root, 2**62)
            finally:
                os.close(root)

    result = host.evict(0, settings, step=make_room)
    assert gone(result) == [] and result.blocked == "" and result.kept == {}
    assert host.names() == ["ml.first", "ml.second"] and host.trash() == []


@on_each
def test_the_limit_is_met_by_what_copies_take_whatever_they_give_back(host: Lab) -> None:
    oldest, *_others = of(host, "ml.first", "ml.second", "ml.third")
    os.link(oldest, host.path.parent / "elsewhere")
    record = copies.load_record(host.places, "ml.first")
    assert record is not None
    copies.write_record(host.places, "ml.first", replace(record, linked=SIZE))
    limit = 2 * SIZE + SIZE // 2
    planned = eviction.current_plan(host.places, host.limited(limit), NOW)
    assert [(one.name, one.reason) for one in planned.victims] == [("ml.first", "limit")]
    result = host.evict(limit)
    assert gone(result) == ["ml.first"] and result.kept == {} and result.blocked == ""


@on_each
def test_with_the_limit_met_first_no_more_goes_than_each_of_both_needs(host: Lab) -> None:
    oldest, *_others = of(host, "ml.first", "ml.second", "ml.third", "ml.fourth")
    os.link(oldest, host.path.parent / "elsewhere")
    record = copies.load_record(host.places, "ml.first")
    assert record is not None
    copies.write_record(host.places, "ml.first", replace(record, linked=SIZE))
    settings, limit = short(host, SIZE // 2), 2 * SIZE + SIZE // 2
    planned = eviction.current_plan(host.places, host.limited(limit), settings)
    assert [one.name for one in planned.victims] == ["ml.first", "ml.second"]
    result = host.evict(limit, settings)
    assert gone(result) == ["ml.first", "ml.second"] and result.kept == {} and result.blocked == ""
    assert_at_the_mark(host, settings)
