# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate as the daemon last judged it. A judgement that is too old, or of a daemon that has ended, is a hold."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .. import records
from ..errors import StowageError, one_line, printable
from ..locks import is_held
from ..places import Places
from ..spans import lasting
from . import holds
from .judgement import HELD, STALE, Elsewhere, Hold

FRESH_S = 60.0
"""A judgement is good for this long, or for three cycles where these take longer."""
_CYCLES = 3
_REMEDY = "systemctl status stowaged"
POLL_S = 1.0


@dataclass(frozen=True)
class Gate:
    """What holds jobs on this host."""

    holds: tuple[Hold, ...]
    judged: float | None = None
    """When the daemon judged last, None when it has not since the host was started."""
    watermark_pct: float | None = None
    stale: bool = False
    elsewhere: Elsewhere = field(default_factory=Elsewhere)

    def holding(self, user: str = "", team: str = "") -> list[Hold]:
        """Return what holds a job of *user*, which is *team*'s; without them, what holds everybody's."""
        found = [hold for hold in self.holds if hold.concerns(user, team)]
        return found + self.elsewhere.holds(user, team)

    def unknown(self, user: str = "", team: str = "") -> list[str]:
        """Return in words what is not known of a job of *user*, which is *team*'s, on this host."""
        return [hold.text for hold in self.elsewhere.unknown(user, team)]

    def to_json(self, user: str = "", team: str = "") -> dict[str, Any]:
        """Return the answer to whoever asks for a job of *user*, which is *team*'s."""
        found = self.holding(user, team)
        return {
            "open": not found,
            "holds": [hold.to_json() for hold in found],
            "unknown": self.unknown(user, team),
            "judged": self.judged,
            "stale": self.stale,
            "watermark_pct": self.watermark_pct,
        }


def as_of(section: Mapping[str, Any] | None, now: float) -> Gate:
    """Return the gate by the daemon's section, at a time.

    :raises LookupError, TypeError, ValueError, AttributeError: when it is of another version
    """
    if section is None:
        return _stale("the daemon has not judged since this host was started")
    judged = float(section["time"])
    gate = Gate(
        tuple(records.typed(Hold, one) for one in section["holds"]),
        judged,
        float(section["watermark_pct"]),
        elsewhere=Elsewhere.from_json(section["elsewhere"]),
    )
    age = abs(now - judged)  # one of a time that is to come is as good as none: the clock was set
    if age <= max(FRESH_S, _CYCLES * float(section["cycle_s"])):
        return gate
    return replace(_stale(f"the daemon has not judged for {lasting(age)}"), judged=judged)


def read(places: Places) -> Gate:
    """Return the gate of this host now. What somebody holds counts at once, also before the daemon has seen it."""
    path = os.path.join(places.state_dir, "gate.json")
    try:
        gate = as_of(records.read(path, "restart stowaged"), time.time())
        if gate.judged is not None and not gate.stale and not is_held(places.daemon_lock):
            gate = replace(_stale("the daemon does not run"), judged=gate.judged)
    except (StowageError, OSError) as error:
        gate = _stale(printable(one_line(error)))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        gate = _stale(f"{path}: the daemon is of another version ({error!r})")
    return replace(gate, holds=(*holds.declared(places), *(one for one in gate.holds if one.reason != HELD)))


def wait(places: Places, seconds: float, user: str = "", team: str = "") -> Gate:
    """Return the gate as soon as it is open for a job of *user*, which is *team*'s, and after *seconds* anyway."""
    deadline = time.monotonic() + seconds
    while True:
        gate = read(places)
        left = deadline - time.monotonic()
        if not gate.holding(user, team) or left <= 0:
            return gate
        time.sleep(min(POLL_S, left))


def _stale(text: str) -> Gate:
    return Gate((Hold(STALE, f"{text}: {_REMEDY}"),), stale=True)
