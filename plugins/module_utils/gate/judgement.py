# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host may take new jobs, and why not: a pure decision over what the daemon knows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .. import records
from ..accounting.exceeded import exceeded_text, unlisted_text
from ..accounting.quotas import Quotas
from ..accounting.totals import REFLOW, RUNS
from ..errors import printable

WATERMARK = "watermark"
"""A filesystem is fuller than the watermark."""
UNAVAILABLE = "unavailable"
"""A configured location is not there."""
QUOTA = "quota"
"""A user or a team uses more than their quota."""
HELD = "held"
"""Somebody said so."""
STALE = "stale"
"""Nobody has judged for too long."""
UNKNOWN = "unknown"
"""The daemon that judges does not know what is declared."""
REASONS = (WATERMARK, UNAVAILABLE, QUOTA, HELD, STALE, UNKNOWN)

DEFAULT_WATERMARK_PCT = 90.0
REOPENS_PCT = 1.0
"""How far below the mark a filesystem that was past it lets jobs go: one that swings around it does not do so again and
again."""

_DATA_LOCATION = "data-location"
_Identity = tuple[str, str, str, str]
_FIGURE = re.compile(r"\d+(?:\.\d+)? (?:%|s|min|h|d|[kMGTPE]?B)(?!\w)")


@dataclass(frozen=True)
class Hold:
    """One reason why jobs have to wait: all of a host, or those of one user or team."""

    reason: str
    text: str
    """The reason in words, one line."""
    user: str = ""
    team: str = ""

    @property
    def holds_all(self) -> bool:
        return not self.user and not self.team

    def concerns(self, user: str, team: str) -> bool:
        """Return whether a job of *user*, which is *team*'s, has to wait; both may be empty."""
        return self.holds_all or bool(self.user and self.user == user) or bool(self.team and self.team == team)

    @property
    def identity(self) -> _Identity:
        """What stays the same of it while only its figures change."""
        return self.reason, without_figures(self.text), self.user, self.team

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def without_figures(text: str) -> str:
    """Return *text* with its sizes, percentages and spans of time left out."""
    return _FIGURE.sub("#", text)


def judge(
    filesystems: Iterable[Mapping[str, Any]],
    locations: Iterable[Mapping[str, Any]],
    accounts: Mapping[str, Any],
    declared: Sequence[Hold],
    watermark_pct: float,
    before: Iterable[Hold] = (),
) -> list[Hold]:
    """Return everything that holds jobs now: what holds all of them first.

    :param filesystems: the daemon's section of that name: each with its room, and the objects that are on it
    :param locations: the daemon's section of that name: each with its path, and whether it is there
    :param accounts: the daemon's section of that name, empty while nothing has been measured
    :param declared: what is held because somebody said so
    :param watermark_pct: how full a filesystem may be; 0 turns this off, and holds nothing for a missing location
    :param before: what held jobs at the last judgement by that watermark
    """
    found = list(declared)
    if watermark_pct > 0:
        found += _missing(locations)
        found += _too_full(filesystems, watermark_pct, {hold.identity for hold in before})
    return found + _over_quota(accounts)


def judge_unknown(why: str, declared: Sequence[Hold], watermark_pct: float, quotas: Quotas) -> list[Hold]:
    """Return what holds jobs while it is not known what is declared, and so nothing of the host can be judged.

    :param why: why it is not known
    :param quotas: those that are declared; with none, and no watermark, there is nothing that could hold jobs
    """
    if watermark_pct <= 0 and quotas == Quotas():
        return list(declared)
    return [*declared, Hold(UNKNOWN, f"what is declared is not known: {printable(why)}")]


def used_percent(filesystem: Mapping[str, Any]) -> int:
    """Return how full a filesystem is as ``df`` prints it: rounded up, without what is kept for root."""
    used, usable = _used(filesystem)
    return -(-used * 100 // usable) if usable > 0 else 0


def _used(filesystem: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bytes that are used, and those that users can have at all."""
    used = filesystem["size"] - filesystem["free"]
    return used, used + filesystem["avail"]


def _too_full(
    filesystems: Iterable[Mapping[str, Any]], watermark_pct: float, before: Collection[_Identity]
) -> list[Hold]:
    """Return a hold for each local filesystem of a location that is past the mark, the fullest first.

    Each counts for itself, and once: an empty disk makes up for no full one.
    """
    past: dict[str, tuple[int, str, Hold]] = {}
    for one in filesystems:
        percent, point = used_percent(one), printable(one["mountpoint"])
        hold = Hold(WATERMARK, f"filesystem {point} is {percent} % full, the watermark is {watermark_pct:g} %")
        mark = watermark_pct - REOPENS_PCT if hold.identity in before else watermark_pct
        used, usable = _used(one)
        if not one["shared"] and any(map(_is_location, one["objects"])) and used * 100 > mark * usable:
            past[one["id"]] = -percent, point, hold
    return [hold for _percent, _point, hold in sorted(past.values(), key=lambda one: one[:2])]


def _is_location(name: str) -> bool:
    return name == _DATA_LOCATION or name.startswith("location/")


def _missing(locations: Iterable[Mapping[str, Any]]) -> list[Hold]:
    found = []
    for one in locations:
        if not one["available"]:
            name = "data location" if one["location"] == _DATA_LOCATION else f"location {one['location']}"
            path = printable(one["path"])
            reason = printable(one["reason"]).removeprefix(f"{path}: ") or "it was not found"
            found.append(Hold(UNAVAILABLE, f"{name} ({path}) is not available: {reason}"))
    return found


def _over_quota(accounts: Mapping[str, Any]) -> list[Hold]:
    """Return a hold for each user and team whose quota was exceeded at the last complete measurement."""
    found = []
    for kind in ("user", "team"):
        for name, one in sorted(accounts.get(f"{kind}s", {}).items()):
            if one["exceeded_since"] is not None:
                found.append(Hold(QUOTA, exceeded_text(kind, name, one), **{kind: name}))
    unknown = accounts.get("beyond", {}).get("users", ())
    return found + [Hold(QUOTA, unlisted_text(name), user=name) for name in unknown]


# -- What cannot be judged on this host

_RULE = "is measured by another host (daemon_shared_measured_by), ask there"


@dataclass(frozen=True)
class Elsewhere:
    """Which files of users and of teams another host measures: who is over quota is not known on this one."""

    user: str = ""
    """The path of such a location that counts for users, empty when there is none."""
    team: str = ""
    quotas: Quotas = field(default_factory=Quotas)
    """Those that are declared on this host."""
    unlisted: bool = False
    """Whether there are more users than are told from each other, of whom some may have more than everybody may."""

    def unknown(self, user: str, team: str) -> list[Hold]:
        """Return what is not known of a job of *user*, which is *team*'s, each as the hold that it would be."""
        return [
            Hold(
                QUOTA,
                f"what {kind} {printable(name)} uses is not known here: {printable(path)} {_RULE}",
                **{kind: name},
            )
            for kind, name, path in (("user", user, self.user), ("team", team, self.team))
            if name and path
        ]

    def holds(self, user: str, team: str) -> list[Hold]:
        """Return what of it holds that job: a quota that is declared is not kept because nobody looks."""
        limited = {"user": self.quotas.of_user(user), "team": self.quotas.of_team(team)}
        found = [hold for hold in self.unknown(user, team) if limited["user" if hold.user else "team"]]
        if self.unlisted and user and user not in self.quotas.users:
            found.append(Hold(QUOTA, unlisted_text(user), user=user))
        return found

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Elsewhere:
        return records.typed(cls, {**value, "quotas": records.typed(Quotas, value["quotas"])})


def elsewhere(
    locations: Iterable[Mapping[str, Any]], quotas: Quotas, accounts: Mapping[str, Any] | None = None
) -> Elsewhere:
    """Return what of users and teams this host does not measure, or not tell from each other.

    :param locations: as for :func:`judge`
    :param accounts: likewise
    """
    found = {one["location"]: one["path"] for one in locations if one["elsewhere"]}
    runs = found.get(RUNS, "")
    user = runs or found.get(REFLOW, "")
    unlisted = (accounts or {}).get("beyond", {}).get("others", False)
    return Elsewhere(user, runs, quotas, unlisted) if user or unlisted else Elsewhere()
