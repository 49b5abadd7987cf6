# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking trees and directories in, by the walk that every other measurement goes."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..tally import FirstProblems
from ..walk import Problem, Walk
from .forest import NOWHERE, Sums
from .handles import Namer
from .known import Known
from .listing import Lister

_NO_SUBVOLUME = 2  # the inode of what stands in a btrfs snapshot for a subvolume: all of them have the same handle


class Confused(Exception):
    """What is known and what is found do not fit together: the tree has to be listed in full."""


class Visitor:
    """Lists the directories of one mount."""

    def __init__(self, known: Known, namer: Namer, lister: Lister, is_btrfs: bool, check: Callable[[], None]) -> None:
        """Take what all listings need.

        :param check: called for each directory that is taken in; what it raises ends the listing
        """
        self._known = known
        self._namer = namer
        self._lister = lister
        self._is_btrfs = is_btrfs
        self._check = check
        self._listed: set[int] = set()
        self._listing = -1

    def has_listed(self, node: int) -> bool:
        """Return whether this has listed a directory."""
        return node in self._listed or self._known.forest.listing(node) == self._listing

    def full(self, root_fd: int, left_out: bytes | None) -> tuple[int, FirstProblems]:
        """List a tree, whatever is known of it, and return its number and what was missed.

        :param left_out: the handle of a directory in it that does not count, nor what is below
        """
        known = self._known
        began = time.time()
        handle = self._namer.handle(root_fd)
        before = known.forest.nodes.get(handle)
        if before is not None:
            parent = known.forest.parent(before)
            if parent != NOWHERE:
                known.dirty.add(parent)  # where it is come across again
            known.remove(before)
        known.listings += 1
        self._listing = known.listings
        root = known.add(handle, NOWHERE, known.listings)
        if left_out is not None:
            known.left_out[root] = left_out
        problems = FirstProblems()
        try:
            self._go(root_fd, problems.add, root, known.listings)
        except BaseException:
            known.remove(root)
            raise
        known.roots[root] = began
        return root, problems

    def again(self, fd: int, node: int) -> None:
        """List a known directory, and in full those that are new in it."""

        def report(problem: Problem) -> None:
            if problem.missing:
                raise Confused

        known = self._known
        met = self._go(fd, report, node, 0)
        for child in list(known.forest.children(node)):
            if child not in met:
                known.orphan(child)

    def _go(self, fd: int, report: Callable[[Problem], None], start: int, listing: int) -> set[int]:
        """Take in what a walk comes across, and return the directories directly in its first one."""
        line: list[int] = []
        try:
            return self._take_in(fd, report, start, listing, line)
        except BaseException:
            # All on the way there: of each, what comes after it was not come across.
            known = self._known
            way = [node for node in (start, *line) if node != NOWHERE and known.forest.is_known(node)]
            known.dirty.update(way)
            known.grown.update(way)
            raise

    def _take_in(
        self, fd: int, report: Callable[[Problem], None], start: int, listing: int, line: list[int]
    ) -> set[int]:
        """Do that, and keep in *line* the way to the directory that the walk is at."""
        known, forest = self._known, self._known.forest
        met: set[int] = set()
        left_out = known.left_out.get(forest.top(start))

        def note(problem: Problem) -> None:
            if not problem.missing:
                known.mounted.add(line[walk.depth])
            report(problem)

        walk = Walk(fd, note)
        for directory in walk:
            del line[walk.depth :]
            node = start
            if line:
                if self._is_btrfs and directory.status.st_ino == _NO_SUBVOLUME:
                    status = directory.status
                    forest.hold_more(line[-1], Sums(0, status.st_size, status.st_blocks, 0, 1))
                    directory.leave_out()
                    line.append(NOWHERE)
                    continue  # the subvolume was not snapshotted: this is empty for ever
                handle = self._namer.handle(directory.fd)
                if handle == left_out:
                    known.lacking[line[-1]] = handle
                    directory.leave_out()
                    line.append(NOWHERE)
                    continue
                found = forest.nodes.get(handle)
                if found is not None and listing and forest.listing(found) != listing:
                    known.remove(found)
                    found = None
                is_new = found is None
                if found is None:
                    self._check()
                    found = known.add(handle, line[-1], listing)
                else:
                    self._meet(found, line[-1])
                if len(line) == 1:
                    met.add(found)
                if not is_new:
                    directory.leave_out()
                    line.append(found)
                    continue
                node = found
            has_grown = bool(line or listing) or node in known.grown
            line.append(node)
            if not listing:
                self._listed.add(node)
            known.lacking.pop(node, None)
            known.clean(node)  # what is told from now on is told after it was listed
            now = time.time()
            known.hold(node, self._lister.list(directory, walk), now, has_grown)
        return met

    def _meet(self, node: int, parent: int) -> None:
        """Come across a known directory."""
        known = self._known
        before = known.forest.parent(node)
        if before != parent:
            if node in known.forest.way(parent):
                raise Confused
            if before != NOWHERE:
                known.dirty.add(before)
            known.move(node, parent)
