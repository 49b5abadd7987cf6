# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which filesystems do not answer, and asking all others.

One child asks after all targets in turn. When it falls silent, the filesystem that it was asking is remembered as
hung and left alone for five minutes, and longer while the child still waits for it; another child asks after the rest.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Callable

from stowage_core import mounts
from stowage_core.data_location.locations import DataLocation
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


def device_of(target: Target, table: Sequence[Mount]) -> str:
    """Return the filesystem that will hang when *target* is touched, told from its path alone."""
    return mounts.of_path(target.path, table).device


def no_answer(target: Target) -> Message:
    return {
        "object": target.object,
        "available": False,
        "hung": True,
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
        answers: dict[str, Message] = {}
        waiting: list[Target] = []
        for target in targets:
            if device_of(target, table) in self._hung:
                answers[target.object] = no_answer(target)
            else:
                waiting.append(target)
        self._ask(waiting, location, table, answers, done)

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

        def body(send: Send) -> None:
            for target in waiting:
                send(probe.ask(self._places, target, location, table))

        def take(message: Message) -> None:
            answers[message["object"]] = message

        def end(ending: Ending) -> None:
            rest = [target for target in waiting if target.object not in answers]
            if not rest:
                self._ask([], location, table, answers, done)
                return
            device = device_of(rest[0], table)
            if ending.silent:
                self._hung.note(device, key)
                stuck = [target for target in rest if device_of(target, table) == device]
                self._say(f"{rest[0].path}: no answer for {ANSWER_S:g} s; its filesystem is left alone")
                answers.update((target.object, no_answer(target)) for target in stuck)
            else:
                self._say(f"{rest[0].path}: {ending.error}")
                answers[rest[0].object] = {"object": rest[0].object, "available": False, "reason": ending.error}
            self._ask([target for target in rest if target.object not in answers], location, table, answers, done)

        self._children.start(key, body, take, end, ANSWER_S)
