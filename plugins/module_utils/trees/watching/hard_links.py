# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files with several hard links, and in which known directories their names are.

Such a file is written through one name and told of in the directory of that one only, so what is known of it is kept
once for all of them. One that has more links than known names has a name that nobody watches: it is *loose*, and the
directories with its known names have to be listed each time. Nothing here does I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from typing import NamedTuple

_FILE_BYTES = 368
"""What a file takes here, about, with two names."""
_NAME_BYTES = 80
"""What each further name takes, about."""
_FEW = 8


class Linked(NamedTuple):
    """What was found of a file in one directory."""

    size: int
    blocks: int
    links: int
    names: int


class _File:
    __slots__ = ("blocks", "is_searched", "links", "names", "nodes", "size")

    def __init__(self) -> None:
        self.size = 0
        self.blocks = 0
        self.links = 0
        self.names = 0
        self.is_searched = False
        self.nodes: tuple[int, ...] | dict[int, int] = ()
        """The directories with its names, one for each name; with how many each has where there are more than a few."""

    @property
    def is_loose(self) -> bool:
        return self.links > self.names

    def set_names(self, node: int, names: int) -> None:
        """Set how many names it has in a directory."""
        nodes = self.nodes
        if isinstance(nodes, dict):
            self.names += names - nodes.pop(node, 0)
            if names:
                nodes[node] = names
            return
        self.nodes = tuple(one for one in nodes if one != node) + (node,) * names
        self.names = len(self.nodes)
        if self.names > _FEW:
            self.nodes = Counter(self.nodes)


class HardLinks:
    """Files by their inodes."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._in: dict[int, tuple[int, ...]] = {}
        self._loose: set[int] = set()
        self._sums = (0, 0, 0)
        self._further = 0
        """How many names there are beyond two of each file."""
        self._unsearched: set[int] = set()
        """Inodes of files that may have names that were listed while each was the only one."""

    def hold(self, node: int, found: Mapping[int, Linked], has_grown: bool) -> None:
        """Set which files have names in a directory.

        :param has_grown: whether these may be new in it. A file whose name was there before, while it was the only
            one, got the others later: no search finds them, as their directories were told of if they are known
        """
        before = self._in.get(node, ())
        if not found and not before:
            return
        names = Counter(before)
        for inode in names.keys() - found.keys():
            self._set_names(inode, node, 0)
        for inode, one in found.items():
            file = self._files.get(inode)
            if file is None:
                file = self._files[inode] = _File()
                self._count(file, 1)
            if has_grown and not file.is_searched:
                self._unsearched.add(inode)
            if (file.size, file.blocks) != (one.size, one.blocks):
                self._count(file, -1)
                file.size, file.blocks = one.size, one.blocks
                self._count(file, 1)
            file.links = one.links
            if names[inode] != one.names:
                self._set_names(inode, node, one.names)
            self._judge(inode, file)
        if found:
            self._in[node] = tuple(inode for inode, one in found.items() for _name in range(one.names))
        else:
            self._in.pop(node, None)

    def remove(self, node: int) -> None:
        """Forget a directory."""
        self.hold(node, {}, False)

    def how_many_loose(self) -> int:
        """Return how many files have other names elsewhere."""
        return len(self._loose)

    def loose(self) -> Iterator[int]:
        """Return the directories with names of files that have others elsewhere; some more than once."""
        for inode in self._loose:
            yield from self._files[inode].nodes

    def unsearched(self) -> list[int]:
        """Return the inodes whose other names are to be looked for."""
        return [inode for inode in self._unsearched if inode in self._loose]

    def searched(self) -> None:
        """Take all other names for looked for."""
        for inode in self._unsearched:
            self._files[inode].is_searched = True
        self._unsearched.clear()

    def has(self, node: int) -> bool:
        """Return whether a directory has names of such files."""
        return node in self._in

    def tied(self, nodes: Iterable[int], others: Sequence[Collection[int]]) -> set[int]:
        """Return those of some directories with names of files that are loose, or have a name in others as well."""
        found: dict[int, list[int]] = {}
        for node in nodes:
            for inode in self._in.get(node, ()):
                found.setdefault(inode, []).append(node)
        return {node for inode, ones in found.items() if self._is_tied(inode, others) for node in ones}

    def _is_tied(self, inode: int, others: Sequence[Collection[int]]) -> bool:
        names = self._files[inode].nodes
        return inode in self._loose or any(one in each for each in others if each for one in names)

    def nodes(self) -> KeysView[int]:
        """Return the directories with names of such files."""
        return self._in.keys()

    def sharing(self, nodes: Iterable[int]) -> Iterator[int]:
        """Return the directories with names of files that have names in some; some more than once."""
        for inode in {inode for node in nodes for inode in self._in.get(node, ())}:
            yield from self._files[inode].nodes

    def of(self, node: int) -> Iterator[tuple[int, int, int]]:
        """Return inode, size and blocks of what has names in a directory."""
        for inode in self._in.get(node, ()):
            file = self._files[inode]
            yield inode, file.size, file.blocks

    def sums(self, nodes: Iterable[int] | None) -> tuple[int, int, int]:
        """Return bytes, blocks and number of the files with names in some directories, None for all."""
        if nodes is None:
            return self._sums
        size = blocks = 0
        seen = {inode for node in nodes for inode in self._in.get(node, ())}
        for inode in seen:
            file = self._files[inode]
            size += file.size
            blocks += file.blocks
        return size, blocks, len(seen)

    @property
    def state_bytes(self) -> int:
        """How much memory all this takes, about."""
        return len(self._files) * _FILE_BYTES + self._further * _NAME_BYTES

    def _set_names(self, inode: int, node: int, names: int) -> None:
        file = self._files[inode]
        before = file.names
        file.set_names(node, names)
        self._further += max(0, file.names - 2) - max(0, before - 2)
        if file.names:
            self._judge(inode, file)
            return
        self._count(file, -1)
        del self._files[inode]
        self._loose.discard(inode)
        self._unsearched.discard(inode)

    def _judge(self, inode: int, file: _File) -> None:
        if file.is_loose:
            self._loose.add(inode)
        else:
            self._loose.discard(inode)

    def _count(self, file: _File, sign: int) -> None:
        size, blocks, files = self._sums
        self._sums = size + sign * file.size, blocks + sign * file.blocks, files + sign
