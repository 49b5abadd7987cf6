# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data locations that this host had before: those recorded, those found by their marks, those that hold nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from . import data_locations, records
from . import mounts as mount_table
from .copies import names_in
from .data_location_place import is_local
from .data_locations import CONDEMNED, KIND, DataLocation, NotThere
from .differences import Differences
from .drive_records import Holdings
from .mounts import Mount
from .owner import Mark, Registry, find_marks
from .paths import is_within
from .places import Places
from .syscalls import DIRECTORY


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


def load_known(
    places: Places, forget: Sequence[str], mounts: Sequence[Mount], differences: Differences, warnings: list[str]
) -> Known:
    """Return what is recorded; of those whose identities are in *forget*, what cannot be reached is given up."""
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
            warnings.append(f"forget: the data location {location.path} is there, and is kept")
    differences.note("given up", sorted(location.path for location in gone), [])
    return Known(
        present if present not in gone else None, [location for location in former if location not in gone], gone
    )


def find_lost(places: Places, host: str, mounts: Sequence[Mount]) -> dict[str, Mark]:
    """Return the marks of this host, by path, when their registry is lost: the system was installed anew."""
    if not Registry(places).is_lost():
        return {}
    whole = [one for one in mounts if is_local(one) and os.path.isdir(one.point) and not _is_part(one, mounts)]
    found: dict[tuple[str | None, int], tuple[str, Mark]] = {}
    for path, mark in find_marks(whole).items():
        if mark.host == host:
            found.setdefault((mark.filesystem_uuid, mark.inode), (path, mark))
    return dict(found.values())


def _is_part(mount: Mount, mounts: Sequence[Mount]) -> bool:
    """Return whether *mount* shows only a part of what another mount shows: a bind mount, such as a worker's."""
    return any(
        other.device == mount.device and other.root != mount.root and is_within(mount.root, other.root)
        for other in mounts
    )


def sort_former(
    known: Known, lost: Mapping[str, Mark], wanted: DataLocation, mounts: Sequence[Mount], warnings: list[str]
) -> tuple[list[DataLocation], list[DataLocation]]:
    """Return the locations that are former ones beside *wanted*: what may hold something, and what holds nothing.

    :param lost: the marks of this host that no record names
    """
    former = {location.identity: location for location in known.former}
    for path, mark in lost.items():
        if mark.kind == KIND:
            former.setdefault(mark.identity, _found(path, mark, mounts))
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


def _found(path: str, mark: Mark, mounts: Sequence[Mount]) -> DataLocation:
    """Return the data location of this host that was found by its mark alone."""
    fd = os.open(path, DIRECTORY)
    try:
        return DataLocation(path, 0, mark.host, mount_table.identify(fd, mounts), mark.identity, left=time.time())
    finally:
        os.close(fd)


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
    value = {"locations": [location.to_json() for location in former]}
    if (former or os.path.exists(places.former_locations_json)) and records.write(places.former_locations_json, value):
        differences.act(f"remembered {len(former)} former data locations in {places.former_locations_json}")


def counted(number: int) -> str:
    return "1 copy" if number == 1 else f"{number} copies"
