# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much users and teams may have, as an operator declares it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import Refusal
from ..runs.shape import check_name
from ..sizes import parse_quantity

_NAMED = ("users", "teams")
_DEFAULTS = ("default_user", "default_team")


@dataclass(frozen=True)
class Quotas:
    """The quotas of a host in bytes; one of 0 is none, also for whoever the default would hold for."""

    users: Mapping[str, int] = field(default_factory=dict)
    teams: Mapping[str, int] = field(default_factory=dict)
    default_user: int = 0
    default_team: int = 0

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Quotas:
        """Return the quotas that a setting declares, in which :func:`problems_of` finds nothing wrong."""
        users, teams = (
            {name: parse_quantity(size) for name, size in (value.get(kind) or {}).items()} for kind in _NAMED
        )
        default_user, default_team = (parse_quantity(value.get(name) or 0) for name in _DEFAULTS)
        return cls(users, teams, default_user, default_team)

    def of_user(self, name: str) -> int | None:
        """Return what a user may have, None when that has no limit."""
        return self.users.get(name, self.default_user) or None

    def of_team(self, name: str) -> int | None:
        """Return what a team may have, None when that has no limit."""
        return self.teams.get(name, self.default_team) or None


def problems_of(value: Any) -> list[str]:
    """Return everything that is wrong with a declaration of quotas, each as what it is about and what is required."""
    if not isinstance(value, Mapping):
        return ["must be a mapping with users, teams, default_user and default_team"]
    problems = []
    known = (*_NAMED, *_DEFAULTS)
    for name, given in value.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            problems.append(f"{name}: no such quota" + (f"; did you mean {near[0]}?" if near else ""))
        elif name in _DEFAULTS:
            problems += _size_problem(name, given or 0)
        elif not isinstance(given, Mapping) and given is not None:
            problems.append(f"{name}: must be a mapping of names to sizes")
        else:
            for one, size in (given or {}).items():
                problems += _name_problem(name, one)
                problems += _size_problem(f"{name}: {one}", size)
    return problems


def _name_problem(kind: str, name: Any) -> list[str]:
    """Refuse what nobody can be called: such a quota would never hold anybody."""
    try:
        check_name(str(name), kind)
    except Refusal as error:
        return [str(error)]
    return []


def _size_problem(name: str, size: Any) -> list[str]:
    try:
        parse_quantity(size, name)
    except Refusal as error:
        return [str(error)]
    return []
