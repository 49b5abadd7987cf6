# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stop of an eviction whose removals did not help: going on would lose more copies for as little.

That little became free may also be because a neighbor wrote as fast meanwhile, which nothing tells apart for sure. So
after a pause one more copy is tried, alone, which takes short; only when that has failed several times in a row the
operator is asked. The stop is a record, because the next run, or the daemon after a restart, would otherwise begin anew
and remove more.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from .. import records
from ..data_location.locations import DataLocation
from ..errors import StowageError
from ..places import Places
from ..sizes import Space
from .plan import duration

MATERIAL = 0.01
"""The fraction of a disk's space, or inodes, that must have become free for another try."""
STOPPED = "stopped: "
"""How each reason begins."""
PAUSES_S = (600.0, 3600.0, 6 * 3600.0)
"""How long nothing is tried after the first, the second, … try in a row that did not help."""
UNTIL = "more space is free, evict is changed, or 'stowage evict --go-on' is run"

_NAME = "eviction_stop.json"


def _paths(places: Places) -> tuple[str, str]:
    """Return where the record is: on disk or, where that is full, in memory until the next boot."""
    return os.path.join(places.var, _NAME), os.path.join(places.run, _NAME)


def keep(places: Places, location: DataLocation, why: str, space: Space, tries: int = 1) -> str:
    """Record that eviction has stopped with this much free; return why, and until when.

    :param tries: how many tries in a row did not help
    """
    if tries <= len(PAUSES_S):
        until = f"one more copy is tried in {duration(PAUSES_S[tries - 1])}, and eviction goes on at once when {UNTIL}"
    else:
        until = f"nothing more is evicted until {UNTIL}"
    value = {
        "location": location.identity,
        "why": f"{STOPPED}{why}; {until}",
        "avail": space.avail,
        "files_free": space.files_free,
        "time": time.time(),
        "tries": tries,
    }
    durable, volatile = _paths(places)
    try:
        records.write(durable, value)
    except OSError:
        records.write(volatile, value)
    return str(value["why"])


class Stop(NamedTuple):
    """What the tries so far have shown."""

    tries: int = 0
    """How many in a row did not help; while there are any, one copy is tried at a time."""
    why: str = ""
    """Why nothing may be tried now; empty when one more try may be made."""


def in_force(places: Places, location: DataLocation, space: Space, now: float | None = None) -> Stop:
    """Return the stop that is in force with this much free."""
    now = time.time() if now is None else now
    for path in _paths(places):
        try:
            value = records.read(path)
            if value is None or value["location"] != location.identity:
                continue
            more = space.avail - int(value["avail"]) >= MATERIAL * space.usable > 0
            more_files = space.files_free - int(value["files_free"]) >= MATERIAL * space.files > 0
            if not (more or more_files):
                tries = int(value["tries"])
                over = tries <= len(PAUSES_S) and now - float(value["time"]) >= PAUSES_S[tries - 1]
                return Stop(tries, "" if over else str(value["why"]))
        except (StowageError, KeyError, IndexError, TypeError, ValueError) as error:
            what = str(error) if isinstance(error, StowageError) else f"{path}: not the record of a stop ({error!r})"
            return Stop(len(PAUSES_S), f"{STOPPED}why cannot be read ({what}); nothing more is evicted until {UNTIL}")
    return Stop()


def lift(places: Places) -> bool:
    """Let eviction go on; return whether it had stopped."""
    lifted = [records.remove(path) for path in _paths(places) if os.path.lexists(path)]
    return any(lifted)
