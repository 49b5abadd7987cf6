# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What stays as it is while a backend runs: a tier belongs to its group, and a group is known by its position.

Capacity, key limit, eviction and everything else of a group may change; what a tier holds survives that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..drives.declared import Problems
from ..errors import Refusal, quoted
from .declared import Backend, MemberGroup, share_a_host

_KNOWN_BY_POSITION = "groups are known by their position"
_STAYS_BEHIND = "what its members wrote would stay on their hosts with nothing addressing it"


def check_unchanged(recorded: Backend, declared: Backend) -> None:
    """Refuse a declaration that moves, adds or removes a tier of a recorded group, or that drops any but the last.

    :raises Problems: every position that is not what it was, a line each
    """
    problems = [str(problem) for problem in _problems(recorded, declared)]
    if problems:
        raise Problems(problems)


def _problems(recorded: Backend, declared: Backend) -> Iterator[Refusal]:
    removed = len(declared.members) < len(recorded.members)
    for position, (was, now) in enumerate(zip(recorded.members, declared.members)):
        where = f"{declared.name}: members[{position}]"
        former = _former_position(recorded.members, position, now)
        if former is not None:
            # Every later position is off by as much, and says nothing new.
            yield _moved(where, position, former, removed, len(declared.members) > len(recorded.members))
            return
        if was.tier is None and now.tier is not None:
            rule = (
                "a tier cannot be added to a group that runs: its members would have to restart to have the directory"
            )
            yield Refusal(f"{where}.local_disks", rule, "put it on a new group behind the last, or delete the backend")
        elif was.tier is not None and now.tier is None:
            rule = f"the tier {quoted(was.tier.path)} cannot be taken off a group that runs: {_STAYS_BEHIND}"
            yield Refusal(f"{where}.local_disks", rule, _exit(recorded, position))
        elif was.tier is not None and now.tier is not None and was.tier.path != now.tier.path:
            rule = f"{quoted(now.tier.path)} was {quoted(was.tier.path)}, and the tier of a group that runs stays there"
            yield Refusal(f"{where}.local_disks[0].path", f"{rule}: {_STAYS_BEHIND}", _exit(recorded, position))
        elif was.tier is not None and was.store != now.store:
            rule = f"{now.store} was {was.store}, and what the tier holds is kept by that one"
            yield Refusal(f"{where}.store", rule, _exit(recorded, position))


def _former_position(recorded: Sequence[MemberGroup], position: int, group: MemberGroup) -> int | None:
    """Return the position at which a group with a tier was recorded, when it is another one than it has now."""
    if group.tier is None:
        return None
    same = [index for index, was in enumerate(recorded) if was.tier is not None and was.tier.path == group.tier.path]
    if position in same:
        # Where groups have one path, their hosts tell them apart, as far as they were not edited in the same change.
        same = [index for index in same if share_a_host(recorded[index], group)]
    return same[0] if same and position not in same else None


def _moved(where: str, position: int, former: int, removed: bool, added: bool) -> Refusal:
    if removed and former > position:
        rule = f"was dropped, and what was members[{former}] took its place; {_KNOWN_BY_POSITION}"
        return Refusal(where, rule, "only the last can be dropped: put this one back")
    remedy = "put new groups behind the last" if added and former < position else "keep their order"
    return Refusal(where, f"was members[{former}]; {_KNOWN_BY_POSITION}", remedy)


def _exit(recorded: Backend, position: int) -> str:
    """Return how a tier can be given up."""
    if len(recorded.members) == 1:
        return "put it back; only deletion of the backend gives it up"
    if position == len(recorded.members) - 1:
        return "put it back, or drop the whole group, which is the last"
    return "put it back; only the last group can be dropped"
