# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one round of measuring finds, says and records."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import pickle
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bucket_files
import pytest

from stowage_core import mounts, records
from stowage_core.accounting import totals
from stowage_core.data_location.locations import DataLocation
from stowage_core.mounts import FilesystemId
from stowage_core.places import Places
from stowage_core.runs import stamps
from stowage_core.runs.shape import RunName
from stowage_core.runs.stamps import Stamp
from stowage_core.syscalls import open_beneath
from stowage_core.trees import parts as measure_parts
from stowage_core.trees.measure import Usage
from stowaged import measuring, probe
from stowaged import shares as sharing
from stowaged.declared import Target
from stowaged.last_measured import last_measured, record_path
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

    def measure(self, *targets: Target, location: DataLocation | None = None) -> dict[str, dict[str, Any]]:
        """Measure, and return the messages by object."""
        found: dict[str, dict[str, Any]] = {}

        def send(message: Mapping[str, Any]) -> None:
            if message:
                assert message["object"] not in found
                found[message["object"]] = dict(message)

        Measuring(self.places, targets, location, {}, mounts.read())(send)
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
        return dataclasses.replace(found, complete=False, problems=("x: no",)) if found.files in files else found

    monkeypatch.setattr(measure_parts.Usage, "of", usage)
    return files


class Remembering:
    """Counts as always, and says that everything was listed long ago."""

    def __init__(self) -> None:
        self.counted: list[str] = []

    def measure(self, fd: int) -> Usage:
        self.counted.append(os.readlink(f"/proc/self/fd/{fd}"))
        return measuring.Scanning().measure(fd)

    def measure_parts(self, fd: int, begins: Any, deepest: int, left_out: Any) -> None:
        self.counted.append(os.readlink(f"/proc/self/fd/{fd}"))
        measuring.Scanning().measure_parts(fd, begins, deepest, left_out)

    def listed(self, fd: int) -> float | None:
        return None if os.readlink(f"/proc/self/fd/{fd}").endswith("state") else 50.0


def test_who_counts_says_since_when_all_was_looked_at(disk: Disk) -> None:
    for name in ("cache/own", "cache/hf/hub/a", "state/x"):
        disk.put(name)
    targets = [
        *(disk.location("cache", "cache"), disk.location("hf_hub_cache", "cache/hf/hub")),
        disk.location("state", "state"),
    ]
    found: dict[str, Any] = {}
    trees = Remembering()
    began = time.time()
    round = Measuring(disk.places, targets, None, {}, mounts.read())
    pickle.loads(pickle.dumps(round))(lambda message: found.update({message["object"]: message}), trees)
    assert trees.counted == [str(disk.path / "cache"), str(disk.path / "state")]
    assert found["location/cache"]["listed"] == found["location/hf_hub_cache"]["listed"] == 50.0
    assert began <= found["location/state"]["listed"] <= time.time(), "it is being looked at for the first time"
    assert disk.record("cache")["listed"] == 50.0
    assert disk.measure(targets[0])["location/cache"]["listed"] >= began


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
    assert disk.measure(*targets)["location/cache"]["complete"] is False and "bytes" not in disk.record("cache")
    failing.clear()
    disk.measure(*targets)
    disk.put("cache/hub/b")
    failing.add(2)
    found = disk.measure(*targets)
    reason = f"{disk.path}/cache: x: no"
    told = {"object": "location/hub_cache", "complete": False, "reason": reason, "credentials": []}
    assert found["location/hub_cache"] == told
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


def test_what_looking_has_mounted_is_there_at_once(disk: Disk) -> None:
    before = mounts.parse(b"1 1 8:1 / / rw - ext4 /dev/sda1 rw\n")  # of another time: its mount is not in it
    disk.put("runs/a")
    target = disk.location("runs", "runs")
    answer = probe.ask(disk.places, target, None, before)
    now = mounts.of_path(str(disk.path), mounts.read())
    assert answer["available"] and answer["reason"] == ""
    assert answer["place"]["device"] == answer["filesystem"]["id"] == now.device
    found: list[Mapping[str, Any]] = []
    Measuring(disk.places, [target], None, {}, before)(found.append)
    assert found[-1]["complete"]


# -- Whose it is


def stamp(disk: Disk, name: str, team: str) -> None:
    fd = os.open(disk.path / "runs" / name, os.O_RDONLY)
    try:
        stamps.put(disk.places, RunName.parsed(name), Stamp.of(fd, team, 1.0))
    finally:
        os.close(fd)


def shares(disk: Disk, *targets: Target) -> dict[str, Any]:
    """Return whose the first of the targets is."""
    found: dict[str, Any] = disk.measure(*targets)[targets[0].object]["shares"]
    return found


def test_runs_belong_to_users_and_teams(disk: Disk) -> None:
    shared = disk.put("runs/ann/llm/one/work/file", 1000)
    disk.put("runs/ann/llm/two/work/file", 100)
    os.link(shared, disk.path / "runs/ann/llm/two/link")
    for name, size in (("notes", 10), ("llm/beside", 20), (".hidden/a/b/file", 40)):
        disk.put(f"runs/ann/{name}", size)
    disk.put("runs/bob/vit/one/file", 5)
    for name in ("file", ".stowage-trash/a/b/file", "lost+found/a/b/file"):
        disk.put(f"runs/{name}", 7)
    for name, team in (("ann/llm/one", "vision"), ("ann/llm/two", "speech"), ("bob/vit/one", "vision")):
        stamp(disk, name, team)
    runs = disk.location("runs", "runs")
    found = shares(disk, runs)
    users = {name: (one["runs"], one["runs_bytes"], one["reflow_bytes"]) for name, one in found["users"].items()}
    assert users == {"ann": (2, 1000 + 1100 + 70, 0), "bob": (1, 5, 0)}
    teams = {name: (one["bytes"], one["runs"]) for name, one in found["teams"].items()}
    assert teams == {"vision": (1005, 2), "speech": (1100, 1)} and found["missing"] is None
    assert found["damaged"] == [] and disk.record("runs")["shares"] == found
    # In the location each file counts once, whoever's it is.
    assert disk.record("runs")["bytes"] == 1000 + 100 + 70 + 5 + 21
    assert disk.record("runs")["runs"]["count"] == 3


def test_a_run_made_again_has_no_team(disk: Disk) -> None:
    disk.put("runs/ann/llm/one/file", 10)
    stamp(disk, "ann/llm/one", "vision")
    (disk.path / "runs/ann/llm/one").rename(disk.path / "runs/ann/llm/two")
    disk.put("runs/ann/llm/one/file", 10)
    found = shares(disk, disk.location("runs", "runs"))
    assert found["teams"] == {} and found["users"]["ann"]["runs"] == 2


def test_damaged_stamps_take_no_team_away(disk: Disk) -> None:
    disk.put("runs/ann/llm/one/file", 10)
    disk.put("runs/bob/llm/one/file", 10)
    for user in ("ann", "bob"):
        stamp(disk, f"{user}/llm/one", "vision")
    runs = disk.location("runs", "runs")
    before = shares(disk, runs)
    path = Path(stamps.record_path(disk.places, RunName("ann", "llm", "one")))
    path.write_text("{")
    disk.put("runs/bob/llm/one/more", 10)
    found = shares(disk, runs)
    assert (found["teams"], found["teams_measured"]) == (before["teams"], before["teams_measured"])
    assert found["users"]["bob"]["runs_bytes"] == 20
    (damaged,) = found["damaged"]
    assert damaged["path"] == stamps.user_dir(disk.places, "ann")
    assert f"{path}: not valid JSON" in damaged["reason"]


def test_reflow_belongs_to_users(disk: Disk) -> None:
    for name, size in (("ann/a/b/file", 10), ("ann/file", 20), ("bob/file", 5), ("file", 1)):
        disk.put(f"reflow/{name}", size)
    reflow = disk.location("reflow", "reflow")
    found = shares(disk, reflow)
    assert {name: one["reflow_bytes"] for name, one in found["users"].items()} == {"ann": 30, "bob": 5}
    assert disk.record("reflow")["bytes"] == 36


PLATFORM, MALLORY, STRANGER = 1000, 1999, 100042


@pytest.mark.parametrize(
    ("top", "name", "owner", "mode", "user"),
    [
        # Only root and the location's owner give names.
        (0o755, "bob", PLATFORM, 0o755, "bob"),
        (0o2755, "bob", MALLORY, 0o2775, "bob"),
        (0o755, ".bob", PLATFORM, 0o755, None),
        # Others may make directories: whoever has one has its bytes, whatever it is called.
        (0o2775, "bob", MALLORY, 0o755, "mallory"),
        (0o3775, "bob", MALLORY, 0o755, "mallory"),
        (0o1777, ".hidden", MALLORY, 0o700, "mallory"),
        (0o2775, "bob", STRANGER, 0o755, ""),
        # They may rename what is there, or move there what they may write to.
        (0o2775, "bob", PLATFORM, 0o755, ""),
        (0o2775, "bob", 0, 0o755, ""),
        (0o3775, "bob", PLATFORM, 0o2775, ""),
        (0o3775, "bob", PLATFORM, 0o2755, "bob"),
        (0o3775, "bob", 0, 0o755, "bob"),
        (0o3775, "lost+found", 0, 0o700, None),
    ],
)
def test_for_whom_a_directory_counts(
    monkeypatch: pytest.MonkeyPatch, top: int, name: str, owner: int, mode: int, user: str | None
) -> None:
    def account(uid: int) -> Any:
        return SimpleNamespace(pw_name={MALLORY: "mallory"}[uid])

    def status(uid: int, mode: int) -> os.stat_result:
        return os.stat_result((stat.S_IFDIR | mode, 0, 0, 2, uid, 0, 0, 0, 0, 0))

    monkeypatch.setattr(sharing.pwd, "getpwuid", account)
    named = sharing._Named()
    named.enter(status(PLATFORM, top))
    assert named.user(name, status(owner, mode)) == user


def test_what_anybody_may_have_named_counts_for_nobody(disk: Disk) -> None:
    disk.put("reflow/bob/file", 20)
    disk.put("reflow/ann/file", 10)
    disk.put("reflow/.own/file", 5)
    disk.put("reflow/file", 1)
    (disk.path / "reflow").chmod(0o2775)
    found = shares(disk, disk.location("reflow", "reflow"))
    assert found["users"] == {} and found["missing"] is None
    assert (found["unproven"]["count"], found["unproven"]["bytes"]) == (2, 30)
    assert disk.record("reflow")["bytes"] == 36


def test_users_are_as_many_as_the_daemon_can_look_at(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MOST_USERS", 3)
    monkeypatch.setattr(sharing, "keep_largest", functools.partial(totals.keep_largest, most=3))
    for number in range(1, 11):
        disk.put(f"reflow/user{number}/file", number)
        disk.put(f"runs/user{number}/file", number)
    for name in ("reflow", "runs"):
        found = shares(disk, disk.location(name, name))
        assert set(found["users"]) == {"user8", "user9", "user10"}
        assert (found["beyond"]["count"], found["beyond"]["bytes"], found["beyond"]["most"]) == (7, 28, 7)
        assert disk.record(name)["bytes"] == 55


def test_one_walk_goes_through_everything_below_the_root(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ("own", "cache/own", "cache/hf/hub/a", "runs/ann/llm/one/a", "runs/ann/b", "reflow/ann/a", "other/deep/er")
    for number, name in enumerate((*files, "copies/a/file", "tier/file", "source/file", "elsewhere/a")):
        disk.put(name, 1 << number)
    monkeypatch.setattr(measuring, "_ENGINE", None)  # nothing is measured by itself
    monkeypatch.setattr(probe, "_check_claim", lambda *_arguments: None)
    walks: list[int] = []
    parts = measuring.measure_parts
    monkeypatch.setattr(measuring, "measure_parts", lambda fd, *more: (walks.append(fd), parts(fd, *more))[1])
    names = {"cache": "cache", "hf_hub_cache": "cache/hf/hub", "runs": "runs", "reflow": "reflow"}
    targets = [disk.location(name, path) for name, path in names.items()]
    targets.append(Target("tier/chat/0", str(disk.path / "tier"), claim=("chat/0", "")))
    targets.append(Target("drive/ml/a/0", str(disk.path / "source")))
    targets.append(Target("root", str(disk.path)))
    copies = DataLocation(str(disk.path / "copies"), 0, "gpu-01", FilesystemId("ext4", "u", "/dev/sda1"), "id")
    found = disk.measure(*targets, location=copies)
    assert len(walks) == 1
    sizes = {name: one["bytes"] for name, one in found.items()}
    assert sizes == {
        "location/cache": 2 + 4,
        "location/hf_hub_cache": 4,
        "location/runs": 8 + 16,
        "location/reflow": 32,
        "tier/chat/0": 1 << 8,
        "drive/ml/a/0": 1 << 9,
        "root": 1 + (1 << 6) + (1 << 9) + (1 << 10),
    }
    assert found["location/cache"]["shares"]["rest"] == 2
    assert found["location/runs"]["shares"]["users"]["ann"]["runs_bytes"] == 8 + 16
    assert found["location/runs"]["runs"]["count"] == 1
    assert found["location/reflow"]["shares"]["users"]["ann"]["reflow_bytes"] == 32
    record = records.read(record_path(disk.places, "root")) or {}
    assert record["bytes"] == sizes["root"]


def test_room_without_length_is_in_what_is_allocated(disk: Disk) -> None:
    """A file may take room beyond its end, and is then logically empty."""
    path = disk.put("runs/ann/llm/one/file", 0)
    stamp(disk, "ann/llm/one", "vision")
    subprocess.run(["fallocate", "--keep-size", "--length", "1M", path], check=True)
    found = shares(disk, disk.location("runs", "runs"))
    ann, vision = found["users"]["ann"], found["teams"]["vision"]
    assert ann["runs_bytes"] == vision["bytes"] == 0
    assert 1 << 20 <= vision["allocated"] <= ann["allocated"] < 2 << 20


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Names of directories that cannot be opened; something is mounted on those that are called hidden."""
    names: set[bytes] = set()

    def opened(dir_fd: int, name: bytes, *flags: int) -> int:
        if name in names:
            number = errno.EXDEV if name == b"hidden" else errno.EIO
            raise OSError(number, os.strerror(number))
        return open_beneath(dir_fd, name, *flags)

    monkeypatch.setattr("stowage_core.trees.walk.open_beneath", opened)
    return names


def test_one_whose_files_cannot_be_read_freezes_nobody_else(disk: Disk, unreadable: set[bytes]) -> None:
    for user, team in (("ann", "vision"), ("bob", "speech")):
        disk.put(f"runs/{user}/llm/one/work/file", 10)
        disk.put(f"reflow/{user}/file", 5)
        stamp(disk, f"{user}/llm/one", team)
    runs, reflow = disk.location("runs", "runs"), disk.location("reflow", "reflow")
    before = disk.measure(runs, reflow)
    disk.put("runs/ann/llm/one/work/more", 10)
    disk.put("runs/bob/llm/one/bad/more", 10)
    disk.put("reflow/bob/bad/more", 10)
    unreadable.add(b"bad")
    found = disk.measure(runs, reflow)
    why = "bob/llm/one/bad: Input/output error"
    of_runs = found[runs.object]
    assert not of_runs["complete"] and why in of_runs["reason"]
    assert {name: one["runs_bytes"] for name, one in of_runs["shares"]["users"].items()} == {"ann": 20, "bob": 10}
    assert of_runs["shares"]["missing"] == {"users": {"bob": why}, "teams": {"speech": why}, "unseen": False}
    assert found[reflow.object]["shares"]["missing"]["users"] == {"bob": "bob/bad: Input/output error"}
    for name in ("runs", "reflow"):
        record = disk.record(name)
        assert record["shares"] == found[f"location/{name}"]["shares"] and not record["complete"]
        assert record["bytes"] == before[f"location/{name}"]["bytes"], "the last complete figures of the location stay"
    recorded = (records.read(disk.places.runs_json) or {})["runs"]
    assert {name: (one["bytes"], one["complete"]) for name, one in recorded.items()} == {
        "ann/llm/one": (20, True),
        "bob/llm/one": (10, False),
    }


def test_a_mount_may_hide_what_quotas_count(disk: Disk, unreadable: set[bytes]) -> None:
    for name in (
        "runs/ann/llm/one/hidden/file",
        "runs/bob/llm/one/file",
        "reflow/ann/hidden/file",
        "state/hidden/file",
    ):
        disk.put(name, 10)
    stamp(disk, "ann/llm/one", "vision")
    unreadable.add(b"hidden")
    names = ("runs", "reflow", "state")
    runs, reflow, state = (disk.measure(disk.location(name, name))[f"location/{name}"] for name in names)
    assert state["complete"], "it is other storage there"
    why = "ann/llm/one/hidden: another filesystem is mounted there"
    assert runs["reason"] == f"{disk.path}/runs: {why}" and not runs["complete"]
    assert runs["shares"]["missing"] == {"users": {"ann": why}, "teams": {"vision": why}, "unseen": False}
    assert not reflow["complete"] and set(reflow["shares"]["missing"]["users"]) == {"ann"}
    recorded = (records.read(disk.places.runs_json) or {})["runs"]
    assert {name: one["complete"] for name, one in recorded.items()} == {"ann/llm/one": False, "bob/llm/one": True}


def test_what_is_missing_beside_runs_may_be_a_run_of_any_team_of_the_user(disk: Disk, unreadable: set[bytes]) -> None:
    for name, team in (("ann/llm/one", "vision"), ("ann/vit/one", "speech"), ("bob/llm/one", "audio")):
        disk.put(f"runs/{name}/file", 10)
        stamp(disk, name, team)
    unreadable.add(b"vit")
    missing = shares(disk, disk.location("runs", "runs"))["missing"]
    assert (set(missing["users"]), set(missing["teams"]), missing["unseen"]) == ({"ann"}, {"vision", "speech"}, False)


def test_a_user_that_cannot_be_come_across_may_be_anybody(disk: Disk, unreadable: set[bytes]) -> None:
    disk.put("runs/ann/llm/one/file", 10)
    disk.put("runs/bob/llm/one/file", 10)
    unreadable.add(b"bob")
    found = shares(disk, disk.location("runs", "runs"))
    assert set(found["users"]) == {"ann"} and found["missing"] == {"users": {}, "teams": {}, "unseen": True}


def test_a_cache_that_cannot_be_read_keeps_what_was_in_no_cache(disk: Disk, unreadable: set[bytes]) -> None:
    disk.put("cache/own", 10)
    disk.put("cache/bad/file", 10)
    cache = disk.location("cache", "cache")
    disk.measure(cache)
    unreadable.add(b"bad")
    assert "shares" not in disk.measure(cache)[cache.object] and disk.record("cache")["shares"]["rest"] == 20


def test_a_location_by_another_way_is_the_same_location(disk: Disk) -> None:
    """The root may be a symbolic link, and a location be declared by where that leads."""
    disk.put("data/stowage/runs/ann/llm/one/file", 1000)
    disk.put("data/stowage/cache/hf/hub/model", 500)
    disk.put("data/stowage/other", 7)
    (disk.path / "root").symlink_to(disk.path / "data/stowage")
    targets = [Target("root", str(disk.path / "root")), disk.location("runs", "data/stowage/runs")]
    targets += [disk.location("cache", "data/stowage/cache"), disk.location("hf_hub_cache", "root/cache/hf/hub")]
    found = disk.measure(*targets)
    assert {name: one["bytes"] for name, one in found.items()} == {
        "root": 7,
        "location/runs": 1000,
        "location/cache": 500,
        "location/hf_hub_cache": 500,
    }
    assert found["location/cache"]["shares"]["rest"] == 0


OTHER_DISK = FilesystemId("xfs", "another", "/dev/sdz")


def test_what_was_measured_elsewhere_says_nothing_of_another_directory(disk: Disk) -> None:
    disk.put("state/file")
    target = disk.location("state", "state")
    record = {**disk.measure(target)[target.object], "filesystem": OTHER_DISK.to_json()}
    moved = disk.location("state", "new")
    (disk.path / "new").mkdir()

    def available(target: Target, **more: Any) -> bool:
        records.write(record_path(disk.places, target.object), {**record, **more})
        return bool(probe.ask(disk.places, target, None, mounts.read())["available"])

    assert not available(moved, path=moved.path), "its disk is missing"
    assert available(moved, path=target.path)
    assert last_measured(disk.places, moved, lambda _message: None) == {}
    fd = os.open(disk.path, os.O_RDONLY)
    here = mounts.identify(fd, mounts.read())
    os.close(fd)
    declared = dataclasses.replace(moved, filesystem=here)
    assert available(declared, path=moved.path), "the layout says where it is"


def test_a_user_whose_name_is_too_long_for_a_stamp(disk: Disk) -> None:
    disk.put(f"runs/{'a' * 255}/llm/one/file", 10)
    found = shares(disk, disk.location("runs", "runs"))
    assert found["damaged"] == [] and found["users"]["a" * 255]["runs"] == 1
