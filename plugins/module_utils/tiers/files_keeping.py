# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeping a tier of whole files between its marks, for as long as it is written to fast.

Each round looks at all files and removes what is to go. What was written between two looks says when the next one is
needed: at once while the tier fills faster than rounds empty it, and none at all when that is far away. Between rounds
nothing of the disk is held. Removing files takes long, so it belongs in a child.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from .. import mounts as mount_table
from ..errors import StowageError, printable
from ..locks import is_held, tier_lock_path
from ..places import Places
from ..sizes import Space
from . import files_round
from .claim import open_directory, why_lost
from .files_eviction import YOUNG, Limits, check_access_times, short
from .files_round import Removed

CHECK_S = 0.1
"""How often the claim is looked at while files go."""
ALIVE_S = 1.0
LONGEST_REST_S = 10.0
"""How long the next look waits at most while one is needed soon: the tier may be written to faster by then."""


class GivenWay(StowageError):
    """The tiers of this host are being declared or emptied: nothing was wrong, and it is tried again."""


@dataclass(frozen=True)
class Terms:
    """A tier as it is declared and claimed now."""

    name: str
    """``chat/0``."""
    path: str
    identity: str
    limits: Limits


@dataclass(frozen=True)
class Round:
    """What one round came to."""

    began: float
    found: tuple[int, int]
    """Bytes on the disk and files, as the look has found them."""
    left: tuple[int, int]
    """The same, less what was removed."""
    excess: bool = False
    """Whether the low mark was not reached although it had to be."""
    blocked: str = ""
    """Why, when that is not because there was more than one look remembers."""
    young: bool = False
    """Whether there are files that may go in a few seconds."""
    seconds: float = 0.0
    """How long the look took."""


def rest_s(limits: Limits, before: Round | None, last: Round, horizon_s: float) -> float | None:
    """Return how many seconds after the beginning of *last* the next look is due; None when far away, or in vain.

    :param before: the round before, by which it is seen how fast the tier is written to
    :param horizon_s: what is farther away than this is seen to by others
    """
    if last.blocked:
        # At most a fifth of the time goes by in looking at what cannot go yet.
        return max(ALIVE_S, 5 * last.seconds) if last.young else None
    if last.excess:
        return 0.0
    if before is None:
        return 1.0 if last.left != last.found else None
    elapsed = max(last.began - before.began, 1e-3)
    grown = (now - then for now, then in zip(last.found, before.left))
    soonest = min(
        (room * elapsed / more for room, more in zip(limits.room(*last.left), grown) if more > 0), default=float("inf")
    )
    return None if soonest > horizon_s else min(soonest / 2, LONGEST_REST_S)


def keep(
    places: Places, terms: Callable[[], Terms | None], removes: bool, horizon_s: float, report: Callable[..., object]
) -> None:
    """Do rounds for as long as they are needed; called in a process of its own.

    :param terms: tells what is declared now, before each round; None when nothing is any more
    :param removes: whether files go; otherwise there is one look, and what would go is reported
    :param report: is told each step, and that the work goes on; see ``_Keeper``
    :raises StowageError: when it cannot be done
    """
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # tells that somebody wants a file on which a lease is held
    before = None
    while True:
        now = terms()
        if now is None:
            return
        last = _Keeper(places, now, report).round(removes)
        rest = rest_s(now.limits, before, last, horizon_s) if removes else None
        if rest is None:
            return
        before = last
        _sleep_until(last.began + rest, report)


def _sleep_until(end: float, report: Callable[..., object]) -> None:
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, ALIVE_S))
        report()


class _Keeper:
    """One round.

    Its steps are ``looked`` (what was found, how long that took, and the filesystem before), ``planned`` (what would
    go), ``removed`` (what has gone since the last of these), ``ended`` (what is left, and why no more could go) and,
    without a name, signs of life.
    """

    def __init__(self, places: Places, terms: Terms, report: Callable[..., object]) -> None:
        self._places = places
        self._terms = terms
        self._report = report
        self._fd = -1
        self._check_next = self._alive_next = 0.0
        self._removed = Removed()
        self._told = (0, 0)

    def round(self, removes: bool) -> Round:
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
            return self._evict(removes)
        finally:
            os.close(self._fd)

    def _evict(self, removes: bool) -> Round:
        began = time.monotonic()
        space = Space.of(self._fd)
        plan, problems = files_round.look(self._fd, self._terms.limits, self._check)
        found, seconds = (plan.allocated, plan.files), time.monotonic() - began
        self._report(
            step="looked",
            allocated=plan.allocated,
            files=plan.files,
            seconds=seconds,
            space=asdict(space),
            problems=list(problems.texts()) if not problems.complete else [],
        )
        if not removes:
            sizes = [victim.allocated for victim in plan.victims()]
            self._report(step="planned", allocated=sum(sizes), files=len(sizes))
            return Round(began, found, found)
        excess = files_round.remove(self._fd, plan, self._removed, self._check)
        self._tell_removed()
        kept = self._removed.kept
        blocked = short(excess, self._removed.files, kept) if excess and not plan.is_cut else ""
        left = plan.allocated - self._removed.allocated, plan.files - self._removed.files
        self._report(step="ended", allocated=left[0], files=left[1], blocked=blocked)
        return Round(began, found, left, bool(excess), blocked, bool(kept[YOUNG]), seconds)

    def _tell_removed(self) -> None:
        allocated, files = self._removed.allocated - self._told[0], self._removed.files - self._told[1]
        self._told = self._removed.allocated, self._removed.files
        self._report(step="removed", allocated=allocated, files=files)

    def _check(self) -> None:
        """Raise when the work has to end; called between files."""
        now = time.monotonic()
        if now < self._check_next:
            return
        self._check_next = now + CHECK_S
        terms = self._terms
        if is_held(tier_lock_path(self._places)):
            raise GivenWay("the tiers of this host are being declared or emptied")
        why = why_lost(self._places, terms.path, terms.name, terms.identity, self._fd)
        if why:
            raise StowageError(f"{printable(terms.path)}: {why}")
        if now >= self._alive_next:
            self._alive_next = now + ALIVE_S
            self._tell_removed()
