# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which mounts a host is to have at every start: those of /etc/fstab and of systemd's mount and automount units.

An existing directory proves nothing: where one of these mounts is missing, what is there is only the place for it.
Units are looked up as files, in the directories where systemd looks (systemd.unit(5)), because whoever needs the rule
may run no program. What a mount is called by systemd is told by its path, so that nothing has to be searched.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import Refusal, printable
from ..mounts import Mount, table_lines, unescaped
from .systemd_units import escape_path

FSTAB = "/etc/fstab"
_DISTRIBUTION = ("/usr/lib/systemd/system", "/lib/systemd/system")
"""Units here are mostly of the kernel's own filesystems; one is to be mounted only where something wants it."""
UNITS = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    *_DISTRIBUTION,
    "/run/systemd/generator.late",
)
"""Where systemd looks for units, in its order, but for transient ones: these are gone with the next start."""


class LastingMount(NamedTuple):
    """A mount that a host is to have, mounted or not."""

    point: str
    unit: str
    """What mounts it; empty for a line of /etc/fstab."""

    @property
    def missing(self) -> str:
        """What is wrong when nothing is mounted there."""
        if self.unit:
            return f"{printable(self.point)} is to be mounted by {self.unit} and is not"
        return f"{printable(self.point)} is in {FSTAB} and is not mounted"

    @property
    def remedy(self) -> str:
        return f"mount it (systemctl start {self.unit})" if self.unit else "mount it"


@dataclass(frozen=True)
class LastingMounts:
    """What a host says of them."""

    fstab: bytes
    directories: Sequence[str] = UNITS
    distribution: Sequence[str] = _DISTRIBUTION
    _found: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The units that were looked for."""

    @classmethod
    def read(cls) -> LastingMounts:
        try:
            with open(FSTAB, "rb") as stream:
                return cls(stream.read())
        except FileNotFoundError:
            return cls(b"")

    def above(self, path: str) -> list[LastingMount]:
        """Return those at the resolved *path* and above it but the root, the deepest first."""
        in_fstab = _points(self.fstab)
        found = []
        point = path
        while point != "/":
            units = [f"{escape_path(point)}.{kind}" for kind in ("mount", "automount")]
            units = [unit for unit in units if self._has(unit)]
            if units or point in in_fstab:
                found.append(LastingMount(point, "" if point in in_fstab else units[0]))
            point = os.path.dirname(point)
        return found

    def missing(self, path: str, mounts: Sequence[Mount]) -> list[LastingMount]:
        """Return those at the resolved *path* and above it where nothing is mounted, the outermost first.

        An automount that waits for somebody to look is not mounted.
        """
        mounted = {mount.point: mount.fstype for mount in mounts}
        return [one for one in reversed(self.above(path)) if mounted.get(one.point, "autofs") == "autofs"]

    def check(self, name: str, path: str, mounts: Sequence[Mount]) -> None:
        """Refuse the resolved *path* while a mount that it is to be on is missing."""
        for one in self.missing(path, mounts):
            remedy = f"{one.remedy}; when its disk is gone for good, take that out"
            raise Refusal(name, one.missing, remedy)

    def _has(self, unit: str) -> bool:
        if unit not in self._found:
            self._found[unit] = self._looked_for(unit)
        return self._found[unit]

    def _looked_for(self, unit: str) -> bool:
        """Return whether there is such a unit, and nobody has masked it."""
        for directory in self.directories:
            path = os.path.join(directory, unit)
            try:
                masked = os.path.realpath(path) == os.devnull or not os.stat(path).st_size
            except OSError:
                continue
            return not masked and (directory not in self.distribution or self._is_wanted(unit))
        return False

    def _is_wanted(self, unit: str) -> bool:
        links = (f"{directory}/*.{kind}" for directory in self.directories for kind in ("wants", "requires"))
        return any(os.path.lexists(os.path.join(found, unit)) for link in links for found in glob.iglob(link))


def _points(fstab: bytes) -> set[str]:
    """Return the mount points in *fstab*."""
    lines = [line.split() for line in table_lines(fstab) if not line.lstrip().startswith(b"#")]
    return {unescaped(fields[1]).rstrip("/") for fields in lines if len(fields) >= 3 and fields[1].startswith(b"/")}
