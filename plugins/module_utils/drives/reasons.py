# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a machine cannot have a drive, in Astraeus's words: placement foretells what a run is refused with there."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import Refusal

CHOOSE_ON_SEVERAL = "Choose where to keep data on the machines"


class Reason(NamedTuple):
    """Why a machine cannot have a drive, or cannot take a run at all; a tuple, because there may be 10,000."""

    name: str
    """The object that it is about; empty where the rule says it."""
    rule: str
    several: str = ""
    """How it is told of several machines, with ``{count}``, ``{least}`` and ``{most}``: those that have this in common
    are of one kind. Empty where it says nothing that differs from machine to machine."""
    amount: int = 0
    """The bytes of which the least and the most are told."""

    @property
    def text(self) -> str:
        return f"{self.name}: {self.rule}" if self.name else self.rule

    def refusal(self, remedy: str = "") -> Refusal:
        return Refusal(self.name, self.rule, remedy)


def choose_data_location(machine: str) -> Reason:
    return Reason("", f"Choose where to keep data on {machine}", CHOOSE_ON_SEVERAL)


def not_usable(drive: str, source: int, machine: str) -> Reason:
    name, rule = f"drive {drive}", f"source {source} is not usable from"
    return Reason(name, f"{rule} machine {machine}", f"{name}: {rule} {{count}} machines")


def only_local(drive: str, source: int, holder: str) -> Reason:
    return Reason(f"drive {drive}", f"source {source} is local to machine {holder} and its transport is Local")


def in_another_site(drive: str, holder: str, site: str) -> Reason:
    return Reason("", f"drive {drive} is on {holder}, in another site ({site})")


def is_down(drive: str, source: int, holder: str) -> Reason:
    return Reason(f"drive {drive}", f"source {source} is on machine {holder} which is Down")


def not_reported(machine: str) -> Reason:
    rule, several = "has not reported its storage yet; gather its facts", "have not reported their storage yet"
    return Reason("", f"machine {machine} {rule}", f"{{count}} machines {several}; gather their facts")


def not_shared_here(drive: str, path: str) -> Reason:
    return Reason(f"drive {drive}", f"{path} is not on a shared filesystem mounted here")
