# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which engine measures a filesystem, and what becomes of rounds; the children are only noted, not started."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stowage_core import events, mounts
from stowage_core.places import Places
from stowaged.children import Ending
from stowaged.declared import Target
from stowaged.engines import COPIES, HEEDED_S, MEASURE, PATIENCE_S, RETRY_S, Engines, Filesystem, Round
from stowaged.hung import Hung
from stowaged.measuring import Measuring
from stowaged.sections import Sections
from stowaged.settings import Settings

TABLE = mounts.parse(
    b"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    b"30 20 8:2 / /mnt/nvme0 rw - xfs /dev/nvme0n1 rw\n"
    b"40 20 0:50 / /lustre rw - lustre mgs:/scratch rw\n"
)
NVME = Filesystem("8:2", False, "/mnt/nvme0", "/dev/nvme0n1", "xfs")
ROOT = Filesystem("8:1", False, "/", "/dev/sda1", "ext4")
LUSTRE = Filesystem("0:50", True, "/lustre", "mgs:/scratch", "lustre")
KNOWN = {"trees": 2, "directories": 7, "unsteady": 3, "listed": 50.0, "lost": 0}


class NotedChildren:
    """Children that are started, and given orders, by noting that."""

    def __init__(self) -> None:
        self.there: dict[str, tuple[Any, Callable[[dict[str, Any]], None], Callable[[Ending], None]]] = {}
        self.orders: dict[str, list[Any]] = {}
        self.awaited: set[str] = set()
        self.left: set[str] = set()
        self.stopped: dict[str, str] = {}
        self.interrupted: list[str] = []

    def running(self, key: str) -> bool:
        return key in self.there

    def left_behind(self, key: str) -> bool:
        return key in self.left

    def start(self, key: str, body: Any, on_message: Any, on_end: Any, silence_s: float) -> None:
        assert key not in self.there
        self.there[key] = (body, on_message, on_end)

    def keep(self, key: str, body: Any, on_message: Any, on_end: Any) -> None:
        self.start(key, body, on_message, on_end, 0.0)
        self.orders[key] = []

    def order(self, key: str, order: bytes, silence_s: float) -> None:
        assert key in self.there and key not in self.left
        self.orders[key].append(pickle.loads(order))
        self.awaited.add(key)

    def rest(self, key: str) -> None:
        self.awaited.remove(key)

    def stop(self, key: str, why: str) -> None:
        if key in self.there and key not in self.left:
            self.stopped[key] = why

    def interrupt(self, key: str) -> None:
        if key in self.there and key not in self.left:
            self.interrupted.append(key)

    def send(self, key: str, **message: Any) -> None:
        self.there[key][1](message)

    def end(self, key: str, error: str = "") -> None:
        _body, _on_message, on_end = self.there.pop(key)
        self.awaited.discard(key)
        on_end(Ending(self.stopped.pop(key, error)))

    def fall_silent(self, key: str) -> None:
        self.left.add(key)
        self.there[key][2](Ending("no answer", silent=True))


class DirectWriter:
    def do(self, writing: Callable[[], str]) -> None:
        assert writing() == ""


class Host:
    def __init__(self, home: Path) -> None:
        self.places = Places.under(str(home))
        self.children = NotedChildren()
        self.hung = Hung(self.children)  # type: ignore[arg-type]
        self.said: list[str] = []
        self.engines = Engines(self.places, self.children, self.hung, DirectWriter(), self.said.append)  # type: ignore[arg-type]
        self.taken: list[dict[str, Any]] = []
        self.ended: dict[str, Ending] = {}

    def look(self, *present: Filesystem, complete: bool = True, **settings: Any) -> None:
        self.engines.look(present, complete, TABLE, Settings(**settings))

    def start(self, filesystem: Filesystem = NVME, kind: str = MEASURE) -> bool:
        body = Measuring(self.places, [Target("location/runs", "/mnt/nvme0/runs")], None, {}, [])
        key = f"{kind}/{filesystem.device}"
        self.ended.pop(key, None)

        def end(ending: Ending) -> None:
            self.ended[key] = ending

        return self.engines.start(Round(kind, filesystem, body, self.taken.append, end))

    def watched(self) -> None:
        """Have one round carried out by watching."""
        self.look(NVME)
        assert self.start()
        self.children.send("watch/8:2", watching=KNOWN)
        self.children.send("watch/8:2", done="", watches=True)

    def shown(self) -> dict[str, Any]:
        sections = Sections(self.places, self.said.append)
        self.engines.publish(sections)
        found = sections.last("measuring")
        assert found is not None
        return {one["mountpoint"]: one for one in found["filesystems"]}

    def told(self) -> list[tuple[str, str]]:
        return [(one["object"], one["reason"]) for one in events.read(self.places)]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_one_child_stays_for_all_rounds_on_a_filesystem(host: Host) -> None:
    host.look(NVME, full_listing_interval_s=70, watch_memory_mb=8)
    assert host.start() and host.engines.running("measure/8:2")
    (order,) = host.children.orders["watch/8:2"]
    assert (order.kind, order.full_listing_interval_s) == (MEASURE, 70)
    assert order.round.targets == [Target("location/runs", "/mnt/nvme0/runs")]
    host.children.send("watch/8:2", object="location/runs", bytes=5)
    host.children.send("watch/8:2", watching=KNOWN)
    host.children.send("watch/8:2", done="", watches=True)
    assert host.taken == [{"object": "location/runs", "bytes": 5}] and host.ended == {"measure/8:2": Ending()}
    assert not host.engines.running("measure/8:2") and host.children.awaited == set()
    assert host.start(kind=COPIES) and [one.kind for one in host.children.orders["watch/8:2"]] == [MEASURE, COPIES]
    assert host.engines.running("copies/8:2") and not host.engines.running("measure/8:2")
    shown = host.shown()["/mnt/nvme0"]
    assert (shown["engine"], shown["reason"], shown["device"], shown["fstype"]) == ("watch", "", "/dev/nvme0n1", "xfs")
    assert (shown["trees"], shown["directories"], shown["listed"], shown["failures"]) == (2, 7, 50.0, 0)


@pytest.mark.parametrize(
    ("filesystem", "settings", "cause", "why"),
    [
        (NVME, {"watch": False}, "off", "turned off (watch)"),
        (NVME, {"watch_off": ["/mnt/nvme0/runs"]}, "off", "turned off here (watch_off)"),
        (LUSTRE, {}, "shared", "other hosts may write there too"),
        (LUSTRE, {"watch_off": ["/mnt/nvme0/runs"]}, "shared", "other hosts may write there too"),
    ],
)
def test_what_is_not_to_be_watched_is_scanned(
    host: Host, filesystem: Filesystem, settings: dict[str, Any], cause: str, why: str
) -> None:
    host.look(filesystem, **settings)
    assert host.start(filesystem) and list(host.children.there) == [f"measure/{filesystem.device}"]
    shown = host.shown()[filesystem.mountpoint]
    assert (shown["engine"], shown["cause"], shown["reason"], shown["failed"]) == ("scan", cause, why, False)
    host.look(filesystem)
    assert host.shown()[filesystem.mountpoint]["reason"] == ("" if filesystem is NVME else why)


def test_where_watching_is_turned_off_is_one_filesystem(host: Host) -> None:
    host.look(NVME, ROOT, watch_off=["/mnt/nvme0"])
    host.start(NVME)
    host.start(ROOT)
    assert list(host.children.there) == ["measure/8:2", "watch/8:1"]


def test_what_cannot_be_watched_is_scanned_and_that_is_no_event(host: Host) -> None:
    host.look(NVME)
    host.start()
    host.children.end("watch/8:2", "this kernel is too old")
    assert list(host.children.there) == ["measure/8:2"] and host.ended == {}, "the round is carried out all the same"
    host.children.send("measure/8:2", object="location/runs", bytes=5)
    host.children.end("measure/8:2")
    assert host.taken == [{"object": "location/runs", "bytes": 5}] and host.ended == {"measure/8:2": Ending()}
    assert host.told() == [] and "this kernel is too old" in host.said[0]
    shown = host.shown()["/mnt/nvme0"]
    assert (shown["engine"], shown["cause"], shown["reason"]) == ("scan", "unable", "this kernel is too old")
    assert (shown["failed"], shown["failures"]) == (False, 0)


def test_a_failure_is_an_event_and_so_is_its_end(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.watched()
    host.start()
    host.children.end("watch/8:2", "ended with signal 9")
    assert list(host.children.there) == ["measure/8:2"]
    host.children.end("measure/8:2")
    assert host.told() == [("filesystem/mnt/nvme0", "WatchFailed")]
    shown = host.shown()["/mnt/nvme0"]
    assert (shown["engine"], shown["failed"], shown["failures"], shown["trees"]) == ("scan", True, 1, 0)
    now = time.monotonic() + RETRY_S - 1
    monkeypatch.setattr(time, "monotonic", lambda: now)
    host.start()
    assert list(host.children.there) == ["measure/8:2"], "it is not tried again yet"
    host.children.end("measure/8:2")
    now += 2
    host.start()
    assert list(host.children.there) == ["watch/8:2"] and host.shown()["/mnt/nvme0"]["engine"] == "scan"
    host.children.end("watch/8:2", "again")
    assert host.told() == [("filesystem/mnt/nvme0", "WatchFailed")], "nobody has thought that it was watched"
    host.children.end("measure/8:2")
    now += RETRY_S
    host.start()
    host.children.send("watch/8:2", watching=KNOWN)
    host.children.send("watch/8:2", done="", watches=True)
    assert [reason for _object, reason in host.told()] == ["WatchFailed", "WatchResumed"]
    shown = host.shown()["/mnt/nvme0"]
    assert (shown["engine"], shown["reason"], shown["failed"], shown["failures"]) == ("watch", "", False, 1)


def test_it_has_not_resumed_before_something_was_counted(host: Host) -> None:
    host.watched()
    host.children.end("watch/8:2", "ended with signal 9")
    host.engines.retry()
    host.start()
    host.children.send("watch/8:2", done="", watches=False)  # nothing that is declared was there
    assert host.ended == {"measure/8:2": Ending()} and host.shown()["/mnt/nvme0"]["engine"] == "scan"
    host.start()
    host.children.send("watch/8:2", done="", watches=True)
    assert [reason for _object, reason in host.told()] == ["WatchFailed", "WatchResumed"]


@pytest.mark.parametrize("fails", [COPIES, MEASURE])
def test_it_has_not_resumed_before_each_kind_of_round_was_watched(
    host: Host, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    both = replace(NVME, kinds=frozenset((COPIES, MEASURE)))
    fits = MEASURE if fails == COPIES else COPIES
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    host.look(both)
    for attempt in range(3):
        host.start(kind=fits)
        host.children.send("watch/8:2", done="", watches=True)
        assert host.shown()["/mnt/nvme0"]["engine"] == ("scan" if attempt else "watch")
        host.start(kind=fails)
        host.children.end("watch/8:2", "it takes more than 64 MiB")
        host.children.end(f"{fails}/8:2")
        now += RETRY_S + 1
    assert [reason for _object, reason in host.told()] == ["WatchFailed"]
    assert (host.shown()["/mnt/nvme0"]["failed"], host.shown()["/mnt/nvme0"]["failures"]) == (True, 1)
    for kind in (fits, fails):
        assert [reason for _object, reason in host.told()] == ["WatchFailed"]
        host.start(kind=kind)
        host.children.send("watch/8:2", done="", watches=True)
    assert [reason for _object, reason in host.told()] == ["WatchFailed", "WatchResumed"]
    assert host.shown()["/mnt/nvme0"]["reason"] == ""


def test_a_child_that_dies_between_rounds(host: Host) -> None:
    host.watched()
    host.children.end("watch/8:2", "ended with signal 9")
    assert host.children.there == {} and host.told() == [("filesystem/mnt/nvme0", "WatchFailed")]
    host.start()
    assert list(host.children.there) == ["measure/8:2"]


def test_reloading_tries_again_at_once(host: Host) -> None:
    host.watched()
    host.children.end("watch/8:2", "ended with signal 9")
    host.engines.retry()
    host.start()
    assert list(host.children.there) == ["watch/8:2"]


def test_what_was_lost_is_counted_over_all_children(host: Host) -> None:
    host.watched()
    host.children.send("watch/8:2", watching={**KNOWN, "lost": 2})
    assert host.shown()["/mnt/nvme0"]["lost"] == 2
    host.children.end("watch/8:2", "ended with signal 9")
    assert host.shown()["/mnt/nvme0"]["lost"] == 2
    host.engines.retry()
    host.start()
    host.children.send("watch/8:2", watching={**KNOWN, "lost": 1})
    assert host.shown()["/mnt/nvme0"]["lost"] == 3


def test_a_round_that_fails_says_so(host: Host) -> None:
    host.watched()
    host.start()
    host.children.send("watch/8:2", done="no space", watches=False)
    assert host.ended == {"measure/8:2": Ending("no space")} and host.shown()["/mnt/nvme0"]["engine"] == "watch"


def test_a_filesystem_that_hangs_is_left_alone(host: Host) -> None:
    host.watched()
    host.start(kind=COPIES)
    host.children.fall_silent("watch/8:2")
    assert host.ended["copies/8:2"].silent and "8:2" in host.hung
    assert host.engines.running("copies/8:2"), "it may hold a copy open"
    assert not host.engines.running("measure/8:2") and host.told() == []
    assert not host.start(), "another one would hang as well"
    host.look(NVME, watch=False)
    del host.children.there["watch/8:2"]
    host.children.left.clear()
    assert not host.engines.running("copies/8:2")
    host.look(NVME)
    assert host.start(kind=COPIES) and host.children.orders["watch/8:2"] != []


def test_copies_wait_for_no_long_round(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.watched()
    host.start()
    assert not host.start(kind=COPIES), "where all is known it takes no time"
    now = time.monotonic() + PATIENCE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert host.start(kind=COPIES) and set(host.children.there) == {"watch/8:2", "copies/8:2"}
    host.children.send("watch/8:2", done="", watches=True)
    host.children.end("copies/8:2")
    host.start(kind=COPIES)
    now += PATIENCE_S + 1
    assert not host.start(), "all else waits for the copies"


def test_a_round_can_be_stopped(host: Host) -> None:
    host.watched()
    host.start(kind=COPIES)
    host.engines.stop("measure/8:2", "of another round")
    assert host.children.interrupted == []
    host.engines.stop("copies/8:2", "room has to be made")
    assert host.children.interrupted == ["watch/8:2"] and host.children.stopped == {}
    assert host.engines.running("copies/8:2"), "it has copies open until it says that it has ended"
    host.children.send("watch/8:2", watching=KNOWN)
    host.children.send("watch/8:2", done="broken off", watches=True)
    assert host.ended == {"measure/8:2": Ending(), "copies/8:2": Ending("room has to be made")}
    assert not host.engines.running("copies/8:2") and host.shown()["/mnt/nvme0"]["trees"] == 2, "it goes on watching"
    host.start(kind=COPIES)
    host.children.send("watch/8:2", done="no space", watches=False)
    assert host.ended["copies/8:2"] == Ending("no space"), "that was not stopped"


def test_what_watches_may_hold_open_whatever_is_there(host: Host) -> None:
    assert not host.engines.watches("8:2") and not host.engines.is_watching("8:2")
    host.watched()
    assert host.engines.watches("8:2") and not host.engines.is_watching("8:2")
    host.start()
    assert host.engines.is_watching("8:2")
    host.engines.stop_watching("8:2", "room has to be made")
    assert host.children.interrupted == ["watch/8:2"] and host.children.stopped == {}
    host.children.send("watch/8:2", done="broken off", watches=True)
    assert host.ended == {"measure/8:2": Ending("room has to be made")} and not host.engines.is_watching("8:2")
    host.start()
    host.children.fall_silent("watch/8:2")
    assert host.engines.is_watching("8:2"), "it was left behind with what it had opened"
    host.look(NVME, watch=False)
    assert not host.engines.watches("8:2")


def test_a_round_that_was_at_its_end_was_not_stopped(host: Host) -> None:
    host.watched()
    host.start(kind=COPIES)
    host.engines.stop("copies/8:2", "room has to be made")
    host.children.send("watch/8:2", done="", watches=True)
    assert host.ended["copies/8:2"] == Ending()


def test_a_child_that_dies_of_being_stopped_is_no_failure(host: Host) -> None:
    host.watched()
    host.start(kind=COPIES)
    host.engines.stop("copies/8:2", "room has to be made")
    host.children.end("watch/8:2", "ended with signal 2")
    assert host.ended["copies/8:2"] == Ending("room has to be made")
    assert host.told() == [] and host.children.there == {}
    assert host.start(kind=COPIES) and list(host.children.there) == ["watch/8:2"]


def test_a_child_that_does_not_heed_that_it_is_stopped_is_killed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.watched()
    host.start(kind=COPIES)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    host.engines.stop("copies/8:2", "room has to be made")
    now += HEEDED_S
    host.look(NVME)
    host.engines.stop("copies/8:2", "room has to be made")
    assert host.children.stopped == {}
    now += 0.1
    host.look(NVME)
    assert host.children.stopped == {"watch/8:2": "room has to be made"}
    host.children.end("watch/8:2", "room has to be made")
    assert host.ended["copies/8:2"] == Ending("room has to be made") and host.told() == []


def test_a_scan_can_be_stopped(host: Host) -> None:
    host.look(NVME, watch=False)
    host.start(kind=COPIES)
    host.engines.stop("copies/8:2", "room has to be made")
    assert host.children.stopped == {"copies/8:2": "room has to be made"}


def test_turning_it_off_ends_the_child_and_no_round_is_lost(host: Host) -> None:
    host.watched()
    host.start()
    host.look(NVME, watch=False)
    assert host.children.stopped == {"watch/8:2": "turned off (watch)"}
    host.children.end("watch/8:2")
    assert list(host.children.there) == ["measure/8:2"] and host.told() == []


def test_what_is_measured_no_more_is_watched_no_more(host: Host) -> None:
    host.watched()
    host.look(complete=False)
    assert host.children.stopped == {}, "it may be there, and was not found out this time"
    host.look()
    assert list(host.children.stopped) == ["watch/8:2"]
    host.children.end("watch/8:2")
    host.look()
    assert host.shown() == {} and host.told() == []


def test_another_bound_for_its_memory_begins_anew(host: Host) -> None:
    host.watched()
    host.look(NVME, watch_memory_mb=128)
    assert list(host.children.stopped) == ["watch/8:2"]
    assert not host.start(), "it is ending"
    host.children.end("watch/8:2")
    assert host.start() and host.told() == []


def test_a_child_that_ends_as_it_is_given_an_order_is_started_again_once(host: Host) -> None:
    host.watched()
    host.start()
    host.children.end("watch/8:2")
    assert list(host.children.there) == ["watch/8:2"] and len(host.children.orders["watch/8:2"]) == 1
    host.children.end("watch/8:2")
    assert list(host.children.there) == ["measure/8:2"]


def test_nothing_is_watched_where_nothing_answers(host: Host) -> None:
    unknown = Filesystem("8:2", False)
    host.look(unknown)
    assert host.start(unknown) and list(host.children.there) == ["measure/8:2"] and host.shown() == {}
    host.children.end("measure/8:2")
    host.watched()
    host.look(unknown)
    assert host.start(unknown) and list(host.children.there) == ["watch/8:2"]
    assert host.shown()["/mnt/nvme0"]["engine"] == "watch"
