# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes of the store on this host: each tells by its environment which directory it keeps its tier in.

A container has names of its own. So directories are compared by device and inode, as they are from where the process
is. What a process sets for itself after its start cannot be seen here; what it has open is the matter of ``use``.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import one_line, printable
from ..syscalls import find_in_root, find_without_links
from ..use.child import NoAnswerError, answer_of, progress
from .environment import PATH, PREFIX

_DEADLINE_S = 10.0
_ENDED = (errno.ENOENT, errno.ESRCH)
_LONGEST = 64
_DAC_OVERRIDE = 1 << 1
"""The capability to which modes do not matter."""


@dataclass(frozen=True)
class StoreProcess:
    """One process with the store's settings in its environment."""

    pid: int
    command: str
    path: str
    """The directory as the process names it."""
    device: int | None = None
    inode: int | None = None
    """Where that leads to from where the process is; None when that cannot be told, or the process has ended."""
    unknown: str = ""
    """Why it cannot be told where it leads to."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """All of the store's settings that the process was started with."""
    uid: int | None = None
    """The user that it uses files as, with *gid* and *groups*; None when these do not tell what it may."""
    gid: int | None = None
    groups: Sequence[int] = ()
    owner: Sequence[int] = ()
    """User and group of the directory as the process sees them: an ID-mapped mount shows others."""

    @property
    def described(self) -> str:
        return f"process {self.pid} ({printable(self.command)})"


def store_processes(proc: str = "/proc") -> list[StoreProcess]:
    """Return the processes of this host that keep a tier.

    :raises NoAnswerError: when the look fails, or one of their directories does not answer
    """
    found: list[dict[str, Any]] = answer_of(lambda: _look(proc), _DEADLINE_S)
    return [StoreProcess(**one) for one in found]


def on_directory(path: str, status: os.stat_result, processes: Sequence[StoreProcess]) -> list[StoreProcess]:
    """Return those of *processes* that are, or may be, on the directory *path*."""
    return [
        one
        for one in processes
        if (one.device, one.inode) == (status.st_dev, status.st_ino)
        or one.unknown
        or os.path.normpath(one.path) == path
    ]


def why_busy(path: str, status: os.stat_result) -> str:
    """Return which store process is, or may be, on the directory *path*, in one line; empty when none is."""
    try:
        users = on_directory(path, status, store_processes())
    except NoAnswerError as error:
        return f"whether a store process is on it could not be determined: {error}"
    if not users:
        return ""
    first = users[0]
    if first.unknown:
        return f"{first.described} is a store process whose directory could not be determined: {first.unknown}"
    return f"{first.described} is a store process on it"


def parse_environment(data: bytes) -> dict[str, str]:
    """Return the store's settings in an environment as ``/proc`` shows it; the first of a name counts, as in libc."""
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, equals, value = os.fsdecode(entry).partition("=")
        if equals and name.startswith(PREFIX):
            found.setdefault(name, value)
    return found


def parse_user(status: bytes) -> dict[str, Any]:
    """Return user and groups that a process uses files as, of its ``status`` in ``/proc``.

    Nothing is returned where they do not tell what it may: of root without the capability that makes it what it is, as
    in some containers, and of another user that has this capability, perhaps only in a user namespace of its own.
    """
    fields = dict(line.split(b":", 1) for line in status.split(b"\n") if b":" in line)
    try:
        # Real, effective, saved, and the one that counts for files.
        uid, gid = (int(fields[name].split()[3]) for name in (b"Uid", b"Gid"))
        groups = [int(one) for one in fields[b"Groups"].split()]
        overrides = bool(int(fields[b"CapEff"], 16) & _DAC_OVERRIDE)
    except (KeyError, IndexError, ValueError):
        return {}
    return {"uid": uid, "gid": gid, "groups": groups} if overrides == (uid == 0) else {}


def _look(proc: str) -> list[dict[str, Any]]:
    found = []
    for name in filter(str.isdigit, os.listdir(proc)):
        progress()
        base = os.path.join(proc, name)
        try:
            with open(os.path.join(base, "environ"), "rb") as stream:
                settings = parse_environment(stream.read())
            if not settings.get(PATH):
                continue
            with open(os.path.join(base, "comm"), "rb") as stream:
                command = os.fsdecode(stream.read().rstrip(b"\n"))[:_LONGEST]
            with open(os.path.join(base, "status"), "rb") as stream:
                user = parse_user(stream.read())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        found.append(
            {"pid": int(name), "command": command, "path": settings[PATH], "settings": settings}
            | user
            | _identity(base, settings[PATH])
        )
    return found


def _identity(base: str, path: str) -> dict[str, Any]:
    """Return device, inode and owner of *path* as a process sees it; a relative one begins in its working directory.

    One that leads nowhere is not known to be elsewhere: the directory may have been moved under the process.
    """
    absolute = path.startswith("/")
    try:
        start = os.open(os.path.join(base, "root" if absolute else "cwd"), os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        return {} if error.errno in _ENDED else {"unknown": one_line(error)}
    try:
        fd = (find_in_root if absolute else find_without_links)(start, os.fsencode(path))
    except OSError as error:
        if error.errno == errno.ELOOP:
            return {"unknown": f"{printable(path)} leads over symbolic links that cannot be followed from here"}
        return {"unknown": f"{printable(path)}: {error.strerror}"}
    finally:
        os.close(start)
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    return {"device": status.st_dev, "inode": status.st_ino, "owner": [status.st_uid, status.st_gid]}
