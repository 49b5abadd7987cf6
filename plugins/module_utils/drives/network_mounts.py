# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network mounts of drives on other machines, as far as a worker needs them: whether one is there, and where."""

from __future__ import annotations

import os
from typing import NamedTuple

from .. import records
from ..places import Places

PENDING, BOUND = "Pending", "Bound"


class NetworkMount(NamedTuple):
    """The mount of one source of a drive on this host."""

    state: str = PENDING
    """As Astraeus names it: it is usable when ``Bound``."""
    path: str = ""


def record_path(places: Places) -> str:
    return os.path.join(places.var, "network_mounts.json")


def find(places: Places, workspace: str, drive: str, source: int) -> NetworkMount:
    """Return the network mount of a source; one that nobody has begun to make is pending."""
    path = record_path(places)
    value = records.read(path) or {}
    try:
        for one in value.get("mounts", []):
            if (one["workspace"], one["drive"], one["source"]) == (workspace, drive, source):
                return NetworkMount(one["state"], one["path"])
    except (KeyError, TypeError, AttributeError) as error:
        raise records.RecordError(f"{path}: not a list of network mounts ({error!r}); make them again") from error
    return NetworkMount()
