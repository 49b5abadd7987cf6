# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the hosts of a report as a table, for a terminal of 80 columns and a job's log."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.module_utils.sizes import decimal
from ansible_collections.stowage.host.plugins.plugin_utils.report import fleet

Host = Mapping[str, Any]

_NARROWEST = 40
_WIDEST_NAME = 24
_LEAST = 34
"""What the other columns take at least."""
_LONGEST_WHY = 120
"""Ansible's reasons can have many lines; all of them are on the page."""
_NAMED = 3
"""How many hosts of a kind of trouble are named."""


def report_table(report: Any, width: int = 68, lines: int = 20) -> list[str]:
    """Return the lines of the table: the hosts, those in trouble and the fullest first, and what needs attention.

    :param lines: how many hosts, and how many kinds of trouble, are shown at most
    """
    if not isinstance(width, int) or width < _NARROWEST:
        raise AnsibleFilterError(f"report_table: width must be a whole number, at least {_NARROWEST}")
    if not isinstance(lines, int) or lines < 1:
        raise AnsibleFilterError("report_table: lines must be a whole number, at least 1")
    try:
        found = fleet.read(report)
    except StowageError as error:
        raise AnsibleFilterError(f"report_table: {error}") from error
    hosts = sorted(found["hosts"], key=_first)
    # A longer name has a line of its own.
    wide = min(max([len(host["name"]) for host in hosts], default=0), _WIDEST_NAME, width - _LEAST)
    table = [*_wrapped(_title(found["summary"]), width), f"{_row(('Host', 'Gate'), wide)}Fullest local filesystem"]
    for host in hosts[:lines]:
        table += _host(host, wide, width)
    table += _rest(len(hosts) - lines, "host")
    troubles = found["attention"]
    if troubles:
        table += ["", "Needs attention"]
        for one in troubles[:lines]:
            table += _wrapped(f"{one['what']}: {_names([item['host'] for item in one['items']])}", width, "  ")
        table += _rest(len(troubles) - lines, "kind")
    return table


def _title(summary: Mapping[str, Any]) -> str:
    room, gates = summary["space"]["local"], summary["gates"]
    title = (
        f"{summary['answering']} of {_count(summary['hosts'], 'host')} answered, {_count(gates['held'], 'gate')} held"
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
    said = _wrapped(_said(host), max(width - len(head), 20))
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
        said.append(f"{_count(len(host['unavailable']), 'path')} not available")
    if host["incomplete"]:
        said.append(f"{_count(len(host['incomplete']), 'figure')} incomplete")
    if host["answers"]:
        return ", ".join(said)
    why = textwrap.shorten(host["why"], _LONGEST_WHY, placeholder=" …")
    return f"{why}; it told last: {', '.join(said)}" if said else why


def _row(cells: tuple[str, str], wide: int) -> str:
    return f"  {cells[0]:<{wide}}  {cells[1]:<4}  "


def _names(hosts: Sequence[str]) -> str:
    different = list(dict.fromkeys(hosts))
    named = ", ".join(different[:_NAMED])
    return f"{named} and {len(different) - _NAMED} more" if len(different) > _NAMED else named


def _rest(number: int, what: str) -> list[str]:
    return [f"  and {_count(number, f'more {what}')}"] if number > 0 else []


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Return *text* on as many lines as it needs; words, so also paths and names, are never cut."""
    after = f"{indent}    " if indent else ""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    )


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"report_table": report_table}
