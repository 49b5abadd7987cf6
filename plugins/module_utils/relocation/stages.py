# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stages of moving a location, and which of them is really reached. Nothing here does I/O.

A record says what was done last and what was being done when it was written. What is mounted at the old path says what
is true: a host may have been started anew in between, and somebody may have unmounted what was there.
"""

from __future__ import annotations

from dataclasses import dataclass

HELD = "held"
"""The gate holds jobs, and what is to be moved is recorded."""
CLOSED = "closed"
"""Nobody uses the location, it is mounted read-only over itself, and Stowage's own metadata is backed up."""
COPIED = "copied"
VERIFIED = "verified"
"""The copy was compared with the location, by content."""
SWITCHED = "switched"
"""The new directory is mounted at the old path, and the settings may name it."""
FINISHED = "finished"
"""The settings name the new directory, jobs run, and the old content lies aside, out of everybody's reach."""
RETIRED = "retired"
"""The old content is deleted."""
FORGOTTEN = "forgotten"
"""The old path is gone."""

STAGES = (HELD, CLOSED, COPIED, VERIFIED, SWITCHED, FINISHED, RETIRED, FORGOTTEN)

GIVEN_UP = "given up"
"""Nothing was switched: the location is in use as before, and the copy may be gone on with."""
UNDONE = "undone"
"""It was switched back: the copy is not gone on with, because it may hold what was written to it meanwhile."""

UNDER_WAY = (HELD, CLOSED, COPIED, VERIFIED, SWITCHED)
"""Jobs are held for it."""
IN_NEW_PLACE = (SWITCHED, FINISHED, RETIRED, FORGOTTEN)
WITH_UNITS = (VERIFIED, SWITCHED, FINISHED, RETIRED)
"""A boot may mount the new directory at the old path."""


@dataclass(frozen=True)
class Found:
    """What is mounted at the old path."""

    closed: bool = False
    """The old directory itself, read-only."""
    bound: bool = False
    """The new directory."""


LOST, FOREIGN = "lost", "foreign"
"""Where a host stands that is to have the new directory at the old path and has not, or has it and is not to."""


def standing(stage: str, doing: str, found: Found) -> str:
    """Return the last stage that is reached, :data:`LOST` or :data:`FOREIGN`.

    It never goes back from where the new directory may have been written to: copying again would destroy that.

    :param stage: what was done last
    :param doing: what was being done
    """
    if stage in (SWITCHED, FINISHED, RETIRED):
        if found.bound or (stage, doing) == (RETIRED, FORGOTTEN):
            return stage
        return UNDONE if doing == UNDONE else LOST
    if found.bound:
        # Killed between the mount and the record of it.
        return SWITCHED if (stage, doing) == (VERIFIED, SWITCHED) else FOREIGN
    if stage in (CLOSED, COPIED, VERIFIED) and not found.closed:
        return HELD
    return stage


def amiss(stage: str, new: str, old: str) -> str:
    """Return what is wrong at the path *old* where a host stands :data:`LOST` or :data:`FOREIGN`, else ""."""
    wrong = {
        LOST: f"{new} is to be mounted at {old} and is not",
        FOREIGN: f"{new} is mounted at {old}, which nobody has recorded",
    }
    return wrong.get(stage, "")


def reached(stage: str, wanted: str) -> bool:
    """Return whether *stage* is *wanted* or a later one."""
    return stage in STAGES and STAGES.index(stage) >= STAGES.index(wanted)
