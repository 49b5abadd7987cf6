# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which copies have to go, in which order, and why: Astraeus's two triggers, without looking at anything itself.

A copy of a deleted drive goes whatever the disk looks like, and so does one that was not used for as long as its drive
says (``idle_ttl_seconds``), cache or not. Copies of cache drives go when the disk they are on is
nearly full, or when all copies together take more than the data location's limit: never used before used, then the
least recently used, then by name, and not one more than is needed.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..copies.present import Copy, CopyRecord, unused_s
from ..drives.recorded import Drive, by_copy
from ..sizes import Space, decimal
from .given_back import IN_VAIN

DELETED, FULL, LIMIT, UNFILLED, EXPIRED = "deleted", "full", "limit", "unfilled", "expired"
REASONS = {
    DELETED: "its drive was deleted",
    FULL: "evicted: the disk it is on is nearly full",
    LIMIT: "evicted: the machine's data location is over its limit",
    UNFILLED: "its fill did not finish",
    EXPIRED: "evicted: unused for longer than its drive allows",
}
NOT_A_CACHE = "its drive is not a cache"
ASKED_FOR = (DELETED, EXPIRED)
"""Reasons for which a copy goes although no room is wanted: somebody said so of its drive."""
_UNMEASURED = CopyRecord("", "", "", "")
_DELETED, _EXPIRED, _NEVER_USED, _USED = range(4)
"""In which order copies go."""
_REASON_OF = {_DELETED: DELETED, _EXPIRED: EXPIRED}


@dataclass(frozen=True)
class Settings:
    """When eviction begins and ends, and what is too fresh for it."""

    start_free: float = 0.10
    """Eviction starts below this fraction of free space, or of free inodes."""
    stop_free: float = 0.15
    minimum_age_s: float = 600.0
    boot_grace_s: float = 600.0
    caches: bool = True
    """Whether copies go to make room, or when nobody used them for so long; otherwise only those of deleted drives."""


class State(NamedTuple):
    """What the plan has to know of one copy; a tuple, because there may be 100,000."""

    name: str
    identity: str
    created: float
    allocated: int | None
    """Bytes; None before it was measured."""
    inodes: int | None
    last_used: float | None
    keep: str = ""
    """Why it must stay; empty for a candidate."""
    deleted: bool = False
    """Whether its drive was deleted."""
    forced: bool = False
    """Whether its drive was deleted for good: no lease and no age keeps it, only what the kernel shows."""
    ttl_s: int = 0
    """How long it may be unused; 0 is for ever."""
    unused_s: float = 0.0
    """For how long it was watched while nobody used it."""


class Victim(NamedTuple):
    """A copy that is to go."""

    name: str
    identity: str
    reason: str
    """``deleted``, ``full``, ``limit`` or ``expired``; ``unfilled`` when what a fill has left is cleared."""
    allocated: int
    inodes: int
    forced: bool = False
    unused_s: float = 0.0
    """For how long nobody used it, of one that has expired."""
    remark: str = ""
    """What its event says instead of the reason."""

    @property
    def why(self) -> str:
        """Why it goes, as its event says."""
        if self.remark:
            return self.remark
        if self.reason == EXPIRED and self.unused_s:
            return f"evicted: unused for {duration(self.unused_s)}"
        return REASONS[self.reason]


@dataclass(frozen=True)
class Plan:
    """What is to go now. ``wanted`` are the bytes and inodes that must become free by eviction."""

    triggers: frozenset[str] = frozenset()
    wanted_bytes: int = 0
    wanted_inodes: int = 0
    over_bytes: int = 0
    """How much more copies take than the data location's limit allows: what of that becomes free does not matter."""
    victims: tuple[Victim, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    """Why copies must stay, by name; one that is neither a victim nor here may go and need not."""
    blocked: str = ""
    """Why the mark cannot be reached with these victims; empty when it can."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """The part of *kept* that are copies of deleted drives."""
    avail: int = 0
    """How many bytes, and with *files_free* how many inodes, were free when it was made."""
    files_free: int = 0
    tries: int = 0
    """How many tries in a row have not helped: while there are any, one copy is removed at a time."""
    looked_at: int = 0
    """Of how many copies the files were looked at for it."""


def duration(seconds: float) -> str:
    """Return how long something lasted in words: ``14 d``, ``36 h``, ``90 min``, ``20 s``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def has_expired(state: State, settings: Settings) -> bool:
    """Return whether a copy was seen unused for as long as its drive says, and for no less than what is too fresh.

    Only time that was watched counts: what the clock or a lost record seem to say removes nothing.
    """
    return settings.caches and 0 < state.ttl_s <= state.unused_s and state.unused_s >= settings.minimum_age_s


def kept_by_declaration(drive: Drive | None, reason: str = "") -> str:
    """Return why a copy of *drive*, None for one that is in no list, must stay; empty for a cache or a deleted one.

    :param reason: the reason for which it was to go
    """
    if drive is None:
        return "no list of drives has its drive"
    if reason == EXPIRED:
        return "" if drive.idle_ttl_s else "its drive does not expire any more"
    if not drive.absent and not (drive.evictable and drive.placed):
        return NOT_A_CACHE
    return ""


def assess(
    copies: Iterable[Copy],
    known: Mapping[str, CopyRecord],
    drives: Iterable[Drive],
    pinned: Mapping[str, str],
    filling: Collection[str] = (),
    unknown: Mapping[str, str] | None = None,
) -> list[State]:
    """Return the state of each copy.

    :param known: records of copies by name
    :param drives: all that are declared, tombstones included
    :param pinned: by copy name, which pin holds it
    :param filling: names of copies that wait for the run that fills them, or are filled by it now
    :param unknown: by copy name, what could not be read of it: it stays
    """
    drive_of = by_copy(drives)
    unknown = unknown or {}
    states = []
    for copy in copies:
        name, identity, created = copy
        drive = drive_of(name, identity)
        record = known.get(name)
        if record is None or record.identity != identity:
            record = _UNMEASURED
        deleted = drive is not None and drive.absent
        forced = drive is not None and deleted and drive.force
        ttl = drive.idle_ttl_s if drive is not None else 0
        if name in unknown:
            keep = unknown[name]
        elif not ttl and kept_by_declaration(drive):
            keep = kept_by_declaration(drive)
        elif name in pinned and not forced:
            keep = f"held by {pinned[name]}"
        elif name in filling and not forced:
            keep = "being filled"
        else:
            keep = kept_by_declaration(drive)
        used = record.last_used
        state = State(name, identity, created, record.allocated, record.inodes, used, keep, deleted, forced)
        states.append(state._replace(ttl_s=ttl, unused_s=unused_s(record, copy)) if ttl else state)
    return states


def plan(
    space: Space,
    states: Iterable[State],
    max_bytes: int,
    settings: Settings,
    now: float,
    booted: float,
    under_way: Collection[str] = (),
    coming: int = 0,
    given: Mapping[str, tuple[int, int]] | None = None,
) -> Plan:
    """Return what is to go.

    :param max_bytes: the most that all copies may take; 0 is no limit
    :param booted: when the host was started
    :param under_way: the triggers of an eviction that has begun and goes on until its mark is met
    :param coming: bytes that the fills under way are still going to write: they count as if they were there
    :param given: bytes and inodes that copies give back, by name, where that is known to be other than what they take:
        both 0 when they would go in vain. The limit is about what they take
    """
    states = list(states)
    given = given or {}
    full_bytes, full_inodes = _wanted_for_space(space, settings, FULL in under_way, coming)
    over = sum(state.allocated or 0 for state in states) + coming - max_bytes if max_bytes and settings.caches else 0
    bytes_left, inodes_left, limit_left = full_bytes, full_inodes, over
    triggers = {FULL} if full_bytes or full_inodes else set()
    triggers.update({LIMIT} if over > 0 else ())

    kept: dict[str, str] = {}
    waiting: dict[str, str] = {}
    candidates: list[tuple[int, float, str, State]] = []
    in_grace = now - booted < settings.boot_grace_s
    newest = now - settings.minimum_age_s
    # One that seems to be made later still was made while the clock was ahead: that says nothing of its age.
    latest = now + settings.minimum_age_s
    for state in states:
        name, _identity, created, allocated, _inodes, last_used, keep, deleted, forced, ttl_s, _unused_s = state
        expired = ttl_s > 0 and has_expired(state, settings)
        if expired and keep == NOT_A_CACHE:
            keep = ""
        if not keep:
            if in_grace:
                keep = "the host was started only now"
            elif newest < created <= latest and not forced:
                keep = "it was made only now"
            elif allocated is None and not deleted and not expired:
                keep = "not measured yet"
        if keep:
            kept[name] = keep
            if deleted:
                waiting[name] = keep
        elif deleted or expired:
            candidates.append((_DELETED if deleted else _EXPIRED, last_used or 0.0, name, state))
        elif last_used is None:
            candidates.append((_NEVER_USED, 0.0, name, state))
        else:
            candidates.append((_USED, min(last_used, now), name, state))
    heapq.heapify(candidates)  # few of many go: no need to sort them all

    victims: list[Victim] = []
    while candidates:
        rank, _last_used, name, state = candidates[0]
        asked_for = rank in (_DELETED, _EXPIRED)
        if not asked_for and bytes_left <= 0 and inodes_left <= 0 and limit_left <= 0:
            break
        heapq.heappop(candidates)
        takes = (state.allocated or 0, state.inodes or 0)
        size, number = given.get(name, takes)
        for_space = (bytes_left > 0 and size > 0) or (inodes_left > 0 and number > 0)
        if not asked_for and not for_space and not (limit_left > 0 and takes[0] > 0):
            why = IN_VAIN if name in given else "would free nothing"
            kept[name] = "not measured yet" if state.inodes is None else why
            continue
        reason = _REASON_OF[rank] if asked_for else FULL if for_space else LIMIT
        unused = state.unused_s if reason == EXPIRED else 0.0
        victims.append(Victim(name, state.identity, reason, *takes, state.forced, unused))
        bytes_left, inodes_left, limit_left = bytes_left - size, inodes_left - number, limit_left - takes[0]

    short_bytes, short_inodes = max(0, bytes_left, limit_left), max(0, inodes_left)
    blocked = _blocked(short_bytes, short_inodes, bool(victims), kept) if short_bytes or short_inodes else ""
    wanted = (max(full_bytes, over, 0), full_inodes, max(over, 0))
    free = (space.avail, space.files_free)
    return Plan(frozenset(triggers), *wanted, tuple(victims), kept, blocked, waiting, *free)


def free_fraction(space: Space, coming: int) -> float:
    """Return the free fraction of a disk as it will be when what is coming has been written; it may be negative."""
    return space.free_fraction - (coming / space.usable if space.usable > 0 else 0.0)


def _wanted_for_space(space: Space, settings: Settings, under_way: bool, coming: int) -> tuple[int, int]:
    """Return the bytes and inodes that must become free, both 0 while neither is below its mark."""
    mark = settings.stop_free if under_way else settings.start_free
    free = free_fraction(space, coming)
    if not settings.caches or free >= mark and space.files_free_fraction >= mark:
        return 0, 0
    size = _short(space.avail - coming, space.usable, settings.stop_free) if free < mark else 0
    inodes = _short(space.files_free, space.files, settings.stop_free) if space.files_free_fraction < mark else 0
    return size, inodes


def _short(free: int, total: int, fraction: float) -> int:
    """Return how much more must be free so that the fraction is reached: what is removed is part of the total."""
    missing = max(0, int(total * fraction) - free)
    while missing and (free + missing - 1) / total >= fraction:
        missing -= 1
    while (free + missing) / total < fraction:
        missing += 1
    return missing


def _blocked(short_bytes: int, short_inodes: int, some: bool, kept: Mapping[str, str]) -> str:
    parts = [decimal(short_bytes)] if short_bytes else []
    parts += [f"{short_inodes} inodes"] if short_inodes else []
    reasons = Counter("leased" if reason.startswith("held by ") else reason for reason in kept.values())
    why = ", ".join(f"{count}: {reason}" for reason, count in reasons.most_common(4)) or "there are no copies"
    what = "too little can go" if some else "nothing can go"
    return f"{what}: {' and '.join(parts)} more must become free; copies that stay: {why}"
