# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network mounts of this host: their records, their units, and how they are unmounted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from .. import mounts as mount_table
from .. import own_files
from ..answers import Tell, answering, each_in_child
from ..differences import Differences
from ..errors import Refusal, one_line
from ..places import Places
from ..services.systemd_units import RunCommand, Systemctl, mount_unit
from ..syscalls import unmount_forced
from . import at_boot, mount_units, records
from .asked import Key, record_of
from .mount_units import MountUnit
from .records import BOUND, RELEASING, MountRecord

_FORCED_S = 5.0
"""The longest that unmounting by force is waited for."""


@dataclass
class Client:
    """One call: the network mounts of this host as they are recorded, and as this call leaves them."""

    places: Places
    systemctl: Systemctl
    run_command: RunCommand
    journalctl: str
    differences: Differences
    known: dict[Key, MountRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = {one.key: one for one in records.load_mounts(self.places)}
        self._before, self._recorded = dict(self.known), dict(self.known)
        own_files.read_ours(at_boot.path())  # refuses somebody else's before anything is changed

    def adopt(self) -> None:
        """Know what our own units tell of and no record does, because it was lost."""
        for path in mount_units.files(self.places):
            try:
                found = own_files.read_ours(path)
            except Refusal:
                continue  # somebody else's
            unit = mount_units.parse(found[0]) if found is not None else None
            record = record_of(unit, self.places) if unit is not None else None
            if record is not None and mount_units.unit_path(record.path) == path:
                self.known.setdefault(record.key, record)

    # -- Records

    def write(self, changed: Iterable[MountRecord]) -> None:
        """Record what has become of some: each since when it is so, as far as it was so before this call."""
        self.known.update({one.key: one.since(self._before.get(one.key)) for one in changed})
        if not self.differences.check_mode and self.known != self._recorded:
            records.write_mounts(self.places, self.known.values())
            self._recorded = dict(self.known)

    # -- Units

    def keep_unit(self, unit: MountUnit, reload: bool = True) -> None:
        """Have the unit as it should be."""
        if own_files.keep("unit", unit.path, unit.content, self.differences) and reload:
            self.differences.do("systemctl daemon-reload", self.systemctl.daemon_reload)

    def remove_unit(self, path: str, reload: bool = True) -> bool:
        """Remove the unit at *path* if it is ours, and return whether there was one."""
        removed = own_files.keep("unit", path, None, self.differences)
        if removed and reload and not self.differences.check_mode:
            self.systemctl.daemon_reload()
        return removed

    def keep_at_boot(self) -> None:
        """Have mounted at every boot what is mounted now."""
        lasting = [one for one in self.known.values() if one.state in (BOUND, RELEASING)]
        at_boot.keep([mount_unit(one.path) for one in lasting], self.systemctl, self.differences)

    # -- Unmounting

    def unmount(self, points: Sequence[str]) -> dict[str, str]:
        """Unmount what is at *points*, all at once, by force what does not answer: who waits for it then gets an error.

        Return why something is left, by its mount point.
        """
        if not points:
            return {}
        # Not by systemd what hangs: umount(8) would wait for the server until it is killed, a minute later.
        left = _forced(set(points) - answering(points))
        stopped = [mount_unit(point) for point in points if point not in left]
        if stopped:
            self.run_command(["systemctl", "stop", "--", *stopped])
        table = mount_table.read()
        remaining = [point for point in points if point not in left and mount_units.at(point, table)]
        left.update(_forced(set(remaining) - answering(remaining)))
        table = mount_table.read()
        for point in remaining:
            if point not in left and mount_units.at(point, table):
                left[point] = f"{point} cannot be unmounted: something uses it; see fuser -vm {point}"
        return left


def _forced(points: Iterable[str]) -> dict[str, str]:
    """Unmount by force, and return what went wrong, by mount point."""
    told = each_in_child({point: partial(_force, point) for point in points}, _FORCED_S)
    # The last of a server is gone at once, but who unmounted it goes on taking leave of the server, for a minute.
    failed = {point: said[0] for point, said in told.items() if said is not None and said[0]}
    return {point: f"{point} cannot be unmounted: {why}" for point, why in failed.items()}


def _force(point: str, tell: Tell) -> None:
    try:
        unmount_forced(point)
    except OSError as error:
        tell(one_line(error))
    else:
        tell("")
