# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each host would have to mount for a run: the drives as the inventory declares them for that host.

A workspace has one list of drives for the site. The inventory may say something else of some hosts: these are judged by
what a rollout gives them, and named.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Union

from ..drives import refs as drive_refs
from ..drives.declared import Problems, check_drives, check_name
from ..drives.reasons import Reason
from ..drives.refs import DriveRef, Wanted
from ..errors import Refusal, StowageError, did_you_mean, printable
from .decision import Asked

Declared = Union[Mapping[str, Any], Reason]
"""The lists of drives that a host is given, by workspace; or why they cannot be read."""

_TOLD = 3
"""How many problems of a list are told."""


def choose_workspace(given: Any, declared: Iterable[Declared]) -> str:
    """Return the workspace that a run is in: the only one there is, when none is given."""
    there = sorted({str(name) for one in declared if not isinstance(one, Reason) for name in one})
    known = f"host_drives has {', '.join(map(printable, there)) or 'none'}"
    if given is None or (isinstance(given, str) and not given.strip()):
        if len(there) != 1:
            raise Refusal("workspace", "name the workspace", known)
        return check_name(there[0], "host_drives")
    name = check_name(given.strip() if isinstance(given, str) else given, "workspace")
    if name not in there:
        raise Refusal(f"workspace {name}", f"there is none of this name; {known}", did_you_mean(name, there))
    return name


def ask(
    refs: Sequence[DriveRef], workspace: str, declared: Mapping[str, Declared], machines: Collection[str]
) -> dict[str, Asked]:
    """Return what a worker would mount on each host, or what is wrong with that.

    :param refs: the drives of the worker
    :param declared: by host; hosts that are given the same list should share the object
    :param machines: the hosts of the inventory, which drives may name
    """
    known: dict[int, Asked] = {}
    asked: dict[str, Asked] = {}
    for host, lists in declared.items():
        if isinstance(lists, Reason):
            asked[host] = lists
        elif workspace not in lists:
            what = f"no workspace {workspace} in host_drives"
            asked[host] = Reason("", f"machine {host} has {what}", f"{{count}} machines have {what}")
        else:
            drives = lists[workspace]
            if id(drives) not in known:
                known[id(drives)] = _resolved(refs, workspace, drives, machines)
            asked[host] = known[id(drives)]
    return asked


def _resolved(refs: Sequence[DriveRef], workspace: str, drives: Any, machines: Collection[str]) -> Asked:
    try:
        return drive_refs.resolve(refs, check_drives(drives, machines, f"host_drives.{workspace}"))
    except Problems as error:
        more = len(error.problems) - _TOLD
        return Reason("", "; ".join([*error.problems[:_TOLD], *([f"and {more} more"] if more > 0 else [])]))
    except StowageError as error:
        return Reason("", str(error))


def check_any(asked: Mapping[str, Asked]) -> None:
    """Refuse what is wrong for every host: the run is, or what is declared."""
    wrong = Counter(one.text for one in asked.values() if isinstance(one, Reason))
    if asked and sum(wrong.values()) == len(asked):
        raise Refusal("", wrong.most_common(1)[0][0])


def by_list(asked: Mapping[str, Asked]) -> list[tuple[Sequence[Wanted], list[str]]]:
    """Return each list of drives with the hosts that are given it."""
    lists: dict[int, tuple[Sequence[Wanted], list[str]]] = {}
    for host, wanted in asked.items():
        if not isinstance(wanted, Reason):
            lists.setdefault(id(wanted), (wanted, []))[1].append(host)
    return list(lists.values())


def differing(asked: Mapping[str, Asked]) -> list[tuple[str, list[str]]]:
    """Return the drives that hosts are given in different ways, each with the hosts that differ from most."""
    ways: dict[str, dict[str, list[str]]] = {}
    for wanted, hosts in by_list(asked):
        for name, spec in {one.name: one.spec for one in wanted}.items():
            ways.setdefault(name, {}).setdefault(json.dumps(spec, sort_keys=True), []).extend(hosts)
    found = []
    for name, hosts_of in ways.items():
        usual = max(hosts_of.values(), key=len)
        if len(hosts_of) > 1:
            found.append((name, sorted(host for hosts in hosts_of.values() if hosts is not usual for host in hosts)))
    return found
