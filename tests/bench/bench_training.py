# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a full listing in the background takes from training on the same disk.

The training is a process for each core that reads a random block of a shard past the page cache, and computes, over and
over: the share of its steps that is lost counts, and how long the slowest hundredth of its reads takes.
"""

from __future__ import annotations

import mmap
import os
import random
import statistics
import struct
import time
from pathlib import Path

from every_core import EveryCore, meanwhile
from run import Bench
from trees import make_tree

from stowage_core.trees.pace import Pace
from stowage_core.trees.watching import Watch

_SECONDS = 2.0
_BLOCK = 256 << 10
_STEPS = 1 << 20
"""More than a process makes."""
_COMPUTE = 20_000


def run(bench: Bench) -> None:
    with bench.disk("ext4", 4 << 30, "-N", "400000") as disk:
        tree, shard = disk.path / "tree", disk.path / "shard"
        make_tree(tree, 200 if bench.quick else 2000, 100)
        with open(shard, "wb") as stream:
            for _block in range(1 << 10):
                stream.write(os.urandom(_BLOCK))
        os.sync()
        losses: list[float] = []
        reads: dict[bool, list[float]] = {False: [], True: []}
        with Training(shard) as training:
            for number in range(8 * bench.rounds):
                # The order changes, so that a drift of the machine counts for neither.
                steps = {}
                for listing in (number % 2 == 0, number % 2 == 1):
                    _forget_inodes()
                    took = training.while_listing(tree) if listing else training.steps()
                    steps[listing] = len(took)
                    reads[listing] += took
                losses.append(1 - steps[True] / steps[False])
        bench.figure("steps lost to a full listing", 100 * statistics.median(losses), "%", 2)
        slow = {listing: statistics.quantiles(took, n=100)[-1] for listing, took in reads.items()}
        bench.ratio("p99 of reads, listing / not", [slow[True]], [slow[False]], 1.5)


def _forget_inodes() -> None:
    """Let directories and inodes be read from the disk again, in both cases alike."""
    Path("/proc/sys/vm/drop_caches").write_text("2")


class Training(EveryCore):
    """A process for each core, which notes in shared memory how many steps it has made, and how long each read took."""

    def __init__(self, shard: Path) -> None:
        super().__init__(own_session=True)
        self._shard = shard
        self._size = 8 * (1 + _STEPS)
        self._notes = mmap.mmap(-1, self._size * self.cores)

    def work(self, core: int) -> None:
        offset = self._size * core
        fd = os.open(self._shard, os.O_RDONLY | os.O_DIRECT)
        blocks = os.fstat(fd).st_size // _BLOCK
        chance = random.Random(offset)
        with mmap.mmap(-1, _BLOCK) as block:
            for step in range(1, _STEPS + 1):
                start = time.perf_counter()
                os.preadv(fd, [block], chance.randrange(blocks) * _BLOCK)
                struct.pack_into("=d", self._notes, offset + 8 * step, time.perf_counter() - start)
                for _number in range(_COMPUTE):
                    pass
                struct.pack_into("=Q", self._notes, offset, step)

    def _made(self) -> list[int]:
        return [struct.unpack_from("=Q", self._notes, self._size * core)[0] for core in range(self.cores)]

    def steps(self) -> list[float]:
        """Return for each step that is made in some seconds how long its read took."""
        before = self._made()
        time.sleep(_SECONDS)
        took: list[float] = []
        for core, (first, last) in enumerate(zip(before, self._made(), strict=True)):
            took += struct.unpack_from(f"={last - first}d", self._notes, self._size * core + 8 * (first + 1))
        return took

    def while_listing(self, tree: Path) -> list[float]:
        with meanwhile(lambda: list_on_and_on(tree)):
            return self.steps()


def list_on_and_on(tree: Path) -> None:
    """List all of a tree as the daemon does, whose unit has this scheduling policy."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    fd = os.open(tree, os.O_RDONLY)
    watch = Watch(fd, Pace())
    while watch.measure(fd).complete:
        watch.forget(fd)
