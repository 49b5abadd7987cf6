# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measuring what lies on one filesystem: locations, drive sources, and the copies in the data location.

Everything here touches disks and runs in a child, which also keeps the records under /var/lib/stowage.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from stowage_core import copies, data_locations, mounts, records
from stowage_core.copies import Copy, CopyRecord
from stowage_core.data_locations import DRIVES, DataLocation
from stowage_core.drive_records import Drive
from stowage_core.drives import split_copy_name
from stowage_core.errors import StowageError
from stowage_core.measure import Engine, Scan, Usage
from stowage_core.mounts import FilesystemId, Mount
from stowage_core.pace import Pace
from stowage_core.places import Places
from stowage_core.sizes import Space

from . import probe
from .children import Send
from .declared import DATA_LOCATION, Target

SILENCE_S = 120.0
_BEAT_S = 1.0
_KEPT = ("bytes", "allocated", "files", "inodes", "measured")
"""What stays of the last complete measurement when a later one is not complete."""
_ENGINE: Engine = Scan(pace=Pace())


def record_path(places: Places, target: str) -> str:
    """Return where the last complete measurement of a target is kept, by its object's name."""
    kind, _slash, name = target.partition("/")
    directory = places.locations_dir if kind == "location" else os.path.join(places.var, "sources")
    return os.path.join(directory, name.replace("/", ".") + ".json")


@dataclass
class Measuring:
    """One child's round."""

    places: Places
    targets: Sequence[Target]
    location: DataLocation | None
    drives: Mapping[str, Drive]
    """By the name of their copy."""
    table: Sequence[Mount]

    def __call__(self, send: Send) -> None:
        _beat(send)
        for target in self.targets:
            if target.object == DATA_LOCATION:
                self._copies(target, send)
            else:
                send({"object": target.object, **self._target(target, send)})

    def _target(self, target: Target, send: Send) -> dict[str, Any]:
        try:
            fd, mount = probe.open_target(target, self.location, self.table)
        except StowageError as error:
            return {"complete": False, "reason": str(error)}
        try:
            filesystem = mounts.identify(fd, self.table)
            if self._is_unmounted(target, fd, filesystem):
                return {
                    "complete": False,
                    "reason": f"{target.path}: an empty directory on another filesystem than at the last measurement; "
                    "mount its disk",
                }
            usage = _ENGINE.measure(fd)
        finally:
            os.close(fd)
        figures = _figures(usage)
        if usage.complete:
            record = {**figures, "filesystem": filesystem.to_json()}
            _keep(send, lambda: records.write(record_path(self.places, target.object), record))
        return figures

    def _is_unmounted(self, target: Target, fd: int, filesystem: FilesystemId) -> bool:
        """Return whether the directory is only the place where a disk is missing: that must not become a zero."""
        record = records.read(record_path(self.places, target.object))
        if record is None or filesystem.matches(FilesystemId.from_json(record["filesystem"])):
            return False
        return not os.listdir(fd)

    def _copies(self, target: Target, send: Send) -> None:
        assert self.location is not None
        try:
            location_fd = data_locations.open_verified(self.location, self.table)
        except StowageError as error:
            send({"object": target.object, "complete": False, "reason": str(error)})
            return
        try:
            size = Space.of(location_fd).size
            found = copies.present(location_fd, self.location)
            for copy in found:
                send(self._copy(location_fd, copy, size, send))
            self._forget_gone({copy.name for copy in found}, send)
            send({"object": target.object, "complete": True, "copies": [copy.name for copy in found]})
        finally:
            os.close(location_fd)

    def _copy(self, location_fd: int, copy: Copy, filesystem_bytes: int, send: Send) -> dict[str, Any]:
        try:
            with copies.opened(location_fd, DRIVES + b"/" + os.fsencode(copy.name)) as fd:
                usage = _ENGINE.measure(fd)
        except OSError as error:
            return {
                "copy": copy.name,
                "identity": copy.identity,
                "created": copy.created,
                "complete": False,
                "reason": error.strerror,
            }
        workspace, drive = split_copy_name(copy.name)
        declared = self.drives.get(copy.name)
        filling = declared is not None and copies.waits_for_fill(location_fd, declared)
        before = copies.load_record(self.places, copy.name)
        figures = _figures(usage)
        if not usage.complete and before is not None and before.identity == copy.identity and before.bytes is not None:
            # What could not be read is not zero: the last complete figures stay.
            figures.update({key: getattr(before, key) for key in _KEPT})
        record = CopyRecord(
            workspace, drive, copy.identity, declared.path if declared is not None else "", **_recorded(figures)
        )
        _keep(send, lambda: copies.record_measured(self.places, copy.name, record, filesystem_bytes))
        return {"copy": copy.name, "identity": copy.identity, "created": copy.created, "filling": filling, **figures}

    def _forget_gone(self, present: set[str], send: Send) -> None:
        try:
            names = os.listdir(self.places.copies_dir)
        except FileNotFoundError:
            return
        for name in names:
            if name.endswith(".json") and not name.startswith(".") and name[: -len(".json")] not in present:
                _keep(send, functools.partial(copies.forget, self.places, name[: -len(".json")]))


def _figures(usage: Usage) -> dict[str, Any]:
    return {
        "bytes": usage.bytes,
        "allocated": usage.allocated,
        "files": usage.files,
        "inodes": usage.inodes,
        "complete": usage.complete,
        "measured": time.time(),
        "reason": "; ".join(usage.problems[:3]) if not usage.complete else "",
    }


def _recorded(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {key: figures[key] for key in (*_KEPT, "complete")}


def _keep(send: Send, write: Callable[[], object]) -> None:
    """Write a record; when its disk is full the measurement goes on, and the daemon says so."""
    try:
        write()
    except OSError as error:
        send({"say": f"{error.filename}: {error.strerror}; the record there stays as it was"})


def _beat(send: Send) -> None:
    """Show once a second that the child makes progress: a handler does not run while a system call hangs."""
    signal.signal(signal.SIGALRM, lambda _number, _frame: send({}))
    signal.setitimer(signal.ITIMER_REAL, _BEAT_S, _BEAT_S)
