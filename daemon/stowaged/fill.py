# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""``stowage fill run``: fills one copy, and tries again when that fails. The unit ``stowage-fill@.service`` runs it.

A try makes the copy, notes on it that a fill has begun while it is still empty and nobody has it, pins it as a worker's
lease does, and runs the container. When that has ended well, its last file is there, and everything is on the disk, the
note is taken away: only then is the copy usable. What a try leaves that did not end well goes the way of evicted
copies, with all that is looked at there, wherever it was cut short.

Between tries nothing of the data location is held, and its disk can be unmounted. Each try opens it anew.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, Protocol

from stowage_core import events, mounts, records
from stowage_core.copies import fill_marks, fills
from stowage_core.copies import present as copies
from stowage_core.copies.fills import FAILED, FILLING, Record
from stowage_core.copies.trash import opened_parts
from stowage_core.data_location import locations as data_locations
from stowage_core.data_location.locations import DRIVES, DataLocation
from stowage_core.drives import recorded as drive_records
from stowage_core.drives.declared import split_copy_name
from stowage_core.drives.recorded import Drive
from stowage_core.errors import Refusal, StowageError, one_line, printable, quoted
from stowage_core.eviction.plan import UNFILLED, Victim
from stowage_core.eviction.round import Work
from stowage_core.locks import run_lock, try_lock
from stowage_core.places import Places
from stowage_core.runs import pinning, pins
from stowage_core.runs.holders import Holder, start_time
from stowage_core.sizes import Space, decimal
from stowage_core.syscalls import DIRECTORY, NO_DIRECTORY, syncfs
from stowage_core.trees import measure
from stowage_core.use import look as use

from . import container, settings
from .container import Container

WAITS_S = (10.0, 30.0, 90.0, 270.0)
"""How long is waited between tries; after the last one that fails it is given up."""
PAUSE_S = 600.0
"""How long nobody tries again then, although it is asked for."""
PROGRESS_S = 10.0
_PROGRESS_SHARE = 20
"""Measuring takes one part in so many of the time."""
_RATE = 10_000.0
_LONGEST = 300
_RESERVED_S = 3600.0


class FillError(StowageError):
    """A try failed; with what its container printed last."""

    def __init__(self, why: str, output: Sequence[str] = ()) -> None:
        self.output = list(output)
        super().__init__(f"{why}: {output[-1]}" if output else why)


class Runs(Protocol):
    """Whatever runs containers."""

    def run(
        self, container: Container, say: Callable[[str], None], tick: Callable[[], None]
    ) -> tuple[int, Sequence[str]]: ...

    def remove(self, name: str) -> None: ...


def say(text: str) -> None:
    """Tell the journal."""
    print(text, flush=True)


def run(places: Places, copy: str, engine: Runs | None = None, waits_s: Sequence[float] = WAITS_S) -> bool:
    """Fill a copy; return whether it is filled.

    :param engine: what runs its container; the host's own when left out
    :raises StowageError: when another process is at it, or nothing can be known of it
    """
    split_copy_name(copy)
    with _alone(places, copy):
        return Filling(places, copy, engine, waits_s).until_filled()


def end(places: Places, copy: str) -> None:
    """Take away what a process that filled a copy and is gone has left: its container, its lease, its record.

    What is in the copy stays: the next try, or an eviction, removes it.
    """
    split_copy_name(copy)
    with _alone(places, copy):
        try:
            _clean_up(places, copy, None)
        finally:
            _note_end(places, copy, os.environ.get("SERVICE_RESULT", "success"))


def _note_end(places: Places, copy: str, how: str) -> None:
    record = fills.load(places, copy)
    if record is None or record.state != FILLING:
        return
    if how == "success":
        fills.forget(places, copy)  # it was stopped
        return
    why = f"the process that filled it was ended ({how})"
    _tell(places, _location(places), copy, "FillFailed", why, failures=record.failures + 1)
    fills.write(places, replace(record, state=FAILED, failures=record.failures + 1, message=why))


def _location(places: Places) -> DataLocation:
    location = data_locations.load(places)
    if location is None:
        raise StowageError("this host has no data location; choose one with the playbook data_location")
    return location


@contextmanager
def _alone(places: Places, copy: str) -> Iterator[None]:
    records.make_directory(fills.directory(places))
    directory = os.open(fills.directory(places), DIRECTORY)
    try:
        held = try_lock(directory, os.fsencode(f"{copy}.lock"))
    finally:
        os.close(directory)
    if held is None:
        raise StowageError(f"copy {copy}: another process fills it; see stowage fill list")
    try:
        yield
    finally:
        os.close(held)


def _pause(until: float) -> None:
    time.sleep(max(0.0, until - time.time()))


def _env_file(places: Places, copy: str) -> str:
    return os.path.join(fills.directory(places), f"{copy}.env")


def _container_name(copy: str) -> str:
    return f"stowage-fill-{copy}"


def _clean_up(places: Places, copy: str, engine: Runs | None) -> None:
    """End the container of an earlier try, and let go of its lease."""
    if engine is None:
        with suppress(Refusal):  # no engine, no container
            engine = container.find(settings.load(places).fill_engine)
    records.remove(_env_file(places, copy))
    try:
        if engine is not None:
            engine.remove(_container_name(copy))
    finally:
        for pin in pins.of_run(places, fills.unit(copy)):
            pinning.release(places, pin.run, pin.number)


def _tell(places: Places, location: DataLocation, copy: str, reason: str, text: str, **more: Any) -> None:
    words = {
        "FillStarted": "Filling its copy on {}: {}",
        "Filled": "Copy filled on {}: {}",
        "FillFailed": "Fill failed on {}: {}",
    }
    message = words[reason].format(location.host, text)
    say(message)
    events.record(places, object=copies.described(copy), reason=reason, message=message, **more)


class Filling:
    """The tries to fill one copy."""

    def __init__(
        self,
        places: Places,
        copy: str,
        engine: Runs | None,
        waits_s: Sequence[float],
    ) -> None:
        self._places = places
        self._location = _location(places)
        self._fd = -1  # while a try is made, the data location's
        self._copy = copy
        self._engine = engine
        self._waits_s = waits_s
        self._identity = ""
        drive = self._drive()
        self._identity = drive.identity
        before = fills.load(places, copy)
        fresh = before is None or before.given_up or before.identity != drive.identity
        self._record = Record(
            copy=copy,
            identity=drive.identity,
            location=self._location.identity,
            size_hint_bytes=int((drive.spec or {})["size_hint_bytes"]),
            since=time.time() if fresh or before is None else before.since,
            failures=0 if fresh or before is None else before.failures,
            message="" if fresh or before is None else before.message,
            pid=os.getpid(),
            pid_start=start_time(os.getpid()) or 0,
        )
        self._due = 0.0

    def _drive(self) -> Drive:
        """Return the drive as it is declared now.

        :raises Refusal: when it is not to be filled any more
        """
        drive = drive_records.find_placed(self._places, self._copy, self._location.host)
        shown = f"drive {drive.workspace}/{drive.name}"
        if drive.fill is None:
            raise Refusal(shown, "nothing fills it", "give it a spec.fill.template")
        if self._identity not in ("", drive.identity):
            raise Refusal(shown, "it was made anew meanwhile", "ask for its fill again")
        return drive

    def until_filled(self) -> bool:
        if self._record.failures > len(self._waits_s):  # each time the process that filled it was killed
            self._give_up(self._record.message, self._record.failures)
            return False
        while not self._once():
            if self._record.given_up:
                return False
            _pause(self._record.next_try)
        fills.forget(self._places, self._copy)
        return True

    def _once(self) -> bool:
        """Make one try; return whether the copy is filled."""
        with ExitStack() as stack:
            try:
                self._location = _location(self._places)
                self._note(state=FILLING, next_try=0.0, written_bytes=0, location=self._location.identity)
                self._fd = data_locations.open_verified(self._location)
                stack.callback(self._let_go)
                self._try()
            except (StowageError, OSError) as error:
                self._failed(error)
                return False
        return True

    def _let_go(self) -> None:
        os.close(self._fd)
        self._fd = -1

    def _note(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        fills.write(self._places, self._record)

    def _failed(self, error: StowageError | OSError) -> None:
        """Report that a try failed, clear what it has left, and say when the next one is, if there is one."""
        why = one_line(error)[:_LONGEST]
        failures = self._record.failures + 1
        output = error.output if isinstance(error, FillError) else []
        _tell(self._places, self._location, self._copy, "FillFailed", why, failures=failures, output=output)
        try:
            if self._fd != -1:
                self._clear()
        except (StowageError, OSError) as problem:
            say(f"what it has left stays for now: {one_line(problem) if isinstance(problem, OSError) else problem}")
        # A refusal is one until somebody changes something.
        if failures > len(self._waits_s) or isinstance(error, Refusal):
            self._give_up(why, failures)
            return
        wait = self._waits_s[failures - 1]
        say(f"the next try is in {wait:g} s")
        self._note(state=FAILED, failures=failures, message=why, next_try=time.time() + wait, written_bytes=0)

    def _give_up(self, why: str, failures: int) -> None:
        next_try = time.time() + PAUSE_S
        self._note(state=FAILED, failures=failures, message=why, next_try=next_try, given_up=True, pid=0)

    def _try(self) -> None:
        drive = self._drive()
        engine = self._engine or container.find(settings.load(self._places).fill_engine)
        _clean_up(self._places, self._copy, engine)
        if not copies.waits_for_fill(self._fd, drive):
            return
        if fills.is_foreign(self._fd, drive):
            raise fills.foreign_refusal(drive)
        self._clear()
        too_large = fills.too_large(drive, self._location, Space.of(self._fd))
        if too_large:
            raise Refusal("", too_large, "correct its size_hint_bytes, or give it more room")
        began = time.monotonic()
        pin = pinning.take(
            self._places,
            self._location,
            self._copy,
            run=fills.unit(self._copy),
            worker="fill",
            read_only=False,
            seconds=_RESERVED_S,
            begin=self._begin,
        )
        try:
            self._hold(pin)
            self._fill(drive, engine, pin.path(self._places))
            written = self._finish(drive)
        finally:
            try:
                _clean_up(self._places, self._copy, engine)
            except StowageError as error:
                say(f"{error}")  # the next try has to get rid of it first; of the lease the daemon does
        seconds = time.monotonic() - began
        _tell(
            self._places, self._location, self._copy, "Filled", f"{decimal(written)} in {seconds:.0f} s", bytes=written
        )

    def _hold(self, pin: pins.Pin) -> None:
        """Have the lease end with this process, which a worker's may not: who asks for that ends before the worker."""
        holder = Holder(pid=self._record.pid, pid_start=self._record.pid_start)
        with run_lock(self._places, pin.run):
            records.write(pin.record_path(self._places), pinning.confirmed_by(pin, holder).to_json(), 0o600)

    def _begin(self, location_fd: int, drive: Drive) -> None:
        """Make the copy, and note that from now on what is in it is the fill's: it is empty, and nobody has it.

        The copy's lock is held.
        """
        self._drive()
        self._check_unused(location_fd)
        owned = pinning.ownership(drive)
        with copies.prepared(location_fd, self._location, self._copy, drive.identity, drive.path, **owned):
            pass
        with self._opened() as fd:
            mark = copies.own_mark(fd, self._copy, self._location)
            if mark is None or mark.identity != drive.identity:
                raise StowageError(f"copy {self._copy}: something else is there by its name now")
            if not fills.is_empty(fd, drive.path):
                if fill_marks.has_begun(fd, mark):
                    raise StowageError(f"copy {self._copy}: what an earlier fill has left was put back; it goes first")
                raise fills.foreign_refusal(drive)
            fill_marks.begin(fd, mark)

    def _check_unused(self, location_fd: int) -> None:
        """Refuse to begin in a copy that somebody has: what they write would go with what a fill leaves."""
        for pin in pins.all_pins(self._places):
            if pin.copy == self._copy:
                what = f"{pin.described} ({printable(pin.held_by)}) holds it, and a fill begins where nobody is at work"
                remedy = f"end that run, and stowage lease release {quoted(pin.run)} {pin.number}"
                raise StowageError(f"copy {self._copy}: {what}; {remedy}")
        with ExitStack() as stack:
            drives = stack.enter_context(copies.opened(location_fd, DRIVES))
            try:
                fd = stack.enter_context(copies.opened(drives, os.fsencode(self._copy)))
            except OSError as error:
                if error.errno in NO_DIRECTORY:
                    return  # it is still to be made; what else has its name is refused then
                raise
            found = use.in_use([use.Subject.of(self._copy, fd, drives, mounts.read())])[self._copy]
        if found:
            what = f"in use: {found[0]}, and a fill begins where nobody is at work"
            raise StowageError(f"copy {self._copy}: {what}; end that")

    @contextmanager
    def _opened(self) -> Iterator[int]:
        with copies.opened_copy(self._fd, self._copy) as fd:
            yield fd

    def _fill(self, drive: Drive, engine: Runs, source: str) -> None:
        template = drive.fill
        assert template is not None
        variables = dict(template.get("env") or {})
        env_file = _env_file(self._places, self._copy) if variables else ""
        if env_file:
            records.write_bytes(env_file, container.environment(variables), 0o600)
        _tell(self._places, self._location, self._copy, "FillStarted", f"with the image {template['image']}")
        status, output = engine.run(
            Container(
                name=_container_name(self._copy),
                image=template["image"],
                command=template["command"],
                args=template["args"],
                source=source,
                env_file=env_file,
                secrets=tuple(variables.values()),
            ),
            say,
            self._look,
        )
        if status:
            raise FillError(f"exit status {status}", output)

    def _look(self) -> None:
        """Now and then: stop when the drive is not to be filled any more, and note how far it is."""
        began = time.monotonic()
        if began < self._due:
            return
        self._drive()
        with self._opened() as fd:
            usage = measure.Scan().measure(fd)
        with suppress(OSError):
            self._note(written_bytes=usage.allocated)
        now = time.monotonic()
        self._due = now + max(PROGRESS_S, _PROGRESS_SHARE * (now - began))

    def _finish(self, drive: Drive) -> int:
        """Make the copy usable; return what it takes."""
        with self._opened() as fd:
            with copies.opened(fd, os.fsencode(drive.path or ".")) as folder:
                missing = fill_marks.missing_marker(folder)
            if missing:
                raise FillError(f"its container ended well, and {missing}")
            usage = measure.Scan().measure(fd)
            syncfs(fd)
            with copies.locked(self._fd, self._copy):
                fill_marks.remove(fd)
        return usage.allocated

    def _clear(self) -> None:
        """Remove the copy when it holds nothing but what a fill has left.

        :raises StowageError: when it may be in use
        """
        try:
            with self._opened() as fd:
                mark = copies.own_mark(fd, self._copy, self._location)
                if mark is None or not fill_marks.has_begun(fd, mark):
                    return
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                return  # there is no copy
            raise
        work = Work(self._places, self._location, _RATE)
        victim = Victim(self._copy, mark.identity, UNFILLED, 0, 0)
        with opened_parts(self._location) as parts, ExitStack() as stack:
            held = work.unused(parts, work.lock(parts, [victim], stack))
            for one in work.prove_and_condemn(parts, work.aside(parts, held)):
                work.remove(parts, one.entry, self._copy)
        if self._copy in work.result.kept:
            raise StowageError(f"copy {self._copy}: {work.result.kept[self._copy]}")


def end_on_signal() -> None:
    """Let the service manager's signal end the work as an error does, with all that is to be done then."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
