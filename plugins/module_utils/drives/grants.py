# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host paths: the directories of the hosts that drives of a workspace may name. Nothing, unless it was granted.

A source must lie within a granted directory twice: as it is written, which needs no host to tell, and where it leads
on the host once symlinks are followed, on both sides. What is mounted is checked again, by its open descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable

from .. import records
from ..errors import Refusal, did_you_mean, printable, quoted
from ..mounts import Mount, follow, is_shared
from ..paths import check_path, is_within, resolve
from ..places import Places
from . import host_paths
from . import recorded as drive_records
from .declared import PLACED, Problems, check_name
from .recorded import Drive

Grants = Mapping[str, Sequence[str]]
"""The host paths of each workspace."""


def check_host_paths(value: Any, workspaces: Collection[str]) -> dict[str, list[str]]:
    """Return what is granted to each of *workspaces*, or refuse with everything that is wrong in it.

    :param workspaces: those whose drives are declared; a grant to any other would do nothing
    """
    if not isinstance(value, Mapping):
        raise Problems(["host_paths: must be a dictionary, with a list of paths for each workspace"])
    problems = []
    granted: dict[str, list[str]] = {name: [] for name in workspaces}
    for name, paths in value.items():
        where = f"host_paths.{printable(str(name))}"
        try:
            check_name(name, where)
        except Refusal as error:
            problems.append(str(error))
            continue
        if name not in granted:
            near = did_you_mean(name, workspaces)
            problems.append(f"{where}: no drives are declared for this workspace; {near or 'take it out'}")
        elif not isinstance(paths, list):
            problems.append(f"{where}: must be a list of paths")
        else:
            for index, path in enumerate(paths):
                try:
                    granted[name].append(check_path(path, f"{where}[{index}]"))
                except Refusal as error:
                    problems.append(str(error))
    if problems:
        raise Problems(problems)
    return {name: sorted(set(paths)) for name, paths in granted.items()}


def load(places: Places, workspace: str) -> list[str]:
    """Return what was granted to *workspace* on this host."""
    path = drive_records.record_path(places, workspace)
    granted = (records.read(path) or {}).get("host_paths", [])
    if not isinstance(granted, list) or not all(isinstance(one, str) for one in granted):
        raise records.RecordError(f"{path}: host_paths is not a list of paths; roll the host out again")
    return granted


def check_written(drives: Iterable[Drive], grants: Grants) -> None:
    """Refuse, all at once, the drives with a source that is written outside of what their workspace may use.

    No host is asked: also sources on other hosts are checked.
    """
    problems = []
    for drive in drives:
        for source in [] if drive.spec is None or drive.absent else drive.spec["sources"]:
            if source["node_scope"] != PLACED and not _covering(source["path"], grants.get(drive.workspace, ())):
                problems.append(str(refusal(drive, source["path"])))
    if problems:
        raise Problems(problems)


def check_leads(drive: Drive, path: str, granted: Sequence[str], mounts: Sequence[Mount]) -> None:
    """Refuse a source on this host that leads outside of what its workspace may use; it need not be there yet.

    A shared filesystem blocks whoever looks at it while its servers are away: what a path leads to there is
    taken as it is written, until it is mounted.
    """
    leads_to, mount = follow(path, mounts)
    if is_shared(mount.fstype):
        _check_within(drive, path, granted, leads_to, lambda one: follow(one, mounts)[0])
    else:
        with host_paths.opened(path, f"drive {drive.workspace}/{drive.name}") as found:
            check_place(drive, path, granted, found.path)


def check_place(drive: Drive, path: str, granted: Sequence[str], leads_to: str) -> None:
    """Refuse source *path*, which leads to *leads_to* on this host, unless both are within a granted one."""
    _check_within(drive, path, granted, leads_to, resolve)


def _check_within(drive: Drive, path: str, granted: Sequence[str], leads_to: str, where: Callable[[str], str]) -> None:
    covering = _covering(path, granted)
    # The others are looked at last: they may be on a filesystem that does not answer.
    others = [one for one in granted if one not in covering]
    if not covering or not any(is_within(leads_to, where(one)) for one in (*covering, *others)):
        raise refusal(drive, path, leads_to if covering else "")


def check_opened(drive: Drive, path: str, granted: Sequence[str], fd: int) -> None:
    """Refuse the directory open at *fd*, which source *path* has led to, unless it is within a granted one."""
    check_place(drive, path, granted, os.readlink(f"/proc/self/fd/{fd}"))


def check(places: Places, drive: Drive, index: int, fd: int) -> None:
    """Refuse to use the directory open at *fd* as source *index* of *drive*, unless this host was told of the grant.

    To be called when it is about to be mounted: a grant may have been withdrawn, and a symlink been put there.
    """
    path = str((drive.spec or {})["sources"][index]["path"])
    check_opened(drive, path, load(places, drive.workspace), fd)


def refusal(drive: Drive, path: str, leads_to: str = "") -> Refusal:
    """Return Astraeus's refusal, and what to do about it."""
    told = f"drive {drive.workspace}/{drive.name}"
    told += f": it leads to {quoted(leads_to)}" if leads_to else ""
    return Refusal(
        "HOST_ACCESS_FORBIDDEN",
        f'spec.sources[].path "{printable(path)}": this namespace may not use that path on the machines',
        f"{told}: grant it in host_paths of workspace {drive.workspace}, or choose another path",
    )


def _covering(path: str, granted: Sequence[str]) -> list[str]:
    return [one for one in granted if is_within(path, one)]
