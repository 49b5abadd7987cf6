# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moving a location until the switch: what fails is given up, and the location is in use as before."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from .. import mounts as mount_table
from ..errors import PartlyFailed, Refusal, StowageError, one_line, printable
from ..locks import host_lock
from . import backup, copying, recorded, signs, staging
from .comparison import Compared, compare, state_of
from .content import names_in
from .directories import opened_new, opened_old
from .plan import survey
from .recorded import Relocation
from .stages import CLOSED, COPIED, GIVEN_UP, HELD, SWITCHED, UNDER_WAY, UNDONE, VERIFIED, reached
from .switching import Switching
from .users import users_of, wait_until_unused

_ATTEMPTS = 3
_LOOK_AGAIN_S = 2.0
_Value = TypeVar("_Value")


class UntilTheSwitch(Switching):
    """Keeps users out, copies, and compares."""

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
        if one.doing == SWITCHED:
            self._follow_back(one)  # it was cut short, and a boot has taken away what was mounted
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
        with opened_old(one, mount_table.read()) as fd:
            if one.here:
                # Again: what was in the way of copying may have come while its users were waited for.
                content = survey(one.location, fd)
                one = replace(one, bytes=content.bytes if one.copy else 0)
            one = self._with_names_of_its_own(one, fd)
        name = f"{one.location}-{one.identity}{backup.ENDING}"
        archive = os.path.join(self._places.relocations_dir, name)
        backup.back_up(self._places, archive)
        return self._reach(one.at(CLOSED, backup=archive), "closed")

    def _with_names_of_its_own(self, one: Relocation, fd: int) -> Relocation:
        """Return the move with names that nobody has in the location, open at *fd*, to which nobody writes any more.

        Until now they were in a record that everybody reads, and whoever writes to the location could make one of them.
        """
        there = names_in(fd)
        taken = [name for name in (signs.moved(one.identity), signs.copy(one.identity)) if name in there]
        if not taken:
            return one
        if one.began:
            rule = f"{printable(taken[0])} in {one.path} has a name that the move needs"
            raise Refusal(one.location, rule, "move it away, and call again")
        return replace(one, identity=secrets.token_hex(8))

    def _check_copyable(self, one: Relocation, fd: int) -> None:
        """Refuse a new directory, open at *fd*, in which there may be anything that copying again would delete."""
        names = names_in(fd)
        if not names or not one.began:
            return
        if one.copied is not None:
            # Wherever it is: on the way out of where it was copied, or back into that.
            if state_of(fd, itself=False, aside=staging.place_of(one.identity)).kept != one.copied.kept:
                raise self._changed(one, fd)
            return
        others = [name for name in names if name != signs.copy(one.identity)]
        if others or not staging.is_roots_only(fd):
            raise self._changed(one, fd, *others[:1])

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
                one = self._save(replace(one, began=True, copied=None))
            elif not staging.is_roots_only(new_fd):
                staging.close_up(new_fd)  # it was opened up for the switch
                self._check_copyable(one, new_fd)
            if not one.copy:
                was, empty = state_of(old_fd), state_of(new_fd, itself=False)
                return self._reach(one.at(VERIFIED, was=was, copied=empty), "compared")
            one = self._save(replace(one, stage=CLOSED, doing=COPIED))
            with staging.staged(new_fd, one.identity) as content_fd:
                one, found = self._copied(one, old_fd, content_fd)
                # Now, so that it is known again when it is cut short on its way to its place.
                one = self._save(replace(one, copied=state_of(content_fd, itself=False)))
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
            one = self._save(replace(one, stage=CLOSED, doing=COPIED, copied=None))
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
