# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host may take new jobs, and why not: a pure decision over what the daemon knows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..accounting.exceeded import exceeded_text
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
REASONS = (WATERMARK, UNAVAILABLE, QUOTA, HELD, STALE)

DEFAULT_WATERMARK_PCT = 90.0

_DATA_LOCATION = "data-location"
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
    def identity(self) -> tuple[str, str, str, str]:
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
) -> list[Hold]:
    """Return everything that holds jobs now: what holds all of them first.

    :param filesystems: the daemon's section of that name: each with its room, and the objects that are on it
    :param locations: the daemon's section of that name: each with its path, and whether it is there
    :param accounts: the daemon's section of that name, empty while nothing has been measured
    :param declared: what is held because somebody said so
    :param watermark_pct: how full a filesystem may be; 0 turns this off, and holds nothing for a missing location
    """
    found = list(declared)
    if watermark_pct > 0:
        found += _missing(locations)
        found += _too_full(filesystems, watermark_pct)
    return found + _over_quota(accounts)


def used_percent(filesystem: Mapping[str, Any]) -> int:
    """Return how full a filesystem is as ``df`` prints it: rounded up, without what is kept for root."""
    used, usable = _used(filesystem)
    return -(-used * 100 // usable) if usable > 0 else 0


def _used(filesystem: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bytes that are used, and those that users can have at all."""
    used = filesystem["size"] - filesystem["free"]
    return used, used + filesystem["avail"]


def _too_full(filesystems: Iterable[Mapping[str, Any]], watermark_pct: float) -> list[Hold]:
    """Return a hold for each local filesystem of a location that is past the mark, the fullest first.

    Each counts for itself, and once: an empty disk makes up for no full one.
    """
    past: dict[str, Mapping[str, Any]] = {}
    for one in filesystems:
        used, usable = _used(one)
        if not one["shared"] and any(map(_is_location, one["objects"])) and used * 100 > watermark_pct * usable:
            past[one["id"]] = one
    return [
        Hold(
            WATERMARK,
            f"filesystem {printable(one['mountpoint'])} is {used_percent(one)} % full, "
            f"the watermark is {watermark_pct:g} %",
        )
        for one in sorted(past.values(), key=lambda one: (-used_percent(one), str(one["mountpoint"])))
    ]


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
    return found
