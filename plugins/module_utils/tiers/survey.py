# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What was in the directory of a tier before its backend wrote to it.

It is looked at once, when the directory is claimed: later nobody can tell a backend's own content from what it found.
A reading that failed is no answer, neither that there was nothing nor that there was something.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import one_line
from ..owner import XATTR
from ..syscalls import open_beneath
from ..trees.walk import Problem, Walk
from ..use.child import nothing

WAS_EMPTY = "TierWasEmpty"
PREEXISTING = "PreexistingContent"
"""The reason why a tier was not empty."""


@dataclass(frozen=True)
class Survey:
    """The entries of a directory, those included whose names begin with a dot."""

    entries: int | None
    """None while it is not known."""
    time: float
    reason: str = ""
    """Why it is not known."""

    @property
    def was_empty(self) -> bool | None:
        """Return the answer; None when there is none."""
        return None if self.entries is None else not self.entries

    def to_report(self) -> dict[str, Any]:
        return {**asdict(self), "was_empty": self.was_empty}


def state_of(fd: int) -> list[int]:
    """Return what changes with the entries of the directory open at *fd*, or with the directory itself."""
    status = os.fstat(fd)
    return [status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def survey(fd: int, now: float) -> Survey:
    """Look at the directory open at *fd*.

    The second reading is the control: one of a directory that somebody writes to, or that fails now and then, is no
    evidence of what was there before.
    """
    try:
        first, second = _names(fd), _names(fd)
    except OSError as error:
        return Survey(None, now, f"it cannot be read: {one_line(error)}")
    if first != second:
        return Survey(None, now, "it changed while it was looked at: somebody writes to it")
    return Survey(len(first), now)


def _names(fd: int) -> set[bytes]:
    # Opened anew: btrfs does not list what has come since a directory was opened.
    again = open_beneath(fd, b".")
    try:
        return set(map(os.fsencode, os.listdir(again)))
    finally:
        os.close(again)


def verdict(answers: Iterable[bool | None]) -> bool | None:
    """Return whether a tier was empty over all its hosts, from the answer of each (None: it has not answered).

    One host that held content settles it; that it was empty is known only when all have said so.
    """
    known = list(answers)
    if False in known:
        return False
    return True if known and all(known) else None


def marked_below(fd: int, alive: Callable[[], None] = nothing) -> str:
    """Return the first directory below *fd* that bears an owner mark, whoever's, or that cannot be looked at, in words.

    Empty when there is none. Somebody's copies or another tier may lie deep in what is taken in, or is to be emptied.

    :param alive: called for each directory
    """
    problems: list[Problem] = []
    walk = Walk(fd, problems.append)
    for directory in walk:
        alive()
        if walk.depth and is_marked(directory.fd):
            return f"{walk.path()} bears an owner mark"
    return str(problems[0]) if problems else ""


def is_marked(fd: int) -> bool:
    """Return whether the directory open at *fd* bears an owner mark, also a damaged one or another place's."""
    return XATTR in os.listxattr(fd)
