# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planning an eviction over 100,000 copies."""

from __future__ import annotations

import random
import statistics
import time

from run import Bench

from stowage_core.eviction.plan import Settings, State, plan
from stowage_core.sizes import Space

COPIES = 100_000
TARGET_S = 0.3


def run(bench: Bench) -> None:
    chance = random.Random(1)
    used = [chance.choice((None, chance.random() * 1e6)) for _number in range(COPIES)]
    states = [
        State(f"w{number % 50}.d{number}", str(number), 0.0, 1 << 30, 1000, last_used)
        for number, last_used in enumerate(used)
    ]
    chance.shuffle(states)
    space = Space(COPIES << 30, COPIES << 26, COPIES << 26, COPIES * 2000, COPIES * 1000)
    times = []
    for _round in range(5):
        began = time.perf_counter()
        result = plan(space, states, 0, Settings(), 2e6, 0.0)
        times.append(time.perf_counter() - began)
    if not result.victims or result.blocked:
        raise SystemExit("the plan is wrong")
    bench.figure(f"eviction plan over {COPIES:,} copies", statistics.median(times), "s", TARGET_S)
