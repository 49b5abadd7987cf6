# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show where a run may start as a table, for a terminal of 80 columns and a job's log."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

_NARROWEST = 40
_WIDEST_NAME = 24
_NAMED = 3
"""How many hosts of a reason are named."""
_DIFFERING = "Given another drive of that name than most; a workspace should have one list for the site"


def placement_table(found: Any, width: int = 68, lines: int = 20) -> list[str]:
    """Return the lines of the table: the candidates by rank, then each kind of reason with its hosts.

    :param lines: how many candidates, and how many reasons, are shown at most
    """
    if not isinstance(found, Mapping) or not {"candidates", "hosts", "refused", "differing"} <= set(found):
        raise AnsibleFilterError("placement_table: the input must be the result of the filter stowage.host.placement")
    if not isinstance(width, int) or width < _NARROWEST:
        raise AnsibleFilterError(f"placement_table: width must be a whole number, at least {_NARROWEST}")
    if not isinstance(lines, int) or lines < 1:
        raise AnsibleFilterError("placement_table: lines must be a whole number, at least 1")
    candidates, refused = found["candidates"], found["refused"]
    title = f"{len(candidates)} of {_count(len(found['hosts']), 'host')} can take a run with {_drives(found)}"
    table = [*_wrapped(title, width, ""), *_candidates(candidates[:lines], found["hosts"], width)]
    table += _rest(len(candidates) - lines, "candidate")
    if refused:
        table += ["", "Not on"]
        for one in refused[:lines]:
            table += _wrapped(_names(one["hosts"]), width, "  ")
            table += _wrapped(one["reason"], width, "      ")
        table += _rest(len(refused) - lines, "reason")
    if found["differing"]:
        table += ["", *_wrapped(_DIFFERING, width, "")]
        for one in found["differing"]:
            table += _wrapped(_names(one["hosts"]), width, "  ")
            table += _wrapped(f"drive {one['drive']}", width, "      ")
    return table


def _drives(found: Mapping[str, Any]) -> str:
    names = found.get("drives") or []
    return f"{', '.join(names)} (workspace {found['workspace']})" if names else "no drive"


def _candidates(names: Sequence[str], hosts: Mapping[str, Any], width: int) -> list[str]:
    wide = min(max(map(len, names), default=0), _WIDEST_NAME)
    table = []
    for name in names:
        rank, preferred = hosts[name]["rank"], hosts[name]["preferred"]
        head = f"{rank:>4}  {name:<{wide}}  "
        room = width - len(head)
        said = [piece for words in preferred for piece in textwrap.wrap(words, max(room, 20))]
        if len(name) > wide or room < 20:
            table += [head.rstrip(), *(f"      {piece}" for piece in said)]
        else:
            table += [
                f"{head if index == 0 else ' ' * len(head)}{one}".rstrip() for index, one in enumerate(said or [""])
            ]
    return table


def _names(hosts: Sequence[str]) -> str:
    named = ", ".join(hosts[:_NAMED])
    return f"{named} and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else named


def _rest(number: int, what: str) -> list[str]:
    return [f"  and {_count(number, f'more {what}')}"] if number > 0 else []


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    """Return *text* on as many lines as it needs; words, so also paths and names, are never cut."""
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"placement_table": placement_table}
