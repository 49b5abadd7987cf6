# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units that wait for a restart, kept until each is done or a reboot has started them anew."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .. import records
from ..places import Places


class Restarts:
    """The units to restart after the file at *path* has changed."""

    def __init__(self, host: Places, path: str) -> None:
        self._record = os.path.join(host.run, "restarts.json")
        self._path = path
        self._all = records.read(self._record) or {}

    def due(self, units: Mapping[str, bool], changed: bool) -> list[str]:
        """Return those of *units* that read what has changed now, or in a run that failed before it restarted them.

        :param units: whether each is active
        """
        left = self._all.get(self._path, [])
        return [unit for unit, active in units.items() if (changed and active) or unit in left]

    def keep(self, units: Sequence[str]) -> None:
        """Remember *units* as those that are still to be restarted."""
        rest = {path: waiting for path, waiting in self._all.items() if path != self._path}
        if units:
            rest[self._path] = list(units)
        if rest:
            records.write(self._record, rest)
        else:
            records.remove(self._record)
