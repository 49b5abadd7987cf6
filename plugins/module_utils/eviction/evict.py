# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removing copies without ever removing one that is in use.

Each copy goes through the same steps, in rounds of several: its lock is taken without waiting; the whole host is looked
at; the copy is moved aside, out of everybody's reach; the host is looked at again, every file must grant a write lease
and the drive must still be one that may go. On any doubt it is moved back. Only then is it condemned, which is
recorded, its lock is let go, and it is emptied. Wherever this ends, at the next start what is aside goes back to its
place, and only what is condemned is emptied.

Whether anything may be removed at all is the caller's to decide.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from .. import events
from ..copies import fills, trash
from ..copies import present as copies
from ..copies.present import Copy, CopyRecord
from ..copies.trash import Parts, opened_parts
from ..data_location.locations import CONDEMNED, PENDING, DataLocation
from ..drives import recorded as drive_records
from ..drives.declared import split_copy_name
from ..errors import StowageError, printable
from ..locks import try_lock
from ..places import Places
from ..records import RecordError
from ..runs import pins
from ..sizes import Space, decimal
from ..syscalls import syncfs
from ..trees.pace import Pace, Pacer
from ..use import look as use
from ..use.child import answer_of, nothing
from ..use.look import InUse
from . import stop as eviction_stop
from .content import content_of
from .given_back import WORTH, Given, GivenBack, total
from .plan import ASKED_FOR, DELETED, FULL, LIMIT, UNFILLED, Plan, Settings, Victim, assess, plan
from .round import Beat, Locked, Report, Result, Step, Work

BATCH = 64
"""The most copies in one round: each is held open, and looked at together with the others."""
_NOTICEABLE = 1 << 20
PUT_ASIDE = "evicted: it was put aside before, and a new copy has its name"
"""Why a copy goes whose place is taken: the disk may be anything but full by now."""
_SETTLE_S = 1.0
_SETTLE_AT_MOST_S = 60.0
SYNC_DEADLINE_S = 600.0


def booted() -> float:
    """Return when this host was started."""
    with open("/proc/uptime", encoding="ascii") as stream:
        return time.time() - float(stream.read().split()[0])


def current_plan(
    places: Places,
    location: DataLocation,
    settings: Settings,
    *,
    figures: Mapping[str, CopyRecord] | None = None,
    pace: Pace | None = None,
    alive: Callable[[], None] = nothing,
) -> Plan:
    """Return what would go now.

    :param figures: what is known of copies beyond their records, by name
    :param pace: how much of one core's time looking at the files of copies may take; None is all of it
    :param alive: called about every second meanwhile
    :raises StowageError: when the data location is not there, or what protects a copy cannot be read
    """
    figures = figures or {}
    given: dict[str, tuple[int, int]] = {}
    counted: GivenBack | None = None
    pacer, beat = Pacer(pace), Beat(alive)

    def step() -> None:
        pacer.step()
        beat()

    with opened_parts(location) as parts:
        while True:
            made = _plan(places, location, settings, parts, figures, {}, (), given)
            victims = [one for one in made.victims if one.reason == FULL and one.name not in given]
            linked = [one for one in victims if _is_linked(places, one, figures, made)]
            if not linked:
                return replace(made, looked_at=len(given))
            if counted is None:
                counted = GivenBack(Given(made.wanted_bytes, made.wanted_inodes), alive=beat)
            for one in linked:
                given[one.name] = (one.allocated, one.inodes)
                with suppress(OSError), copies.opened(parts.drives, os.fsencode(one.name)) as fd:
                    for name in counted.add(content_of(one.name, fd, step, sharing=False)):
                        # One that goes for what another one gives back with it must not seem to be worth nothing.
                        given[name] = (max(1, counted.given[name].bytes), max(1, counted.given[name].inodes))
            given.update(dict.fromkeys(counted.held_back, (0, 0)))


def _is_linked(places: Places, victim: Victim, figures: Mapping[str, CopyRecord], made: Plan) -> bool:
    """Return whether so much of a copy was in files with several names that it matters wherever the others are."""
    record = figures.get(victim.name)
    if record is None:
        with suppress(StowageError):
            record = copies.load_record(places, victim.name)
    if record is None or record.identity != victim.identity or not record.linked:
        return False
    # How many inodes these files are is not known. Of bytes so few make a copy neither go in vain nor the plan wrong.
    return bool(made.wanted_inodes) or record.linked >= WORTH * victim.allocated


def _plan(
    places: Places,
    location: DataLocation,
    settings: Settings,
    parts: Parts,
    figures: Mapping[str, CopyRecord],
    kept: Mapping[str, str],
    under_way: Collection[str],
    given: Mapping[str, tuple[int, int]] | None = None,
) -> Plan:
    present = copies.present(parts.root, location)
    drives = drive_records.load_all(places)
    known, unknown = with_records(places, present, figures)
    unknown.update(kept)
    pinned = {pin.copy: pin.described for pin in pins.all_pins(places)}
    names = {copy.name for copy in present}
    filling = {
        drive.copy_name for drive in drives if drive.copy_name in names and fills.is_kept(places, parts.root, drive)
    }
    coming = fills.under_way(places, location)
    for copy in present:
        if copy.name in coming:  # it grows while the last measurement of it stays as it is
            known[copy.name] = CopyRecord("", "", copy.identity, "", allocated=coming[copy.name].written_bytes)
    states = assess(present, known, drives, pinned, filling, unknown)
    space = Space.of(parts.root)
    reserved = sum(record.reserved_bytes for record in coming.values())
    made = plan(space, states, location.max_bytes, settings, time.time(), booted(), under_way, reserved, given)
    stop = eviction_stop.in_force(places, location, space) if made.triggers else eviction_stop.Stop()
    if stop.why:
        asked_for = tuple(victim for victim in made.victims if victim.reason in ASKED_FOR)
        made = replace(made, victims=asked_for, blocked=stop.why)
    return replace(made, tries=stop.tries)


def with_records(
    places: Places, present: Sequence[Copy], figures: Mapping[str, CopyRecord]
) -> tuple[dict[str, CopyRecord], dict[str, str]]:
    """Return what is known of copies, with the last use of each as it is recorded now, and why copies must stay.

    A copy whose last use cannot be read is not one that was never used. Only the record says for how long one is
    unused.

    :param figures: what is known beyond the records, which are written only when something material has changed
    """
    known, unknown = {}, {}
    for copy in present:
        newer = figures.get(copy.name)
        newer = newer if newer is not None and newer.identity == copy.identity else None
        try:
            record = copies.load_record(places, copy.name)
        except RecordError as error:
            unknown[copy.name] = str(error)
            record = None
        record = record if record is not None and record.identity == copy.identity else None
        uses = [one.last_used for one in (newer, record) if one is not None and one.last_used is not None]
        found = newer or record
        if found is not None:
            known[copy.name] = replace(copies.with_use(found, record), last_used=max(uses, default=None))
    return known, unknown


def look(
    places: Places, location: DataLocation, victims: Sequence[Victim], in_use: InUse = use.in_use
) -> dict[str, str]:
    """Return, by name, why those of *victims* that are in use now would stay; nothing is moved."""
    work = Work(places, location, in_use=in_use)
    for start in range(0, len(victims), BATCH):
        with opened_parts(location) as parts, ExitStack() as stack:
            work.unused(parts, work.lock(parts, victims[start : start + BATCH], stack))
    return work.result.kept


def evict(
    places: Places,
    location: DataLocation,
    settings: Settings,
    *,
    renew: Callable[[], tuple[DataLocation, Settings]] | None = None,
    figures: Mapping[str, CopyRecord] | None = None,
    rate: float | None = None,
    report: Report = nothing,
    step: Step = nothing,
    in_use: InUse = use.in_use,
) -> Result:
    """Remove what has to go, in rounds, until the mark is met or nothing more can go.

    What an earlier run left aside or condemned is put back or emptied first.

    :param renew: returns location and settings as they are declared now: asked before each round
    :param figures: what is known of copies beyond their records, by name
    :param rate: files deleted per second at most
    :param in_use: who looks whether copies are in use
    :raises StowageError: when the data location is not there, or what protects copies cannot be read
    """
    recover(places, location, caches=settings.caches, rate=rate, report=report, step=step, in_use=in_use)
    work = Work(places, location, rate, report, step, in_use)
    result = work.result
    under_way: frozenset[str] = frozenset()
    while True:
        if renew is not None:
            location, settings = renew()
        with opened_parts(location) as parts:
            now = _plan(places, location, settings, parts, figures or {}, result.kept, under_way)
            under_way |= now.triggers
            result.waiting = dict(now.waiting)
            if not now.victims:
                if now.blocked and work.guess():
                    continue  # nothing that is certain is left
                result.blocked = now.blocked
                return result
            names, reasons = [victim.name for victim in now.victims], [victim.reason for victim in now.victims]
            work.say("planned", "", victims=names, reasons=reasons, blocked=now.blocked)
            helped, stopped = _round(work, parts, now)
            # A fill that is under way takes what becomes free: that says nothing about what was removed.
            if stopped and not fills.under_way(places, location):
                result.blocked = eviction_stop.keep(places, location, stopped, Space.of(parts.root), now.tries + 1)
                return result
            if helped and now.tries:
                eviction_stop.lift(places)


def _round(work: Work, parts: Parts, now: Plan) -> tuple[bool, str]:
    """Take as many of the plan's copies as one round does through all steps.

    Return whether copies went to make room, and why none should follow, or "".
    """
    # How much those free that go anyway may not be known: nothing is evicted to make room before they are gone.
    asked_for = [victim for victim in now.victims if victim.reason in ASKED_FOR]
    together = {one.name: one for one in work.together if one.name not in now.kept}
    work.together = []
    chosen = asked_for or [*together.values(), *(one for one in now.victims if one.name not in together)]
    chosen = chosen[: max(1, len(together)) if now.tries else BATCH]
    _sync(work, parts)  # what is not written yet has no blocks to become free
    with ExitStack() as stack:
        held = work.unused(parts, work.lock(parts, chosen, stack))
        # The last measurement may be old. What goes is measured now, and no more goes than that.
        # The limit, which is about what copies take, has to be met in any case: so it is met before room is made.
        by_size = LIMIT in now.triggers and not asked_for
        for_room = Given(now.over_bytes) if by_size else Given(now.wanted_bytes, now.wanted_inodes)
        held = work.aside(parts, work.measured(held, None if asked_for else for_room, by_size))
        condemned = work.prove_and_condemn(parts, held, partial(_is_enough, parts, now))
    # Only now: what neighbors write while copies are judged has nothing to do with what becomes free.
    before = Space.of(parts.root)
    for one in condemned:
        victim = one.victim
        figures = {"reason": victim.reason, "allocated": victim.allocated, "why": victim.why}
        work.remove(parts, one.entry, victim.name, **figures)
        work.result.removed.append({"copy": victim.name, "reason": victim.reason, "allocated": victim.allocated})
    if not condemned:
        return False, ""
    return not asked_for, _not_freed(work, parts, before, condemned, now)


def _is_enough(parts: Parts, now: Plan, coming: Given) -> bool:
    """Return whether the disk has come to its mark without any more: others may have made room since the plan."""
    if LIMIT in now.triggers or any(victim.reason in ASKED_FOR for victim in now.victims):
        return False
    space = Space.of(parts.root)
    has_bytes = space.avail - now.avail + coming.bytes >= now.wanted_bytes
    has_inodes = space.files_free - now.files_free + coming.inodes >= now.wanted_inodes
    return (has_bytes or not now.wanted_bytes) and (has_inodes or not now.wanted_inodes)


def _sync(work: Work, parts: Parts) -> None:
    answer_of(lambda: syncfs(parts.root), SYNC_DEADLINE_S, work.alive)


def _not_freed(work: Work, parts: Parts, before: Space, removed: Sequence[Locked], now: Plan) -> str:
    """Say when removing does not help: something else holds the space, and more would be lost for nothing."""
    contents, beat = [one.content for one in removed if one.content is not None], Beat(work.alive)
    planned, planned_inodes = total(contents, beat, work.guessing)
    _sync(work, parts)
    after = _settled(parts.root, before.free + total(contents, beat).bytes)  # waits for what is only guessed, too
    freed, freed_inodes = after.free - before.free, after.files_free - before.files_free
    work.result.freed_bytes += freed
    work.say("freed", "", bytes=freed, planned=planned, inodes=freed_inodes, planned_inodes=planned_inodes)
    if now.wanted_bytes and max(0, freed) < planned / 2 - _NOTICEABLE:
        return (
            f"the copies removed were to give back {decimal(planned)} and only "
            f"{decimal(max(0, freed))} became free; something else fills the disk, or holds their blocks"
        )
    if now.wanted_inodes and not now.wanted_bytes and freed_inodes < planned_inodes // 2:
        return (
            f"the copies removed were to give back {planned_inodes} inodes and only "
            f"{max(0, freed_inodes)} became free; something else makes files"
        )
    return ""


def _settled(fd: int, expected: int) -> Space:
    """Return the space once what was removed is free: XFS and btrfs go on freeing after the last unlink.

    Only more than was ever free counts as progress: with neighbors that write and remove, free space goes up and
    down for as long as they do.
    """
    space = most = Space.of(fd)
    begun = grown = time.monotonic()
    while space.free < expected and (now := time.monotonic()) - grown < _SETTLE_S and now - begun < _SETTLE_AT_MOST_S:
        time.sleep(0.05)
        space = Space.of(fd)
        if space.free > most.free:
            most, grown = space, now
    return space


# -- Recovery


def recover(
    places: Places,
    location: DataLocation,
    *,
    caches: bool,
    rate: float | None = None,
    report: Report = nothing,
    step: Step = nothing,
    in_use: InUse = use.in_use,
) -> Result:
    """Put back what an earlier run left aside, and empty what it had condemned: that was judged, and nobody can use it.

    A copy whose name is taken now stays aside unless it goes in any case: its drive was deleted, or it is what a fill
    has left.

    :param caches: whether it goes otherwise too, once it is proven unused
    """
    work = Work(places, location, rate, report, step, in_use)
    with opened_parts(location) as parts:
        for entry in copies.names_in(parts.root, PENDING):
            with _taken(work, parts, location, entry) as one:
                if one is not None and trash.put_back(parts, one.entry, one.victim.name):
                    work.say("put back", one.victim.name)
                elif one is not None:
                    _judge(work, parts, one, places, caches)
        condemned = copies.names_in(parts.root, CONDEMNED)
        told = {event.get("entry") for event in events.read(places, 0)} if condemned else set()
        for entry in condemned:
            _finish(work, parts, location, entry, os.fsdecode(entry) in told)
    return work.result


@contextmanager
def _taken(work: Work, parts: Parts, location: DataLocation, entry: bytes) -> Iterator[Locked | None]:
    """Lock and open a copy that was left aside; None when it is another process's matter, or no copy of this host."""
    name, reason = trash.parsed(entry)
    with ExitStack() as stack:
        if name:
            lock = try_lock(parts.locks, os.fsencode(name))
            if lock is None:
                yield None  # another process is at work with it
                return
            stack.callback(os.close, lock)
        found = trash.own(parts.pending, entry, name, location, stack)
        if found is None:
            if entry in copies.names_in(parts.root, PENDING):
                _say_foreign(work, PENDING, entry, name)
            yield None
            return
        fd, mark = found
        yield Locked(Victim(name, mark.identity, reason, 0, 0), fd, stack, entry)


def _say_foreign(work: Work, part: bytes, entry: bytes, name: str) -> None:
    work.say("foreign", name, why=f"{os.fsdecode(part)}/{printable(entry)} is not a copy of this host")


def _judge(work: Work, parts: Parts, one: Locked, places: Places, caches: bool) -> None:
    """Remove a copy whose name is taken now, if it may go and is proven unused; otherwise it stays aside."""
    workspace, _name = split_copy_name(one.victim.name)
    try:
        drives = drive_records.load(places, workspace) or []
    except StowageError as error:
        work.stays_aside(one.victim.name, f"could not be determined: {error}")
        return
    drive = drive_records.by_copy(drives)(one.victim.name, one.victim.identity)
    if drive is not None and drive.absent:
        one.victim = one.victim._replace(reason=DELETED, forced=drive.force)
        caches = True
    elif one.victim.reason not in (DELETED, UNFILLED):
        one.victim = one.victim._replace(remark=PUT_ASIDE)
    if caches or one.victim.reason == UNFILLED:
        work.prove_and_condemn(parts, [one])
    else:
        work.stays_aside(one.victim.name, "caches are not evicted here now")


def _finish(work: Work, parts: Parts, location: DataLocation, entry: bytes, told: bool) -> None:
    name, reason = trash.parsed(entry)
    with ExitStack() as stack:
        if trash.own(parts.condemned, entry, name, location, stack) is None:
            if entry in copies.names_in(parts.root, CONDEMNED):
                _say_foreign(work, CONDEMNED, entry, name)
            return
    if not told:
        work.record(parts, entry, name, reason)
    work.remove(parts, entry, name, reason=reason)
