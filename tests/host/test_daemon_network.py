# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network mounts that answer, and others that hang, as the daemon sees them.

What counts for a mount here is its source, so a filesystem of this host is taken for one of a server's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from daemon_lab import Daemon, hung_mount, wait_for

from stowage_core.network_mounts.records import MountRecord, write_mounts

SERVER = "192.0.2.1"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    path = tmp_path / "mounts"
    path.mkdir()
    return path


def mounted(points: Path, drive: str, state: str = "Bound") -> MountRecord:
    point = points / f"ml.{drive}-0"
    point.mkdir(exist_ok=True)
    fixed: dict[str, Any] = {"transport": "Auto", "proto": "tcp", "read_only": True, "reason": "", "time": 1000.0}
    return MountRecord("ml", drive, 0, "gpu-01", state, **fixed, path=str(point), server_address=SERVER, export="/srv")


@contextlib.contextmanager
def answering_mount(record: MountRecord) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", record.device, record.path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", record.path], check=True)


def shown(daemon: Daemon, drive: str) -> dict[str, Any]:
    found = [one for one in daemon.state("network_mounts").get("mounts", []) if one["drive"] == drive]
    return found[0] if found else {}


def answers(daemon: Daemon, drive: str) -> tuple[Any, Any]:
    one = shown(daemon, drive)
    return one.get("answers"), one.get("available")


def children_of(daemon: Daemon) -> int:
    assert daemon.process is not None
    pid = daemon.process.pid
    return len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def held_by(daemon: Daemon) -> tuple[int, int]:
    """Return how many descriptors and threads the daemon has."""
    assert daemon.process is not None
    home = Path(f"/proc/{daemon.process.pid}")
    return len(os.listdir(home / "fd")), len(os.listdir(home / "task"))


@contextlib.contextmanager
def exporter(daemon: Daemon) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(daemon.program), "--prefix", str(daemon.home), "exporter"]
    process = subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}"])
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: _page(f"{url}/metrics"), 20)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return str(answer.read().decode())
    except ConnectionRefusedError:
        return ""
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            return ""
        raise


def test_mounts_that_hang_hold_up_nothing(start: Callable[..., Daemon], points: Path) -> None:
    daemon = start()
    well, *dead = [mounted(points, name) for name in ("well", "dead-1", "dead-2", "dead-3")]
    waiting = mounted(points, "waiting", "Pending")
    write_mounts(daemon.places, [well, *dead, waiting])
    with contextlib.ExitStack() as stack:
        stack.enter_context(answering_mount(well))
        for one in dead:
            stack.enter_context(hung_mount(Path(one.path), one.device))
        began = time.monotonic()
        daemon.start()
        wait_for(lambda: answers(daemon, "well") == (True, True))
        # Nothing waits for them, and they are waited for together.
        assert time.monotonic() - began < 5
        url = stack.enter_context(exporter(daemon))
        wait_for(lambda: all(answers(daemon, one.drive) == (False, False) for one in dead), 15)
        assert time.monotonic() - began < 12
        assert answers(daemon, "waiting") == (None, None)
        dead_one = re.compile(r'stowage_network_mount_answers\{.*drive="dead-1".*\} 0\.0')
        wait_for(lambda: dead_one.search(_page(f"{url}/metrics")), 10)
        daemon.cycle()
        # With the children that wait for them, and none that is at work on something else for a moment.
        wait_for(lambda: children_of(daemon) <= len(dead))
        before = held_by(daemon)
        for _round in range(5):
            asked = time.monotonic()
            page = _page(f"{url}/metrics")
            assert time.monotonic() - asked < 1
            assert dead_one.search(page)
            daemon.cycle()
        wait_for(lambda: children_of(daemon) <= len(dead) and held_by(daemon) == before)
        assert daemon.logged().count("does not answer") == len(dead)
        assert answers(daemon, "well") == (True, True)
        status = json.loads(_page(f"{url}/status"))["network_mounts"]["mounts"]
        assert {one["drive"]: one["answers"] for one in status}["dead-3"] is False
        assert "left alone for 5 minutes" in " ".join(daemon.command("status").stdout.split())
        assert daemon.stop() < 1


def test_a_mount_that_comes_and_goes(start: Callable[..., Daemon], points: Path) -> None:
    daemon = start()
    one = mounted(points, "data")
    write_mounts(daemon.places, [one])
    daemon.start()
    wait_for(lambda: answers(daemon, "data") == (None, False))
    assert "nothing is mounted there" in shown(daemon, "data")["trouble"]
    with answering_mount(one):
        wait_for(lambda: answers(daemon, "data") == (True, True))
        assert "answers again" in daemon.logged()
        subprocess.run(["mount", "-t", "tmpfs", "another:/srv", one.path], check=True)
        try:
            wait_for(lambda: answers(daemon, "data") == (None, False))
            assert "another:/srv is mounted there" in shown(daemon, "data")["trouble"]
        finally:
            wait_for(lambda: subprocess.run(["umount", one.path], check=False).returncode == 0)
        wait_for(lambda: answers(daemon, "data") == (True, True))
        write_mounts(daemon.places, [mounted(points, "data", "Releasing")])
        wait_for(lambda: answers(daemon, "data") == (None, None))
    Path(daemon.places.var, "network_mounts.json").write_text("{")
    wait_for(lambda: "not valid JSON" in daemon.state("network_mounts")["error"])
    assert daemon.state("config")["successful"] and daemon.state("network_mounts")["mounts"] == []
    assert asdict(one)["path"] not in daemon.command("status").stdout
