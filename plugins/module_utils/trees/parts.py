# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counting a directory tree, and parts of it for themselves, in one walk.

A part is a directory with everything below it, or with what is left of that when other parts are taken away. A file
with several hard links counts once in the tree and once in each part that has a name of it, so that each part has the
figures that measuring it alone would give.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Optional

from .inode_set import InodeSet
from .measure import Usage
from .pace import Pace, Pacer
from .tally import FirstProblems, Tally
from .walk import Directory, Problem, Walk

Names = tuple[str, ...]
"""The way from the root of the tree to a directory."""


@dataclass(frozen=True)
class Part:
    """What a directory is counted for; `found` is told what was counted as soon as the walk leaves the directory.

    rest   whether only what lies in no part below that hides it is counted
    hides  whether what it holds is hidden from the rests around it
    """

    found: Callable[[Usage], None]
    rest: bool = False
    hides: bool = False


Begins = Callable[[Names, Directory], Optional[Iterable[Part]]]


def measure_parts(root_fd: int, begins: Begins, deepest: int, pace: Pace | None = None) -> None:
    """Count the tree at `root_fd`, and tell each part what it holds.

    `begins` says which parts a directory is, from the outermost, or None where nothing in it is counted; it is asked
    for the root, which is one at least, and for the directories at most `deepest` levels below.
    """
    _Count(root_fd, begins, deepest).measure(Pacer(pace).step)


class _Counted:
    """A part that the walk is in."""

    __slots__ = ("depth", "hidden", "links", "part", "plain", "problems", "seen")

    def __init__(self, depth: int, part: Part, take_link: Callable[[os.stat_result], bool]) -> None:
        self.depth = depth
        self.part = part
        self.plain = Tally(take_link)
        self.hidden = Tally(take_link)  # what parts in it hide from rests
        self.links = Tally(take_link)
        self.seen = InodeSet()
        self.problems = FirstProblems()

    def usage(self) -> Usage:
        total = self.links
        total.add(*self.plain.sums())
        if not self.part.rest:
            total.add(*self.hidden.sums())
        return Usage.of(total, self.problems)

    def add(self, inner: _Counted) -> None:
        """Take over what was counted in a part of this one, but its links, which were counted in each."""
        self.hidden.add(*inner.hidden.sums())
        (self.hidden if inner.part.hides else self.plain).add(*inner.plain.sums())


class _Count:
    """Counts files with one name in the innermost part that the walk is in, the others in each."""

    def __init__(self, root_fd: int, begins: Begins, deepest: int) -> None:
        self._walk = Walk(root_fd, self._report)
        self._begins = begins
        self._deepest = deepest
        self._inside: list[_Counted] = []
        self._counting: list[_Counted] = []
        """Those of them that count what is directly in the present directory; made when it is needed."""

    def measure(self, step: Callable[[], None]) -> None:
        for directory in self._walk:
            depth = self._walk.depth
            self._leave(depth)
            if depth <= self._deepest:
                parts = self._begins(self._walk.names, directory)
                if parts is None:
                    directory.leave_out()
                    continue
                for part in parts:
                    self._inside.append(_Counted(depth, part, self._take_link))
                    self._counting = []
            self._inside[-1].plain.count_directory(directory, self._walk, step)
        self._leave(0)

    def _leave(self, depth: int) -> None:
        """End the parts that a directory of this depth is not in."""
        while self._inside and self._inside[-1].depth >= depth:
            one = self._inside.pop()
            self._counting = []
            if self._inside:
                self._inside[-1].add(one)
            one.part.found(one.usage())

    def _around(self, depth: int) -> Iterator[_Counted]:
        """Return the parts that count what is directly in the directory at this depth, from the innermost."""
        hidden = False
        for one in reversed(self._inside):
            if one.depth <= depth:  # else the walk has left it already
                if not (hidden and one.part.rest):
                    yield one
                hidden = hidden or one.part.hides

    def _take_link(self, status: os.stat_result) -> bool:
        self._counting = self._counting or list(self._around(self._walk.depth))
        dev, ino = status.st_dev, status.st_ino
        for one in self._counting:
            if one.seen.add(dev, ino):
                links = one.links
                links.bytes += status.st_size
                links.blocks += status.st_blocks
                links.linked_blocks += status.st_blocks
                links.files += 1
        return False

    def _report(self, problem: Problem) -> None:
        for one in self._around(self._walk.depth):
            one.problems.add(problem)
