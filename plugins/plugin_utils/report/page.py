# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of a report: one HTML file that needs nothing else, in a browser with or without scripts.

Everything that hosts told is escaped by the template, and the page's own policy lets a browser run and apply nothing
but the one script and the one style that are in it, known by their digests.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from ansible_collections.stowage.host.plugins.module_utils.sizes import decimal
from ansible_collections.stowage.host.plugins.module_utils.spans import ago

from . import drives
from .hosts import used_pct
from .told import Part, folded, some

HERE = Path(__file__).resolve().parent

LIMITS = {
    "attention": 20,
    "copies": 25,
    "copies_of_drive": 10,
    "events": 60,
    "filesystems": 8,
    "lines": 8,
    "network_mounts": 40,
    "owners": 15,
    "paths": 3,
    "sources": 10,
    "tiers": 20,
    "volumes": 100,
}
"""How many of each are shown; of the rest the number is told, and they are in the JSON document."""

_WATERMARK_PCT = 90
"""What passes for full where a gate has no watermark."""
_NEAR = 10
"""So many percent below it the color changes."""


def page(report: Mapping[str, Any]) -> str:
    """Return the page of a report."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return _template().render(
        report=report,
        limits=LIMITS,
        largest=_largest(report["drives"]),
        mount_counts=_mount_counts(report["network_mounts"]),
        tracked=_tracked(report["accounts"]["tracked"]),
        style=Markup(style),
        style_hash=_digest(style),
        script=Markup(script),
        script_hash=_digest(script),
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(_FILTERS)
    return environment.get_template("page.html.j2")


@pass_context
def _age(context: Context, moment: float) -> str:
    """Return how long a time was before the report was made, in words."""
    return ago(context["report"]["made"] - moment)


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# -- What the template would be too long for


def _largest(listed: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return the copies that take most on their disks, with the widths of their bars."""
    named = (
        {**copy, "drive": f"{drive['workspace']}/{drive['name']}", "evictable": drive["evictable"]}
        for drive in listed
        for copy in drive["copies"]
        if copy["allocated"] is not None
    )
    found = sorted(named, key=lambda one: (-one["allocated"], one["drive"], one["host"]))[: LIMITS["copies"]]
    return [{**one, "width": _share(one["allocated"], found[0]["allocated"])} for one in found]


def _mount_counts(mounts: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return how many network mounts there are in each state and over each transport."""
    states = Counter(f"{one['state']}{' over ' + one['proto'].upper() if one['proto'] else ''}" for one in mounts)
    return sorted(states.items(), key=lambda pair: (-pair[1], pair[0]))


def _tracked(kinds: Mapping[str, Mapping[str, Any]]) -> list[Part]:
    """Return the kinds of tracked files, the largest first, with their parts of a bar."""
    largest = sorted(kinds.items(), key=lambda pair: -(pair[1]["bytes"] or 0))
    shares = _shares([(one["bytes"] or 0, f"k{min(number, 5)}") for number, (_kind, one) in enumerate(largest)])
    return [{**share, **one, "name": kind} for (kind, one), share in zip(largest, shares)]


def _share(part: int | None, whole: int | None) -> float | None:
    """Return a part in percent of the whole; None when one of them is not known."""
    if part is None or not whole:
        return None
    return round(min(100.0, 100 * part / whole), 1)


def _shares(parts: Sequence[Sequence[Any]]) -> list[Part]:
    """Return where in a bar each of some amounts is, given with the class of its color."""
    total = sum(amount for amount, _level in parts)
    found, x = [], 0.0
    for amount, level in parts:
        width = 100 * amount / total if total else 0.0
        found.append({"x": round(x, 2), "width": round(width, 2), "level": level})
        x += width
    return found


def _columns(counts: Sequence[int]) -> list[Part]:
    """Return the columns of the histogram of fullness."""
    most = max(counts) or 1
    found = []
    for number, count in enumerate(counts):
        height = max(1.0, round(48 * count / most, 1))
        title = f"{number * 10 + 1 if number else 0} to {number * 10 + 10} % full: {_counted(count, 'host')}"
        level = _level(number * 10 + 1, _WATERMARK_PCT)
        found.append(
            {
                "x": number * 22 + 2,
                "y": round(62 - height, 1),
                "height": height,
                "level": level if count else "none",
                "count": count,
                "label": number * 10 + 10,
                "title": title,
            }
        )
    return found


@pass_context
def _together(context: Context, figures: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Return what is incomplete on a host, together where it is so since about the same time and for one reason."""
    found: dict[tuple[str, str], Part] = {}
    for one in figures:
        age = "" if one["measured"] is None else _age(context, one["measured"])
        found.setdefault((age, one["reason"]), {**one, "names": []})["names"].append(one["what"])
    return list(found.values())


def _level(used: float | None, watermark: float | None = None) -> str:
    """Return the color for how full something is."""
    mark = watermark or _WATERMARK_PCT
    if used is None:
        return "none"
    return "bad" if used > mark else "warn" if used > mark - _NEAR else "ok"


def _gate_chip(host: Mapping[str, Any]) -> Part:
    """Return the word for a host's gate, its color, and its rank when the held ones come first."""
    if not host["answers"]:
        word = "no answer" if not host["reached"] else "no report"
        return {"word": word, "level": "bad", "rank": 3}
    gate = host["gate"]
    if gate["open"] is None:
        return {"word": "not known", "level": "none", "rank": 1}
    if not gate["open"]:
        return {"word": "held", "level": "bad", "rank": 4}
    if gate["holds"]:
        return {"word": "held for some", "level": "warn", "rank": 2}
    return {"word": "open", "level": "ok", "rank": 0}


_DRIVE_LEVELS = {
    drives.AVAILABLE: "ok",
    drives.DELETED: "none",
    drives.NOT_KNOWN: "none",
    drives.NOT_DECLARED: "warn",
    drives.UNAVAILABLE: "bad",
    drives.UNREACHABLE: "bad",
}
_MOUNT_LEVELS = {"Bound": "ok", "Failed": "bad", "Unreachable": "bad", "Released": "none"}


def _answers(drive: Mapping[str, Any]) -> str:
    """Return whether a drive answers: of one that is on many machines on how many."""
    yes, no = drive["answers"]["yes"], drive["answers"]["no"]
    if yes + no == 0:
        return "per host" if drive["placed"] else "not known"
    if yes + no == 1:
        return "yes" if yes else "no"
    return f"{yes:,} of {yes + no:,}"


def _counted(number: int, what: str, several: str = "") -> str:
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def _at(moment: float, form: str) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime(form)


_FILTERS: dict[str, Callable[..., Any]] = {
    "age": _age,
    "answers": _answers,
    "columns": _columns,
    "counted": _counted,
    "drive_level": lambda state: _DRIVE_LEVELS[state],
    "drive_rank": lambda state: ("none", "ok", "warn", "bad").index(_DRIVE_LEVELS[state]),
    "gate_chip": _gate_chip,
    "folded": folded,
    "grouped": "{:,}".format,
    "level": _level,
    "mount_level": lambda state: _MOUNT_LEVELS.get(state, "warn"),
    "quota_level": lambda one: (
        "bad" if one["exceeded_since"] is not None else _level(_share(one["bytes"], one["quota"]))
    ),
    "quota_pct": lambda one: _share(one["bytes"], one["quota"]),
    "share_of": lambda one, largest: _share(one["bytes"], largest["bytes"]),
    "shares": _shares,
    "size": decimal,
    "some": some,
    "together": _together,
    "stamp": lambda moment: _at(moment, "%Y-%m-%dT%H:%M:%SZ"),
    "tier_pct": lambda one: _share(one["bytes"], one["capacity"]),
    "tier_used_pct": lambda one: _share(one["allocated"], one["capacity"]),
    "used_pct": lambda room: used_pct(room["used_bytes"], room["free_bytes"]),
    "utc": lambda moment: _at(moment, "%-d %B %Y, %H:%M UTC"),
}
