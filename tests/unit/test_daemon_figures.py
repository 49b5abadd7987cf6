# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""When what is measured, and what stays known of it; the children are only noted, not started."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts, records
from stowage_core.accounting.totals import Missing, Shares, User
from stowage_core.data_location.locations import DataLocation
from stowage_core.mounts import FilesystemId
from stowage_core.places import Places
from stowaged.children import Ending
from stowaged.declared import DATA_LOCATION, Declared, Target
from stowaged.engines import Engines
from stowaged.figures import Figures
from stowaged.hung import Hung, no_answer
from stowaged.last_measured import last_measured, record_path
from stowaged.probe import place_of
from stowaged.sections import Sections
from stowaged.settings import Settings

TABLE = mounts.parse(
    b"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    b"30 20 8:2 / /mnt/nvme0 rw - xfs /dev/nvme0n1 rw\n"
    b"40 20 0:50 / /lustre rw - lustre mgs:/scratch rw\n"
)
FIGURES = {"bytes": 5, "allocated": 4096, "files": 2, "inodes": 3, "complete": True, "reason": ""}


class NotedChildren:
    """Children that are started by noting them."""

    def __init__(self) -> None:
        self.started: dict[str, tuple[Any, Any, Any]] = {}
        self.rounds: list[str] = []

    def running(self, key: str) -> bool:
        return key in self.started

    def left_behind(self, key: str) -> bool:
        return False

    def start(self, key: str, body: Any, on_message: Any, on_end: Any, silence_s: float) -> None:
        self.rounds.append(key)
        self.started[key] = (body, on_message, on_end)

    def send(self, key: str, message: dict[str, Any]) -> None:
        self.started[key][1](message)

    def end(self, key: str, error: str = "") -> None:
        self.started.pop(key)[2](Ending(error))


def settings(**values: Any) -> Settings:
    """Return settings with which every round is a child of its own."""
    return Settings(watch=False, **values)


class Host:
    def __init__(self, home: Path) -> None:
        self.places = Places.under(str(home))
        self.children = NotedChildren()
        self.hung = Hung(self.children)  # type: ignore[arg-type]
        self.said: list[str] = []
        self.engines = Engines(self.places, self.children, self.hung, None, self.said.append)  # type: ignore[arg-type]
        self.figures = Figures(
            self.places,
            self.children,  # type: ignore[arg-type]
            self.engines,
            self.hung,
            self.said.append,
            lambda: None,
        )
        self.settings = settings(scan_interval_s=300)

    def declare(self, *targets: Target, location: DataLocation | None = None) -> None:
        self.targets = targets
        recorded = {one.object: last_measured(self.places, one, lambda _message: None) for one in targets}
        self.figures.declare(Declared(targets, location), recorded)

    def answer(self, **available: bool) -> None:
        answers = {}
        for target in self.targets:
            name = target.object.partition("/")[2] or target.object
            there = available.get(name.replace("-", "_"), True)
            reason = "" if there else f"{target.path}: missing"
            place = place_of(mounts.of_path(target.path, TABLE))
            answers[target.object] = {"object": target.object, "available": there, "reason": reason, "place": place}
        self.figures.answered(answers)

    def due(self) -> list[str]:
        """Return the filesystems of which a measurement began."""
        self.children.rounds = []
        self.figures.measure_when_due(TABLE, self.settings)
        return self.children.rounds

    def shown(self, section: str = "locations") -> dict[str, Any]:
        sections = Sections(self.places, self.said.append)
        self.figures.publish(sections)
        found = sections.last(section)
        assert found is not None
        return {one.get("location", one.get("mountpoint")): one for one in found[section]}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


RUNS, CACHE = Target("location/runs", "/mnt/nvme0/runs"), Target("location/cache", "/mnt/nvme0/cache")
STATE, SHARED = Target("location/state", "/srv/state"), Target("location/packages", "/lustre/packages")


def test_one_child_for_each_filesystem_every_interval(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.declare(RUNS, CACHE, STATE)
    host.answer()
    assert host.due() == ["measure/8:2", "measure/8:1"]
    body = host.children.started["measure/8:2"][0]
    assert [target.object for target in body.targets] == ["location/runs", "location/cache"]
    assert host.due() == []
    now = time.monotonic() + 301
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert host.due() == []  # the first ones are still at work
    host.children.end("measure/8:2")
    assert host.due() == []  # the interval begins when one has ended, however long it took
    now += 301
    assert host.due() == ["measure/8:2"]
    host.children.end("measure/8:2")
    now += 10
    host.settings = settings(scan_interval_s=10)  # another interval holds at once
    assert host.due() == ["measure/8:2"]


def test_a_hung_filesystem_waits(host: Host) -> None:
    host.declare(RUNS, STATE)
    host.answer()
    host.hung.note("8:2", "probe/1")
    assert host.due() == ["measure/8:1"]
    host.figures.answered({RUNS.object: no_answer(RUNS, {"device": "8:2", "shared": False})})
    assert host.shown()["runs"]["answers"] is False


def test_what_is_shared_is_measured_by_one_host(host: Host) -> None:
    host.declare(SHARED)
    host.answer()
    assert host.due() == [] and host.shown()["packages"]["elsewhere"] is True
    host.settings = settings(measure_shared=True)
    assert host.due() == ["measure/0:50"] and host.shown()["packages"]["elsewhere"] is False


def test_where_it_really_is_decides_who_measures_it(host: Host) -> None:
    over_a_link = Target("location/hub", "/scratch/hub")  # /scratch leads to /lustre, whatever its path says
    host.declare(RUNS, over_a_link)
    host.answer()
    answer = {"object": over_a_link.object, "available": True, "reason": ""}
    places = {"device": "0:50", "shared": True}, {"device": "8:2", "shared": False}
    host.figures.answered({**host.figures._answers, over_a_link.object: {**answer, "place": places[0]}})
    assert host.due() == ["measure/8:2"] and host.shown()["hub"]["elsewhere"]
    assert [one.name for one in host.figures.accounted()] == ["runs"]
    host.figures.answered({**host.figures._answers, over_a_link.object: {**answer, "available": False}})
    host.due()
    assert host.shown()["hub"]["elsewhere"], "nothing else is known of it"
    host.children.end("measure/8:2")
    host.figures._ended.clear()
    host.figures.answered({**host.figures._answers, over_a_link.object: {**answer, "place": places[1]}})
    assert host.due() == ["measure/8:2"] and not host.shown()["hub"]["elsewhere"]
    assert [one.object for one in host.children.started["measure/8:2"][0].targets] == ["location/runs", "location/hub"]


def test_the_last_complete_figures_stay(host: Host) -> None:
    host.declare(RUNS)
    host.answer()
    host.due()
    host.children.send("measure/8:2", {"object": "location/runs", "measured": 100.0, **FIGURES})
    host.children.end("measure/8:2")
    before = host.shown()["runs"]
    assert (before["bytes"], before["complete"], before["measured"]) == (5, True, 100.0)
    host.figures._ended.clear()
    host.due()
    host.children.send(
        "measure/8:2", {"object": "location/runs", **FIGURES, "complete": False, "bytes": 1, "reason": "a: no"}
    )
    after = host.shown()["runs"]
    assert (after["bytes"], after["complete"], after["measured"], after["reason"]) == (5, False, 100.0, "a: no")
    host.children.end("measure/8:2", "killed")
    assert host.shown()["runs"]["bytes"] == 5 and "killed" in host.said[-1]


def test_what_is_missing_is_incomplete_and_measured_as_soon_as_it_is_back(host: Host) -> None:
    host.declare(RUNS)
    host.answer()
    host.due()
    host.children.send("measure/8:2", {"object": "location/runs", "measured": 100.0, **FIGURES})
    host.children.end("measure/8:2")
    host.answer(runs=False)
    assert not host.shown()["runs"]["complete"] and host.shown()["runs"]["bytes"] == 5
    host.answer(runs=False)
    assert host.said.count("/mnt/nvme0/runs: missing") == 1
    assert host.due() == []
    host.answer()
    assert host.said[-1] == "location/runs: is there again"
    assert host.due() == ["measure/8:2"]


def test_figures_of_before_the_daemon_was_started(host: Host) -> None:
    records.write(record_path(host.places, "location/runs"), {**FIGURES, "measured": 50.0, "filesystem": None})
    host.declare(RUNS)
    host.answer()
    shown = host.shown()["runs"]
    assert (shown["bytes"], shown["measured"], shown["complete"], shown["reason"]) == (5, 50.0, True, "")


def test_that_the_latest_measurement_failed_is_known_after_a_start(host: Host) -> None:
    record = {**FIGURES, "measured": 50.0, "filesystem": None, "complete": False, "reason": "a: no"}
    records.write(record_path(host.places, "location/runs"), record)
    host.declare(RUNS, CACHE)
    host.answer()
    shown = host.shown()
    assert (shown["runs"]["bytes"], shown["runs"]["complete"], shown["runs"]["reason"]) == (5, False, "a: no")
    assert (shown["cache"]["bytes"], shown["cache"]["complete"], shown["cache"]["reason"]) == (None, False, "")


def test_what_is_there_again_is_no_fault_while_it_is_measured(host: Host) -> None:
    host.declare(RUNS)
    host.answer()
    host.due()
    host.children.send("measure/8:2", {"object": "location/runs", "measured": 100.0, **FIGURES})
    host.answer(runs=False)
    host.children.send("measure/8:2", {"object": "location/runs", "complete": False, "reason": "no disk"})
    host.answer()
    shown = host.shown()["runs"]
    assert (shown["bytes"], shown["complete"], shown["reason"]) == (5, False, "")


def test_a_scratch_directory_that_no_run_has_used_yet(host: Host) -> None:
    scratch = Target("drive/ml/scratch/0", "/mnt/nvme0/scratch", made_on_use=True)
    place = {"device": "8:2", "shared": False}
    answer = {"object": scratch.object, "available": False, "made": False, "reason": "is not there", "place": place}
    host.declare(scratch)
    host.figures.answered({scratch.object: dict(answer)})
    host.due()
    host.children.send("measure/8:2", {"object": scratch.object, "complete": False, "reason": ""})
    host.children.end("measure/8:2")

    def shown() -> tuple[Any, ...]:
        sections = Sections(host.places, host.said.append)
        host.figures.publish(sections)
        (one,) = (sections.last("drives") or {})["drives"]
        return one["available"], one["made"], one["reason"], one["bytes"]

    assert shown() == (True, False, "", None) and host.said == [] and host.due() == []
    host.answer()
    assert host.due() == ["measure/8:2"] and shown() == (True, True, "", None)
    host.children.send("measure/8:2", {"object": scratch.object, "measured": 100.0, **FIGURES})
    host.figures.answered({scratch.object: dict(answer)})
    assert shown() == (False, False, "is not there", 5), "its disk may be missing"


def test_the_runs_go_with_their_location(host: Host) -> None:
    host.declare(RUNS, CACHE)
    host.answer()
    host.due()
    runs = {"count": 2, "largest": []}
    host.children.send("measure/8:2", {"object": "location/runs", "measured": 100.0, "runs": runs, **FIGURES})
    assert host.shown()["runs"]["runs"] == runs and "runs" not in host.shown()["cache"]


LOCATION = DataLocation("/mnt/nvme0/stowage", 0, "gpu-01", FilesystemId("xfs", "u", "/dev/nvme0n1"), "id")
COPIES = Target(DATA_LOCATION, LOCATION.path, LOCATION.filesystem)


def send_copies(host: Host, *names: str) -> None:
    """Let the child that measures copies find these."""
    for name in names:
        use = {"last_used": None, "unused_s": 0.0}
        copy = {"copy": name, "identity": name, "created": 1.0, "filling": False, "measured": 100.0, **use}
        host.children.send("copies/8:2", {**copy, **FIGURES})
    host.children.send("copies/8:2", {"object": DATA_LOCATION, "complete": True, "copies": list(names)})


def test_copies_come_and_go(host: Host) -> None:
    host.declare(COPIES, location=LOCATION)
    host.answer()
    host.due()
    assert not host.figures.copies_known and host.shown()["data-location"]["bytes"] is None
    send_copies(host, "ml.a", "ml.b")
    assert host.figures.copies_known and host.shown()["data-location"]["bytes"] == 10
    assert host.figures.allocated() == 8192
    unread = {
        "copy": "ml.a",
        "identity": "ml.a",
        "created": 1.0,
        "complete": False,
        "reason": "a: no",
        "last_used": 7.0,
        "unused_s": 50.0,
    }
    host.children.send("copies/8:2", unread)
    assert (host.shown()["data-location"]["complete"], host.shown()["data-location"]["reason"]) == (False, "a: no")
    assert host.figures.copy_records()["ml.a"].inodes == 3 and not host.figures.copy_records()["ml.a"].complete
    known = host.figures.copy_records()["ml.a"]
    assert (known.last_used, known.unused_s, known.watched_copy) == (7.0, 50.0, 1.0)
    host.figures.used("ml.a", 9.0)
    host.figures.used("ml.gone", 9.0)
    assert (host.figures.copy_records()["ml.a"].last_used, host.figures.copy_records()["ml.a"].unused_s) == (9.0, 0.0)
    host.children.send("copies/8:2", {"object": DATA_LOCATION, "complete": True, "copies": ["ml.b"]})
    assert [copy.name for copy in host.figures.copies()] == ["ml.b"]
    host.figures.removed("ml.b")
    assert host.figures.copies() == []


def test_since_when_all_of_it_was_looked_at(host: Host) -> None:
    host.declare(RUNS, COPIES, location=LOCATION)
    host.answer()
    host.due()
    assert host.shown()["runs"]["listed"] is None
    host.children.send("measure/8:2", {"object": "location/runs", "measured": 100.0, "listed": 70.0, **FIGURES})
    host.children.send("measure/8:2", {"object": "location/runs", "complete": False, "reason": "a: no"})
    assert host.shown()["runs"]["listed"] == 70.0
    send_copies(host, "ml.a", "ml.b")
    assert host.shown()["data-location"]["listed"] is None
    for name, listed in (("ml.a", 60.0), ("ml.b", 50.0)):
        copy = {"copy": name, "identity": name, "created": 1.0, "measured": 100.0, "listed": listed}
        host.children.send("copies/8:2", {**copy, "last_used": None, "unused_s": 0.0, **FIGURES})
    assert host.shown()["data-location"]["listed"] == 50.0


def test_copies_do_not_wait_for_what_else_is_measured_on_their_disk(host: Host) -> None:
    host.declare(RUNS, COPIES, location=LOCATION)
    host.answer()
    assert host.due() == ["copies/8:2", "measure/8:2"]
    send_copies(host, "ml.a")
    host.children.end("copies/8:2")
    assert not host.figures.measuring_copies and host.due() == []
    host.figures.hurry()
    assert host.due() == ["copies/8:2"] and host.figures.measuring_copies


def test_copies_are_not_measured_while_one_is_removed(host: Host) -> None:
    host.declare(RUNS, COPIES, location=LOCATION)
    host.answer()
    host.children.started["evict/id"] = (None, None, lambda _ending: None)
    assert host.due() == ["measure/8:2"]
    host.children.end("evict/id")
    assert host.due() == ["copies/8:2"]


def test_another_limit_forgets_nothing(host: Host) -> None:
    host.declare(COPIES, location=LOCATION)
    host.answer()
    host.due()
    send_copies(host, "ml.a")
    host.children.end("copies/8:2")
    host.declare(COPIES, location=dataclasses.replace(LOCATION, max_bytes=1))
    assert host.figures.copies_known and [copy.name for copy in host.figures.copies()] == ["ml.a"]
    assert host.due() == []


def test_another_data_location_is_looked_into_at_once(host: Host) -> None:
    host.declare(COPIES, location=LOCATION)
    host.answer()
    host.due()
    send_copies(host, "ml.a")
    other = dataclasses.replace(LOCATION, path="/srv/stowage", identity="other")
    host.declare(dataclasses.replace(COPIES, path=other.path), location=other)
    assert not host.figures.copies_known and host.figures.copies() == []
    send_copies(host, "ml.late")  # of the earlier one
    assert not host.figures.copies_known and host.figures.copies() == []
    host.answer()
    assert host.due() == ["copies/8:1"]


def test_what_is_declared_while_its_disk_is_measured_is_due_at_once(host: Host) -> None:
    host.declare(RUNS)
    host.answer()
    assert host.due() == ["measure/8:2"]
    host.declare(RUNS, CACHE)
    host.children.end("measure/8:2")
    assert host.due() == ["measure/8:2"]


def test_each_filesystem_is_shown_once(host: Host) -> None:
    host.declare(RUNS, CACHE)
    space = {"size": 100, "free": 50, "avail": 50, "files": 10, "files_free": 5}
    one = {"id": "8:2", "mountpoint": "/mnt/nvme0", "device": "/dev/nvme0n1", "fstype": "xfs", "shared": False, **space}
    answers = {
        target.object: {"object": target.object, "available": True, "reason": "", "filesystem": one}
        for target in (RUNS, CACHE)
    }
    host.figures.answered(answers)
    shown = host.shown("filesystems")
    assert list(shown) == ["/mnt/nvme0"] and shown["/mnt/nvme0"]["objects"] == ["location/runs", "location/cache"]


# -- Whose it is

SHARES = Shares({"ann": User(1, 5)}, {}, 100.0)


def test_what_is_known_of_a_location_stays_while_it_is_missing(host: Host) -> None:
    host.declare(RUNS, CACHE, SHARED)
    host.answer()
    assert [(one.name, one.bytes, one.is_known) for one in host.figures.accounted()] == [
        ("runs", None, False),
        ("cache", None, False),
        ("packages", None, False),
    ]
    host.due()
    message = {"object": "location/runs", "measured": 100.0, **FIGURES}
    host.children.send("measure/8:2", {**message, "shares": SHARES.to_json()})
    runs, _cache = host.figures.accounted()  # the shared filesystem is measured by another host
    assert (runs.bytes, runs.measured, runs.complete, runs.reason, runs.shares) == (5, 100.0, True, "", SHARES)
    host.answer(runs=False)
    runs, _cache = host.figures.accounted()
    assert (runs.bytes, runs.complete, runs.reason) == (5, False, "/mnt/nvme0/runs: missing")
    assert runs.shares == SHARES


def test_shares_of_before_the_daemon_was_started(host: Host) -> None:
    record = {**FIGURES, "measured": 50.0, "filesystem": None, "shares": SHARES.to_json()}
    records.write(record_path(host.places, "location/runs"), record)
    host.declare(RUNS)
    host.answer()
    assert host.figures.accounted()[0].shares == SHARES


def test_another_directory_is_not_measured_yet_and_due_at_once(host: Host) -> None:
    host.declare(RUNS)
    host.answer()
    host.due()
    message = {"object": "location/runs", "measured": 100.0, **FIGURES, "shares": SHARES.to_json()}
    host.children.send("measure/8:2", message)
    host.children.end("measure/8:2")
    assert host.due() == [] and host.figures.accounted()[0].bytes == 5
    host.declare(Target("location/runs", "/mnt/nvme0/new"))
    (runs,) = host.figures.accounted()
    assert (runs.path, runs.bytes, runs.measured, runs.shares) == ("/mnt/nvme0/new", None, None, None)
    assert not runs.complete and host.due() == ["measure/8:2"]


def test_a_measurement_of_a_directory_that_is_declared_no_more_is_no_figure(host: Host) -> None:
    host.declare(RUNS)
    host.answer()
    host.due()
    host.declare(Target("location/runs", "/mnt/nvme0/new"))
    host.children.send("measure/8:2", {"object": "location/runs", "measured": 100.0, **FIGURES})
    assert host.figures.accounted()[0].bytes is None


def test_shares_of_a_measurement_that_was_not_complete(host: Host) -> None:
    host.declare(RUNS)
    host.answer()
    host.due()
    message = {"object": "location/runs", "measured": 100.0, **FIGURES}
    host.children.send("measure/8:2", {**message, "shares": SHARES.to_json()})
    partial = Shares({"bob": User(1, 5)}, missing=Missing({"bob": "x: no"}))
    failed = {"object": "location/runs", "complete": False, "reason": "x: no", "shares": partial.to_json()}
    host.children.send("measure/8:2", {**failed, "runs": {"count": 1, "largest": []}})
    (runs,) = host.figures.accounted()
    assert (runs.bytes, runs.complete, runs.shares) == (5, False, partial)
    assert host.shown()["runs"]["runs"]["count"] == 1


def test_credentials_of_a_cache_that_was_not_measured_to_the_end(host: Host) -> None:
    host.declare(Target("location/cache", "/mnt/nvme0/cache"))
    host.answer()
    host.due()
    failed = {"object": "location/cache", "complete": False, "reason": "x: no", "credentials": ["/c/token"]}
    host.children.send("measure/8:2", failed)
    assert (host.shown()["cache"]["credentials"], host.shown()["cache"]["bytes"]) == (["/c/token"], None)


def test_the_root_is_measured_and_not_shown(host: Host) -> None:
    root = Target("root", "/mnt/nvme0")
    declared = Declared((RUNS,), root=root)
    host.targets = declared.asked
    assert host.targets == (RUNS, root)
    host.figures.declare(declared, {})
    host.answer()
    assert host.due() == ["measure/8:2"]
    assert [target.object for target in host.children.started["measure/8:2"][0].targets] == ["location/runs", "root"]
    host.children.send("measure/8:2", {"object": "root", "measured": 100.0, **FIGURES})
    assert [(one.name, one.bytes) for one in host.figures.accounted()] == [("runs", None), ("root", 5)]
    assert list(host.shown()) == ["runs"]
