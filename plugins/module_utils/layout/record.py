# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The storage layout as it is recorded: how it is written, read, and compared with what is wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import records
from ..differences import Differences
from ..errors import StowageError
from ..mounts import FilesystemId
from .found import MountRule, Place
from .rules import NAMES, Layout


def load(path: str) -> dict[str, Any]:
    """Return the recorded layout, or an empty one."""
    record = records.read(path)
    if record is None:
        record = {"root": None, "volume_root": None, "environment_prefix": None, "locations": {}}
        return {**record, "environment_files": [], "protected_paths": []}
    try:
        for location in record["locations"].values():
            FilesystemId.from_json(location["filesystem"])
            location["path"] + location["mount_point"]
        record["root"], record["volume_root"], record["environment_prefix"]
        for name in ("environment_files", "protected_paths"):
            record[name] = [str(one) for one in record.get(name, [])]
    except (AttributeError, KeyError, TypeError) as error:
        raise StowageError(f"{path}: is not a layout ({error!r}); move it away and roll out again") from error
    return record


def paths(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the paths of a recorded layout by name."""
    named = {name: location["path"] for name, location in record["locations"].items()}
    return {**named, **{name: record[name] for name in ("root", "volume_root") if record[name] is not None}}


def make(
    layout: Layout,
    places: Mapping[str, Place],
    rules: Mapping[str, MountRule],
    prefix: str,
    environment_files: Sequence[str],
    protected_paths: Sequence[str],
    former: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the layout as it is to be recorded. A disk that got another device name at a boot stays as recorded."""
    locations = {}
    for name in NAMES:
        filesystem = places[name].filesystem
        if name in former["locations"]:
            recorded = FilesystemId.from_json(former["locations"][name]["filesystem"])
            filesystem = recorded if recorded.matches(filesystem) else filesystem
        locations[name] = {
            "path": places[name].path,
            "override": name in layout.overridden,
            "require_mount": rules[name].required,
            "mount_point": places[name].mount.point,
            "filesystem": filesystem.to_json(),
        }
    return {
        "root": layout.root,
        "volume_root": layout.volume_root,
        "environment_prefix": prefix,
        "environment_files": list(environment_files),
        "protected_paths": list(protected_paths),
        "locations": locations,
    }


def note(differences: Differences, record: Mapping[str, Any], former: Mapping[str, Any]) -> None:
    """Note how the layout differs from the recorded one: a line for each location, and one for each filesystem."""
    for key in ("root", "volume_root", "protected_paths", "environment_prefix", "environment_files"):
        differences.note(key, record[key], former[key])
    for name in NAMES:
        wanted, actual = (_line(one["locations"].get(name)) for one in (record, former))
        differences.note(f"location {name}", wanted, actual)
    wanted_filesystems, actual_filesystems = _filesystems(record), _filesystems(former)
    for point in sorted({*wanted_filesystems, *actual_filesystems}):
        differences.note(f"filesystem at {point}", wanted_filesystems.get(point), actual_filesystems.get(point))


def _line(location: Mapping[str, Any] | None) -> str | None:
    if location is None:
        return None
    words = [location["path"], f"on the mount at {location['mount_point']}"]
    words += ["(override)"] if location["override"] else []
    words += ["(mount required)"] if location["require_mount"] else []
    return " ".join(words)


def _filesystems(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the filesystem at each mount point that a location lies on, in words."""
    found: dict[str, set[str]] = {}
    for location in record["locations"].values():
        described = FilesystemId.from_json(location["filesystem"]).described
        found.setdefault(location["mount_point"], set()).add(described)
    return {point: ", ".join(sorted(described)) for point, described in found.items()}
