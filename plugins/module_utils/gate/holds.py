# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holding all jobs of a host because somebody says so, until it is lifted: outlasts the daemon and a boot."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .. import records
from ..errors import Refusal, StowageError, one_line, printable
from ..locks import records_lock
from ..places import Places
from .judgement import HELD, Hold

OPERATOR = "operator"
"""The hold of whoever uses the command."""


@dataclass(frozen=True)
class Declared:
    """A hold, by the name of whom it belongs to."""

    text: str
    since: float


def set_hold(places: Places, name: str, text: str) -> bool:
    """Hold all jobs of this host, and return whether that changed anything; it is seen at once.

    :param name: whose hold it is, such as ``operator`` or ``relocate/runs``: each has one
    :param text: why, in words
    """
    if not text.strip() or not text.isprintable():
        raise Refusal("hold", "its text must be one line of printable characters", "say why jobs are held")
    with records_lock(places):
        found = load(places)
        if name in found and found[name].text == text:
            return False
        found[name] = Declared(text, time.time())
        return _write(places, found)


def lift(places: Places, name: str) -> bool:
    """Let jobs start as far as *name* is concerned, and return whether it held any."""
    with records_lock(places):
        found = load(places)
        if found.pop(name, None) is None:
            return False
        return _write(places, found)


def load(places: Places) -> dict[str, Declared]:
    """Return the holds by name.

    :raises RecordError: when they cannot be read
    """
    value = records.read(places.holds_json) or {}
    try:
        return {name: records.typed(Declared, one) for name, one in sorted(value.items())}
    except (TypeError, AttributeError) as error:
        remedy = "remove it, and hold again what is to be held"
        raise records.RecordError(f"{places.holds_json}: not a list of holds ({error}); {remedy}") from error


def declared(places: Places) -> list[Hold]:
    """Return the holds as part of a judgement; a record that cannot be read holds too: nobody knows what it says."""
    try:
        return [Hold(HELD, one.text) for one in load(places).values()]
    except (StowageError, OSError) as error:
        return [Hold(HELD, f"what is held is not known: {printable(one_line(error))}")]


def _write(places: Places, found: dict[str, Declared]) -> bool:
    return records.write(places.holds_json, {name: vars(one) for name, one in found.items()})
