# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removing copies without ever removing one that is in use.

Each copy goes through the same steps, in rounds of several: its lock is taken without waiting; the whole host is looked
at; the copy is moved aside, out of everybody's reach; the host is looked at again and every file must grant a write
lease. On any doubt it is moved back. Only then is it condemned, which is recorded, and emptied. Wherever this ends, at
the next start what is aside goes back to its place, and only what is condemned is emptied.

Whether anything may be removed at all is the caller's to decide.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from . import copies, data_locations, drive_records, events, pins, use, write_leases
from . import mounts as mount_table
from .copies import CopyRecord
from .data_locations import CONDEMNED, DRIVES, LOCKS, PENDING, DataLocation
from .drives import split_copy_name
from .emptying import remove
from .errors import Refusal, StowageError, printable
from .eviction_plan import DELETED, REASONS, Plan, Settings, Victim, assess, plan
from .locks import try_lock
from .places import Places
from .sizes import Space, decimal
from .syscalls import NO_DIRECTORY, open_beneath, rename_noreplace, syncfs
from .use_child import answer_of

BATCH = 64
"""The most copies in one round: each is held open, and looked at together with the others."""
_NOTICEABLE = 1 << 20
_ALIVE_S = 1.0
_SETTLE_S = 1.0
SYNC_DEADLINE_S = 600.0

Report = Callable[[Mapping[str, Any]], None]
"""Takes each thing that happens: ``step``, ``copy``, and what belongs to it. An empty one says that work goes on."""
Step = Callable[[str, str], None]
"""Is called at each named step of each copy."""


@dataclass
class Result:
    """What came of it."""

    removed: list[dict[str, Any]] = field(default_factory=list)
    """``copy``, ``reason``, ``allocated`` of each copy that was removed."""
    freed_bytes: int = 0
    kept: dict[str, str] = field(default_factory=dict)
    """Why copies that were to go have stayed, by name."""
    blocked: str = ""
    """Why the mark was not reached; empty when it was."""


@dataclass(frozen=True)
class _Parts:
    """The directories of a data location that was proven to be the right one."""

    root: int
    drives: int
    locks: int
    pending: int
    condemned: int


@dataclass
class _Held:
    """A copy whose lock is held."""

    victim: Victim
    lock: int
    fd: int
    entry: bytes = b""
    """Its name aside."""

    @property
    def name(self) -> bytes:
        return os.fsencode(self.victim.name)


def _nothing(*_anything: Any) -> None:
    pass


@contextmanager
def _opened(location: DataLocation) -> Iterator[_Parts]:
    """Prove that the data location is there, and open its parts for as long as a round takes.

    :raises NotThere: when it is not: nothing is touched then
    """
    with ExitStack() as stack:
        root = data_locations.open_verified(location)
        stack.callback(os.close, root)
        parts = []
        for name in (DRIVES, LOCKS, PENDING, CONDEMNED):
            try:
                parts.append(stack.enter_context(copies.opened(root, name)))
            except OSError as error:
                path = os.path.join(location.path, os.fsdecode(name))
                rule = f"not a directory of the data location ({error.strerror})"
                raise Refusal(path, rule, "roll the host out again") from error
        yield _Parts(root, *parts)


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
    kept: Mapping[str, str] | None = None,
    under_way: Collection[str] = (),
) -> Plan:
    """Return what would go now.

    :param figures: what is known of copies, by name; the records when left out
    :param kept: copies that must stay, and why
    :raises StowageError: when the data location is not there, or what protects a copy cannot be read
    """
    with _opened(location) as parts:
        return _plan(places, location, settings, parts, figures, kept or {}, under_way)


def _plan(
    places: Places,
    location: DataLocation,
    settings: Settings,
    parts: _Parts,
    figures: Mapping[str, CopyRecord] | None,
    kept: Mapping[str, str],
    under_way: Collection[str],
) -> Plan:
    present = copies.present(parts.root, location)
    drives = drive_records.load_all(places)
    known = dict(figures or {})
    unknown = dict(kept)
    if figures is None:
        for copy in present:
            try:
                record = copies.load_record(places, copy.name)
            except StowageError as error:
                unknown[copy.name] = str(error)
            else:
                known.update({copy.name: record} if record is not None else {})
    pinned = {pin.copy: pin.described for pin in pins.all_pins(places)}
    names = {copy.name for copy in present}
    filling = {
        drive.copy_name for drive in drives if drive.copy_name in names and copies.waits_for_fill(parts.root, drive)
    }
    states = assess(present, known, drives, pinned, filling, unknown)
    return plan(Space.of(parts.root), states, location.max_bytes, settings, time.time(), booted(), under_way)


def evict(
    places: Places,
    location: DataLocation,
    settings: Settings,
    *,
    figures: Mapping[str, CopyRecord] | None = None,
    rate: float | None = None,
    report: Report = _nothing,
    step: Step = _nothing,
) -> Result:
    """Remove what has to go, in rounds, until the mark is met or nothing more can go.

    What an earlier run left aside or condemned is put back or emptied first.

    :param rate: files deleted per second at most
    :raises StowageError: when the data location is not there, or what protects copies cannot be read
    """
    run = _Eviction(places, location, rate, report, step)
    run.recover(True)
    under_way: frozenset[str] = frozenset()
    while True:
        with _opened(location) as parts:
            now = _plan(places, location, settings, parts, figures, run.result.kept, under_way)
            under_way |= now.triggers
            if not now.victims:
                run.result.blocked = now.blocked
                return run.result
            run.say("planned", "", victims=[victim.name for victim in now.victims], blocked=now.blocked)
            run.round(parts, now)
            if run.result.blocked:
                return run.result


def recover(
    places: Places,
    location: DataLocation,
    *,
    empty: bool,
    rate: float | None = None,
    report: Report = _nothing,
    step: Step = _nothing,
) -> Result:
    """Put back what an earlier run left aside, and empty what it had condemned.

    :param empty: whether anything may be removed now; otherwise what is condemned waits
    """
    run = _Eviction(places, location, rate, report, step)
    run.recover(empty)
    return run.result


class _Eviction:
    def __init__(self, places: Places, location: DataLocation, rate: float | None, report: Report, step: Step) -> None:
        self._places = places
        self._location = location
        self._rate = rate
        self._report = report
        self._step = step
        self.result = Result()

    def say(self, step: str, copy: str, **more: Any) -> None:
        self._report({"step": step, "copy": copy, **more})
        self._step(step, copy)

    def _alive(self) -> None:
        self._report({})

    def _sync(self, parts: _Parts) -> None:
        answer_of(lambda: syncfs(parts.root), SYNC_DEADLINE_S, self._alive)

    def _keep(self, name: str, why: str) -> None:
        self.result.kept[name] = why
        self.say("kept", name, why=why)

    def round(self, parts: _Parts, now: Plan) -> None:
        """Take as many of the plan's copies as one round does through all steps."""
        # How much the copies of deleted drives free may not be known: nothing is evicted before they are gone.
        deleted = [victim for victim in now.victims if victim.reason == DELETED]
        chosen = (deleted or list(now.victims))[:BATCH]
        self._sync(parts)  # what is not written yet has no blocks to become free
        before = Space.of(parts.root)
        with ExitStack() as stack:
            held = self._lock(parts, chosen, stack)
            held = self._unused(parts, held)
            held = self._aside(parts, held)
            held = self._unused(parts, held, aside=True)
            held = self._without_open_files(parts, held)
            held = self._condemn(parts, held)
        # From here on a new copy of each may be made.
        for one in held:
            self._empty(parts, one.entry, one.victim)
        if held:
            self._check_freed(parts, before, held, now)

    def _lock(self, parts: _Parts, chosen: Sequence[Victim], stack: ExitStack) -> list[_Held]:
        held = []
        for victim in chosen:
            name = os.fsencode(victim.name)
            try:
                lock = try_lock(parts.locks, name)
                if lock is None:
                    self._keep(victim.name, "its lock is held by another process")
                    continue
                stack.callback(os.close, lock)
                fd = open_beneath(parts.drives, name)
                stack.callback(os.close, fd)
            except OSError as error:
                self._keep(victim.name, f"could not be locked or opened: {error.strerror}")
                continue
            mark = copies.own_mark(fd, victim.name, self._location)
            if mark is None or mark.identity != victim.identity:
                self._keep(victim.name, "something else is there by its name now")
                continue
            held.append(_Held(victim, lock, fd))
            self.say("locked", victim.name)
        # A lease that was taken before the lock was: its record is there by now.
        pinned = {pin.copy: pin.described for pin in pins.all_pins(self._places)}
        for one in held:
            if one.victim.name in pinned and not one.victim.forced:
                self._keep(one.victim.name, f"held by {pinned[one.victim.name]}")
        return [one for one in held if one.victim.name not in self.result.kept]

    def _unused(self, parts: _Parts, held: Sequence[_Held], aside: bool = False) -> list[_Held]:
        """Return those that nobody uses; the others stay, and go back to their place when they were moved aside."""
        evidence = self._evidence(parts, held)
        unused = []
        for one in held:
            found = evidence[one.victim.name]
            if found:
                self._stay(parts, one, found[0], aside)
            else:
                self.say("unused aside" if aside else "unused", one.victim.name)
                unused.append(one)
        return unused

    def _evidence(self, parts: _Parts, held: Sequence[_Held]) -> dict[str, list[str]]:
        try:
            mounts = mount_table.read()
            victims = [use.Victim.of(one.victim.name, one.fd, parts.drives, mounts) for one in held]
        except (StowageError, OSError) as error:
            return {one.victim.name: [f"could not be determined: {error}"] for one in held}
        return use.in_use(victims, alive=self._alive)

    def _stay(self, parts: _Parts, one: _Held, why: str, aside: bool) -> None:
        if not aside or self._put_back(parts, one.entry, one.victim.name):
            self._keep(one.victim.name, f"in use: {why}")
        else:
            self._keep(one.victim.name, f"in use, and kept aside as its name is taken: {why}")

    def _aside(self, parts: _Parts, held: Sequence[_Held]) -> list[_Held]:
        moved = []
        for one in held:
            entry = _entry(one.victim)
            try:
                rename_noreplace(parts.drives, one.name, parts.pending, entry)
            except OSError as error:
                # A directory that has to grow cannot do so on a full disk: those that found room make some.
                self._keep(one.victim.name, f"could not be moved aside: {error.strerror}")
                continue
            one.entry = entry
            moved.append(one)
            self.say("aside", one.victim.name)
        return moved

    def _without_open_files(self, parts: _Parts, held: Sequence[_Held]) -> list[_Held]:
        closed = []
        for one in held:
            why = write_leases.open_file(one.fd, alive=self._alive)
            if why:
                self._stay(parts, one, why, True)
            else:
                self.say("write leases", one.victim.name)
                closed.append(one)
        return closed

    def _condemn(self, parts: _Parts, held: Sequence[_Held]) -> list[_Held]:
        condemned = []
        for one in held:
            try:
                rename_noreplace(parts.pending, one.entry, parts.condemned, one.entry)
            except OSError as error:
                self._stay(parts, one, f"could not be condemned: {error.strerror}", True)
                continue
            condemned.append(one)
            self.say("condemned", one.victim.name)
            self._record(parts, one.entry, one.victim.name, one.victim.reason, allocated=one.victim.allocated)
            self.say("recorded", one.victim.name)
        return condemned

    def _record(self, parts: _Parts, entry: bytes, name: str, reason: str, **figures: int) -> None:
        """Say that the copy is gone. A disk that is full where records are kept does not keep it from going."""
        try:
            os.stat(os.fsencode(name), dir_fd=parts.drives, follow_symlinks=False)
        except FileNotFoundError:  # else a copy was made since, and the record is that one's
            with suppress(OSError):
                copies.forget(self._places, name)
        recorded = events.record(
            self._places,
            object=copies.described(name),
            reason="Deleted" if reason == DELETED else "Evicted",
            message=f"Copy removed from {self._location.host}: {REASONS[reason]}",
            cause=reason,
            entry=os.fsdecode(entry),
            **figures,
        )
        if not recorded:
            self.say("not recorded", name)

    def _empty(self, parts: _Parts, entry: bytes, victim: Victim) -> None:
        self._remove(parts, entry, victim.name, reason=victim.reason, allocated=victim.allocated)
        self.result.removed.append({"copy": victim.name, "reason": victim.reason, "allocated": victim.allocated})

    def _remove(self, parts: _Parts, entry: bytes, name: str, **figures: Any) -> None:
        said = time.monotonic()

        def alive(*_done: int) -> None:
            nonlocal said
            if time.monotonic() - said >= _ALIVE_S:
                said = time.monotonic()
                self._report({})
            self._step("emptying", name)

        try:
            emptied = remove(parts.condemned, entry, rate=self._rate, progress=alive)
        except FileNotFoundError:
            return  # another process that recovers has emptied it
        if emptied.left:
            self.say("left", name, why=emptied.left[0], left=len(emptied.left))
        else:
            self.say("emptied", name, **figures)

    def _check_freed(self, parts: _Parts, before: Space, held: Sequence[_Held], now: Plan) -> None:
        """Stop when removing does not help: something else holds the space, and more would be lost for nothing."""
        planned = sum(one.victim.allocated for one in held)
        planned_inodes = sum(one.victim.inodes for one in held)
        self._sync(parts)
        after = _settled(parts.root, before.free + planned)
        freed, freed_inodes = after.free - before.free, after.files_free - before.files_free
        self.result.freed_bytes += freed
        self.say("freed", "", bytes=freed, planned=planned, inodes=freed_inodes, planned_inodes=planned_inodes)
        if now.wanted_bytes and freed < planned / 2 - _NOTICEABLE:
            self.result.blocked = (
                f"stopped: the copies removed took {decimal(planned)} by their measurement and only "
                f"{decimal(max(0, freed))} became free; something else fills the disk, or holds their blocks"
            )
        elif now.wanted_inodes and not now.wanted_bytes and freed_inodes < planned_inodes // 2:
            self.result.blocked = (
                f"stopped: the copies removed had {planned_inodes} inodes by their measurement and only "
                f"{max(0, freed_inodes)} became free; something else makes files"
            )

    def recover(self, empty: bool) -> None:
        with _opened(self._location) as parts:
            for entry in copies.names_in(parts.root, PENDING):
                self._recover(parts, entry, empty)
            condemned = copies.names_in(parts.root, CONDEMNED) if empty else []
            told = {event.get("entry") for event in events.read(self._places, 0)} if condemned else set()
            for entry in condemned:
                self._finish(parts, entry, os.fsdecode(entry) in told)

    def _recover(self, parts: _Parts, entry: bytes, empty: bool) -> None:
        """Put one copy back. One whose name is taken now goes when it is proven unused, and waits otherwise."""
        name, reason = _parsed(entry)
        with ExitStack() as stack:
            lock = try_lock(parts.locks, os.fsencode(name)) if name else None
            if lock is not None:
                stack.callback(os.close, lock)
            elif name:
                return  # another process is at work with it
            fd = self._own(parts.pending, entry, name, stack)
            if fd is None or lock is None:
                if entry in copies.names_in(parts.root, PENDING):
                    why = f"{os.fsdecode(PENDING)}/{printable(entry)} is not a copy of this host"
                    self.say("foreign", name, why=why)
                return
            if self._put_back(parts, entry, name):
                return
            if not empty:
                self.say("kept aside", name, why="a new copy has its name")
                return
            one = _Held(Victim(name, "", reason, 0, 0), lock, fd, entry)
            found = self._evidence(parts, [one])[name]
            why = found[0] if found else write_leases.open_file(fd, alive=self._alive)
            if why:
                self.say("kept aside", name, why=f"a new copy has its name, and it is in use: {why}")
                return
            rename_noreplace(parts.pending, entry, parts.condemned, entry)
            self.say("condemned", name)

    def _finish(self, parts: _Parts, entry: bytes, told: bool) -> None:
        name, reason = _parsed(entry)
        with ExitStack() as stack:
            if self._own(parts.condemned, entry, name, stack) is None:
                self.say("foreign", name, why=f"{os.fsdecode(CONDEMNED)}/{printable(entry)} is not a copy of this host")
                return
        if not told:
            self._record(parts, entry, name, reason)
        self._remove(parts, entry, name, reason=reason)

    def _own(self, dir_fd: int, entry: bytes, name: str, stack: ExitStack) -> int | None:
        """Open what lies in the trash when it is a copy of this host, and nothing that anybody else has put there."""
        if not name:
            return None
        try:
            fd = open_beneath(dir_fd, entry)
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                return None
            raise
        stack.callback(os.close, fd)
        return fd if copies.own_mark(fd, name, self._location) is not None else None

    def _put_back(self, parts: _Parts, entry: bytes, name: str) -> bool:
        try:
            rename_noreplace(parts.pending, entry, parts.drives, os.fsencode(name))
        except FileExistsError:
            return False
        self.say("put back", name)
        return True


def _settled(fd: int, expected: int) -> Space:
    """Return the space once what was removed is free: XFS and btrfs go on freeing after the last unlink."""
    space = Space.of(fd)
    grown = time.monotonic()
    while space.free < expected and time.monotonic() - grown < _SETTLE_S:
        time.sleep(0.05)
        before, space = space, Space.of(fd)
        if space.free > before.free:
            grown = time.monotonic()
    return space


def _entry(victim: Victim) -> bytes:
    """Return a name for a copy aside that says whose it is and why it is there, and that nothing else has."""
    return os.fsencode(f"{victim.name}.{victim.reason}-{time.time_ns():x}-{secrets.token_hex(4)}")


def _parsed(entry: bytes) -> tuple[str, str]:
    """Return the copy and the reason that a name aside tells, or two empty texts for a name that was not made here."""
    name, _dot, token = os.fsdecode(entry).rpartition(".")
    reason = token.partition("-")[0]
    try:
        split_copy_name(name)
    except StowageError:
        return "", ""
    return (name, reason) if reason in REASONS else ("", "")
