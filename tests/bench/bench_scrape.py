# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A scrape of the exporter with 5,000 copies, and the memory that the exporter takes then."""

from __future__ import annotations

import http.client
import os
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from run import Bench

PORT = 19823
COPIES = 5000


def run(bench: Bench) -> None:
    from stowage_core import records
    from stowage_core.places import Places
    from stowaged import sections

    places = Places.under(str(bench.scratch))
    number = 500 if bench.quick else COPIES

    def write(used: float) -> None:
        copies = [
            {
                "workspace": f"team-{index % 20}",
                "drive": f"model-{index}",
                "bytes": 10**9 + index,
                "files": index,
                "in_use": index % 7 == 0,
                "last_used": used,
            }
            for index in range(number)
        ]
        records.write(sections.path_of(places, "copies"), {"copies": copies})
        records.write(sections.path_of(places, "cycle"), {"time": time.time(), "cycle_s": 10})

    write(1.0)
    exporter = subprocess.Popen(
        [sys.executable, "-c", "import sys; from stowaged.entry import main; sys.exit(main())"]
        + ["--prefix", str(bench.scratch), "exporter", "--listen", f"127.0.0.1:{PORT}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        connection = _connected()
        seconds, size = [], 0
        for _round in range(20 if bench.quick else 100):
            start = time.perf_counter()
            connection.request("GET", "/metrics")
            size = len(connection.getresponse().read())
            seconds.append(time.perf_counter() - start)
        what = f"scrape, {number} copies, {size / 1e6:.1f} MB"
        bench.figure(what, statistics.median(seconds) * 1000, "ms", 15)

        bench.figure(f"exporter's memory, {number} copies", _memory(exporter.pid), "MB", 100)
    finally:
        exporter.terminate()
        exporter.wait()


def _connected() -> http.client.HTTPConnection:
    for _round in range(200):
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=10)
        try:
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            return connection
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise RuntimeError("the exporter did not start")


def _memory(pid: int) -> float:
    with open(f"/proc/{pid}/status", encoding="ascii") as stream:
        for line in stream:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {pid} has no VmRSS")
