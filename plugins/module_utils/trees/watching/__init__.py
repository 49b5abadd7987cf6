# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watching a filesystem, so that measuring a tree again costs what has changed in it.

A mark on the filesystem tells in which directories something changes. A tree is listed once, after the mark was set,
and then only directories that events were about. A measurement takes every event that waits when it begins, lists
each such directory at least once after that, and goes round a few times while more come. So it is what a walk begun
at that moment gives: exact when nothing changes, and for what changes meanwhile what was there before or after.

Some changes have no event where they count. These are found by listing directories each time:

- with files that were changed within the time in which a kernel writes back (some 50 s): what they take changes then;
- with files that have holes, which mappings and loop devices fill, and on XFS and tmpfs with files that take more
  than their size, which is taken back;
- with files that have more hard links than known names;
- in which something is mounted, and all below the upper layer of an overlay, of which older kernels do not tell.

These are not found until the tree is listed in full again, so that has to be done (`Watch.forget`) now and then:

- what is written through a descriptor that was opened by a name which is gone since, while the file has another one:
  it was unlinked or replaced, or the file was made without a name and got one in another directory;
- what is written through a hard link that was made, after the other one was listed, where no known tree is;
- what libaio writes to a file that it holds open and that nobody had changed for so long when it was listed; a close
  tells;
- of what files take on the disk, not of their sizes: what is written back later than kernels promise, what is
  defragmented, deduplicated, or discarded through a loop device, and attributes (chattr) that move blocks;
- what is written through an overlay of a mount namespace that is not ours, on kernels that do not tell of it, and what
  a kernel's own caches (cachefiles) write.
"""

from __future__ import annotations

from .engine import Watch
from .errors import WatchError

__all__ = ["Watch", "WatchError"]
