# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the hosts of a report as a table, for a terminal of 80 columns and a job's log."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.module_utils.sizes import decimal
from ansible_collections.stowage.host.plugins.plugin_utils.lines import check, counted, named, rest, wrapped
from ansible_collections.stowage.host.plugins.plugin_utils.report import fleet

Host = Mapping[str, Any]

_WIDEST_NAME = 24
_LEAST = 34
"""What the other columns take at least."""
_LONGEST_WHY = 120
"""Ansible's reasons can have many lines; all of them are on the page."""


def report_table(report: Any, width: int = 68, lines: int = 20) -> list[str]:
    """Return the lines of the table: the hosts, those in trouble and the fullest first, and what needs attention.

    :param lines: how many hosts, and how many kinds of trouble, are shown at most
    """
    check("report_table", width, lines)
    try:
        found = fleet.read(report)
    except StowageError as error:
        raise AnsibleFilterError(f"report_table: {error}") from error
    hosts = sorted(found["hosts"], key=_first)
    # A longer name has a line of its own.
    wide = min(max([len(host["name"]) for host in hosts], default=0), _WIDEST_NAME, width - _LEAST)
    table = [*wrapped(_title(found["summary"]), width), f"{_row(('Host', 'Gate'), wide)}Fullest local filesystem"]
    for host in hosts[:lines]:
        table += _host(host, wide, width)
    table += rest(len(hosts) - lines, "host")
    troubles = found["attention"]
    if troubles:
        table += ["", "Needs attention"]
        for one in troubles[:lines]:
            its = list(dict.fromkeys(item["host"] for item in one["items"]))
            table += wrapped(f"{one['what']}: {named(its)}", width, "  ", "      ")
        table += rest(len(troubles) - lines, "kind")
    return table


def _title(summary: Mapping[str, Any]) -> str:
    room, gates = summary["space"]["local"], summary["gates"]
    title = (
        f"{summary['answering']} of {counted(summary['hosts'], 'host')} answered, {counted(gates['held'], 'gate')} held"
    )
    if room["size_bytes"] is None:
        return f"{title}; the room is not known"
    return f"{title}; {decimal(room['used_bytes'])} of {decimal(room['size_bytes'])} used on local filesystems"


def _first(host: Host) -> tuple[bool, bool, int, str]:
    """Return what hosts are sorted by: the silent ones, the held ones, then the fullest."""
    fullest = host["fullest"]["used_pct"] if host["fullest"] else -1
    return host["answers"], host["gate"]["open"] is not False, -fullest, host["name"]


def _host(host: Host, wide: int, width: int) -> list[str]:
    gate = {True: "open", False: "held", None: "?"}[host["gate"]["open"]] if host["answers"] else "-"
    fits = len(host["name"]) <= wide
    head = _row((host["name"] if fits else "", gate), wide)
    said = wrapped(_said(host), max(width - len(head), 20))
    lines = [f"{head if not number else ' ' * len(head)}{piece}" for number, piece in enumerate(said)]
    return lines if fits else [f"  {host['name']}", *lines]


def _said(host: Host) -> str:
    fullest = host["fullest"]
    said = []
    if fullest:
        said.append(f"{fullest['used_pct']} % {fullest['mount']}, {decimal(fullest['free_bytes'])} free")
    elif host["answers"]:
        said.append("not known")
    if host["unavailable"]:
        paths = sum(len(one["paths"]) for one in host["unavailable"])
        said.append(f"{counted(paths, 'path')} not available")
    if host["incomplete"]:
        said.append(f"{counted(len(host['incomplete']), 'figure')} incomplete")
    if host["answers"]:
        return ", ".join(said)
    why = textwrap.shorten(host["why"], _LONGEST_WHY, placeholder=" …")
    return f"{why}; it told last: {', '.join(said)}" if said else why


def _row(cells: tuple[str, str], wide: int) -> str:
    return f"  {cells[0]:<{wide}}  {cells[1]:<4}  "


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"report_table": report_table}
