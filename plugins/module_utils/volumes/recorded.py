# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The volumes of a host as they are recorded, with the mount that each was on when it was declared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import records
from ..mounts import FilesystemId
from ..places import Places
from .declared import Grant


@dataclass(frozen=True)
class Volume:
    """One volume."""

    name: str
    path: str
    require_mount: bool
    """Whether it is there only while the filesystem that is recorded is mounted at the recorded place."""
    mount_point: str
    filesystem: FilesystemId
    grants: tuple[Grant, ...]

    @property
    def described(self) -> str:
        return f"volume {self.name}"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": self.path,
            "require_mount": self.require_mount,
            "mount_point": self.mount_point,
            "filesystem": self.filesystem.to_json(),
            "grants": [grant.to_json() for grant in self.grants],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Volume:
        filesystem = FilesystemId.from_json(value["filesystem"])
        grants = tuple(Grant.from_json(grant) for grant in value["grants"])
        return records.typed(cls, {**value, "filesystem": filesystem, "grants": grants})


def load(places: Places) -> dict[str, Volume]:
    """Return the volumes of this host by name."""
    value = records.read(places.volumes_json)
    try:
        found = [Volume.from_json(one) for one in (value or {"volumes": []})["volumes"]]
    except (AttributeError, KeyError, TypeError) as error:
        text = f"{places.volumes_json}: not a list of volumes ({error!r}); roll the host out again"
        raise records.RecordError(text) from error
    return {volume.name: volume for volume in found}


def as_record(volumes: Iterable[Volume]) -> records.Record:
    return {"volumes": [volume.to_json() for volume in volumes]}
