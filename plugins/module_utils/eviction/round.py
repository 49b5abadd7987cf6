# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps that take a copy from its place to nothing, or back to its place when there is any doubt.

``lock`` and ``unused`` look, ``aside`` puts copies out of everybody's reach, ``prove_and_condemn`` judges them, and
``remove`` empties those that were condemned.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from .. import events
from .. import mounts as mount_table
from ..copies import fill_marks, trash
from ..copies import present as copies
from ..copies.trash import Parts
from ..data_location import locations as data_locations
from ..data_location.locations import DataLocation
from ..drives import recorded as drive_records
from ..drives.declared import split_copy_name
from ..errors import StowageError
from ..locks import try_lock
from ..places import Places
from ..runs import pins
from ..syscalls import rename_noreplace
from ..trees import emptying
from ..trees.shared_blocks import MOST_UNITS, SHARING
from ..use import look as use
from ..use.child import nothing
from ..use.look import InUse
from . import write_leases
from .content import content_of
from .given_back import IN_VAIN, Content, Given, GivenBack
from .plan import DELETED, EXPIRED, FULL, LIMIT, REASONS, UNFILLED, Victim, kept_by_declaration

_ALIVE_S = 1.0
_MOST_UNITS_OF_ALL = 2 * MOST_UNITS
"""How many units of shared blocks are told apart in all copies of a round, and those held back before."""
_EVENTS = {DELETED: "Deleted", UNFILLED: "Cleared"}

STEPS = (
    "planned",
    "locked",
    "unused",
    "kept",
    "aside",
    "unused aside",
    "write leases",
    "put back",
    "kept aside",
    "condemned",
    "not recorded",
    "recorded",
    "emptying",
    "left",
    "emptied",
    "freed",
    "foreign",
)
"""Everything that is reported, and every place where tests end the work."""

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
    waiting: dict[str, str] = field(default_factory=dict)
    """Why copies of deleted drives are still there, by name."""


@dataclass
class Locked:
    """A copy whose lock is held, until *stack* is closed."""

    victim: Victim
    fd: int
    stack: ExitStack
    entry: bytes = b""
    """Its name aside."""
    content: Content | None = None
    """What it holds, once that was looked at."""

    @property
    def name(self) -> bytes:
        return os.fsencode(self.victim.name)


class Beat:
    """Says now and then that work goes on, however often it is called."""

    def __init__(self, alive: Callable[[], None]) -> None:
        self._alive = alive
        self._said = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._said >= _ALIVE_S:
            self._said = time.monotonic()
            self._alive()


class Work:
    """The steps, and what has come of them so far."""

    def __init__(
        self,
        places: Places,
        location: DataLocation,
        rate: float | None = None,
        report: Report = nothing,
        step: Step = nothing,
        in_use: InUse = use.in_use,
    ) -> None:
        self._places = places
        self._location = location
        self._rate = rate
        self._report = report
        self._step = step
        self._in_use = in_use
        self.result = Result()
        self._held_back: dict[str, tuple[Victim, Content]] = {}
        self.together: list[Victim] = []
        """Copies of which none gives anything back without the others: the next round takes them all."""
        self._guesses: set[str] = set()
        self.guessing = False
        """Whether copies go as well of which it is a guess that they give something back."""

    def say(self, step: str, copy: str, **more: Any) -> None:
        if step not in STEPS:
            raise ValueError(f"{step}: is not in STEPS")
        self._report({"step": step, "copy": copy, **more})
        self._step(step, copy)

    def alive(self) -> None:
        self._report({})

    def _keep(self, name: str, why: str, step: str = "kept") -> None:
        self.result.kept[name] = why
        self.say(step, name, why=why)

    # -- Looking

    def lock(self, parts: Parts, chosen: Sequence[Victim], stack: ExitStack) -> list[Locked]:
        """Return those whose lock is free and which no lease holds; they are let go with *stack* at the latest."""
        held = []
        for victim in chosen:
            one = self._locked(parts, victim, stack.enter_context(ExitStack()))
            if one is not None:
                held.append(one)
                self.say("locked", victim.name)
        # A lease that was taken before the lock was: its record is there by now.
        pinned = {pin.copy: pin.described for pin in pins.all_pins(self._places)}
        free = []
        for one in held:
            if one.victim.name in pinned and not one.victim.forced:
                one.stack.close()
                self._keep(one.victim.name, f"held by {pinned[one.victim.name]}")
            else:
                free.append(one)
        return free

    def _locked(self, parts: Parts, victim: Victim, stack: ExitStack) -> Locked | None:
        name = os.fsencode(victim.name)
        try:
            lock = try_lock(parts.locks, name)
            if lock is None:
                self._keep(victim.name, "its lock is held by another process")
                return None
            stack.callback(os.close, lock)
            fd = stack.enter_context(copies.opened(parts.drives, name))
            mark = copies.own_mark(fd, victim.name, self._location)
        except OSError as error:
            self._keep(victim.name, f"could not be locked or opened: {error.strerror}")
        else:
            if mark is not None and mark.identity == victim.identity:
                return Locked(victim, fd, stack)
            self._keep(victim.name, "something else is there by its name now")
        stack.close()
        return None

    def unused(self, parts: Parts, held: Sequence[Locked]) -> list[Locked]:
        """Return those that nobody uses; the others stay."""
        evidence = self._evidence(parts, held)
        unused = []
        for one in held:
            found = evidence[one.victim.name]
            if found:
                one.stack.close()
                self._note_used(one.victim)
                self._keep(one.victim.name, f"in use: {found[0]}")
            else:
                self.say("unused", one.victim.name)
                unused.append(one)
        return unused

    def measured(self, held: Sequence[Locked], wanted: Given | None, by_size: bool = False) -> list[Locked]:
        """Return as many, with the sizes that they have now, as it takes to free so much; the others are let go.

        :param wanted: what must become free; None when all go anyway
        :param by_size: whether what copies take counts, and not what they give back
        """
        sharing = self._location.filesystem.fstype in SHARING
        earlier = self._held_back.values() if wanted is not None and not by_size else ()
        alive = Beat(self.alive)
        counted = GivenBack(wanted, [content for _victim, content in earlier], alive, self.guessing)
        locked = {one.victim.name: one for one in held}
        units = _MOST_UNITS_OF_ALL - sum(len(content.shared) for _victim, content in self._held_back.values())
        chosen = []
        for name, one in locked.items():
            if counted.is_enough:
                break
            content = content_of(name, one.fd, alive, sharing, min(MOST_UNITS, max(0, units)))
            units -= len(content.shared)
            one.victim = one.victim._replace(allocated=content.allocated, inodes=content.inodes)
            one.content = content
            chosen += counted.add(replace(content, links={}, shared={}, beyond=0) if by_size else content)
            if chosen and content.beyond and wanted is not None and not by_size:
                break  # it may give back much more than is counted: that is seen before another one goes
        for name in locked.keys() - chosen:
            locked[name].stack.close()
        self._hold_back(locked, counted)
        self._guesses |= counted.guesses
        return [locked[name] for name in chosen]

    def guess(self) -> bool:
        """Have those copies looked at again of which it is a guess that they give something back; return if any are."""
        again = self._guesses & self._held_back.keys()
        self._guesses.clear()
        self.guessing = True
        for name in again:
            del self._held_back[name]
            self.result.kept.pop(name, None)
        return bool(again)

    def _hold_back(self, locked: Mapping[str, Locked], counted: GivenBack) -> None:
        """Let copies stay that would go in vain, and have those looked at again that are of use together."""
        again = {name for names in counted.again.values() for name in names}
        self.together = [self._held_back[name][0] for name in self._held_back if name in again]
        self.together += [locked[name].victim for name in counted.again]
        for name in again:
            del self._held_back[name]
            self.result.kept.pop(name, None)
        for name, content in counted.held_back.items():
            if name in locked and name not in counted.again:
                self._held_back[name] = (locked[name].victim, content)
                self._keep(name, IN_VAIN)

    def _note_used(self, victim: Victim) -> None:
        """Count what was found in use, or may be, as used now: it may have no lease that says so."""
        if victim.reason in (EXPIRED, FULL, LIMIT):
            copies.note_used(self._places, victim.name)

    def _evidence(self, parts: Parts, held: Sequence[Locked]) -> dict[str, list[str]]:
        try:
            mounts = mount_table.read()
            victims = [use.Subject.of(one.victim.name, one.fd, parts.drives, mounts) for one in held]
        except (StowageError, OSError) as error:
            return {one.victim.name: [f"could not be determined: {error}"] for one in held}
        return self._in_use(victims, alive=self.alive)

    # -- Judging

    def aside(self, parts: Parts, held: Sequence[Locked]) -> list[Locked]:
        """Move copies out of everybody's reach, and return those for which that was possible."""
        moved: list[Locked] = []
        for one in held:
            entry = trash.entry_of(one.victim)
            try:
                rename_noreplace(parts.drives, one.name, parts.pending, entry)
            except OSError as error:
                # A directory that has to grow cannot do so on a full disk.
                if error.errno == errno.ENOSPC and moved:
                    break  # these make room, and the next round goes on here: the oldest still go first
                one.stack.close()
                self._keep(one.victim.name, f"could not be moved aside: {error.strerror}")
                continue
            one.entry = entry
            moved.append(one)
            self.say("aside", one.victim.name)
        return moved

    def prove_and_condemn(
        self, parts: Parts, held: Sequence[Locked], is_enough: Callable[[Given], bool] = lambda _coming: False
    ) -> list[Locked]:
        """Condemn those of the copies aside that are proven unused; the others go back. All are let go.

        One look at the host is for all of them. What may change by itself is asked of each copy right before it is
        condemned: the write leases of its files, what is declared of its drive, and whether it has to go still.

        :param is_enough: whether no more has to go, given what those that were condemned are going to give back
        """
        evidence = self._evidence(parts, held)
        condemned: list[Locked] = []
        coming = GivenBack(None, alive=Beat(self.alive))
        for one in held:
            with one.stack:
                if is_enough(coming.total) and trash.put_back(parts, one.entry, one.victim.name):
                    self.say("put back", one.victim.name)
                    continue
                why = self._doubt(one, evidence[one.victim.name])
                if not why:
                    try:
                        rename_noreplace(parts.pending, one.entry, parts.condemned, one.entry)
                    except OSError as error:
                        why = f"could not be condemned: {error.strerror}"
                if why:
                    self._stay(parts, one, why)
                    continue
                condemned.append(one)
                if one.content is not None:
                    coming.add(one.content)
                self.say("condemned", one.victim.name)
                victim = one.victim
                self.record(parts, one.entry, victim.name, victim.reason, victim.why, allocated=victim.allocated)
        return condemned

    def _doubt(self, one: Locked, evidence: Sequence[str]) -> str:
        if evidence:
            self._note_used(one.victim)
            return f"in use: {evidence[0]}"
        self.say("unused aside", one.victim.name)
        why = write_leases.open_file(one.fd, alive=self.alive)
        if why:
            self._note_used(one.victim)
            return f"in use: {why}"
        self.say("write leases", one.victim.name)
        return self._finished(one) if one.victim.reason == UNFILLED else self._declaration(one.victim)

    def _finished(self, one: Locked) -> str:
        """Return why a copy is not just what a fill has left: its drive may be none whose copies go."""
        mark = copies.own_mark(one.fd, one.victim.name, self._location)
        if mark is not None and fill_marks.has_begun(one.fd, mark):
            return ""
        return "what it holds was not left by a fill that did not finish"

    def _declaration(self, victim: Victim) -> str:
        """Return why the drive as it is declared now keeps a copy that was to go; empty when nothing does."""
        workspace, _name = split_copy_name(victim.name)
        try:
            drives = drive_records.load(self._places, workspace) or []
        except StowageError as error:
            return f"could not be determined: {error}"
        drive = drive_records.by_copy(drives)(victim.name, victim.identity)
        why = kept_by_declaration(drive, victim.reason)
        if why or drive is None:
            return why
        if victim.reason == EXPIRED:
            return self._used_meanwhile(victim, drive.idle_ttl_s)
        if (victim.reason == DELETED and not drive.absent) or (victim.forced and not drive.force):
            return "its drive was declared otherwise meanwhile"
        return ""

    def _used_meanwhile(self, victim: Victim, ttl_s: int) -> str:
        try:
            record = copies.load_record(self._places, victim.name)
        except StowageError as error:
            return f"could not be determined: {error}"
        if record is None or record.identity != victim.identity or record.unused_s < victim.unused_s:
            return "it was used meanwhile"
        return "its drive may be unused for longer now" if victim.unused_s < ttl_s else ""

    def _stay(self, parts: Parts, one: Locked, why: str) -> None:
        name = one.victim.name
        if trash.put_back(parts, one.entry, name):
            self.say("put back", name)
            self._keep(name, why)
        else:
            self.stays_aside(name, why)

    def stays_aside(self, name: str, why: str) -> None:
        self._keep(name, f"kept aside, as a new copy has its name: {why}", "kept aside")

    def record(self, parts: Parts, entry: bytes, name: str, reason: str, why: str = "", **figures: int) -> None:
        """Say that the copy is gone, and why. A disk that is full where records are kept does not hold it up."""
        try:
            os.stat(os.fsencode(name), dir_fd=parts.drives, follow_symlinks=False)
        except FileNotFoundError:  # else a copy was made since, and the record is that one's
            with suppress(StowageError, OSError):
                if data_locations.is_present(self._places, self._location):
                    copies.forget(self._places, name)
        recorded = events.record(
            self._places,
            object=copies.described(name),
            reason=_EVENTS.get(reason, "Evicted"),
            message=f"Copy removed from {self._location.host}: {why or REASONS[reason]}",
            cause=reason,
            entry=os.fsdecode(entry),
            **figures,
        )
        self.say("recorded" if recorded else "not recorded", name)

    # -- Emptying

    def remove(self, parts: Parts, entry: bytes, name: str, **figures: Any) -> None:
        """Empty a copy that was condemned; *figures* are told when that is done."""
        beat = Beat(self.alive)

        def alive(*_done: int) -> None:
            beat()
            self._step("emptying", name)

        try:
            emptied = emptying.remove(parts.condemned, entry, rate=self._rate, progress=alive)
        except FileNotFoundError:
            return  # another process that recovers has emptied it
        if emptied.left:
            self.say("left", name, why=emptied.left[0], left=len(emptied.left))
        else:
            self.say("emptied", name, **figures)
