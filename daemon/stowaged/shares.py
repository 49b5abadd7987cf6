# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a location is: found out by the walk that measures it, as parts of that."""

from __future__ import annotations

import os
import pwd
import stat
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from stowage_core import records
from stowage_core.accounting import totals
from stowage_core.accounting.totals import MOST_USERS, Missing, Rest, Shares, Team, Unavailable, User, keep_largest
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

_MOST_REASONS = 3
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
"""Also what an access list lets others do: the group's permissions are the most that it can give."""
REFLOW, CACHE = f"location/{totals.REFLOW}", f"location/{totals.CACHE}"


class Sharing(Protocol):
    """What finds out whose a location is while that is walked."""

    deepest: int
    is_for_quotas: bool
    """Whether quotas count what it finds."""

    def begins(self, names: Names, directory: Directory) -> Iterable[Part]:
        """Return the parts that a directory is, *names* below the location, and at most *deepest* levels."""

    def shares(self, complete: bool) -> Shares | None:
        """Return whose it is, after it was walked; None when that walk was not *complete* enough to tell."""


def of_target(places: Places, target: Target, send: Send) -> Sharing | None:
    """Return what finds out whose a target is; None where nobody wants to know more than its size."""
    if target.object == RUNS:
        return RunsSharing(places, target, send)
    if target.object == REFLOW:
        return ReflowSharing()
    return CacheSharing() if target.object == CACHE else None


def nothing_hidden(usage: Usage) -> Usage:
    """Return a usage that is complete only without a mount below: whoever may mount (FUSE) could hide what he has."""
    return replace(usage, complete=not usage.problems)


def _bounded(users: dict[str, User], beyond: Rest) -> Rest:
    """Keep *users* from growing while a location is walked; it is not worth the while for each single one."""
    return keep_largest(users, beyond) if len(users) >= 2 * MOST_USERS else beyond


class _Lacking:
    """Notes whose figures are not complete, while a location is walked."""

    def __init__(self) -> None:
        self._users: dict[str, str] = {}
        self._teams: dict[str, str] = {}
        self._unseen = False

    def beside(self) -> Part:
        """Return the part of a location that is no user's: what is missing there may be anybody's."""
        return Part(self._take_beside, rest=True)

    def _take_beside(self, usage: Usage) -> None:
        self._unseen = not nothing_hidden(usage).complete

    def add(self, user: str, teams: Iterable[str], usage: Usage) -> None:
        if len(self._users) >= MOST_USERS and user not in self._users:
            self._unseen = self._unseen or not nothing_hidden(usage).complete
        elif not nothing_hidden(usage).complete:
            why = "; ".join(usage.problems[:_MOST_REASONS])
            self._users.setdefault(user, why)
            for team in teams:
                self._teams.setdefault(team, why)

    def missing(self, complete: bool) -> Missing | None:
        return None if complete else Missing(self._users, self._teams, self._unseen)


class RunsSharing:
    """Adds the runs up by user, with what lies beside them in the user's directory, and by team."""

    deepest = len(RunName._fields)
    is_for_quotas = True

    def __init__(self, places: Places, target: Target, send: Send) -> None:
        self.runs = Runs(places)
        self._places = places
        self._target = target
        self._send = send
        self._users: dict[str, User] = {}
        self._beyond = Rest()
        self._teams: dict[str, Team] = {}
        self._lacking = _Lacking()
        self._damaged: list[Unavailable] = []
        self._stamps: dict[str, Stamp] = {}
        """Of the user whose directory the walk is in."""

    def begins(self, names: Names, directory: Directory) -> Iterable[Part]:
        if not names:
            yield self._lacking.beside()
        elif not is_somebodys(names[0]):
            return
        elif len(names) == 1:
            self._enter(names[0])
            yield Part(partial(self._beside, names[0]), rest=True, hides=True)
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
        usage = nothing_hidden(usage)
        self.runs.add(str(run), usage)
        self._add(run.user, 1, usage)
        self._lacking.add(run.user, [] if team is None else [team], usage)
        if team is not None:
            before = self._teams.get(team, Team())
            allocated = before.allocated + usage.allocated
            self._teams[team] = Team(before.bytes + usage.bytes, before.runs + 1, allocated)

    def _beside(self, user: str, usage: Usage) -> None:
        """Take on what is in no run of a user; runs of any team that he works for may be what is missing there."""
        self._add(user, 0, usage)
        self._lacking.add(user, {one.team for one in self._stamps.values()}, usage)
        self._beyond = _bounded(self._users, self._beyond)

    def _add(self, user: str, runs: int, usage: Usage) -> None:
        before = self._users[user]
        self._users[user] = User(
            before.runs + runs, before.runs_bytes + usage.bytes, allocated=before.allocated + usage.allocated
        )

    def shares(self, complete: bool) -> Shares:
        self._beyond = keep_largest(self._users, self._beyond)
        found = Shares(
            self._users, self._teams, time.time(), missing=self._lacking.missing(complete), beyond=self._beyond
        )
        if not self._damaged:
            return found
        # Runs whose stamps cannot be read have not lost their team: the teams stay what they were.
        before = last_shares(last_measured(self._places, self._target, self._send)) or Shares()
        return replace(found, teams=before.teams, teams_measured=before.teams_measured, damaged=self._damaged)


class _Named:
    """Says for whom the directories at the top of a location count.

    For whom they are named after, where only root and the owner of the location give names. Where others may make
    directories there, each could take anybody's name, or give anybody's directory another one: then one counts for its
    own owner, and with the name that root or the location's owner gave it where nobody else can have changed that.
    """

    def __init__(self) -> None:
        self._top: os.stat_result | None = None
        self._accounts: dict[int, str] = {}

    def enter(self, top: os.stat_result) -> None:
        self._top = top

    def user(self, name: str, status: os.stat_result) -> str | None:
        """Return the user of a directory: "" when nobody is proven to be, and None when it is no user's at all."""
        top = self._top
        assert top is not None
        if not top.st_mode & _OTHERS_WRITE:
            return name if is_somebodys(name) else None
        if status.st_uid not in (0, top.st_uid):
            return self._account(status.st_uid)
        if not is_somebodys(name):
            return None
        # One that others may write to can also have been moved there from elsewhere.
        return name if top.st_mode & stat.S_ISVTX and not status.st_mode & _OTHERS_WRITE else ""

    def _account(self, uid: int) -> str:
        if uid not in self._accounts:
            try:
                self._accounts[uid] = pwd.getpwuid(uid).pw_name
            except KeyError:
                self._accounts[uid] = ""
        return self._accounts[uid]


class ReflowSharing:
    """Adds the captured traffic up by user: what is a level below the location."""

    deepest = 1
    is_for_quotas = True

    def __init__(self) -> None:
        self._named = _Named()
        self._users: dict[str, User] = {}
        self._beyond = Rest()
        self._unproven = Rest()
        self._lacking = _Lacking()

    def begins(self, names: Names, directory: Directory) -> Iterable[Part]:
        if not names:
            self._named.enter(directory.status)
            yield self._lacking.beside()
        elif len(names) == 1:
            user = self._named.user(names[0], directory.status)
            if user is not None:
                found = partial(self._add, user) if user else partial(self._add_unproven, names[0])
                yield Part(found, hides=True)

    def _add(self, user: str, usage: Usage) -> None:
        before = self._users.get(user, User())
        size, allocated = before.reflow_bytes + usage.bytes, before.allocated + usage.allocated
        self._users[user] = User(reflow_bytes=size, allocated=allocated)
        self._lacking.add(user, [], usage)
        self._beyond = _bounded(self._users, self._beyond)

    def _add_unproven(self, name: str, usage: Usage) -> None:
        self._unproven = self._unproven.add(name, usage.bytes)

    def shares(self, complete: bool) -> Shares:
        self._beyond = keep_largest(self._users, self._beyond)
        missing = self._lacking.missing(complete)
        return Shares(self._users, missing=missing, unproven=self._unproven, beyond=self._beyond)


class CacheSharing:
    """Finds out what is in the parent of the caches and in none of them."""

    deepest = 0
    is_for_quotas = False

    def __init__(self) -> None:
        self._rest = 0

    def begins(self, names: Names, directory: Directory) -> Iterable[Part]:
        if not names:
            yield Part(self._take, rest=True)

    def _take(self, usage: Usage) -> None:
        self._rest = usage.bytes

    def shares(self, complete: bool) -> Shares | None:
        return Shares(rest=self._rest) if complete else None
