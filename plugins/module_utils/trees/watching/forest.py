# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of directories: what each holds itself, what is below each, and how they lie in each other.

A directory is a number, a row of arrays: some 330 bytes each, its handle included, and nothing for its files. Nothing
here does I/O. Sums below directories are brought up to date together, when they are asked for.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .errors import WatchError

NOWHERE = -1
_MOST_PENDING = 4096
_ROW = 10 * 8 + 2 * 8 + 5 * 4 + 32 + 70  # the arrays, a number in the dictionary, and what allocators leave unused


class Sums(NamedTuple):
    """What directories hold; files with several hard links are counted elsewhere."""

    bytes: int = 0
    directory_bytes: int = 0
    blocks: int = 0
    files: int = 0
    directories: int = 0

    def plus(self, other: Sums) -> Sums:
        """Return both together."""
        return Sums(*map(int.__add__, self, other))

    def minus(self, other: Sums) -> Sums:
        """Return what is left without the other."""
        return Sums(*map(int.__sub__, self, other))


NOTHING = Sums()


class _Columns:
    """Sums of many directories."""

    def __init__(self) -> None:
        self._columns = tuple(array("Q") for _field in Sums._fields)

    def __getitem__(self, node: int) -> Sums:
        one, two, three, four, five = self._columns
        return Sums(one[node], two[node], three[node], four[node], five[node])

    def __setitem__(self, node: int, sums: Sums) -> None:
        one, two, three, four, five = self._columns
        try:
            one[node], two[node], three[node], four[node], five[node] = sums
        except OverflowError as error:
            raise WatchError("its files have more bytes than 64 bits can count") from error

    def append(self) -> None:
        for column in self._columns:
            column.append(0)


class Forest:
    """Directories by their handles, in as many trees as were listed."""

    def __init__(self) -> None:
        self.nodes: dict[bytes, int] = {}
        self._handles: list[bytes | None] = []
        self._free: list[int] = []
        self._own = _Columns()
        self._below = _Columns()
        self._parent = array("i")
        self._first = array("i")
        self._next = array("i")
        self._previous = array("i")
        self._listing = array("I")
        self._lowest = array("Q")
        self._highest = array("Q")
        self._pending: dict[int, Sums] = {}
        """What is to be added to the sums of directories and of all that they are in."""

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[int]:
        return iter(self.nodes.values())

    def add(self, handle: bytes, parent: int, listing: int) -> int:
        """Take in a directory that is not known, and holds nothing yet; return its number."""
        if self._free:
            node = self._free.pop()
            self._own[node] = self._below[node] = NOTHING
        else:
            node = len(self._handles)
            self._handles.append(None)
            self._own.append()
            self._below.append()
            for column in (self._parent, self._first, self._next, self._previous):
                column.append(NOWHERE)
            for column in (self._listing, self._lowest, self._highest):
                column.append(0)
        self._handles[node] = handle
        self.nodes[handle] = node
        self._listing[node] = listing
        self._link(node, parent)
        return node

    def handle(self, node: int) -> bytes:
        """Return the handle of a directory."""
        handle = self._handles[node]
        if handle is None:
            raise KeyError(node)
        return handle

    def is_known(self, node: int) -> bool:
        """Return whether a number is that of a directory."""
        return self._handles[node] is not None

    def parent(self, node: int) -> int:
        """Return what a directory is in, NOWHERE for the root of a tree."""
        return self._parent[node]

    def listing(self, node: int) -> int:
        """Return the number of the listing that came across it first."""
        return self._listing[node]

    def children(self, node: int) -> Iterator[int]:
        """Return the directories that are directly in one; none of them may be moved meanwhile."""
        child = self._first[node]
        while child != NOWHERE:
            yield child
            child = self._next[child]

    def own(self, node: int) -> Sums:
        """Return what a directory holds itself."""
        return self._own[node]

    def hold(self, node: int, own: Sums, lowest: int, highest: int) -> None:
        """Set what a directory holds itself, and between which inodes its files are."""
        before = self._own[node]
        self._lowest[node], self._highest[node] = lowest, highest
        if own != before:
            self._own[node] = own
            self._add(node, own.minus(before))
            if len(self._pending) > _MOST_PENDING:
                self._settle()

    def hold_more(self, node: int, more: Sums) -> None:
        """Add to what a directory holds itself."""
        self._own[node] = self._own[node].plus(more)
        self._add(node, more)

    def may_have(self, node: int, inodes: Sequence[int]) -> bool:
        """Return whether, by their numbers, one of these inodes, which are sorted, may have a name in a directory."""
        at = bisect_left(inodes, self._lowest[node])
        return at < len(inodes) and inodes[at] <= self._highest[node]

    def total(self, node: int) -> Sums:
        """Return what a directory and all below it hold."""
        self._settle()
        return self._below[node]

    def move(self, node: int, parent: int) -> None:
        """Put a directory with all below it into another one, or NOWHERE."""
        old = self._parent[node]
        if old == parent:
            return
        total = self._below[node]  # what is pending in it will reach where it is then
        if old != NOWHERE:
            self._unlink(node)
            self._add(old, NOTHING.minus(total))
        self._link(node, parent)
        if parent != NOWHERE:
            self._add(parent, total)

    def remove(self, node: int) -> list[int]:
        """Forget a directory and all below it, and return their numbers, which may be given again."""
        self.move(node, NOWHERE)
        gone = [node]
        for one in gone:
            gone.extend(self.children(one))
        for one in gone:
            del self.nodes[self.handle(one)]
            self._handles[one] = None
            self._pending.pop(one, None)
            self._first[one] = self._next[one] = self._previous[one] = self._parent[one] = NOWHERE
        self._free.extend(gone)
        return gone

    def way(self, node: int) -> Iterator[int]:
        """Return a directory and those that it is in, up to the root of its tree."""
        while node != NOWHERE:
            yield node
            node = self._parent[node]

    def below(self, node: int) -> Iterator[int]:
        """Return a directory and all below it; none of them may be moved meanwhile."""
        waiting = [node]
        while waiting:
            one = waiting.pop()
            yield one
            waiting.extend(self.children(one))

    def top(self, node: int) -> int:
        """Return the root of the tree that a directory is in."""
        *_way, top = self.way(node)
        return top

    @property
    def state_bytes(self) -> int:
        """How much memory all this takes, about."""
        handles = max((sys.getsizeof(one) for one in self._handles[:8]), default=0) + 8
        return len(self.nodes) * (handles + _ROW) + sys.getsizeof(self.nodes)

    def _link(self, node: int, parent: int) -> None:
        self._parent[node] = parent
        self._previous[node] = NOWHERE
        self._next[node] = NOWHERE
        if parent != NOWHERE:
            after = self._first[parent]
            self._next[node] = after
            if after != NOWHERE:
                self._previous[after] = node
            self._first[parent] = node

    def _unlink(self, node: int) -> None:
        before, after = self._previous[node], self._next[node]
        if before != NOWHERE:
            self._next[before] = after
        else:
            self._first[self._parent[node]] = after
        if after != NOWHERE:
            self._previous[after] = before

    def _add(self, node: int, sums: Sums) -> None:
        pending = self._pending.get(node)
        self._pending[node] = sums if pending is None else pending.plus(sums)

    def _settle(self) -> None:
        """Add what is pending, from the deepest directories up, so that each is gone through once."""
        if not self._pending:
            return
        pending, self._pending = self._pending, {}
        waits: dict[int, int] = {}  # for how many of the directories in it each waits
        for start in pending:
            node, seen = start, start in waits
            waits.setdefault(start, 0)
            while not seen and (node := self._parent[node]) != NOWHERE:
                seen = node in waits
                waits[node] = waits.get(node, 0) + 1
        ready = [node for node, number in waits.items() if not number]
        while ready:
            node = ready.pop()
            sums = pending.pop(node, NOTHING)
            if sums != NOTHING:
                self._below[node] = self._below[node].plus(sums)
            parent = self._parent[node]
            if parent != NOWHERE:
                if sums != NOTHING:
                    before = pending.get(parent)
                    pending[parent] = sums if before is None else before.plus(sums)
                waits[parent] -= 1
                if not waits[parent]:
                    ready.append(parent)
