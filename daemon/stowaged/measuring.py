# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measuring what lies on one filesystem: locations, drive sources, tiers, and the copies in the data location.

Everything here touches disks and runs in a child, which also keeps the records under /var/lib/stowage.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Callable, Protocol

from stowage_core import mounts, records
from stowage_core.copies import present as copies
from stowage_core.copies.present import Copy, CopyRecord
from stowage_core.data_location import locations as data_locations
from stowage_core.data_location.locations import DataLocation
from stowage_core.drives.declared import split_copy_name
from stowage_core.drives.recorded import Drive
from stowage_core.errors import StowageError, one_line
from stowage_core.mounts import FilesystemId, Mount
from stowage_core.paths import is_within
from stowage_core.places import Places
from stowage_core.runs import holders, pins
from stowage_core.sizes import Space
from stowage_core.trees.measure import Engine, Scan, Usage
from stowage_core.trees.pace import Pace, Pacer
from stowage_core.trees.parts import Begins, Names, Part, measure_parts
from stowage_core.trees.walk import Directory

from . import buckets, credentials, probe, shares
from .children import Send
from .declared import DATA_LOCATION, ROOT, Target
from .last_measured import KEPT_OF_COPY, PARTIAL, last_measured, record_path
from .shares import RunsSharing, Sharing

SILENCE_S = 120.0
_BEAT_S = 1.0
_GAP_LOOKS = 3
"""How many intervals between two looks count as time in which a copy was seen unused."""
_PACE = Pace()
_ENGINE: Engine = Scan(pace=_PACE)


class Trees(Protocol):
    """What counts the trees of a round."""

    def measure(self, fd: int) -> Usage:
        """Return what the tree at *fd* holds."""

    def measure_parts(self, fd: int, begins: Begins, deepest: int, left_out: Names | None) -> None:
        """Count the tree at *fd*, and tell each part what it holds.

        :param left_out: the way to a directory where *begins* says None: nothing below it is to be held open
        """

    def listed(self, fd: int) -> float | None:
        """Return when it began to look at all of that tree; None where it does so each time."""


class Scanning:
    """Looks at every file each time."""

    def measure(self, fd: int) -> Usage:
        return _ENGINE.measure(fd)

    def measure_parts(self, fd: int, begins: Begins, deepest: int, left_out: Names | None) -> None:
        measure_parts(fd, begins, deepest, _PACE)

    def listed(self, fd: int) -> float | None:
        return None


@dataclass(frozen=True)
class _Walked:
    """A target that a walk comes across."""

    target: Target
    filesystem: FilesystemId
    sharing: Sharing | None
    """What finds out whose it is."""

    @property
    def deepest(self) -> int:
        return 0 if self.sharing is None else self.sharing.deepest

    @property
    def rest(self) -> bool:
        """Whether what lies in other targets is not counted."""
        return self.target.object == ROOT

    @property
    def is_plain(self) -> bool:
        """Whether nobody wants to know more than how much is in it."""
        return self.sharing is None and not self.rest

    @property
    def hides(self) -> bool:
        """Whether what is in it is no rest of what is around: the source of a drive is, for it may lie anywhere."""
        return self.target.object.startswith(("location/", "tier/"))


@dataclass
class Measuring:
    """One child's round."""

    places: Places
    targets: Sequence[Target]
    location: DataLocation | None
    drives: Mapping[str, Drive]
    """By the name of their copy."""
    table: Sequence[Mount]
    scan_interval_s: float = 0.0
    known: Mapping[str, str] = field(default_factory=dict)
    """Buckets whose descriptions need not be read again, by the object's name of their tier."""

    _real: dict[str, str] = field(init=False, default_factory=dict)
    """Where each target really is, by its object's name: others may be declared by another way there."""
    _trees: Trees = field(init=False, default_factory=Scanning)

    def __call__(self, send: Send, trees: Trees | None = None) -> None:
        """Measure, and send what was found.

        :param trees: what counts; every file is looked at when it is left out
        """
        self._trees = trees or self._trees
        _beat(send)
        # What contains others comes before them, and counts them along.
        self._real = {target.object: os.path.realpath(target.path) for target in self.targets}
        waiting = sorted(self.targets, key=lambda target: len(self._real[target.object]))
        while waiting:
            target = waiting.pop(0)
            if target.object == DATA_LOCATION:
                self._copies(target, send)
            else:
                counted = self._target(target, waiting, send)
                waiting = [other for other in waiting if other.object not in counted]

    def _target(self, target: Target, waiting: Sequence[Target], send: Send) -> set[str]:
        """Measure a target, and those *waiting* that lie in it; return which of these were counted."""
        try:
            fd, filesystem = self._open(target, send)
        except StowageError as error:
            self._fail(target, "" if isinstance(error, probe.UnmadeError) else str(error), send)
            return set()
        outer = self._walked(target, filesystem, send)
        inside = self._inner(target, waiting, send)
        inside.setdefault((), []).insert(0, outer)
        left_out = self._left_out(target)
        reach = [len(names) + one.deepest for names, ones in inside.items() for one in ones]
        deepest = max(*reach, len(left_out or ()))
        counted: set[str] = set()
        began = time.time()

        def take(one: _Walked, usage: Usage) -> None:
            self._count(one, usage, self._trees.listed(fd) or began, target.path, send)
            counted.add(one.target.object)

        def begins(names: Names, directory: Directory) -> list[Part] | None:
            if names == left_out:
                return None
            parts: list[Part] = []
            for length in range(len(names) + 1):
                for one in inside.get(names[:length], ()):
                    if length == len(names):
                        parts.append(Part(functools.partial(take, one), rest=one.rest, hides=one.hides))
                    if one.sharing is not None:
                        parts.extend(one.sharing.begins(names[length:], directory))
            return parts

        try:
            if deepest == 0 and inside[()] == [outer] and outer.is_plain:
                take(outer, self._trees.measure(fd))
            else:
                self._trees.measure_parts(fd, begins, deepest, left_out)
        finally:
            os.close(fd)
        return counted

    def _walked(self, target: Target, filesystem: FilesystemId, send: Send) -> _Walked:
        return _Walked(target, filesystem, shares.of_target(self.places, target, send))

    def _open(self, target: Target, send: Send) -> tuple[int, FilesystemId]:
        """Return a descriptor of a target and its filesystem.

        :raises StowageError: when it is not there, or is only the place where its disk is missing
        """
        fd, _mount, self.table = probe.open_target(self.places, target, self.location, self.table, send)
        try:
            return fd, mounts.identify(fd, self.table)
        except BaseException:
            os.close(fd)
            raise

    def _inner(self, target: Target, waiting: Sequence[Target], send: Send) -> dict[Names, list[_Walked]]:
        """Return the targets in another one by the way there."""
        found: dict[Names, list[_Walked]] = {}
        for other in waiting:
            path, around = self._real[other.object], self._real[target.object]
            if other.object == DATA_LOCATION or not is_within(path, around):
                continue
            try:
                fd, filesystem = self._open(other, send)
            except StowageError:
                continue  # it says why when its own turn comes
            os.close(fd)
            found.setdefault(_way(path, around), []).append(self._walked(other, filesystem, send))
        return found

    def _left_out(self, target: Target) -> Names | None:
        """Return the way from the root to the data location, whose copies are measured by another child."""
        location = self.location
        if target.object == ROOT and location is not None:
            for root in (target.path, self._real[ROOT]):
                if is_within(location.path, root):
                    return _way(location.path, root)
        return None

    def _count(self, one: _Walked, usage: Usage, listed: float, where: str, send: Send) -> None:
        """Take on what a target holds, counted with what is at *where*, of which all was looked at since *listed*."""
        if one.sharing is not None and one.sharing.is_for_quotas:
            usage = shares.nothing_hidden(usage)
        figures = {**_figures(usage, where), "listed": listed}
        if isinstance(one.sharing, RunsSharing):
            runs = one.sharing.runs
            _keep(send, functools.partial(runs.write, one.target.path, usage.complete))
            figures["runs"] = runs.summary()
        found = None if one.sharing is None else one.sharing.shares(usage.complete)
        if found is not None:
            figures["shares"] = found.to_json()
        self._take(one.target, one.filesystem, figures, send)

    def _take(self, target: Target, filesystem: FilesystemId, figures: Mapping[str, Any], send: Send) -> None:
        if target.object in credentials.CACHES:
            figures = {**figures, "credentials": self._credentials(target, send)}
        if not figures["complete"]:
            self._fail(target, figures["reason"], send, {key: figures[key] for key in PARTIAL if key in figures})
            return
        known = ""
        if target.claim is not None:
            try:
                inside, known = self._tier(target, send)
                figures = {**figures, "tier": inside}
            except StowageError as error:
                self._fail(target, str(error), send)
                return
            except OSError as error:
                self._fail(target, f"{target.path}: {error.strerror}", send)
                return
        record = {**figures, "path": target.path, "filesystem": filesystem.to_json()}
        _keep(send, lambda: records.write(record_path(self.places, target.object), record))
        send({"object": target.object, **figures, **({"known": known} if known else {})})

    def _credentials(self, target: Target, send: Send) -> list[str] | None:
        """Return the files in a cache that are called as credentials are, and record the event of a new one.

        They are at a few places, which may be seen where not all of the cache can be counted. None: nobody knows.
        """
        before: list[str] | None = last_measured(self.places, target, send).get("credentials")
        try:
            fd, _filesystem = self._open(target, send)
            try:
                found = credentials.find(fd, target.path, self._is_beside(target))
            finally:
                os.close(fd)
        except (StowageError, OSError) as error:
            send({"say": f"{one_line(error, target.path)}; whether credentials are there is as it was last known"})
            return before
        credentials.tell(self.places, target.object, found, before or ())
        return found

    def _is_beside(self, target: Target) -> bool:
        """Return whether credentials may lie beside a cache, where no other cache that is looked into is around it."""
        caches = [one.path for one in self.targets if one.object in credentials.CACHES and one is not target]
        around = os.path.dirname(target.path)
        return target.object in credentials.BESIDE and not any(is_within(around, path) for path in caches)

    def _tier(self, target: Target, send: Send) -> tuple[dict[str, Any], str]:
        """Return what is in a tier beside its size, with the space of its filesystem, and the buckets known now.

        Sizes and space are compared, and a tier may grow by much until the next measurement.
        """
        fd, _filesystem = self._open(target, send)
        try:
            space = asdict(Space.of(fd))
            if not target.buckets:
                return {"buckets": None, "space": space}, ""
            before = buckets.recalled(self.known.get(target.object, ""))
            found, known = buckets.count(fd, Pacer(_PACE).step, before)
            return {"buckets": asdict(found), "space": space}, buckets.remembered(known)
        finally:
            os.close(fd)

    def _fail(self, target: Target, reason: str, send: Send, partly: Mapping[str, Any] | None = None) -> None:
        """Say that a measurement was not complete, and record it beside the last complete figures.

        :param partly: what is known nevertheless, as it tells itself what it lacks
        """
        record = last_measured(self.places, target, send)
        if record or partly:
            record.update(path=target.path, complete=False, reason=reason, **(partly or {}))
            _keep(send, lambda: records.write(record_path(self.places, target.object), record))
        send({"object": target.object, "complete": False, "reason": reason, **(partly or {})})

    def _copies(self, target: Target, send: Send) -> None:
        location = self.location
        assert location is not None
        try:
            location_fd = data_locations.open_verified(location, self.table)
        except StowageError as error:
            self._fail(target, str(error), send)
            return
        try:
            size = Space.of(location_fd).size
            found = copies.present(location_fd, location)
            totals = dict.fromkeys(("bytes", "allocated", "files"), 0)
            reason = ""
            for copy in found:
                answer = self._copy(location_fd, copy, size, send)
                send(answer)
                reason = reason or answer["reason"]
                totals = {key: total + (answer.get(key) or 0) for key, total in totals.items()}
            _keep(send, lambda: copies.forget_gone(self.places, location_fd, location))
            self._keep_totals(target, totals, reason, send)
            send({"object": target.object, "complete": True, "copies": [copy.name for copy in found]})
        finally:
            os.close(location_fd)

    def _keep_totals(self, target: Target, totals: Mapping[str, int], reason: str, send: Send) -> None:
        """Record what all copies take, to be shown until they are listed again after a start."""
        path = record_path(self.places, target.object)
        record = {**totals, "path": target.path, "complete": True, "measured": time.time(), "reason": ""}
        if reason:
            record = {**last_measured(self.places, target, send), "complete": False, "reason": reason}
        _keep(send, lambda: records.write(path, record))

    def _copy(self, location_fd: int, copy: Copy, filesystem_bytes: int, send: Send) -> dict[str, Any]:
        before, damage = self._before(copy, send)
        # A last use that cannot be read any more may be as late as now.
        last_used = time.time() if damage else before.last_used if before is not None else None
        known = {
            "copy": copy.name,
            "identity": copy.identity,
            "created": copy.created,
            "last_used": last_used,
            "unused_s": self._unused_s(copy, send),
        }
        try:
            with copies.opened_copy(location_fd, copy.name) as fd:
                began = time.time()
                usage = self._trees.measure(fd)
                listed = self._trees.listed(fd) or began
        except OSError as error:
            return {**known, "complete": False, "reason": f"copy {copy.name}: {error.strerror}"}
        workspace, drive = split_copy_name(copy.name)
        declared = self.drives.get(copy.name)
        filling = declared is not None and copies.waits_for_fill(location_fd, declared)
        figures = {**_figures(usage, f"copy {copy.name}"), "linked": usage.linked}
        if not usage.complete and before is not None and before.bytes is not None:
            # What could not be read is not zero: the last complete figures stay.
            figures.update({key: getattr(before, key) for key in KEPT_OF_COPY})
        record = CopyRecord(
            workspace, drive, copy.identity, declared.path if declared is not None else "", **_recorded(figures)
        )
        if damage:
            made_anew = replace(record, last_used=last_used)
            _keep(send, lambda: copies.write_record(self.places, copy.name, made_anew))
        else:
            _keep(send, lambda: copies.record_measured(self.places, copy.name, record, filesystem_bytes))
        return {**known, "filling": filling, **figures, "listed": listed}

    def _unused_s(self, copy: Copy, send: Send) -> float:
        """Return for how long a copy was watched while nobody used it, if its drive may be unused for so long only."""
        drive = self.drives.get(copy.name)
        if drive is None or drive.identity != copy.identity or not drive.idle_ttl_s:
            return 0.0
        try:
            if any(pin.copy == copy.name for pin in pins.all_pins(self.places)):
                copies.touch_used(self.places, copy.name, copy.identity, drive.path)
                return 0.0
            boot, now = holders.boot_id(), time.clock_gettime(time.CLOCK_BOOTTIME)
            return copies.watch(self.places, copy, drive.idle_ttl_s, boot, now, _GAP_LOOKS * self.scan_interval_s)
        except StowageError as error:
            if not isinstance(error, records.RecordError):  # that is told, and the record made anew
                send({"say": str(error)})
        except OSError as error:
            send({"say": f"{one_line(error)}; this look does not count as one at a copy that is unused"})
        return 0.0

    def _before(self, copy: Copy, send: Send) -> tuple[CopyRecord | None, bool]:
        """Return what is recorded of a copy, and whether the record is damaged."""
        try:
            before = copies.load_record(self.places, copy.name)
        except records.RecordError as error:
            send({"say": f"{error}; it is made anew, as if the copy was used now"})
            return None, True
        return before if before is not None and before.identity == copy.identity else None, False


def _way(path: str, directory: str) -> Names:
    """Return the names on the way from a directory to *path* in it."""
    return tuple(filter(None, path[len(directory.rstrip("/")) :].split("/")))


def _figures(usage: Usage, where: str) -> dict[str, Any]:
    return {
        "bytes": usage.bytes,
        "allocated": usage.allocated,
        "files": usage.files,
        "inodes": usage.inodes,
        "complete": usage.complete,
        "measured": time.time(),
        "reason": f"{where}: {'; '.join(usage.problems[:3])}" if not usage.complete else "",
    }


def _recorded(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {key: figures[key] for key in (*KEPT_OF_COPY, "complete")}


def _keep(send: Send, write: Callable[[], object]) -> None:
    """Write a record; when its disk is full the measurement goes on, and the daemon says so."""
    try:
        write()
    except StowageError as error:
        send({"say": str(error)})
    except OSError as error:
        send({"say": f"{one_line(error)}; the record there stays as it was"})


def _beat(send: Send) -> None:
    """Show once a second that the child makes progress: a handler does not run while a system call hangs."""
    signal.signal(signal.SIGALRM, lambda _number, _frame: send({}))
    signal.setitimer(signal.ITIMER_REAL, _BEAT_S, _BEAT_S)


def rest() -> None:
    """Show nothing any more: the child waits, and nobody waits for it."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)
