# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What this host is declared to have under /etc/stowage: layout, data location, drives, tiers of KV-caches, volumes.

The record of its network mounts is read with it, and that of the tiers that it has claimed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stowage_core import records
from stowage_core.data_location import locations as data_locations
from stowage_core.data_location.locations import DataLocation
from stowage_core.drives import recorded as drive_records
from stowage_core.drives.declared import PLACED, SCRATCH, SHARED
from stowage_core.drives.recorded import Drive
from stowage_core.mounts import FilesystemId
from stowage_core.network_mounts import records as network_records
from stowage_core.network_mounts.records import MountRecord
from stowage_core.paths import is_within
from stowage_core.places import Places
from stowage_core.tiers import recorded as tier_records
from stowage_core.tiers.declared import MOONCAKE, MemberGroup, Tier, tier_name
from stowage_core.tiers.recorded import Claimed
from stowage_core.volumes import recorded as volume_records

DATA_LOCATION = "data-location"
ROOT = "root"
VOLUME = "volume/"
"""How the objects of volumes begin."""


@dataclass(frozen=True)
class Target:
    """A directory that the daemon asks after, and measures unless another host does or it is a volume."""

    object: str
    """``location/runs``, ``drive/ml/imagenet/0`` (workspace, drive, source), ``tier/chat/0``, ``volume/models``,
    ``data-location`` or, of what is beneath the layout's root and in nothing of it, ``root``."""
    path: str
    filesystem: FilesystemId | None = None
    """The filesystem that it was on when it was declared; None when that is not recorded."""
    mount_point: str | None = None
    """Where a filesystem must be mounted for it to be there at all."""
    shared: bool = False
    """Whether the host named by the drive measures it although others see it too."""
    must_be_shared: bool = False
    made_on_use: bool = False
    """Whether the first run that uses it makes it, so that it may be missing until then."""
    claim: tuple[str, str] | None = None
    """Of a tier: the name in its owner mark, and the mark's identity, empty when that is not known."""
    buckets: bool = False
    """Whether it holds buckets of the Mooncake store."""


@dataclass(frozen=True)
class HostTier:
    """A tier of this host: declared, or claimed once and not given up."""

    backend: str
    position: int
    path: str
    group: MemberGroup
    tier: Tier
    is_declared: bool = True
    """Whether the site's list still has its backend."""

    @property
    def name(self) -> str:
        return tier_name(self.backend, self.position)

    @property
    def object(self) -> str:
        return f"tier/{self.name}"


@dataclass(frozen=True)
class Declared:
    """All of it, as it was when it was read."""

    targets: tuple[Target, ...] = ()
    data_location: DataLocation | None = None
    drives: tuple[Drive, ...] = ()
    former: tuple[DataLocation, ...] = ()
    """Data locations that this host had before: copies of deleted drives go there too."""
    network_mounts: tuple[MountRecord, ...] = ()
    network_error: str = ""
    """Why the network mounts are not known."""
    tiers: tuple[HostTier, ...] = ()
    root: Target | None = None
    """The root of the layout, in which locations are: it is not shown, but what else is in it is measured."""
    volumes: tuple[Target, ...] = ()
    """Volumes are asked after, and not measured: they are others', and may be larger than anything here."""

    @property
    def asked(self) -> tuple[Target, ...]:
        """Everything that is asked after."""
        return (*self.measured, *self.volumes)

    @property
    def measured(self) -> tuple[Target, ...]:
        """Everything of which figures are kept."""
        return self.targets if self.root is None else (*self.targets, self.root)


def load(places: Places, host: str) -> Declared:
    """Return what /etc/stowage declares; a part that is not there is not declared.

    :raises StowageError: when a part cannot be read: then nothing can be concluded from the others either
    """
    data_location = data_locations.load(places)
    drives = drive_records.load_all(places)
    root, locations = _layout(places)
    targets = locations + _sources(drives, host)
    if data_location is not None:
        targets.append(Target(DATA_LOCATION, data_location.path, data_location.filesystem))
    former = tuple(data_locations.load_former(places))
    claimed = tier_records.load_claimed(places)
    tiers = _tiers(places, claimed, host)
    targets += [_tier_target(tier, claimed.get(tier.name)) for tier in tiers]
    network_mounts, network_error = _network_mounts(places)
    return Declared(
        tuple(targets),
        data_location,
        tuple(drives),
        former,
        network_mounts,
        network_error,
        tuple(tiers),
        root,
        tuple(_volumes(places)),
    )


def _network_mounts(places: Places) -> tuple[tuple[MountRecord, ...], str]:
    """Return the network mounts, and why they are not known: they are observed, and hold up nothing declared."""
    try:
        return tuple(network_records.load_mounts(places)), ""
    except records.RecordError as error:
        return (), str(error)


def stamp(places: Places) -> tuple[tuple[str, int, int], ...]:
    """Return what changes whenever one of the files that are read was replaced, so that the rest is not read again."""
    paths = [places.layout_json, places.data_location_json, places.former_locations_json]
    paths += [places.tiers_json, places.tiers_found_json, places.volumes_json]
    paths.append(network_records.mounts_path(places))
    paths += [drive_records.record_path(places, workspace) for workspace in drive_records.workspaces(places)]
    found = []
    for path in paths:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        found.append((path, status.st_mtime_ns, status.st_ino))
    return tuple(found)


def _layout(places: Places) -> tuple[Target | None, list[Target]]:
    """Return the root of the layout and its locations."""
    value = records.read(places.layout_json)
    if value is None:
        return None, []
    root, known = value.get("root"), {}
    found = []
    try:
        for name, one in sorted(value["locations"].items()):
            point = one.get("mount_point")
            mounted = {
                "filesystem": _filesystem(one.get("filesystem")),
                "mount_point": point if one.get("require_mount") else None,
            }
            found.append(records.typed(Target, {"object": f"location/{name}", "path": one["path"], **mounted}))
            if root is not None and point is not None and is_within(one["path"], root) and is_within(root, point):
                known = mounted  # it is on the mount that the root is on
        target = None if root is None else records.typed(Target, {"object": ROOT, "path": root, **known})
    except (KeyError, TypeError, AttributeError) as error:
        raise records.RecordError(f"{places.layout_json}: not a layout ({error!r}); roll the host out again") from error
    return target, found


def _filesystem(value: dict[str, Any] | None) -> FilesystemId | None:
    return None if value is None else FilesystemId.from_json(value)


def _sources(drives: list[Drive], host: str) -> list[Target]:
    found = []
    for drive in drives:
        sources = () if drive.absent or drive.spec is None else drive.spec["sources"]
        for number, source in enumerate(sources):
            scope = source.get("node_scope", "")
            scratch, shared = scope == SCRATCH, scope == SHARED
            hosts = source.get("eligible_nodes") if scratch else [source.get("node", "")]
            if scope != PLACED and (not hosts or host in hosts):
                name = f"drive/{drive.workspace}/{drive.name}/{number}"
                found.append(Target(name, source["path"], shared=shared, must_be_shared=shared, made_on_use=scratch))
    return found


def _tiers(places: Places, claimed: Mapping[str, Claimed], host: str) -> list[HostTier]:
    """Return the tiers of this host; one that is no longer declared here, but claimed, still takes room."""
    found: dict[str, HostTier] = {}
    backends = tier_records.load_backends(places)
    for backend in backends.values():
        for position, group, tier in backend.tiers(host):
            one = HostTier(backend.name, position, tier.path, group, tier, backend.is_declared)
            found[one.name] = one
    for name, known in claimed.items():
        if name not in found:
            backend_name, _slash, place = name.rpartition("/")
            if not place.isdigit():
                raise records.RecordError(f"{places.tiers_found_json}: {name!r} is no tier; restore it")
            members = backends[backend_name].members if backend_name in backends else ()
            group = members[int(place)] if int(place) < len(members) else MemberGroup()
            found[name] = HostTier(backend_name, int(place), known.path, group, group.tier or Tier(known.path))
    return [one for _name, one in sorted(found.items())]


def _tier_target(tier: HostTier, claimed: Claimed | None) -> Target:
    identity = claimed.identity if claimed is not None and claimed.path == tier.path else ""
    return Target(tier.object, tier.path, claim=(tier.name, identity), buckets=tier.group.store == MOONCAKE)


def _volumes(places: Places) -> list[Target]:
    found = []
    for name, one in sorted(volume_records.load(places).items()):
        filesystem, point = (one.filesystem, one.mount_point) if one.require_mount else (None, None)
        found.append(Target(f"{VOLUME}{name}", one.path, filesystem, point))
    return found
