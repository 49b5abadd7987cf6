# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The volumes of a host as an operator declares them: material that others own, and who may read which part of it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..drives.declared import check_name
from ..errors import Refusal
from ..paths import check_path, check_relative, is_within, relation
from ..runs import shape
from ..runs.shape import RunName

_WHO = ("users", "teams", "runs")


@dataclass(frozen=True)
class Grant:
    """Whose runs may read a part of a volume."""

    sub_path: str
    """Below the volume; empty for all of it."""
    users: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    """``user/experiment/run_id``."""

    def to_json(self) -> dict[str, Any]:
        return {"sub_path": self.sub_path, **{kind: list(getattr(self, kind)) for kind in _WHO}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Grant:
        """Return the grant of a record.

        :raises TypeError: when it is none; or KeyError
        """
        names = {kind: tuple(value[kind]) for kind in _WHO}
        for text in (value["sub_path"], *itertools.chain.from_iterable(names.values())):
            if not isinstance(text, str):
                raise TypeError(f"{text!r} is no text")
        return cls(value["sub_path"], **names)


@dataclass(frozen=True)
class Declared:
    """A volume as it is declared."""

    name: str
    path: str
    require_mount: bool | None
    """Whether it must be on the mount that it is on now; None for whoever leaves that to where it is found."""
    grants: tuple[Grant, ...]

    @property
    def described(self) -> str:
        return f"volume {self.name}"


def check_volumes(values: Sequence[Mapping[str, Any]], volume_root: str) -> list[Declared]:
    """Return the declared volumes by name, or refuse what is wrong with them.

    :param values: as the module's options are, with None for what is left out
    """
    found = [_checked(value, volume_root) for value in values]
    for one, other in itertools.combinations(found, 2):
        if one.name == other.name:
            raise Refusal(one.described, "is in the list twice", "name one otherwise, or put their grants together")
        check_apart(one, other, relation(one.path, other.path))
    return sorted(found, key=lambda volume: volume.name)


def check_apart(one: Declared, other: Declared, lies: str) -> None:
    """Refuse two volumes of which one would grant what is the other's.

    :param lies: how the one lies to the other, as a verb; empty when they lie apart
    """
    if lies:
        rule = f"its path {one.path} {lies} {other.path} of {other.described}"
        raise Refusal(one.described, rule, "register the outer one alone, and grant folders of it by sub_path")


def _checked(value: Mapping[str, Any], volume_root: str) -> Declared:
    name = check_name(value.get("name"), "volume")
    where = f"volume {name}"
    path = check_path(value.get("path") or os.path.join(volume_root, name), f"{where}: path")
    if path == volume_root or not is_within(path, volume_root):
        rule = f"{path} is not below the volume root {volume_root}"
        raise Refusal(f"{where}: path", rule, "mount the volume there, or bind it there")
    grants = [_grant(one, f"{where}: grants[{index}]") for index, one in enumerate(value.get("grants") or [])]
    return Declared(name, path, value.get("require_mount"), tuple(grants))


def _grant(value: Mapping[str, Any], where: str) -> Grant:
    sub_path = check_relative(value.get("sub_path") or "", f"{where}: sub_path")
    users = _names(value.get("users"), f"{where}: users")
    teams = _names(value.get("teams"), f"{where}: teams")
    runs = sorted({_run(one, f"{where}: runs") for one in value.get("runs") or []})
    if not (users or teams or runs):
        raise Refusal(where, "is for nobody", "name users, teams or runs, or take it out")
    return Grant(sub_path, users, teams, tuple(runs))


def _names(values: Iterable[str] | None, where: str) -> tuple[str, ...]:
    return tuple(sorted({shape.check_name(one, where) for one in values or []}))


def _run(value: str, where: str) -> str:
    try:
        return str(RunName.parsed(value))
    except Refusal as error:
        raise Refusal(where, str(error)) from error
