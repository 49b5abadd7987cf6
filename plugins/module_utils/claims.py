# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is taken on this host, by path, and keeping apart from it: one list for layouts, data locations and drives.

Whoever takes a path reads this under the host lock, so that two that are made at once cannot take the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import data_locations, drive_records, records
from .errors import Refusal
from .mounts import Mount, is_shared, of_path
from .paths import relation, resolve
from .places import Places


def of_stowage(places: Places, claims: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return what is Stowage's own on this host: nothing else may be laid over it, or into it.

    :param claims: see :meth:`.owner.Registry.claims`
    """
    taken = dict.fromkeys((places.etc, places.var, places.run), "Stowage's own directory")
    for path, claim in claims.items():
        taken[path] = f"the {claim['kind'].replace('-', ' ')}"
    for location in data_locations.load_former(places):
        taken[location.path] = "the former data location"
    present = data_locations.load(places)
    if present is not None:
        taken[present.path] = "the data location"
    return taken


def of_layout(places: Places) -> dict[str, str]:
    """Return the locations of the storage layout and its volume root."""
    layout = records.read(places.layout_json) or {}
    taken = {location["path"]: f"the storage layout's {name}" for name, location in layout.get("locations", {}).items()}
    if layout.get("volume_root"):
        taken[layout["volume_root"]] = "the volume root"
    return taken


def of_drives(places: Places, host: str) -> dict[str, str]:
    """Return the sources of drives that name a path on *host*."""
    return {
        path: f"source {index} of drive {drive.workspace}/{drive.name},"
        for drive in drive_records.load_all(places)
        for index, path in drive.sources_on(host)
    }


def overlapping(
    path: str, taken: Mapping[str, str], mounts: Sequence[Mount], but: Iterable[str] = ()
) -> tuple[str, str, str] | None:
    """Return how the resolved *path* lies to the first of *taken* that it overlaps: a verb, what that is, and where.

    :param but: verbs of :func:`.paths.relation` that are no matter
    """
    for other, what in sorted(taken.items()):
        # A shared filesystem blocks whoever looks at it while its servers are away.
        lies = relation(path, other if is_shared(of_path(other, mounts).fstype) else resolve(other))
        if lies and lies not in but:
            return lies, what, other
    return None


def check_apart(
    name: str, path: str, taken: Mapping[str, str], mounts: Sequence[Mount], remedy: str, but: Iterable[str] = ()
) -> None:
    """Refuse the resolved *path*, which an operator knows as *name*, when it overlaps any of *taken*."""
    found = overlapping(path, taken, mounts, but)
    if found is not None:
        lies, what, other = found
        raise Refusal(name, f"it {lies} {what} {other}", remedy)
