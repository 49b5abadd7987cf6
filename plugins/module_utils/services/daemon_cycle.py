# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the daemon is at work: it runs, and writes its state at the end of each cycle."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from .. import records
from ..locks import is_held
from ..places import Places

STALE_CYCLES = 3
"""After how many cycles without one the daemon counts as stopped."""


def is_stale(cycle: Mapping[str, Any] | None, now: float) -> bool:
    """Return whether the daemon has stopped looking at the host."""
    return cycle is None or float(now - cycle["time"]) > STALE_CYCLES * cycle["cycle_s"]


def is_at_work(places: Places) -> bool:
    """Return whether it runs, and its last cycle was just now; what cannot be read is no sign of it."""
    try:
        cycle = records.read(os.path.join(places.state_dir, "cycle.json"))
        return is_held(places.daemon_lock) and not is_stale(cycle, time.time())
    except (records.RecordError, OSError, LookupError, TypeError):
        return False
