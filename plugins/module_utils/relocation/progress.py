# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far a move is, for whoever asks while it goes on."""

from __future__ import annotations

import os
import time

from .. import records
from ..errors import StowageError
from ..places import Places
from ..sizes import Space, decimal
from .recorded import Relocation
from .stages import COPIED

_EVERY_S = 2.0


def _path(places: Places, location: str) -> str:
    return os.path.join(places.run, "relocations", f"{location}.json")


class Progress:
    """What a stage says of itself."""

    def __init__(self, places: Places, location: str) -> None:
        self._path = _path(places, location)
        self._next = 0.0

    def say(self, text: str) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            records.write(self._path, {"text": text, "time": time.time()})

    def end(self) -> None:
        records.remove(self._path)


def progress_of(places: Places, one: Relocation) -> str:
    """Return in a line what is being done; of a copy, by what its filesystem has less than before."""
    if one.doing == COPIED:
        with_less = max(0, one.avail - Space.of(one.to_real).avail)
        return f"about {decimal(min(with_less, one.bytes))} of {decimal(one.bytes)} are copied"
    try:
        said = records.read(_path(places, one.location))
    except StowageError:
        said = None
    return str(said["text"]) if said and "text" in said else one.doing and f"to be {one.doing}"
