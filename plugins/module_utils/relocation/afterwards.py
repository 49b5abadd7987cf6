# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After the switch of a location: the old content goes, and in the end the old path."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import replace

from .. import events
from .. import mounts as mount_table
from ..errors import Refusal, StowageError
from ..eviction import write_leases
from ..gate import holds
from ..layout import record as layout_record
from ..mounts import Mount, is_shared
from ..paths import is_within
from ..sizes import decimal
from ..syscalls import open_beneath, unmount
from ..use.look import Subject
from . import aside, backup, signs
from .comparison import state_of
from .content import amount_in, names_in
from .directories import opened_beneath, opened_new
from .old_path import kept_disk
from .recorded import Relocation
from .references import Looked, environment_files, named_below, references
from .stages import FINISHED, FORGOTTEN, RETIRED, SWITCHED, reached
from .work import Work

_LOOK_AGAIN_S = 2.0


class Afterwards(Work):
    """Sets the old content aside, deletes it, and forgets the old path."""

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
        now = state_of(fd, aside=os.fsdecode(signs.moved(one.identity)))
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
                aside.delete(fd, one.identity, self._Watch(self, one), is_shared(one.old.filesystem.fstype))
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
        name = signs.moved(one.identity)
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

        def __init__(self, moving: Afterwards, one: Relocation) -> None:
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
        one = self._save(replace(one, doing=FORGOTTEN), "forgetting")
        self._uncover_for_good(one)
        self._step("uncovered")
        self._remove_units(one)
        self._step("not kept")
        if one.here and not one.disk_at:
            aside.leave(one.real, one.identity)
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
                if now.bound:
                    self._save(replace(one, doing=""))  # or nobody would be told when it is gone some day
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
