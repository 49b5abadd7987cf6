# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks between the processes of one host: ``flock`` on files that only root can open.

Whoever holds several takes them in this order, so that no two wait for each other; before all of them
:func:`relocation_lock`, for the move of a location, which is held for as long as a stage of that takes:

1. :func:`worker_lock`, for the mounts of one worker;
2. :func:`tier_lock`, for the tiers, also while one is emptied;
3. :func:`host_lock`, for what is claimed and declared;
4. :func:`location_lock`, for the data location: shared by whoever makes copies in it, alone for a change of it;
5. :func:`network_lock`, for network mounts and exports: shared by whoever uses one, alone for making or releasing it;
6. a copy's own lock (:func:`lock`, :func:`try_lock`), in the data location;
7. :func:`run_lock`, for the pins of a run;
8. :func:`records_lock`, for the records of copies, and of what is held;
9. :func:`aside_lock`, for one run that is made, or moved aside and judged, for as long as that takes;
10. :func:`runs_lock`, for the directories of runs and their stamps: for moments only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator

from .errors import StowageError, printable
from .places import Places
from .records import make_directory
from .syscalls import open_beneath

_RUN_LOCKS = 64
_RANGE = struct.Struct("hhqqi4x")
"""The kernel's ``struct flock``."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def host_lock(places: Places, timeout: float = 60.0) -> contextlib.AbstractContextManager[None]:
    """Hold the lock under which anything on this host is claimed or declared.

    :raises StowageError: when another process holds it for longer than *timeout* seconds
    """
    return _held(places, places.host_lock, timeout)


@contextlib.contextmanager
def tier_lock(places: Places, only: Iterable[str] = (), timeout: float = 60.0) -> Iterator[None]:
    """Hold the lock under which tiers are declared, emptied and given up: by one at a time.

    :param only: the backends that this is about, for whoever only gives way: none is all of them
    :raises StowageError: when another process holds it for longer than *timeout* seconds
    """
    path = _tier_lock_path(places)
    with _held(places, path, timeout):
        _write(path, only)
        try:
            yield
        finally:
            _write(path, ())


def is_tier_lock_held(places: Places, backend: str) -> bool:
    """Return whether somebody declares, empties or gives up tiers of a backend now."""
    path = _tier_lock_path(places)
    if not is_held(path):
        return False
    with open(path, encoding="utf-8") as file:
        only = file.read().split()
    return not only or backend in only


def _tier_lock_path(places: Places) -> str:
    return os.path.join(places.run, "tiers.lock")


def _write(path: str, names: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(names))


def records_lock(places: Places, timeout: float = 60.0) -> contextlib.AbstractContextManager[None]:
    """Hold the lock under which such a record is read, changed and written: for moments only.

    :raises StowageError: when another process holds it for longer than *timeout* seconds
    """
    return _held(places, os.path.join(places.run, "records.lock"), timeout)


def relocation_lock(places: Places, location: str, timeout: float = 60.0) -> contextlib.AbstractContextManager[None]:
    """Hold the lock under which a location is moved.

    :raises StowageError: when another process moves it for longer than *timeout* seconds
    """
    return _held(places, os.path.join(places.run, f"relocation-{location}.lock"), timeout)


@contextlib.contextmanager
def aside_lock(places: Places, key: str, timeout: float = 120.0) -> Iterator[None]:
    """Hold the lock of what lies aside, or may, under the name *key*: of this and no other.

    :raises StowageError: when another process holds it for longer than *timeout* seconds
    """
    deadline = time.monotonic() + timeout
    while True:
        with try_aside_lock(places, key) as mine:
            if mine:
                yield
                return
        if time.monotonic() >= deadline:
            raise StowageError(f"{key}: another process removes or makes that run for {timeout:.0f} s; try again")
        time.sleep(0.05)


@contextlib.contextmanager
def try_aside_lock(places: Places, key: str) -> Iterator[bool]:
    """Hold the lock of what lies aside as *key* unless it is taken; yield whether it is held.

    There may be any number of them, so each is one byte of a file, however long that would be: nothing is left behind.
    """
    make_directory(places.run)
    fd = os.open(os.path.join(places.run, "aside.lock"), _FLAGS, 0o600)
    try:
        byte = int(hashlib.sha256(os.fsencode(key)).hexdigest()[:15], 16)
        try:
            # Of the open file, and not of the process: closing another descriptor of the file does not let go.
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0))
            mine = True
        except BlockingIOError:
            mine = False
        yield mine
    finally:
        os.close(fd)


def runs_lock(places: Places, timeout: float = 120.0) -> contextlib.AbstractContextManager[None]:
    """Hold the lock under which the directories of runs are made and stamped, and put back from aside.

    :raises StowageError: when another process holds it for longer than *timeout* seconds
    """
    return _held(places, os.path.join(places.run, "runs.lock"), timeout)


def location_lock(
    places: Places, *, alone: bool = False, timeout: float = 60.0
) -> contextlib.AbstractContextManager[None]:
    """Hold the lock under which this host's data location stays what it is.

    :param alone: for a change of it: nobody makes a copy meanwhile
    :raises StowageError: when another process is in the way for longer than *timeout* seconds
    """
    return _held(places, os.path.join(places.run, "location.lock"), timeout, shared=not alone)


def network_lock(
    places: Places, *, alone: bool = False, timeout: float = 120.0
) -> contextlib.AbstractContextManager[None]:
    """Hold the lock under which this host's network mounts and exports stay what they are.

    :param alone: for a change of them: nobody begins to use one meanwhile
    :raises StowageError: when another process is in the way for longer than *timeout* seconds
    """
    return _held(places, os.path.join(places.run, "network.lock"), timeout, shared=not alone)


def run_lock(places: Places, run: str, timeout: float = 60.0) -> contextlib.AbstractContextManager[None]:
    """Hold the lock under which the pins of a run change. Runs share some files, so that none is left behind by each.

    :raises StowageError: when another process holds it for longer than *timeout* seconds
    """
    return _held(places, os.path.join(places.run, f"run-{_number(run):02}.lock"), timeout)


def worker_lock(places: Places, run: str, timeout: float = 60.0) -> contextlib.AbstractContextManager[None]:
    """Hold the lock under which all mounts of a worker are made or released: it is taken before any other.

    :raises StowageError: when another process holds it for longer than *timeout* seconds
    """
    return _held(places, os.path.join(places.run, f"worker-{_number(run):02}.lock"), timeout)


def _number(run: str) -> int:
    return zlib.crc32(os.fsencode(run)) % _RUN_LOCKS


@contextlib.contextmanager
def _held(places: Places, path: str, timeout: float, shared: bool = False) -> Iterator[None]:
    make_directory(places.run)
    fd = os.open(path, _FLAGS, 0o600)
    try:
        _wait(fd, path, timeout, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def try_lock(dir_fd: int, name: bytes) -> int | None:
    """Return a descriptor that holds the lock *name* in a directory, or None when it is taken; closing it lets go.

    The file stays: removing it would let two processes hold locks of one name.
    """
    fd = open_beneath(dir_fd, name, _FLAGS, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def lock(dir_fd: int, name: bytes, timeout: float = 60.0) -> int:
    """Return a descriptor that holds the lock *name* in a directory, waiting for it at most *timeout* seconds."""
    fd = open_beneath(dir_fd, name, _FLAGS, 0o600)
    try:
        _wait(fd, printable(name), timeout)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_held(path: str) -> bool:
    """Return whether a process holds the lock at *path*; to take it, even for a moment, could be in somebody's way."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with open("/proc/locks", encoding="ascii") as lines:
        return any(inode in line.split() for line in lines)


def _wait(fd: int, name: str, timeout: float, kind: int = fcntl.LOCK_EX) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StowageError(f"{name}: held by another process for {timeout:.0f} s; see who with fuser") from None
            time.sleep(0.05)
