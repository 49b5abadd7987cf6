# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a measurement in the background takes from neighbors that keep every core busy."""

from __future__ import annotations

import mmap
import os
import statistics
import struct
import time
from pathlib import Path

from every_core import EveryCore, meanwhile
from run import Bench
from trees import make_tree

from stowage_core.trees.measure import Scan
from stowage_core.trees.pace import Pace

# Short, so that what else the machine does falls on both alike.
_SECONDS = 0.7


def run(bench: Bench) -> None:
    tree = bench.scratch / "tree"
    make_tree(tree, 200 if bench.quick else 1000, 100)
    for what, own_session in (("same session", False), ("sessions of their own", True)):
        losses: list[float] = []
        with Neighbors(own_session) as neighbors:
            for number in range(8 * bench.rounds):
                # The order changes, so that a drift of the machine counts for neither.
                rates = {}
                for measuring in (number % 2 == 0, number % 2 == 1):
                    rates[measuring] = neighbors.rate_while_measuring(tree) if measuring else neighbors.rate()
                losses.append(1 - rates[True] / rates[False])
        bench.figure(f"neighbors' loss, {what}", 100 * statistics.median(losses), "%", 5)


class Neighbors(EveryCore):
    """A busy process for each core, which counts its rounds in shared memory."""

    def __init__(self, own_session: bool) -> None:
        super().__init__(own_session)
        self._counts = mmap.mmap(-1, 8 * self.cores)

    def work(self, core: int) -> None:
        rounds = 0
        while True:
            for _number in range(1000):
                pass
            rounds += 1
            struct.pack_into("=Q", self._counts, 8 * core, rounds)

    def _rounds(self) -> int:
        return sum(struct.unpack(f"={self.cores}Q", self._counts))

    def rate(self) -> float:
        before, start = self._rounds(), time.perf_counter()
        time.sleep(_SECONDS)
        return (self._rounds() - before) / (time.perf_counter() - start)

    def rate_while_measuring(self, tree: Path) -> float:
        with meanwhile(lambda: measure_on_and_on(tree)):
            return self.rate()


def measure_on_and_on(tree: Path) -> None:
    """Measure as the daemon does, whose unit has this scheduling policy."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    fd = os.open(tree, os.O_RDONLY)
    while Scan(pace=Pace()).measure(fd).complete:
        pass
