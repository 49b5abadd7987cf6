# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine that lists a tree once, and then only what has changed in it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection

from ...errors import printable
from ...mounts import Mount
from ...syscalls import mount_id
from ...use.exports import edition
from ..measure import Scan, Usage
from ..pace import Pace, Pacer
from ..parts import Begins, Names, measure_parts
from .errors import WatchError
from .events import Changes, Lost, directories
from .forest import NOWHERE
from .handles import Namer
from .known import Known
from .listing import Lister
from .mounts_below import Table, Tables
from .tree import Tree
from .visiting import Confused, Visitor

_TYPES = ("ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs")
_TRIMMING = ("xfs", "tmpfs")
"""Those that take space back which lies beyond the end of a file."""

_READS_A_DRAIN, _DRAINS = 32, 64
_DRAIN_S = 0.05
_CHECKED_EVERY = 256
_FOLLOWED_S = 3600.0

_WRITE_BACK = ("dirty_expire_centisecs", "dirty_writeback_centisecs")
_SETTLES_S = 10.0
_NO_WRITE_BACK_S = 3600.0


class Watch:
    """What changes on one filesystem, and what its trees hold."""

    def __init__(
        self,
        fd: int,
        pace: Pace | None = None,
        memory_bytes: int = 64 << 20,
        settles_s: float | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to watch the filesystem that *fd* is on; no descriptor of it is kept, so it can be unmounted.

        :param memory_bytes: how much may be known
        :param settles_s: for how long what a changed file takes may still change by itself, in seconds; None for as
            long as this kernel may take to write it back
        :param check: called every few milliseconds while directories are listed; what it raises breaks that off, and
            the next measurement lists what is missing
        :raises WatchError: when it cannot be watched
        """
        self._pace = pace
        self._check = check
        self._memory_bytes = memory_bytes
        self._settles_s = settles_s
        self._known: dict[int, Known] = {}
        self.losses = 0
        """How often everything known was lost."""
        self._namer = Namer()
        self._pacer = Pacer(pace)
        self._drained = 0.0
        self._unchecked = 0
        self._tables = Tables()
        self._exports = edition()
        try:
            self._device = self._mount(fd, self._tables.now()).device
            self._changes = Changes(fd)
        except BaseException:
            self._tables.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor that is readable while events wait."""
        return self._changes.fileno()

    def drain(self) -> bool:
        """Take events that wait; return whether what is known is still known."""
        losses = self.losses
        self._drain()
        return losses == self.losses

    def knows(self, root_fd: int) -> bool:
        """Return whether measuring the tree at *root_fd* will not list all of it."""
        return self._device in self._changes.watched() and self.listed(root_fd) is not None

    def measure(self, root_fd: int) -> Usage:
        """Return what the tree at *root_fd* holds.

        :raises WatchError: when the filesystem cannot be watched any longer, or too much would have to be known
        """
        tree = self._settled(root_fd)
        if tree is None:
            return Scan(pace=self._pace, check=self._check).measure(root_fd)
        return tree if isinstance(tree, Usage) else tree.usage()

    def measure_parts(self, root_fd: int, begins: Begins, deepest: int, left_out: Names | None = None) -> None:
        """Count the tree at *root_fd* and its parts, as `trees.parts.measure_parts` does.

        :param left_out: the way to a directory below which nothing is opened; *begins* says None there
        :raises WatchError: when the filesystem cannot be watched any longer, or too much would have to be known; then
            nothing was asked of *begins*
        """
        tree = self._settled(root_fd, left_out)
        if isinstance(tree, Tree):
            tree.count_parts(begins, deepest, self._step_on)
        else:
            measure_parts(root_fd, begins, deepest, self._pace)

    def forget(self, root_fd: int) -> None:
        """Have the tree at *root_fd* listed in full the next time.

        Until then it is followed: files of other trees may get names there. It is not for longer than an hour, or when
        the room is needed.
        """
        known, node = self._find(root_fd)
        if known is not None and node is not None:
            known.forgotten.setdefault(node, time.monotonic())

    def root(self, root_fd: int) -> bytes:
        """Return what `keep_only` knows the tree at *root_fd* by."""
        return self._namer.handle(root_fd)

    def keep_only(self, roots: Collection[bytes]) -> None:
        """Forget all other trees: nobody asks for them any more, and what was removed says so to nobody."""
        for known in self._known.values():
            for node in list(known.roots):
                if node in known.roots and known.forest.handle(node) not in roots:
                    if known.forest.parent(node) == NOWHERE:
                        known.remove(node)
                    else:
                        del known.roots[node]  # it is in another one

    def listed(self, root_fd: int) -> float | None:
        """Return when the last full listing of the tree at *root_fd* began, None when it is not known."""
        known, node = self._find(root_fd)
        return None if known is None or node is None or node in known.forgotten else known.began(node)

    def how_many_unsteady(self) -> int:
        """Return how many known directories are listed each time, as their files may change without a word."""
        return sum(known.how_many_unsteady() for known in self._known.values())

    def close(self) -> None:
        """End watching."""
        self._known = {}
        self._changes.close()
        self._tables.close()

    def _find(self, root_fd: int) -> tuple[Known | None, int | None]:
        handle, number = self._namer.mount_of(root_fd)
        known = self._known.get(number)
        return known, None if known is None else known.forest.nodes.get(handle)

    def _drain(self) -> bool:
        """Take events that wait, a bounded number, and return whether more may wait."""
        self._drained = time.monotonic()
        known = list(self._known.values())
        for _number in range(_READS_A_DRAIN):
            changes = self._changes.read()
            if not changes:
                return False
            try:
                for handle, grows in directories(changes):
                    for each in known:
                        node = each.forest.nodes.get(handle)
                        if node is not None:
                            each.dirty.add(node)
                            (each.grown if grows else each.doubtful).add(node)
            except Lost:
                self._lose()
                known = []
        return True

    def _lose(self) -> None:
        self.losses += 1
        self._known = {}

    def _settled(self, root_fd: int, left_out: Names | None = None) -> Tree | Usage | None:
        """Return a tree that is known; what was counted when not all could be; None when it has to be scanned."""
        for _number in range(_DRAINS):
            if not self._drain():
                break
        try:
            tree = self._tree(root_fd, left_out)
            usage = tree.settle()
        except (Confused, Lost):
            self._lose()
            return None
        except WatchError:
            self._lose()
            raise
        return tree if usage is None else usage

    def _tree(self, root_fd: int, left_out: Names | None) -> Tree:
        """Return a tree, to be brought up to date."""
        table = self._tables.now()
        exports = edition()
        mount = self._mount(root_fd, table)
        self._keep_watching(root_fd, mount)
        if exports != self._exports:
            self._exports = exports
            self._lose()  # something on it may have been exported meanwhile
        for gone in [one for one in self._known if table.mount(one) is None]:
            del self._known[gone]
        settles_s = _write_back_s() if self._settles_s is None else self._settles_s
        known = self._known.setdefault(mount.id, Known(settles_s))
        known.settles_s = settles_s
        known.drop_forgotten(time.monotonic() - _FOLLOWED_S)
        room = os.fstatvfs(root_fd).f_frsize if mount.fstype in _TRIMMING else 0
        is_btrfs = mount.fstype == "btrfs"
        device = None if is_btrfs else os.fstat(root_fd).st_dev  # trees of one mount may lie in several subvolumes
        lister = Lister(device, room, self._step)
        visitor = Visitor(known, self._namer, lister, is_btrfs, self._room_left)
        where = mount.id, mount.device
        return Tree(
            known,
            self._known.values(),
            root_fd,
            left_out,
            visitor,
            self._namer,
            where,
            self._tables,
            self._drain_or_lose,
            self._step,
        )

    def _keep_watching(self, root_fd: int, mount: Mount) -> None:
        """Make sure that the filesystem on *mount* is the one that is watched, and still is."""
        watched = self._changes.watched()
        if mount.device in watched:
            return
        if watched:
            raise WatchError("another filesystem is watched")
        self._lose()  # the one watched was unmounted
        self._changes.mark(root_fd)
        self._device = mount.device

    def _mount(self, fd: int, table: Table) -> Mount:
        mount = table.mount(mount_id(fd))
        if mount is None:
            raise WatchError("it is on a mount that is in no mount table any more")
        for path in table.exported_of(mount.device):
            raise WatchError(f"{printable(path)} on it is exported, and the NFS server writes to files without names")
        if mount.fstype not in _TYPES:
            raise WatchError(f"what changes in a filesystem of type {mount.fstype} cannot be watched")
        return mount

    def _step(self) -> None:
        self._check()
        losses = self.losses
        self._step_on()
        if losses != self.losses:
            raise Lost

    def _step_on(self) -> None:
        """Go on at the pace, even with what is not known any more: it was until a moment ago."""
        self._pacer.step()
        if time.monotonic() - self._drained >= _DRAIN_S:
            self._drain()

    def _drain_or_lose(self) -> None:
        losses = self.losses
        self._drain()
        if losses != self.losses:
            raise Lost

    def _room_left(self) -> None:
        """Look now and then whether more may be known."""
        self._unchecked += 1
        if self._unchecked >= _CHECKED_EVERY:
            self._unchecked = 0
            if self._takes_too_much():
                for known in self._known.values():
                    known.drop_forgotten(time.monotonic())
                if self._takes_too_much():
                    raise WatchError(f"what is to be known of it takes more than {self._memory_bytes >> 20} MiB")

    def _takes_too_much(self) -> bool:
        return sum(one.state_bytes for one in self._known.values()) > self._memory_bytes


def _write_back_s() -> float:
    """Return how long a changed page may wait before it is written back, and some seconds for that."""
    expires, wakes = (_centiseconds(name) for name in _WRITE_BACK)
    return expires + 2 * wakes + _SETTLES_S if wakes else _NO_WRITE_BACK_S


def _centiseconds(name: str) -> float:
    with open(f"/proc/sys/vm/{name}", "rb", buffering=0) as stream:
        return int(stream.read()) / 100
