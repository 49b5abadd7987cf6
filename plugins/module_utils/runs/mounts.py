# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The drives and volumes of a run's worker on this host: made ready, bound to the worker, let go.

A worker has all of its drives or none: what one call has mounted is taken back when another drive of it cannot be had,
and no mount is handed out while one of them is still waited for. So it is with the volumes that were asked for.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ..copies import fills
from ..differences import Differences
from ..drives import recorded as drive_records
from ..drives import refs as drive_refs
from ..drives.declared import Problems
from ..drives.permissions import Applied, Permissions
from ..drives.refs import DriveRef
from ..errors import Refusal, StowageError, one_line, printable
from ..locks import worker_lock
from ..mounts import read as read_mounts
from ..paths import overlap
from ..places import Places
from ..records import RecordError
from . import pinning, pins
from .drives import Look, Sight, Source
from .holders import Holder, busy_in, listed
from .pins import LEASED, READ_ONLY, RESERVED, Pin, Use

_PAUSE_S = 0.5
_MOST = 5


@dataclass(frozen=True)
class Worker:
    """Whose drives they are. Without a name: all workers of the run, where that makes sense."""

    run: str
    name: str = ""

    @classmethod
    def of(cls, run: str, name: str) -> Worker:
        pins.check_run(run)
        if fills.is_unit(run):
            raise Refusal(f"run {printable(run)}", "that is the name of what fills a copy", "name the run otherwise")
        if name:
            pins.check_run(name, "worker")
        return cls(run, name)

    @property
    def described(self) -> str:
        run = f"run {printable(self.run)}"
        return f"worker {printable(self.name)} of {run}" if self.name else run

    def of_it(self, found: Iterable[Pin]) -> list[Pin]:
        return [pin for pin in found if not self.name or pin.worker == self.name]


class Wanted(Protocol):
    """A drive, or a folder of a volume, that a worker is to have."""

    @property
    def name(self) -> str: ...

    @property
    def use(self) -> Use: ...

    def look(self, sight: Sight) -> Look: ...

    def take(self, run: str, worker: str, seconds: float, tell: Callable[[Applied], object] = ..., /) -> Pin: ...

    def foretell(self, sight: Sight) -> Applied | None: ...


@dataclass(frozen=True)
class Outcome:
    """What a worker has now."""

    mounts: list[dict[str, Any]]
    waiting: list[str]


def shown(use: Use) -> str:
    if use.volume:
        return f"volume {printable(os.path.join(use.volume, use.sub_path).rstrip('/'))}{_at(use)}"
    source = f", source {use.source}" if use.source else ""
    return f"drive {use.drive}{source}{_at(use)}"


def _at(use: Use) -> str:
    return f" at {printable(use.target)}" if use.target else ""


def _described(use: Use) -> str:
    below = f", folder {printable(use.sub_path)}" if use.sub_path else ""
    if use.volume:
        return f"volume {use.volume}{below}, {use.mode}"
    return f"drive {use.drive}, source {use.source}{below}, {use.mode}"


# -- Preparing


class Preparation:
    """All drives and volumes of one worker."""

    def __init__(
        self,
        places: Places,
        workspace: str,
        worker: Worker,
        wanted: Sequence[Wanted],
        start: Callable[[str], object],
        kept: Collection[Use] = (),
    ) -> None:
        self._places = places
        self._workspace = workspace
        self._worker = worker
        self._wanted = wanted
        self._start = start
        self._kept = kept

    @classmethod
    def of(
        cls,
        places: Places,
        host: str,
        workspace: str,
        worker: Worker,
        refs: Sequence[DriveRef],
        start: Callable[[str], object],
        volumes: Sequence[Wanted] = (),
        kept: Collection[Use] = (),
    ) -> Preparation:
        """Return the preparation of *refs*, which are drives of *workspace*, and of folders of volumes.

        :param start: starts a unit that something is waited for, without waiting for it
        :param kept: of what the worker has already, this stays although it cannot be looked at now
        :raises Refusal: when a drive does not exist, or is to be where a volume is
        """
        drives = {drive.name: drive for drive in drive_records.load(places, workspace) or []}
        wanted = drive_refs.resolve(refs, [drive.declared for drive in drives.values()])
        gone = [f"drive {one.name} does not exist" for one in wanted if one.spec is None]
        if gone:
            raise Problems(gone)
        sources = [Source(places, host, drives[one.name], one.ref) for one in wanted]
        for source, volume in itertools.product(sources, volumes):
            target, other = source.use.target, volume.use.target
            if target and overlap(target, other):
                rule = f"its mount_path {printable(target)} overlaps {printable(other)}, where {volume.name} is to be"
                raise Refusal(source.name, rule, "choose a mount_path, or a volumes_dir, apart from it")
        return cls(places, workspace, worker, [*sources, *volumes], start, kept)

    def run(self, seconds: float, differences: Differences) -> Outcome:
        """Mount what can be mounted, reserved for *seconds*, and let go of what is not asked for any more."""
        if differences.check_mode:
            return self._run(seconds, differences)
        with worker_lock(self._places, self._worker.run):
            return self._run(seconds, differences)

    def _run(self, seconds: float, differences: Differences) -> Outcome:
        present = {pin.use: pin for pin in self._present()}
        sight = Sight()
        looks = self._look(sight)
        uses = [one.use for one in self._wanted]
        left = [pin for use, pin in present.items() if use not in uses and use not in self._kept]
        check_unused(self._places, self._worker, left, "is not asked for any more and ")

        ready = [(one, look) for one, look in zip(self._wanted, looks) if not look.waits]
        numbers = self._mount(ready, present, sight, seconds, differences)
        for pin in left:
            differences.note(_name(pin.worker, pin.use), None, _described(pin.use))
            differences.do(f"unmount {shown(pin.use)}", partial(_let_go, self._places, pin))
        for look in looks:
            if look.starts:
                differences.note(look.starts, "started", "not started")
                differences.do(f"start {look.starts}", partial(self._start, look.starts))
        waiting = [look.waits for look in looks if look.waits]
        return Outcome([] if waiting else [self._mounted(use, numbers[use]) for use in uses], waiting)

    def _look(self, sight: Sight) -> list[Look]:
        """Look at everything before anything is mounted, and refuse with all that is in the way of any."""
        looks, problems = [], []
        for one in self._wanted:
            try:
                looks.append(one.look(sight))
            except Refusal as error:
                problems.append(str(error))
        if problems:
            raise Problems(dict.fromkeys(problems))
        return looks

    def _present(self) -> list[Pin]:
        """Return the worker's pins.

        :raises Refusal: when it is the namesake of another workspace's, whose drives it would take, or of another run's
        """
        found = [pin for pin in pins.of_run(self._places, self._worker.run) if pin.worker == self._worker.name]
        runs = {one.use.run_of for one in self._wanted if one.use.volume}
        for pin in found:
            rule = ""
            if pin.volume and runs and pin.run_of not in runs:
                rule = f"it has volumes of run {printable(pin.run_of)} already"
            elif not pin.volume and pin.workspace != self._workspace:
                rule = f"it has drives of workspace {pin.workspace} already"
            if rule and not pins.stale(pin):
                raise Refusal(self._worker.described, rule, "name it otherwise, or release that one first")
        return found

    def _mount(
        self,
        ready: Sequence[tuple[Wanted, Look]],
        present: dict[Use, Pin],
        sight: Sight,
        seconds: float,
        differences: Differences,
    ) -> dict[Use, int]:
        """Mount what is not mounted yet, and renew the reservation of what is; return the numbers of all."""
        mounted = {mount.point for mount in sight.mounts}
        numbers: dict[Use, int] = {}
        made: list[Pin] = []
        free = _free_numbers(self._places, self._worker.run)
        for wanted, look in ready:
            use = wanted.use
            pin = present.get(use)
            there = pin is not None and not pins.stale(pin) and os.path.realpath(pin.path(self._places)) in mounted
            if not there:
                differences.note(_name(self._worker.name, use), _described(use), None)
            given: list[Applied] = []
            if not differences.check_mode:
                try:
                    taken = wanted.take(self._worker.run, self._worker.name, seconds, given.append)
                except (StowageError, OSError) as error:
                    _note_given(wanted, given, differences)
                    raise self._taken_back(made, error, differences) from error
                numbers[use] = taken.number
                made += [taken] if pin is None else []
            else:
                numbers[use] = pin.number if pin is not None else next(free)
                foretold = None if look.makes else wanted.foretell(sight)
                given += [foretold] if foretold is not None else []
            if look.makes:
                differences.act(f"make {look.makes}")
            _note_given(wanted, given, differences)
            if not there:
                differences.act(f"mount {shown(use)}, {use.mode}")
        return numbers

    def _taken_back(self, made: Sequence[Pin], error: StowageError | OSError, differences: Differences) -> Exception:
        """Let go of what this call has mounted, and return the error that says so."""
        text = one_line(error)
        if not made:
            return StowageError(text)
        left = []
        for pin in reversed(made):
            try:
                _let_go(self._places, pin)
            except (StowageError, OSError) as other:
                left.append(str(other))
            else:
                differences.act(f"unmount {shown(pin.use)} again")
        what = ", ".join(shown(pin.use) for pin in made)
        rest = f", but for this: {'; '.join(left)}" if left else ""
        return StowageError(f"{text}; what was mounted before that was taken back: {what}{rest}")

    def _mounted(self, use: Use, number: int) -> dict[str, Any]:
        what: dict[str, Any] = {"drive": use.drive, "source_index": use.source}
        if use.volume:
            what = {"volume": use.volume, "sub_path": use.sub_path, "run_of": use.run_of}
        return {
            "source": os.path.join(self._places.pins_dir, self._worker.run, str(number)),
            "target": use.target,
            "read_only": use.mode == READ_ONLY,
            **what,
        }


def take(source: Source, worker: Worker, seconds: float) -> Pin:
    """Mount one drive for a worker, beside those that it has.

    :raises Refusal: also when it has to be waited for
    """
    with worker_lock(source.places, worker.run):
        look = source.look(Sight())
        if look.waits:
            raise Refusal(source.name, look.waits, "try again later")
        return source.take(worker.run, worker.name, seconds)


def _name(worker: str, use: Use) -> str:
    return f"worker {printable(worker)}:{_at(use) or ' ' + use.drive}"


def _note_given(source: Wanted, given: Iterable[Applied], differences: Differences) -> None:
    """Note that a drive got its declared owner and mode back: once, also when a worker has it twice."""
    if not isinstance(source, Source):
        return  # of a volume nothing is ever changed
    path = source.path or source.drive.copy_name
    wanted = Permissions.of(source.drive.spec or {})
    name = f"{source.drive.workspace}/{source.drive.name} {path}"
    for applied in given:
        action = applied.action(path)
        if action not in differences.actions and differences.note(name, *wanted.compared(applied)):
            differences.act(action)


def _free_numbers(places: Places, run: str) -> Iterator[int]:
    """Yield the numbers that new pins of a run will have."""
    try:
        taken = set(os.listdir(os.path.join(places.pins_dir, run)))
    except FileNotFoundError:
        taken = set()
    number = 0
    while True:
        number += 1
        if str(number) not in taken:
            yield number


# -- Confirming


def confirm(
    places: Places, worker: Worker, cgroup: str, pid: int, differences: Differences, *, number: int | None = None
) -> None:
    """Bind the drives of a worker to its processes: the leases last as long as they do.

    :param number: of all of these the one pin with this number
    """
    if number is None:
        found = worker.of_it(pins.of_run(places, worker.run))
    else:
        there = number in pins.numbers(places, worker.run)
        found = worker.of_it([pins.get(places, worker.run, number)] if there else [])
        if not found:
            raise _no_such_lease(places, worker, number)
    if not found:
        raise Refusal(
            worker.described, "has no drives on this host", "prepare them first; what was not confirmed lapses"
        )
    holder = Holder.of(cgroup, pid, worker.described)
    for pin in found:
        if pin.state != LEASED or pin.holder != holder:
            differences.note(f"{_name(pin.worker, pin.use)} held by", holder.described, _held_by(pin))
            differences.do(
                f"bind {shown(pin.use)} to {holder.described}",
                partial(pinning.confirm, places, pin.run, pin.number, cgroup=cgroup, pid=pid),
            )
        elif pin.deadline and not differences.check_mode:
            # It was prepared again meanwhile: from now on it ends with its holder.
            pinning.confirm(places, pin.run, pin.number, cgroup=cgroup, pid=pid)


def _held_by(pin: Pin) -> str:
    return "a reservation" if pin.state == RESERVED else pin.holder.described


# -- Releasing


def release(
    places: Places,
    worker: Worker,
    differences: Differences,
    timeout_s: float = 0.0,
    *,
    force: bool = False,
    number: int | None = None,
) -> None:
    """Let go of the drives of a worker, or of all workers of a run.

    :param timeout_s: how long to wait for what still uses them
    :param force: although what they are bound to is still there; never while the kernel shows one of them in use
    :param number: of all of these the one pin with this number
    :raises Refusal: when something still uses one of them: then all stay
    """
    if differences.check_mode:
        _release(places, worker, differences, 0.0, force, number)
        return
    with worker_lock(places, worker.run, max(60.0, timeout_s + 30.0)):
        _release(places, worker, differences, timeout_s, force, number)


def _release(
    places: Places, worker: Worker, differences: Differences, timeout_s: float, force: bool, number: int | None
) -> None:
    found, damaged = _readable(places, worker, number)
    end = time.monotonic() + timeout_s
    _until(end, partial(check_unused, places, worker, found, "", force))
    for pin in found:
        differences.note(_name(pin.worker, pin.use), None, _described(pin.use))
        despite = f", although it is held by {pin.holder.described}" if pin.is_held else ""
        differences.do(f"unmount {shown(pin.use)}{despite}", partial(_until, end, partial(_let_go, places, pin)))
    for one in damaged:
        differences.note(f"pin {one}", None, "a record that cannot be used")
        differences.do(f"unmount pin {one}", partial(pinning.release, places, worker.run, one))


def _readable(places: Places, worker: Worker, number: int | None) -> tuple[list[Pin], list[int]]:
    """Return the pins, and the numbers of those whose record cannot be used: they go with their run only."""
    found, damaged = [], []
    for one in pins.numbers(places, worker.run):
        if number in (None, one):
            try:
                found.append(pins.get(places, worker.run, one))
            except RecordError:
                if worker.name:
                    raise
                damaged.append(one)
    found = worker.of_it(found)
    if number is not None and not found and not damaged:
        raise _no_such_lease(places, worker, number)
    return found, damaged


def _no_such_lease(places: Places, worker: Worker, number: int) -> Refusal:
    def of(name: str) -> str:
        return f" of worker {printable(name)}" if name else ""

    run = printable(worker.run)
    of_run = [pin for pin in pins.readable(places)[0] if pin.run == worker.run]
    there = [f"{run}/{pin.number}{of(pin.worker)}" for pin in of_run[:_MOST]]
    more = f" and {len(of_run) - _MOST} more" if len(of_run) > _MOST else ""
    remedy = f"there is {', '.join(there)}{more}" if there else "see stowage lease list"
    return Refusal(f"lease {run}/{number}", f"there is no such lease{of(worker.name)}", remedy)


def _until(end: float, attempt: Callable[[], object]) -> None:
    while True:
        try:
            attempt()
            return
        except Refusal:
            if time.monotonic() >= end:
                raise
        time.sleep(_PAUSE_S)


def _let_go(places: Places, pin: Pin) -> None:
    pinning.release(places, pin.run, pin.number)


def check_unused(places: Places, worker: Worker, found: Sequence[Pin], why: str, force: bool = False) -> None:
    """Refuse to let go of pins that somebody still uses, with who does.

    A container has a mount of its own, and does not keep the kernel from unmounting the pin: what has been confirmed is
    in use as long as its processes are there.

    :param force: go by what the kernel shows alone
    """
    in_use = []
    for pin, pids in _busy(places, found):
        if pin.is_held and not force:
            in_use.append((pin, pin.holder.described))
        elif pids:
            in_use.append((pin, listed(pids)))
    if in_use:
        texts = [f"{shown(pin.use)} {why}is still used by {who}" for pin, who in in_use]
        raise Refusal(worker.described, ", ".join(texts), "end that first")


def _busy(places: Places, found: Sequence[Pin]) -> list[tuple[Pin, set[int]]]:
    ids = {mount.point: mount.id for mount in read_mounts()}
    at = [(pin, ids.get(os.path.realpath(pin.path(places)))) for pin in found]
    busy = busy_in([number for _pin, number in at if number is not None])
    return [(pin, busy.get(number, set()) if number is not None else set()) for pin, number in at]
