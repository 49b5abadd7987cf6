# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking pins, confirming and releasing them: the mounts that workers are given, and the records beside these."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace

from .. import records
from ..copies import fills, trash
from ..copies import present as copies
from ..data_location import locations as data_locations
from ..data_location.locations import DataLocation
from ..drives import permissions
from ..drives import recorded as drive_records
from ..drives.declared import split_copy_name
from ..drives.recorded import Drive
from ..errors import Refusal, printable, quoted
from ..locks import location_lock, run_lock
from ..mounts import Mount, of_all_namespaces
from ..mounts import read as read_mounts
from ..places import Places
from ..syscalls import DIRECTORY, NO_DIRECTORY, bind_mount, open_beneath, unmount
from .admission import admit
from .holders import Holder, boot_id, boot_time, busy_in, listed
from .pins import LEASED, READ_ONLY, READ_WRITE, RESERVED, Pin, Use, check_run, ended, get, of_run, path_of, read

# -- Taking


def take(
    places: Places,
    location: DataLocation,
    copy: str,
    *,
    sub_path: str = "",
    run: str,
    worker: str = "",
    read_only: bool,
    seconds: float,
    target: str = "",
    begin: Callable[[int, Drive], None] | None = None,
    tell: Callable[[permissions.Applied], object] | None = None,
    reader: int = -1,
) -> Pin:
    """Mount a copy for a worker of *run*, as reserved for some seconds; the same again returns the pin that is there.

    A copy that is missing is made. Its lock is held until it is pinned, so that no eviction can be half-way through it
    or take a new one.

    :param sub_path: a folder inside the drive; all of it when left out
    :param begin: for what fills the copy: called with the open data location and the drive while nobody can take the
        copy. Anybody else is refused one that waits for its fill; any other is no fill's leftover from then on
    :param tell: called with what of the copy had another owner or mode than is declared, and was changed
    :param reader: who alone reaches it beside root; below 0 for everybody
    :raises Refusal: when the copy's drive is not declared here, what is there is an earlier drive's, the folder is not
        there as a plain directory, the copy has yet to be filled, or *location* is not this host's any more
    """
    check_run(run)
    drive_records.find_placed(places, copy, location.host)
    workspace, name = split_copy_name(copy)
    with _kept(places, location) as location_fd, copies.locked(location_fd, copy):
        # Again: the drive may have been deleted while the lock was waited for.
        drive = drive_records.find_placed(places, copy, location.host)
        trash.bring_back(location_fd, location, copy, drive.identity)
        if begin is not None:
            begin(location_fd, drive)
        elif copies.waits_for_fill(location_fd, drive):
            remedy = f"systemctl start {fills.unit(copy)} fills it"
            raise Refusal(f"drive {workspace}/{name}", fills.waiting(drive, location), remedy)
        identity, path = drive.identity, drive.path
        with copies.prepared(location_fd, location, copy, identity, path, **ownership(drive)) as folder:
            if begin is None:
                fills.hand_over(location_fd, copy)
            applied = permissions.apply_declared(folder, drive, copy)
            if applied is not None and tell is not None:
                tell(applied)
            fd = open_folder(folder, f"drive {workspace}/{name}", sub_path)
            try:
                use = Use(
                    workspace, name, 0, "", drive.folder(sub_path), READ_ONLY if read_only else READ_WRITE, target
                )
                pin = hold(places, use, fd, run=run, worker=worker, seconds=seconds, reader=reader)
            finally:
                os.close(fd)
    copies.note_used(places, copy, (identity, path))
    return pin


@contextlib.contextmanager
def _kept(places: Places, location: DataLocation) -> Iterator[int]:
    """Open the data location, which nobody changes or gives up as long as this lasts."""
    with location_lock(places):
        present = data_locations.load(places)
        if present is None or present.identity != location.identity:
            raise Refusal(f"data location {location.path}", "it is not this host's any more", "try again")
        fd = data_locations.open_verified(location)
        try:
            yield fd
        finally:
            os.close(fd)


def ownership(drive: Drive) -> dict[str, int]:
    """Return how a folder that workers see is made, as far as it is declared."""
    wanted = permissions.Permissions.of(drive.spec or {})
    given = {"uid": wanted.uid, "gid": wanted.gid, "mode": wanted.mode}
    return {name: value for name, value in given.items() if value is not None}


def open_folder(folder: int, name: str, sub_path: str) -> int:
    """Open a folder inside a drive or volume: no symlink is followed, and no mount left.

    :param name: what it is inside, for messages
    """
    try:
        return open_beneath(folder, os.fsencode(sub_path or "."))
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            raise Refusal(
                name,
                f"the folder {quoted(sub_path)} in it is not there as a plain directory ({error.strerror})",
                "make it first",
            ) from error
        raise


def hold(places: Places, use: Use, fd: int, *, run: str, worker: str, seconds: float, reader: int = -1) -> Pin:
    """Mount the directory open at *fd* for a worker; the same again returns the pin that is there.

    :param reader: who alone reaches it beside root; below 0 for everybody
    """
    with run_lock(places, check_run(run)):
        pin = _reserve(places, use, run, worker, seconds, reader)
        _let_in(places, run)
        _mount(places, pin, fd)
    return pin


def _reserve(places: Places, use: Use, run: str, worker: str, seconds: float, reader: int) -> Pin:
    """Return the pin of this very use that is recorded, or a new one.

    It is reserved anew, beside what it is bound to while that is there: otherwise it would be let go under its worker.
    """
    deadline = boot_time() + seconds
    for pin in of_run(places, run):
        if (pin.use, pin.worker) == (use, worker):
            if pin.is_held:
                pin = replace(pin, deadline=deadline, reader=reader)
            else:
                pin = replace(
                    pin, state=RESERVED, deadline=deadline, boot_id=boot_id(), reader=reader, **asdict(Holder())
                )
            records.write(pin.record_path(places), pin.to_json(), 0o600)
            return pin
    os.makedirs(places.pins_dir, exist_ok=True)
    os.chmod(places.pins_dir, 0o711)  # which runs there are is not for everybody to see
    with contextlib.suppress(FileExistsError):
        os.mkdir(os.path.join(places.pins_dir, run), 0o700)
    number = 1
    while True:
        pin = Pin(
            run,
            number,
            worker,
            **use._asdict(),
            state=RESERVED,
            deadline=deadline,
            boot_id=boot_id(),
            created=time.time(),
            reader=reader,
        )
        try:
            os.mkdir(pin.path(places), 0o700)
            break
        except FileExistsError:
            number += 1
    try:
        records.write(pin.record_path(places), pin.to_json(), 0o600)
    except BaseException:
        _remove(places, run, number)
        raise
    return pin


def _let_in(places: Places, run: str) -> None:
    """Let those into a run's directory who are to reach its mounts, and nobody else.

    A mount does not keep the protection of the directories above what it shows. Containers are started by root, who
    enters anyway. With mounts for different users in it, it is root's alone.
    """
    readers = {pin.reader for pin in of_run(places, run) if pin.reader >= 0}
    fd = os.open(os.path.join(places.pins_dir, run), DIRECTORY)
    try:
        if readers:
            admit(fd, readers.pop() if len(readers) == 1 else 0)
        else:
            os.fchmod(fd, 0o711)
    finally:
        os.close(fd)


def _mount(places: Places, pin: Pin, fd: int) -> None:
    path = pin.path(places)
    if mounted_at(path) is not None:
        if not os.path.samestat(os.stat(path), os.fstat(fd)):
            raise Refusal(pin.described, "it holds what the drive was before", "release it first")
        return
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        bind_mount(fd, path, pin.mode == READ_ONLY)
        _check_namespace(pin.described, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unmount(path)
        _remove(places, pin.run, pin.number)
        raise


def _check_namespace(name: str, path: str) -> None:
    """Refuse to go on where the host has not the mount at *path*, or another one, than this process.

    A worker would find an empty directory there; and the mount point of a mount that is not seen cannot be removed
    without the kernel taking that mount away, whoever uses it.
    """
    here, there = mounted_at(path), _mounted_at(path, read_mounts(1))
    # By their ids: the rest of a line changes when somebody renames what is mounted.
    if (here.id if here else 0) != (there.id if there else 0):
        rule = "this process has a mount namespace of its own, and what is mounted there is not what the host has"
        raise Refusal(name, rule, "run it in the host's: nsenter --target 1 --mount COMMAND")


def mounted_at(path: str) -> Mount | None:
    return _mounted_at(path, read_mounts())


def _mounted_at(path: str, table: Iterable[Mount]) -> Mount | None:
    found = [mount for mount in table if mount.point == os.path.realpath(path)]
    return found[-1] if found else None


# -- Confirming


def confirm(places: Places, run: str, number: int, *, cgroup: str = "", pid: int = 0) -> Pin:
    """Make a reservation a lease that lasts as long as the cgroup has processes, or the process is there.

    :raises Refusal: when there is no such pin, cgroup or process, or no process in the cgroup
    """
    with run_lock(places, check_run(run)):
        pin = get(places, run, number)
        confirmed = confirmed_by(pin, Holder.of(cgroup, pid, pin.described))
        records.write(pin.record_path(places), confirmed.to_json(), 0o600)
    return confirmed


def confirmed_by(pin: Pin, holder: Holder) -> Pin:
    return replace(pin, state=LEASED, deadline=0.0, **asdict(holder))


# -- Releasing


def release(places: Places, run: str, number: int) -> bool:
    """Unmount a pin and forget it; return whether there was one. The time of the copy's last use is recorded.

    A pin whose record cannot be used goes too: until then nobody knows what it holds, and nothing else can go.

    :raises Refusal: when something still uses the mount: then it stays, and so does its record
    """
    with run_lock(places, check_run(run)):
        try:
            pin = read(places, run, number)
        except records.RecordError:
            pin, there = None, True
        else:
            there = pin is not None or os.path.lexists(path_of(places, run, number))
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
        pin = read(places, run, number)
        why = "" if pin is None else ended(places, pin)
        if why:
            _release(places, run, number)
    if pin is not None and why:
        _note_use(places, pin)
    return why


def _release(places: Places, run: str, number: int) -> None:
    path, name = path_of(places, run, number), f"pin {printable(run)}/{number}"
    _check_namespace(name, path)
    try:
        while True:
            unmount(path)
    except OSError as error:
        if error.errno == errno.EBUSY:
            rule = f"something still uses it, so it stays{_by_whom(path)}"
            raise Refusal(name, rule, "end the run's processes, then release it") from error
        if error.errno not in (errno.EINVAL, errno.ENOENT):  # not, or no longer, a mount
            raise
    _remove(places, run, number)


def _by_whom(path: str) -> str:
    mount = mounted_at(path)
    pids = busy_in([mount.id]).get(mount.id, set()) if mount is not None else set()
    return f" ({listed(pids)})" if pids else ""


def _note_use(places: Places, pin: Pin) -> None:
    if pin.copy:
        copies.note_used(places, pin.copy)


def _remove(places: Places, run: str, number: int) -> None:
    """Remove the mount point, never what might be in it, then the record, and the run's directory with its last pin.

    A mount point that another mount namespace has a mount at stays, empty: the kernel would take that mount away from
    whoever uses it there.
    """
    path = path_of(places, run, number)
    if not any(_mounted_at(path, table) for table in of_all_namespaces()):
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)
    records.remove(path + ".json")
    try:
        os.rmdir(os.path.dirname(path))
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
