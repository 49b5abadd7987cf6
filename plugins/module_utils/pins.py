# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pins: a worker's lease of a copy, held by the kernel as a bind mount, with a record beside it that says whose it is.

The worker is given the mount ``/run/stowage/pins/<run>/<n>`` and nothing else, so its use of the copy shows in this
host's mount table and follows renames. The record is written before the mount is made: no mount is without one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from . import copies, data_locations, drive_records, records
from .data_locations import DataLocation
from .drive_records import Drive
from .errors import Refusal, StowageError, printable, quoted
from .locks import run_lock
from .mounts import Mount
from .mounts import read as read_mounts
from .places import Places
from .syscalls import NO_DIRECTORY, bind_mount, open_beneath, unmount

RESERVED, LEASED = "reserved", "leased"
CGROUPS = "/sys/fs/cgroup"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


@dataclass(frozen=True)
class Pin:
    """One lease of one copy."""

    run: str
    number: int
    worker: str
    copy: str
    sub_path: str
    """Below the copy's directory, the drive's own folder included; empty for all of it."""
    mode: str
    """``ReadOnly`` or ``ReadWrite``."""
    state: str
    """``reserved`` until something is known that ends with the run, then ``leased``."""
    deadline: float
    """Until when a reservation is good."""
    boot_id: str
    created: float
    cgroup: str = ""
    """The directory of the run's cgroup."""
    pid: int = 0
    pid_start: int = 0

    def path(self, places: Places) -> str:
        """Return where the copy is mounted for the worker."""
        return _path(places, self.run, self.number)

    def record_path(self, places: Places) -> str:
        return self.path(places) + ".json"

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


def _path(places: Places, run: str, number: int) -> str:
    return os.path.join(places.pins_dir, run, str(number))


def check_run(value: str) -> str:
    """Return *value* when it can name a run: it names a directory."""
    if not value or value in (".", "..") or "/" in value or not value.isprintable() or len(os.fsencode(value)) > 255:
        raise Refusal(
            f"run {quoted(value)}", "a run's name is printable, at most 255 bytes, without a slash, not . or .."
        )
    return value


def take(
    places: Places,
    location: DataLocation,
    copy: str,
    *,
    sub_path: str = "",
    run: str,
    worker: str = "",
    read_only: bool,
    deadline: float,
) -> Pin:
    """Mount a copy for a worker of *run*, as reserved until *deadline*; the same again returns the pin that is there.

    A copy that is missing is made. Its lock is held until it is pinned, so that no eviction can be half-way through it
    or take a new one.

    :param sub_path: a folder inside the drive; all of it when left out
    :raises Refusal: when the copy's drive is not declared here, what is there is an earlier drive's, or the folder is
        not there as a plain directory
    """
    check_run(run)
    drive_records.find_placed(places, copy, location.host)
    location_fd = data_locations.open_verified(location)
    try:
        with copies.locked(location_fd, copy):
            # Again: the drive may have been deleted while the lock was waited for.
            drive = drive_records.find_placed(places, copy, location.host)
            identity, path = drive.identity, drive.path
            with copies.prepared(location_fd, location, copy, identity, path, **_ownership(drive)) as folder:
                fd = _open(folder, drive, sub_path)
                try:
                    below = "/".join(part for part in (path, sub_path) if part)
                    mode = "ReadOnly" if read_only else "ReadWrite"
                    with run_lock(places, run):
                        pin = _reserve(places, copy, below, run, worker, mode, deadline)
                        _mount(places, pin, fd, read_only)
                finally:
                    os.close(fd)
    finally:
        os.close(location_fd)
    copies.touch_used(places, copy, identity, path)
    return pin


def _ownership(drive: Drive) -> dict[str, int]:
    """Return how the folder that workers see is made, as far as it is declared."""
    declared = drive.spec["permissions"] if drive.spec is not None else {}
    given = {"uid": declared.get("owner_uid"), "gid": declared.get("owner_gid")}
    if "dir_mode" in declared:
        given["mode"] = int(declared["dir_mode"], 8)
    return {name: value for name, value in given.items() if value is not None}


def _open(folder: int, drive: Drive, sub_path: str) -> int:
    try:
        return open_beneath(folder, os.fsencode(sub_path or "."))
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            raise Refusal(
                f"drive {drive.workspace}/{drive.name}",
                f"the folder {quoted(sub_path)} in it is not there as a plain directory ({error.strerror})",
                "make it first",
            ) from error
        raise


def _reserve(places: Places, copy: str, sub_path: str, run: str, worker: str, mode: str, deadline: float) -> Pin:
    """Return the pin of these very properties that is recorded, or a new one.

    One that is only reserved, or whose run had ended, is reserved anew: otherwise it would be let go under its worker.
    """
    for pin in of_run(places, run):
        if (pin.copy, pin.sub_path, pin.worker, pin.mode) == (copy, sub_path, worker, mode):
            if pin.state == RESERVED or stale(pin):
                pin = replace(pin, state=RESERVED, deadline=deadline, boot_id=boot_id(), cgroup="", pid=0, pid_start=0)
                records.write(pin.record_path(places), pin.to_json(), 0o600)
            return pin
    directory = os.path.join(places.pins_dir, run)
    # A worker walks through to its own mount; what other runs there are is not for it to see.
    for path in (places.pins_dir, directory):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o711)
    number = 1
    while True:
        pin = Pin(run, number, worker, copy, sub_path, mode, RESERVED, deadline, boot_id(), time.time())
        try:
            os.mkdir(pin.path(places), 0o700)
            break
        except FileExistsError:
            number += 1
    records.write(pin.record_path(places), pin.to_json(), 0o600)
    return pin


def _mount(places: Places, pin: Pin, fd: int, read_only: bool) -> None:
    path = pin.path(places)
    if _mounted_at(path) is not None:
        if not os.path.samestat(os.stat(path), os.fstat(fd)):
            raise Refusal(pin.described, "it holds what the copy was before", "release it first")
        return
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        bind_mount(fd, path, read_only)
    except OSError:
        _remove(places, pin.run, pin.number)
        raise


def _mounted_at(path: str) -> Mount | None:
    found = [mount for mount in read_mounts() if mount.point == os.path.realpath(path)]
    return found[-1] if found else None


def confirm(places: Places, run: str, number: int, *, cgroup: str = "", pid: int = 0) -> Pin:
    """Make a reservation a lease that lasts as long as the cgroup has processes, or the process is there.

    :raises Refusal: when there is no such pin, cgroup or process, or no process in the cgroup
    """
    with run_lock(places, check_run(run)):
        return _confirm(places, get(places, run, number), cgroup, pid)


def _confirm(places: Places, pin: Pin, cgroup: str, pid: int) -> Pin:
    if bool(cgroup) == bool(pid):
        raise Refusal(pin.described, "a lease is held by a cgroup or by a process", "name one of the two")
    if cgroup:
        below = cgroup[len(CGROUPS) :] if cgroup.startswith(CGROUPS + "/") else cgroup
        cgroup = os.path.normpath(f"{CGROUPS}/{below}")
        if not cgroup.startswith(CGROUPS + "/") or not os.path.isdir(cgroup):
            raise Refusal(pin.described, f"there is no cgroup {printable(cgroup)}", "name one below " + CGROUPS)
        if not _is_populated(cgroup):
            rule = f"cgroup {printable(cgroup)} has no processes yet, and would count as ended"
            raise Refusal(pin.described, rule, "confirm it once the run's processes are in it")
        confirmed = replace(pin, state=LEASED, cgroup=cgroup, pid=0, pid_start=0)
    else:
        start = start_time(pid)
        if start is None:
            raise Refusal(pin.described, f"there is no process {pid}", "confirm it while the process runs")
        confirmed = replace(pin, state=LEASED, cgroup="", pid=pid, pid_start=start)
    records.write(pin.record_path(places), confirmed.to_json(), 0o600)
    return confirmed


def release(places: Places, run: str, number: int) -> bool:
    """Unmount a pin and forget it; return whether there was one. The time of the copy's last use is recorded.

    A pin whose record cannot be used goes too: until then nobody knows what it holds, and nothing else can go.

    :raises Refusal: when something still uses the mount: then it stays, and so does its record
    """
    with run_lock(places, check_run(run)):
        try:
            pin = _read(places, run, number)
        except records.RecordError:
            pin, there = None, True
        else:
            there = pin is not None or os.path.lexists(_path(places, run, number))
        if there:
            _release(places, run, number)
    if pin is not None:
        _note_use(places, pin)
    return there


def release_ended(places: Places, run: str, number: int) -> str:
    """Release a pin when it holds nothing any more; return why, or "" when it stays.

    That is judged under the lock of its run: it may have been taken anew since anybody looked.
    """
    with run_lock(places, check_run(run)):
        pin = _read(places, run, number)
        why = "" if pin is None else stale(pin)
        if why:
            _release(places, run, number)
    if pin is not None and why:
        _note_use(places, pin)
    return why


def _release(places: Places, run: str, number: int) -> None:
    try:
        while True:
            unmount(_path(places, run, number))
    except OSError as error:
        if error.errno == errno.EBUSY:
            name = f"pin {printable(run)}/{number}"
            raise Refusal(
                name, "something still uses it, so it stays", "end the run's processes, then release it"
            ) from error
        if error.errno not in (errno.EINVAL, errno.ENOENT):  # not, or no longer, a mount
            raise
    _remove(places, run, number)


def _note_use(places: Places, pin: Pin) -> None:
    used = copies.load_record(places, pin.copy)
    if used is not None:
        copies.touch_used(places, pin.copy, used.identity, used.path)


def _remove(places: Places, run: str, number: int) -> None:
    """Remove the mount point, never what might be in it, then the record, and the run's directory with its last pin."""
    path = _path(places, run, number)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(path)
    records.remove(path + ".json")
    try:
        os.rmdir(os.path.dirname(path))
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


def get(places: Places, run: str, number: int) -> Pin:
    pin = _read(places, check_run(run), number)
    if pin is None:
        raise Refusal(f"pin {printable(run)}/{number}", "there is no such pin", "see stowage lease list")
    return pin


def _read(places: Places, run: str, number: int) -> Pin | None:
    path = _path(places, run, number) + ".json"
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
    for number in sorted(_numbers(os.path.join(places.pins_dir, run))):
        pin = _read(places, run, number)
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
    return [(run, number) for run in _runs(places) for number in sorted(_numbers(os.path.join(places.pins_dir, run)))]


def _runs(places: Places) -> list[str]:
    try:
        return sorted(os.listdir(places.pins_dir))
    except FileNotFoundError:
        return []


def _numbers(directory: str) -> list[int]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [int(name[: -len(".json")]) for name in names if name.endswith(".json") and name[: -len(".json")].isdigit()]


def stale(pin: Pin, now: float | None = None) -> str:
    """Return why *pin* holds nothing any more, or "" when it does or that cannot be told."""
    if pin.boot_id != boot_id():
        return "the host was restarted since it was taken"
    if pin.state == RESERVED:
        return "its reservation has ended" if (time.time() if now is None else now) > pin.deadline else ""
    if pin.cgroup:
        return "its cgroup has no processes any more" if not _is_populated(pin.cgroup) else ""
    return "its process has ended" if start_time(pin.pid) != pin.pid_start else ""


def _is_populated(cgroup: str) -> bool:
    try:
        with open(os.path.join(cgroup, "cgroup.events"), "rb") as stream:
            return b"populated 0" not in stream.read().splitlines()
    except FileNotFoundError:
        # Version 1 has no such file: as long as the cgroup is there it may have processes.
        return os.path.isdir(cgroup)
    except OSError as error:
        if error.errno == errno.ENODEV:  # removed while it was read
            return False
        raise


def boot_id() -> str:
    with open(_BOOT_ID, encoding="ascii") as stream:
        return stream.read().strip()


def start_time(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if len(fields) < 20:
        raise StowageError(f"/proc/{pid}/stat: not of the kernel's form")
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
