# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fills of this host as their records tell: which are under way, which have failed, what they are going to take."""

from __future__ import annotations

from typing import Any, Callable

from stowage_core.copies import fills
from stowage_core.copies.fills import Record
from stowage_core.data_location.locations import DataLocation
from stowage_core.drives.declared import split_copy_name
from stowage_core.errors import StowageError, one_line
from stowage_core.places import Places

from .declared import Declared


class Fillings:
    """Looks at the records under /run/stowage/fills."""

    def __init__(self, places: Places, say: Callable[[str], None]) -> None:
        self._places = places
        self._say = say
        self._records: list[Record] = []
        self._unreadable = ""

    def look(self) -> None:
        """Read all records; while one cannot be read, what was known before stays."""
        try:
            self._records = fills.load_all(self._places)
            unreadable = ""
        except StowageError as error:
            unreadable = str(error)
        except OSError as error:
            unreadable = one_line(error)
        if unreadable and unreadable != self._unreadable:
            self._say(unreadable)
        self._unreadable = unreadable

    def reserved_bytes(self, location: DataLocation) -> int:
        """Return what the fills under way are still going to write in a data location."""
        return sum(one.reserved_bytes for one in self._records if one.location == location.identity)

    def shown(self, declared: Declared) -> dict[str, Any]:
        """Return the fills of drives that are declared now."""
        known = {(drive.copy_name, drive.identity) for drive in declared.drives if drive.fill is not None}
        shown = []
        for one in self._records:
            if (one.copy, one.identity) in known and (one.at_work or one.state == fills.FAILED):
                workspace, drive = split_copy_name(one.copy)
                shown.append(
                    {
                        "workspace": workspace,
                        "drive": drive,
                        "state": one.state,
                        "since": one.since,
                        "failures": one.failures,
                        "message": one.message,
                        "written_bytes": one.written_bytes,
                        "reserved_bytes": one.reserved_bytes,
                    }
                )
        return {"fills": shown}
