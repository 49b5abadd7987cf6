# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moving a location of the layout to another directory, stage by stage.

Each stage is recorded before and after, can be called again, and goes by what is mounted rather than by the record.
Until the switch the old directory is what is used, and afterwards the new one, which was compared with it by content;
the switch itself is one mount. The old content goes last, on a call of its own.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from .. import events
from .. import mounts as mount_table
from ..differences import Differences
from ..errors import PartlyFailed, Refusal, StowageError, one_line, printable
from ..eviction import write_leases
from ..gate import holds
from ..layout import record as layout_record
from ..locks import host_lock, runs_lock
from ..mounts import Mount, is_shared
from ..paths import is_within
from ..places import Places
from ..runs import stamps
from ..services.systemd_units import RunCommand, Systemctl
from ..sizes import decimal
from ..syscalls import bind_mount, open_beneath, unmount
from ..use.child import nothing
from ..use.look import InUse, Subject, in_use
from . import aside, backup, copying, recorded, staging
from .comparison import Compared, compare, state_of
from .content import amount_in, names_in
from .directories import opened_beneath, opened_new, opened_old
from .old_path import UNITS, KeptMount, kept_disk, kept_path
from .progress import Progress
from .recorded import Relocation
from .references import Looked, environment_files, named_below, references
from .stages import (
    CLOSED,
    COPIED,
    FINISHED,
    FOREIGN,
    FORGOTTEN,
    GIVEN_UP,
    HELD,
    LOST,
    RETIRED,
    SWITCHED,
    UNDER_WAY,
    UNDONE,
    VERIFIED,
    reached,
    standing,
)
from .users import users_of, wait_until_unused

STEPS = (
    "recorded",
    "held",
    "unused",
    "covered",
    "closed",
    "copied",
    "unpacked",
    "compared",
    "switching",
    "stamped",
    "opened up",
    "kept",
    "bound",
    "switched",
    "setting aside",
    "set aside",
    "finished",
    "retiring",
    "deleting",
    "deleted",
    "retired",
    "uncovered",
    "forgotten",
)
"""What happens, in its order."""
BACK = ("undoing", "not kept", "switched back", "undone", "opened", "lifted", "given up")
"""What happens when it is given up or undone."""

_ATTEMPTS = 3
_LOOK_AGAIN_S = 2.0
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Tools:
    """What it is done with."""

    run_command: RunCommand
    systemctl: Systemctl
    rsync: str | None
    """The program; None when the host has none."""
    units: str = UNITS
    look: InUse = in_use


class Moving:
    """The move of one location on one host. Its stages are to be called under its lock.

    :param step: told each of :data:`STEPS` when it is done
    """

    def __init__(
        self,
        places: Places,
        location: str,
        tools: Tools,
        differences: Differences,
        step: Callable[[str], None] = nothing,
    ) -> None:
        self._places = places
        self._location = location
        self._tools = tools
        self._differences = differences
        self._step = step
        self._progress = Progress(places, location)

    # -- What is, and what is recorded

    def recorded(self) -> Relocation:
        one = recorded.load(self._places, self._location)
        if one is None:
            raise Refusal(self._location, "it is not being moved", "begin with stowage.host.relocate")
        return one

    def standing(self, one: Relocation) -> str:
        """Return the last stage that is reached."""
        return standing(one.stage, one.doing, one.at_old_path.found(mount_table.read()))

    def check(self, one: Relocation) -> str:
        """Return the last stage that is reached; refuse a host that is not as the move has left it."""
        stage = self.standing(one)
        if stage == LOST:
            rule = f"{one.to} is to be mounted at {one.real} and is not"
            raise Refusal(self._location, rule, f"mount it (systemctl start {self._kept(one).name})")
        if stage == FOREIGN:
            rule = f"{one.to} is mounted at {one.real}, which nobody has recorded"
            raise Refusal(self._location, rule, f"unmount {one.real}")
        return stage

    def _not_foreign(self, one: Relocation) -> str:
        stage = self.standing(one)
        return self.check(one) if stage == FOREIGN else stage

    def _kept(self, one: Relocation) -> KeptMount:
        return kept_path(one.location, one.at_old_path, mount_table.read())

    def _units(self, one: Relocation) -> list[KeptMount]:
        """Return the mount units of the move, in the order in which they are to be there."""
        disk = [kept_disk(one.location, one.at_old_path, one.old.filesystem)] if one.disk_at else []
        return [*disk, self._kept(one)]

    def _remove_units(self, one: Relocation) -> None:
        for unit in reversed(self._units(one)):
            unit.remove(self._tools.units, self._tools.systemctl)

    def _save(self, one: Relocation, step: str = "") -> Relocation:
        recorded.save(self._places, one)
        if step:
            self._step(step)
        return one

    def _is_predicted(self, one: Relocation, stage: str) -> bool:
        """Note that *stage* is to be reached, and return whether that is only to be predicted."""
        self._differences.note(f"move of {one.location}", stage, one.stage or None)
        if self._differences.check_mode:
            self._tell(one, stage)
        return self._differences.check_mode

    def _tell(self, one: Relocation, stage: str) -> None:
        self._differences.act(f"{stage}: {one.location} from {printable(one.path)} to {printable(one.to)}")

    def _reach(self, one: Relocation, step: str) -> Relocation:
        self._tell(one, one.stage)
        return self._save(one, step)

    def _hold(self, one: Relocation) -> None:
        text = f"location {one.location} is being moved from {printable(one.path)} to {printable(one.to)}"
        holds.set_hold(self._places, one.hold, text)

    # -- Until the switch: what fails is given up, and the location is in use as before

    def close(self, planned: Relocation, wait_s: float) -> Relocation:
        """Hold jobs, wait for the location's users, keep writers out, and back up Stowage's own metadata."""
        one = planned
        if one.stage in (GIVEN_UP, UNDONE):
            raise Refusal(one.location, f"its move to {one.to} is {one.stage}", "begin one, with the new directory")
        if reached(self.check(one), CLOSED):
            if one.stage in UNDER_WAY and not self._differences.check_mode:
                self._hold(one)
            return one
        if self._is_predicted(one, CLOSED):
            return one
        if not one.stage:
            with host_lock(self._places):
                recorded.check_alone(recorded.load_all(self._places), one.location)
                one = self._save(one.at(HELD), "recorded")
        self._hold(one)
        self._step("held")
        return self._or_give_up(one, lambda: self._close(one, wait_s))

    def _close(self, one: Relocation, wait_s: float) -> Relocation:
        with opened_new(one, mount_table.read()) as fd:
            self._check_copyable(one, fd)
        one = self._save(replace(one, stage=HELD, doing=CLOSED))
        end = time.monotonic() + wait_s
        while True:
            with opened_old(one, mount_table.read()) as fd:
                left = max(0.0, end - time.monotonic())
                wait_until_unused(lambda: users_of(fd, one.at_old_path, self._tools.look), left, self._progress.say)
                self._step("unused")
                if not one.at_old_path.found(mount_table.read()).closed:
                    one.at_old_path.close(fd)
                self._step("covered")
            # Who opened something before it was covered may still write to it.
            with opened_old(one, mount_table.read()) as fd:
                used = [*users_of(fd, one.at_old_path, self._tools.look), *self._writable(one)]
            if not used:
                break
            one.at_old_path.uncover()
            if time.monotonic() >= end:
                raise StowageError(f"in use after {wait_s:g} s: {'; '.join(used[:3])}")
            self._progress.say(f"waits for its users: {used[0]}")
            time.sleep(_LOOK_AGAIN_S)
        name = f"{one.location}-{one.identity}{backup.ENDING}"
        archive = os.path.join(self._places.relocations_dir, name)
        backup.back_up(self._places, archive)
        return self._reach(one.at(CLOSED, backup=archive), "closed")

    def _writable(self, one: Relocation) -> list[str]:
        return one.at_old_path.writable_ways(mount_table.read())

    def _check_copyable(self, one: Relocation, fd: int) -> None:
        """Refuse a new directory, open at *fd*, in which there may be anything that copying again would delete."""
        if names_in(fd):
            self._check_kept(one, fd)

    def _check_kept(self, one: Relocation, fd: int) -> None:
        """Refuse a new directory, open at *fd*, that is not as it was left."""
        if one.copied is not None:
            kept = state_of(fd, itself=False) == one.copied
        else:
            kept = not one.began or staging.is_roots_only(fd)
        if not kept:
            rule = f"{one.to} was changed by somebody since it was copied"
            raise Refusal(one.location, rule, "look at both, and empty it to have it copied again")

    def copy(self) -> Relocation:
        """Copy the content, and compare the copy with it."""
        one = self.recorded()
        stage = self.check(one)
        if reached(stage, VERIFIED):
            return one
        if not reached(stage, CLOSED):
            raise Refusal(one.location, "it is not kept from its users any more", "run stowage.host.relocate again")
        if self._is_predicted(one, VERIFIED):
            return one
        return self._or_give_up(one, lambda: self._copy(one))

    def _copy(self, one: Relocation) -> Relocation:
        if not one.here:
            return self._reach(one.at(VERIFIED), "compared")
        table = mount_table.read()
        with opened_old(one, table) as old_fd, opened_new(one, table) as new_fd:
            self._check_copyable(one, new_fd)
            if not one.began or not names_in(new_fd):
                staging.keep_for_root(new_fd, one.to)
                one = self._save(replace(one, began=True))
            if not one.copy:
                was, empty = state_of(old_fd), state_of(new_fd, itself=False)
                return self._reach(one.at(VERIFIED, was=was, copied=empty), "compared")
            one = self._save(replace(one, stage=CLOSED, doing=COPIED))
            with staging.staged(new_fd, one.identity) as content_fd:
                one, found = self._copied(replace(one, copied=None), old_fd, content_fd)
            staging.unpack(new_fd, one.identity)
            self._step("unpacked")
            # What it was moved by has changed its directories' times of change.
            copied = state_of(new_fd, itself=False)
        self._check_closed(one)
        return self._reach(one.at(VERIFIED, was=found.was, copied=copied), "compared")

    def _copied(self, one: Relocation, old_fd: int, content_fd: int) -> tuple[Relocation, Compared]:
        """Copy and compare until nothing differs."""
        if self._tools.rsync is None:
            raise Refusal("rsync", "there is no such program on this host", "install it (package rsync)")
        for attempt in range(_ATTEMPTS):
            one = self._save(replace(one, stage=CLOSED, doing=COPIED))
            fstype = one.old.filesystem.fstype
            with copying.alone(self._places, self._location) as lock_fd:
                program, run = self._tools.rsync, self._tools.run_command
                copying.copy(program, run, old_fd, content_fd, lock_fd, fstype, attempt > 0)
            one = self._save(replace(one.at(COPIED), doing=VERIFIED), "copied")
            found = compare(old_fd, content_fd, self._progress.say)
            if not found.count:
                return one, found
        more = f" (and {found.count - 3} more)" if found.count > 3 else ""
        raise StowageError(f"{one.to} is no whole copy: {'; '.join(found.differences[:3])}{more}")

    def _check_closed(self, one: Relocation) -> None:
        """Refuse when anybody could have written to the old directory since it was closed."""
        now = one.at_old_path.found(mount_table.read())
        ways = [] if now.closed else [f"{one.real} is no longer mounted read-only over itself"]
        ways += self._writable(one)
        if ways:
            raise Refusal(one.location, ways[0], "run stowage.host.relocate again")

    def _or_give_up(self, one: Relocation, work: Callable[[], _Value]) -> _Value:
        try:
            return work()
        except (StowageError, OSError) as error:
            why = one_line(error, one.location)
            try:
                self.give_up()
            except (StowageError, OSError) as second:
                raise StowageError(f"{why}; and it could not be given up: {one_line(second, one.location)}") from error
            text = f"{why}; it is given up: {one.path} is in use as before, and jobs are not held"
            raise PartlyFailed(text, {"stage": GIVEN_UP}) from error

    # -- The switch, and back

    def switch(self) -> Relocation:
        """Mount the new directory at the old path, now and at every boot."""
        one = self.recorded()
        stage = self.check(one)
        if reached(one.stage, SWITCHED):
            return one
        if not reached(stage, VERIFIED):
            raise Refusal(one.location, "its copy is not compared with it", "run stowage.host.relocate again")
        if self._is_predicted(one, SWITCHED):
            return one
        if stage == VERIFIED:
            self._check_closed(one)
            self._check_unchanged(one)
        units = self._units(one)
        for unit in units:
            unit.check(one.location, self._tools.units)
        one = self._save(replace(one, doing=SWITCHED), "switching")
        table = mount_table.read()
        with opened_new(one, table) as new_fd:
            if stage == VERIFIED:
                with opened_old(one, table) as old_fd:
                    self._follow(one, old_fd, new_fd)
                    self._step("stamped")
                    if one.here:
                        staging.open_up(old_fd, new_fd, one.location)
                    self._step("opened up")
            # With this a boot is the switch, so nothing else may be left to do.
            for unit in units:
                unit.write(self._tools.units, self._tools.systemctl)
            self._step("kept")
            if stage == VERIFIED:
                bind_mount(new_fd, one.real)
            self._step("bound")
        if not one.at_old_path.found(mount_table.read()).bound:
            raise StowageError(f"{one.real}: {one.to} is not what is mounted there; something was mounted over it")
        for unit in units:
            unit.verify(self._tools.systemctl)
        return self._reach(one.at(SWITCHED), "switched")

    def _check_unchanged(self, one: Relocation) -> None:
        if not one.here:
            return
        table = mount_table.read()
        with opened_old(one, table) as fd:
            if state_of(fd) != one.was:
                self._save(one.at(CLOSED))
                rule = f"{one.path} was changed since it was copied"
                raise Refusal(one.location, rule, "have it copied again (state copied; stowage.host.relocate does so)")
        with opened_new(one, table) as fd:
            self._check_kept(one, fd)

    def _follow(self, one: Relocation, before_fd: int, after_fd: int) -> None:
        """Have the teams of runs stay known: their stamps are true of directories, and these are other ones now."""
        if one.location == "runs":
            with runs_lock(self._places):
                stamps.follow(self._places, before_fd, after_fd)

    def undo(self) -> Relocation | None:
        """Have the old directory at its path again. Jobs stay held, because the settings may still name the new one."""
        one = recorded.load(self._places, self._location)
        if one is None:
            return None
        stage = self._not_foreign(one)
        if stage in (HELD, CLOSED, COPIED, VERIFIED, GIVEN_UP) or one.stage == UNDONE:
            return one
        is_back = stage in (SWITCHED, UNDONE) or (stage == LOST and one.stage == SWITCHED)
        if not is_back:
            rule = f"its move is {one.doing or one.stage}, and the old content is set aside"
            raise Refusal(one.location, rule, f"run it again to finish it, and move it again, from {one.to}")
        self._check_old_there(one)
        if self._is_predicted(one, UNDONE):
            return one
        one = self._save(replace(one, stage=SWITCHED, doing=UNDONE), "undoing")
        if one.mode:
            with self._opened_old(one) as fd:
                aside.put_back(fd, one.identity, one.mode)
        self._remove_units(one)
        self._step("not kept")
        self._back(one)
        self._step("switched back")
        return self._reach(one.at(UNDONE), "undone")

    def _check_old_there(self, one: Relocation) -> None:
        """Refuse when what would be gone back to is not the old directory, with its content."""
        with self._opened_old(one) as fd:
            if aside.is_by_another(fd, one.identity):
                rule = f"what was in {one.path} is set aside, or deleted, by a host that shares it"
                raise Refusal(one.location, rule, f"finish the move, and move it again, from {one.to}")

    @contextmanager
    def _opened_old(self, one: Relocation) -> Iterator[int]:
        """Open the old directory, whether something is mounted over it or not."""
        table = mount_table.read()
        now = one.at_old_path.found(table)
        is_beneath = now.bound or now.closed or (one.disk_at != "" and os.path.ismount(one.disk_at))
        with opened_beneath(one, table) if is_beneath else opened_old(one, table) as fd:
            yield fd

    def _back(self, one: Relocation) -> None:
        one.at_old_path.uncover()
        table = mount_table.read()
        with opened_old(one, table) as old_fd:
            if os.fstatvfs(old_fd).f_flag & os.ST_RDONLY:
                raise Refusal(one.location, f"{one.path} is mounted read-only", "mount it for writing")
            if one.location != "runs":
                return
            try:
                with opened_new(one, table) as new_fd:
                    self._follow(one, new_fd, old_fd)
            except (Refusal, OSError) as error:
                # As when the new disk is dead: that must not keep anybody from the old one.
                message = f"the teams of runs are those of the new directory: {one_line(error)}; see {one.backup}"
                events.tell(self._places, object=f"location/{one.location}", reason="TeamsNotKept", message=message)

    def give_up(self) -> Relocation | None:
        """Go on as before the move, which is not switched, or switched back."""
        one = recorded.load(self._places, self._location)
        if one is None:
            return None
        stage = self._not_foreign(one)
        if stage in (SWITCHED, LOST) or one.stage in (FINISHED, RETIRED, FORGOTTEN):
            rule = f"it was moved to {one.to}, which is in use"
            raise Refusal(one.location, rule, "undo that first" if stage == SWITCHED else "move it again")
        over = one.stage in (UNDONE, GIVEN_UP)
        if (not over and self._is_predicted(one, GIVEN_UP)) or self._differences.check_mode:
            return one
        if not over:
            self._remove_units(one)
        if not over or one.hold in holds.load(self._places):
            self._back(one)
            self._step("opened")
        holds.lift(self._places, one.hold)
        self._step("lifted")
        self._progress.end()
        return one if over else self._reach(one.at(GIVEN_UP), "given up")

    # -- Afterwards

    def finish(self) -> Relocation:
        """Set the old content aside, and let jobs begin."""
        one = self.recorded()
        stage = self.check(one)
        if reached(stage, FINISHED):
            if not self._differences.check_mode:
                holds.lift(self._places, one.hold)
            return one
        if stage != SWITCHED:
            raise Refusal(one.location, "it is not switched", "run stowage.host.relocate again")
        self._check_settings(one)
        if self._is_predicted(one, FINISHED):
            return one
        if one.here:
            with opened_beneath(one, mount_table.read()) as fd:
                if not self._is_as_copied(one, fd):
                    rule = f"what was in {one.path} was changed since it was copied, beneath what is mounted there now"
                    raise Refusal(one.location, rule, "look at it, and give the move up (relocate_give_up=true)")
                mode = one.mode or stat.S_IMODE(os.fstat(fd).st_mode)
                one = self._save(replace(one, stage=SWITCHED, doing=FINISHED, mode=mode), "setting aside")
                aside.set_aside(fd, one.identity)
                self._step("set aside")
                one = replace(one, aside=state_of(fd))
        one = self._reach(one.at(FINISHED), "finished")
        holds.lift(self._places, one.hold)
        self._progress.end()
        message = f"moved from {one.path} to {one.to}, where {decimal(one.bytes)} were copied"
        events.tell(self._places, object=f"location/{one.location}", reason="Moved", message=message)
        return one

    def _is_as_copied(self, one: Relocation, fd: int) -> bool:
        """Return whether the old content is what was copied, also when a part of it is set aside already."""
        if one.doing != FINISHED:
            return state_of(fd) == one.was
        now = state_of(fd, aside=os.fsdecode(aside.name_of(one.identity)))
        return one.was is not None and now.kept == one.was.kept

    def _check_settings(self, one: Relocation) -> None:
        """Refuse to go on while the host's settings do not name the new directory."""
        locations = layout_record.load(self._places.layout_json)["locations"]
        for name, (_old, new) in one.moves.items():
            path = locations.get(name, {}).get("path")
            if path != new:
                rule = f"the settings of this host name {path} for {name}, and not {new}"
                raise Refusal(one.location, rule, "roll the new override out (stowage.host.site)")

    def retire(self, confirm: str) -> Relocation:
        """Delete the old content.

        :param confirm: the old path, as proof that it is meant
        """
        one = self.recorded()
        if confirm != one.path:
            what = f"give the old path again, {one.path}, to have what was there deleted"
            raise Refusal("relocate_confirm", what)
        stage = self.check(one)
        if reached(stage, RETIRED):
            if not self._differences.check_mode:
                self._leave_disk(one)
            return one
        if stage != FINISHED:
            raise Refusal(one.location, f"its move is {one.stage}, and not finished", "finish it first")
        self._check_settings(one)
        self._check_deletable(one)
        if self._is_predicted(one, RETIRED):
            return one
        if one.here:
            with opened_beneath(one, mount_table.read()) as fd:
                one = self._save(replace(one, doing=RETIRED), "retiring")
                aside.delete(fd, one.identity, self._Watch(self, one))
                if one.disk_at:
                    os.fchmod(fd, 0o755)  # for whoever uses the disk next
            self._step("deleted")
        one = self._reach(one.at(RETIRED), "retired")
        self._leave_disk(one)
        self._progress.end()
        message = f"what was in {one.path} is deleted; {one.to} is in its place"
        events.tell(self._places, object=f"location/{one.location}", reason="Retired", message=message)
        return one

    def _leave_disk(self, one: Relocation) -> None:
        """Let go of an old disk, which is empty."""
        if one.disk_at:
            kept_disk(one.location, one.at_old_path, one.old.filesystem).remove(
                self._tools.units, self._tools.systemctl
            )
            one.at_old_path.leave_disk()

    def _check_deletable(self, one: Relocation) -> None:
        """Refuse unless the old content is what was set aside, nobody uses it, and the new one is in its place."""
        name = aside.name_of(one.identity)
        table = mount_table.read()
        with opened_new(one, table) as new_fd, opened_beneath(one, table) as fd:
            if os.path.samestat(os.fstat(new_fd), os.fstat(fd)):
                raise Refusal(one.location, f"{one.path} and {one.to} are one directory")
            if one.here and one.doing != RETIRED and state_of(fd) != one.aside:
                rule = f"what was in {one.path} was changed since it was set aside, beneath what is mounted there now"
                raise Refusal(one.location, rule, "look at it: somebody still writes there")
            if name not in names_in(fd):
                return  # all of it was deleted when that was cut short
            inner = open_beneath(fd, name)
            present = amount_in(new_fd)
        # With nothing else of it open here, which would be a use.
        try:
            left = amount_in(inner)
            used = self._users_aside(one, inner, os.fsdecode(name), table)
        finally:
            os.close(inner)
        if used:
            rule = f"what was in {one.path} is in use: {used[0]}"
            raise Refusal(one.location, rule, "end that, and retire it again")
        if one.here:
            if one.copy and left.files and not present.files:
                rule = f"{one.to} is empty, and {left}, which were in {one.path}, would be deleted"
                raise Refusal(one.location, rule, "look for the files of the new directory first")
            self._differences.act(f"delete {left} that were in {one.path}; {one.to} holds {present}")

    def _users_aside(self, one: Relocation, fd: int, name: str, table: Sequence[Mount]) -> list[str]:
        device, place = one.at_old_path.beneath(table)
        # It has no path of its own on this host; what is mounted at the old path is another directory.
        subject = Subject(name, fd, device, f"{place}/{name}", (), (f"/{name}",))
        used = self._tools.look([subject])[name]
        if used or is_shared(one.old.filesystem.fstype):
            return used
        open_file = write_leases.open_file(fd)
        return [open_file] if open_file else []

    class _Watch:
        """Sees while it is deleted that the new directory is still what is in use."""

        def __init__(self, moving: Moving, one: Relocation) -> None:
            self._moving, self._one = moving, one
            self._next = 0.0

        def __call__(self, files: int, _directories: int) -> None:
            self._moving._step("deleting")
            if time.monotonic() < self._next:
                return
            self._next = time.monotonic() + _LOOK_AGAIN_S
            table = mount_table.read()
            if not self._one.at_old_path.found(table).bound:
                raise StowageError(f"{self._one.to} is no longer mounted at {self._one.real}; nothing more is deleted")
            with opened_new(self._one, table):
                pass
            self._moving._progress.say(f"{files} files of the old content are deleted")

    def forget(self) -> Relocation:
        """Unmount the new directory from the old path, which nothing names any more."""
        one = self.recorded()
        stage = self.check(one)
        if stage == FORGOTTEN:
            return one
        if stage != RETIRED:
            raise Refusal(one.location, f"its move is {one.stage}", "retire the old content first (relocate_confirm)")
        looked = self.references(one)
        left = looked.named
        if left:
            more = f" (and {len(left) - 3} more)" if len(left) > 3 else ""
            rule = f"{one.path} is still named by {'; '.join(left[:3])}{more}"
            raise Refusal(one.location, rule, "change these to the new path first")
        if looked.unseen:
            self._differences.act(f"not looked at: {'; '.join(looked.unseen)}")
        if self._is_predicted(one, FORGOTTEN):
            return one
        self._uncover_for_good(one)
        self._step("uncovered")
        self._remove_units(one)
        with suppress(FileNotFoundError):
            if one.here and not one.disk_at:
                os.rmdir(one.real)
        backup.remove_all(self._places, one.location)
        return self._reach(one.at(FORGOTTEN, backup=""), "forgotten")

    def _uncover_for_good(self, one: Relocation) -> None:
        while True:
            now = one.at_old_path.found(mount_table.read())
            if not (now.bound or now.closed):
                return
            try:
                unmount(one.real)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                rule = f"somebody has something open by the old path {one.real}"
                raise Refusal(one.location, rule, "see who with fuser -vm, and end that") from error

    def references(self, one: Relocation) -> Looked:
        """Return what still names the old path on this host."""
        ours = [unit.path(self._tools.units) for unit in self._units(one)]
        if not reached(one.stage, FINISHED):
            ours += environment_files(self._places)  # they follow with the settings
        found = references(self._places, one.old_paths, ours)
        locations = layout_record.load(self._places.layout_json)["locations"]
        tops = {str(location["path"]) for location in locations.values()}
        for top in sorted(tops):
            # Once, but for the location whose files are looked into.
            is_state = top == str(locations["state"]["path"])
            if is_state or not any(top != other and is_within(top, other) for other in tops):
                found += named_below(top, one.old_paths, contents=is_state)
        return found
