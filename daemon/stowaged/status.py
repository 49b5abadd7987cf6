# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""``stowage status``: what the daemon knows, as tables."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from stowage_core import records
from stowage_core.errors import printable
from stowage_core.places import Places
from stowage_core.sizes import decimal

from . import sections
from .tables import Column, ago, copies, percent, table

State = dict[str, dict[str, Any]]
STALE_CYCLES = 3


def read(places: Places) -> State:
    """Return the sections that are there."""
    found = {}
    for name in sections.NAMES:
        section = records.read(sections.path_of(places, name))
        if section is not None:
            found[name] = section
    return found


def stale(state: State, now: float) -> bool:
    """Return whether the daemon has stopped looking at the host."""
    cycle = state.get("cycle")
    return cycle is None or now - cycle["time"] > STALE_CYCLES * cycle["cycle_s"]


def render(state: State, width: int, now: float | None = None) -> list[str]:
    """Return the lines of the whole page."""
    now = time.time() if now is None else now
    lines = _daemon(state, now)
    for title, part in (
        ("Filesystems", _filesystems(state, width)),
        ("Locations", _locations(state, width, now)),
        ("Drives", _drives(state, width, now)),
        ("Copies", _copies(state, width, now)),
        ("Eviction", _evictions(state, width)),
    ):
        if part:
            lines += ["", title, *part]
    return lines


def _daemon(state: State, now: float) -> list[str]:
    cycle = state.get("cycle")
    if cycle is None:
        return ["The daemon has not finished a cycle since this host was started: systemctl status stowaged"]
    where = f" on {cycle['host']}" if cycle["host"] else ""
    lines = [f"stowaged {cycle['version']}{where}: last cycle {ago(now - cycle['time'])}, evict: {cycle['evict']}"]
    if stale(state, now):
        lines.append("! The daemon has stopped and what follows is old: systemctl status stowaged")
    config = state.get("config", {})
    if not config.get("successful", True):
        lines.append(f"! The configuration could not be loaded, the earlier one stays in force: {config['error']}")
    return lines


def _filesystems(state: State, width: int) -> list[str]:
    rows = []
    for one in state.get("filesystems", {}).get("filesystems", []):
        usable = one["size"] - one["free"] + one["avail"]
        free = one["avail"] / usable if usable > 0 else 1.0
        files = percent(one["files_free"] / one["files"]) if one["files"] > 0 else "-"
        rows.append(
            [
                printable(one["mountpoint"]),
                one["fstype"],
                decimal(one["size"]),
                decimal(one["avail"]),
                percent(free),
                files,
            ]
        )
    columns = (
        Column("Mounted at", shrinks=True),
        Column("Type"),
        Column("Size", right=True),
        Column("Free", right=True),
        Column("", right=True),
        Column("Inodes free", right=True),
    )
    return table(columns, rows, width) if rows else []


def _measured(one: Mapping[str, Any], now: float) -> list[str]:
    if one["bytes"] is None:
        return ["-", "-", "elsewhere" if one["elsewhere"] else "never"]
    return [decimal(one["bytes"]), f"{one['files']}", ago(now - one["measured"])]


def _state_of(one: Mapping[str, Any]) -> str:
    if not one["answers"]:
        return "no answer"
    if not one["available"]:
        return "unavailable"
    return "ok" if one["complete"] or one["bytes"] is None else "incomplete"


_MEASURED = (Column("Size", right=True), Column("Files", right=True), Column("Measured", right=True), Column("State"))


def _reasons(items: list[Mapping[str, Any]]) -> list[str]:
    return [f"! {reason}" for reason in dict.fromkeys(one["reason"] for one in items if one["reason"])]


def _locations(state: State, width: int, now: float) -> list[str]:
    items = state.get("locations", {}).get("locations", [])
    rows = [[one["location"], printable(one["path"]), *_measured(one, now), _state_of(one)] for one in items]
    columns = (Column("Location"), Column("Path", shrinks=True), *_MEASURED)
    return table(columns, rows, width) + _reasons(items) if rows else []


def _drives(state: State, width: int, now: float) -> list[str]:
    items = state.get("drives", {}).get("drives", [])
    rows = []
    for one in items:
        name = f"{one['workspace']}/{one['drive']}" + (f" [{one['source']}]" if one["source"] else "")
        rows.append([name, printable(one["path"]), *_measured(one, now), _state_of(one)])
    columns = (Column("Drive", shrinks=True), Column("Path", shrinks=True), *_MEASURED)
    return table(columns, rows, width) + _reasons(items) if rows else []


def _copies(state: State, width: int, now: float) -> list[str]:
    rows = []
    for one in state.get("copies", {}).get("copies", []):
        size = "-" if one["bytes"] is None else decimal(one["bytes"])
        files = "-" if one["files"] is None else f"{one['files']}"
        used = ago(None if one["last_used"] is None else now - one["last_used"])
        in_use = "unknown" if one["in_use"] is None else "yes" if one["in_use"] else "no"
        rows.append([f"{one['workspace']}/{one['drive']}", size, files, used, in_use, one["kind"]])
    columns = (
        Column("Copy of", shrinks=True),
        Column("Size", right=True),
        Column("Files", right=True),
        Column("Last used", right=True),
        Column("In use"),
        Column("Kind"),
    )
    return table(columns, rows, width) if rows else []


def _evictions(state: State, width: int) -> list[str]:
    section = state.get("evictions")
    if section is None:
        return []
    count = sum(section["removed"].values())
    lines = [f"{copies(count)} removed since the host was started, {decimal(section['removed_bytes'])} freed"]
    if section["blocked"]:
        lines.append(f"! Space has to be made and no copy, or too few, may be removed: {section['why']}")
    elif section["plan"]:
        total = decimal(sum(one["allocated"] for one in section["plan"]))
        doing = "being removed" if section["mode"] == "on" else "would be removed (evict: plan)"
        lines.append(f"{copies(len(section['plan']))}, {total}, {doing}: {section['why']}")
    if section["plan"]:
        rows = [[printable(one["copy"]), decimal(one["allocated"]), one["reason"]] for one in section["plan"]]
        lines += table((Column("Copy", shrinks=True), Column("On disk", right=True), Column("Why")), rows, width)
    return lines
