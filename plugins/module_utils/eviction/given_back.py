# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What really becomes free when copies go, without looking at anything itself.

A file gives back its blocks with its last name, and a block that files share is free with the last of them. So each
counts in the copy that takes the last one away, and never while something has it that stays.

How many files share a block is not known: that one met twice in what goes is free then is a guess. As long as nothing
has to be guessed such blocks do not count, and a copy that gives back nothing else is held back.

A copy that gives back next to nothing is held back. When a later one can take away the rest of what both have, they go
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from ..trees.shared_blocks import size
from ..use.child import nothing

IN_VAIN = "would free next to nothing: shared with what stays"
"""Why a copy stays whose files have names, or share their blocks, outside of what can go."""
WORTH = 0.01
"""Which part of what a copy takes must become free."""
_A_STEP = 1024
_T = TypeVar("_T")


@dataclass
class Link:
    """A file that has more names than those met in the copy."""

    names: int
    of: int
    bytes: int
    """What becomes free with the last of them."""


@dataclass(frozen=True)
class Content:
    """What a copy takes, and which of it others have as well."""

    name: str
    allocated: int
    inodes: int
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    """By device and inode."""
    shared: Mapping[int, int] = field(default_factory=dict)
    """Blocks that something outside has, too: by unit of neighbors, which of them (:mod:`..trees.shared_blocks`)."""
    beyond: int = 0
    """Bytes that something outside may have, too, and that are not in *shared*, being too many, or in files with names
    elsewhere: they never come back."""

    def alone(self) -> Given:
        """Return what becomes free when nothing but this copy goes."""
        elsewhere = sum(link.bytes for link in self.links.values()) + sum(map(size, self.shared.values())) + self.beyond
        return Given(max(0, self.allocated - elsewhere), self.inodes - len(self.links))


class Given(NamedTuple):
    """What becomes free."""

    bytes: int = 0
    inodes: int = 0

    def plus(self, other: Given) -> Given:
        return Given(self.bytes + other.bytes, self.inodes + other.inodes)


def total(contents: Iterable[Content], alive: Callable[[], None] = nothing, guessing: bool = True) -> Given:
    """Return what becomes free when all of these go."""
    counted = GivenBack(None, alive=alive, guessing=guessing)
    for content in contents:
        counted.add(content)
    return counted.total


class GivenBack:
    """What each of some copies gives back, in the order in which they are to go.

    :param wanted: what must become free; None when all go anyway
    :param earlier: what was held back before, and cannot go now
    :param alive: called now and then while a copy is compared with others
    :param guessing: whether shared blocks count that were met twice
    """

    def __init__(
        self,
        wanted: Given | None,
        earlier: Iterable[Content] = (),
        alive: Callable[[], None] = nothing,
        guessing: bool = True,
    ) -> None:
        self._wanted = wanted
        self._alive = alive
        self._guessing = guessing
        self.total = Given()
        self._links: dict[tuple[int, int], tuple[int, tuple[str, ...]]] = {}
        """Of each file how many names were met, and in which copies."""
        self._shared: dict[int, list[tuple[str, int]]] = {}
        """Of each unit of blocks which of them were met, and in which copies."""
        self.given: dict[str, Given] = {}
        self.held_back: dict[str, Content] = {}
        self.again: dict[str, frozenset[str]] = {}
        """Copies that can go together with earlier ones, and with which."""
        self.guesses: set[str] = set()
        """Copies that may give back more than is counted without guessing."""
        self._earlier: set[str] = set()
        for content in earlier:
            self._hold_back(content, self._meet(content))
            self._earlier.add(content.name)

    @property
    def is_enough(self) -> bool:
        """Whether what goes gives back what is wanted."""
        return self._would_do(Given())

    def _would_do(self, more: Given) -> bool:
        wanted, total = self._wanted, self.total.plus(more)
        return wanted is not None and wanted.bytes <= total.bytes and wanted.inodes <= total.inodes

    def add(self, content: Content) -> list[str]:
        """Return which copies go now that this one can: none, itself, or others before it, which are of use with it."""
        shares = self._meet(content)
        given, helpers = shares[()], set[str]()
        if not self._would_do(given):
            given, helpers = self._together(shares)
        is_worth = self._is_worth(content, given)
        if not is_worth or helpers & self._earlier:
            if is_worth:
                self.again[content.name] = frozenset(helpers)
            self._hold_back(content, shares)
            return []
        going = [name for name in self.held_back if name in helpers]
        for name in going:
            del self.held_back[name]
            self.total = self.total.plus(self.given[name])
        for holders, share in shares.items():
            if len(holders) == 1 and holders[0] in self.held_back:  # now that one is the last to have it
                self.given[holders[0]] = self.given[holders[0]].plus(share)
        self.given[content.name] = given
        self.total = self.total.plus(given)
        return [*going, content.name]

    def _together(self, shares: Mapping[tuple[str, ...], Given]) -> tuple[Given, set[str]]:
        """Return what becomes free with a copy and those that were held back and are of use with it, and which."""
        able = self._helpers(shares)
        total, helpers = Given(), set[str]()
        for holders, given in shares.items():
            if able.issuperset(holders):
                total = total.plus(given)
                helpers.update(holders)
        return total, helpers

    def _helpers(self, shares: Mapping[tuple[str, ...], Given]) -> set[str]:
        """Return which copies that were held back give back enough once another one goes."""
        found = set()
        for name in {one for holders in shares for one in holders}:
            total = self.given[name]
            for holders, given in shares.items():
                if name in holders:
                    total = total.plus(given)
            if self._is_worth(self.held_back[name], total):
                found.add(name)
        return found

    def _is_worth(self, content: Content, given: Given) -> bool:
        wanted = self._wanted
        if wanted is None:
            return True
        return bool(
            (wanted.bytes > 0 and given.bytes > 0 and given.bytes >= WORTH * content.allocated)
            or (wanted.inodes > 0 and given.inodes > 0 and given.inodes >= WORTH * content.inodes)
        )

    def _hold_back(self, content: Content, shares: Mapping[tuple[str, ...], Given]) -> None:
        self.held_back[content.name] = content
        self.given[content.name] = shares[()]

    def _meet(self, content: Content) -> dict[tuple[str, ...], Given]:
        """Return what becomes free with a copy, by which of those that are held back must go for that as well."""
        shares: dict[tuple[str, ...], Given] = {(): content.alone()}
        for key, link in self._stepping(content.links.items()):
            names, holders = self._links.get(key, (0, ()))
            names += link.names
            if names >= link.of:
                self._share(shares, holders, Given(link.bytes, 1))
            self._links[key] = (names, (*holders, content.name))
        for unit, mask in self._stepping(content.shared.items()):
            others = self._shared.setdefault(unit, [])
            left = mask
            for holder, other in others:
                if not left:
                    break
                both = left & other
                if both and self._guessing:
                    self._share(shares, (holder,), Given(size(both)))
                elif both:
                    self.guesses.update((holder, content.name))
                left &= ~both
            others.append((content.name, mask))
        return shares

    def _stepping(self, items: Iterable[_T]) -> Iterator[_T]:
        for number, item in enumerate(items):
            if number % _A_STEP == 0:
                self._alive()
            yield item

    def _share(self, shares: dict[tuple[str, ...], Given], holders: Iterable[str], given: Given) -> None:
        held = tuple(name for name in holders if name in self.held_back)
        shares[held] = shares.get(held, Given()).plus(given)
