# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the daemon knows, one file a section under /run/stowage/state, for the exporter and for ``stowage status``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Callable

from stowage_core import records
from stowage_core.places import Places

NAMES = (
    "cycle",
    "gate",
    "filesystems",
    "measuring",
    "locations",
    "accounts",
    "drives",
    "network_mounts",
    "tiers",
    "tier_evictions",
    "volumes",
    "copies",
    "evictions",
    "fills",
    "leases",
    "config",
)


def path_of(places: Places, name: str) -> str:
    return os.path.join(places.state_dir, f"{name}.json")


class Sections:
    """Keeps sections, and writes each when it says something new."""

    def __init__(self, places: Places, say: Callable[[str], None]) -> None:
        self._places = places
        self._say = say
        self._current: dict[str, dict[str, Any]] = {}
        self._unwritten: dict[str, str] = {}
        """Why what is current of a section could not be written."""

    def put(self, name: str, value: Mapping[str, Any]) -> None:
        """Take on what a section says now, and write it."""
        if self._current.get(name) == value and name not in self._unwritten:
            return
        self._current[name] = dict(value)
        path = path_of(self._places, name)
        try:
            records.write(path, value)
        except OSError as error:
            # /run may be full: work goes on by what is known.
            if self._unwritten.get(name) != error.strerror:
                self._say(f"{path}: {error.strerror}; what it says is old")
            self._unwritten[name] = str(error.strerror)
        else:
            self._unwritten.pop(name, None)

    def all_written(self, but: str) -> bool:
        """Return whether others can read everything that is current, *but* one section."""
        return self._unwritten.keys() <= {but}

    def current(self, name: str) -> dict[str, Any] | None:
        """Return what this daemon told last, also when it could not be written; None while it has told nothing."""
        return self._current.get(name)

    def last(self, name: str) -> dict[str, Any] | None:
        """Return what an earlier daemon wrote since the host was started, None when there is nothing to use."""
        try:
            return records.read(path_of(self._places, name))
        except records.RecordError as error:
            self._say(str(error))
            return None
