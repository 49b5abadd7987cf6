# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What daemon and exporter take while nothing happens on a host with 50 copies: memory, and a share of a core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from run import Bench

PORT = 19824
COPIES = 50


def run(bench: Bench) -> None:
    # Two measurements, five minutes apart, and sixty looks at the host are in it; a quick run has one in a minute.
    seconds, scan = (60, 50) if bench.quick else (600, 300)
    with bench.disk("ext4", 256 << 20) as disk:
        _host(bench.scratch, disk.path, scan)
        python = [sys.executable, str(_application(bench.scratch)), "--prefix", str(bench.scratch)]
        daemon = subprocess.Popen([*python, "daemon"], stdout=subprocess.DEVNULL)
        exporter = subprocess.Popen([*python, "exporter", "--listen", f"127.0.0.1:{PORT}"])
        try:
            time.sleep(15)
            before = _used(daemon.pid) + _used(exporter.pid)
            began = time.monotonic()
            time.sleep(seconds)
            share = (_used(daemon.pid) + _used(exporter.pid) - before) / (time.monotonic() - began)
            bench.figure(f"stowaged and exporter idle, {COPIES} copies", share * 100, "% of a core", 0.3)
            bench.figure("stowaged's memory", _memory(daemon.pid), "MB", 30)
            (watcher,) = _staying(daemon.pid)
            bench.figure("memory of what watches their disk", _memory(watcher), "MB", 30)
            bench.figure("exporter's memory", _memory(exporter.pid), "MB", 40)
        finally:
            for process in (daemon, exporter):
                process.terminate()
                process.wait()


def _application(home: Path) -> Path:
    repository = Path(__file__).resolve().parents[2]
    program = home / "stowage"
    subprocess.run([sys.executable, str(repository / "daemon" / "build.py"), str(program)], check=True)
    return program


def _host(home: Path, disk: Path, scan: float) -> None:
    """Make a data location with copies of 20 files each below *disk*, declared below *home*."""
    from stowage_core import mounts, owner, records
    from stowage_core.copies import present as copies
    from stowage_core.data_location.locations import CONDEMNED, DRIVES, KIND, LOCKS, PENDING, DataLocation
    from stowage_core.places import Places

    places = Places.under(str(home))
    path = disk / "stowage"
    for name in ("", os.fsdecode(DRIVES), ".stowage", os.fsdecode(LOCKS), ".stowage-trash"):
        (path / name).mkdir()
    for part in (PENDING, CONDEMNED):
        (path / os.fsdecode(part)).mkdir()
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    identity = str(uuid.uuid4())
    owner.claim(fd, KIND, str(path), identity, "gpu-01")
    location = DataLocation(str(path), 0, "gpu-01", mounts.identify(fd, mounts.read()), identity)
    drives = []
    for number in range(COPIES):
        name = f"cache-{number}"
        drive = {"metadata": {"name": name}, "identity": str(uuid.uuid4()), "state": "present", "force": False}
        drive["spec"] = {"sources": [{"node_scope": "placed", "path": ""}], "evictable": True}
        drives.append(drive)
        with copies.locked(fd, f"ml.{name}"), copies.prepared(fd, location, f"ml.{name}", str(drive["identity"])):
            pass
        for file in range(20):
            (path / "drives" / f"ml.{name}" / str(file)).write_bytes(bytes(1000))
    os.close(fd)
    records.write(places.data_location_json, location.to_json())
    records.write(os.path.join(places.drives_dir, "ml.json"), {"workspace": "ml", "host": "gpu-01", "drives": drives})
    Path(places.daemon_json).write_text(json.dumps({"host": "gpu-01", "scan_interval_s": scan}))


def _used(pid: int) -> float:
    """Return the seconds of processor time of a process, of its children and of those that it has waited for."""
    with open(f"/proc/{pid}/stat", "rb") as stream:
        fields = stream.read().rpartition(b")")[2].split()
    used = sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return used + sum(map(_used, _staying(pid)))


def _staying(pid: int) -> list[int]:
    """Return the children of a process that do not just come and go: those that watch filesystems."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as stream:
        children = [int(child) for child in stream.read().split()]
    return [child for child in children if _watches(child)]


def _watches(pid: int) -> bool:
    try:
        return any("fanotify" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False  # it has ended


def _memory(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as stream:
        for line in stream:
            if line.startswith("Rss:"):
                return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {pid} has no Rss")
