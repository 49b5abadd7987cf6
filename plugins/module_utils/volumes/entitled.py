# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a host's volumes a run may read: by whose run it is alone, whatever it asks for. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .declared import Grant


class Whose(NamedTuple):
    """Whose run it is."""

    run: str
    """``user/experiment/run_id``."""
    user: str
    team: str
    """The team that it was stamped with when it was made; empty for none."""
    owner: int = 0
    """The number of the user whose its directory is, who alone reaches beside root what is mounted for it."""

    @property
    def described(self) -> str:
        return f"run {self.run} of user {self.user}, " + (f"team {self.team}" if self.team else "no team")


class Entitlement(NamedTuple):
    """A part of a volume that a run may read."""

    volume: str
    sub_path: str
    """Below the volume; empty for all of it."""


def is_granted(grant: Grant, whose: Whose) -> bool:
    """Return whether a grant is for a run: as such, by its user, or by its team."""
    of_team = bool(whose.team) and whose.team in grant.teams
    return whose.run in grant.runs or whose.user in grant.users or of_team


def entitled(grants: Mapping[str, Iterable[Grant]], whose: Whose) -> list[Entitlement]:
    """Return what a run may read, by volume and then by folder; of what lies in each other the outer one only.

    :param grants: those of each volume, by its name
    """
    return [
        Entitlement(volume, sub_path)
        for volume, its in sorted(grants.items())
        for sub_path in outermost(grant.sub_path for grant in its if is_granted(grant, whose))
    ]


def outermost(sub_paths: Iterable[str]) -> list[str]:
    """Return those of *sub_paths* that lie in no other, each once."""
    found: list[str] = []
    for path in sorted(set(sub_paths), key=lambda path: (path.count("/"), path)):
        if not any(covers(outer, path) for outer in found):
            found.append(path)
    return sorted(found)


def covers(outer: str, inner: str) -> bool:
    """Return whether the folder *inner* of a volume is *outer* or lies in it."""
    return not outer or inner == outer or inner.startswith(outer + "/")


def is_covered(entitlements: Sequence[Entitlement], volume: str, sub_path: str) -> bool:
    """Return whether what a run may read holds a folder of a volume."""
    return any(one.volume == volume and covers(one.sub_path, sub_path) for one in entitlements)
