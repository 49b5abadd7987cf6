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
    _measure(root_fd, begins, deepest, Pacer(pace).step)


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


class Inside:
    """The parts that a walk is in: files with one name count in the innermost, the others in each."""

    def __init__(self) -> None:
        self._inside: list[_Counted] = []
        self._depth = 0
        self._counting: list[_Counted] = []
        """Those of them that count what is directly in the present directory; made when it is needed."""

    def at(self, depth: int) -> None:
        """Note how deep the walk is now, and end the parts that a directory of this depth is not in."""
        self._depth = depth
        self._counting = []
        while self._inside and self._inside[-1].depth >= depth:
            one = self._inside.pop()
            if self._inside:
                self._inside[-1].add(one)
            one.part.found(one.usage())

    def begin(self, parts: Iterable[Part]) -> None:
        """Begin the parts that the directory is which the walk is at."""
        for part in parts:
            self._inside.append(_Counted(self._depth, part, self._take_link))
            self._counting = []

    @property
    def innermost(self) -> Tally:
        """What counts the files with one name."""
        return self._inside[-1].plain

    def add_link(self, dev: int, ino: int, size: int, blocks: int) -> None:
        """Count one name of a file with several, directly in the directory that the walk is at."""
        self._counting = self._counting or list(self._around(self._depth))
        for one in self._counting:
            if one.seen.add(dev, ino):
                links = one.links
                links.bytes += size
                links.blocks += blocks
                links.linked_blocks += blocks
                links.files += 1

    def report(self, problem: Problem, depth: int) -> None:
        """Note what is wrong in the directory at a depth."""
        for one in self._around(depth):
            one.problems.add(problem)

    def end(self) -> None:
        """End all of them."""
        self.at(0)

    def _around(self, depth: int) -> Iterator[_Counted]:
        """Return the parts that count what is directly in the directory at this depth, from the innermost."""
        hidden = False
        for one in reversed(self._inside):
            if one.depth <= depth:  # else the walk has left it already
                if not (hidden and one.part.rest):
                    yield one
                hidden = hidden or one.part.hides

    def _take_link(self, status: os.stat_result) -> bool:
        self.add_link(status.st_dev, status.st_ino, status.st_size, status.st_blocks)
        return False


def _measure(root_fd: int, begins: Begins, deepest: int, step: Callable[[], None]) -> None:
    inside = Inside()
    walk = Walk(root_fd, lambda problem: inside.report(problem, walk.depth))
    for directory in walk:
        depth = walk.depth
        inside.at(depth)
        if depth <= deepest:
            parts = begins(walk.names, directory)
            if parts is None:
                directory.leave_out()
                continue
            inside.begin(parts)
        inside.innermost.count_directory(directory, walk, step)
    inside.end()
