# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filling copies: what is known of the fill of a copy, and whether one has to be started.

Whoever prepares a worker asks :func:`look`. If the answer is ``filled`` or ``none`` the copy can be used. When it is
``wanted`` it tells the service manager to start :func:`unit`, without waiting (``systemctl start --no-block``): that
fills the copy, one at a time however many ask, and tries again by itself. Else it shows the message and asks again.

What is under way is recorded in ``/run/stowage/fills``: nothing of it is true after a restart of the host. What a fill
has left then is told by the mark on the copy, see ``fill_marks``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .. import records
from ..data_location.locations import DataLocation
from ..drives.declared import split_copy_name
from ..drives.recorded import Drive
from ..errors import Refusal, quoted
from ..owner import read_mark
from ..places import Places
from ..runs.holders import Holder
from ..sizes import Space, decimal
from ..syscalls import NO_DIRECTORY
from . import fill_marks
from . import present as copies

NONE, FILLED, WANTED, FILLING, FAILED = "none", "filled", "wanted", "filling", "failed"

FOREIGN = "it holds content that no fill of Stowage's has written, and no file .stowage-filled"
_UNIT = "stowage-fill@"
SOON_S = 30.0
"""Room is taken for a try from so long before it on: the daemon looks three times whether it has to make that room."""


@dataclass(frozen=True)
class Fill:
    """How it is with a copy that has to be filled before it is used."""

    state: str
    """``none`` (its drive needs no fill), ``filled``, ``wanted``, ``filling``, or ``failed`` (see the message)."""
    message: str = ""
    """Why a worker waits; empty when it need not."""

    @property
    def usable(self) -> bool:
        return self.state in (NONE, FILLED)


@dataclass(frozen=True)
class Record:
    """A fill that is under way, or has failed since the host was started."""

    copy: str
    identity: str
    """The drive's."""
    location: str
    """The data location's identity."""
    size_hint_bytes: int
    since: float
    """When somebody asked for it."""
    state: str = FILLING
    failures: int = 0
    message: str = ""
    """Why the last try failed."""
    written_bytes: int = 0
    """What is on the disk so far."""
    next_try: float = 0.0
    given_up: bool = False
    """Whether nobody tries again until it is asked for after that time."""
    pid: int = 0
    pid_start: int = 0

    @property
    def at_work(self) -> bool:
        """Whether the process is there that fills the copy, or waits to try again."""
        return self.pid != 0 and not Holder(pid=self.pid, pid_start=self.pid_start).ended

    @property
    def under_way(self) -> bool:
        """Whether a try is made, or is due soon. One that has failed takes no room for as long as it only waits."""
        return self.at_work and (self.state == FILLING or self.next_try <= time.time() + SOON_S)

    @property
    def reserved_bytes(self) -> int:
        """What it is still going to write, as far as that is known."""
        return max(0, self.size_hint_bytes - self.written_bytes) if self.under_way else 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def unit(copy: str) -> str:
    """Return the unit that fills a copy. The names of copies have no character that systemd would want escaped."""
    split_copy_name(copy)
    return f"{_UNIT}{copy}.service"


def is_unit(run: str) -> bool:
    """Return whether a run is named as what fills a copy is."""
    return run.startswith(_UNIT)


def directory(places: Places) -> str:
    return os.path.join(places.run, "fills")


def record_path(places: Places, copy: str) -> str:
    return os.path.join(directory(places), f"{copy}.json")


def load(places: Places, copy: str) -> Record | None:
    """Return what is known of the fill of a copy since the host was started.

    :raises RecordError: when it cannot be read
    """
    path = record_path(places, copy)
    value = records.read(path)
    try:
        return None if value is None else records.typed(Record, value)
    except TypeError as error:
        raise records.RecordError(f"{path}: not the record of a fill ({error}); remove it") from error


def load_all(places: Places) -> list[Record]:
    """Return what is known of all fills.

    :raises RecordError: when one cannot be read: then nobody knows what it reserves
    """
    try:
        names = sorted(os.listdir(directory(places)))
    except FileNotFoundError:
        return []
    suffix = ".json"
    found = [load(places, name[: -len(suffix)]) for name in names if name.endswith(suffix) and name[0] != "."]
    return [record for record in found if record is not None]


def write(places: Places, record: Record) -> None:
    records.write(record_path(places, record.copy), record.to_json(), 0o600)


def forget(places: Places, copy: str) -> None:
    records.remove(record_path(places, copy))


def waiting(drive: Drive, location: DataLocation) -> str:
    """Return what a worker waits for until a copy is filled, in Astraeus's words."""
    return f"Waiting for drive {drive.name} to be filled on {location.host}"


def look(places: Places, location_fd: int, location: DataLocation, drive: Drive) -> Fill:
    """Return how it is with the copy of *drive* in the data location open at *location_fd*.

    :raises StowageError: when that cannot be read
    """
    if drive.fill is None:
        return Fill(NONE)
    if not copies.waits_for_fill(location_fd, drive):
        return Fill(FILLED)
    text = waiting(drive, location)
    record = load(places, drive.copy_name)
    if record is not None and record.identity == drive.identity:
        if record.state == FAILED and (record.at_work or time.time() < record.next_try):
            return Fill(FAILED, f"{text}: the last try failed: {record.message}")
        if record.at_work:
            return Fill(FILLING, text)
    if is_foreign(location_fd, drive):
        return Fill(FAILED, f"{text}: {FOREIGN}; {_foreign_remedy(drive)}")
    return Fill(WANTED, text)


def is_foreign(location_fd: int, drive: Drive) -> bool:
    """Return whether a copy that waits for its fill holds what no fill has written: nothing may fill or clear it."""
    try:
        with copies.opened_copy(location_fd, drive.copy_name) as fd:
            mark = read_mark(fd)
            if mark is not None and fill_marks.has_begun(fd, mark):
                return False
            return not is_empty(fd, drive.path)
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            return False  # there is no copy; what else has its name is refused when one is made
        raise


def is_empty(copy_fd: int, path: str) -> bool:
    """Return whether nothing is in a copy, or nothing but the empty folder *path* and the directories that lead there.

    What is beside the folder counts: when a fill fails, the whole of the copy goes.
    """
    first, _slash, rest = path.partition("/")
    # Opened anew: btrfs does not list what has come since a directory was opened.
    with copies.opened(copy_fd, b".") as fd:
        names = os.listdir(fd)
        if not first or names != [first]:
            return not names
        try:
            with copies.opened(fd, os.fsencode(first)) as below:
                return is_empty(below, rest)
        except OSError as error:
            if error.errno in NO_DIRECTORY:
                return False
            raise


def foreign_refusal(drive: Drive) -> Refusal:
    return Refusal(f"copy {drive.copy_name}", FOREIGN, _foreign_remedy(drive))


def _foreign_remedy(drive: Drive) -> str:
    where = f" in its folder {quoted(drive.path)}" if drive.path else ""
    return f"make that file{where} when the content is whole, else move the content away"


def hand_over(location_fd: int, name: str) -> None:
    """Note durably that what the copy *name* holds is no longer just a fill's, before a worker is given it.

    The caller holds the copy's lock.
    """
    with copies.opened_copy(location_fd, name) as fd:
        fill_marks.remove(fd)


def is_kept(places: Places, location_fd: int, drive: Drive) -> bool:
    """Return whether a copy must stay because it is, or has yet to be, filled.

    One in which a fill was cut short, and which nobody fills now, holds nothing that anybody could use.
    """
    if not copies.waits_for_fill(location_fd, drive):
        return False
    record = load(places, drive.copy_name)
    if record is not None and record.at_work:
        return True
    try:
        with copies.opened_copy(location_fd, drive.copy_name) as fd:
            mark = read_mark(fd)
            return mark is None or not fill_marks.has_begun(fd, mark)
    except OSError:
        return True


def under_way(places: Places, location: DataLocation) -> Mapping[str, Record]:
    """Return the fills that are under way in a data location, by copy.

    :raises RecordError: when one cannot be read
    """
    return {one.copy: one for one in load_all(places) if one.location == location.identity and one.under_way}


def reserved_bytes(places: Places, location: DataLocation) -> int:
    """Return what the fills that are under way in a data location are still going to write."""
    return sum(record.reserved_bytes for record in under_way(places, location).values())


def too_large(drive: Drive, location: DataLocation, space: Space) -> str:
    """Return why a data location could never hold the copy of a drive, however much was evicted; else nothing."""
    hint = int(drive.spec["size_hint_bytes"]) if drive.spec is not None else 0
    if location.max_bytes and hint > location.max_bytes:
        return f"drive {drive.name} needs {decimal(hint)}; the limit here is {decimal(location.max_bytes)}"
    if hint > space.usable:
        return f"drive {drive.name} needs {decimal(hint)}; this disk has {decimal(space.usable)}"
    return ""
