# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon at work on real disks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from copies_lab import Lab, process
from daemon_lab import Daemon, application, wait_for
from stowage_core import copies, events, pins, records

MIB = 1 << 20


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return application(tmp_path_factory.mktemp("application"))


@pytest.fixture
def start(program: Path, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """A factory of daemons; with a lab, of its data location."""
    started: list[Daemon] = []

    def make(lab: Lab | None = None, **settings: Any) -> Daemon:
        daemon = Daemon(program, tmp_path, **settings)
        started.append(daemon)
        if lab is not None:
            records.write(daemon.places.data_location_json, lab.location.to_json())
        return daemon

    yield make
    for daemon in started:
        daemon.close()


def declare_location(daemon: Daemon, name: str, path: Path, **more: Any) -> None:
    layout = records.read(daemon.places.layout_json) or {"locations": {}}
    layout["locations"][name] = {"path": str(path), "filesystem": None, "require_mount": False, **more}
    records.write(daemon.places.layout_json, layout)


def free(disk: Path) -> float:
    answer = os.statvfs(disk)
    return answer.f_bavail / (answer.f_blocks - answer.f_bfree + answer.f_bavail)


def fill(lab: Lab, disk: Path, below: float) -> list[str]:
    """Make copies of 32 MiB until less than *below* is free; the first was used longest ago."""
    names = []
    while free(disk) >= below:
        name = f"ml.cache-{len(names):02d}"
        lab.copy(name, 32 * MIB, last_used=1_000_000.0 + len(names))
        names.append(name)
    return names


# -- Making room


def test_a_full_disk_comes_back_to_15_percent_oldest_first(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    disk = small_disk("ext4", 1 << 30).path
    lab = Lab(disk, tmp_path)
    lab.copy("ml.results", 32 * MIB, last_used=1.0, evictable=False)
    names = fill(lab, disk, 0.10)
    daemon = start(lab, evict="on", cycle_s=10, scan_interval_s=300)
    began = time.monotonic()
    daemon.start()
    wait_for(lambda: free(disk) >= 0.15, 30)
    assert time.monotonic() - began < 30
    daemon.cycle()
    gone = [name for name in names if not lab.at(name).exists()]
    assert gone == names[: len(gone)] and lab.at("ml.results").exists()
    os.sync()
    # Not one copy further: without the last of them the mark would not have been met.
    assert free(disk) - 32 * MIB / (1 << 30) < 0.15
    evictions = daemon.state("evictions")
    assert evictions["removed"] == {"full": len(gone)} and not evictions["blocked"] and evictions["plan"] == []
    assert evictions["removed_bytes"] >= len(gone) * 32 * MIB
    messages = [event["message"] for event in events.read(daemon.places)]
    assert messages.count("Copy removed from gpu-01: evicted: the disk it is on is nearly full") == len(gone)
    assert set(daemon.copies()) == {"ml.results", *names} - set(gone)


def test_planning_removes_nothing(small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path) -> None:
    disk = small_disk("ext4", 256 * MIB).path
    lab = Lab(disk, tmp_path)
    names = fill(lab, disk, 0.10)
    daemon = start(lab)
    daemon.start()
    plan = wait_for(lambda: daemon.state("evictions").get("plan"))
    assert [one["copy"] for one in plan] == names[: len(plan)] and plan[0]["reason"] == "full"
    for _ in range(3):
        daemon.cycle()
    assert lab.names() == names
    planned = [event for event in events.read(daemon.places) if event["reason"] == "EvictionPlanned"]
    assert len(planned) == 1 and f"{len(plan)} copies" in planned[0]["message"]
    answer = daemon.command("evict", "--dry-run")
    assert answer.returncode == 0 and names[0] in answer.stdout and "not needed to go" in answer.stdout


def test_nothing_can_go_is_said_once(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    disk = small_disk("ext4", 256 * MIB).path
    lab = Lab(disk, tmp_path)
    names = fill(lab, disk, 0.10)
    with process("os.chdir(copy); ready()", str(lab.at(names[0]))):
        for name in names[1:]:
            lab.declare(name, evictable=False)
        daemon = start(lab, evict="on")
        daemon.start()
        wait_for(lambda: daemon.state("evictions").get("blocked"))
        for _ in range(3):
            daemon.cycle()
    assert lab.names() == names
    blocked = [event for event in events.read(daemon.places) if event["reason"] == "EvictionBlocked"]
    assert len(blocked) == 1 and "nothing can go" in blocked[0]["message"]
    (disk / "stowage" / "drives" / names[1] / "data" / "file").unlink()
    (disk / "stowage" / "drives" / names[2] / "data" / "file").unlink()
    wait_for(lambda: not daemon.state("evictions")["blocked"])


def test_the_copy_of_a_deleted_drive_goes_whatever_the_mode(
    disk: Path, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.gone", state="absent", evictable=False)
    lab.copy("ml.kept")
    daemon = start(lab, evict="off")
    daemon.start()
    wait_for(lambda: lab.names() == ["ml.kept"])
    wait_for(lambda: daemon.state("evictions")["removed"] == {"deleted": 1})
    assert "its drive was deleted" in events.read(daemon.places)[-1]["message"]
    assert wait_for(lambda: set(daemon.copies()) == {"ml.kept"})


def test_killed_at_any_moment_of_an_eviction(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    disk = small_disk("ext4", 256 * MIB).path
    lab = Lab(disk, tmp_path)
    lab.copy("ml.kept", evictable=False)
    for number in range(4):
        path = lab.copy(f"ml.cache-{number}")
        for name in range(2000):
            (path / "data" / str(name)).touch()
    lab.location = lab.limited(1)
    daemon = start(lab, evict="on")
    for delay in (0.5, 0.55, 0.6, 0.7, 0.9):
        daemon.start(ready=False)
        time.sleep(delay)
        daemon.stop(signal.SIGKILL)
        assert lab.at("ml.kept").exists()
        if lab.names() == ["ml.kept"]:
            break
    daemon.start()
    wait_for(lambda: lab.names() == ["ml.kept"] and lab.trash() == [])


# -- Disks that come and go


def test_the_host_can_unmount_and_reuse_a_disk(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    small = small_disk("ext4", 64 * MIB)
    lab = Lab(small.path, tmp_path)
    lab.copy("ml.cache", 8 * MIB)
    lab.location = lab.limited(1)
    runs = small.path / "runs"
    runs.mkdir()
    (runs / "file").write_bytes(bytes(1000))
    daemon = start(lab, scan_interval_s=1)
    declare_location(daemon, "runs", runs, filesystem=lab.location.filesystem.to_json())
    daemon.start()
    wait_for(lambda: daemon.location("runs").get("complete") and daemon.copies())
    before = daemon.location("runs")
    assert before["available"] and before["bytes"] >= 1000

    wait_for(lambda: subprocess.run(["umount", str(small.path)], check=False).returncode == 0)
    daemon.configure(evict="on")
    daemon.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
    wait_for(lambda: daemon.location("runs").get("available") is False)
    time.sleep(1.5)
    after = daemon.location("runs")
    assert (after["bytes"], after["files"], after["measured"]) == (before["bytes"], before["files"], before["measured"])
    assert not after["complete"] and str(runs) in after["reason"]
    assert daemon.copies() and daemon.location("data-location")["available"] is False

    # Another filesystem, with the same folders, in its place.
    subprocess.run(["mkfs.ext4", "-q", "-F", small.device], check=True)
    small.mount()
    shutil.copytree(Path(__file__).parent, small.path / "stowage" / "drives" / "ml.cache" / "data")
    (small.path / "runs").mkdir()
    time.sleep(1.5)
    daemon.cycle()
    assert daemon.location("runs")["available"] is False and daemon.location("runs")["bytes"] == before["bytes"]
    assert "another one is in its place" in daemon.location("runs")["reason"]
    assert (small.path / "stowage" / "drives" / "ml.cache" / "data" / "conftest.py").exists()
    assert daemon.state("evictions")["removed"] == {}
    wait_for(lambda: subprocess.run(["umount", str(small.path)], check=False).returncode == 0)


def test_a_drive_source_whose_disk_is_missing_is_not_a_zero(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    small = small_disk("ext4", 32 * MIB)
    (small.path / "file").write_bytes(bytes(5000))
    daemon = start(scan_interval_s=1)
    drive = {
        "metadata": {"name": "imagenet"},
        "spec": {"sources": [{"node_scope": "", "node": "gpu-01", "path": str(small.path)}], "evictable": False},
        "identity": "one",
        "state": "present",
        "force": False,
    }
    records.write(
        os.path.join(daemon.places.drives_dir, "ml.json"), {"workspace": "ml", "host": "gpu-01", "drives": [drive]}
    )
    daemon.start()

    def shown() -> Any:
        found = daemon.state("drives").get("drives", [])
        return found[0] if found else {}

    wait_for(lambda: shown().get("complete"))
    wait_for(lambda: subprocess.run(["umount", str(small.path)], check=False).returncode == 0)
    wait_for(lambda: shown()["complete"] is False)
    assert shown()["bytes"] >= 5000 and "an empty directory" in shown()["reason"]
    small.mount()
    wait_for(lambda: shown()["complete"])


def test_a_filesystem_that_does_not_answer_is_left_alone(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    hung, well = small_disk("ext4", 32 * MIB), small_disk("ext4", 32 * MIB)
    with suspended(hung) as suspend:
        daemon = start(scan_interval_s=1)
        declare_location(daemon, "cache", suspend.path)
        declare_location(daemon, "runs", well.path)
        daemon.start()
        wait_for(lambda: daemon.location("cache").get("complete") and daemon.location("runs").get("complete"))
        suspend.now()
        wait_for(lambda: daemon.location("cache")["answers"] is False, 20)
        assert daemon.location("cache")["bytes"] is not None
        before = daemon.location("runs")["measured"]
        wait_for(lambda: daemon.location("runs")["measured"] > before)
        assert daemon.location("runs")["answers"] and daemon.location("runs")["available"]
        children = subprocess.run(
            ["pgrep", "-P", str(daemon.process.pid)],  # type: ignore[union-attr]
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        ).stdout.split()
        assert len(children) <= 2
        assert daemon.stop() < 1
