# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One directory listed: what it holds, and whether that may change without an event.

Space is given to a file, and taken back, after what was written to it: when pages are written back, when they are
written through a mapping, when XFS takes back what it had reserved beyond a file's end. Writes of libaio and of loop
devices are not told at all. All of them touch files that were changed lately, that have holes, or that have more
space than their size takes: a directory with such a file is listed each time.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable
from typing import Final, NamedTuple

from ..tally import is_mount_point
from ..walk import Directory, Walk
from .forest import Sums
from .hard_links import Linked

FOREVER = float("inf")
_FILES_A_STEP = 256
# Of what stat returns, by numbers: that takes half the time that names take.
_INO: Final = 1
_DEV: Final = 2
_NLINK: Final = 3
_SIZE: Final = 6
_CTIME: Final = 9


class Listed(NamedTuple):
    """What is directly in a directory, and itself."""

    own: Sums
    links: dict[int, Linked]
    lowest: int
    highest: int
    newest: float
    """When the latest change of a file in it was, in whole seconds, FOREVER when one may change without any event."""


class Lister:
    """Lists directories of one filesystem."""

    def __init__(self, device: int | None, room: int, step: Callable[[], None]) -> None:
        """Keep what counts for all of them.

        :param device: the st_dev of all files, None when it is in the key of each, as inodes are not unique without it
        :param room: from how many bytes on what a file takes beyond its size may be taken back; 0 for never
        """
        self._device = device
        self._room = room
        self._step = step

    def list(self, directory: Directory, walk: Walk) -> Listed:
        """List the directory that a walk is at, as `Tally` does."""
        room, step = self._room, self._step
        status = directory.status
        dev = status.st_dev
        high_key = 0 if dev == self._device else dev << 64
        links: dict[int, Linked] = {}
        size = files = highest = 0
        lowest = 1 << 64
        blocks = status.st_blocks
        own_size = status.st_size
        newest: float = 0
        for number, entry in enumerate(directory.files(), 1):
            if number % _FILES_A_STEP == 0:
                step()
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError as error:
                if error.errno == errno.ENOENT:
                    directory.gone(entry)
                else:
                    walk.problem(error, entry.name)
                continue
            if status[_DEV] != dev and is_mount_point(directory, entry.name):
                walk.skipped(entry.name)
                continue
            length, taken, changed = status[_SIZE], status.st_blocks, status[_CTIME]
            if changed > newest:
                newest = changed
            if length > taken * 512 or (room and taken * 512 >= length + room):
                newest = max(newest, FOREVER if stat.S_ISREG(status.st_mode) else 0)
            inode = status[_INO]
            if status[_NLINK] > 1:
                before = links.get(high_key | inode)
                names = 1 if before is None else before.names + 1
                links[high_key | inode] = Linked(length, taken, status.st_nlink, names)
                continue
            if inode < lowest:
                lowest = inode
            if inode > highest:
                highest = inode
            size += length
            blocks += taken
            files += 1
        step()
        return Listed(Sums(size, own_size, blocks, files, 1), links, min(lowest, (1 << 64) - 1), highest, newest)
