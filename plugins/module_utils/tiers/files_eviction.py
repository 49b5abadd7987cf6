# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a tier of whole files are to go: a plan that looks at nothing itself.

Eviction begins above the high mark of the tier's capacity or key limit and goes on down to the low mark, oldest first:
FIFO by when a file was last written, LRU by when it was last read. What a tier takes is what its regular files take on
the disk; a file with several names counts once, and goes with all of them or, while one is elsewhere, not at all.
"""

from __future__ import annotations

import heapq
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..errors import Refusal
from ..mounts import Mount
from ..sizes import Space, decimal
from ..trees.inode_set import InodeSet
from .declared import FILES, MemberGroup, Tier, Watermark

LRU = "LRU"
MARKS = Watermark(90, 80)
"""What is meant where no watermark is declared."""
YOUNG_S = 5.0
"""How long a file stays after anything about it was changed: it may be written to still, or be opened next."""
MOST = 1 << 17
"""How many of the oldest files one look remembers: 30 MB, however many there are. More go by another look."""

MOST_NAMES = 64

YOUNG, LINKED, DEEP = "changed in the last seconds", "with a name elsewhere, or too many", "too deep below"
"""Why a file is no candidate."""


def files_text(number: int) -> str:
    return f"{number} file{'' if number == 1 else 's'}"


# -- When


@dataclass(frozen=True)
class Limits:
    """How much a tier may hold, in bytes on the disk and in files; 0 is no limit."""

    capacity: int
    key_limit: int
    marks: Watermark = MARKS
    by_last_read: bool = False

    @classmethod
    def of(cls, group: MemberGroup, tier: Tier) -> Limits | None:
        """Return the limits of a tier that the daemon evicts, None for any other."""
        eviction = tier.eviction
        if group.store != FILES or eviction is None or not eviction.enabled:
            return None
        return cls(tier.capacity, tier.key_limit, eviction.watermark or MARKS, eviction.policy == LRU)

    def is_above(self, allocated: int, files: int) -> bool:
        """Return whether either is above the high mark."""
        high = self.marks.high
        return 0 < self.capacity * high < allocated * 100 or 0 < self.key_limit * high < files * 100

    def room(self, allocated: int, files: int) -> tuple[float, float]:
        """Return how many bytes, and files, may come until the high mark is reached; infinite where nothing limits."""
        high = self.marks.high
        room_bytes = self.capacity * high / 100 - allocated if self.capacity else float("inf")
        room_files = self.key_limit * high / 100 - files if self.key_limit else float("inf")
        return max(0.0, room_bytes), max(0.0, room_files)

    def excess(self, allocated: int, files: int) -> Excess:
        """Return what has to go until both are at the low mark."""
        low = self.marks.low
        size = allocated - self.capacity * low // 100 if self.capacity else 0
        number = files - self.key_limit * low // 100 if self.key_limit else 0
        return Excess(max(0, size), max(0, number))


class Excess:
    """What still has to go; it shrinks."""

    def __init__(self, allocated: int, files: int) -> None:
        self.allocated = allocated
        self.files = files

    def __bool__(self) -> bool:
        return self.allocated > 0 or self.files > 0

    def __str__(self) -> str:
        parts = [decimal(self.allocated)] if self.allocated > 0 else []
        parts += [files_text(self.files)] if self.files > 0 else []
        return " and ".join(parts) or "nothing"

    def helped_by(self, victim: Victim) -> bool:
        return self.files > 0 or (self.allocated > 0 and victim.allocated > 0)

    def shrink(self, allocated: int) -> None:
        self.allocated -= allocated
        self.files -= 1


class Estimate:
    """The most that a tier may hold since it was looked at: all that came to its filesystem may have come to it.

    What others free there meanwhile is no reason to think that the tier shrank.
    """

    def __init__(self, allocated: int, files: int, space: Space) -> None:
        self.allocated = allocated
        self.files = files
        self._space = space

    def saw(self, space: Space) -> None:
        """Take in how full the filesystem is now."""
        before, self._space = self._space, space
        grown = max(0, (space.size - space.free) - (before.size - before.free))
        self.allocated += grown
        if space.files:
            self.files += max(0, (space.files - space.files_free) - (before.files - before.files_free))
        else:
            # btrfs does not count its inodes: a small file takes its name, its inode and its bytes in the metadata.
            self.files += grown // 512


# -- Which


class Entry(Protocol):
    """What ``os.scandir`` gives."""

    @property
    def name(self) -> str: ...

    def is_file(self, *, follow_symlinks: bool = True) -> bool: ...

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result: ...


class Victim(NamedTuple):
    """A file that may go; victims sort as they go."""

    time_ns: int
    """When it was written or read last, whichever counts."""
    name: str
    directory: str
    """Below the tier, empty for the tier itself; both as ``os.fsdecode`` gives them."""
    allocated: int
    others: tuple[tuple[str, str], ...] = ()
    """Its other names, each with its directory."""


class _Linked(NamedTuple):
    time_ns: int
    allocated: int
    links: int
    young: bool
    names: list[tuple[str, str]]


class Plan:
    """What one look at a tier has found, and which files go.

    :param now_ns: when the look began
    :param most: how many of the oldest files are remembered
    """

    def __init__(self, limits: Limits, now_ns: int, most: int = MOST) -> None:
        self.limits = limits
        self.files = 0
        self.is_cut = False
        """Whether there are more candidates than are remembered."""
        self.kept: Counter[str] = Counter()
        """Why files are no candidates, and how many."""
        self._blocks = 0
        self._now_ns = now_ns
        self._most = most
        self._oldest: list[tuple[int, str, str, int]] = []
        self._latest_ns: float = float("inf")
        self._seen = InodeSet()
        self._linked: dict[tuple[int, int], _Linked] = {}
        self._names = 0

    @property
    def allocated(self) -> int:
        return self._blocks * 512

    @property
    def is_above(self) -> bool:
        """Return whether files have to go."""
        return self.limits.is_above(self.allocated, self.files)

    def excess(self) -> Excess:
        """Return what has to go; nothing while neither is above its high mark."""
        return self.limits.excess(self.allocated, self.files) if self.is_above else Excess(0, 0)

    def is_young(self, status: os.stat_result, now_ns: int | None = None) -> bool:
        """Return whether a file was changed only now.

        One that seems to be changed later still was changed while the clock was ahead: that says nothing of its age.
        """
        now_ns = self._now_ns if now_ns is None else now_ns
        return now_ns - int(YOUNG_S * 1e9) < status.st_ctime_ns <= now_ns + int(YOUNG_S * 1e9)

    def time_of(self, status: os.stat_result) -> int:
        return status.st_atime_ns if self.limits.by_last_read else status.st_mtime_ns

    def take(self, directory: str | None, device: int, entries: Iterable[Entry]) -> int:
        """Take in entries of a directory, and return how many there were.

        :param directory: below the tier; None for one that is too deep, of which nothing goes
        :param device: its own: what is mounted on a file does not belong to the tier
        """
        by_last_read, most = self.limits.by_last_read, 2 * self._most
        oldest, latest_ns = self._oldest, self._latest_ns
        young_from, young_to = (self._now_ns + sign * int(YOUNG_S * 1e9) for sign in (-1, 1))
        taken = files = blocks = young = 0
        for entry in entries:  # a microsecond in here is ten seconds of a tier of ten million files
            taken += 1
            if not entry.is_file(follow_symlinks=False):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if status.st_dev != device:
                continue
            if status.st_nlink != 1:
                self._take_linked(directory, entry.name, status)
                continue
            files += 1
            blocks += status.st_blocks
            if young_from < status.st_ctime_ns <= young_to:
                young += 1
                continue
            time_ns = status.st_atime_ns if by_last_read else status.st_mtime_ns
            if directory is None:
                self.kept[DEEP] += 1
            elif time_ns > latest_ns:
                self.is_cut = True
            else:
                oldest.append((time_ns, entry.name, directory, status.st_blocks))
                if len(oldest) >= most:
                    self._cut()
                    latest_ns = self._latest_ns
        self.files += files
        self._blocks += blocks
        if young:
            self.kept[YOUNG] += young
        return taken

    def _cut(self) -> None:
        self._oldest.sort()
        del self._oldest[self._most :]
        self._latest_ns = self._oldest[-1][0]
        self.is_cut = True

    def _take_linked(self, directory: str | None, name: str, status: os.stat_result) -> None:
        if not status.st_nlink:
            return  # it is gone by now
        inode = status.st_dev, status.st_ino
        if self._seen.add(*inode):
            self.files += 1
            self._blocks += status.st_blocks
            if status.st_nlink > MOST_NAMES:
                self.kept[LINKED] += 1
            elif self._names >= self._most:
                self.is_cut = True
            else:
                one = _Linked(self.time_of(status), status.st_blocks, status.st_nlink, self.is_young(status), [])
                self._linked[inode] = one
        found = self._linked.get(inode)
        if found is not None and directory is not None and len(found.names) < MOST_NAMES:
            found.names.append((name, directory))
            self._names += 1

    def oldest(self) -> Iterator[Victim]:
        """Yield the candidates in the order in which they go; only once."""
        others: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {}
        for one in self._linked.values():
            if one.young or len(one.names) != one.links:
                self.kept[YOUNG if one.young else LINKED] += 1
            elif one.time_ns > self._latest_ns:
                self.is_cut = True
            else:
                first, *rest = sorted(one.names)
                others[first] = tuple(rest)
                self._oldest.append((one.time_ns, *first, one.allocated))
        self._linked.clear()
        heapq.heapify(self._oldest)  # few of many go: no need to sort them all
        while self._oldest:
            time_ns, name, directory, blocks = heapq.heappop(self._oldest)
            yield Victim(time_ns, name, directory, blocks * 512, others.get((name, directory), ()))

    def victims(self) -> Iterator[Victim]:
        """Yield what would go if nothing was in the way."""
        excess = self.excess()
        if excess:
            for victim in self.oldest():
                if excess.helped_by(victim):
                    yield victim
                    excess.shrink(victim.allocated)
                    if not excess:
                        return


def short(excess: Excess, removed: int, kept: Mapping[str, int]) -> str:
    """Return in one line why what has to go does not."""
    what = "too little can go" if removed else "nothing can go"
    reasons = ", ".join(f"{count}: {reason}" for reason, count in Counter(kept).most_common(4) if count)
    return f"{what}: {excess} above the low mark; files that stay: {reasons or 'none'}"


# -- By last read


def check_access_times(title: str, limits: Limits | None, mount: Mount) -> None:
    """Refuse eviction by last read where the mount does not keep when a file was read.

    ``relatime``, which is what a mount has without an option, keeps it once a day.
    """
    if limits is None or not limits.by_last_read:
        return
    kept_back = next((option for option in ("noatime", "relatime") if option in mount.options), "")
    if mount.read_only:
        kept_back = "ro"
    if kept_back:
        rule = f"LRU goes by when a file was last read, which {mount.point} does not keep: it is mounted {kept_back}"
        raise Refusal(title, rule, "mount it with strictatime, or use the policy FIFO")
