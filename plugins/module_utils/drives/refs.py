# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which drives a worker mounts: Astraeus's ``datavolume_refs``, or the short form of the Drives field of a new run.

A run that is wrong in itself is refused here. A drive that is not in the workspace is not: the run waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..errors import Refusal, did_you_mean, printable, quoted
from ..paths import check_path, check_relative
from .declared import MODES, Entry, check_name

_FIELDS = ("name", "mount_path", "sub_path", "mode", "source_index")


@dataclass(frozen=True)
class DriveRef:
    """One drive of a worker. What it leaves empty, the source of the drive says."""

    name: str
    mount_path: str = ""
    """Where the drive appears in the worker."""
    sub_path: str = ""
    """The folder inside the drive that is mounted instead of the whole of it."""
    mode: str = ""
    source_index: int = 0


class Wanted(NamedTuple):
    """A drive that a worker mounts, and what it is."""

    ref: DriveRef
    """With the defaults of the source filled in."""
    spec: Mapping[str, Any] | None
    """The drive's checked spec; None when the workspace has no such drive."""

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def source(self) -> Mapping[str, Any] | None:
        """The source that is mounted."""
        source: Mapping[str, Any] | None = None if self.spec is None else self.spec["sources"][self.ref.source_index]
        return source


def read(value: Any) -> list[DriveRef]:
    """Return the drives in *value*: a list as ``datavolume_refs`` are, its JSON text, or text for :func:`parse`.

    An empty list means no drive; text that names none is refused, because it may have been forgotten.
    """
    if isinstance(value, str):
        if not value.lstrip().startswith(("[", "{")):
            return parse(value)
        value = _from_json(value)
    if not isinstance(value, list):
        raise _invalid("datavolume_refs must be a list")
    return [_checked(item, f"datavolume_refs[{index}]") for index, item in enumerate(value)]


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refusal(
            "Invalid task",
            f"datavolume_refs begin as JSON, and are none ({printable(str(error))})",
            'write [{"name": "imagenet"}], or imagenet:/mount/path, comma-separated',
        ) from error


def parse(text: str) -> list[DriveRef]:
    """Return the drives in *text*: ``name`` or ``name:/mount/path``, comma-separated; blanks around them do not count.

    A drive without a path is mounted at ``/data/<name>``, whatever its source says, as Astraeus's console does it.

    :raises Refusal: also when it names none
    """
    refs = []
    for item in filter(None, map(str.strip, text.split(","))):
        name, colon, path = (part.strip() for part in item.partition(":"))
        check_name(name, "Invalid task: data volume")
        refs.append(DriveRef(name, _mount_path(name, path if colon else f"/data/{name}")))
    if not refs:
        raise Refusal(
            "Invalid task",
            f"datavolume_refs {quoted(text)} name no drive",
            "name the drives, as name or name:/mount/path, comma-separated",
        )
    return refs


def resolve(refs: Iterable[DriveRef], drives: Iterable[Entry]) -> list[Wanted]:
    """Return what *refs* mean among the checked *drives* of a workspace; a tombstone is no drive any more."""
    specs = {drive["metadata"]["name"]: drive["spec"] for drive in drives if drive["state"] == "present"}
    wanted = []
    mounted: dict[str, str] = {}
    for ref in refs:
        spec = specs.get(ref.name)
        if spec is not None:
            ref = _with_defaults(ref, spec["sources"])
        if ref.mount_path:
            if ref.mount_path in mounted:
                taken = (
                    f"mount_path {printable(ref.mount_path)} is that of data volume {mounted[ref.mount_path]} already"
                )
                raise _invalid(f"data volume {ref.name}: {taken}")
            mounted[ref.mount_path] = ref.name
        wanted.append(Wanted(ref, spec))
    return wanted


def _with_defaults(ref: DriveRef, sources: list[Mapping[str, Any]]) -> DriveRef:
    if ref.source_index >= len(sources):
        there = "source 0 only" if len(sources) == 1 else f"sources 0 to {len(sources) - 1}"
        raise _invalid(
            f"data volume {ref.name}: source_index {ref.source_index} is none of its sources; it has {there}"
        )
    source = sources[ref.source_index]
    if not ref.mount_path and not source["mount_path"]:
        raise _not_absolute(ref.name)
    return replace(ref, mount_path=ref.mount_path or source["mount_path"], mode=ref.mode or source["mode"])


def _checked(value: Any, where: str) -> DriveRef:
    if not isinstance(value, Mapping):
        raise _invalid(f"{where} must be a dictionary with the name of a drive")
    for key in value:
        if key not in _FIELDS:
            near = did_you_mean(key, _FIELDS) if isinstance(key, str) else ""
            raise _invalid(f"{where}: unknown field {quoted(str(key))}; {near or 'there are ' + ', '.join(_FIELDS)}")
    name = check_name(value.get("name"), f"Invalid task: {where}: data volume")
    mode = value.get("mode") or ""
    if mode and mode not in MODES:
        raise _invalid(f"data volume {name}: mode must be one of {', '.join(MODES)}")
    index = value.get("source_index")
    if index is not None and (isinstance(index, bool) or not isinstance(index, int) or index < 0):
        raise _invalid(f"data volume {name}: source_index must be a whole number, 0 for the first source")
    path = value.get("mount_path")
    sub_path = value.get("sub_path")
    return DriveRef(
        name,
        _mount_path(name, path) if path not in (None, "") else "",
        _path(check_relative, sub_path, f"data volume {name}: sub_path") if sub_path not in (None, "") else "",
        mode,
        index or 0,
    )


def _mount_path(name: str, value: Any) -> str:
    if isinstance(value, str) and not value.startswith("/"):
        raise _not_absolute(name)
    return _path(check_path, value, f"data volume {name}: mount_path")


def _path(check: Callable[[Any, str], str], value: Any, where: str) -> str:
    try:
        return check(value, where)
    except Refusal as error:
        raise _invalid(str(error)) from error


def _not_absolute(name: str) -> Refusal:
    return _invalid(f"data volume {name}: mount_path must be absolute")


def _invalid(rule: str) -> Refusal:
    return Refusal("Invalid task", rule)
