# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tiers of a host for a report: all that are claimed here, whether their groups still name this host or not."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..accounts import group_name, owner_name
from ..errors import StowageError, printable
from ..mounts import Mount
from ..owner import Registry, read_mark
from ..places import Places
from . import recorded
from .claim import KIND, open_directory
from .declared import Backend, MemberGroup
from .recorded import Claimed

Report = dict[str, Any]


def found(places: Places, mounts: Sequence[Mount]) -> list[Report]:
    """Return what is known of each tier, and what its directory is like now."""
    backends = recorded.load_backends(places)
    tiers = recorded.load_claimed(places)
    for path, entry in Registry(places).all().items():
        if entry["kind"] == KIND:
            tiers.setdefault(str(entry["name"]), Claimed(path, str(entry["identity"]), 0.0))
    return [_report(name, one, backends, mounts) for name, one in sorted(tiers.items())]


def _report(name: str, one: Claimed, backends: Mapping[str, Backend], mounts: Sequence[Mount]) -> Report:
    backend, _slash, position = name.rpartition("/")
    group = _group(backends.get(backend), position)
    tier = group.tier if group is not None else None
    return {
        "backend": backend,
        "position": int(position) if position.isdigit() else None,
        "path": printable(one.path),
        "identity": one.identity,
        "hosts": None if group is None or group.hosts is None else list(group.hosts),
        "store": group.store if group is not None else None,
        "capacity": tier.capacity if tier is not None else None,
        "key_limit": tier.key_limit if tier is not None else None,
        "eviction": asdict(tier.eviction) if tier is not None and tier.eviction is not None else None,
        "clean_after_delete": tier.clean_after_delete if tier is not None else None,
        **_directory(name, one, mounts),
        "survey": one.survey.to_report() if one.survey is not None else None,
    }


def _group(backend: Backend | None, position: str) -> MemberGroup | None:
    members = backend.members if backend is not None else ()
    return members[int(position)] if position.isdigit() and int(position) < len(members) else None


def _directory(name: str, one: Claimed, mounts: Sequence[Mount]) -> Report:
    """Return owner, group and mode of a directory, and whether it is the claimed one; null for what is not seen."""
    try:
        fd = open_directory(one.path, mounts)
    except (OSError, StowageError):
        return {"owner": None, "group": None, "mode": None, "claimed": None}
    try:
        status = os.fstat(fd)
        mark = read_mark(fd)
    except (OSError, StowageError):
        return {"owner": None, "group": None, "mode": None, "claimed": None}
    finally:
        os.close(fd)
    return {
        "owner": owner_name(status.st_uid),
        "group": group_name(status.st_gid),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "claimed": mark is not None and (mark.kind, mark.name, mark.identity) == (KIND, name, one.identity),
    }
