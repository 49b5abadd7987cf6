# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""``stowage status``: what the daemon knows, as tables."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stowage_core import records
from stowage_core.accounting.exceeded import exceeded_text
from stowage_core.accounting.totals import KINDS, UNLISTED, UNMEASURED
from stowage_core.errors import printable
from stowage_core.gate.recorded import as_of
from stowage_core.network_mounts.records import BOUND
from stowage_core.places import Places
from stowage_core.services import daemon_cycle
from stowage_core.sizes import Space, decimal
from stowage_core.spans import ago, lasting
from stowage_core.tiers.declared import tier_name
from stowage_core.tiers.files_eviction import files_text as files

from . import sections
from .eviction_decision import FAILED, HALTED, SHORT
from .runs import LARGEST
from .tables import Column, copies, percent, table, wrapped

State = dict[str, dict[str, Any]]

OLD = "! The daemon has stopped or cannot tell what it sees, and what follows is old: systemctl status stowaged"
"""What is said where its last cycle was too long ago."""

_BLOCKED = {
    SHORT: "Space has to be made and no copy, or too few, may be removed",
    HALTED: "Space has to be made and removing copies did not help",
    FAILED: "Copies cannot be removed",
}


def read(places: Places) -> State:
    """Return the sections that are there."""
    found = {}
    for name in sections.NAMES:
        section = records.read(sections.path_of(places, name))
        if section is not None:
            found[name] = section
    return found


def is_blocked(state: State) -> bool:
    """Return whether copies, or files of a tier, have to go and cannot."""
    tiers_blocked = any(one["reason"] for one in state.get("tier_evictions", {}).get("tiers", []))
    return tiers_blocked or bool(state.get("evictions", {}).get("reason"))


def render(state: State, width: int | None, now: float | None = None) -> list[str]:
    """Return the lines of the whole page."""
    now = time.time() if now is None else now
    lines = _gate(state, width, now) + _daemon(state, width, now)
    for title, part in (
        ("Filesystems", _filesystems(state, width)),
        ("Measuring", _measuring(state, width, now)),
        ("Locations", _locations(state, width, now)),
        ("Runs", _runs(state, width, now)),
        ("Accounts", _accounts(state, width, now)),
        ("Drives", _drives(state, width, now)),
        ("Network mounts", _network_mounts(state, width)),
        ("Tiers", tiers(state.get("tiers", {}), width, now) + _tier_evictions(state, width)),
        ("Volumes", _volumes(state, width)),
        ("Copies", _copies(state, width, now)),
        ("Fills", _fills(state, width, now)),
        ("Workers", _workers(state, width)),
        ("Eviction", _evictions(state, width)),
    ):
        if part:
            lines += ["", title, *part]
    return lines


def _gate(state: State, width: int | None, now: float) -> list[str]:
    """Return what holds all jobs; whose quota is exceeded is with the accounts."""
    lines = []
    for hold in as_of(state["gate"], now).holding() if "gate" in state else ():
        lines += wrapped(f"! Jobs are held: {hold.text}", width)
    return lines


def _daemon(state: State, width: int | None, now: float) -> list[str]:
    cycle = state.get("cycle")
    if cycle is None:
        text = "The daemon has not finished a cycle since this host was started: systemctl status stowaged"
        return wrapped(text, width) + _config(state, width)
    where = f" on {cycle['host']}" if cycle["host"] else ""
    text = f"stowaged {cycle['version']}{where}: last cycle {ago(now - cycle['time'])}, evict: {cycle['evict']}"
    lines = wrapped(text, width)
    if daemon_cycle.is_stale(cycle, now):
        lines += wrapped(OLD, width)
    return lines + _config(state, width)


def _config(state: State, width: int | None) -> list[str]:
    """Return what is wrong with the settings and with what is declared."""
    config = state.get("config", {})
    if config.get("successful", True):
        return []
    kept = "the earlier one stays in force" if config.get("declared", True) else "nothing is looked at until it can be"
    return wrapped(f"! The configuration could not be loaded, {kept}: {config['error']}", width)


def _filesystems(state: State, width: int | None) -> list[str]:
    rows = []
    for one in state.get("filesystems", {}).get("filesystems", []):
        space = Space.from_json(one)
        files = percent(space.files_free_fraction) if space.files > 0 else "-"
        rows.append(
            [
                printable(one["mountpoint"]),
                one["fstype"],
                decimal(one["size"]),
                decimal(one["avail"]),
                percent(space.free_fraction),
                files,
            ]
        )
    columns = (
        Column("Mounted at", shrinks=True),
        Column("Type", goes=2),
        Column("Size", right=True),
        Column("Free", right=True),
        Column("", right=True),
        Column("Inodes free", right=True, goes=1),
    )
    return table(columns, rows, width) if rows else []


def _measuring(state: State, width: int | None, now: float) -> list[str]:
    """Return which engine measures each filesystem, and why it is not the one that looks only at what has changed."""
    found = state.get("measuring", {}).get("filesystems", [])
    rows = [
        [
            printable(one["mountpoint"]),
            one["engine"],
            *("-" if one["listed"] is None else f"{one[key]}" for key in ("trees", "directories", "unsteady")),
            "-" if one["listed"] is None else ago(now - one["listed"]),
        ]
        for one in found
    ]
    columns = (
        Column("Mounted at", shrinks=True),
        Column("Engine"),
        Column("Trees known", right=True, goes=4),
        Column("Directories", right=True, goes=2),
        Column("Each time", right=True, goes=3),
        Column("Listed in full", right=True, goes=1),
    )
    lines = table(columns, rows, width) if rows else []
    for one in found:
        if one["reason"]:
            where = ("! " if one["failed"] else "") + printable(one["mountpoint"])
            lines += wrapped(f"{where}: {one['engine']}: {printable(one['reason'])}", width)
    return lines


def _measured(one: Mapping[str, Any], now: float) -> list[str]:
    if one["bytes"] is None:
        return ["-", "-", "elsewhere" if one["elsewhere"] else "never"]
    return [decimal(one["bytes"]), f"{one['files']}", ago(now - one["measured"])]


def _state_of(one: Mapping[str, Any]) -> str:
    if not one["answers"]:
        return "no answer"
    if not one["available"]:
        return "unavailable"
    if not one["made"]:
        return "not made yet"
    if not one["complete"] and one["reason"]:
        return "incomplete"
    return "not measured yet" if one["bytes"] is None and not one["elsewhere"] else "ok"


_MEASURED = (
    Column("Size", right=True),
    Column("Files", right=True, goes=3),
    Column("Measured", right=True, goes=2),
    Column("State"),
)


def _reasons(items: list[tuple[str, Mapping[str, Any]]], width: int | None) -> list[str]:
    """Return what is wrong, each reason once with all that it holds for."""
    wrong: dict[str, list[str]] = {}
    for name, one in items:
        if one["reason"]:
            wrong.setdefault(f"{_state_of(one)}: {one['reason']}", []).append(name)
    lines = []
    for reason, names in wrong.items():
        lines += wrapped(f"! {', '.join(names)}: {reason}", width)
    return lines


def _objects(title: str, items: list[tuple[str, Mapping[str, Any]]], width: int | None, now: float) -> list[str]:
    rows = [[name, printable(one["path"]), *_measured(one, now), _state_of(one)] for name, one in items]
    columns = (Column(title, shrinks=True), Column("Path", shrinks=True, goes=4), *_MEASURED)
    return table(columns, rows, width) + _reasons(items, width) if rows else []


def _locations(state: State, width: int | None, now: float) -> list[str]:
    items = state.get("locations", {}).get("locations", [])
    lines = _objects("Location", [(one["location"], one) for one in items], width, now)
    for one in items:
        for path in one.get("credentials") or []:
            rule = f"{printable(path)} is called as a file with credentials, and all workloads share this cache"
            lines += wrapped(f"! {one['location']}: {rule}: remove it, and withdraw what it holds", width)
    return lines


def _drives(state: State, width: int | None, now: float) -> list[str]:
    items = state.get("drives", {}).get("drives", [])
    return _objects("Drive", [(_drive_name(one), one) for one in items], width, now)


def _drive_name(one: Mapping[str, Any]) -> str:
    return f"{one['workspace']}/{one['drive']}" + (f" [{one['source']}]" if one["source"] else "")


def _network_mounts(state: State, width: int | None) -> list[str]:
    section = state.get("network_mounts", {"mounts": [], "error": ""})
    mounts = section["mounts"]
    rows = [
        [
            _drive_name(one),
            printable(one["node"]),
            one["proto"].upper() or "-",
            "Unreachable" if one["state"] == BOUND and one["answers"] is False else one["state"],
            "-" if one["answers"] is None else "yes" if one["answers"] else "no",
            *("-" if one[key] is None else decimal(one[key]) for key in ("read_bytes", "write_bytes")),
        ]
        for one in mounts
    ]
    columns = (
        Column("Drive", shrinks=True),
        Column("From", shrinks=True),
        Column("Over", goes=2),
        Column("State"),
        Column("Answers", goes=1),
        Column("Read", right=True, goes=3),
        Column("Written", right=True, goes=4),
    )
    lines = table(columns, rows, width) if rows else []
    for one in mounts:
        name = _drive_name(one)
        if one["trouble"]:
            lines += wrapped(f"! {name}: {printable(one['path'])}: {printable(one['trouble'])}", width)
        if one["reason"]:
            lines += wrapped(f"! {name}: {one['state']}: {printable(one['reason'])}", width)
        if one["message"]:
            lines += wrapped(f"! {name}: {printable(one['message'])}", width)
    if section["error"]:
        lines += wrapped(f"! {printable(section['error'])}", width)
    return lines


def tiers(section: Mapping[str, Any], width: int | None, now: float) -> list[str]:
    """Return the table of tiers, and what is wrong with them."""
    found = section.get("tiers", [])
    rows = [
        [
            tier_name(one["backend"], one["position"]),
            printable(one["path"]),
            "-" if one["allocated"] is None else decimal(one["allocated"]),
            "-" if one["capacity_bytes"] is None else decimal(one["capacity_bytes"]),
            *("-" if one[key] is None else f"{one[key]}" for key in ("buckets", "keys")),
            "-" if one["filesystem"] is None else decimal(one["filesystem"]["avail"]),
            "-" if one["processes"] is None else f"{len(one['processes'])}",
            "elsewhere" if one["elsewhere"] else ago(None if one["measured"] is None else now - one["measured"]),
            _tier_state(one),
        ]
        for one in found
    ]
    columns = (
        Column("Tier", shrinks=True),
        Column("Path", shrinks=True, goes=6),
        Column("On disk", right=True),
        Column("Capacity", right=True),
        Column("Buckets", right=True, goes=3),
        Column("Keys", right=True, goes=4),
        Column("Disk free", right=True, goes=1),
        Column("Stores", right=True, goes=5),
        Column("Measured", right=True, goes=2),
        Column("State"),
    )
    named = [(tier_name(one["backend"], one["position"]), one) for one in found]
    lines = table(columns, rows, width) + _reasons(named, width) if rows else []
    warned: dict[str, list[str]] = {}
    for name, one in named:
        for warning in one["warnings"]:
            warned.setdefault(printable(warning["message"]), []).append(name)
    for message, names in warned.items():
        lines += wrapped(f"! {', '.join(names)}: {message}", width)
    if rows and section["trouble"]:
        lines += wrapped(f"! Settings of stores are not known: {printable(section['trouble'])}", width)
    return lines


def _tier_state(one: Mapping[str, Any]) -> str:
    state = _state_of(one)
    if state != "ok":
        return state
    if one["writable"] is False:
        return "not writable"
    return "full" if one["full"] else state


def _tier_evictions(state: State, width: int | None) -> list[str]:
    """Return what was removed from tiers of whole files, would be, or cannot be."""
    lines = []
    for one in state.get("tier_evictions", {}).get("tiers", []):
        name = tier_name(one["backend"], one["position"])
        if one["reason"]:
            lines += wrapped(f"! {name}: files cannot be removed: {printable(one['why'])}", width)
        if one["planned_files"]:
            what = f"{files(one['planned_files'])}, {decimal(one['planned_bytes'])}"
            lines += wrapped(f"{name}: {what}, would be removed (evict: plan)", width)
        if one["evicted_files"]:
            size = decimal(one["evicted_bytes"])
            text = f"{name}: {files(one['evicted_files'])} removed since the host was started, {size}"
            lines += wrapped(text, width)
    return lines


def _volumes(state: State, width: int | None) -> list[str]:
    """Return whether each volume is there, and how many workers have something of it."""
    found = state.get("volumes", {}).get("volumes", [])
    users = state.get("leases", {}).get("volumes_used_by", {})
    rows = [
        [
            one["volume"],
            printable(one["path"]),
            f"{len(users.get(one['volume'], []))}",
            "ok" if one["available"] else "unavailable" if one["answers"] else "no answer",
        ]
        for one in found
    ]
    columns = (
        Column("Volume", shrinks=True),
        Column("Path", shrinks=True, goes=1),
        Column("Workers", right=True),
        Column("State"),
    )
    lines = table(columns, rows, width) if rows else []
    for one in found:
        if one["reason"]:
            lines += wrapped(f"! {one['volume']}: {printable(one['reason'])}", width)
    return lines


def _runs(state: State, width: int | None, now: float) -> list[str]:
    """Return how many runs there are, and the largest."""
    locations = state.get("locations", {}).get("locations", [])
    runs = next((one["runs"] for one in locations if one.get("runs")), None)
    if runs is None:
        return []
    rows = [
        [
            printable(run["run"]),
            decimal(run["bytes"]),
            f"{run['files']}",
            ago(now - run["measured"]),
            "ok" if run["complete"] else "incomplete",
        ]
        for run in runs["largest"]
    ]
    if runs["count"] <= len(rows):
        lines = [f"{runs['count']} in all"]
    else:
        lines = [f"{runs['count']} in all, the largest {len(rows)}:"]
    return lines + (table((Column("Run", shrinks=True), *_MEASURED), rows, width) if rows else [])


def _accounts(state: State, width: int | None, now: float) -> list[str]:
    """Return whose the space is, the largest only, and every quota that is exceeded."""
    section = state.get("accounts")
    if section is None:
        return []
    lines = []
    if section["tracked_bytes"] is not None:
        sizes = [(kind, section["tracked"].get(kind)) for kind in KINDS]
        kinds = [f"{kind} {decimal(size)}" for kind, size in sizes if size is not None]
        lines += wrapped(f"{decimal(section['tracked_bytes'])} in all: {', '.join(kinds)}", width)
    for kind in ("user", "team"):
        lines += _largest(kind, section[f"{kind}s"], width)
    for kind in ("user", "team"):
        for name, one in section[f"{kind}s"].items():
            if one["exceeded_since"] is not None:
                since = lasting(max(0.0, now - one["exceeded_since"]))
                lines += wrapped(f"! {exceeded_text(kind, name, one)}, for {since}", width)
    lines += _missing(section["unavailable"], width) + _lacking(section, width)
    beyond = section["beyond"]
    if beyond["count"]:
        what = f"{beyond['count']} users with {decimal(beyond['bytes'])}"
        lines += wrapped(f"! Not complete, {what} are only added up: {UNLISTED}", width)
    unproven = section["unproven"]
    if unproven["count"]:
        rule = "count for nobody: others than its owner may write there, and their names prove nothing"
        what = f"In reflow {decimal(unproven['bytes'])} in directories, {unproven['count']} of them,"
        lines += wrapped(f"! {what} {rule}; the first: {printable(unproven['first'])}", width)
    unknown = [f"{kind[:-1]} {printable(name)}" for kind, names in section["unmatched"].items() for name in names]
    return lines + (wrapped(f"Quotas of those who have nothing: {', '.join(unknown)}", width) if unknown else [])


def _largest(kind: str, entries: Mapping[str, Mapping[str, Any]], width: int | None) -> list[str]:
    largest = sorted(entries.items(), key=lambda item: (-item[1]["bytes"], item[0]))[:LARGEST]
    rows = [
        [
            printable(name),
            decimal(one["bytes"]),
            "-" if one["quota"] is None else decimal(one["quota"]),
            f"{one['runs']}",
            *([decimal(one["reflow_bytes"])] if kind == "user" else []),
        ]
        for name, one in largest
    ]
    columns = (
        Column(kind.capitalize(), shrinks=True),
        Column("Size", right=True),
        Column("Quota", right=True),
        Column("Runs", right=True, goes=1),
        *([Column("Reflow", right=True, goes=2)] if kind == "user" else []),
    )
    more = [f"{len(entries)} {kind}s in all, the largest {LARGEST}:"] if len(entries) > LARGEST else []
    return [*more, *table(columns, rows, width)] if rows else []


def _missing(unavailable: Sequence[Mapping[str, str]], width: int | None) -> list[str]:
    """Return what the accounts do not tell as it is now, each reason once."""
    wrong: dict[str, list[str]] = {}
    for one in unavailable:
        wrong.setdefault(one["reason"], []).append(one["location"])
    lines = []
    for reason, names in wrong.items():
        where = ", ".join(names)
        if reason == UNMEASURED:
            lines += wrapped(f"Not measured yet: {where}", width)
        else:
            lines += wrapped(f"! Not complete, the last figures of {where} count: {printable(reason)}", width)
    return lines


def _lacking(section: Mapping[str, Any], width: int | None) -> list[str]:
    """Return whose figures lack something, and why."""
    found = [(kind, name, one) for kind in ("user", "team") for name, one in section[f"{kind}s"].items()]
    lacking = [(f"{kind} {printable(name)}", one["missing"]) for kind, name, one in found if one["missing"]]
    lines = []
    for who, why in lacking[:LARGEST]:
        rule = "is not complete, the larger of the last and the present figures counts"
        lines += wrapped(f"! {who} {rule}: {why}", width)
    return lines + ([f"! Likewise {len(lacking) - LARGEST} more"] if len(lacking) > LARGEST else [])


def _copies(state: State, width: int | None, now: float) -> list[str]:
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
        Column("Files", right=True, goes=3),
        Column("Last used", right=True),
        Column("In use", goes=1),
        Column("Kind", goes=2),
    )
    return table(columns, rows, width) if rows else []


def _fills(state: State, width: int | None, now: float) -> list[str]:
    found = state.get("fills", {}).get("fills", [])
    rows = [
        [
            f"{one['workspace']}/{one['drive']}",
            one["state"],
            ago(now - one["since"]),
            decimal(one["written_bytes"]),
            f"{one['failures']}",
        ]
        for one in found
    ]
    columns = (
        Column("Fill of", shrinks=True),
        Column("State"),
        Column("Asked for", right=True),
        Column("So far", right=True, goes=1),
        Column("Failures", right=True, goes=2),
    )
    lines = table(columns, rows, width) if rows else []
    for one in found:
        if one["state"] == "failed":
            lines += wrapped(f"! {one['workspace']}/{one['drive']}: {printable(one['message'])}", width)
    return lines


def _workers(state: State, width: int | None) -> list[str]:
    """Return which drives the live workers of this host use."""
    users = state.get("leases", {}).get("used_by", {})
    rows = [[name, f"{len(workers)}", printable(", ".join(workers))] for name, workers in sorted(users.items())]
    columns = (Column("Drive", shrinks=True), Column("Workers", right=True), Column("Used by", shrinks=True, goes=1))
    return table(columns, rows, width) if rows else []


def _evictions(state: State, width: int | None) -> list[str]:
    section = state.get("evictions")
    if section is None:
        return []
    count = sum(section["removed"].values())
    text = f"{copies(count)} removed since the host was started, {decimal(section['removed_bytes'])} freed"
    lines = wrapped(text, width)
    if section["reason"]:
        lines += wrapped(f"! {_BLOCKED[section['reason']]}: {printable(section['why'])}", width)
    elif section["plan"]:
        total = decimal(sum(one["allocated"] for one in section["plan"]))
        doing = "being removed" if section["mode"] == "on" else "would be removed (evict: plan)"
        why = f": {section['why']}" if section["why"] else ""
        lines += wrapped(f"{copies(len(section['plan']))}, {total}, {doing}{why}", width)
    if section["plan"]:
        rows = [[printable(one["copy"]), decimal(one["allocated"]), one["reason"]] for one in section["plan"]]
        columns = (Column("Copy", shrinks=True), Column("On disk", right=True), Column("Why", goes=1))
        lines += table(columns, rows, width)
    if section["waiting"]:
        rows = [[printable(name), printable(why)] for name, why in sorted(section["waiting"].items())]
        lines += table((Column("Drive deleted", shrinks=True), Column("Why its copy stays", shrinks=True)), rows, width)
    if section["aside"]:
        rows = [[printable(one["copy"]), printable(one["why"])] for one in section["aside"]]
        lines += table((Column("Left aside", shrinks=True), Column("Why", shrinks=True)), rows, width)
    return lines
