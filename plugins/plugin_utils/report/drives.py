# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of drives over all hosts, with Astraeus's columns: State, Where, Used, Files, Answers, Workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .hosts import Asked, measurement
from .told import Measured, Part, Told, mapping, mappings, moment, text, texts, truth, whole

AVAILABLE, UNREACHABLE, UNAVAILABLE = "Available", "Unreachable", "Unavailable"
NOT_KNOWN, DELETED, NOT_DECLARED = "Not known", "Deleted", "Not declared"

PLACED, ON_ONE, SHARED, SCRATCH = "placed", "", "shared", "local-any"
KINDS = {
    PLACED: "On each machine's data location",
    ON_ONE: "On one machine",
    SHARED: "Shared filesystem",
    SCRATCH: "Scratch on each machine",
}
"""Each ``node_scope`` in Astraeus's words."""


class _Drive:
    """A drive of a workspace, as the hosts know it."""

    def __init__(self, workspace: str, name: str) -> None:
        self.workspace = workspace
        self.name = name
        self.hosts: list[str] = []
        self.absent = 0
        self.evictable = False
        self.size_hint: int | None = None
        self.sources: dict[tuple[int, str, str, str], dict[str, Told]] = {}
        """What each host says of a source. Hosts that are given other sources under the same name have others."""
        self.workers: list[str] = []
        self.copies: list[Part] = []

    def add(self, host: str, told: Told) -> None:
        self.hosts.append(host)
        self.absent += told.get("state") == "absent"
        self.evictable = self.evictable or truth(told.get("evictable")) is True
        self.size_hint = whole(told.get("size_hint_bytes")) or self.size_hint
        for number, source in enumerate(mappings(told.get("sources"))):
            key = (number, text(source.get("node_scope")), text(source.get("node")), text(source.get("path")))
            self.sources.setdefault(key, {})[host] = source
        self.workers += [f"{host}: {worker}" for worker in texts(told.get("used_by"))]


def drives(asked: Sequence[Asked]) -> list[Part]:
    """Return the drives that the hosts were given, and those of which there are only copies, by name."""
    found: dict[tuple[str, str], _Drive] = {}
    for host in asked:
        facts = mapping(host.facts)
        name = text(host.name)
        for workspace, those in mapping(facts.get("drives")).items():
            for told in mappings(those):
                key = (text(workspace), text(told.get("name")))
                found.setdefault(key, _Drive(*key)).add(name, told)
        folder = text(mapping(facts.get("data_location")).get("path"))
        for copy, told in mapping(facts.get("copies")).items():
            key = (text(mapping(told).get("workspace")), text(mapping(told).get("drive")))
            found.setdefault(key, _Drive(*key)).copies.append(_copy(name, folder, text(copy), mapping(told)))
    up = {text(host.name): host.reached for host in asked}
    return [_listed(found[key], up) for key in sorted(found)]


def _copy(host: str, folder: str, name: str, told: Told) -> Part:
    return {
        "host": host,
        "folder": f"{folder}/drives/{name}" if folder else "",
        "present": truth(told.get("present")),
        "aside": truth(told.get("aside")),
        "allocated": whole(told.get("allocated")),
        "last_used": moment(told.get("last_used")),
        **measurement(told),
    }


def _listed(drive: _Drive, up: Mapping[str, bool]) -> Part:
    sources = [_source(drive, key, told, up) for key, told in sorted(drive.sources.items())]
    placed = any(source["node_scope"] == PLACED for source in sources) or not sources
    total = Measured()
    for source in sources:
        for one in source.pop("figures"):
            total.add(one)
    copies = sorted(drive.copies, key=lambda one: (-(one["bytes"] or 0), one["host"]))
    for copy in copies:
        if copy["present"] is not False or copy["aside"]:
            total.add(copy)
    state, messages = _state(drive, sources)
    return {
        "workspace": drive.workspace,
        "name": drive.name,
        "state": state,
        "messages": messages,
        "where": [source["where"] for source in sources],
        "placed": placed,
        "evictable": drive.evictable,
        "size_hint_bytes": drive.size_hint,
        **total.part(),
        "answers": _answers(sources),
        "hosts": len(drive.hosts),
        "workers": drive.workers,
        "sources": sources,
        "copies": copies,
    }


def _source(drive: _Drive, key: tuple[int, str, str, str], told: Mapping[str, Told], up: Mapping[str, bool]) -> Part:
    number, scope, node, path = key
    # The machine that holds the data measures it, a shared filesystem the machine named for it, scratch each its own.
    measuring = {host: one for host, one in told.items() if scope == SCRATCH or host == node or not node}
    fields = ("answers", "available", "bytes")
    known = [one for one in measuring.values() if any(one.get(field) is not None for field in fields)]
    of_all: dict[str, list[Told]] = {PLACED: [], SCRATCH: list(measuring.values())}
    figures = of_all.get(scope, known[:1] or [{}])
    answers = [truth(one.get("answers")) for one in known]
    there = [truth(one.get("available")) for one in known]
    state, message = AVAILABLE, ""
    if scope in (ON_ONE, SHARED) and node and not up.get(node, False):
        verb = "is on" if scope == ON_ONE else "is measured by"
        state = UNREACHABLE if scope == ON_ONE and node in up else NOT_KNOWN
        message = f"source {number} {verb} machine {node} which {'is Down' if node in up else 'was not asked'}"
    elif False in answers:
        state, message = UNAVAILABLE, f"source {number}: {path} does not answer{_on(measuring, 'answers')}"
    elif False in there:
        state, message = UNAVAILABLE, f"source {number}: {path} is not there{_on(measuring, 'available')}"
    return {
        "number": number,
        "node_scope": scope,
        "kind": KINDS.get(scope, scope),
        "node": node,
        "path": path,
        "where": _where(scope, node, path),
        "state": state,
        "message": message,
        "answers": {"yes": answers.count(True), "no": answers.count(False)},
        "figures": figures,
        **_sum(figures),
    }


def _sum(figures: Sequence[Told]) -> Part:
    total = Measured()
    for one in figures:
        total.add(one)
    return total.part()


def _on(measuring: Mapping[str, Told], field: str) -> str:
    """Return where *field* is false, in words."""
    hosts = [host for host, one in measuring.items() if one.get(field) is False]
    return f" on {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} machines"


def _where(scope: str, node: str, path: str) -> str:
    if scope == PLACED:
        return f"each machine's data location{'/' + path if path else ''}"
    if scope == ON_ONE:
        return f"{node}:{path}"
    return f"{path} ({'shared filesystem' if scope == SHARED else 'on each machine'})"


def _answers(sources: Sequence[Part]) -> Part:
    return {word: sum(source["answers"][word] for source in sources) for word in ("yes", "no")}


def _state(drive: _Drive, sources: Sequence[Part]) -> tuple[str, list[str]]:
    messages = [source["message"] for source in sources if source["message"]]
    if not drive.hosts:
        return NOT_DECLARED, ["its copies are of no drive that a host was given"]
    if drive.absent == len(drive.hosts):
        left = sum(copy["present"] is not False for copy in drive.copies)
        return DELETED, [f"{left} copies are still there"] if left else []
    states = {source["state"] for source in sources}
    worst = next((state for state in (UNREACHABLE, UNAVAILABLE, NOT_KNOWN, AVAILABLE) if state in states), NOT_KNOWN)
    return worst, messages
