# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The switch of a location to its new directory, and the way back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from .. import events
from .. import mounts as mount_table
from ..errors import Refusal, StowageError, one_line, printable
from ..gate import holds
from ..locks import runs_lock
from ..runs import stamps
from ..syscalls import bind_mount
from . import aside, recorded, staging
from .comparison import changed_last, state_of
from .directories import opened_beneath, opened_new, opened_old
from .recorded import Relocation
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
    UNDONE,
    VERIFIED,
    Found,
    reached,
    standing,
)
from .work import Work


class Switching(Work):
    """Mounts the new directory at the old path, and takes it away again."""

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
            if state_of(fd, itself=False) != one.copied:
                raise self._changed(one, fd)

    def _check_closed(self, one: Relocation) -> None:
        """Refuse when anybody could have written to the old directory since it was closed."""
        now = one.at_old_path.found(mount_table.read())
        ways = [] if now.closed else [f"{one.real} is no longer mounted read-only over itself"]
        ways += self._writable(one)
        if ways:
            raise Refusal(one.location, ways[0], "run stowage.host.relocate again")

    def _writable(self, one: Relocation) -> list[str]:
        return one.at_old_path.writable_ways(mount_table.read())

    def _changed(self, one: Relocation, fd: int, name: bytes = b"") -> Refusal:
        """Return what refuses a new directory, open at *fd*, that is not as it was left.

        :param name: of what is in it and was not copied, where that is known
        """
        if name:
            what = f"{printable(name)} in it is not of the copy"
        else:
            what = f"at last {changed_last(fd, staging.place_of(one.identity)) or 'something that is gone'}"
        rule = f"{one.to} was changed by somebody since it was copied: {what}"
        return Refusal(one.location, rule, "look at both, and empty it to have it copied again")

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
        stage = self._with_strays_gone(one)
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
        self._sign(one)
        return self._reach(one.at(UNDONE), "undone")

    def _with_strays_gone(self, one: Relocation) -> str:
        """Return the last stage that is reached, without what a unit of the move has mounted when it was not to."""
        stage = self.standing(one)
        if stage != FOREIGN or not self._has_units(one):
            return self.check(one) if stage == FOREIGN else stage
        if self._differences.check_mode:
            return standing(one.stage, one.doing, Found())
        self._differences.act(f"unmount {one.to} from {one.real}")
        one.at_old_path.uncover()
        # Second: when this is cut short the mount still is, or becomes again, one of a unit of the move.
        self._remove_units(one)
        return self.standing(one)

    def _check_old_there(self, one: Relocation) -> None:
        """Refuse when what would be gone back to is not the old directory, with its content."""
        with self._opened_old(one) as fd:
            # Of what is this host's to set aside it goes by its own record.
            if not one.here and aside.is_done(fd):
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
        self._follow_back(one)

    def _follow_back(self, one: Relocation) -> None:
        if one.location != "runs":
            return
        table = mount_table.read()
        with opened_old(one, table) as old_fd:
            try:
                with opened_new(one, table) as new_fd:
                    self._follow(one, new_fd, old_fd)
            except (Refusal, OSError) as error:
                # As when the new disk is dead: that must not keep anybody from the old one.
                message = f"the teams of runs are those of the new directory: {one_line(error)}; see {one.backup}"
                events.tell(self._places, object=f"location/{one.location}", reason="TeamsNotKept", message=message)

    def _sign(self, one: Relocation) -> None:
        """Have a layout refused that would begin with the copy, which is left as it is."""
        if not one.here or not one.began:
            return
        try:
            with opened_new(one, mount_table.read()) as fd:
                staging.sign(fd, one.identity)
        except (Refusal, OSError) as error:
            # As when the new disk is dead: that must not keep anybody from the old one.
            message = f"nothing will keep a layout from {one.to}, which holds the copy: {one_line(error)}"
            events.tell(self._places, object=f"location/{one.location}", reason="CopyNotMarked", message=message)

    def _check_put_back(self, one: Relocation) -> None:
        """Refuse to have jobs begin before the host that has set a part of the old content aside has put it back."""
        with self._opened_old(one) as fd:
            if not one.here and aside.is_begun(fd):
                rule = f"a part of what was in {one.path} is set aside by a host that shares it"
                raise Refusal(one.location, rule, "give the move up on that host first")

    def give_up(self) -> Relocation | None:
        """Go on as before the move, which is not switched, or switched back."""
        one = recorded.load(self._places, self._location)
        if one is None:
            return None
        stage = self._with_strays_gone(one)
        if stage in (SWITCHED, LOST) or one.stage in (FINISHED, RETIRED, FORGOTTEN):
            rule = f"it was moved to {one.to}, which is in use"
            raise Refusal(one.location, rule, "undo that first" if stage == SWITCHED else "move it again")
        over = one.stage in (UNDONE, GIVEN_UP)
        if (not over and self._is_predicted(one, GIVEN_UP)) or self._differences.check_mode:
            return one
        self._remove_units(one)
        if not over or one.hold in holds.load(self._places):
            self._back(one)
            self._check_put_back(one)
            self._step("opened")
        holds.lift(self._places, one.hold)
        self._step("lifted")
        self._progress.end()
        if not over:
            self._sign(one)
        return one if over else self._reach(one.at(GIVEN_UP), "given up")
