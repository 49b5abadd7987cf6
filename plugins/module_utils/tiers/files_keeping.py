# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeping a tier of whole files between its marks, for as long as it is written to fast.

Each round looks at all files and removes what is to go. What was written between two looks says when the next one is
needed: at once while the tier fills as fast as rounds empty it. When that is far away, the growth of the filesystem
tells when the tier may be full: seeing that every second costs nothing. Between rounds nothing of the disk is held.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from .. import mounts as mount_table
from ..errors import StowageError, printable
from ..locks import is_tier_lock_held
from ..places import Places
from ..sizes import Space
from . import files_round
from .claim import open_directory, why_lost
from .files_eviction import YOUNG, Estimate, Limits, check_access_times, short
from .files_round import Removed

CHECK_S = 0.1
"""How often the claim is looked at while files go."""
ALIVE_S = 1.0
WATCH_S = 1.0
"""How often it is seen how full the filesystem is."""
HORIZON_S = 10.0
"""A tier that does not reach its high mark in this time is watched again, for which nothing need be remembered."""


class GivenWay(StowageError):
    """It was to end, or tiers of this backend are being declared or emptied: nothing was wrong."""


@dataclass(frozen=True)
class Terms:
    """A tier as it is declared and claimed now."""

    name: str
    """``chat/0``."""
    path: str
    identity: str
    limits: Limits


@dataclass(frozen=True)
class Growth:
    """What a tier held, in bytes on the disk and in files, and what it may hold at most by now."""

    before: tuple[int, int]
    feared: tuple[int, int]

    def was_others(self, found: tuple[int, int]) -> bool:
        """Return whether most of it was not the tier's."""
        each = zip(self.before, self.feared, found)
        return all(2 * (now - before) < feared - before for before, feared, now in each if feared > before)


@dataclass(frozen=True)
class Round:
    """What one round came to."""

    began: float
    found: tuple[int, int]
    """Bytes on the disk and files, as the look has found them."""
    left: tuple[int, int]
    """The same, less what was removed."""
    is_cut: bool = False
    """Whether more has to go than one look remembers."""
    blocked: str = ""
    """Why the tier is above its high mark still, when that is not the reason."""
    young: bool = False
    """Whether there are files that may go in a few seconds."""
    seconds: float = 0.0
    """How long the look took."""


def rest_s(limits: Limits, before: Round | None, last: Round) -> float | None:
    """Return how many seconds after the beginning of *last* the next look is due; None when far away, or in vain.

    :param before: the round before, by which it is seen how fast the tier is written to
    """
    if last.blocked:
        # At most a fifth of the time goes by in looking at what cannot go yet.
        return max(ALIVE_S, 5 * last.seconds) if last.young else None
    if last.is_cut:
        return 0.0
    if before is None:
        return 1.0 if last.left != last.found else None
    elapsed = max(last.began - before.began, 1e-3)
    grown = (now - then for now, then in zip(last.found, before.left))
    soonest = min(
        (room * elapsed / more for room, more in zip(limits.room(*last.left), grown) if more > 0), default=float("inf")
    )
    if soonest > HORIZON_S:
        return None
    # A look too early is in vain; when there is time it may be written to faster by then.
    return soonest if soonest < WATCH_S else max(WATCH_S, soonest / 2)


def keep(
    places: Places,
    terms: Callable[[], Terms | None],
    removes: bool,
    interval_s: float,
    before: Estimate | None,
    report: Callable[..., object],
) -> None:
    """Wait until the tier may be above its marks, then do rounds for as long as they are needed.

    It is called in a process of its own, which SIGTERM ends once the file is gone that it is at, and what went is
    reported.

    :param terms: tells what is declared now, before each round; None when nothing is any more
    :param removes: whether files go; otherwise there is one look, and what would go is reported
    :param interval_s: how often the tier is looked at whatever its filesystem tells
    :param before: what the tier held after the last look; None when it is not known
    :param report: is told each step, and that the work goes on; see ``_Keeper``
    :raises StowageError: when it cannot be done
    :raises GivenWay: when it was to end
    """
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # tells that somebody wants a file on which a lease is held
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))

    def go_on() -> None:
        if told:
            raise GivenWay("it was to end")

    now = terms()
    feared = None
    if now is not None and before is not None:
        feared = _watch(now, before, interval_s, report, go_on)
        now = terms()
    last: Round | None = None
    while now is not None:
        earlier, last = last, _Keeper(places, now, report, go_on).round(removes, feared)
        feared = None
        rest = rest_s(now.limits, earlier, last) if removes else None
        if rest is None:
            return
        _sleep_until(last.began + rest, report, go_on)
        now = terms()


def _watch(
    terms: Terms, estimate: Estimate, interval_s: float, report: Callable[..., object], go_on: Callable[[], None]
) -> Growth | None:
    """Wait until the tier may be above its marks; return how much it may have grown.

    None after *interval_s*: others may have freed as much as it has grown, then only a look shows that.
    """
    start = estimate.allocated, estimate.files
    end = time.monotonic() + interval_s
    number = 0
    while time.monotonic() < end:
        estimate.saw(Space.of(terms.path))
        if terms.limits.is_above(estimate.allocated, estimate.files):
            return Growth(start, (estimate.allocated, estimate.files))
        time.sleep(WATCH_S)
        go_on()
        number += 1
        if number % 16 == 0:
            report()
    return None


def _sleep_until(end: float, report: Callable[..., object], go_on: Callable[[], None]) -> None:
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, ALIVE_S))
        go_on()
        report()


class _Keeper:
    """One round.

    Its steps are ``looked`` (what was found, how long that took, the filesystem before,
    and whether it was others that filled that), ``planned`` (what would
    go), ``removed`` (what has gone since the last of these), ``ended`` (what is left, and why no more could go) and,
    without a name, signs of life.
    """

    def __init__(self, places: Places, terms: Terms, report: Callable[..., object], go_on: Callable[[], None]) -> None:
        self._places = places
        self._terms = terms
        self._report = report
        self._go_on = go_on
        self._fd = -1
        self._check_next = self._alive_next = 0.0
        self._removed = Removed()
        self._told = (0, 0)

    def round(self, removes: bool, growth: Growth | None) -> Round:
        path, limits = self._terms.path, self._terms.limits
        mounts = mount_table.read()
        try:
            self._fd = open_directory(path, mounts)
        except OSError as error:
            what = f"{error.strerror}; its disk is not mounted, or it was removed"
            raise StowageError(f"{printable(path)}: {what}") from error
        try:
            self._check()
            title = f"tier {self._terms.name}: path {printable(path)}: eviction"
            check_access_times(title, limits, mount_table.of_fd(self._fd, mounts))
            return self._evict(removes, growth)
        finally:
            os.close(self._fd)

    def _evict(self, removes: bool, growth: Growth | None) -> Round:
        began = time.monotonic()
        space = Space.of(self._fd)
        if removes:
            files_round.make_aside(self._fd)
        plan, problems = files_round.look(self._fd, self._terms.limits, self._check)
        found, seconds = (plan.allocated, plan.files), time.monotonic() - began
        self._report(
            step="looked",
            allocated=plan.allocated,
            files=plan.files,
            seconds=seconds,
            space=asdict(space),
            vain=growth is not None and not plan.is_above and growth.was_others(found),
            problems=list(problems.texts()) if not problems.complete else [],
        )
        if not removes:
            sizes = [victim.allocated for victim in plan.victims()]
            self._report(step="planned", allocated=sum(sizes), files=len(sizes))
            return Round(began, found, found)
        try:
            excess = files_round.remove(self._fd, self._terms.path, plan, self._removed, self._check)
        finally:
            self._tell_removed()  # what has gone has gone, however this ends
        kept = self._removed.kept
        left = plan.allocated - self._removed.allocated, plan.files - self._removed.files
        stuck = bool(excess) and not plan.is_cut and self._terms.limits.is_above(*left)
        blocked = short(excess, self._removed.files, kept) if stuck else ""
        self._report(step="ended", allocated=left[0], files=left[1], blocked=blocked)
        return Round(began, found, left, plan.is_cut and bool(excess), blocked, bool(kept[YOUNG]), seconds)

    def _tell_removed(self) -> None:
        allocated, files = self._removed.allocated - self._told[0], self._removed.files - self._told[1]
        self._told = self._removed.allocated, self._removed.files
        self._report(step="removed", allocated=allocated, files=files)

    def _check(self) -> None:
        """Raise when the work has to end; called between files."""
        self._go_on()
        now = time.monotonic()
        if now < self._check_next:
            return
        self._check_next = now + CHECK_S
        terms = self._terms
        if is_tier_lock_held(self._places, terms.name.rpartition("/")[0]):
            raise GivenWay("the tiers of this backend are being declared or emptied")
        why = why_lost(self._places, terms.path, terms.name, terms.identity, self._fd)
        if why:
            raise StowageError(f"{printable(terms.path)}: {why}")
        if now >= self._alive_next:
            self._alive_next = now + ALIVE_S
            self._tell_removed()
