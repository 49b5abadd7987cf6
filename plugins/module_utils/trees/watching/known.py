# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that is known of what one mount shows, and which of it has to be looked at again. Nothing here does I/O."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator

from .forest import NOWHERE, Forest
from .hard_links import HardLinks
from .listing import Listed

_AGAIN_BYTES = 84
"""What a directory takes, about, that is listed each time: until when, and its places among those that are listed."""


class Known:
    """The known directories of one mount."""

    def __init__(self, settles_s: float) -> None:
        """Know nothing yet."""
        self.settles_s = settles_s
        """How long after a change what a file takes may still change by itself, in seconds."""
        self.forest = Forest()
        self.links = HardLinks()
        self.dirty: set[int] = set()
        """Directories that have changed since they were listed, or may have."""
        self.grown: set[int] = set()
        """Those of them that may have names now which they had not: of files in any tree."""
        self.doubtful: set[int] = set()
        """Those in which something changed while the names of files there were taken for known."""
        self.restless: dict[int, float] = {}
        """Until when directories change without an event."""
        self.roots: dict[int, float] = {}
        """When the last full listing of a tree began."""
        self.many_roots = 0
        """At how many roots it is looked which of them were deleted."""
        self.listings = 0
        """How many full listings there were."""
        self.forgotten: dict[int, float] = {}
        """Roots that are to be listed in full, and since when, in monotonic seconds."""
        self.mounted: set[int] = set()
        """Directories in which something was mounted when that was looked at last."""
        self.left_out: dict[int, bytes] = {}
        """By the root of a tree the handle of a directory that does not count in it, with all that is below."""
        self.lacking: dict[int, bytes] = {}
        """The directories that such a one was come across in, and its handle."""
        self.orphans: set[int] = set()
        """Directories that are no longer where they were, and were not come across elsewhere yet."""
        self.has_arrivals = False
        """Whether a directory has come since the mount table was read: something may be mounted in it."""

    def add(self, handle: bytes, parent: int, listing: int) -> int:
        """Take in a directory that is not known, and holds nothing yet; return its number."""
        self.has_arrivals = True
        return self.forest.add(handle, parent, listing)

    def hold(self, node: int, listed: Listed, now: float, has_grown: bool) -> None:
        """Take in what a directory holds.

        :param now: when its listing began
        :param has_grown: whether it may have names which it had not when it was listed before
        """
        self.forest.hold(node, listed.own, listed.lowest, listed.highest)
        self.links.hold(node, listed.links, has_grown)
        until = listed.newest + self.settles_s
        if until > now:
            self.restless[node] = until
        else:
            self.restless.pop(node, None)

    def clean(self, node: int) -> None:
        """Take a directory for one that is not to be listed again, until something is told of it."""
        self.dirty.discard(node)
        self.grown.discard(node)
        self.doubtful.discard(node)

    def settle_later(self, node: int, now: float) -> None:
        """List a directory each time for a while: something was told of it just now."""
        if self.restless.get(node, 0.0) < now + self.settles_s:
            self.restless[node] = now + self.settles_s

    def remove(self, node: int) -> None:
        """Forget a directory with all below it."""
        for one in self.forest.remove(node):
            self.links.remove(one)
            self.clean(one)
            self.restless.pop(one, None)
            self.roots.pop(one, None)
            self.forgotten.pop(one, None)
            self.mounted.discard(one)
            self.left_out.pop(one, None)
            self.lacking.pop(one, None)
            self.orphans.discard(one)

    def move(self, node: int, parent: int) -> None:
        """Put a directory with all below it into another one."""
        self.has_arrivals = True
        self.forest.move(node, parent)
        self.orphans.discard(node)

    def orphan(self, node: int) -> None:
        """Take a directory out of the one that it was in: it may be come across in another one."""
        self.forest.move(node, NOWHERE)
        self.orphans.add(node)

    def drop_orphans(self) -> None:
        """Forget what was not come across again."""
        for node in list(self.orphans):
            if node in self.orphans:
                self.remove(node)

    def drop_forgotten(self, until: float) -> None:
        """Forget the trees that are to be listed in full since then or longer."""
        for root in [one for one, since in self.forgotten.items() if since <= until]:
            if root in self.forgotten and self.forest.parent(root) == NOWHERE:
                self.remove(root)

    def within(self, root: int) -> Callable[[int], bool]:
        """Return what tells whether a directory is the root of a tree or in it, while nothing moves."""
        forest = self.forest
        if self.is_only_tree(root):
            return lambda node: True
        told: dict[int, bool] = {root: True, NOWHERE: False}

        def is_in(node: int) -> bool:
            way = []
            while node not in told:
                way.append(node)
                node = forest.parent(node)
            told.update(dict.fromkeys(way, told[node]))
            return told[node]

        return is_in

    def counting_in(self, nodes: Iterable[int], is_in: Callable[[int], bool]) -> Iterator[int]:
        """Return the directories of a tree among some, and for the others those that have names of the same files."""
        others = []
        for node in nodes:
            if is_in(node):
                yield node
            else:
                others.append(node)
        yield from filter(is_in, self.links.sharing(others))

    def doubt_names(self, is_in: Callable[[int], bool]) -> list[int]:
        """Know no names of files in directories out of a tree that have changed, but cannot have new ones.

        Return the directories of the tree with other names of the same files.
        """
        others = [one for one in self.doubtful if one not in self.grown and not is_in(one)]
        self.doubtful.difference_update(others)
        found = list(self.counting_in(others, is_in))
        for node in others:
            self.links.remove(node)  # it is listed before its own tree is counted
        return found

    def unsteady(self, root: int, is_in: Callable[[int], bool]) -> Iterable[int]:
        """Return the directories of a tree that are to be listed each time, as their files may change without a word.

        A small tree is looked through itself: there may be thousands of others.
        """
        others = (self.restless, self.mounted)
        if self._is_smaller(root, sum(map(len, others)) + self.links.how_many_loose()):
            below = list(self.forest.below(root))
            return self.links.tied(below, others).union(*(filter(each.__contains__, below) for each in others))
        return (one for each in (*others, self.links.loose()) for one in self.counting_in(each, is_in))

    def how_many_unsteady(self) -> int:
        """Return how many directories those are, in all trees together."""
        return len({*self.restless, *self.mounted, *self.links.loose()})

    def among(self, nodes: Collection[int], root: int) -> list[int]:
        """Return which of some directories are in a tree."""
        if self._is_smaller(root, len(nodes)):
            return [one for one in self.forest.below(root) if one in nodes]
        return list(filter(self.within(root), nodes))

    def _is_smaller(self, root: int, number: int) -> bool:
        return self.forest.total(root).directories < number

    def fits(self, root: int, left_out: bytes | None) -> bool:
        """Return whether a known tree is one without that directory, and with all others."""
        way = self.forest.way
        node = None if left_out is None else self.forest.nodes.get(left_out)
        if node is not None and node != root and root in way(node):
            return False
        return all(handle == left_out or root not in way(one) for one, handle in self.lacking.items())

    def is_only_tree(self, root: int) -> bool:
        """Return whether everything known is in one tree."""
        forest = self.forest
        return (
            forest.parent(root) == NOWHERE
            and not self.orphans
            and all(one == root or forest.parent(one) != NOWHERE for one in self.roots)
        )

    def link_sums(self, root: int) -> tuple[int, int, int]:
        """Return bytes, blocks and number of the files with several links that have a name in a tree."""
        return self.links.sums(None if self.is_only_tree(root) else self.among(self.links.nodes(), root))

    def began(self, node: int) -> float | None:
        """Return when the last full listing began that came through a directory."""
        return next((self.roots[one] for one in self.forest.way(node) if one in self.roots), None)

    @property
    def state_bytes(self) -> int:
        """How much memory all this takes, about."""
        several = (self.dirty, self.grown, self.doubtful, self.restless, self.mounted)
        again = sum(map(sys.getsizeof, several)) + len(self.restless) * _AGAIN_BYTES
        return self.forest.state_bytes + self.links.state_bytes + again
