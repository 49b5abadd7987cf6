# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much a directory tree holds: bytes, allocated bytes, files and directories.

Whoever wants to know asks an `Engine`. One that looks at a filesystem that hangs, hangs with it: it belongs in a child.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from .inode_set import InodeSet
from .pace import Pace, Pacer
from .tally import FirstProblems, Tally
from .walk import Walk


@dataclass(frozen=True)
class Usage:
    """What a measured directory holds, itself included; a file with several hard links counts once.

    bytes            the sizes of files and symbolic links, as `du --apparent-size` of coreutils 9.2 and newer counts
    directory_bytes  the directories' own sizes, which coreutils up to 9.1 adds
    allocated        what everything takes on the disk, as `du` without options counts
    linked           the part of that in files with several names, of which others may be elsewhere
    files            everything that is no directory
    complete         whether nothing was missed; `problems` says what was, and which mounts below were left out.
                     What watching cannot see until a tree is listed in full again is in docs/measuring.md ("Watching")
    """

    bytes: int = 0
    directory_bytes: int = 0
    allocated: int = 0
    linked: int = 0
    files: int = 0
    directories: int = 0
    complete: bool = True
    problems: tuple[str, ...] = ()

    @classmethod
    def of(cls, tally: Tally, problems: FirstProblems) -> Usage:
        """Return what a tally came to."""
        return cls(
            bytes=tally.bytes,
            directory_bytes=tally.directory_bytes,
            allocated=tally.blocks * 512,
            linked=tally.linked_blocks * 512,
            files=tally.files,
            directories=tally.directories,
            complete=problems.complete,
            problems=problems.texts(),
        )

    @property
    def inodes(self) -> int:
        """Return how many inodes the tree takes."""
        return self.files + self.directories

    def to_json(self) -> dict[str, Any]:
        """Return the usage as a record."""
        return asdict(self)


class Engine(Protocol):
    """A way to learn a directory's usage."""

    def measure(self, root_fd: int) -> Usage:
        """Return what the tree at `root_fd` holds; what could not be learnt makes it incomplete."""


def _go_on() -> None:
    """Break nothing off."""


@dataclass(frozen=True)
class Scan:
    """The engine that looks at every file each time, in this process or in several forked ones, at a pace."""

    workers: int = 1
    pace: Pace | None = None
    check: Callable[[], None] = _go_on
    """Called every few milliseconds by a single worker; what it raises breaks the measurement off."""

    def measure(self, root_fd: int) -> Usage:
        """Count the tree at `root_fd`. A worker that fails raises `StowageError`."""
        problems = FirstProblems()
        if self.workers == 1:
            seen = InodeSet()
            tally = Tally(lambda status: seen.add(status.st_dev, status.st_ino))
            pacer = Pacer(self.pace)

            def step() -> None:
                self.check()
                pacer.step()

            tally.count(Walk(root_fd, problems.add), step)
        else:
            from .workers import tally_in_workers

            tally = tally_in_workers(root_fd, self.workers, self.pace, problems)
        return Usage.of(tally, problems)
