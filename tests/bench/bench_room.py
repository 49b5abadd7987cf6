# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a burst of writes past the mark to room again: the daemon, with 10^5 files in copies on a disk of 1 GiB.

The burst fills the disk to its last hundredth, at another moment of the daemon's cycle of ten seconds in each round.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from run import Bench, Disk

COPIES = 100
FILES = 100_000
CYCLE_S = 10
BEFORE, BURST, ROOM = 0.11, 0.01, 0.15
"""Free fractions: before the burst, after it, and at which eviction ends."""
TARGET_S = 15
DECIDED_S = 7
"""Of that until copies begin to go: five seconds until the daemon looks again, and a look at the host."""


class Took(NamedTuple):
    """Seconds from the burst until copies begin to go, and until there is room."""

    decided: float
    room: float


def run(bench: Bench) -> None:
    sys.path.append(str(Path(__file__).resolve().parents[1] / "host"))
    from daemon_lab import application

    program = application(bench.scratch)
    rounds = [_round(bench, program, number * CYCLE_S / bench.rounds) for number in range(bench.rounds)]
    median = statistics.median(one.room for one in rounds)
    files = FILES // 4 if bench.quick else FILES
    bench.figure(f"burst to room again, {files:,} files in copies, median of {bench.rounds}", median, "s", TARGET_S)
    bench.figure("the longest", max(one.room for one in rounds), "s", TARGET_S)
    decided = statistics.median(one.decided for one in rounds)
    bench.figure("of that, until the first copy is put aside", decided, "s", DECIDED_S)
    removing = statistics.median(one.room - one.decided for one in rounds)
    bench.figure("and from then on", removing, "s", TARGET_S - DECIDED_S)


def _round(bench: Bench, program: Path, offset: float) -> Took:
    from copies_lab import Lab
    from daemon_lab import Daemon, wait_for

    from stowage_core import records

    home = Path(tempfile.mkdtemp(dir=bench.scratch))
    copies = COPIES // 4 if bench.quick else COPIES
    with bench.disk("ext4", 1 << 30, "-N", "200000") as disk:
        lab = Lab(disk.path, home)
        for number in range(copies):
            path = lab.copy(f"ml.cache-{number}", 4096, float(number + 1)) / "data"
            for file in range(FILES // COPIES - 1):
                (path / str(file)).write_bytes(bytes(4096))
        _fill(disk.path / "ballast", BEFORE)
        daemon = Daemon(program, home, evict="on", cycle_s=CYCLE_S, scan_interval_s=300)
        records.write(daemon.places.data_location_json, lab.location.to_json())
        try:
            daemon.start()
            wait_for(lambda: len(daemon.copies()) == copies)
            daemon.cycle()
            _wait_until(time.time() + offset)
            _fill(disk.path / "burst", 0.08 if bench.quick else BURST)
            began = time.monotonic()
            names = set(lab.names())
            _when(lambda: len(lab.names()) < len(names))
            decided = time.monotonic() - began
            _when(lambda: _free(disk.path) >= ROOM)
            took = Took(decided, time.monotonic() - began)
            _when(lambda: not lab.trash())  # what is left is deleted to its end
            return took
        finally:
            daemon.close()
            _when(lambda: _is_let_go(disk))


def _wait_until(when: float) -> None:
    time.sleep(max(0.0, when - time.time()))


def _when(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        if time.monotonic() > deadline:
            raise SystemExit("there is no room after two minutes")
        time.sleep(0.02)


def _is_let_go(disk: Disk) -> bool:
    """Return whether the last of the daemon's children has ended."""
    if subprocess.run(["umount", str(disk.path)], stderr=subprocess.DEVNULL, check=False).returncode:
        return False
    disk.mount()
    return True


def _free(disk: Path) -> float:
    status = os.statvfs(disk)
    return status.f_bavail / (status.f_blocks - status.f_bfree + status.f_bavail)


def _fill(path: Path, leave: float) -> None:
    """Write a file until only this fraction of its disk is free."""
    with open(path, "xb") as stream:
        while (free := _free(path.parent)) > leave:
            status = os.statvfs(path.parent)
            usable = (status.f_blocks - status.f_bfree + status.f_bavail) * status.f_frsize
            stream.write(bytes(max(4096, min(1 << 20, int((free - leave) * usable)))))
            stream.flush()
        os.fsync(stream.fileno())
