# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon at work on real disks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from copies_lab import Lab, process
from daemon_lab import Daemon, hung_mount, wait_for

from stowage_core import events, records
from stowage_core.copies import present as copies
from stowage_core.runs import pinning, pins

MIB = 1 << 20


def declare_location(daemon: Daemon, name: str, path: Path, **more: Any) -> None:
    layout = records.read(daemon.places.layout_json) or {"locations": {}}
    layout["locations"][name] = {"path": str(path), "filesystem": None, "require_mount": False, **more}
    records.write(daemon.places.layout_json, layout)


def declare_source(daemon: Daemon, name: str, source: dict[str, Any]) -> None:
    drive = {
        "metadata": {"name": name},
        "spec": {"sources": [source], "evictable": False},
        "identity": "one",
        "state": "present",
        "force": False,
    }
    records.write(
        os.path.join(daemon.places.drives_dir, "ml.json"), {"workspace": "ml", "host": "gpu-01", "drives": [drive]}
    )


def source_shown(daemon: Daemon) -> dict[str, Any]:
    """Return what is shown of the only source of a drive."""
    found = daemon.state("drives").get("drives", [])
    return found[0] if found else {}


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
    for _round in range(3):
        daemon.cycle()
    assert lab.names() == names
    planned = [event for event in events.read(daemon.places) if event["reason"] == "EvictionPlanned"]
    assert len(planned) == 1 and "would be removed" in planned[0]["message"]
    answer = daemon.command("evict", "--dry-run")
    assert answer.returncode == 0 and names[0] in answer.stdout


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
        for _round in range(3):
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


def test_the_copy_of_a_deleted_drive_goes_from_an_earlier_data_location_too(
    disk: Path, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.gone", state="absent")
    lab.copy("ml.kept")
    daemon = start()
    former = {key: value for key, value in lab.location.to_json().items() if key != "max_bytes"}
    records.write(daemon.places.former_locations_json, {"locations": [{**former, "left": 1.0}]})
    daemon.start()
    wait_for(lambda: lab.names() == ["ml.kept"] and lab.trash() == [])
    wait_for(lambda: daemon.state("evictions")["removed"] == {"deleted": 1})


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
    declare_source(daemon, "imagenet", {"node_scope": "", "node": "gpu-01", "path": str(small.path)})
    daemon.start()

    def shown() -> Any:
        return source_shown(daemon)

    wait_for(lambda: shown().get("complete"))
    wait_for(lambda: subprocess.run(["umount", str(small.path)], check=False).returncode == 0)
    wait_for(lambda: shown()["complete"] is False and shown()["available"] is False)
    assert shown()["bytes"] >= 5000 and "an empty directory" in shown()["reason"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_bytes(bytes(7000))
    declare_location(daemon, "runs", tmp_path / "other")
    done = daemon.command("measure", "--json")
    assert done.returncode == 3
    found = {one["object"]: one for one in json.loads(done.stdout)}
    assert (found["location/runs"]["bytes"], found["location/runs"]["complete"]) == (7000, True)
    source = found["drive/ml/imagenet/0"]
    assert (source["bytes"], source["files"], source["complete"]) == (None, None, False)
    assert source["problems"] == [shown()["reason"]]
    page = daemon.command("measure")
    assert page.returncode == 3 and "an empty directory on another filesystem" in page.stdout
    small.path.rmdir()
    page = daemon.command("measure")
    assert page.returncode == 3 and "No such file" in page.stdout and "location/runs" in page.stdout
    small.path.mkdir()
    small.mount()
    wait_for(lambda: shown()["complete"] and shown()["available"])
    assert daemon.command("measure").returncode == 0


def test_scratch_is_not_made_until_it_is_used(disk: Path, start: Callable[..., Daemon]) -> None:
    daemon = start(scan_interval_s=1)
    declare_source(daemon, "scratch", {"node_scope": "local-any", "node": "", "path": str(disk / "scratch")})
    daemon.start()
    wait_for(lambda: source_shown(daemon))
    time.sleep(1.5)
    assert (source_shown(daemon)["available"], source_shown(daemon)["made"]) == (True, False)
    page = daemon.command("status").stdout
    assert "not made yet" in page and "!" not in page
    assert daemon.command("measure").returncode == 0
    (disk / "scratch").mkdir()
    (disk / "scratch" / "file").write_bytes(bytes(1000))
    wait_for(lambda: source_shown(daemon)["complete"])
    assert source_shown(daemon)["made"] and source_shown(daemon)["bytes"] == 1000
    shutil.rmtree(disk / "scratch")
    wait_for(lambda: not source_shown(daemon)["available"])
    assert "mount its disk" in " ".join(daemon.command("status").stdout.split())


def test_after_a_start_the_last_complete_figures_are_no_fault(
    disk: Path, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.cache")
    (disk / "runs" / "alice" / "llm" / "run-1").mkdir(parents=True)
    (disk / "runs" / "alice" / "llm" / "run-1" / "file").write_bytes(bytes(5000))
    daemon = start(lab, scan_interval_s=300)
    declare_location(daemon, "runs", disk / "runs")
    daemon.start()
    wait_for(lambda: daemon.location("runs").get("complete") and daemon.location("data-location").get("complete"))
    daemon.stop()
    for number in range(400):  # some seconds of measuring at its pace
        folder = disk / "runs" / "bob" / "llm" / str(number)
        folder.mkdir(parents=True)
        for name in range(100):
            (folder / str(name)).touch()
    Path(daemon.places.state_dir, "locations.json").unlink()
    daemon.messages.clear()
    daemon.start()
    shown = wait_for(lambda: daemon.location("runs"))
    assert (shown["bytes"], shown["complete"], shown["reason"], shown["runs"]["count"]) == (5000, True, "", 1)
    assert daemon.location("data-location")["bytes"] == 65536
    page = daemon.command("status").stdout
    assert "1 in all" in page and "incomplete" not in page and "!" not in page
    wait_for(lambda: daemon.location("runs")["runs"]["count"] == 401, 30)
    record = records.read(daemon.places.runs_json)
    assert record is not None and len(record["runs"]) == 401
    assert record["runs"]["alice/llm/run-1"]["bytes"] == 5000 and record["runs"]["bob/llm/7"]["files"] == 100
    assert "the largest 5:" in daemon.command("status").stdout


def test_a_disk_that_is_measured_can_be_unmounted_once_the_daemon_has_stopped(
    small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    small = small_disk("ext4", 128 * MIB)
    for number in range(150):
        folder = small.path / str(number)
        folder.mkdir()
        for name in range(200):
            (folder / str(name)).touch()
    daemon = start()
    declare_location(daemon, "cache", small.path)
    daemon.start()
    assert subprocess.run(["umount", str(small.path)], check=False, capture_output=True).returncode != 0
    assert daemon.stop() < 1
    subprocess.run(["umount", str(small.path)], check=True)
    small.mount()


def test_a_filesystem_that_does_not_answer_is_left_alone(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    well = small_disk("ext4", 32 * MIB)
    daemon = start(scan_interval_s=1)
    hung = tmp_path / "hung"
    hung.mkdir()
    declare_location(daemon, "cache", hung)
    declare_location(daemon, "hub_cache", hung)
    declare_location(daemon, "runs", well.path)
    with hung_mount(hung):
        began = time.monotonic()
        daemon.start()
        assert time.monotonic() - began < 10  # one round of waiting, not one for each of the two locations
        for name in ("cache", "hub_cache"):
            assert daemon.location(name)["answers"] is False and "left alone" in daemon.location(name)["reason"]
        wait_for(lambda: daemon.location("runs").get("complete"))
        before = daemon.location("runs")["measured"]
        wait_for(lambda: daemon.location("runs")["measured"] > before)
        assert daemon.location("runs")["answers"] and daemon.location("runs")["available"]
        assert daemon.stop() < 1


def test_a_dead_filesystem_behind_a_link_holds_up_nothing_else(
    disk: Path, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    dead = tmp_path / "dead"
    dead.mkdir()
    (disk / "scratch").symlink_to(dead)
    for name in ("state", "cache"):
        (disk / name).mkdir()
    daemon = start(scan_interval_s=1)
    layout = {"runs": "scratch/runs", "hub_cache": "scratch/hub", "state": "state", "cache": "cache"}
    for name, path in layout.items():
        declare_location(daemon, name, disk / path)
    records.write(daemon.places.layout_json, {**(records.read(daemon.places.layout_json) or {}), "root": str(disk)})
    with hung_mount(dead, "server:/runs"):
        began = time.monotonic()
        daemon.start()
        assert time.monotonic() - began < 10
        for name in ("runs", "hub_cache"):
            shown = daemon.location(name)
            assert shown["answers"] is False and shown["elsewhere"] and "left alone" in shown["reason"]
        for name in ("state", "cache"):
            wait_for(lambda name=name: daemon.location(name).get("complete"))
            assert daemon.location(name)["answers"] and daemon.location(name)["available"]
        wait_for(lambda: daemon.state("accounts").get("tracked"))
        assert [one["objects"] for one in daemon.state("filesystems")["filesystems"]] == [
            ["location/cache", "location/state"]
        ]
        assert daemon.stop() < 1


def test_a_location_over_a_link_is_measured_with_what_is_on_its_disk(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    small = small_disk("ext4", 32 * MIB)
    (small.path / "runs").mkdir()
    (small.path / "runs" / "file").write_bytes(bytes(1000))
    (tmp_path / "data").symlink_to(small.path)
    daemon = start(scan_interval_s=1)
    declare_location(daemon, "runs", tmp_path / "data/runs")
    declare_location(daemon, "cache", small.path)
    daemon.start()
    wait_for(lambda: daemon.location("runs").get("complete") and daemon.location("cache").get("complete"))
    assert daemon.location("runs")["bytes"] == 1000
    (filesystem,) = daemon.state("filesystems")["filesystems"]
    assert filesystem["mountpoint"] == str(small.path) and filesystem["objects"] == ["location/cache", "location/runs"]
    daemon.stop()


AUTOMOUNT = """
import fcntl, os, struct, subprocess, sys
point, *mount = sys.argv[1:]
reading, writing = os.pipe()
os.set_inheritable(writing, True)
options = f"fd={writing},pgrp={os.getpgrp()},minproto=5,maxproto=5,direct"
subprocess.run(["mount", "-i", "-t", "autofs", "-o", options, "autofs", point], check=True, close_fds=False)
os.close(writing)
root = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
print("ready", flush=True)
while len(packet := os.read(reading, 4096)) > 12:
    (token,) = struct.unpack_from("=I", packet, 8)
    subprocess.run(["mount", *mount, point], check=True)
    fcntl.ioctl(root, 0x9360, token)  # AUTOFS_IOC_READY
"""


def test_a_location_that_looking_mounts_is_there_at_once(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    small = small_disk("ext4", 32 * MIB)
    (small.path / "runs").mkdir()
    small.unmount()
    point = tmp_path / "auto"
    point.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-c", AUTOMOUNT, point, small.device],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert server.stdout is not None and server.stdout.readline() == "ready\n"
    try:
        daemon = start()
        declare_location(daemon, "runs", point / "runs")
        daemon.start()
        assert daemon.location("runs")["available"], daemon.location("runs")
        wait_for(lambda: daemon.location("runs").get("complete"))
        assert "not in this process's mount table" not in daemon.logged()
        assert [one["mountpoint"] for one in daemon.state("filesystems")["filesystems"]] == [str(point)]
        daemon.stop()
    finally:
        subprocess.run(["umount", point], check=False)
        server.kill()
        server.communicate()
        subprocess.run(["umount", point], check=True)
        small.mount()


def test_it_stops_within_a_second_while_a_child_waits_for_a_frozen_disk(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    disk = small_disk("ext4", 64 * MIB).path
    lab = Lab(disk, tmp_path)
    lab.copy("ml.cache", 8 * MIB)
    lab.location = lab.limited(1)
    daemon = start(lab, evict="on")
    subprocess.run(["fsfreeze", "-f", str(disk)], check=True)
    try:
        daemon.start()
        wait_for(lambda: daemon.state("evictions").get("plan"))
        time.sleep(0.5)
        daemon.cycle()
        assert daemon.stop() < 1
    finally:
        subprocess.run(["fsfreeze", "-u", str(disk)], check=True)
    time.sleep(0.5)
    assert lab.trash() == [] or lab.names() == []
    daemon.start()
    wait_for(lambda: lab.names() == [] and lab.trash() == [])


def test_an_empty_directory_has_no_files(disk: Path, start: Callable[..., Daemon], tmp_path: Path) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.cache")
    (disk / "runs" / "empty").mkdir(parents=True)
    daemon = start(lab)
    declare_location(daemon, "runs", disk / "runs")
    daemon.start()
    wait_for(lambda: daemon.location("runs").get("complete") and daemon.copies())
    assert daemon.location("runs")["files"] == 0 and daemon.copies()["ml.cache"]["files"] == 1
    record = copies.load_record(daemon.places, "ml.cache")
    assert record is not None and (record.files, record.inodes) == (1, 3)
    assert re.search(r"/runs +0 B +0 ", daemon.command("status").stdout)


# -- As a service


def test_settings_are_reloaded_and_wrong_ones_refused(start: Callable[..., Daemon]) -> None:
    daemon = start(evict="off")
    daemon.start(WATCHDOG_USEC="600000")
    assert daemon.state("cycle")["evict"] == "off"
    daemon.configure(evict="on", scan_intervall_s=3)
    daemon.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
    wait_for(lambda: daemon.has_said("RELOADING=1\nMONOTONIC_USEC="))
    wait_for(lambda: daemon.state("config").get("successful") is False)
    assert "did you mean scan_interval_s?" in daemon.state("config")["error"]
    daemon.cycle()
    assert daemon.state("cycle")["evict"] == "off"
    daemon.configure_text("{")
    daemon.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
    wait_for(lambda: "not valid JSON" in daemon.state("config")["error"])
    daemon.configure(evict="plan")
    daemon.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
    wait_for(lambda: daemon.state("config")["successful"])
    wait_for(lambda: daemon.state("cycle")["evict"] == "plan")
    wait_for(lambda: daemon.has_said("READY=1") and daemon.messages.count("WATCHDOG=1") >= 3)
    reloads = [message for message in daemon.messages if message.startswith("RELOADING=1")]
    readies = [message for message in daemon.messages if message.startswith("READY=1")]
    assert len(reloads) == 3 and len(readies) == 4


def test_wrong_settings_keep_it_from_starting(start: Callable[..., Daemon]) -> None:
    daemon = start(evict="maybe")
    daemon.start(ready=False)
    assert daemon.process is not None and daemon.process.wait(10) == 1
    assert daemon.logged().count("\n") == 1 and "must be on, plan or off" in daemon.logged()


def test_it_stops_within_a_second_while_it_measures(disk: Path, start: Callable[..., Daemon]) -> None:
    for number in range(200):
        folder = disk / str(number)
        folder.mkdir()
        for name in range(200):
            (folder / str(name)).touch()
    daemon = start()
    declare_location(daemon, "runs", disk)
    daemon.start()
    assert not daemon.location("runs")["complete"]
    assert daemon.stop() < 1


def test_it_holds_nothing_on_a_disk_between_its_work(disk: Path, start: Callable[..., Daemon], tmp_path: Path) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.cache")
    daemon = start(lab, scan_interval_s=300)
    daemon.start()
    wait_for(daemon.copies)
    held = [os.readlink(f"/proc/{daemon.process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{daemon.process.pid}/fd")]  # type: ignore[union-attr]
    assert [path for path in held if path.startswith(str(disk))] == []
    assert os.readlink(f"/proc/{daemon.process.pid}/cwd") == "/"  # type: ignore[union-attr]


def test_a_lease_shows_and_its_use_is_recorded(disk: Path, start: Callable[..., Daemon], tmp_path: Path) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.cache")
    daemon = start(lab)
    daemon.start()
    taken = daemon.command("lease", "take", "ml/cache", "--run", "run-1", "--read-only")
    assert taken.returncode == 0, taken.stdout
    path = Path(taken.stdout.strip())
    assert (path / "data" / "file").exists()
    used_by = {"used_by": {"ml/cache": ["run-1"]}, "volumes_used_by": {}}
    wait_for(lambda: daemon.state("leases") == {"reserved": 1, "leased": 0, **used_by})
    wait_for(lambda: daemon.copies()["ml.cache"]["in_use"] and daemon.copies()["ml.cache"]["last_used"])
    holder = subprocess.Popen(["sleep", "600"])
    try:
        assert daemon.command("lease", "confirm", "run-1", "1", "--pid", str(holder.pid)).returncode == 0
        wait_for(lambda: daemon.state("leases") == {"reserved": 0, "leased": 1, **used_by})
        assert "ml/cache" in daemon.command("status").stdout
        assert "run-1/1" in daemon.command("lease", "list").stdout
    finally:
        holder.kill()
        holder.wait()
    # As stowage-leases.service does, once the daemon has seen that the lease's process has ended.
    wait_for(lambda: os.path.exists(os.path.join(daemon.places.run, "ended")))
    assert "released, its process has ended" in daemon.command("lease", "expire").stdout
    assert not path.exists()
    assert wait_for(lambda: daemon.copies()["ml.cache"]["in_use"] is False)
    record = copies.load_record(daemon.places, "ml.cache")
    assert record is not None and time.time() - (record.last_used or 0) < 60
    assert pins.all_pins(daemon.places) == []
    refused = daemon.command("lease", "take", "ml/other", "--run", "run-1")
    assert refused.returncode == 1 and refused.stdout.count("\n") == 1


def test_commands(disk: Path, start: Callable[..., Daemon], tmp_path: Path) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.cache")
    daemon = start(lab)
    stopped = daemon.command("status")
    assert stopped.returncode == 1 and "has not finished a cycle" in stopped.stdout
    daemon.start()
    wait_for(daemon.copies)
    shown = daemon.command("status")
    assert shown.returncode == 0 and "ml/cache" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert set(json.loads(daemon.command("status", "--json").stdout)) >= {"cycle", "filesystems", "copies"}
    assert daemon.command("check-config").stdout.endswith("all is well\n")
    measured = json.loads(daemon.command("measure", "--json", str(lab.at("ml.cache"))).stdout)
    assert measured[0]["bytes"] == 65536 and measured[0]["complete"]
    missing = daemon.command("measure", "/no/such/place")
    assert (missing.returncode, missing.stdout) == (1, "stowage: /no/such/place: No such file or directory\n")
    daemon.configure(evict="maybe", cycle_s=0)
    wrong = daemon.command("check-config")
    assert wrong.returncode == 3 and "evict: " in wrong.stdout and "cycle_s: " in wrong.stdout


# -- Whatever comes


def test_making_room_does_not_wait_for_what_else_is_measured(
    disk: Path, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    lab = Lab(disk, tmp_path)
    for number in range(3):
        lab.copy(f"ml.cache-{number}", last_used=float(number + 1))
    for folder in range(20):
        (disk / "runs" / str(folder)).mkdir(parents=True)
        for name in range(1000):
            os.close(os.open(disk / "runs" / str(folder) / str(name), os.O_CREAT | os.O_WRONLY))
    lab.location = lab.limited(1)
    daemon = start(lab, evict="on", scan_interval_s=1)
    declare_location(daemon, "runs", disk / "runs")
    daemon.start()
    wait_for(lambda: lab.names() == [], 20)


WRONG: dict[str, Callable[[Lab, Daemon], None]] = {
    "max_bytes": lambda lab, daemon: put(
        daemon.places.data_location_json, {**lab.location.to_json(), "max_bytes": "4Ti"}
    ),
    "filesystem": lambda lab, daemon: put(
        daemon.places.data_location_json, {**lab.location.to_json(), "filesystem": 1}
    ),
    "no sources": lambda lab, daemon: put_drive(daemon, spec={}),
    "sources": lambda lab, daemon: put_drive(daemon, spec={"sources": "all", "evictable": True}),
    "name": lambda lab, daemon: put_drive(daemon, metadata={"name": 5}),
    "locations": lambda lab, daemon: put(daemon.places.layout_json, {"locations": {"runs": {"path": ["/"]}}}),
    "former": lambda lab, daemon: put(daemon.places.former_locations_json, {"locations": [[]]}),
    "not JSON": lambda lab, daemon: Path(daemon.places.layout_json).write_text("{") and None,
}


def put(path: str, value: dict[str, Any]) -> None:
    records.write(path, value)


def put_drive(daemon: Daemon, **wrong: Any) -> None:
    drive = {"metadata": {"name": "x"}, "spec": None, "identity": "1", "state": "present", "force": False, **wrong}
    put(os.path.join(daemon.places.drives_dir, "more.json"), {"workspace": "more", "host": "gpu-01", "drives": [drive]})


def test_a_declaration_that_is_wrong_leaves_the_earlier_in_force(start: Callable[..., Daemon], tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    lab = Lab(tmp_path / "disk", tmp_path)
    lab.copy("ml.cache")
    daemon = start(lab)
    declare_location(daemon, "runs", tmp_path)
    layout = Path(daemon.places.layout_json).read_text()
    daemon.start()
    for name, make in WRONG.items():
        make(lab, daemon)
        wait_for(lambda: daemon.state("config").get("successful") is False)
        error = daemon.state("config")["error"]
        assert "\n" not in error and daemon.places.etc in error or daemon.places.var in error, name
        # Of a measurement that cannot have it either there may be a line too.
        wrong = f"the earlier one stays in force: {error}"
        said = daemon.logged().count(wrong)
        for _again in range(2):
            daemon.cycle()
        assert daemon.location("runs")["available"] and daemon.location("data-location")["available"], name
        assert said and daemon.logged().count(wrong) == said, "it is not said in each cycle"
        answer = daemon.command("check-config")
        assert answer.returncode == 3 and error in answer.stdout, name
        records.write(daemon.places.data_location_json, lab.location.to_json())
        Path(daemon.places.layout_json).write_text(layout)
        for path in (os.path.join(daemon.places.drives_dir, "more.json"), daemon.places.former_locations_json):
            records.remove(path)
        wait_for(lambda: daemon.state("config")["successful"])
    assert daemon.process is not None and daemon.process.poll() is None


def test_a_lease_of_the_wrong_types_ends_nothing(disk: Path, start: Callable[..., Daemon], tmp_path: Path) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.cache")
    pin = pinning.take(lab.places, lab.location, "ml.cache", run="run-1", read_only=True, seconds=600)
    daemon = start(lab)
    daemon.start()
    wait_for(lambda: daemon.copies().get("ml.cache", {}).get("in_use"))
    records.write(pin.record_path(lab.places), {**pin.to_json(), "deadline": "soon"}, 0o600)
    wait_for(lambda: daemon.copies()["ml.cache"]["in_use"] is None)  # nobody knows which copies it holds
    assert "deadline: 'soon' is no float" in daemon.logged()
    records.write(pin.record_path(lab.places), pin.to_json(), 0o600)
    wait_for(lambda: daemon.copies()["ml.cache"]["in_use"])
    assert pinning.release(lab.places, "run-1", pin.number)


def test_a_damaged_record_of_a_copy_is_made_anew(disk: Path, start: Callable[..., Daemon], tmp_path: Path) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.a", last_used=1.0)
    lab.copy("ml.b", last_used=2.0)
    path = Path(copies.record_path(lab.places, "ml.a"))
    path.write_text("")
    daemon = start(lab)
    daemon.start()
    wait_for(lambda: set(daemon.copies()) == {"ml.a", "ml.b"})
    record = wait_for(lambda: path.read_text() and copies.load_record(lab.places, "ml.a"))
    assert record.complete and time.time() - record.last_used < 60
    assert daemon.logged().count(f"{path}: not ") == 1


def test_a_copy_whose_record_is_damaged_does_not_go_first(
    disk: Path, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.old", MIB, last_used=1000.0)
    lab.copy("ml.recent", MIB, last_used=time.time())
    daemon = start(lab, evict="on", scan_interval_s=3000)
    daemon.start()
    wait_for(lambda: len(daemon.copies()) == 2)
    Path(copies.record_path(lab.places, "ml.recent")).write_text("")
    # Another limit alone needs no new measurement.
    records.write(daemon.places.data_location_json, lab.limited(3 * MIB // 2).to_json())
    wait_for(lambda: lab.names() == ["ml.recent"])


def test_no_copy_goes_any_more_once_evict_is_off(disk: Path, start: Callable[..., Daemon], tmp_path: Path) -> None:
    lab = Lab(disk, tmp_path)
    for number in range(100):
        folder = lab.copy(f"ml.cache-{number:03}", last_used=float(number + 1))
        for name in range(400):
            os.close(os.open(folder / str(name), os.O_CREAT | os.O_WRONLY))
    lab.location = lab.limited(1)
    daemon = start(lab, evict="on", scan_interval_s=3000)
    daemon.start()
    wait_for(lambda: len(lab.names()) < 100, 60)
    daemon.configure(evict="off", scan_interval_s=3000)
    daemon.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
    wait_for(lambda: "evict is off now" in daemon.logged())
    left = len(lab.names())
    assert left > 0
    wait_for(lambda: lab.trash() == [], 30)  # what was condemned is emptied, what was not is put back
    daemon.cycle()
    assert len(lab.names()) >= left and daemon.state("evictions")["mode"] == "off"


@contextlib.contextmanager
def frozen(path: Path) -> Iterator[None]:
    """Let whoever writes to a filesystem wait."""
    subprocess.run(["fsfreeze", "-f", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(path)], check=True)


def test_a_dead_disk_of_records_stops_no_cycle(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    var = small_disk("ext4", 64 * MIB).path
    (tmp_path / "var/lib").mkdir(parents=True)
    (tmp_path / "var/lib/stowage").symlink_to(var)
    lab = Lab(small_disk("ext4", 64 * MIB).path, tmp_path)
    lab.copy("ml.cache", MIB, last_used=1.0)
    lab.location = lab.limited(1)
    daemon = start(lab)
    with frozen(var):
        daemon.start()
        for _round in range(3):
            daemon.cycle()
        assert daemon.stop() < 1
    daemon.start()
    wait_for(lambda: [event["reason"] for event in events.read(daemon.places)] == ["EvictionPlanned"], 20)


def test_a_dead_disk_of_an_earlier_data_location_does_not_hold_up_the_present_one(
    small_disk: Callable[..., Any], disk: Path, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    earlier = Lab(small_disk("ext4", 64 * MIB).path, tmp_path / "other")
    earlier.copy("ml.gone", MIB)
    lab = Lab(disk, tmp_path)
    lab.copy("ml.cache", last_used=1.0)
    lab.drives["ml"]["gone"] = {**earlier.drives["ml"]["gone"], "state": "absent"}
    lab.declare("ml.cache")
    daemon = start(lab, evict="on")
    former = {key: value for key, value in earlier.location.to_json().items() if key != "max_bytes"}
    records.write(daemon.places.former_locations_json, {"locations": [{**former, "left": 1.0}]})
    with frozen(earlier.path.parent):
        daemon.start()
        wait_for(daemon.copies)
        records.write(daemon.places.data_location_json, lab.limited(1).to_json())
        wait_for(lambda: lab.names() == [])
        assert earlier.names() == ["ml.gone"]
    wait_for(lambda: earlier.names() == [])


def test_there_is_one_daemon(program: Path, start: Callable[..., Daemon], tmp_path: Path) -> None:
    first = start()
    first.start()
    second = first.command("daemon")
    assert second.returncode == 1
    assert second.stdout == "stowaged: another one is at work on this host: systemctl status stowaged\n"
    assert first.process is not None and first.process.poll() is None
    first.stop(signal.SIGKILL)
    first.start()


def test_what_it_writes_can_be_read_whatever_the_umask_is(
    disk: Path, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.gone", state="absent")
    shutil.rmtree(daemon_var := Path(lab.places.var))
    before = os.umask(0o077)
    try:
        daemon = start(lab)
        daemon.start()
    finally:
        os.umask(before)
    wait_for(lambda: events.read(daemon.places) and daemon.state("evictions")["removed"])
    daemon.stop()  # nothing is half written then
    modes = {path: path.stat().st_mode & 0o777 for path in (daemon_var, *daemon_var.rglob("*"))}
    assert set(modes.values()) == {0o755, 0o644}, modes
    state = Path(daemon.places.state_dir)
    assert {path.stat().st_mode & 0o777 for path in (state, *state.iterdir())} == {0o755, 0o644}


def test_what_a_killed_daemon_left_half_written_is_swept(start: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = start()
    left = Path(daemon.places.locations_dir) / ".runs.json.abcd1234"
    left.parent.mkdir(parents=True)
    left.touch()
    os.utime(left, (1.0, 1.0))
    daemon.start()
    wait_for(lambda: not left.exists())


def test_another_user_is_told_to_be_root(disk: Path, start: Callable[..., Daemon], tmp_path: Path) -> None:
    lab = Lab(disk, tmp_path)
    lab.copy("ml.cache")
    daemon = start(lab)
    daemon.start()
    wait_for(daemon.copies)
    program = tmp_path / "stowage"
    shutil.copy(daemon.program, program)

    def answer(*arguments: str) -> tuple[int, str]:
        for path in (tmp_path, *tmp_path.parents):
            path.chmod(path.stat().st_mode | 0o055)  # each time: every start of pytest takes it back
        done = subprocess.run(
            ["/usr/bin/python3", "-I", str(program), "--prefix", str(tmp_path), *arguments],
            user=65534,
            group=65534,
            extra_groups=[],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    for arguments in (
        ["evict", "--dry-run"],
        ["evict", "--go-on"],
        ["lease", "list"],
        ["lease", "expire"],
        ["lease", "take", "ml/cache", "--run", "run-1"],
        ["lease", "confirm", "run-1", "1", "--pid", "1"],
        ["lease", "release", "run-1", "1"],
    ):
        assert answer(*arguments) == (
            1,
            f"stowage: {' '.join(arguments[: 1 + (arguments[0] == 'lease')])}: run it as root\n",
        )
    assert answer("status")[0] == 0 and answer("events")[0] == 0
    assert answer("check-config")[1].endswith("all is well\n")
