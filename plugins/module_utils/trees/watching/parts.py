# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counting the parts of a known tree: only the directories that may begin one are gone through, and none is listed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from ..parts import Begins, Inside, Names
from ..walk import Problem, Walk
from .handles import Namer
from .known import Known

_INODE = (1 << 64) - 1


def count_parts(
    root_fd: int,
    root: int,
    known: Known,
    namer: Namer,
    problems: Sequence[tuple[Names, Problem]],
    begins: Begins,
    deepest: int,
    step: Callable[[], None],
) -> None:
    """Tell the parts of a known tree what they hold.

    :param root_fd: opened for this
    :param problems: what is left out, with the way to the directory that it is in
    """
    forest = known.forest
    inside = Inside()
    linked = _linked(known, root, deepest)
    reported: dict[Names, list[Problem]] = defaultdict(list)
    for names, problem in problems:
        reported[names[:deepest]].append(problem)

    def report(problem: Problem) -> None:
        if problem.missing:
            inside.report(problem, walk.depth)

    walk = Walk(root_fd, report)
    for directory in walk:
        depth = walk.depth
        inside.at(depth)
        parts = begins(walk.names, directory)
        if parts is None:
            directory.leave_out()
            continue
        inside.begin(parts)
        if depth == deepest:
            directory.leave_out()  # all below is added up already
        node = forest.nodes.get(namer.handle(directory.fd))
        if node is None:
            directory.leave_out()  # it has just come
            continue
        inside.innermost.add(*(forest.total(node) if depth == deepest else forest.own(node)))
        for one in linked.get(node, ()):
            for inode, size, blocks in known.links.of(one):
                inside.add_link(inode >> 64, inode & _INODE, size, blocks)
        for problem in reported.get(walk.names, ()):
            inside.report(problem, depth)
        step()
    inside.end()


def _linked(known: Known, root: int, deepest: int) -> dict[int, list[int]]:
    """Return the directories with names of files with several, by those at most so deep that they are in."""
    found: dict[int, list[int]] = defaultdict(list)
    for node in known.links.nodes():
        way = []
        for one in known.forest.way(node):
            way.append(one)
            if one == root:
                found[way[max(0, len(way) - 1 - deepest)]].append(node)
                break
    return found
