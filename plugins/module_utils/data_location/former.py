# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data locations that this host had before: those recorded, those found by their marks, those that hold nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import mounts as mount_table
from ..copies.present import names_in
from ..differences import Differences
from ..drives.recorded import Holdings
from ..errors import Refusal
from ..mounts import Mount
from ..owner import read_mark
from ..places import Places
from ..syscalls import DIRECTORY
from . import locations as data_locations
from .locations import CONDEMNED, KIND, DataLocation, NotThere


@dataclass(frozen=True)
class Known:
    """The data locations that are recorded."""

    present: DataLocation | None
    former: Sequence[DataLocation]
    gone: Sequence[DataLocation]
    """What is given up now, because its disk is gone for good."""

    @property
    def all(self) -> list[DataLocation]:
        """Those that are not given up, the present one first."""
        return [*([self.present] if self.present is not None else []), *self.former]


def load_known(places: Places, forget: Sequence[str], mounts: Sequence[Mount], differences: Differences) -> Known:
    """Return what is recorded; those whose identities are in *forget* are given up.

    :raises Refusal: when one of these is there: left in an inventory, it would be given up whenever its disk is away
    """
    present = data_locations.load(places)
    identity = present.identity if present is not None else None
    former = [location for location in data_locations.load_former(places) if location.identity != identity]
    gone = []
    for location in Known(present, former, []).all:
        if location.identity not in forget:
            continue
        try:
            os.close(data_locations.open_verified(location, mounts))
        except NotThere:
            gone.append(location)
        else:
            raise Refusal(
                f"forget: {location.identity}",
                f"the data location {location.path} is there, and would be given up when its disk is away next",
                "take it off the list",
            )
    differences.note("given up", sorted(location.path for location in gone), [])
    return Known(
        present if present not in gone else None, [location for location in former if location not in gone], gone
    )


def find_unrecorded(
    claims: Mapping[str, Mapping[str, Any]], known: Known, host: str, mounts: Sequence[Mount]
) -> list[DataLocation]:
    """Return the data locations among *claims* that are this host's, are there, and are in no record.

    The system was installed anew, or a run was cut short.
    """
    recorded = {location.identity for location in (*known.all, *known.gone)}
    found = []
    for path, claim in claims.items():
        if (claim["kind"], claim["host"]) == (KIND, host) and claim["identity"] not in recorded:
            try:
                fd = os.open(path, DIRECTORY)
            except OSError:
                continue  # its disk is not there; it stays registered
            try:
                mark = read_mark(fd)
                if mark is not None and (mark.kind, mark.host, mark.identity) == (KIND, host, claim["identity"]):
                    filesystem = mount_table.identify(fd, mounts)
                    found.append(DataLocation(path, 0, host, filesystem, mark.identity, left=time.time()))
            finally:
                os.close(fd)
    return found


def sort_former(
    known: Known,
    unrecorded: Sequence[DataLocation],
    wanted: DataLocation,
    mounts: Sequence[Mount],
    warnings: list[str],
) -> tuple[list[DataLocation], list[DataLocation]]:
    """Return the locations that are former ones beside *wanted*: what may hold something, and what holds nothing.

    :param unrecorded: what :func:`find_unrecorded` found
    """
    former = {location.identity: location for location in (*known.former, *unrecorded)}
    if known.present is not None:
        former.setdefault(known.present.identity, replace(known.present, left=time.time()))
    former.pop(wanted.identity, None)  # the present one: chosen again, or mounted in another place
    kept: list[DataLocation] = []
    empty: list[DataLocation] = []
    for location in former.values():
        holdings = data_locations.holdings([location], mounts)
        if not _may_hold(location, holdings, mounts):
            empty.append(location)
            continue
        kept.append(location)
        if holdings.unseen:
            warnings.append(f"former {holdings.unseen[0]}")
        elif holdings.copies:
            warnings.append(
                f"the former data location {location.path} keeps {counted(len(holdings.copies))}:"
                " they are neither moved nor deleted"
            )
        else:
            warnings.append(f"the former data location {location.path} is not empty yet, and is remembered")
    return kept, empty


def _may_hold(location: DataLocation, holdings: Holdings, mounts: Sequence[Mount]) -> bool:
    return bool(holdings.copies or holdings.strangers or holdings.unseen) or is_being_emptied(location, mounts)


def is_being_emptied(location: DataLocation, mounts: Sequence[Mount]) -> bool:
    """Return whether the daemon has yet to empty copies that are gone from *location*.

    :raises NotThere: when it is not there
    """
    fd = data_locations.open_verified(location, mounts)
    try:
        return bool(names_in(fd, CONDEMNED))
    finally:
        os.close(fd)


def write_former(places: Places, former: Sequence[DataLocation], differences: Differences) -> None:
    path = places.former_locations_json
    value = {"locations": [location.to_json() for location in former]}
    if former or os.path.exists(path):
        data_locations.write(path, value, differences)


def counted(number: int) -> str:
    return "1 copy" if number == 1 else f"{number} copies"
