# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sources of drives on this host whose directory a rollout makes, or gives its owner and mode."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..answers import check_answers
from ..differences import Differences
from ..errors import Refusal
from ..mounts import Mount, follow, is_shared
from ..paths import is_within, relation, resolve
from . import permissions
from .declared import SHARED
from .grants import Grants
from .permissions import Applied, Missing, Permissions
from .recorded import Drive


@dataclass(frozen=True)
class Source:
    """A source on this host that has something of ``spec.permissions`` to be done to it."""

    drive: Drive
    path: str
    granted: Sequence[str]
    wanted: Permissions
    there: bool = True
    found: Applied = field(default_factory=Applied)

    @property
    def shown(self) -> str:
        return f"{self.drive.workspace}/{self.drive.name}"

    def compared(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return what is wanted of it, and what there is; None for nothing."""
        if not self.there:
            return self.wanted.of_new.shown(), None
        return self.wanted.compared(self.found)


def plan(drives: Iterable[Drive], host: str, grants: Grants, mounts: Sequence[Mount]) -> list[Source]:
    """Return what is to be done to sources on this host; nothing is changed.

    :raises Refusal: when something of it could not be done, or would be undone by another drive
    """
    sources = list(_concerned(drives, host, grants))
    shared = [source for source in sources if is_shared(follow(source.path, mounts)[1].fstype)]
    if shared:
        check_answers([(f"drive {source.shown}", source.path) for source in shared])
    _check_agree([source for source in sources if source.wanted.apply])
    return [looked for looked in map(_looked_at, sources) if looked is not None]


def _concerned(drives: Iterable[Drive], host: str, grants: Grants) -> Iterator[Source]:
    for drive in drives:
        for index, path in drive.sources_on(host):
            spec = drive.spec or {}
            source = spec["sources"][index]
            if source["node_scope"] == SHARED and source["node"] != host:
                continue  # one host is enough, and others may do it at the same time
            wanted = Permissions.of(spec)
            if wanted.create or wanted.apply:
                yield Source(drive, path, grants.get(drive.workspace, ()), wanted)


def _check_agree(applying: Sequence[Source]) -> None:
    """Refuse two drives that would undo each other's work at every rollout."""
    for one, other in itertools.permutations(applying, 2):
        path, around = resolve(one.path), resolve(other.path)
        same = one.wanted.shown() == other.wanted.shown()
        if not same and (path == around or (other.wanted.recursive and is_within(path, around))):
            raise Refusal(
                f"drive {one.shown}",
                f"its source {one.path} {relation(path, around)} {other.path}, the source of drive {other.shown}, and"
                " they are to have another owner or mode",
                "declare the same spec.permissions for both, or take apply out of one",
            )


def _looked_at(source: Source) -> Source | None:
    """Return a source with what there is of it; None where nothing is to be done."""
    try:
        with permissions.opened_source(source.drive, source.path, source.granted) as (fd, _made):
            found = permissions.apply_declared(fd, source.drive, source.path, predict=True)
    except Missing:
        if not source.wanted.create:
            return None  # when it is there, it gets them
        permissions.check_source(source.drive, source.path, source.granted, source.wanted.of_new)
        return replace(source, there=False)
    if found is None:
        return None
    permissions.check_unmarked(source.drive, source.path, found)
    return replace(source, found=found)


def make_true(sources: Iterable[Source], differences: Differences) -> None:
    """Note how sources differ from what is declared, and do what has to be done to them."""
    for source in sources:
        if not differences.note(f"{source.shown} {source.path}", *source.compared()):
            continue
        action = source.found.action(source.path) if source.there else f"make {source.path}"
        differences.do(action, partial(_act, source))


def _act(source: Source) -> None:
    make = source.wanted.of_new if source.wanted.create else None
    with permissions.opened_source(source.drive, source.path, source.granted, make) as (fd, made):
        applied = None if made else permissions.apply_declared(fd, source.drive, source.path)
        if applied is not None:
            permissions.check_unmarked(source.drive, source.path, applied)


def about_left(sources: Iterable[Source]) -> list[str]:
    """Return warnings of what keeps its owner or mode."""
    return [
        f"drive {source.shown}: left as it is below {source.path}: {'; '.join(source.found.left)}"
        for source in sources
        if source.found.left
    ]
