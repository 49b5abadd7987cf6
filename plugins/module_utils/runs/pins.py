# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pins: a worker's lease of a drive, or of a volume's folder, held by the kernel as a bind mount.

The worker is given the mount ``/run/stowage/pins/<run>/<n>`` and nothing else, so its use of the drive shows in this
host's mount table and follows renames. A record beside it says whose it is. It is written before the mount is made: no
mount is without one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from .. import records
from ..drives import recorded as drive_records
from ..drives.declared import copy_name
from ..errors import Refusal, printable, quoted
from ..places import Places
from .holders import Holder, boot_id, boot_time

RESERVED, LEASED = "reserved", "leased"
READ_ONLY, READ_WRITE = "ReadOnly", "ReadWrite"
DELETED_BY_FORCE = "its drive was deleted by force"


class Use(NamedTuple):
    """What of a drive or a volume a worker has, and how."""

    workspace: str
    drive: str
    """Empty for a volume, like the workspace."""
    source: int
    """The number of the drive's source."""
    source_path: str
    """Where the source, or the volume, is on this host; empty for a copy of a placed drive."""
    sub_path: str
    """Below the source, or below the copy's directory, the drive's own folder included; empty for all of it."""
    mode: str
    target: str = ""
    """Where the worker has it; empty when nobody has said."""
    volume: str = ""
    """The volume, when it is of one."""
    run_of: str = ""
    """The run, as ``user/experiment/run_id``, that the folder of the volume is granted to."""
    run_team: str = ""
    """The team of that run, by which it was judged; empty for none."""


@dataclass(frozen=True)
class Pin:
    """One lease of one drive, or of a folder of a volume, with the fields of its :class:`Use`."""

    run: str
    number: int
    worker: str
    workspace: str
    drive: str
    source: int
    source_path: str
    sub_path: str
    mode: str
    target: str
    state: str
    """``reserved`` until something is known that ends with the run, then ``leased``."""
    deadline: float
    """Until when a reservation is good, in seconds since the host was started; a lease has one when it was prepared
    again, and ends when its holder and that have ended."""
    boot_id: str
    created: float
    cgroup: str = ""
    """The directory of the run's cgroup."""
    cgroup_inode: int = 0
    pid: int = 0
    pid_start: int = 0
    volume: str = ""
    run_of: str = ""
    run_team: str = ""
    reader: int = -1
    """The number of the user who alone reaches it beside root; below 0 for everybody who knows the run's name."""

    def path(self, places: Places) -> str:
        """Return where the drive is mounted for the worker."""
        return path_of(places, self.run, self.number)

    def record_path(self, places: Places) -> str:
        return self.path(places) + ".json"

    @property
    def use(self) -> Use:
        return Use(*(getattr(self, name) for name in Use._fields))

    @property
    def copy(self) -> str:
        """The name of the copy that it holds; empty when it holds a source that is no copy."""
        return "" if self.source_path else copy_name(self.workspace, self.drive)

    @property
    def held_by(self) -> str:
        """Run and worker, as ``finetune/w0``."""
        return f"{self.run}/{self.worker}" if self.worker else self.run

    @property
    def holder(self) -> Holder:
        return Holder(self.cgroup, self.cgroup_inode, self.pid, self.pid_start)

    @property
    def is_held(self) -> bool:
        """Whether what it was bound to is still there, or that cannot be told."""
        return self.state == LEASED and self.boot_id == boot_id() and not self.holder.ended

    @property
    def left_s(self) -> float:
        """For how long it is still reserved."""
        return max(0.0, self.deadline - boot_time()) if self.boot_id == boot_id() else 0.0

    @property
    def described(self) -> str:
        return f"pin {printable(self.run)}/{self.number}"

    @classmethod
    def from_json(cls, run: str, number: int, value: Mapping[str, Any]) -> Pin:
        return records.typed(cls, {**value, "run": run, "number": number})

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        del value["number"]
        return value


def path_of(places: Places, run: str, number: int) -> str:
    """Return where a pin is mounted."""
    return os.path.join(places.pins_dir, run, str(number))


def check_run(value: str, name: str = "run") -> str:
    """Return *value* when it can name a run, or a worker of one: a run's name is that of a directory."""
    if not value or value in (".", "..") or "/" in value or not value.isprintable() or len(os.fsencode(value)) > 255:
        rule = f"a {name}'s name is printable, at most 255 bytes, without a slash, not . or .."
        raise Refusal(f"{name} {quoted(value)}", rule)
    return value


def get(places: Places, run: str, number: int) -> Pin:
    pin = read(places, check_run(run), number)
    if pin is None:
        raise Refusal(f"pin {printable(run)}/{number}", "there is no such pin", "see stowage lease list")
    return pin


def read(places: Places, run: str, number: int) -> Pin | None:
    """Return what is recorded of a pin; None without a record.

    :raises RecordError: when that cannot be used
    """
    path = path_of(places, run, number) + ".json"
    try:
        value = records.read(path)
        return None if value is None else Pin.from_json(run, number, value)
    except (records.RecordError, TypeError) as error:
        rule = f"its record cannot be used ({error})"
        remedy = f"let go of it: stowage lease release {quoted(run)} {number}"
        raise records.RecordError(f"pin {printable(run)}/{number}: {rule}; {remedy}") from error


def of_run(places: Places, run: str) -> list[Pin]:
    """Return the pins of *run*, in the order of their numbers."""
    found = []
    for number in numbers(places, run):
        pin = read(places, run, number)
        if pin is not None:
            found.append(pin)
    return found


def all_pins(places: Places) -> list[Pin]:
    """Return every pin of this host.

    :raises RecordError: when one cannot be read: then nobody knows what it holds
    """
    return [pin for run in _runs(places) for pin in of_run(places, run)]


def all_names(places: Places) -> list[tuple[str, int]]:
    """Return run and number of every pin of this host, whether its record can be used or not."""
    return [(run, number) for run in _runs(places) for number in numbers(places, run)]


def readable(places: Places) -> tuple[list[Pin], list[records.RecordError]]:
    """Return every pin of this host whose record can be used, and what is wrong with the others."""
    found, problems = [], []
    for run, number in all_names(places):
        try:
            pin = read(places, run, number)
        except records.RecordError as error:
            problems.append(error)
        else:
            found += [pin] if pin is not None else []
    return found, problems


def used_by(found: Iterable[Pin]) -> dict[tuple[str, str], list[str]]:
    """Return the live workers that use a drive, as run and worker, by workspace and drive."""
    users: dict[tuple[str, str], set[str]] = {}
    for pin in found:
        if not pin.volume and not stale(pin):
            users.setdefault((pin.workspace, pin.drive), set()).add(pin.held_by)
    return {drive: sorted(workers) for drive, workers in sorted(users.items())}


def users_of_volumes(found: Iterable[Pin]) -> dict[str, list[str]]:
    """Return the live workers that use a volume, as run and worker, by the volume's name."""
    users: dict[str, set[str]] = {}
    for pin in found:
        if pin.volume and not stale(pin):
            users.setdefault(pin.volume, set()).add(pin.held_by)
    return {volume: sorted(workers) for volume, workers in sorted(users.items())}


def _runs(places: Places) -> list[str]:
    try:
        return sorted(os.listdir(places.pins_dir))
    except FileNotFoundError:
        return []


def numbers(places: Places, run: str) -> list[int]:
    """Return the numbers of a run's pins, whether their records can be used or not."""
    try:
        names = os.listdir(os.path.join(places.pins_dir, run))
    except (FileNotFoundError, NotADirectoryError):
        return []
    stems = [name[: -len(".json")] for name in names if name.endswith(".json")]
    return sorted(int(stem) for stem in stems if stem.isdigit())


def ended(places: Places, pin: Pin) -> str:
    """Return why *pin* is to be let go, or "": it holds nothing any more, or its drive was deleted by force."""
    why = stale(pin)
    if why or pin.volume:
        return why
    if (pin.workspace, pin.drive) in drive_records.forced(drive_records.load(places, pin.workspace) or []):
        why = DELETED_BY_FORCE
    return why


def stale(pin: Pin, now: float | None = None) -> str:
    """Return why *pin* holds nothing any more, or "" when it does or that cannot be told.

    :param now: in seconds since the host was started
    """
    if pin.boot_id != boot_id():
        return "the host was restarted since it was taken"
    if (boot_time() if now is None else now) <= pin.deadline:
        return ""
    return "its reservation has ended" if pin.state == RESERVED else pin.holder.ended
