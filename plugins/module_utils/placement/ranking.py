# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which of the machines that may take a run are preferred, and why: those that hold the bytes, then those near them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..drives.declared import ON_ONE_MACHINE, PLACED, copy_name
from ..drives.refs import Wanted
from .machines import FABRIC, NVLINK, RACK, Machine

_NEAR = {RACK: "same rack", FABRIC: "same InfiniBand fabric", NVLINK: "same NVLink domain"}
_OVER_RDMA = ("Auto", "RDMA")


class Preference(NamedTuple):
    """How well a machine suits a run: the greater the better."""

    figures: tuple[int, ...]
    """How many drives it holds, how often it is near one, to how many it has RDMA; then each kind of nearness."""
    words: tuple[str, ...]
    """The same in words, one line for each drive that counts."""


def prefer(machine: Machine, workspace: str, wanted: Iterable[tuple[Wanted, Machine | None]]) -> Preference:
    """Return how well *machine* suits a worker.

    :param wanted: the drives, each source once, with the machine that holds it where it is on one machine
    """
    figures = [0] * (3 + len(_NEAR))
    words = []
    for one, holder in wanted:
        if one.spec is None or one.source is None:
            continue
        scope = one.source["node_scope"]
        if scope == PLACED and machine.holds(copy_name(workspace, one.name)):
            figures[0] += 1
            words.append(f"has a copy of drive {one.name}")
        elif scope == ON_ONE_MACHINE and holder is not None and holder.name == machine.name:
            figures[0] += 1
            words.append(f"drive {one.name} is on it")
        elif scope == ON_ONE_MACHINE and holder is not None:
            near = [machine.has_same(label, holder) for label in _NEAR]
            rdma = one.spec["transport"] in _OVER_RDMA and machine.has_rdma_to(holder)
            for index, figure in enumerate((sum(near), rdma, *near), 1):
                figures[index] += figure
            said = [phrase for phrase, true in zip((*_NEAR.values(), "RDMA at both ends"), (*near, rdma)) if true]
            if said:
                words.append(f"drive {one.name} is on {holder.name}: {', '.join(said)}")
    return Preference(tuple(figures), tuple(words))
