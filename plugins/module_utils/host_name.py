# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host is who it is said to be: what was recorded on it says under which name that was.

A wrong name would make this host take another one's sources for its own, and its own data location for another's.
"""

from __future__ import annotations

from . import records
from .data_location import locations as data_locations
from .drives import recorded as drive_records
from .errors import Refusal
from .places import Places


def check(places: Places, host: str, formerly: str = "") -> None:
    """Refuse *host* as this host's name unless it is the recorded one, or nothing is recorded.

    The data location says it, where there is one: that is taken over first when a host is renamed.

    :param formerly: the name that this host had before
    """
    if not host.strip():
        raise Refusal("host_name", "is blank", "give the host's name in the inventory")
    location = data_locations.load(places)
    if location is not None:
        if location.host not in (host, formerly):
            raise renamed(f"data location {location.path}", "it was chosen", location.host, host)
        return
    for workspace in drive_records.workspaces(places):
        check_declared(places, workspace, host, formerly)


def check_declared(places: Places, workspace: str, host: str, formerly: str = "") -> None:
    """Refuse *host* unless it is the name under which the drives of *workspace* were declared, or there are none."""
    recorded = (records.read(drive_records.record_path(places, workspace)) or {}).get("host") or host
    if recorded not in (host, formerly):
        raise renamed(f"workspace {workspace}", "its drives were declared", recorded, host)


def renamed(name: str, event: str, before: str, host: str) -> Refusal:
    return Refusal(
        name,
        f"{event} when this host was {before}, and this host is {host} now",
        f"correct host_name; if the host was renamed, take it over with adopt_from: {before}",
    )
