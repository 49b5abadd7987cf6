# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The accounts with their quotas: who has more than his quota, and since when. Nothing here does I/O.

A quota counts as exceeded until a complete measurement finds it kept, or it is raised or taken away: what could not be
measured has not become less. Of whom something is missing the larger of the last and the present figures count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from ..errors import printable
from ..sizes import decimal
from .quotas import Quotas
from .totals import UNLISTED, Totals

Accounts = dict[str, Any]
"""What the daemon shows and records; see docs/accounting.md."""
Entries = Mapping[str, Mapping[str, Any]]

EXCEEDED, KEPT = "QuotaExceeded", "QuotaKept"


class Change(NamedTuple):
    """A quota that is exceeded now, or kept again."""

    object: str
    reason: str
    message: str


def check(value: Mapping[str, Any]) -> None:
    """Raise AttributeError, KeyError or TypeError when a record holds no accounts; an empty one holds none yet."""
    for kind in ("users", "teams") if value else ():
        for name, one in value[kind].items():
            figures = [one[key] for key in ("bytes", "allocated", "runs", "quota", "exceeded_since")]
            if not all(isinstance(figure, (int, float, type(None))) for figure in figures):
                raise TypeError(f"{name}: {figures!r}")


def accounts(found: Totals, quotas: Quotas, before: Mapping[str, Any], now: float) -> Accounts:
    """Return the accounts of now.

    :param before: the accounts until now, empty when there are none
    """
    users = {name: {"bytes": one.bytes, **vars(one)} for name, one in found.users.items()}
    teams = {name: vars(one) for name, one in found.teams.items()}
    lacks = found.missing
    lacking_users = _Missing(not found.users_complete, lacks.unseen, lacks.users)
    lacking_teams = _Missing(not found.teams_complete or lacks.unseen, False, lacks.teams)
    return {
        "measured": found.measured,
        "complete": found.complete,
        "unavailable": [one._asdict() for one in found.unavailable],
        "users": _with_quotas(users, quotas.of_user, before.get("users", {}), lacking_users, now),
        "teams": _with_quotas(teams, quotas.of_team, before.get("teams", {}), lacking_teams, now),
        "unmatched": {
            "users": sorted(name for name, size in quotas.users.items() if size and name not in users),
            "teams": sorted(name for name, size in quotas.teams.items() if size and name not in teams),
        },
        "unproven": vars(found.unproven),
        "beyond": {**vars(found.beyond), **_unknown_by(found, quotas)},
        "tracked": dict(found.tracked),
        "tracked_bytes": found.tracked_bytes,
    }


def _unknown_by(found: Totals, quotas: Quotas) -> dict[str, Any]:
    """Return whose quota may be exceeded by one of those who are only added up: of whom nothing is known else.

    All have less than everybody who is told from them. So when the largest of them is within a quota they all are.
    """
    most = found.beyond.most
    users = [name for name, size in quotas.users.items() if 0 < size < most and name not in found.users]
    return {"users": sorted(users), "others": 0 < quotas.default_user < most}


class _Missing(NamedTuple):
    """Whose figures may lack something: everybody's, those of others than were found, or those of some, and why."""

    everybody: bool
    others: bool
    some: Mapping[str, str]


def _with_quotas(
    found: Entries, quota_of: Callable[[str], int | None], before: Entries, missing: _Missing, now: float
) -> dict[str, dict[str, Any]]:
    # Whose figures got lost keeps the last ones until it is known again that there is nothing.
    known = {**before, **found} if missing.everybody or missing.others else found
    entries = {name: dict(one) for name, one in known.items()}
    for name, one in entries.items():
        quota = quota_of(name)
        last = before.get(name, {})
        is_whole = name in found and not missing.everybody and name not in missing.some
        if not is_whole and last.get("bytes", 0) > one["bytes"]:
            one.update(last)
        since = last.get("exceeded_since")
        if quota is None:
            since = None
        elif one["bytes"] > quota:
            since = now if since is None else since
        elif is_whole or quota > (last.get("quota") or 0):
            since = None
        one.update(quota=quota, exceeded_since=since, missing=missing.some.get(name, ""))
    return entries


def changes(before: Mapping[str, Any], after: Accounts) -> list[Change]:
    """Return which quotas have come to be exceeded, and which are kept again."""
    found = []
    for kind in ("user", "team"):
        old, new = before.get(f"{kind}s", {}), after[f"{kind}s"]
        for name in sorted({*old, *new}):
            was, now = (entries.get(name, {}).get("exceeded_since") is not None for entries in (old, new))
            if now and not was:
                found.append(Change(f"{kind}/{name}", EXCEEDED, exceeded_text(kind, name, new[name])))
            elif was and not now:
                found.append(Change(f"{kind}/{name}", KEPT, _kept_text(kind, name, new.get(name))))
    return found


def exceeded_text(kind: str, name: str, entry: Mapping[str, Any]) -> str:
    """Return who has how much of what quota, in words; in bytes where both would look alike otherwise."""
    used, quota = decimal(entry["bytes"]), decimal(entry["quota"])
    if used == quota:
        used, quota = f"{entry['bytes']} B", f"{entry['quota']} B"
    return f"{kind} {printable(name)} uses {used} of {quota}"


def unlisted_text(name: str) -> str:
    """Return why it is not known whether a user's quota is kept."""
    return f"what user {printable(name)} uses is not known: {UNLISTED}"


def _kept_text(kind: str, name: str, entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return f"{kind} {printable(name)} has nothing any more"
    if entry["quota"] is None:
        return f"{kind} {printable(name)} has no quota any more"
    return f"{exceeded_text(kind, name, entry)}, which is within the quota again"
