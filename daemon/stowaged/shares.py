# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a location is: found out by the walk that measures it, as parts of that."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from stowage_core import records
from stowage_core.accounting import totals
from stowage_core.accounting.totals import Shares, Team, Unavailable, User
from stowage_core.errors import printable
from stowage_core.places import Places
from stowage_core.runs import stamps
from stowage_core.runs.shape import RunName, is_somebodys
from stowage_core.runs.stamps import Stamp
from stowage_core.trees.measure import Usage
from stowage_core.trees.parts import Names, Part
from stowage_core.trees.walk import Directory

from .children import Send
from .declared import Target
from .last_measured import last_measured, last_shares
from .runs import RUNS, Runs

REFLOW, CACHE = f"location/{totals.REFLOW}", f"location/{totals.CACHE}"


class Sharing(Protocol):
    """What finds out whose a location is while that is walked."""

    deepest: int

    def begins(self, names: Names, directory: Directory) -> Iterable[Part]:
        """Return the parts that a directory is, *names* below the location, and at most *deepest* levels."""

    def shares(self) -> Shares:
        """Return whose it is, after it was walked."""


def of_target(places: Places, target: Target, send: Send) -> Sharing | None:
    """Return what finds out whose a target is; None where nobody wants to know more than its size."""
    if target.object == RUNS:
        return RunsSharing(places, send)
    if target.object == REFLOW:
        return ReflowSharing()
    return CacheSharing() if target.object == CACHE else None


class RunsSharing:
    """Adds the runs up by user, with what lies beside them in the user's directory, and by team."""

    deepest = len(RunName._fields)

    def __init__(self, places: Places, send: Send) -> None:
        self.runs = Runs(places)
        self._places = places
        self._send = send
        self._users: dict[str, User] = {}
        self._teams: dict[str, Team] = {}
        self._damaged: list[Unavailable] = []
        self._stamps: dict[str, Stamp] = {}
        """Of the user whose directory the walk is in."""

    def begins(self, names: Names, directory: Directory) -> Iterable[Part]:
        if not names or not is_somebodys(names[0]):
            return
        if len(names) == 1:
            self._enter(names[0])
            yield Part(partial(self._add, names[0], 0), rest=True)
        elif RunName.is_one(names):
            yield Part(partial(self._run, RunName(*names), self._team(RunName(*names), directory)), hides=True)

    def _enter(self, user: str) -> None:
        self._users[user] = User()
        self._stamps = {}
        try:
            self._stamps = stamps.load(self._places, user)
        except records.RecordError as error:
            path = stamps.user_dir(self._places, user)
            self._damaged.append(Unavailable(totals.RUNS, path, str(error)))

    def _team(self, run: RunName, directory: Directory) -> str | None:
        stamp = self._stamps.get(run.in_user)
        try:
            return stamp.team if stamp is not None and stamp.matches(directory.fd) else None
        except OSError as error:
            self._damaged.append(Unavailable(totals.RUNS, str(run), f"run {printable(str(run))}: {error.strerror}"))
            return None

    def _run(self, run: RunName, team: str | None, usage: Usage) -> None:
        self.runs.add(str(run), usage)
        self._add(run.user, 1, usage)
        if team is not None:
            before = self._teams.get(team, Team())
            self._teams[team] = Team(before.bytes + usage.bytes, before.runs + 1)

    def _add(self, user: str, runs: int, usage: Usage) -> None:
        before = self._users[user]
        self._users[user] = User(before.runs + runs, before.runs_bytes + usage.bytes)

    def shares(self) -> Shares:
        if not self._damaged:
            return Shares(self._users, self._teams, time.time())
        # Runs whose stamps cannot be read have not lost their team: the teams stay what they were.
        before = last_shares(last_measured(self._places, RUNS, self._send)) or Shares()
        return Shares(self._users, before.teams, before.teams_measured, self._damaged)


class ReflowSharing:
    """Adds the captured traffic up by user: what is a level below the location."""

    deepest = 1

    def __init__(self) -> None:
        self._users: dict[str, User] = {}

    def begins(self, names: Names, directory: Directory) -> Iterable[Part]:
        if len(names) == 1 and is_somebodys(names[0]):
            yield Part(partial(self._add, names[0]))

    def _add(self, user: str, usage: Usage) -> None:
        self._users[user] = User(reflow_bytes=usage.bytes)

    def shares(self) -> Shares:
        return Shares(self._users)


class CacheSharing:
    """Finds out what is in the parent of the caches and in none of them."""

    deepest = 0

    def __init__(self) -> None:
        self._rest = 0

    def begins(self, names: Names, directory: Directory) -> Iterable[Part]:
        if not names:
            yield Part(self._take, rest=True)

    def _take(self, usage: Usage) -> None:
        self._rest = usage.bytes

    def shares(self) -> Shares:
        return Shares(rest=self._rest)
