# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stop of an eviction whose removals did not help: going on would lose more copies for as little.

It is a record, because the next run, or the daemon after a restart, would otherwise begin anew and remove more.
"""

from __future__ import annotations

import os
import time

from . import records
from .data_locations import DataLocation
from .errors import StowageError
from .places import Places
from .sizes import Space

MATERIAL = 0.01
"""The fraction of a disk's space, or inodes, that must have become free for another try."""
UNTIL = "nothing more is evicted until more space is free, evict is changed, or 'stowage evict --go-on' is run"


_NAME = "eviction_stop.json"


def _paths(places: Places) -> tuple[str, str]:
    """Return where the record is: on disk or, where that is full, in memory until the next boot."""
    return os.path.join(places.var, _NAME), os.path.join(places.run, _NAME)


def keep(places: Places, location: DataLocation, why: str, space: Space) -> None:
    """Record that eviction has stopped with this much free."""
    value = {
        "location": location.identity,
        "why": why,
        "avail": space.avail,
        "files_free": space.files_free,
        "time": time.time(),
    }
    durable, volatile = _paths(places)
    try:
        records.write(durable, value)
    except OSError:
        records.write(volatile, value)


def in_force(places: Places, location: DataLocation, space: Space) -> str:
    """Return why eviction has stopped and must not go on with this much free; empty when it may."""
    for path in _paths(places):
        try:
            value = records.read(path)
            if value is None or value["location"] != location.identity:
                continue
            more = space.avail - int(value["avail"]) >= MATERIAL * space.usable > 0
            more_files = space.files_free - int(value["files_free"]) >= MATERIAL * space.files > 0
            if not (more or more_files):
                return str(value["why"])
        except (StowageError, KeyError, TypeError, ValueError) as error:
            what = str(error) if isinstance(error, StowageError) else f"{path}: not the record of a stop ({error!r})"
            return f"stopped: why cannot be read ({what}); {UNTIL}"
    return ""


def lift(places: Places) -> bool:
    """Let eviction go on; return whether it had stopped."""
    lifted = [records.remove(path) for path in _paths(places) if os.path.lexists(path)]
    return any(lifted)
