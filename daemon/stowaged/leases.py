# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The leases of this host: which copies they hold, who uses which drive or volume, and that ended ones are let go.

The daemon may neither mount nor unmount. Where leases have ended it leaves a file, on which the service manager starts
``stowage lease expire``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from typing import Any, Callable

from stowage_core import records
from stowage_core.copies import present as copies
from stowage_core.errors import StowageError
from stowage_core.places import Places
from stowage_core.runs import pins
from stowage_core.runs.pins import LEASED, RESERVED, Pin

from .children import Children, Ending, Message, Send

_SILENCE_S = 30.0
_RETRY_S = 60.0


def ended_path(places: Places) -> str:
    return os.path.join(places.run, "ended")


class Leases:
    """Looks at the pins under /run/stowage."""

    def __init__(
        self,
        places: Places,
        children: Children,
        say: Callable[[str], None],
        used: Callable[[str, float | None], None],
        look_again: Callable[[], object],
    ) -> None:
        self._places = places
        self._children = children
        self._say = say
        self._used = used
        self._look_again = look_again
        self._pins: list[Pin] | None = None
        self._held: set[str] = set()
        self._unreadable = ""
        self._touched: dict[str, float] = {}
        self._tried: dict[tuple[str, float], float] = {}
        """When it was last tried to let go of each ended lease, by what it is called and when it was made."""

    def look(self, forced: Collection[tuple[str, str]] = ()) -> None:
        """Read all pins, and let a child do what has to be done about them.

        :param forced: workspace and name of the drives that were deleted although workers use them
        """
        try:
            self._pins = pins.all_pins(self._places)
            unreadable = ""
        except (StowageError, OSError) as error:
            # Then nobody knows which copies are held: all of them may be.
            self._pins, unreadable = None, str(error)
        self._held = {pin.copy for pin in self._pins or [] if pin.copy}
        if unreadable and unreadable != self._unreadable:
            self._say(unreadable)
        self._unreadable = unreadable
        self._keep(forced)

    def _keep(self, forced: Collection[tuple[str, str]]) -> None:
        now = time.monotonic()
        ended, used = [], set()
        self._tried = {lease: then for lease, then in self._tried.items() if now - then < _RETRY_S}
        for pin in self._pins or []:
            if (pin.workspace, pin.drive) not in forced and not pins.stale(pin):
                if pin.copy and now - self._touched.get(pin.copy, -copies.USE_INTERVAL_S) >= copies.USE_INTERVAL_S:
                    used.add(pin.copy)
            elif (pin.described, pin.created) not in self._tried:
                ended.append(pin)
        if ended:
            self._tried.update({(pin.described, pin.created): now for pin in ended})
            try:
                records.write(ended_path(self._places), {"leases": [pin.described for pin in ended]})
            except OSError as error:
                self._say(f"{ended_path(self._places)}: {error.strerror}; ended leases stay for now")
            else:
                self._look_again()  # a copy that is deleted may wait for no more than that
        if used and not self._children.running("leases"):
            self._touched.update(dict.fromkeys(used, now))
            self._children.start("leases", lambda send: self._touch(used, send), self._take, self._end, _SILENCE_S)

    def _touch(self, used: set[str], send: Send) -> None:
        for copy in sorted(used):
            now = time.time()
            try:
                record = copies.load_record(self._places, copy)
            except records.RecordError:
                continue  # measuring says so, and makes it anew, as used then
            if record is not None:
                why = copies.note_used(self._places, copy, (record.identity, record.path))
                last_used = now if why else (copies.load_record(self._places, copy) or record).last_used
                said = f"copy {copy}: its use could not be recorded: {why}" if why else ""
                send({"copy": copy, "used": last_used, "say": said})

    def _take(self, message: Message) -> None:
        self._used(message["copy"], message["used"])
        if message["say"]:
            self._say(message["say"])

    def _end(self, ending: Ending) -> None:
        if ending.error:
            self._say(f"leases: {ending.error}")

    def holds(self, copy: str) -> bool | None:
        """Return whether a lease holds *copy*; None when that is not known."""
        return None if self._pins is None else copy in self._held

    def shown(self) -> dict[str, Any]:
        found = self._pins or []
        users = pins.used_by(found)
        return {
            **{state: sum(1 for pin in found if pin.state == state) for state in (RESERVED, LEASED)},
            "used_by": {f"{workspace}/{drive}": workers for (workspace, drive), workers in users.items()},
            "volumes_used_by": pins.users_of_volumes(found),
        }
