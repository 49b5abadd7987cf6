# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of placed drives in a data location: which are there, making one, and what is recorded of each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from .. import events, records, selinux
from ..data_location import locations as data_locations
from ..data_location.locations import COPY, DRIVES, LOCKS, PENDING, DataLocation
from ..drives.declared import split_copy_name
from ..drives.recorded import Drive
from ..errors import Refusal, StowageError, printable, quoted
from ..locks import lock, records_lock
from ..owner import Mark, claim, read_mark
from ..places import Places
from ..syscalls import NO_DIRECTORY, open_beneath
from . import fill_marks

MATERIAL_BYTES = 1 << 30
MATERIAL_FRACTION = 0.01
USE_INTERVAL_S = 3600.0
LOCK_TIMEOUT_S = 60.0
WATCH_S = 300.0
_WATCH_FRACTION = 48
"""How much of a drive's time one look writes down at least, while that is shorter than :data:`WATCH_S`."""


class Copy(NamedTuple):
    """A copy that is in a data location."""

    name: str
    identity: str
    """The drive that it is of."""
    created: float


@dataclass(frozen=True)
class CopyRecord:
    """What is known of a copy; figures are None until it was measured."""

    workspace: str
    drive: str
    identity: str
    path: str
    """The folder inside the copy that workers see; empty for the whole of it."""
    bytes: int | None = None
    allocated: int | None = None
    files: int | None = None
    inodes: int | None = None
    """Files and directories: what becomes free of a disk's inodes when the copy goes."""
    complete: bool = False
    measured: float | None = None
    last_used: float | None = None
    """None: never."""
    unused_s: float = 0.0
    """For how long it has been watched while nobody used it: by the clock since boot, not by the time of day."""
    watched_copy: float | None = None
    """When the copy was made that is watched: the record may be of another one, in a data location left since."""
    watched_boot: str = ""
    watched_at: float | None = None
    """When it was looked at last, by the clock of that boot."""
    linked: int | None = None
    """The part of *allocated* in files with several names, of which some may be outside of the copy."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CopyRecord:
        return records.typed(cls, value)


def own_mark(fd: int, name: str, location: DataLocation) -> Mark | None:
    """Return the mark of the directory open at *fd* when it makes it this host's copy *name*, else None."""
    mark = data_locations.copy_mark(fd, location)
    return mark if mark is not None and mark.name == name else None


@contextmanager
def opened(dir_fd: int, name: bytes) -> Iterator[int]:
    """Open a directory below *dir_fd*, without following symlinks or leaving the mount, for as long as it takes."""
    fd = open_beneath(dir_fd, name)
    try:
        yield fd
    finally:
        os.close(fd)


def opened_copy(location_fd: int, name: str) -> AbstractContextManager[int]:
    """Open the directory that has the place of the copy *name* in a data location; whose it is its mark tells."""
    return opened(location_fd, DRIVES + b"/" + os.fsencode(name))


def names_in(fd: int, part: bytes) -> list[bytes]:
    """Return what is in a directory inside the data location; nothing when it is not there.

    Opened anew each time: btrfs lists only what was there when a directory was opened.
    """
    try:
        with opened(fd, part) as inner:
            return sorted(os.fsencode(name) for name in os.listdir(inner))
    except FileNotFoundError:
        return []


def present(location_fd: int, location: DataLocation) -> list[Copy]:
    """Return the copies in the verified data location open at *location_fd* that are in their place."""
    found = data_locations.contents(location_fd, location, (DRIVES,)).copies
    return [Copy(one.mark.name, one.mark.identity, one.mark.time) for one in found]


def waits_for_fill(location_fd: int, drive: Drive) -> bool:
    """Return whether the copy of *drive* is not usable yet: what fills it has not written its last file.

    After one of Stowage's own fills the file alone does not count: until that fill is known to have ended well, and all
    that it wrote is safe on the disk, it may be the file only that has survived.
    """
    if drive.fill is None:
        return False
    try:
        with opened_copy(location_fd, drive.copy_name) as fd:
            mark = read_mark(fd)
            if mark is not None and fill_marks.has_begun(fd, mark):
                return True
            with opened(fd, os.fsencode(drive.path or ".")) as folder:
                return bool(fill_marks.missing_marker(folder))
    except OSError:
        return True


def take_lock(location_fd: int, name: str, timeout_s: float = LOCK_TIMEOUT_S) -> int:
    """Return a descriptor that holds the lock of the copy *name*; closing it lets go."""
    split_copy_name(name)
    with opened(location_fd, LOCKS) as locks:
        return lock(locks, os.fsencode(name), timeout_s)


@contextmanager
def locked(location_fd: int, name: str) -> Iterator[None]:
    """Hold the lock of the copy *name*: nothing evicts or adopts it meanwhile.

    The lock's file is there from then on: a full disk could not make it.
    """
    held = take_lock(location_fd, name)
    try:
        yield
    finally:
        os.close(held)


@contextmanager
def prepared(
    location_fd: int,
    location: DataLocation,
    name: str,
    identity: str,
    path: str = "",
    *,
    uid: int = 0,
    gid: int = 0,
    mode: int = 0o755,
) -> Iterator[int]:
    """Open the folder *path* of the copy *name* of the drive *identity*; what is missing of it is made.

    The caller holds the copy's lock.

    :param uid: with *gid* and *mode*, of the folder that workers see, when it is made now
    :raises Refusal: when something else is there by that name
    """
    split_copy_name(name)
    try:
        with opened(location_fd, DRIVES) as drives:
            made = _make_directory(drives, name)
            with opened(drives, os.fsencode(name)) as copy_fd:
                made = _own(copy_fd, name, identity, location) or made
                fd, made = _make_path(copy_fd, path) if path else (os.dup(copy_fd), made)
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            raise _no_directory(name, path, error) from error
        raise
    try:
        if made:
            os.fchown(fd, uid, gid)
            os.fchmod(fd, mode)
            selinux.label(fd)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def existing(
    location_fd: int, location: DataLocation, name: str, identity: str, path: str = ""
) -> Iterator[int | None]:
    """Open the same folder as :func:`prepared`, and make nothing: None where it is still to be made.

    :raises Refusal: when something else is there by that name
    """
    split_copy_name(name)
    fd = None
    try:
        with opened(location_fd, DRIVES) as drives, opened(drives, os.fsencode(name)) as copy_fd:
            if _is_owned(copy_fd, name, identity, location):
                fd = open_beneath(copy_fd, os.fsencode(path or "."))
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            raise _no_directory(name, path, error) from error
        raise
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _no_directory(name: str, path: str, error: OSError) -> Refusal:
    what = f"it, or the folder {quoted(path)} in it," if path else "it"
    return Refusal(f"copy {name}", f"{what} is not there as a plain directory ({error.strerror})", "move away what is")


def _make_directory(dir_fd: int, name: str) -> bool:
    try:
        os.mkdir(os.fsencode(name), 0o755, dir_fd=dir_fd)
    except FileExistsError:
        return False
    with opened(dir_fd, os.fsencode(name)) as fd:
        os.fchmod(fd, 0o755)  # whatever the umask is
    return True


def _own(fd: int, name: str, identity: str, location: DataLocation) -> bool:
    """Claim the directory open at *fd* for the copy of the very drive *identity*; return whether nobody had before."""
    if _is_owned(fd, name, identity, location):
        return False
    claim(fd, COPY, name, identity, location.host)
    return True


def _is_owned(fd: int, name: str, identity: str, location: DataLocation) -> bool:
    """Return whether the directory open at *fd* is the copy of the very drive *identity*; False for nobody's.

    :raises Refusal: when it is anything else
    """
    mark = own_mark(fd, name, location)
    if mark is None:
        # An empty directory of root's was left by a run that was cut short; one with content is not taken over.
        if read_mark(fd) is not None or os.fstat(fd).st_uid != 0 or os.listdir(fd):
            raise Refusal(
                f"copy {name}",
                "a directory of that name is there and is not this host's copy",
                "adopt it, or move it away",
            )
        return False
    if mark.identity != identity:
        workspace, drive = split_copy_name(name)
        path = os.path.join(location.path, os.fsdecode(DRIVES), name)
        raise Refusal(
            f"drive {workspace}/{drive}",
            f"{path} is an orphan, the copy of an earlier drive of that name",
            f"take it in with adopt: [{name}] of the data location, or delete it with a tombstone (state: absent)",
        )
    return True


def _make_path(fd: int, path: str) -> tuple[int, bool]:
    current, made = os.dup(fd), False
    for part in path.split("/"):
        try:
            made = _make_directory(current, part)
            below = open_beneath(current, os.fsencode(part))
        finally:
            os.close(current)
        current = below
    return current, made


def record_path(places: Places, name: str) -> str:
    return os.path.join(places.copies_dir, f"{name}.json")


def load_record(places: Places, name: str) -> CopyRecord | None:
    """Return what is recorded of the copy *name*, or None.

    :raises RecordError: when it cannot be read
    """
    path = record_path(places, name)
    value = records.read(path)
    if value is None:
        return None
    try:
        return CopyRecord.from_json(value)
    except TypeError as error:
        raise records.RecordError(f"{path}: not the record of a copy ({error}); remove it, it is made again") from error


def write_record(places: Places, name: str, record: CopyRecord) -> bool:
    return records.write(record_path(places, name), asdict(record))


def forget(places: Places, name: str) -> bool:
    """Remove the record of a copy that is gone."""
    return records.remove(record_path(places, name))


def record_measured(places: Places, name: str, measured: CopyRecord, filesystem_bytes: int) -> bool:
    """Record new figures of a copy when something material has changed; return whether they were written.

    Material is that the copy appeared, is another drive's, was completely measured for the first time, or moved by more
    than 1 GiB or 1 % of the filesystem. What is known of its use is kept.
    """
    with records_lock(places):
        before = load_record(places, name)
        if before is not None and before.identity == measured.identity:
            measured = with_use(measured, before)
            if not _is_material(before, measured, filesystem_bytes):
                return False
        return write_record(places, name, measured)


def _is_material(before: CopyRecord, after: CopyRecord, filesystem_bytes: int) -> bool:
    has_links = [bool(one.linked) for one in (before, after)]  # the plan looks at these more closely
    if (before.path, before.complete, has_links[0]) != (after.path, after.complete, has_links[1]):
        return True
    limit = min(MATERIAL_BYTES, filesystem_bytes * MATERIAL_FRACTION)
    pairs = ((before.bytes, after.bytes), (before.allocated, after.allocated))
    if any((old is None) != (new is None) for old, new in (*pairs, (before.inodes, after.inodes))):
        return True
    return any(abs((old or 0) - (new or 0)) > limit for old, new in pairs)


def with_use(record: CopyRecord, known: CopyRecord | None) -> CopyRecord:
    """Return a record with what another one knows of the copy's use; without that when there is none."""
    known = known if known is not None else CopyRecord("", "", "", "")
    return replace(
        record,
        last_used=known.last_used,
        unused_s=known.unused_s,
        watched_copy=known.watched_copy,
        watched_boot=known.watched_boot,
        watched_at=known.watched_at,
    )


def unused_s(record: CopyRecord | None, copy: Copy) -> float:
    """Return for how long this very copy was watched while nobody used it; 0 when nothing is known of that."""
    if record is None or (record.identity, record.watched_copy) != (copy.identity, copy.created):
        return 0.0
    return record.unused_s


def watch(places: Places, copy: Copy, ttl_s: float, boot: str, now: float, gap_s: float) -> float:
    """Note that nobody uses a copy now, and return for how long that was seen; what was not looked at does not count.

    :param ttl_s: how long its drive may be unused
    :param boot: the id of this boot, and *now* its clock
    :param gap_s: how much time between two looks counts at most
    """
    with records_lock(places):
        before = load_record(places, copy.name)
        if before is None or before.identity != copy.identity:
            return 0.0
        known = unused_s(before, copy)
        watched = replace(before, unused_s=known, watched_copy=copy.created, watched_boot=boot, watched_at=now)
        if before.watched_copy == copy.created and before.watched_boot == boot and before.watched_at is not None:
            passed = now - before.watched_at
            if 0 <= passed < min(WATCH_S, ttl_s / _WATCH_FRACTION):
                return known  # not worth a write: the next look counts it
            gap_s = max(gap_s, 2 * ttl_s / _WATCH_FRACTION)
            watched = replace(watched, unused_s=known + max(0.0, min(passed, gap_s)))
        write_record(places, copy.name, watched)
        return watched.unused_s


def touch_used(places: Places, name: str, identity: str, path: str = "", now: float | None = None) -> bool:
    """Record that a copy is used now, at most once an hour, or when it was watched; return whether it was written."""
    now = time.time() if now is None else now
    with records_lock(places):
        before = load_record(places, name)
        if before is None or before.identity != identity:
            workspace, drive = split_copy_name(name)
            before = CopyRecord(workspace, drive, identity, path)
        is_watched = before.watched_copy is not None
        if not is_watched and before.last_used is not None and 0 <= now - before.last_used < USE_INTERVAL_S:
            return False
        used = replace(before, last_used=now, unused_s=0.0, watched_copy=None, watched_boot="", watched_at=None)
        return write_record(places, name, used)


def forget_gone(places: Places, location_fd: int, location: DataLocation) -> list[str]:
    """Remove the records of copies that are gone from the data location open at *location_fd*; return their names.

    One that was made a moment ago, or is set aside, is not gone: its record holds when it was used. A copy is made
    before its record is, so that whatever has a record now and is not here is gone. Nothing is while there are former
    data locations: copies in them count again when one is chosen again.
    """
    if data_locations.load_former(places):
        return []
    with records_lock(places):
        try:
            recorded = {name[: -len(".json")] for name in os.listdir(places.copies_dir) if name.endswith(".json")}
        except FileNotFoundError:
            return []
        # What is put back while this looks is in its place at the end.
        parts = (DRIVES, PENDING, DRIVES)
        here = {one.mark.name for one in data_locations.contents(location_fd, location, parts).copies}
        gone = sorted(name for name in recorded - here if not name.startswith("."))
        for name in gone:
            forget(places, name)
        return gone


def note_used(places: Places, name: str, drive: tuple[str, str] | None = None) -> str:
    """Record that a copy is used now, as far as it can be; return why it could not, which is told as an event too.

    Whoever takes or releases a copy is never held up by what is only observed.

    :param drive: identity of the copy's drive and folder in it; as they are recorded when left out
    """
    try:
        if drive is None:
            known = load_record(places, name)
            drive = (known.identity, known.path) if known is not None else None
        if drive is not None:
            touch_used(places, name, *drive)
    except (StowageError, OSError) as error:
        why = f"{record_path(places, name)}: {error.strerror}" if isinstance(error, OSError) else str(error)
        message = f"its use at this time could not be recorded, so that it may seem unused for longer: {why}"
        events.tell(places, object=described(name), reason="UseNotRecorded", message=message)
        return why
    return ""


def described(name: str) -> str:
    """Return the name of a copy's drive as events have it: ``drive/<workspace>/<drive>``."""
    workspace, _dot, drive = printable(name).partition(".")
    return f"drive/{workspace}/{drive}"
