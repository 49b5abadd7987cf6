# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The child that watches one filesystem, and carries out the rounds of measuring that the daemon orders there.

It stays, takes what the kernel tells of changes, and looks in a round only at what has changed since the last one. All
that it knows is in its memory. Between rounds it holds nothing on that filesystem, so that this can be unmounted.
"""

from __future__ import annotations

import os
import pickle
import select
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from stowage_core import mounts
from stowage_core.errors import StowageError, one_line
from stowage_core.mounts import Mount
from stowage_core.syscalls import mount_id
from stowage_core.trees.measure import Usage
from stowage_core.trees.pace import Pace
from stowage_core.trees.parts import Begins, Names, Part
from stowage_core.trees.walk import Directory
from stowage_core.trees.watching.engine import Watch
from stowage_core.trees.watching.errors import WatchError

from .children import Send, next_order
from .measuring import Measuring, Scanning, rest

_BATCH_S = 0.1
"""How long events are collected before they are taken: those of one directory become one."""


class Broken(Exception):
    """A round was broken off: the daemon wants nothing open any more that it looks at."""


Tree = bytes
"""The handle of its root."""


@dataclass(frozen=True)
class Order:
    """A round of one kind, ``measure`` or ``copies``."""

    kind: str
    round: Measuring
    full_listing_interval_s: float
    """After how many seconds at most all of a tree is looked at again."""


@dataclass
class _Known:
    """What is known of a tree."""

    listed: float | None
    directories: int


class Watched:
    """Counts trees on a filesystem that is watched; what lies on another one is looked at in full."""

    def __init__(self, device: str, memory_bytes: int, check: Callable[[], None]) -> None:
        """Begin with nothing.

        :param check: called every few milliseconds in a round; what it raises breaks that off where nothing is half
            done, and what is known stays known
        """
        self._device = device
        self._memory_bytes = memory_bytes
        self._check = check
        self._watch: Watch | None = None
        self._lost = 0
        """How often everything was lost that was known, but for what `_watch` has lost itself."""
        self._table: Sequence[Mount] = ()
        self._here: dict[tuple[int, int], bool] = {}
        """Whether what is on a mount, and has a device number, is on this filesystem."""
        self._scanning = Scanning()
        self._interval_s = 0.0
        self._trees: dict[str, dict[Tree, _Known]] = {}
        """By the kind of the round that counts them."""
        self._counted: dict[Tree, _Known] = {}
        """Those of the present round."""

    # -- Between rounds

    def fileno(self) -> int | None:
        return None if self._watch is None else self._watch.fileno()

    def drain(self) -> bool:
        """Take what has happened; return False when nothing is known any more."""
        if self._watch is None or self._watch.drain():
            return True
        self._trees.clear()
        return False

    def close(self) -> None:
        """Forget everything."""
        self._trees.clear()
        if self._watch is not None:
            self._lost += self._watch.losses + 1
            self._watch.close()
            self._watch = None

    def shown(self) -> dict[str, Any]:
        """Return what is known: how many trees and directories, and when the one was listed that it is longest for.

        ``unsteady`` is how many directories are looked at each time, though nothing is told of them; ``lost`` is how
        often everything was lost that was known.
        """
        known = [one for trees in self._trees.values() for one in trees.values() if one.listed is not None]
        return {
            "trees": len(known),
            "directories": sum(one.directories for one in known),
            "unsteady": 0 if self._watch is None else self._watch.how_many_unsteady(),
            "listed": min((one.listed for one in known if one.listed is not None), default=None),
            "lost": self._lost + (0 if self._watch is None else self._watch.losses),
        }

    # -- A round

    def begin(self, interval_s: float) -> None:
        """Begin a round, in which trees are looked at in full that were not since *interval_s*."""
        self._table, self._here = mounts.read(), {}
        self._interval_s = interval_s
        self._counted = {}

    def end(self, kind: str) -> None:
        """End a round of a kind: what it has not counted is measured no more."""
        self._trees[kind] = self._counted
        if self._watch is not None:
            self._watch.keep_only({tree for trees in self._trees.values() for tree in trees})

    def measure(self, fd: int) -> Usage:
        self._check()
        watch = self._of(fd)
        if watch is None:
            return self._scanning.measure(fd)
        usage = watch.measure(fd)
        self._note(fd, watch, usage)
        return usage

    def measure_parts(self, fd: int, begins: Begins, deepest: int, left_out: Names | None) -> None:
        self._check()
        watch = self._of(fd)
        if watch is None:
            self._scanning.measure_parts(fd, begins, deepest, left_out)
            return
        whole: list[Usage] = []

        def begins_whole(names: Names, directory: Directory) -> Any:
            parts = begins(names, directory)
            return parts if names or parts is None else [Part(whole.append), *parts]

        watch.measure_parts(fd, begins_whole, deepest, left_out)
        for usage in whole:
            self._note(fd, watch, usage)

    def listed(self, fd: int) -> float | None:
        watch = self._watch
        return watch.listed(fd) if watch is not None and self._is_here(fd) else None

    def _note(self, fd: int, watch: Watch, usage: Usage) -> None:
        self._counted[watch.root(fd)] = _Known(watch.listed(fd), usage.directories)

    def _is_here(self, fd: int) -> bool:
        key = (mount_id(fd), os.fstat(fd).st_dev)
        if key not in self._here:
            self._table = mounts.with_mount_of(fd, self._table)
            self._here[key] = mounts.of_fd(fd, self._table).device == self._device
        return self._here[key]

    def _of(self, fd: int) -> Watch | None:
        """Return what watches the filesystem of a root, None when that is another filesystem.

        :raises WatchError: when it cannot be watched
        """
        if not self._is_here(fd):
            return None
        if self._watch is None:
            self._watch = Watch(fd, Pace(), self._memory_bytes, check=self._check)
        listed = self._watch.listed(fd)
        if listed is not None and not 0 <= time.time() - listed < self._interval_s * _turn(fd):
            self._watch.forget(fd)
        return self._watch


class Watcher:
    """What the child does."""

    def __init__(self, device: str, memory_bytes: int) -> None:
        self._device = device
        self._memory_bytes = memory_bytes

    def __call__(self, send: Send, orders: int) -> None:
        """Carry out orders until there are no more.

        :raises WatchError: when the filesystem cannot be watched, or not any more
        """

        def check() -> None:
            if select.select([orders], [], [], 0)[0] and not next_order(orders):
                raise Broken

        trees = Watched(self._device, self._memory_bytes, check)
        while True:
            events = trees.fileno()
            ready = select.select([orders] if events is None else [orders, events], [], [])[0]
            if orders not in ready:
                if not trees.drain():
                    send({"watching": trees.shown()})
                ready = select.select([orders], [], [], _BATCH_S)[0]
            if orders in ready:
                order = next_order(orders)
                if order is None:
                    return
                if order:  # else what it breaks off has come to its end
                    _carry_out(pickle.loads(order), trees, send)


def _carry_out(order: Order, trees: Watched, send: Send) -> None:
    error = ""
    try:
        trees.begin(order.full_listing_interval_s)
        order.round(send, trees)
        trees.end(order.kind)
    except WatchError:
        raise
    except Broken:
        error = "broken off"  # and with that all is closed that was open
    except (StowageError, OSError) as failed:
        # Where it was broken off, and what it had taken on by then, nobody knows.
        trees.close()
        error = one_line(failed)
    finally:
        rest()
    send({"watching": trees.shown()})
    send({"done": error, "watches": trees.fileno() is not None})


def _turn(fd: int) -> float:
    """Return which share of the interval between two full listings a tree waits: else all had their turn at once."""
    return 0.5 + zlib.crc32(b"%d" % os.fstat(fd).st_ino) / (1 << 33)
