# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show where a run may start as a table, for a terminal of 80 columns and a job's log."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.plugin_utils.lines import check, counted, named, rest, wrapped

_WIDEST_NAME = 24
_DIFFERING = "Given another drive of that name than most; a workspace should have one list for the site"


def placement_table(found: Any, width: int = 68, lines: int = 20) -> list[str]:
    """Return the lines of the table: the candidates by rank, then each kind of reason with its hosts.

    :param lines: how many candidates, and how many reasons, are shown at most
    """
    if not isinstance(found, Mapping) or not {"candidates", "hosts", "refused", "differing"} <= set(found):
        raise AnsibleFilterError("placement_table: the input must be the result of the filter stowage.host.placement")
    check("placement_table", width, lines)
    candidates, refused = found["candidates"], found["refused"]
    title = f"{len(candidates)} of {counted(len(found['hosts']), 'host')} can take a run with {_drives(found)}"
    table = [*wrapped(title, width), *_candidates(candidates[:lines], found["hosts"], width)]
    table += rest(len(candidates) - lines, "candidate")
    if refused:
        table += ["", "Not on"]
        for one in refused[:lines]:
            table += wrapped(named(one["hosts"]), width, "  ")
            table += wrapped(one["reason"], width, "      ")
        table += rest(len(refused) - lines, "reason")
    if found["differing"]:
        table += ["", *wrapped(_DIFFERING, width)]
        for one in found["differing"]:
            table += wrapped(named(one["hosts"]), width, "  ")
            table += wrapped(f"drive {one['drive']}", width, "      ")
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


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"placement_table": placement_table}
