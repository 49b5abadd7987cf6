# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel's own word that nobody has a regular file open: it grants a write lease on nothing else.

This sees what /proc cannot show: open files in flight over sockets, those of io_uring, loop devices, swap files, and
opens through other mounts, overlays or NFS. It says nothing about directories, nor about files that were opened with
O_PATH only: these do not count as open.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable

from ..errors import StowageError
from ..syscalls import open_beneath
from ..trees.walk import Problem, Walk
from ..use.child import NoAnswerError, answer_of, nothing, progress

DEADLINE_S = 60.0
_REFUSED = (errno.EAGAIN, errno.EBUSY, errno.ETXTBSY)


def open_file(root_fd: int, deadline_s: float = DEADLINE_S, alive: Callable[[], None] = nothing) -> str:
    """Return the first regular file at or below *root_fd* that somebody may have open, as a reason; "" when none has.

    It may take as long as it goes on: without any progress for *deadline_s* seconds there is no answer.
    Files that another link outside names are asked as well: who has such a link open has the file open.
    """
    try:
        return str(answer_of(lambda: _first_refusal(root_fd), deadline_s, alive))
    except NoAnswerError as error:
        return f"could not be determined: write leases: {error}"


def _first_refusal(root_fd: int) -> str:
    problems: list[Problem] = []
    # Opened anew: btrfs does not list what has come since a directory was opened.
    walk = Walk(open_beneath(root_fd, b"."), problems.append)
    for directory in walk:
        progress()
        for entry in directory.files():
            progress()
            if entry.is_file(follow_symlinks=False):
                reason = _refusal(directory.fd, os.fsencode(entry.name))
                if reason:
                    return f"{walk.path(entry.name)} {reason}"
        if problems:
            return f"could not be determined: {problems[0]}"
    return f"could not be determined: {problems[0]}" if problems else ""


def _refusal(dir_fd: int, name: bytes) -> str:
    try:
        os.close(leased(dir_fd, name)[0])
    except StowageError as error:
        return str(error)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    return ""


class OpenElsewhereError(StowageError):
    """Somebody has the file open: there is no write lease on it."""


def leased(dir_fd: int, name: bytes) -> tuple[int, os.stat_result]:
    """Open a regular file under a write lease, which ends when the descriptor is closed; and look at it.

    Whoever was faster than the lease has left a trace in what is returned, and nobody reads or writes from now on.

    :raises OpenElsewhereError: when somebody has it open
    :raises StowageError: when there are no leases here
    :raises OSError: when it cannot be opened; `FileNotFoundError` also when it is no regular file
    """
    try:
        # O_NONBLOCK: another holder's lease must not make this wait, nor a FIFO that has taken the file's place.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in _REFUSED:
            raise OpenElsewhereError("is open in some process: another lease is held on it") from error
        raise
    try:
        why = _lease(fd)
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(errno.ENOENT, "it was replaced while it was looked at")
        if why is not None:
            raise why
    except BaseException:
        os.close(fd)
        raise
    return fd, status


def _lease(fd: int) -> StowageError | None:
    """Take the lease; return why there is none."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno in _REFUSED:
            return OpenElsewhereError("is open somewhere: the kernel refuses a write lease on it")
        return StowageError(f"has no write lease: {error.strerror}; the kernel or its filesystem must grant leases")
    return None


def is_kept(fd: int) -> bool:
    """Return whether nobody has begun to open a leased file since."""
    return fcntl.fcntl(fd, fcntl.F_GETLEASE) == fcntl.F_WRLCK
