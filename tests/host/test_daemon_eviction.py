# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evictions by the real daemon: killed in the middle of one, and stopped by one that did not help."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from copies_lab import Lab, process
from daemon_lab import Daemon, wait_for
from test_daemon_service import MIB, fill

from stowage_core import events


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


@pytest.fixture
def stopped(small_disk: Callable[..., Any], start: Callable[..., Daemon], tmp_path: Path) -> tuple[Lab, Daemon]:
    """A daemon that has stopped because the first copies freed nothing: other links hold their files."""
    disk = small_disk("ext4", 256 * MIB).path
    lab = Lab(disk, tmp_path)
    for number, name in enumerate(fill(lab, disk, 0.09)):
        os.link(lab.at(name) / "data" / "file", disk / f"link{number}")
    daemon = start(lab, evict="on")
    daemon.start()
    wait_for(lambda: str(daemon.state("evictions").get("why", "")).startswith("stopped: "), 30)
    return lab, daemon


def test_a_stop_lasts_over_a_restart_until_the_operator_lifts_it(stopped: tuple[Lab, Daemon]) -> None:
    lab, daemon = stopped
    left = lab.names()
    (told,) = [event["message"] for event in events.read(daemon.places) if event["reason"] == "EvictionBlocked"]
    assert "stopped: the copies removed took " in told and "'stowage evict --go-on' is run" in told
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
