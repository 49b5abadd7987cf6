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
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field

from .. import claims, events
from .. import mounts as mount_table
from ..copies.present import opened
from ..differences import Differences
from ..drives import recorded as drive_records
from ..errors import Refusal, StowageError, one_line, printable
from ..eviction import write_leases
from ..locks import aside_lock, runs_lock, try_aside_lock
from ..mounts import Located, Mount
from ..places import Places
from ..records import RecordError
from ..syscalls import rename_noreplace, syncfs
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
from .trash import CONDEMNED, TRASH, Brought, Trash

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
    mark = differences.mark()
    while why := removing.condemn():
        if time.monotonic() >= until:
            remedy = "end what uses it, then remove it again"
            raise Refusal(printable(runs_location.run_path(places, run)), f"is in use: {why}", remedy)
        if differences.check_mode:
            differences.go_back(mark)  # what it predicted, it predicts again
        time.sleep(1)
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
    condemned: str = ""
    """As what the run lies there."""

    # -- Judging

    def condemn(self) -> str:
        """Condemn the run if it is there and unused; return why it is in use, or ""."""
        check_mode = self.differences.check_mode
        with ExitStack() as stack:
            if not check_mode:
                stack.enter_context(aside_lock(self.places, trash.key_of(self.run)))
            # To look at many files takes long: others make and remove their runs meanwhile.
            with nullcontext() if check_mode else runs_lock(self.places):
                location = stack.enter_context(runs_location.opened(self.places))
                brought = Brought()
                if location.is_local:
                    brought = trash.bring_back(self.places, location, self.differences, self.run)
                self.warnings = list(brought.stay.values())
                stamp = stamps.stamp_of(self.places, self.run)
                parent = self._parent(location, stack)
                fd = self._open(location, parent, stamp, brought, stack)
            if fd is None:
                return ""
            if not location.is_local:
                rule = f"is on {location.mount.fstype}, and no host sees whether another one uses it"
                raise Refusal(printable(location.path_of(*self.run)), rule, "remove it yourself, once no host uses it")
            why = self._used(location, fd)
            if why:
                return why
            self.step("unused")
            if not check_mode:
                if parent is None:
                    raise AssertionError(f"{location.path_of(*self.run)}: was to be brought back before")
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

    def _open(
        self, location: RunsLocation, parent: int | None, stamp: Stamp | None, brought: Brought, stack: ExitStack
    ) -> int | None:
        path = location.path_of(*self.run)
        fd = None
        if parent is not None:
            with suppress(FileNotFoundError):
                fd = open_child(parent, self.run.run_id, path)
        if fd is None:
            fd = brought.open(location, self.run)
        if fd is None:
            return None
        stack.callback(os.close, fd)
        if stamp is None or not stamp.matches(fd):
            rule = "has no stamp: it was not made by Stowage" if stamp is None else "is another one than was stamped"
            raise Refusal(printable(path), rule, "take it in first (state: present), or remove it yourself")
        return fd

    def _used(self, location: RunsLocation, fd: int, step: Callable[[str], object] = nothing) -> str:
        """Return by whom the run open at *fd* is used, wherever it is now; "" when nobody uses it."""
        home = os.path.join(os.readlink(f"/proc/self/fd/{location.fd}"), *self.run)
        table = mount_table.read()
        declared = self._declared(Located.of(home, table), fd, table)
        if declared:
            return declared
        subject = Subject.alone(self.run, fd, home, table)
        evidence = self.look([subject])[subject.name]
        if evidence:
            return evidence[0]
        step("unused aside")
        why = write_leases.open_file(fd)
        if not why:
            step("write leases")
        return why

    def _declared(self, home: Located, fd: int, table: Sequence[Mount]) -> str:
        """Return what Stowage keeps for others in the run that is, or was, at *home*, by whatever name they have it."""

        def is_in_it(path: str) -> bool:
            return claims.located(path, table).lies_to(home) in ("is", "is inside")

        for pin in pins.all_pins(self.places):
            of_run = pin.run_of == str(self.run) if pin.run_of else pin.run == self.run.run_id
            if of_run or (pin.source_path and is_in_it(pin.source_path)):
                return f"{pin.described} is held"
        for drive in drive_records.load_all(self.places):
            sources = () if drive.absent or drive.spec is None else drive.spec["sources"]
            if any(is_in_it(source["path"]) for source in sources):
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
            stays = trash.put_back(location, parts, entry, self.run)
            if stays:
                path = location.path_of(TRASH, trash.PENDING, entry)
                raise StowageError(f"{printable(path)}: {why}; it stays there: {stays}")
            self.step("put back")
            return why
        self.condemned = entry
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
        """Empty everything that was condemned and nobody empties now, and forget the run's stamp; without the lock.

        :raises StowageError: when something of this run is left
        """
        check_mode = self.differences.check_mode
        with ExitStack() as stack:
            location = stack.enter_context(runs_location.opened(self.places))
            parts = None
            if location.is_local:
                found = trash.found_trash if check_mode else trash.opened_trash
                parts = stack.enter_context(found(location))
                if parts is not None:
                    self._empty_all(location, parts)
            self._forget(location, parts)

    def _empty_all(self, location: RunsLocation, parts: Trash) -> None:
        left = ""
        for entry in trash.names_in(parts.condemned):
            path = location.path_of(TRASH, CONDEMNED, entry)
            if self.differences.check_mode:
                self._note_emptied(path)
                continue
            try:
                run, why = self._empty(parts.condemned, entry, path)
            except OSError as error:
                run, why = None, one_line(error, path)
            if why and run == self.run:
                left = f"{printable(path)}: {why}"
            elif why:
                self.warnings.append(f"{printable(path)}: {why}")
        if left:
            raise StowageError(f"{left}; what is left of the run is there: see to it, then remove it again")

    def _note_emptied(self, path: str) -> None:
        self.differences.note(f"directory {path}", None, "condemned")
        self.differences.act(f"empty {path}")

    def _empty(self, condemned: int, entry: str, path: str) -> tuple[RunName | None, str]:
        """Empty a run that was condemned; return which one it was, and what is left of it."""
        with try_aside_lock(self.places, entry) as mine, ExitStack() as stack:
            fd = None
            if mine:
                with suppress(FileNotFoundError):
                    fd = stack.enter_context(opened(condemned, os.fsencode(entry)))
            if fd is None:
                return None, ""  # another call empties it, or has emptied it
            found = None
            try:
                found = trash.whose(self.places, entry, fd)
            except RecordError as error:  # it goes, whoever's it was
                self.warnings.append(f"{printable(path)}: the stamp of that run may stay: {error}")
            run = found[0] if found is not None else None
            # A power failure may bring a run back, which is whole then: on disk it has gone before anything in it goes.
            syncfs(condemned)
            done = emptying.empty(fd, progress=self._emptying)
            if done.left:
                return run, done.left[0] + (f" and {len(done.left) - 1} more" if done.left[1:] else "")
            self.step("emptied")
            os.rmdir(entry, dir_fd=condemned)
            self.step("gone")
            if entry != self.condemned:
                self._note_emptied(path)
            if found is not None:
                self._unstamp(condemned, *found)
                self.step("unstamped")
        return run, ""

    def _emptying(self, _files: int, _directories: int) -> None:
        self.step("emptying")

    def _forget(self, location: RunsLocation, parts: Trash | None) -> None:
        """Forget the stamp of a run whose directory is gone: somebody has removed it, or a call was killed then."""
        check_mode = self.differences.check_mode
        with nullcontext(True) if check_mode else try_aside_lock(self.places, trash.key_of(self.run)) as mine:
            if not mine:
                return  # another call makes it, or removes it and forgets its stamp
            stamp = stamps.stamp_of(self.places, self.run)
            fd = location.open(self.run)
            if fd is not None:
                os.close(fd)
            elif stamp is not None and not self._is_aside(stamp, parts):
                if not check_mode:
                    self._unstamp(location.fd, self.run, stamp)
                self.differences.note(f"team of run {self.run}", None, stamp.team)
                self.differences.act(f"forget the stamp of {self.run}")

    def _is_aside(self, stamp: Stamp, parts: Trash | None) -> bool:
        entry = trash.entry_of(self.run, stamp.inode)
        return parts is not None and entry in (*trash.names_in(parts.pending), *trash.names_in(parts.condemned))

    def _unstamp(self, fd: int, run: RunName, stamp: Stamp) -> None:
        """Forget the stamp of a run that is gone from the filesystem of *fd*: there first, and for good."""
        syncfs(fd)
        with runs_lock(self.places):
            stamps.remove(self.places, run, stamp)
