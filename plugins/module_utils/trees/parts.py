# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counting a directory tree, and parts of it for themselves, in one walk.

A part is a directory with everything below it. A file with several hard links counts once in the tree and once in each
part that has a name of it, so that each part has the figures that measuring it alone would give.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from .inode_set import InodeSet
from .measure import Usage
from .pace import Pace, Pacer
from .tally import FirstProblems, Tally
from .walk import Problem, Walk

Names = tuple[str, ...]
"""The way from the root of the tree to a part."""


def measure_parts(
    root_fd: int,
    begins: Callable[[Names], bool],
    deepest: int,
    found: Callable[[Names, Usage], None],
    pace: Pace | None = None,
) -> Usage:
    """Return what the tree at `root_fd` holds, and tell `found` each part as soon as it was counted.

    `begins` says whether a directory is a part; it is asked for those at most `deepest` levels below the root.
    """
    return _Count(root_fd, begins, deepest, found).measure(Pacer(pace).step)


class _Part:
    """A part that the walk is in, or the whole tree."""

    __slots__ = ("depth", "links", "names", "plain", "problems", "seen")

    def __init__(self, names: Names, take_link: Callable[[os.stat_result], bool]) -> None:
        self.names = names
        self.depth = len(names)
        self.plain = Tally(take_link)
        self.links = Tally(take_link)
        self.seen = InodeSet()
        self.problems = FirstProblems()

    def usage(self) -> Usage:
        self.plain.add(*self.links.sums())
        return Usage.of(self.plain, self.problems)


class _Count:
    """Counts files with one name in the innermost part that the walk is in, the others in each."""

    def __init__(
        self,
        root_fd: int,
        begins: Callable[[Names], bool],
        deepest: int,
        found: Callable[[Names, Usage], None],
    ) -> None:
        self._walk = Walk(root_fd, self._report)
        self._begins = begins
        self._deepest = deepest
        self._found = found
        self._inside = [_Part((), self._take_link)]

    def measure(self, step: Callable[[], None]) -> Usage:
        for directory in self._walk:
            depth = self._walk.depth
            self._leave(depth)
            if 0 < depth <= self._deepest and self._begins(names := self._walk.names):
                self._inside.append(_Part(names, self._take_link))
            self._inside[-1].plain.count_directory(directory, self._walk, step)
        self._leave(1)
        return self._inside[0].usage()

    def _leave(self, depth: int) -> None:
        """End the parts that a directory of this depth is not in."""
        while len(self._inside) > 1 and self._inside[-1].depth >= depth:
            part = self._inside.pop()
            self._inside[-1].plain.add(*part.plain.sums())
            self._found(part.names, part.usage())

    def _take_link(self, status: os.stat_result) -> bool:
        for part in self._inside:
            if part.seen.add(status.st_dev, status.st_ino):
                part.links.add(status.st_size, 0, status.st_blocks, 1, 0)
        return False

    def _report(self, problem: Problem) -> None:
        for part in self._inside:
            if part.depth <= self._walk.depth:  # else the walk has left it already
                part.problems.add(problem)
