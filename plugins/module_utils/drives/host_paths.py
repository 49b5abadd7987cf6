# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories that operators name as sources of drives: opened step by step, so that nobody else says where they lead.

A symbolic link is followed only where root alone could have put it. Otherwise a worker that may write next to its data
could have any directory of the host mounted for it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from ..errors import Refusal, printable

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40


@dataclass(frozen=True)
class Found:
    """How far a path leads."""

    fd: int
    """The last directory that is there."""
    missing: tuple[str, ...]
    """What is not there below it."""

    @property
    def path(self) -> str:
        """Where the path leads, without symlinks."""
        return os.path.join(os.readlink(f"/proc/self/fd/{self.fd}"), *self.missing)


@contextmanager
def opened(path: str, name: str, links: bool = True) -> Iterator[Found]:
    """Open the absolute *path* as far as it is there.

    :param name: whose path it is, for messages
    :param links: whether root's symbolic links are followed
    :raises Refusal: when something else than a directory, or a link that is not followed, is on the way
    """
    with ExitStack() as stack:
        yield _walk(path, name, links, stack)


def _walk(path: str, name: str, links: bool, stack: ExitStack) -> Found:
    above: list[int] = []
    here = _opened("/", None, stack)
    parts = deque(path.strip("/").split("/"))
    followed = 0
    while parts:
        part = parts.popleft()
        if part in ("", "."):
            continue
        if part == "..":  # only a link's target holds it
            here = above.pop() if above else here
            continue
        try:
            entry = os.stat(part, dir_fd=here, follow_symlinks=False)
        except FileNotFoundError:
            return Found(here, tuple(one for one in (part, *parts) if one not in ("", ".")))
        if stat.S_ISLNK(entry.st_mode):
            shown = printable(os.path.join(os.readlink(f"/proc/self/fd/{here}"), part))
            _check_link(path, name, shown, links, entry, os.fstat(here))
            followed += 1
            if followed > _MOST_LINKS:
                raise Refusal(name, f"{path} has too many levels of symbolic links", "name the directory itself")
            try:
                target = os.readlink(part, dir_fd=here)
            except OSError as error:
                raise _replaced(name, shown) from error
            parts.extendleft(reversed(target.split("/")))
            if target.startswith("/"):
                above, here = [], _opened("/", None, stack)
            continue
        try:
            below = _opened(part, here, stack)
        except OSError as error:
            shown = printable(os.path.join(os.readlink(f"/proc/self/fd/{here}"), part))
            if error.errno == errno.ENOENT:
                raise _replaced(name, shown) from error
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise Refusal(name, f"{shown} is not a directory", "name a directory") from error
            raise
        above.append(here)
        here = below
    return Found(here, ())


def _replaced(name: str, shown: str) -> Refusal:
    return Refusal(name, f"{shown} was replaced while it was looked at", "run again")


def _opened(part: str, dir_fd: int | None, stack: ExitStack) -> int:
    fd = os.open(part, _STEP, dir_fd=dir_fd)
    stack.callback(os.close, fd)
    return fd


def _check_link(path: str, name: str, shown: str, links: bool, link: os.stat_result, directory: os.stat_result) -> None:
    if not links:
        raise Refusal(name, f"{path} leads through the symbolic link {shown}", "name the directory itself")
    if link.st_uid or directory.st_uid or directory.st_mode & 0o022:
        rule = f"{path} leads through the symbolic link {shown}, which others than root could have put there"
        raise Refusal(name, rule, "name the directory itself")
