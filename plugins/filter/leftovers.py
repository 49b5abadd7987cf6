# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""List what uninstalling has left on a host, for whoever wants the rest gone too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.sizes import decimal

Facts = Mapping[str, Any]


def leftovers(facts: Any, aside: Sequence[Facts] = ()) -> list[str]:
    """Return a line for each thing of Stowage that is on the host and holds data or remembers it.

    :param aside: what the module ``uninstall`` returned of that name
    """
    if not isinstance(facts, Mapping) or not {"layout", "data_location", "copies", "leases"} <= set(facts):
        raise AnsibleFilterError(
            "leftovers: the input must be ansible_facts.stowage_storage; run stowage.host.storage_facts first"
        )
    return [
        *_layout(facts["layout"]),
        *_data(facts),
        *_aside(aside),
        *_tiers(facts.get("tiers", [])),
        *_leases(facts["leases"]),
        *_records(),
    ]


def _layout(layout: Facts | None) -> list[str]:
    """Return the directories that the layout made; one that an override names was there before."""
    if layout is None:
        return []
    made = [one for one in layout["locations"].values() if not one["override"]]
    below = f"{layout['root']}/"
    apart = [one["path"] for one in made if not one["path"].startswith(below)]
    return [
        f"directory {layout['root']}, with the locations below it",
        *(f"directory {path}" for path in sorted(apart)),
    ]


def _data(facts: Facts) -> list[str]:
    lines = []
    if facts["data_location"] is not None:
        lines.append(f"data location {facts['data_location']['path']}")
    for name, copy in facts["copies"].items():
        if copy["present"] is not False:
            lines.append(f"copy {name}, " + ("not measured" if copy["bytes"] is None else decimal(copy["bytes"])))
    lines += [f"former data location {one['path']}" for one in facts["former_data_locations"]]
    return lines


def _aside(aside: Sequence[Facts]) -> list[str]:
    lines = []
    for one in aside:
        what = f"of copy {one['name']}" if one["name"] else "which is no copy of this host"
        state = "which was being removed" if one["condemned"] else "whose place a new one has" if one["name"] else ""
        lines.append(f"{one['path']}, " + ", ".join(part for part in (what, state) if part))
    return lines


def _tiers(tiers: Sequence[Facts] | None) -> list[str]:
    if tiers is None:
        return ["KV-cache tiers, of which the records cannot be read"]
    return [f"KV-cache tier {one['backend']}/{one['position']} {one['path']}, with its claim" for one in tiers]


def _leases(leases: list[Facts]) -> list[str]:
    return [
        f"lease of {one['workspace']}/{one['drive']} by run {one['run']}: a mount below /run/stowage/pins"
        for one in leases
    ]


def _records() -> list[str]:
    return [
        "records in /etc/stowage and /var/lib/stowage, by which a later rollout finds all this again",
        "/run/stowage, until the host is started again",
    ]


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"leftovers": leftovers}
