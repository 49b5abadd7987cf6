# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one round of measuring finds, says and records."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bucket_files
import pytest

from stowage_core import mounts, records
from stowage_core.places import Places
from stowage_core.trees import parts as measure_parts
from stowage_core.trees.measure import Usage
from stowaged import measuring, probe
from stowaged.declared import Target
from stowaged.last_measured import record_path
from stowaged.measuring import Measuring
from stowaged.runs import LARGEST, Runs


class Disk:
    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = home / "disk"
        self.path.mkdir()
        self.places = Places.under(str(home / "host"))
        monkeypatch.setattr(measuring, "_beat", lambda send: None)  # its timer would go on in the tests after it

    def put(self, name: str, size: int = 100) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
        return path

    def measure(self, *targets: Target) -> dict[str, dict[str, Any]]:
        """Measure, and return the messages by object."""
        found: dict[str, dict[str, Any]] = {}

        def send(message: Mapping[str, Any]) -> None:
            if message:
                assert message["object"] not in found
                found[message["object"]] = dict(message)

        Measuring(self.places, targets, None, {}, mounts.read())(send)
        return found

    def location(self, name: str, path: str) -> Target:
        return Target(f"location/{name}", str(self.path / path))

    def record(self, name: str) -> dict[str, Any]:
        return records.read(record_path(self.places, f"location/{name}")) or {}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Numbers of files whose tree cannot be read to its end."""
    files: set[int] = set()
    of = Usage.of

    def usage(*arguments: Any) -> Usage:
        found = of(*arguments)
        return dataclasses.replace(found, complete=found.files not in files, problems=("x: no",))

    monkeypatch.setattr(measure_parts.Usage, "of", usage)
    return files


def test_a_location_in_another_is_counted_with_it(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cache/own", "cache/hf/hub/a", "cache/hf/hub/b", "cache/hf/datasets/c"):
        disk.put(name)
    os.link(disk.path / "cache/hf/hub/a", disk.path / "cache/hf/datasets/link")
    monkeypatch.setattr(measuring, "_ENGINE", None)  # nothing is measured by itself
    cache, hub = disk.location("cache", "cache"), disk.location("hf_hub_cache", "cache/hf/hub")
    datasets = disk.location("hf_datasets_cache", "cache/hf/datasets")
    same = Target("drive/ml/hub/0", hub.path)
    found = disk.measure(hub, datasets, same, cache)
    assert {name: (one["bytes"], one["files"]) for name, one in found.items()} == {
        "location/cache": (400, 4),
        "location/hf_hub_cache": (200, 2),
        "location/hf_datasets_cache": (200, 2),
        "drive/ml/hub/0": (200, 2),
    }
    assert all(one["complete"] for one in found.values())
    assert disk.record("hf_hub_cache")["files"] == 2 and disk.record("cache")["files"] == 4


def test_what_the_walk_does_not_come_across_is_measured_by_itself(disk: Disk) -> None:
    disk.put("real/a")
    disk.put("cache/b")
    (disk.path / "cache/hf").symlink_to(disk.path / "real")
    missing = disk.location("hub_cache", "cache/missing")
    found = disk.measure(disk.location("cache", "cache"), disk.location("hf_hub_cache", "cache/hf"), missing)
    assert (found["location/cache"]["files"], found["location/hf_hub_cache"]["files"]) == (2, 1)
    assert "No such file or directory" in found["location/hub_cache"]["reason"]


def test_a_failure_stays_beside_the_last_complete_figures(disk: Disk, failing: set[int]) -> None:
    disk.put("cache/hub/a")
    targets = (disk.location("cache", "cache"), disk.location("hub_cache", "cache/hub"))
    failing.add(1)
    assert disk.measure(*targets)["location/cache"]["complete"] is False and disk.record("cache") == {}
    failing.clear()
    disk.measure(*targets)
    disk.put("cache/hub/b")
    failing.add(2)
    found = disk.measure(*targets)
    reason = f"{disk.path}/cache: x: no"
    assert found["location/hub_cache"] == {"object": "location/hub_cache", "complete": False, "reason": reason}
    for name in ("cache", "hub_cache"):
        record = disk.record(name)
        assert (record["files"], record["complete"], record["reason"]) == (1, False, reason)
    failing.clear()
    disk.measure(*targets)
    assert (disk.record("cache")["files"], disk.record("cache")["complete"]) == (2, True)


def test_a_record_that_is_no_record_is_replaced(disk: Disk) -> None:
    disk.put("state/a")
    target = disk.location("state", "state")
    path = Path(record_path(disk.places, target.object))
    path.parent.mkdir(parents=True)
    path.write_text("{")
    said: list[Mapping[str, Any]] = []
    Measuring(disk.places, [target], None, {}, mounts.read())(said.append)
    assert any("not valid JSON" in one.get("say", "") for one in said) and disk.record("state")["files"] == 1


def test_scratch_that_was_not_made_yet_is_no_failure(disk: Disk) -> None:
    scratch = Target("drive/ml/scratch/0", str(disk.path / "scratch"), made_on_use=True)
    assert disk.measure(scratch)[scratch.object]["reason"] == ""
    disk.put("scratch/a")
    assert disk.measure(scratch)[scratch.object]["files"] == 1
    (disk.path / "scratch/a").unlink()
    (disk.path / "scratch").rmdir()
    assert "mount its disk, or leave it" in disk.measure(scratch)[scratch.object]["reason"]


def test_each_run_has_its_own_figures(disk: Disk, failing: set[int]) -> None:
    shared = disk.put("runs/alice/llm/run-1/work/file", 1000)
    os.link(shared, disk.path / "runs/alice/llm/run-1/link")
    disk.put("runs/bob/llm/run-2/own", 10)
    os.link(shared, disk.path / "runs/bob/llm/run-2/link")
    (disk.path / "runs/bob/llm/empty").mkdir()
    disk.put("runs/bob/llm/no-run")
    disk.put("runs/no-run")
    runs = disk.location("runs", "runs")
    found = disk.measure(runs, Target("drive/ml/all/0", str(disk.path)))
    assert (found[runs.object]["bytes"], found[runs.object]["files"]) == (1210, 4)
    assert (found["drive/ml/all/0"]["bytes"], found["drive/ml/all/0"]["files"]) == (1210, 4)
    summary = found[runs.object]["runs"]
    assert summary["count"] == 3 and [one["run"] for one in summary["largest"]] == [
        "bob/llm/run-2",
        "alice/llm/run-1",
        "bob/llm/empty",
    ]
    record = records.read(disk.places.runs_json)
    assert record is not None and (record["path"], record["complete"]) == (runs.path, True)
    assert {name: (one["bytes"], one["files"], one["complete"]) for name, one in record["runs"].items()} == {
        "alice/llm/run-1": (1000, 1, True),
        "bob/llm/run-2": (1010, 2, True),
        "bob/llm/empty": (0, 0, True),
    }
    # One that cannot be read keeps its last complete figures, and their time.
    before = record["runs"]["alice/llm/run-1"]
    disk.put("runs/alice/llm/run-1/more")
    disk.put("runs/alice/llm/run-1/another")
    failing.add(3)
    disk.measure(runs)
    after = (records.read(disk.places.runs_json) or {})["runs"]
    assert after["alice/llm/run-1"] == {**before, "complete": False}
    assert after["bob/llm/run-2"]["measured"] > before["measured"]


def test_what_begins_with_a_dot_is_no_run(disk: Disk) -> None:
    disk.put("runs/alice/llm/run-1/work/file", 10)
    disk.put("runs/.stowage-trash/pending/17/work/file", 100)
    disk.put("runs/alice/.cache/x/file", 100)
    disk.put("runs/alice/llm/.stowage-new-0/file", 100)
    found = disk.measure(disk.location("runs", "runs"))["location/runs"]
    assert found["bytes"] == 310 and found["runs"]["count"] == 1


def test_no_runs(disk: Disk) -> None:
    (disk.path / "runs").mkdir()
    found = disk.measure(disk.location("runs", "runs"))
    assert found["location/runs"]["runs"] == {"count": 0, "largest": []}
    assert (records.read(disk.places.runs_json) or {})["runs"] == {}


def test_names_of_runs_are_any_bytes(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    runs = Runs(places)
    names = [os.fsdecode(b'a/b/\xff"\n'), *(f"a/b/{number}" for number in range(10))]
    for number, name in enumerate(names):
        runs.add(name, Usage(bytes=number, files=1))
    runs.write("/runs", True)
    record = records.read(places.runs_json)
    assert record is not None and list(record["runs"]) == names
    assert [one["bytes"] for one in runs.summary()["largest"]] == list(range(10, 10 - LARGEST, -1))


def test_a_tier_in_a_location_is_counted_with_it(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket_files.put(disk.put("cache/kv/README").parent, 7356462120968)
    disk.put("cache/other")
    disk.put("cache/files/a")
    tier = Target("tier/chat/0", str(disk.path / "cache/kv"), claim=("chat/0", ""), buckets=True)
    files = Target("tier/files/0", str(disk.path / "cache/files"), claim=("files/0", "id"))
    monkeypatch.setattr(measuring, "_ENGINE", None)  # nothing is measured by itself
    monkeypatch.setattr(probe, "_check_claim", lambda *_arguments: None)
    found = disk.measure(disk.location("cache", "cache"), tier, files)
    assert {name: one["files"] for name, one in found.items()} == {
        "location/cache": 5,
        "tier/chat/0": 3,
        "tier/files/0": 1,
    }
    assert "tier" not in found["location/cache"] and found["tier/files/0"]["tier"]["buckets"] is None
    shown = found["tier/chat/0"]["tier"]
    assert (shown["buckets"]["complete"], shown["buckets"]["keys"]) == (1, 16)
    assert shown["space"]["size"] >= shown["space"]["free"] > 0
    record = records.read(record_path(disk.places, "tier/chat/0"))
    assert record is not None and record["tier"] == shown


def test_a_tier_without_its_mark_keeps_its_figures(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket_files.put(disk.put("kv/README").parent, 1)
    tier = Target("tier/chat/0", str(disk.path / "kv"), claim=("chat/0", "id"), buckets=True)
    with monkeypatch.context() as patched:
        patched.setattr(probe, "_check_claim", lambda *_arguments: None)
        disk.measure(tier)
    found = disk.measure(tier)[tier.object]
    assert found["complete"] is False and "does not bear the owner mark of tier chat/0" in found["reason"]
    record = records.read(record_path(disk.places, tier.object)) or {}
    assert (record["files"], record["complete"], record["tier"]["buckets"]["complete"]) == (3, False, 1)
    answer = probe.ask(disk.places, tier, None, mounts.read())
    assert (answer["available"], answer["claimed"]) == (False, False)
