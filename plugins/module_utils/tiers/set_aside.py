# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to go from a tier is first set aside, in a directory of the tier's that only root can enter.

Whoever could still reach it would lose what they move elsewhere, or open, while it is deleted. In there it is judged
once more, and only then deleted. Whatever ends that early, it is put back: also by the next run, when this one is
killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator

from ..errors import StowageError, printable
from ..syscalls import NO_DIRECTORY, open_beneath, rename_noreplace

_PREFIX = b".stowage-cleanup-"
_NAME = re.compile(re.escape(_PREFIX) + rb"[0-9a-f]{32}")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_STEP = 256


class Aside:
    """The directory in a tier that only root can enter."""

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._name = _PREFIX + secrets.token_hex(16).encode("ascii")
        try:
            os.mkdir(self._name, 0o700, dir_fd=root_fd)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            rule = "there is no room for the directory in which its content is set aside first"
            raise StowageError(f"{rule} ({error.strerror}); delete any one file of it") from error
        self.fd = open_beneath(root_fd, self._name)
        status = os.fstat(self.fd)
        if status.st_uid or stat.S_IMODE(status.st_mode) & 0o077 or names_in(self.fd):
            os.close(self.fd)
            raise StowageError(f"{printable(self._name)}: somebody has put another directory in its place")

    def take(self, names: list[bytes], alive: Callable[[], None]) -> tuple[list[bytes], list[str]]:
        """Move *names* of the tier here; return those for which the disk has no room now, and what cannot be moved.

        :param alive: called now and then
        """
        problems: list[str] = []
        waiting: list[bytes] = []
        taken = False
        for number, name in enumerate(names):
            if number % _STEP == 0:
                alive()
            try:
                rename_noreplace(self._root_fd, name, self.fd, name)
                taken = True
            except FileNotFoundError:
                continue
            except OSError as error:
                if taken and error.errno in _NO_ROOM:
                    waiting = names[number:]
                    break
                problems.append(f"{printable(name)}: {error.strerror}")
        self._open_anew()
        return waiting, problems

    def _open_anew(self) -> None:
        """Have btrfs list what has come since it was opened."""
        before, self.fd = self.fd, open_beneath(self.fd, b".")
        os.close(before)

    def put_back(self) -> list[str]:
        """Return to the tier whatever is here, and be gone; return what has to stay here, and why."""
        try:
            return _put_back(self._root_fd, self._name, self.fd)
        finally:
            os.close(self.fd)


def names_in(fd: int) -> list[bytes]:
    """Return what is in a directory, in order."""
    # Opened anew: btrfs does not list what has come since a directory was opened.
    again = open_beneath(fd, b".")
    try:
        return sorted(map(os.fsencode, os.listdir(again)))
    finally:
        os.close(again)


def is_left(root_fd: int) -> bool:
    """Return whether a cleanup that was killed has left anything aside in the tier."""
    return any(True for _name, fd in _left(root_fd) if names_in(fd))


def bring_back(root_fd: int) -> None:
    """Return to the tier what a cleanup that was killed has left aside in it; what has a name that is taken stays."""
    for name, fd in _left(root_fd):
        _put_back(root_fd, name, fd)


def _left(root_fd: int) -> Iterator[tuple[bytes, int]]:
    for name in filter(_NAME.fullmatch, names_in(root_fd)):
        try:
            fd = open_beneath(root_fd, name)
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
            continue
        try:
            status = os.fstat(fd)
            if not status.st_uid and not stat.S_IMODE(status.st_mode) & 0o077:  # else nobody of ours has made it
                yield name, fd
        finally:
            os.close(fd)


def _put_back(root_fd: int, aside: bytes, aside_fd: int) -> list[str]:
    stays = []
    for name in names_in(aside_fd):
        try:
            rename_noreplace(aside_fd, name, root_fd, name)
        except OSError as error:
            stays.append(f"{printable(aside)}/{printable(name)}: {error.strerror}")
    with contextlib.suppress(OSError):  # something stays in it, or it was moved
        os.rmdir(aside, dir_fd=root_fd)
    return stays
