# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What all stages of moving a location have in common: the record, the mounts, and the units that keep the old path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import mounts as mount_table
from ..differences import Differences
from ..errors import Refusal, printable
from ..gate import holds
from ..places import Places
from ..services.systemd_units import RunCommand, Systemctl
from ..use.child import nothing
from ..use.look import InUse, in_use
from . import recorded
from .old_path import UNITS, KeptMount, kept_disk, kept_path
from .progress import Progress
from .recorded import Relocation
from .stages import FOREIGN, LOST, WITH_UNITS, amiss

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
    "forgetting",
    "uncovered",
    "not kept",
    "forgotten",
)
"""What happens, in its order."""
BACK = ("undoing", "not kept", "switched back", "undone", "opened", "lifted", "given up")
"""What happens when it is given up or undone."""


@dataclass(frozen=True)
class Tools:
    """What it is done with."""

    run_command: RunCommand
    systemctl: Systemctl
    rsync: str | None
    """The program; None when the host has none."""
    units: str = UNITS
    look: InUse = in_use


class Work:
    """One location on one host, and what its move is done with.

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
        return one.standing(mount_table.read())

    def check(self, one: Relocation) -> str:
        """Return the last stage that is reached; refuse a host that is not as the move has left it."""
        stage = self.standing(one)
        rule = amiss(stage, one.to, one.real)
        if stage == LOST:
            raise Refusal(self._location, rule, f"mount it (systemctl start {self._kept(one).name})")
        if stage == FOREIGN:
            ours = "a unit of the move does it: give the move up (relocate_give_up=true)"
            raise Refusal(self._location, rule, ours if self._has_units(one) else f"unmount {one.real}")
        return stage

    def _kept(self, one: Relocation) -> KeptMount:
        return kept_path(one.location, one.at_old_path, mount_table.read())

    def _units(self, one: Relocation) -> list[KeptMount]:
        """Return the mount units of the move, in the order in which they are to be there."""
        disk = [kept_disk(one.location, one.at_old_path, one.old.filesystem)] if one.disk_at else []
        return [*disk, self._kept(one)]

    def _has_units(self, one: Relocation) -> bool:
        return any(unit.is_there(self._tools.units) for unit in self._units(one))

    def _remove_units(self, one: Relocation) -> None:
        for unit in reversed(self._units(one)):
            unit.remove(self._tools.units, self._tools.systemctl)

    def _save(self, one: Relocation, step: str = "") -> Relocation:
        if one.stage not in WITH_UNITS:
            # First, and whatever it comes from: a boot must not switch to what is copied to, or compared.
            self._remove_units(one)
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
