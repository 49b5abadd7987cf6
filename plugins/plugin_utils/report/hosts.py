# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the report says of one host."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.stowage.host.plugins.module_utils.paths import is_within
from ansible_collections.stowage.host.plugins.module_utils.sizes import decimal

from .told import Part, Told, folded, mapping, mappings, moment, text, texts, truth, whole

LARGEST = 4_000_000
"""How many characters the facts of one host may have, as JSON: a hundred drives take some 20,000."""
_BOOT = ("/boot", "/boot/efi", "/efi")
_NOT_MOUNTED = "its disk is not mounted"


@dataclass(frozen=True)
class Asked:
    """What came of asking a host."""

    name: str
    facts: Told | None
    """Its facts: of now, or when it did not answer those that a fact cache has; None when there are none."""
    why: str = ""
    """Why it gave none now; empty when it did."""
    reached: bool = True
    """Whether it was reached at all."""


def bounded(asked: Asked) -> Asked:
    """Return what came of asking a host, without its facts when they are so large that they crowd out the others."""
    try:
        size = len(json.dumps(asked.facts, default=str))
    except (ValueError, RecursionError):  # a number of thousands of digits; lists in lists
        size = LARGEST + 1
    if size <= LARGEST:
        return asked
    why = f"its facts are larger than {decimal(LARGEST)}: look at them with the module storage_facts"
    return replace(asked, facts=None, why=asked.why or why)


def of_host(asked: Asked) -> Part:
    """Return the part of the report that is about one host."""
    facts = mapping(asked.facts)
    filesystems = _filesystems(facts)
    return {
        "name": text(asked.name),
        "answers": not asked.why,
        "reached": asked.reached,
        "why": text(asked.why),
        "gathered": moment(facts.get("gathered")),
        "daemon": _daemon(mapping(facts.get("daemon"))),
        "gate": _gate(facts.get("gate"), not asked.why),
        "filesystems": filesystems,
        "fullest": _fullest(filesystems),
        "data_location": _data_location(facts.get("data_location")),
        "locations": _locations(facts),
        "unavailable": _unavailable(facts),
        "incomplete": _incomplete(facts, filesystems),
        "eviction": _eviction(facts.get("eviction")),
        "relocations": [_relocation(one) for one in mappings(facts.get("relocations"))],
        "leases": len(facts["leases"]) if isinstance(facts.get("leases"), list) else None,
        "problems": texts(facts.get("problems")),
    }


def _daemon(told: Told) -> Part:
    return {
        "installed": truth(told.get("installed")),
        "running": truth(told.get("running")),
        "last_cycle_age_s": moment(told.get("last_cycle_age_s")),
    }


def _gate(told: object, is_of_now: bool) -> Part:
    """Return the gate as the daemon last judged it; ``open`` is None when it has not, or the host did not answer."""
    gate = mapping(told)
    holds = [
        {field: text(one.get(field)) for field in ("reason", "text", "user", "team")}
        for one in mappings(gate.get("holds"))
    ]
    known = is_of_now and isinstance(gate.get("holds"), list)
    return {
        # The jobs of one user or team that are held do not close it for the others.
        "open": not any(not one["user"] and not one["team"] for one in holds) if known else None,
        "holds": holds,
        "judged": moment(gate.get("judged")),
        "watermark_pct": moment(gate.get("watermark_pct")),
    }


# -- Filesystems, and what is on them


def _filesystems(facts: Told) -> list[Part]:
    """Return the filesystems with what Stowage has on each."""
    found = [_filesystem(one) for one in mappings(facts.get("filesystems"))]
    points = sorted(((point, one) for one in found for point in one["mounts"]), key=lambda pair: -len(pair[0]))
    for what, path in _held(facts):
        on = next((one for point, one in points if is_within(path, point)), None)
        if on is not None and what not in on["holds"]:
            on["holds"].append(what)
    for one in found:
        del one["mounts"]
    return found


def _filesystem(told: Told) -> Part:
    size, used, free = (whole(told.get(field)) for field in ("size_bytes", "used_bytes", "free_bytes"))
    if used is None and size is not None and free is not None:
        used = max(0, size - free)  # facts from a cache may be older than this figure
    return {
        "mount": text(told.get("mount")),
        "mounts": texts(told.get("mounts")) or [text(told.get("mount"))],
        "fstype": text(told.get("fstype")),
        "source": text(told.get("source")),
        "kind": text(told.get("kind")),
        "shared": truth(told.get("shared")) is True,
        "system_disk": truth(told.get("system_disk")) is True,
        "answers": truth(told.get("answers")),
        "error": text(told.get("error")),
        "size_bytes": size,
        "used_bytes": used,
        "free_bytes": free,
        "used_pct": used_pct(used, free),
        "files_used_pct": _files_used_pct(whole(told.get("files")), whole(told.get("files_free"))),
        "holds": [],
    }


def used_pct(used: int | None, free: int | None) -> int | None:
    """Return how full a filesystem is as ``df`` prints it, rounded up; None where that is not known."""
    if used is None or free is None or used + free <= 0:
        return None
    return min(100, -(-used * 100 // (used + free)))


def _files_used_pct(files: int | None, free: int | None) -> int | None:
    """Return how many of the inodes are taken; None where that is not known, or they are made as they are needed."""
    return used_pct(max(0, files - free), free) if files and free is not None else None


def _held(facts: Told) -> Iterable[tuple[str, str]]:
    """Return what Stowage has on the host, in words, and a path on the filesystem that it is on."""
    for name, one in mapping(mapping(facts.get("layout")).get("locations")).items():
        # Its path may lead elsewhere over a link; what it is on was looked up on the host.
        yield text(name), text(mapping(one).get("mount")) or text(mapping(one).get("path"))
    location = facts.get("data_location")
    if location:
        yield "data location", text(mapping(location).get("path"))
    for tier in mappings(facts.get("tiers")):
        yield _tier(tier), text(tier.get("path"))


def _tier(told: Told) -> str:
    return f"tier {text(told.get('backend'))}/{text(told.get('position'))}"


def _fullest(filesystems: Sequence[Part]) -> Part | None:
    """Return the fullest local filesystem: of those that Stowage has something on, where there is such a one."""
    local = [one for one in filesystems if not one["shared"] and one["used_pct"] is not None]
    ours = [one for one in local if one["holds"]] or [one for one in local if one["mount"] not in _BOOT]
    best = max(ours, key=lambda one: one["used_pct"], default=None)
    return {field: best[field] for field in ("mount", "used_pct", "free_bytes")} if best is not None else None


def _data_location(told: object) -> Part | None:
    if not told:
        return None
    location = mapping(told)
    sizes = ("max_bytes", "used_bytes", "reserved_bytes", "size_bytes", "free_bytes")
    return {
        "path": text(location.get("path")),
        "available": truth(location.get("available")),
        **{field: whole(location.get(field)) for field in sizes},
        "strangers": len(location["strangers"]) if isinstance(location.get("strangers"), list) else None,
    }


def _locations(facts: Told) -> list[Part]:
    return [
        {
            "name": text(name),
            "path": text(mapping(one).get("path")),
            "mounted": truth(mapping(one).get("mounted")),
            **measurement(mapping(one)),
        }
        for name, one in mapping(mapping(facts.get("layout")).get("locations")).items()
    ]


def measurement(told: Told) -> Part:
    """Return one measurement."""
    return {
        "bytes": whole(told.get("bytes")),
        "files": whole(told.get("files")),
        "complete": truth(told.get("complete")),
        "measured": moment(told.get("measured")),
    }


def _eviction(told: object) -> Part | None:
    if not told:
        return None
    eviction = mapping(told)
    return {
        "mode": text(eviction.get("mode")),
        "blocked": truth(eviction.get("blocked")),
        "why": text(eviction.get("why")),
        "planned": len(mappings(eviction.get("plan"))),
    }


def _relocation(told: Told) -> Part:
    words = {field: text(told.get(field)) for field in ("location", "path", "to", "stage", "doing", "standing")}
    return {**words, "since": moment(told.get("since"))}


# -- What is not there, and what is not known


def _unavailable(facts: Told) -> list[Part]:
    """Return every path that should be there and is not, each once, by the reason."""
    known: set[tuple[str, str]] = set()
    found: dict[str, list[Part]] = {}

    def add(what: str, told: Told, reason: str) -> None:
        path = text(told.get("path"))
        if (what, path) not in known:
            known.add((what, path))
            found.setdefault(reason, []).append({"what": what, "path": path})

    for name, told in mapping(mapping(facts.get("layout")).get("locations")).items():
        location = mapping(told)
        if _is_missing(location):
            add(f"location {text(name)}", location, _reason(location) or _NOT_MOUNTED)
    copies = mapping(facts.get("data_location"))
    if truth(copies.get("available")) is False:
        add("data location", copies, "it is not mounted, or not its own")
    for one in mappings(facts.get("filesystems")):
        if truth(one.get("answers")) is False:
            add("filesystem", {"path": one.get("mount")}, text(one.get("error")) or "does not answer")
    for workspace, drives in mapping(facts.get("drives")).items():
        for drive in mappings(drives):
            for number, source in enumerate(mappings(drive.get("sources"))):
                if source.get("answers") is False or source.get("available") is False:
                    reason = "does not answer" if source.get("answers") is False else "is not there"
                    add(f"drive {text(workspace)}/{text(drive.get('name'))}, source {number}", source, reason)
    for one in mappings(facts.get("tiers")):
        if truth(one.get("claimed")) is not True:
            why = "it does not bear its owner mark" if one.get("claimed") is False else "it cannot be seen"
            add(_tier(one), one, why)
    for one in mappings(facts.get("volumes")):
        if truth(one.get("available")) is False:
            add(f"volume {text(one.get('name'))}", one, text(one.get("reason")) or "is not there")
    return [{"reason": reason, "paths": paths} for reason, paths in found.items()]


def _incomplete(facts: Told, filesystems: Sequence[Part]) -> list[Part]:
    """Return what is not measured, or whose last measurement was not complete, and when the figures are from."""
    found = []

    def add(told: Told, *what: Any, reason: str = "") -> None:
        words = what[0] + "".join(text(one) for one in what[1:])
        found.append({"what": words, "measured": moment(told.get("measured")), "reason": reason})

    shared = {name for one in filesystems if one["shared"] for name in one["holds"]}
    for name, told in mapping(mapping(facts.get("layout")).get("locations")).items():
        # What other hosts see too is measured by one of them.
        if _is_incomplete(mapping(told)) or (text(name) not in shared and _is_unmeasured(mapping(told))):
            # Why it is not there is told with what is not available.
            add(mapping(told), "location ", name, reason="" if _is_missing(mapping(told)) else _reason(mapping(told)))
    for workspace, drives in mapping(facts.get("drives")).items():
        for drive in mappings(drives):
            for number, source in enumerate(mappings(drive.get("sources"))):
                if _is_incomplete(source):
                    add(source, "drive ", workspace, "/", drive.get("name"), ", source ", number)
    for name, told in mapping(facts.get("copies")).items():
        copy = mapping(told)
        if copy.get("present") is not False and (_is_incomplete(copy) or _is_unmeasured(copy)):
            add(copy, "copy ", name)
    for one in mappings(facts.get("tiers")):
        if _is_incomplete(one) or _is_unmeasured(one):
            add(one, _tier(one))
    accounts = mapping(facts.get("accounts"))
    if _is_incomplete(accounts):
        told_already = {one["what"] for one in found}
        parts = [(f"location {text(one.get('location'))}", one) for one in mappings(accounts.get("unavailable"))]
        reasons = folded(f"{what}: {_reason(one)}" for what, one in parts if what not in told_already)
        add(accounts, "users and teams", reason="; ".join(reasons))
    return found


def _is_missing(location: Told) -> bool:
    return truth(location.get("available")) is False or truth(location.get("mounted")) is False


def _reason(told: Told) -> str:
    """Return why something is not there, or not measured to the end, without the path that it is told with."""
    return text(told.get("reason")).removeprefix(f"{text(told.get('path'))}: ")


def _is_incomplete(told: Told) -> bool:
    return told.get("complete") is False


def _is_unmeasured(told: Told) -> bool:
    return whole(told.get("bytes")) is None
