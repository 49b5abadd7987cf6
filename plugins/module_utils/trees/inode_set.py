# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A set of inodes that stays small, to count a file with several hard links once."""

from __future__ import annotations


class InodeSet:
    """Which inodes were seen.

    Filesystems give neighboring numbers to files made together, so 256 numbers share one entry, a number whose bits
    say which of them are in the set. A million neighbors take about 1 MB, where a plain set takes 66 MB.
    """

    def __init__(self) -> None:
        self._devices: dict[int, dict[int, int]] = {}

    def add(self, dev: int, ino: int) -> bool:
        """Put an inode in and return whether it is new."""
        try:
            entries = self._devices[dev]
        except KeyError:
            entries = self._devices[dev] = {}
        bit = 1 << (ino & 255)
        seen = entries.get(ino >> 8, 0)
        entries[ino >> 8] = seen | bit
        return not seen & bit
