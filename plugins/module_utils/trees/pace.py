# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeping background work from taking a busy neighbor's time."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

# Working and sleeping alternate within about 20 ms at a share of 0.25, so that a neighbor notices no stutter.
_SLICE = 0.005
# Time that passed because the disk or the scheduler let us wait is not work to make up for.
_LONGEST_SLEEP = 0.1


def _unnoticed() -> float:
    """Return a quarter of one core, and less where that is more than a twenty-fifth of all there are."""
    return min(0.25, len(os.sched_getaffinity(0)) / 25)


@dataclass(frozen=True)
class Pace:
    """How much of one core's time a process may take for work in the background, from above 0 to 1.

    The default costs neighbors that keep every core busy less than 5 %, even where the scheduler lets us run as often
    as them: low priorities do not count between control groups, nor between sessions.
    """

    share: float = field(default_factory=_unnoticed)


class Pacer:
    """Sleeps so that the time between two sleeps is the share of the whole that a pace allows."""

    def __init__(self, pace: Pace | None) -> None:
        self._sleep_for_work = 0.0 if pace is None else 1 / pace.share - 1
        self._since = time.monotonic()

    def step(self) -> None:
        """Sleep if it is time to; call this after each bit of work of at most some milliseconds."""
        if self._sleep_for_work:
            worked = time.monotonic() - self._since
            if worked >= _SLICE:
                time.sleep(min(worked * self._sleep_for_work, _LONGEST_SLEEP))
                self._since = time.monotonic()


class Rate:
    """Sleeps so that no more than some number of things are done in a second."""

    def __init__(self, per_second: float | None) -> None:
        self._seconds_each = 0.0 if per_second is None else 1 / per_second
        self._due = time.monotonic()

    def did(self, number: int) -> None:
        """Sleep if it is time to; call this after that many were done."""
        if self._seconds_each:
            now = time.monotonic()
            # Time in which nothing was done is not caught up on: that would be a burst.
            self._due = max(self._due, now - _LONGEST_SLEEP) + number * self._seconds_each
            if self._due > now:
                time.sleep(self._due - now)
