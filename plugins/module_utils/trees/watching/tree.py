# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bringing what is known of one tree up to date."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection

from ...syscalls import open_beneath
from ..measure import Usage
from ..parts import Begins, Names
from ..tally import FirstProblems, Tally
from ..walk import Problem, shown_path
from .forest import NOWHERE
from .handles import Namer, open_handle
from .known import Known
from .mounts_below import Below, Table, Tables, is_own_file, open_parent, root_path
from .parts import count_parts
from .visiting import Confused, Visitor

_GONE = (errno.ESTALE, errno.ENOENT)
# How often it is looked whether something has changed meanwhile; and how often at most while directories are missing
# that were moved.
_ROUNDS, _MOST_ROUNDS = 4, 16
_NAMES_A_STEP = 256
_INODE = (1 << 64) - 1


class Tree:
    """A tree while it is measured."""

    def __init__(
        self,
        known: Known,
        others: Collection[Known],
        root_fd: int,
        left_out: Names | None,
        visitor: Visitor,
        namer: Namer,
        mount: tuple[int, str],
        tables: Tables,
        drain: Callable[[], None],
        step: Callable[[], None],
    ) -> None:
        """Take what is needed to look at it.

        :param known: what its mount shows
        :param others: all that is known of the filesystem, *known* included
        :param left_out: the way to a directory that does not count, nor what is below; nothing below is opened
        :param mount: number and device of its mount
        :param drain: takes the events that wait
        :param step: called after each bit of work; what it raises breaks that off
        """
        self._known = known
        self._others = others
        self._root_fd = root_fd
        self._visitor = visitor
        self._namer = namer
        self._number, self._device = mount
        self._tables = tables
        self._drain = drain
        self._step = step
        self._out = left_out or None
        self._out_handle = self._handle_of(left_out) if left_out else None
        self._belows: list[Below] = []
        self.root = NOWHERE

    def settle(self) -> Usage | None:
        """List what has changed; return what was counted when not all could be, and the tree is not known."""
        known = self._known
        for is_last in (False, True):
            root = known.forest.nodes.get(self._namer.handle(self._root_fd))
            is_new = root is None or root in known.forgotten or not known.fits(root, self._out_handle)
            if root is None or is_new:
                root, problems = self._list_all()
                if not problems.complete:
                    usage = self._usage(root, problems)
                    known.remove(root)
                    return usage
            self.root = root
            if self._out_handle is not None:
                known.left_out[known.forest.top(root)] = self._out_handle
            try:
                self._list_changed()
                return None
            except Confused:
                known.forgotten[root] = time.monotonic()
                if is_last:
                    raise
        return None

    def _handle_of(self, names: Names) -> bytes | None:
        try:
            fd = open_beneath(self._root_fd, os.fsencode("/".join(names)))
        except OSError:
            return None  # it is not there, or on another filesystem
        try:
            return self._namer.handle(fd)
        finally:
            os.close(fd)

    def usage(self) -> Usage:
        """Return what the tree holds."""
        problems = FirstProblems()
        for _names, problem in self._left_out():
            problems.add(problem)
        return self._usage(self.root, problems)

    def count_parts(self, begins: Begins, deepest: int, step: Callable[[], None]) -> None:
        """Tell the parts of the tree what they hold."""
        fd = self._open_root()
        try:
            count_parts(fd, self.root, self._known, self._namer, self._left_out(), begins, deepest, step)
        finally:
            os.close(fd)

    def _left_out(self) -> list[tuple[Names, Problem]]:
        """Return the mounts that are left out, with the way to the directory that each is in."""
        left = [one for one in self._belows if not is_own_file(self._root_fd, one, self._device)]
        return [(one.names[:-1], _problem(one)) for one in left]

    def _usage(self, root: int, problems: FirstProblems) -> Usage:
        known = self._known
        tally = Tally(lambda _status: False)
        tally.add(*known.forest.total(root))
        size, blocks, files = known.link_sums(root)
        tally.add(size, 0, blocks, files, 0, blocks)
        return Usage.of(tally, problems)

    def _list_changed(self) -> None:
        """List every directory that has changed, at least once since this was called, and again while others change.

        Then what is known is at least as good as what a walk finds: something that goes on changing may be counted as
        it was before or after. Of other trees only those count where files of this one may have got names; where they
        have known ones, or may have had some, this tree's own directories tell of them. So next to nothing is opened
        in trees that others want to be unused.
        """
        known = self._known
        has_listed = self._visitor.has_listed
        text = b""
        for number in range(_MOST_ROUNDS):
            table = self._table()
            told = known.grown.union(known.among(known.dirty, self.root))
            is_in = known.within(self.root)
            if table.text != text:
                self._look_at_mounts(table)
                self._look_at_overlays(table)
            text = table.text
            for nodes in (known.doubt_names(is_in), known.unsteady(self.root, is_in)):
                known.dirty.update(node for node in nodes if not has_listed(node))
            waiting = [*known.among(known.dirty, self.root), *(one for one in known.grown if not is_in(one))]
            if not waiting or (number >= _ROUNDS and not known.orphans):
                break
            for node in waiting:
                if node in known.dirty:  # else it has just been come across, or is gone
                    now = time.time()
                    self._list(node)
                    if node in told and known.forest.is_known(node):
                        known.settle_later(node, now)
            self._find_other_names()
            self._drain()
        known.drop_orphans()
        if not known.fits(self.root, self._out_handle):
            raise Confused

    def _list_all(self) -> tuple[int, FirstProblems]:
        self._drop_deleted()
        fd = self._open_root()
        try:
            return self._visitor.full(fd, self._out_handle)
        finally:
            os.close(fd)

    def _drop_deleted(self) -> None:
        """Forget trees whose root was deleted: nobody can ask for that.

        All are looked at, so that is done when there are twice as many as were left the last time.
        """
        known = self._known
        if len(known.roots) < known.many_roots:
            return
        for root in [one for one in known.roots if known.forest.parent(one) == NOWHERE]:
            try:
                os.close(open_handle(self._root_fd, known.forest.handle(root)))
            except OSError as error:
                if error.errno in _GONE:
                    known.remove(root)
        known.many_roots = 2 * len(known.roots) + 1

    def _open_root(self) -> int:
        return open_beneath(self._root_fd, b".")  # btrfs does not list what has come since a directory was opened

    def _list(self, node: int) -> None:
        known = self._known
        try:
            fd = self._open_root() if node == self.root else open_handle(self._root_fd, known.forest.handle(node))
        except OSError as error:
            if error.errno not in _GONE:
                self._give_up(node)
                return
            known.clean(node)
            parent = known.forest.parent(node)
            if parent != NOWHERE:
                known.dirty.add(parent)
                known.orphan(node)
            elif node in known.roots:
                known.remove(node)
            return
        try:
            self._visitor.again(fd, node)
        except Confused:
            self._give_up(node)
        finally:
            os.close(fd)

    def _give_up(self, node: int) -> None:
        """Forget the tree that a directory is in, as what is known does not fit to what is found."""
        top = self._known.forest.top(node)
        if self._known.within(top)(self.root):
            raise Confused
        self._known.remove(top)

    def _table(self) -> Table:
        """Return the mount table as it counts for this tree.

        The kernel does not tell of a directory with a mount in it that is renamed. But such a mount is one that was in
        this tree, or its directory has come to a known one since the table was read.
        """
        known = self._known
        table = self._tables.now()
        if table.has_below(self._number) and (
            known.has_arrivals
            or known.among(known.mounted, self.root)
            or table.below(root_path(self._root_fd), self._number)
        ):
            table = self._tables.again()
        known.has_arrivals = False
        return table

    def _look_at_mounts(self, table: Table) -> None:
        """Find the directories in which something is mounted."""
        known = self._known
        belows = table.below(root_path(self._root_fd), self._number)
        self._belows = [one for one in belows if not self._is_out(one.names)]
        is_in = known.within(self.root)
        before = known.among(known.mounted, self.root)
        known.dirty.update(before)
        known.mounted.difference_update(before)
        for one in self._belows:
            try:
                fd = open_parent(self._root_fd, one)
            except OSError:
                continue  # renamed since: the next look finds it
            try:
                node = known.forest.nodes.get(self._namer.handle(fd))
            finally:
                os.close(fd)
            if node is not None:
                known.mounted.add(node)
                if is_in(node):
                    known.dirty.add(node)

    def _look_at_overlays(self, table: Table) -> None:
        """List what is below upper layers: older kernels do not tell of what is written through an overlay."""
        known = self._known
        is_in = known.within(self.root)
        for path in table.uppers(root_path(self._root_fd)):
            if self._is_out(tuple(path.split("/"))):
                continue
            try:
                fd = open_beneath(self._root_fd, os.fsencode(path))
            except OSError:
                continue
            try:
                node = known.forest.nodes.get(self._namer.handle(fd))
            finally:
                os.close(fd)
            below = [] if node is None else [node]
            for one in below:
                below.extend(known.forest.children(one))
            known.dirty.update(filter(is_in, below))

    def _is_out(self, names: Names) -> bool:
        """Return whether something is below the directory that does not count."""
        out = self._out
        return out is not None and len(names) > len(out) and names[: len(out)] == out

    def _find_other_names(self) -> None:
        """Find where files have names that were listed before another link was made: no event tells of that there.

        Directories of other trees that may have such names are looked at when those are measured.
        """
        links = self._known.links
        wanted = frozenset(inode & _INODE for inode in links.unsearched())
        for known in self._others if wanted else ():
            self._find_names_in(known, wanted)
        links.searched()  # when that was broken off the next measurement begins anew

    def _find_names_in(self, known: Known, wanted: frozenset[int]) -> None:
        inodes = sorted(wanted)
        is_in = self._known.within(self.root)
        for number, node in enumerate(known.forest, 1):
            if number % _NAMES_A_STEP == 0:
                self._step()
            if node in known.dirty or not known.forest.may_have(node, inodes):
                continue
            if known is not self._known or not is_in(node) or self._has_names(known.forest.handle(node), wanted):
                known.dirty.add(node)

    def _has_names(self, handle: bytes, wanted: frozenset[int]) -> bool:
        """Return whether files with these inodes have names in a directory, or whether nobody can tell."""
        try:
            fd = open_handle(self._root_fd, handle)
        except OSError:
            return False  # gone, which its parent tells
        try:
            with os.scandir(fd) as entries:
                for number, entry in enumerate(entries, 1):
                    if entry.inode() in wanted:
                        return True
                    if number % _NAMES_A_STEP == 0:
                        self._step()
        except OSError:
            return True
        finally:
            os.close(fd)
        self._step()
        return False


def _problem(below: Below) -> Problem:
    return Problem(
        shown_path(below.names[:-1], name=below.names[-1]), "another filesystem is mounted there", missing=False
    )
