# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Removing a whole run that nobody uses.

The host is looked at; the run is moved aside, out of everybody's reach; the host is looked at again, and every file
must grant a write lease. On any doubt the run goes back. Only then is it condemned and emptied, and its stamp goes
last. Wherever this ends, the next call puts back what was not judged, and empties what was condemned: a run that has
its name is whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field

from .. import events
from .. import mounts as mount_table
from ..copies.present import opened
from ..differences import Differences
from ..drives import recorded as drive_records
from ..errors import Refusal, StowageError, one_line, printable
from ..eviction import write_leases
from ..locks import runs_lock
from ..paths import is_within
from ..places import Places
from ..syscalls import rename_noreplace
from ..tiers.survey import is_marked, marked_below
from ..trees import emptying
from ..use import look as use
from ..use.child import nothing
from ..use.look import InUse, Subject
from . import location as runs_location
from . import pins, stamps, trash
from .location import RunsLocation, check_parent, open_child
from .shape import RunName
from .stamps import Stamp
from .trash import CONDEMNED, TRASH, Trash

STEPS = (
    *("unused", "aside", "unused aside", "write leases", "put back", "condemned", "recorded"),
    *("emptying", "emptied", "gone", "unstamped"),
)
"""Every place where tests end the work."""

PATIENCE_S = 20.0
"""For how long something in it may be in use: the daemon measures it now and then, and holds it meanwhile."""


def remove(
    places: Places,
    run: RunName,
    differences: Differences,
    *,
    step: Callable[[str], object] = nothing,
    look: InUse = use.in_use,
    patience_s: float = PATIENCE_S,
) -> list[str]:
    """Remove a run, and finish what earlier removals have left; return a line for each thing that they could not.

    :raises Refusal: when it is in use, or not a run that Stowage made or took in
    """
    removing = _Removing(places, run, differences, step, look)
    until = time.monotonic() + patience_s
    while why := removing.condemn():
        if time.monotonic() >= until:
            remedy = "end what uses it, then remove it again"
            raise Refusal(printable(runs_location.run_path(places, run)), f"is in use: {why}", remedy)
        time.sleep(1)
    if not differences.check_mode:
        # Without the lock: this may take minutes.
        removing.finish()
    return removing.warnings


@dataclass
class _Removing:
    places: Places
    run: RunName
    differences: Differences
    step: Callable[[str], object]
    look: InUse
    warnings: list[str] = field(default_factory=list)

    # -- Judging

    def condemn(self) -> str:
        """Condemn the run if it is there and unused; return why it is in use, or ""."""
        check_mode = self.differences.check_mode
        with nullcontext() if check_mode else runs_lock(self.places), ExitStack() as stack:
            location = stack.enter_context(runs_location.opened(self.places))
            if not check_mode and location.is_local:
                self.warnings = list(trash.bring_back(self.places, location))
            stamp = stamps.load(self.places, self.run.user).get(self.run.in_user)
            parent = self._parent(location, stack)
            fd = self._open(location, parent, stamp, stack)
            if fd is None or parent is None:
                if self.differences.note(f"team of run {self.run}", None, stamp and stamp.team):
                    self.differences.act(f"forget the stamp of {self.run}")
                return ""
            if not location.is_local:
                rule = f"is on {location.mount.fstype}, and no host sees whether another one uses it"
                raise Refusal(printable(location.path_of(*self.run)), rule, "remove it yourself, once no host uses it")
            why = self._used(location, fd)
            if why:
                return why
            self.step("unused")
            if not check_mode:
                why = self._condemn(location, parent, fd, stack)
            if not why:
                path = location.path_of(*self.run)
                self.differences.note(f"run {self.run}", None, path)
                self.differences.act(f"remove {path}")
            return why

    def _parent(self, location: RunsLocation, stack: ExitStack) -> int | None:
        """Open the directory that the run is in; None when it is missing."""
        fd = location.fd
        for number in (1, 2):
            path = location.path_of(*self.run[:number])
            try:
                fd = open_child(fd, self.run[number - 1], path)
            except FileNotFoundError:
                return None
            stack.callback(os.close, fd)
            check_parent(fd, path)
        return fd

    def _open(self, location: RunsLocation, parent: int | None, stamp: Stamp | None, stack: ExitStack) -> int | None:
        if parent is None:
            return None
        path = location.path_of(*self.run)
        try:
            fd = open_child(parent, self.run.run_id, path)
        except FileNotFoundError:
            return None
        stack.callback(os.close, fd)
        if stamp is None or not stamp.matches(fd):
            rule = "has no stamp: it was not made by Stowage" if stamp is None else "is another one than was stamped"
            raise Refusal(printable(path), rule, "take it in first (state: present), or remove it yourself")
        return fd

    def _used(self, location: RunsLocation, fd: int, step: Callable[[str], object] = nothing) -> str:
        """Return by whom the run open at *fd* is used, wherever it is now; "" when nobody uses it."""
        home = os.path.join(os.readlink(f"/proc/self/fd/{location.fd}"), *self.run)
        declared = self._declared(home, fd)
        if declared:
            return declared
        subject = Subject.alone(self.run.run_id, fd, home, mount_table.read())
        evidence = self.look([subject])[subject.name]
        if evidence:
            return evidence[0]
        step("unused aside")
        why = write_leases.open_file(fd)
        if not why:
            step("write leases")
        return why

    def _declared(self, home: str, fd: int) -> str:
        """Return what Stowage keeps for others in the run that is, or was, at *home*."""
        for pin in pins.all_pins(self.places):
            of_run = pin.run_of == str(self.run) if pin.run_of else pin.run == self.run.run_id
            if of_run or is_within(pin.source_path, home):
                return f"{pin.described} is held"
        for drive in drive_records.load_all(self.places):
            sources = () if drive.absent or drive.spec is None else drive.spec["sources"]
            if any(is_within(source["path"], home) for source in sources):
                return f"drive {drive.workspace}/{drive.name} has its source in it"
        return "it bears an owner mark" if is_marked(fd) else marked_below(fd)

    def _condemn(self, location: RunsLocation, parent: int, fd: int, stack: ExitStack) -> str:
        parts = stack.enter_context(trash.opened_trash(location))
        entry = trash.entry_of(self.run, os.fstat(fd).st_ino)
        try:
            rename_noreplace(parent, os.fsencode(self.run.run_id), parts.pending, os.fsencode(entry))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            rule = "cannot be moved within its filesystem: it is another subvolume's, or another project quota's"
            raise Refusal(printable(location.path_of(*self.run)), rule, "remove it yourself") from error
        self.step("aside")
        try:
            why = self._doubt(location, parts, entry, fd)
            if not why:
                rename_noreplace(parts.pending, os.fsencode(entry), parts.condemned, os.fsencode(entry))
        except BaseException:
            trash.put_back(location, parts, entry, self.run)
            raise
        if why:
            if not trash.put_back(location, parts, entry, self.run):
                path = location.path_of(TRASH, trash.PENDING, entry)
                raise StowageError(f"{printable(path)}: {why}; it stays there, as something else has its name now")
            self.step("put back")
            return why
        self.step("condemned")
        events.tell(
            self.places,
            object=f"run/{printable(str(self.run))}",
            reason="RunRemoved",
            message=f"Run removed: {printable(location.path_of(*self.run))}",
        )
        self.step("recorded")
        return ""

    def _doubt(self, location: RunsLocation, parts: Trash, entry: str, fd: int) -> str:
        with opened(parts.pending, os.fsencode(entry)) as aside:
            if not os.path.samestat(os.fstat(aside), os.fstat(fd)):
                return "something else had its name"
        return self._used(location, fd, self.step)

    # -- Emptying

    def finish(self) -> None:
        """Empty everything that was condemned and nobody empties now, and forget the run's stamp.

        :raises StowageError: when something of this run is left
        """
        with runs_location.opened(self.places) as location:
            aside: list[str] = []
            if location.is_local:
                with trash.opened_trash(location) as parts:
                    self._empty_all(location, parts)
                    aside = [*trash.names_in(parts.pending), *trash.names_in(parts.condemned)]
            self._forget(location, aside)

    def _empty_all(self, location: RunsLocation, parts: Trash) -> None:
        left = ""
        for entry in trash.names_in(parts.condemned):
            path = location.path_of(TRASH, CONDEMNED, entry)
            try:
                run, why = self._empty(parts.condemned, entry)
            except OSError as error:
                run, why = None, one_line(error, path)
            if why and run == self.run:
                left = f"{printable(path)}: {why}"
            elif why:
                self.warnings.append(f"{printable(path)}: {why}")
        if left:
            raise StowageError(f"{left}; what is left of the run is there: see to it, then remove it again")

    def _empty(self, condemned: int, entry: str) -> tuple[RunName | None, str]:
        """Empty a run that was condemned; return which one it was, and what is left of it."""
        with ExitStack() as stack:
            try:
                fd = stack.enter_context(opened(condemned, os.fsencode(entry)))
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (FileNotFoundError, BlockingIOError):
                return None, ""  # another call empties it, or has emptied it
            found = trash.whose(self.places, entry, fd)
            run = found[0] if found is not None else None
            done = emptying.empty(fd, progress=self._emptying)
            if done.left:
                return run, done.left[0] + (f" and {len(done.left) - 1} more" if done.left[1:] else "")
            self.step("emptied")
            with suppress(FileNotFoundError):  # it was gone before it was locked
                os.rmdir(entry, dir_fd=condemned)
            self.step("gone")
            if found is not None:
                with runs_lock(self.places):
                    stamps.remove(self.places, *found)
                self.step("unstamped")
        return run, ""

    def _emptying(self, _files: int, _directories: int) -> None:
        self.step("emptying")

    def _forget(self, location: RunsLocation, aside: Collection[str]) -> None:
        """Forget the stamp of a run whose directory is gone: somebody else has removed it, or a call was killed then.

        :param aside: what lies in the trash
        """
        with runs_lock(self.places):
            stamp = stamps.load(self.places, self.run.user).get(self.run.in_user)
            fd = location.open(self.run)
            if fd is not None:
                os.close(fd)
            elif stamp is not None and trash.entry_of(self.run, stamp.inode) not in aside:
                stamps.remove(self.places, self.run, stamp)
