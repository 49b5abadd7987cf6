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
    """Writes sections, each only when it says something new."""

    def __init__(self, places: Places, say: Callable[[str], None]) -> None:
        self._places = places
        self._say = say
        self._written: dict[str, dict[str, Any]] = {}

    def put(self, name: str, value: Mapping[str, Any]) -> None:
        if self._written.get(name) == value:
            return
        try:
            records.write(path_of(self._places, name), value)
        except OSError as error:
            # /run may be full. Work goes on; the time of the last cycle shows that what is published is old.
            self._say(f"{path_of(self._places, name)}: {error.strerror}; the state shown is old")
            return
        self._written[name] = dict(value)

    def current(self, name: str) -> dict[str, Any] | None:
        """Return what this daemon wrote last, None while it has written nothing."""
        return self._written.get(name)

    def last(self, name: str) -> dict[str, Any] | None:
        """Return what an earlier daemon wrote since the host was started, None when there is nothing to use."""
        try:
            return records.read(path_of(self._places, name))
        except records.RecordError as error:
            self._say(str(error))
            return None
