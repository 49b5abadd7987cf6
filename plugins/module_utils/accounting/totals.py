# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose the space is: what was found in each location, added up by user, by team and by kind. Nothing here does I/O.

Of a location that could not be measured the last complete figures count, and the totals say that they are not complete.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from .. import records
from ..layout.rules import PURPOSES

ROOT = "root"
"""The root of the layout: what lies beneath it in no location counts as other."""
RUNS, REFLOW, CACHE = "runs", "reflow", "cache"
CACHES, OTHER = "caches", "other"
KINDS = (RUNS, REFLOW, CACHES, "packages", "state", OTHER)
_KIND_OF = {purpose.name: CACHES if purpose.in_cache else purpose.name for purpose in PURPOSES}
_KIND_OF.update({CACHE: OTHER, ROOT: OTHER})
_SHARED = (RUNS, REFLOW, CACHE)
"""Of what more than the size has to be known."""
UNMEASURED = "has not been measured yet"
UNSEEN = "not all directories of users could be listed"
MOST_USERS = 10_000
"""How many users of a location are told from each other: the daemon looks at all of them in its one loop."""
UNLISTED = f"only the {MOST_USERS} largest users of a location are told from each other"


@dataclass(frozen=True)
class User:
    """What a user has: runs, with what lies beside them in the user's directory, and reflow."""

    runs: int = 0
    runs_bytes: int = 0
    reflow_bytes: int = 0
    allocated: int = 0
    """What all of it takes on the disk, which no quota is about."""

    @property
    def bytes(self) -> int:
        return self.runs_bytes + self.reflow_bytes


@dataclass(frozen=True)
class Team:
    """What the runs take that are stamped with a team."""

    bytes: int = 0
    runs: int = 0
    allocated: int = 0


_Counted = TypeVar("_Counted", User, Team)


class Unavailable(NamedTuple):
    """What is not in the figures as it is now, and why."""

    location: str
    path: str
    reason: str


@dataclass(frozen=True)
class Rest:
    """Directories that are only added up."""

    count: int = 0
    bytes: int = 0
    most: int = 0
    """The bytes of the largest."""
    first: str = ""
    """The name of the one that was come across first."""

    def add(self, name: str, size: int) -> Rest:
        return Rest(self.count + 1, self.bytes + size, max(self.most, size), self.first or name)

    def and_those(self, other: Rest) -> Rest:
        """Return both; somebody may be the largest in each."""
        return Rest(
            self.count + other.count, self.bytes + other.bytes, self.most + other.most, self.first or other.first
        )


def keep_largest(users: dict[str, User], rest: Rest, most: int = MOST_USERS) -> Rest:
    """Take all but the *most* largest out of *users*, and return them with those that were taken out before."""
    for name in heapq.nsmallest(max(0, len(users) - most), users, key=lambda name: (users[name].bytes, name)):
        rest = rest.add(name, users.pop(name).bytes)
    return rest


@dataclass(frozen=True)
class Missing:
    """Whose figures lack something, as the measurement was not complete: why, by name."""

    users: Mapping[str, str] = field(default_factory=dict)
    teams: Mapping[str, str] = field(default_factory=dict)
    unseen: bool = False
    """Whether there may be users that were not come across."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Missing:
        users, teams = ({name: str(why) for name, why in value[kind].items()} for kind in ("users", "teams"))
        return records.typed(cls, {**value, "users": users, "teams": teams})


@dataclass(frozen=True)
class Shares:
    """Whose a location is, as it was last measured."""

    users: Mapping[str, User] = field(default_factory=dict)
    teams: Mapping[str, Team] = field(default_factory=dict)
    teams_measured: float | None = None
    """When that was known of all runs; None when it never was, or it is no location of runs."""
    damaged: Sequence[Unavailable] = ()
    """Stamps that could not be read: the teams are those of the time before."""
    rest: int | None = None
    """Of the cache: the bytes that are in none of the caches below it."""
    missing: Missing | None = None
    """What it lacks; None when it was measured to the end."""
    unproven: Rest = Rest()
    """Directories with somebody's name that anybody may have given them: they count for nobody."""
    beyond: Rest = Rest()
    """Users beyond the largest, who are not among *users*."""

    def to_json(self) -> dict[str, Any]:
        return {
            "users": {name: vars(one) for name, one in self.users.items()},
            "teams": {name: vars(one) for name, one in self.teams.items()},
            "teams_measured": self.teams_measured,
            "damaged": [one._asdict() for one in self.damaged],
            "rest": self.rest,
            "missing": None if self.missing is None else vars(self.missing),
            "unproven": vars(self.unproven),
            "beyond": vars(self.beyond),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Shares:
        """Return what a record or message holds; AttributeError, KeyError or TypeError when that is something else."""
        return records.typed(
            cls,
            {
                "users": {name: _counted(User, one) for name, one in value["users"].items()},
                "teams": {name: _counted(Team, one) for name, one in value["teams"].items()},
                "teams_measured": value["teams_measured"],
                "damaged": tuple(Unavailable(**one) for one in value["damaged"]),
                "rest": value["rest"],
                "missing": None if value["missing"] is None else Missing.from_json(value["missing"]),
                "unproven": records.typed(Rest, value["unproven"]),
                "beyond": records.typed(Rest, value["beyond"]),
            },
        )


def _counted(cls: type[_Counted], value: Mapping[str, int]) -> _Counted:
    """Return what somebody has; there may be thousands of them in a record that is read often."""
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in value.values()):
        raise TypeError(f"{value!r}")
    return cls(**value)


@dataclass(frozen=True)
class Location:
    """What is known of a location, or of the root: the last complete figures, and what is wrong with the latest."""

    name: str
    path: str
    bytes: int | None
    measured: float | None
    complete: bool
    reason: str = ""
    shares: Shares | None = None

    @property
    def is_known(self) -> bool:
        return self.bytes is not None and (self.shares is not None or self.name not in _SHARED)

    @property
    def counts(self) -> int:
        """Return the bytes that count as of its kind: caches below the cache count for themselves."""
        own = self.bytes if self.name != CACHE or self.shares is None else self.shares.rest
        return own or 0


@dataclass(frozen=True)
class Totals:
    """The accounts of a host without their quotas."""

    measured: float | None
    """The time since when all of it is known; None while something was never measured."""
    unavailable: Sequence[Unavailable]
    users: Mapping[str, User]
    users_complete: bool
    teams: Mapping[str, Team]
    teams_complete: bool
    tracked: Mapping[str, int | None]
    """The bytes of each kind, None where nothing of it is known."""
    missing: Missing = Missing()
    """Whose figures alone are not complete."""
    unproven: Rest = Rest()
    """What is in reflow under somebody's name and counts for nobody."""
    beyond: Rest = Rest()
    """The users of runs and of reflow who are not told from each other there."""

    @property
    def complete(self) -> bool:
        return not self.unavailable and not self.beyond.count

    @property
    def tracked_bytes(self) -> int | None:
        known = [size for size in self.tracked.values() if size is not None]
        return sum(known) if known else None


def totals(locations: Iterable[Location]) -> Totals:
    """Return the totals over what a host measures."""
    found = [one for one in locations if one.name in _KIND_OF]
    known = [one for one in found if one.is_known]
    failing = [one for one in found if not (one.complete and one.is_known)]
    unavailable = [Unavailable(one.name, one.path, one.reason or UNMEASURED) for one in failing]
    shares = {one.name: one.shares for one in found if one.shares is not None}
    runs, reflow = shares.get(RUNS, Shares()), shares.get(REFLOW, Shares())
    users = _users(runs.users, reflow.users)
    times = [one.measured for one in known] + ([runs.teams_measured] if runs.damaged else [])
    # What was measured, and not to the end, says whose figures lack something; of all else nobody's are those of now.
    failed = {one.name for one in failing if one.shares is None or one.shares.missing is None}
    return Totals(
        measured=_oldest(times) if len(known) == len(found) else None,
        unavailable=[*unavailable, *runs.damaged],
        users=users,
        users_complete=not failed & {RUNS, REFLOW},
        teams=runs.teams,
        teams_complete=RUNS not in failed and not runs.damaged,
        tracked=_tracked(known),
        missing=_missing([reflow, runs], users),
        unproven=reflow.unproven,
        beyond=runs.beyond.and_those(reflow.beyond),
    )


def _missing(shares: Iterable[Shares], users: Iterable[str]) -> Missing:
    """Return whose figures lack something in one location or the other."""
    found = Missing({}, {})
    for one in shares:
        if one.beyond.most:
            unlisted = {name: UNLISTED for name in users if name not in one.users}
            found = replace(found, users={**found.users, **unlisted})
        if one.missing is not None:
            unseen = {name: UNSEEN for name in users if name not in one.users} if one.missing.unseen else {}
            found = Missing(
                {**found.users, **unseen, **one.missing.users},
                {**found.teams, **one.missing.teams},
                found.unseen or one.missing.unseen,
            )
    return found


def _oldest(times: Sequence[float | None]) -> float | None:
    known = [one for one in times if one is not None]
    return min(known) if known and len(known) == len(times) else None


def _users(runs: Mapping[str, User], reflow: Mapping[str, User]) -> dict[str, User]:
    users = {}
    for name in sorted({*runs, *reflow}):
        one, traffic = runs.get(name, User()), reflow.get(name, User())
        users[name] = User(one.runs, one.runs_bytes, traffic.reflow_bytes, one.allocated + traffic.allocated)
    return users


def _tracked(known: Iterable[Location]) -> dict[str, int | None]:
    tracked: dict[str, int | None] = dict.fromkeys(KINDS)
    for one in known:
        kind = _KIND_OF[one.name]
        tracked[kind] = (tracked[kind] or 0) + one.counts
    return tracked
