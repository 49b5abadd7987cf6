# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which filesystems do not answer, and asking all others.

One child asks after all targets in turn, and tells before it touches a filesystem on the way there: only at that place
it is seen where a path leads over symbolic links. When it falls silent, the filesystem that it has told last is
remembered as hung and left alone for five minutes, and longer while the child still waits for it; another child asks
after the rest.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Callable

from stowage_core.data_location.locations import DataLocation
from stowage_core.errors import StowageError
from stowage_core.mounts import Mount
from stowage_core.places import Places

from . import probe
from .children import Children, Ending, Message, Send
from .declared import Target

ANSWER_S = 5.0
LEFT_ALONE_S = 300.0


class Hung:
    """The filesystems that did not answer, by device."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._until: dict[str, float] = {}
        self._keys: dict[str, str] = {}

    def note(self, device: str, key: str) -> None:
        """Remember that the child *key* waits for *device* in vain."""
        self._until[device] = time.monotonic() + LEFT_ALONE_S
        self._keys[device] = key

    def forget(self, device: str) -> None:
        """Let *device* be asked again at once: there is a sign that it answers."""
        self._until.pop(device, None)
        self._keys.pop(device, None)

    def __contains__(self, device: object) -> bool:
        until = self._until.get(str(device))
        if until is None:
            return False
        if time.monotonic() < until or self._children.left_behind(self._keys[str(device)]):
            return True
        del self._until[str(device)], self._keys[str(device)]
        return False


class _HangsError(StowageError):
    """A path leads to, or over, what is left alone."""

    def __init__(self, mount: Mount) -> None:
        super().__init__(f"{mount.point}: does not answer")
        self.place = probe.place_of(mount)


def no_answer(target: Target, place: Message) -> Message:
    """Return what is known of a target on, or behind, a filesystem that hangs.

    :param place: that filesystem
    """
    return {
        "object": target.object,
        "available": False,
        "hung": True,
        "place": place,
        "reason": f"{target.path}: its filesystem does not answer; left alone for {LEFT_ALONE_S / 60:.0f} minutes",
    }


class Prober:
    """Asks after all targets; one round at a time."""

    def __init__(self, places: Places, children: Children, hung: Hung, say: Callable[[str], None]) -> None:
        self._places = places
        self._children = children
        self._hung = hung
        self._say = say
        self._serial = itertools.count()
        self.busy = False

    def start(
        self,
        targets: Sequence[Target],
        location: DataLocation | None,
        table: Sequence[Mount],
        done: Callable[[dict[str, Message]], None],
    ) -> None:
        """Ask after *targets* and call *done* with what was answered, by object, within bounded time."""
        self.busy = True
        self._ask(list(targets), location, table, {}, done)

    def _ask(
        self,
        waiting: list[Target],
        location: DataLocation | None,
        table: Sequence[Mount],
        answers: dict[str, Message],
        done: Callable[[dict[str, Message]], None],
    ) -> None:
        if not waiting:
            self.busy = False
            done(answers)
            return
        key = f"probe/{next(self._serial)}"
        at: dict[str, Message] = {}

        def body(send: Send) -> None:
            for target in waiting:
                send(self._answer(target, location, table, send))

        def take(message: Message) -> None:
            told = at if "at" in message else answers
            told[message["object"]] = message

        def end(ending: Ending) -> None:
            rest = [target for target in waiting if target.object not in answers]
            if not rest:
                self._ask([], location, table, answers, done)
                return
            first = rest[0]
            if ending.silent and first.object in at:
                place = at[first.object]["at"]
                self._hung.note(place["device"], key)
                self._say(f"{first.path}: no answer for {ANSWER_S:g} s; its filesystem is left alone")
                answers[first.object] = no_answer(first, place)
            else:
                self._say(f"{first.path}: {ending.error}")
                answers[first.object] = {"object": first.object, "available": False, "reason": ending.error}
            self._ask(rest[1:], location, table, answers, done)

        self._children.start(key, body, take, end, ANSWER_S)

    def _answer(self, target: Target, location: DataLocation | None, table: Sequence[Mount], send: Send) -> Message:
        """Ask after a target, and tell what is touched; this runs in the child, and may never return."""
        told = None

        def touch(mount: Mount) -> bool:
            nonlocal told
            if mount.device in self._hung:
                raise _HangsError(mount)
            if mount.device != told:
                told = mount.device
                send({"object": target.object, "at": probe.place_of(mount)})
            return True

        try:
            return probe.ask(self._places, target, location, table, touch)
        except _HangsError as error:
            return no_answer(target, error.place)
