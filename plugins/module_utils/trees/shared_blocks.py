# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Blocks that files share with other files (reflinks, snapshots), as far as the filesystem tells: XFS and btrfs do.

What is asked (FIEMAP) tells that a block is shared, and where it is, but not with whom, nor by how many. Other calls of
these filesystems would tell more, for each block anew and in ways of their own; they are not asked.
"""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterable, Iterator

SHARING = ("xfs", "btrfs")
"""The types of filesystems whose files may share blocks."""
BLOCK = 4096
"""Bytes that count as one."""

MOST_UNITS = 1 << 16
"""How many units are told apart of one tree, at some 250 bytes of memory each: 64 GiB where all is shared."""

_UNIT = 256
"""How many neighboring blocks, 1 MiB, are a unit: they share one number, whose bits say which of them are meant."""

_FS_IOC_FIEMAP = 0xC020660B
_HEAD = struct.Struct("=QQIIII")  # start, length, flags, mapped, room, reserved
_EXTENT = struct.Struct("=QQQ16xI12x")  # logical, physical, length, flags
_ROOM = 64
_LAST = 0x0001
_NOT_IN_PLACE = 0x0002 | 0x0004 | 0x0008 | 0x0200  # unknown, delayed, encoded (compressed), inline
_SHARED = 0x2000


def shared(fd: int) -> Iterator[tuple[int, int]]:
    """Return address and length, in bytes, of what the file open at *fd* shares with any other, or with itself.

    What btrfs has compressed is left out: where it is says nothing of how much it is.

    :raises OSError: when the filesystem does not tell
    """
    buffer = bytearray(_HEAD.size + _ROOM * _EXTENT.size)
    start = 0
    while True:
        _HEAD.pack_into(buffer, 0, start, 2**64 - 1 - start, 0, 0, _ROOM, 0)
        fcntl.ioctl(fd, _FS_IOC_FIEMAP, buffer, True)
        mapped = _HEAD.unpack_from(buffer)[3]
        flags = _LAST
        for number in range(mapped):
            logical, physical, length, flags = _EXTENT.unpack_from(buffer, _HEAD.size + number * _EXTENT.size)
            if flags & _SHARED and not flags & _NOT_IN_PLACE:
                yield physical, length
            start = logical + length
        if flags & _LAST:
            return


class Blocks:
    """Which shared blocks were met, and which of them once only: as long as they are, somebody else has them, too.

    :param most: how many units are told apart; what is in others is only added up
    """

    def __init__(self, most: int = MOST_UNITS) -> None:
        self._most = most
        self.beyond = 0
        """Bytes in units that are not told apart, as often as they were met."""
        self.once: dict[int, int] = {}
        """By unit of neighboring blocks, which of them."""
        self._met: dict[int, int] = {}

    def add(self, extents: Iterable[tuple[int, int]]) -> None:
        for address, length in extents:
            block, end = address // BLOCK, -(-(address + length) // BLOCK)
            while block < end:
                unit, bit = divmod(block, _UNIT)
                number = min(_UNIT - bit, end - block)
                self._add(unit, ((1 << number) - 1) << bit)
                block += number

    def _add(self, unit: int, mask: int) -> None:
        met = self._met.get(unit)
        if met is None:
            if len(self._met) >= self._most:
                self.beyond += size(mask)
                return
            met = 0
        self._met[unit] = met | mask
        once = (self.once.get(unit, 0) | (mask & ~met)) & ~(mask & met)
        if once:
            self.once[unit] = once
        else:
            self.once.pop(unit, None)


def size(mask: int) -> int:
    """Return how many bytes the blocks of a unit are."""
    return bin(mask).count("1") * BLOCK
