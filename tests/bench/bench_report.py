# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report on a generated fleet of 1,000 hosts with 100 drives: what it takes to make, and how large its page is.

On a usual day, and on one on which the disks of all hosts are missing.
"""

from __future__ import annotations

import statistics
import sys
import time

from run import BUILD, HERE, Bench

sys.path[:0] = [str(HERE.parent), str(BUILD / "collections")]

from fleet_lab import NOW, Fleet  # noqa: E402

from ansible_collections.stowage.host.plugins.plugin_utils.report import fleet  # noqa: E402
from ansible_collections.stowage.host.plugins.plugin_utils.report.hosts import Asked  # noqa: E402
from ansible_collections.stowage.host.plugins.plugin_utils.report.page import page  # noqa: E402

HOSTS = 1_000
DRIVES = 100


def run(bench: Bench) -> None:
    number = HOSTS // 10 if bench.quick else HOSTS
    for bad_day in (False, True):
        known = Fleet(number, DRIVES, bad_day=bad_day).hosts
        asked = [Asked(name, facts, "" if facts else "no route to host", bool(facts)) for name, facts in known.items()]
        seconds: list[float] = []
        for _round in range(bench.rounds):
            began = time.perf_counter()
            document = fleet.dumps(fleet.fleet(asked, NOW))
            made = page(fleet.read(document))
            seconds.append(time.perf_counter() - began)
        day = " on a bad day" if bad_day else ""
        bench.figure(f"a report on {number:,} hosts with {DRIVES} drives{day}", statistics.median(seconds), "s", 3)
        bench.figure(f"its page{day}", len(made.encode()) / 1e6, "MB", 5)
        print(f"  its JSON: {len(document) / 1e6:.1f} MB")


if __name__ == "__main__":
    sys.exit("run it with make bench BENCH=report")
