# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Emptying the directory of a tier whose backend is deleted: the content goes, the directory stays.

Before anything goes, the kernel's evidence must say that nothing in it is in use, and no store process may be on it.
Then it is set aside, out of everybody's reach, and judged once more. While it goes, the claim is read again and again:
with it gone, or another one laid over it, the work ends at once. So it does when its time is over. What has not gone by
then is put back. Nothing is deleted across a mount.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .. import claims
from .. import mounts as mount_table
from ..errors import StowageError, one_line, printable
from ..eviction import write_leases
from ..mounts import Mount, place_in_filesystem
from ..owner import Registry
from ..places import Places
from ..trees.emptying import empty
from ..use.look import InUse, Subject, in_use, last_names
from . import processes, set_aside
from .claim import is_whole, open_directory, why_lost
from .set_aside import Aside, names_in
from .survey import marked_below

DEADLINE_S = 300.0
"""How long one tier may take, from the beginning of its own cleanup: a host is not waited for forever."""

CLEANED = "TierCleaned"
NOT_CLEANED = "TierNotCleaned"
SHARED_PATH = "TierSharedPath"
PARTLY_CLEANED = "TierPartlyCleaned"

PATIENCE_S = 20.0
"""For how long something in it may be in use: the daemon measures it now and then, and holds it meanwhile."""

_READ_AGAIN_S = 0.02
"""How often the own claim is read while files go, each of which may be large and take its time."""
_LOOK_AGAIN_S = 2.0
"""How often store processes and other claims are looked for."""


class NotCleaned(StowageError):
    """The cleanup was refused, or has ended early.

    :param reason: one of the reasons of events
    :param files: how many were deleted before
    """

    def __init__(self, reason: str, why: str, files: int = 0) -> None:
        self.reason = reason
        self.why = why
        self.files = files
        super().__init__(why)


@dataclass(frozen=True)
class Cleaned:
    """What was deleted."""

    files: int
    directories: int


@dataclass(frozen=True)
class Claim:
    """The claim under which a directory is emptied."""

    name: str
    path: str
    identity: str
    host: str


class Cleanup:
    """The cleanup of one tier.

    :param look: how what is in use is found out
    """

    def __init__(
        self,
        places: Places,
        claim: Claim,
        mounts: Sequence[Mount],
        *,
        deadline_s: float = DEADLINE_S,
        patience_s: float = PATIENCE_S,
        look: InUse = in_use,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._places = places
        self._claim = claim
        self._mounts = mounts
        self._clock = clock
        self._look = look
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._end = clock() + deadline_s
        self._read_next = 0.0
        self._look_next = 0.0
        self._files = 0
        self._directories = 0
        self._aside: list[str] = []
        """What could not be put back from where it was set aside."""

    def check_stopped(self, empty: bool = False) -> None:
        """Refuse while a store process is on the directory: without the claim another one might come to it.

        :param empty: whether anything in it is in the way, too
        :raises NotCleaned: then, or when it is not the directory that was claimed
        """
        fd = self._open()
        try:
            self._check_stopped(fd)
            came = names_in(fd) if empty else []
        except OSError as error:
            raise NotCleaned(NOT_CLEANED, one_line(error, printable(self._claim.path))) from error
        finally:
            os.close(fd)
        if came:
            why = f"{printable(self._claim.path)}: {printable(came[0])} came meanwhile{_more(came)}; run again"
            raise NotCleaned(NOT_CLEANED, why)

    def check(self) -> int:
        """Return how many entries would go, or refuse.

        :raises NotCleaned: when anything is in the way
        """
        fd = self._open()
        try:
            self._check_unused(fd)
            return len(os.listdir(fd))
        except OSError as error:
            raise NotCleaned(NOT_CLEANED, one_line(error, printable(self._claim.path))) from error
        finally:
            os.close(fd)

    def run(self) -> Cleaned:
        """Empty the directory.

        :raises NotCleaned: when it was refused, or has ended before the directory was empty
        """
        fd = self._open()
        try:
            left = self._empty(fd)
        except (OSError, StowageError) as error:
            stopped = error if isinstance(error, NotCleaned) else self._stopped(NOT_CLEANED, self._told(error))
            raise NotCleaned(
                stopped.reason, stopped.why + _listed("; not put back: ", self._aside), stopped.files
            ) from error
        finally:
            os.close(fd)
        if left:
            why = self._reached() + _listed("; what is left: ", left) + _listed("; not put back: ", self._aside)
            raise NotCleaned(PARTLY_CLEANED, why, self._files)
        return Cleaned(self._files, self._directories)

    def _empty(self, fd: int) -> list[str]:
        """Empty the directory open at *fd*, and return what is left in it."""
        set_aside.bring_back(fd)
        self._check_unused(fd)
        self._go_on(fd)
        waiting, left = names_in(fd), []
        while waiting:
            waiting, cannot_go = self._empty_of(fd, waiting)
            left += cannot_go
        return left or [f"{printable(name)} came meanwhile" for name in names_in(fd)]

    def _empty_of(self, fd: int, names: list[bytes]) -> tuple[list[bytes], list[str]]:
        """Delete what has these names, and return for which of them there was no room aside, and what cannot go."""
        aside = Aside(fd)
        files, directories = self._files, self._directories

        def go_on(more_files: int, more_directories: int) -> None:
            self._files, self._directories = files + more_files, directories + more_directories
            self._go_on(fd)

        try:
            waiting, left = aside.take(names, self._in_time)
            # What was done until it was out of reach is seen now.
            self._check_unused(fd, aside.fd)
            go_on(0, 0)
            done = empty(aside.fd, progress=go_on, files_a_step=1)
            self._files, self._directories = files + done.files, directories + done.directories
            left += done.left
        finally:
            self._aside = aside.put_back()
        return waiting, left

    # -- Before

    def _open(self) -> int:
        """Return the directory, open, when it is the one that was claimed."""
        path = printable(self._claim.path)
        try:
            fd = open_directory(self._claim.path, self._mounts)
        except OSError as error:
            raise NotCleaned(
                NOT_CLEANED, f"{path}: {error.strerror}; its disk is not mounted, or it was removed"
            ) from error
        why = self._lost(fd)
        if why:
            os.close(fd)
            raise NotCleaned(NOT_CLEANED, f"{path}: {why}")
        return fd

    def _check_unused(self, fd: int, content_fd: int | None = None) -> None:
        """Refuse while a store process is on the directory, or anything in it is in use; and what others have in it.

        :param content_fd: where its content is, when that was set aside
        """
        path = printable(self._claim.path)
        shared = self._shared()
        if shared:
            raise self._stopped(SHARED_PATH, shared)
        self._check_stopped(fd)
        content = fd if content_fd is None else content_fd
        until = self._clock() + self._patience_s
        used = self._used(fd, content)
        while used and self._clock() < until:
            time.sleep(1)
            used = self._used(fd, content)
        if used:
            raise self._stopped(NOT_CLEANED, f"{path}: in use: {used}")
        inside = marked_below(content, self._in_time)
        if inside:
            raise self._stopped(SHARED_PATH, f"{path}: what is in it may be another's: {inside}")

    def _used(self, fd: int, content: int) -> str:
        """Return what in the directory is in use, by whom; empty when nothing is."""
        subject = self._subject(fd, content)
        evidence = self._look([subject], alive=self._in_time)[subject.name]
        if evidence:
            return evidence[0] + (f" (and {len(evidence) - 1} more)" if evidence[1:] else "")
        return write_leases.open_file(content, alive=self._in_time)

    def _check_stopped(self, fd: int) -> None:
        busy = processes.why_busy(self._claim.path, os.fstat(fd))
        if busy:
            raise self._stopped(NOT_CLEANED, f"{printable(self._claim.path)}: {busy}; stop it first")

    def _subject(self, fd: int, content: int) -> Subject:
        path = self._claim.path
        mount = mount_table.of_fd(fd, self._mounts)
        whole = (path,) if mount.point == path and is_whole(fd, mount) else ()
        place = place_in_filesystem(path, mount)
        name, known_by = os.path.basename(path), last_names(path)
        return Subject(name, content, mount.device, place, (), (path,), whole, known_by)

    def _in_time(self) -> None:
        if self._clock() >= self._end:
            raise self._stopped(NOT_CLEANED, f"its {self._deadline_s:g} s are over")

    # -- While it goes on

    def _go_on(self, fd: int) -> None:
        """Raise when the work has to end; called after each deletion."""
        self._in_time()
        if self._clock() < self._read_next:
            return
        why = self._lost(fd)
        if why:
            raise self._stopped(NOT_CLEANED, why)
        self._read_next = self._clock() + _READ_AGAIN_S
        if self._clock() < self._look_next:
            return
        shared = self._shared()
        if shared:
            raise self._stopped(SHARED_PATH, shared)
        busy = processes.why_busy(self._claim.path, os.fstat(fd))
        if busy:
            raise self._stopped(NOT_CLEANED, busy)
        self._look_next = self._clock() + _LOOK_AGAIN_S

    def _lost(self, fd: int) -> str:
        claim = self._claim
        return why_lost(self._places, claim.path, claim.name, claim.identity, fd)

    def _shared(self) -> str:
        """Return which other claim lies over the tier's path; empty when none does."""
        entries: dict[str, claims.Entry] = {**Registry(self._places).all()}
        entries.pop(self._claim.path, None)
        for taken in self._taken(entries):
            found = claims.overlapping(self._claim.path, taken, self._mounts)
            if found is not None:
                lies, what, other = found
                return f"{printable(self._claim.path)} {lies} {what} {printable(other)}"
        return ""

    def _taken(self, entries: dict[str, claims.Entry]) -> Iterator[dict[str, str]]:
        yield claims.of_stowage(self._places, entries)
        yield claims.of_layout(self._places)
        yield claims.of_drives(self._places, self._claim.host)

    def _stopped(self, reason: str, why: str) -> NotCleaned:
        """Return the error for work that ends here; what was deleted decides what it is called."""
        if not self._files and not self._directories:
            return NotCleaned(reason, why)
        reason = PARTLY_CLEANED if reason == NOT_CLEANED else reason
        return NotCleaned(reason, f"stopped, {self._reached()}: {why}", self._files)

    def _reached(self) -> str:
        return f"{self._files} file{'' if self._files == 1 else 's'} of {printable(self._claim.path)} deleted"

    def _told(self, error: Exception) -> str:
        path = printable(self._claim.path)
        return one_line(error, path) if isinstance(error, OSError) else f"{path}: {error}"


def _listed(what: str, problems: Sequence[str]) -> str:
    return f"{what}{problems[0]}{_more(problems)}" if problems else ""


def _more(several: Sequence[object]) -> str:
    return f" and {len(several) - 1} more" if several[1:] else ""
