# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evictions by the real daemon: killed in the middle of one, and stopped by one that did not help."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from copies_lab import HOST, Lab, process
from daemon_lab import Daemon, wait_for
from test_daemon_service import MIB, fill, free

from stowage_core import events, records
from stowage_core.runs import pinning
from stowaged import metrics


def files(path: Path) -> int:
    return sum(len(names) for _path, _directories, names in os.walk(path))


def at_the_moment(daemon: Daemon, moment: Callable[[], bool]) -> None:
    """Kill the daemon, and its child that removes copies, as soon as something is true."""
    deadline = time.monotonic() + 30
    while not moment():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.001)
    daemon.stop(signal.SIGKILL)


def test_killed_at_any_moment_of_an_eviction(
    small_disk: Callable[..., Any],
    start: Callable[..., Daemon],
    tmp_path: Path,
) -> None:
    lab = Lab(small_disk("ext4", 256 * MIB).path, tmp_path)
    lab.copy("ml.kept", evictable=False)
    held = lab.copy("ml.held", last_used=None)
    for number in range(4):
        path = lab.copy(f"ml.cache-{number}", last_used=float(number + 1))
        for name in range(2000):
            (path / "data" / str(name)).touch()
    number, whole = os.stat(held).st_ino, (held / "data" / "file").read_bytes()
    lab.location = lab.limited(1)
    daemon = start(lab, evict="on")
    trash = lab.path / ".stowage-trash"
    moments: dict[str, Callable[[], bool]] = {
        "pending": lambda: len(os.listdir(trash / "pending")) == 4,
        "condemned": lambda: bool(os.listdir(trash / "condemned")),
        "half-emptied": lambda: 0 < files(trash / "condemned") < 7000,
    }
    with process("os.chdir(copy + '/data'); ready()", str(held)) as holder:
        for name, moment in moments.items():
            daemon.start(ready=False)
            at_the_moment(daemon, moment)
            hit = os.listdir(trash / ("pending" if name == "pending" else "condemned"))
            assert hit, f"the kill came too late for what is {name}"
            assert os.stat(f"/proc/{holder.pid}/cwd/..").st_ino == os.stat(held).st_ino == number
            assert (held / "data" / "file").read_bytes() == whole
        daemon.start()
        wait_for(lambda: lab.names() == ["ml.held", "ml.kept"] and lab.trash() == [], 30)
        assert os.stat(held).st_ino == number and (held / "data" / "file").read_bytes() == whole
    told = sorted(event["object"] for event in events.read(daemon.places) if event["reason"] == "Evicted")
    assert told == [f"drive/ml/cache-{number}" for number in range(4)]


def keep_full(disk: Path, below: float, over: threading.Event) -> None:
    """Write as much as becomes free above what there is, as soon as it does, until it is *over*."""
    with open(disk / "neighbor", "wb") as stream:
        while not over.wait(0.001):
            if free(disk) > below + 0.01:
                os.posix_fallocate(stream.fileno(), stream.seek(0, os.SEEK_END), 8 * MIB)


@pytest.fixture
def stopped(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> Iterator[tuple[Lab, Daemon]]:
    """A daemon that has stopped because the first copies did not help: a neighbor was as fast."""
    disk = small_disk("ext4", 256 * MIB).path
    lab = Lab(disk, tmp_path)
    fill(lab, disk, 0.09)
    over = threading.Event()
    neighbor = threading.Thread(target=keep_full, args=(disk, free(disk), over))
    neighbor.start()
    try:
        daemon = start(lab, evict="on")
        daemon.start()
        wait_for(lambda: str(daemon.state("evictions").get("why", "")).startswith("stopped: "), 30)
        yield lab, daemon
    finally:
        over.set()
        neighbor.join()


def test_a_stop_lasts_over_a_restart_until_the_operator_lifts_it(stopped: tuple[Lab, Daemon]) -> None:
    lab, daemon = stopped
    left = lab.names()

    def blocked() -> list[str]:
        return [event["message"] for event in events.read(daemon.places) if event["reason"] == "EvictionBlocked"]

    (told,) = wait_for(blocked)
    assert "stopped: the copies removed were to give back " in told and "'stowage evict --go-on' is run" in told
    daemon.stop()
    answer = daemon.command("evict", "--dry-run")
    assert answer.returncode == 3 and "stopped: " in answer.stdout
    daemon.start()
    wait_for(lambda: daemon.state("evictions").get("blocked"), 30)
    for _round in range(2):
        daemon.cycle()
    assert lab.names() == left and daemon.state("evictions")["why"].startswith("stopped: ")
    daemon.stop()
    assert daemon.command("evict", "--go-on").stdout == "eviction goes on\n"
    assert daemon.command("evict", "--go-on").stdout == "eviction had not stopped\n"
    daemon.start()
    wait_for(lambda: len(lab.names()) < len(left), 30)


# -- What cannot be done is a state that an operator can see


def reasons(daemon: Daemon) -> list[str]:
    return [event["reason"] for event in events.read(daemon.places, 0)]


def blocked_series(section: dict[str, Any]) -> list[str]:
    lines = metrics.render("evictions", section).decode().splitlines()
    return [line for line in lines if line.startswith("stowage_eviction_blocked{") and line.endswith(" 1.0")]


HINDRANCES: dict[str, tuple[Callable[[Lab], Any], Callable[[Lab], Any], str]] = {
    "a damaged lease": (
        lambda lab: (Path(lab.places.pins_dir, "r").mkdir(parents=True), Path(lab.places.pins_dir, "r/1.json").touch()),
        lambda lab: (Path(lab.places.pins_dir, "r/1.json").unlink(), Path(lab.places.pins_dir, "r").rmdir()),
        "pin r/1: its record cannot be used",
    ),
    "a part that others can enter": (
        lambda lab: (lab.path / "drives").chmod(0o755),
        lambda lab: (lab.path / "drives").chmod(0o700),
        "drives: must be root's alone (0700)",
    ),
}


@pytest.mark.parametrize("mode", ["on", "plan"])
@pytest.mark.parametrize("name", HINDRANCES)
def test_an_eviction_that_cannot_run_is_blocked_until_it_can(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path, name: str, mode: str
) -> None:
    hinder, help_again, why = HINDRANCES[name]
    lab = Lab(small_disk("ext4", 64 * MIB).path, tmp_path)
    lab.location = lab.limited(1)
    lab.copy("ml.cache")
    hinder(lab)
    daemon = start(lab, evict=mode)
    daemon.start()
    section = wait_for(lambda: daemon.state("evictions").get("reason") and daemon.state("evictions"), 30)
    assert (section["blocked"], section["reason"]) == (True, "failed") and why in section["why"]
    assert blocked_series(section) == ['stowage_eviction_blocked{reason="failed"} 1.0']
    for _round in range(3):
        daemon.cycle()
    assert lab.names() == ["ml.cache"] and reasons(daemon) == ["EvictionBlocked"]
    assert why in events.read(daemon.places)[0]["message"]
    status = daemon.command("status")
    shown = " ".join(status.stdout.split())
    assert status.returncode == 3 and "! Copies cannot be removed: " in shown and why in shown
    help_again(lab)
    lab.declare("ml.cache")  # something is declared anew: it is tried at once
    records.write(os.path.join(lab.places.drives_dir, "other.json"), {"workspace": "other", "host": HOST, "drives": []})
    if mode == "on":
        wait_for(lambda: lab.names() == [], 30)
    else:
        wait_for(lambda: daemon.state("evictions")["plan"], 30)
    section = wait_for(lambda: not daemon.state("evictions")["reason"] and daemon.state("evictions"), 30)
    assert blocked_series(section) == []
    wait_for(lambda: "EvictionUnblocked" in reasons(daemon), 30)
    assert daemon.command("status").returncode == 0


def test_a_tombstone_that_cannot_go_is_told_and_hides_no_plan(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    lab = Lab(small_disk("ext4", 64 * MIB).path, tmp_path)
    lab.location = lab.limited(1)
    lab.copy("ml.cache", MIB)
    lab.copy("ml.dead", MIB)
    records.write(lab.places.data_location_json, lab.location.to_json())
    pin = pinning.take(lab.places, lab.location, "ml.dead", run="r", read_only=False, seconds=600)
    try:
        lab.declare("ml.dead", state="absent")
        daemon = start(lab, evict="plan")
        daemon.start()
        wait_for(lambda: [one["copy"] for one in daemon.state("evictions").get("plan", [])] == ["ml.cache"], 30)
        section = wait_for(lambda: daemon.state("evictions")["waiting"] and daemon.state("evictions"), 30)
        assert section["waiting"] == {"ml.dead": "held by pin r/1"}
        for _round in range(6):
            daemon.cycle()
        section = daemon.state("evictions")
        assert [one["copy"] for one in section["plan"]] == ["ml.cache"] and section["waiting"]
        said = daemon.logged()
        assert said.count("copy ml.dead: stays: held by pin r/1") == 1
        told = [event for event in events.read(daemon.places) if event["reason"] == "DeletionWaits"]
        assert [(one["object"], one["message"]) for one in told] == [
            ("drive/ml/dead", "Copy stays on gpu-01 although its drive was deleted: held by pin r/1")
        ]
        assert "held by pin r/1" in daemon.command("status").stdout
    finally:
        pinning.release(lab.places, pin.run, pin.number)
    daemon.stop()
    daemon.start()
    wait_for(lambda: lab.names() == ["ml.cache"], 30)
    wait_for(lambda: daemon.state("evictions")["waiting"] == {}, 30)


# -- What lies aside


def test_what_lies_aside_in_an_earlier_data_location_is_looked_after(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    small = small_disk("ext4", 64 * MIB)
    lab = Lab(small.path, tmp_path)
    for name, part in (("ml.gone", "condemned"), ("ml.aside", "pending")):
        lab.copy(name)
        os.rename(lab.at(name), lab.path / ".stowage-trash" / part / f"{name}.full-1-2")
    (tmp_path / "present").mkdir()
    present = Lab(tmp_path / "present", tmp_path)
    daemon = start(present, evict="plan")
    former = replace(lab.location, left=time.time()).to_json()
    records.write(daemon.places.former_locations_json, {"locations": [former]})
    daemon.start()
    wait_for(lambda: lab.trash() == [] and lab.names() == ["ml.aside"], 30)


@pytest.mark.parametrize("mode", ["plan", "off"])
def test_a_copy_that_was_put_aside_stays_while_a_new_one_has_its_name(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path, mode: str
) -> None:
    lab = Lab(small_disk("ext4", 64 * MIB).path, tmp_path)
    lab.copy("ml.a", MIB, last_used=time.time())
    os.rename(lab.at("ml.a"), lab.path / ".stowage-trash/pending/ml.a.full-1-3")
    lab.at("ml.a").mkdir()
    daemon = start(lab, evict=mode)
    daemon.start()
    (one,) = wait_for(lambda: daemon.state("evictions").get("aside"), 30)
    assert (one["copy"], one["location"]) == ("ml.a", str(lab.path))
    assert one["why"] == "kept aside, as a new copy has its name: caches are not evicted here now"
    for _round in range(3):
        daemon.cycle()
    assert lab.trash() == ["pending/ml.a.full-1-3"] and lab.names() == ["ml.a"]
    assert reasons(daemon) == ["CopyAside"] and "kept aside" in daemon.command("status").stdout
    lab.at("ml.a").rmdir()
    lab.declare("ml.b")  # something is declared anew: it is tried at once
    wait_for(lambda: lab.trash() == [] and (lab.at("ml.a") / "data" / "file").exists(), 30)
    wait_for(lambda: daemon.state("evictions")["aside"] == [], 30)


# -- What a copy gives back


def test_the_plan_of_the_daemon_leaves_out_what_would_go_in_vain(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    """What it has measured tells which copies have files with several names; the records of copies do not yet."""
    disk = small_disk("ext4", 256 * MIB).path
    lab = Lab(disk, tmp_path)
    names = fill(lab, disk, 0.10)
    os.link(lab.at(names[0]) / "data" / "file", disk / "elsewhere")
    daemon = start(lab, evict="plan")
    daemon.start()
    plan = wait_for(lambda: daemon.state("evictions").get("plan"), 30)
    assert [one["copy"] for one in plan] == names[1 : 1 + len(plan)]
    shown = daemon.command("evict", "--dry-run")
    assert shown.returncode == 0 and "would free next to nothing" in " ".join(shown.stdout.split())


# -- A full disk does not wait


def measuring(daemon: Daemon, path: Path) -> list[int]:
    """Return the processes of the daemon that have something of a copy open."""
    assert daemon.process is not None
    found = []
    for child in Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            if any(os.readlink(fd).startswith(str(path)) for fd in Path(f"/proc/{child}/fd").iterdir()):
                found.append(int(child))
    return found


def test_the_copy_of_a_deleted_drive_does_not_wait_for_a_plan(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    disk = small_disk("ext4", 256 * MIB).path
    lab = Lab(disk, tmp_path)
    lab.copy("ml.dead")
    names = fill(lab, disk, 0.10)
    file = lab.at(names[0]) / "data" / "file"
    os.link(file, file.with_name("linked"))
    for name in range(20_000):
        file.with_name(str(name)).touch()
    daemon = start(lab, evict="plan")
    daemon.start()
    (measured,) = wait_for(lambda: measuring(daemon, file.parents[1]))
    (planning,) = wait_for(lambda: [one for one in measuring(daemon, file.parents[1]) if one != measured], 30)
    os.kill(planning, signal.SIGSTOP)  # it takes for ever
    lab.declare("ml.dead", state="absent")
    wait_for(lambda: "ml.dead" not in lab.names(), 30)
    assert "a plan was stopped, because a drive was deleted" in daemon.logged()
    plan = wait_for(lambda: daemon.state("evictions")["plan"], 30)
    assert plan[0]["copy"] == names[0] and not os.path.exists(f"/proc/{planning}")


def test_a_full_disk_does_not_wait_for_a_measurement(
    small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path
) -> None:
    disk = small_disk("ext4", 256 * MIB).path
    lab = Lab(disk, tmp_path)
    names = fill(lab, disk, 0.5)
    slow = lab.copy("ml.slow", last_used=time.time())
    for name in range(4000):
        os.close(os.open(slow / "data" / str(name), os.O_CREAT | os.O_WRONLY))
    daemon = start(lab, evict="on", scan_interval_s=1)
    daemon.start()
    wait_for(lambda: len(daemon.copies()) == len(names) + 1)
    (child,) = wait_for(lambda: measuring(daemon, slow))
    os.kill(child, signal.SIGSTOP)  # it takes for ever
    status = os.statvfs(disk)
    usable = (status.f_blocks - status.f_bfree + status.f_bavail) * status.f_frsize
    with open(disk / "ballast", "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, int((free(disk) - 0.08) * usable))
    wait_for(lambda: not lab.at(names[0]).exists(), 30)
    assert "ended, because room has to be made" in daemon.logged()
    wait_for(lambda: daemon.state("evictions")["plan"] == [], 30)
    assert lab.at("ml.slow").exists() and daemon.state("evictions")["reason"] == ""
