# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a copy takes on its disk, and which of that is not its own: found by a walk right before it goes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping

from ..syscalls import open_beneath
from ..trees.inode_set import InodeSet
from ..trees.shared_blocks import MOST_UNITS, Blocks, shared
from ..trees.tally import Tally
from ..trees.walk import Walk
from ..use.child import nothing
from .given_back import Content, Link

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def content_of(
    name: str, copy_fd: int, alive: Callable[[], None], sharing: bool, most_units: int = MOST_UNITS
) -> Content:
    """Return what the copy *name* holds, as far as it can be seen.

    :param sharing: whether its filesystem lets files share blocks, which asks each file
    :param most_units: how many units of shared blocks are told apart
    """
    seen = InodeSet()
    links: dict[tuple[int, int], Link] = {}

    def is_new(status: os.stat_result) -> bool:
        key = (status.st_dev, status.st_ino)
        if seen.add(*key):
            links[key] = Link(1, status.st_nlink, status.st_blocks * 512)
            return True
        link = links.get(key)
        if link is not None:
            link.names += 1
            if link.names >= link.of:
                del links[key]  # it has all its names here
        return False

    tally = Tally(is_new)
    # Opened anew: btrfs does not list what has come since a directory was opened.
    fd = open_beneath(copy_fd, b".")
    try:
        tally.count(Walk(fd, nothing), alive)
        blocks = _shared_blocks(fd, links, alive, most_units) if sharing else Blocks(0)
    finally:
        os.close(fd)
    return Content(name, tally.blocks * 512, tally.files + tally.directories, links, blocks.once, blocks.beyond)


def _shared_blocks(
    copy_fd: int, links: Mapping[tuple[int, int], Link], alive: Callable[[], None], most_units: int
) -> Blocks:
    """Return the blocks that files share with what is not in the copy; a file that is gone has none."""
    blocks, asked = Blocks(most_units), InodeSet()
    for directory in Walk(copy_fd, nothing):
        for entry in directory.files():
            alive()
            if not entry.is_file(follow_symlinks=False):
                continue
            try:
                fd = os.open(entry.name, _FLAGS, dir_fd=directory.fd)
            except OSError:
                continue
            try:
                status = os.fstat(fd)
                key = (status.st_dev, status.st_ino)
                if stat.S_ISREG(status.st_mode) and status.st_blocks and (status.st_nlink == 1 or asked.add(*key)):
                    _ask(fd, links.get(key), blocks)
            except OSError:
                pass  # what is not told counts as its own, and is seen by what becomes free
            finally:
                os.close(fd)
    return blocks


def _ask(fd: int, link: Link | None, blocks: Blocks) -> None:
    """Add what a file shares. Of one that has names elsewhere, too, that does not come back with the last of them."""
    if link is None:
        blocks.add(shared(fd))
        return
    lost = min(link.bytes, sum(length for _address, length in shared(fd)))
    link.bytes -= lost
    blocks.beyond += lost
