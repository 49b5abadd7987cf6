# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which engine measures each filesystem, and the children in which the rounds are carried out.

``watch`` is a child for each filesystem that stays and looks only at what has changed. ``scan`` is a child for each
round that looks at every file: where a filesystem cannot be watched or is not to be, and while watching has failed.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Callable

from stowage_core import events, mounts
from stowage_core.mounts import Mount
from stowage_core.places import Places

from .children import Children, Ending, Message
from .hung import Hung
from .measuring import SILENCE_S, Measuring
from .sections import Sections
from .settings import Settings
from .watching import Order, Watcher
from .writer import Writer

WATCH, SCAN = "watch", "scan"
COPIES, MEASURE = "copies", "measure"
"""The kinds of rounds: of the copies in the data location, and of all else on a filesystem."""
RETRY_S = 3600.0
"""How long a filesystem is scanned after watching it has failed."""
HEEDED_S = 2.0
"""How long a child may take to break off what it is at; then it is killed: it may hang, and hold copies open."""
PATIENCE_S = 2.0
"""How long the copies wait for another round: where all is known that takes no time."""
FAILED, RESUMED = "WatchFailed", "WatchResumed"
"""The reasons of events."""
OFF, SHARED, UNABLE = "off", "shared", "unable"
"""Why a filesystem is scanned: an operator wants it, other hosts may write there too, or watching it fails."""

_UNKNOWN: Mapping[str, Any] = {"trees": 0, "directories": 0, "unsteady": 0, "listed": None, "lost": 0}


@dataclass(frozen=True)
class Filesystem:
    """A filesystem that something declared is on."""

    device: str
    shared: bool
    mountpoint: str = ""
    source: str = ""
    fstype: str = ""
    """The last three are empty while nothing on it answers."""
    kinds: frozenset[str] = frozenset()
    """Of the rounds that are carried out there."""


@dataclass(frozen=True)
class Round:
    """What is measured in one go, and who is told."""

    kind: str
    filesystem: Filesystem
    body: Measuring
    take: Callable[[Message], None]
    end: Callable[[Ending], None]
    began: float = 0.0
    again: bool = False
    """Whether its child has ended before it took it on."""

    @property
    def key(self) -> str:
        return key_of(self.kind, self.filesystem.device)


@dataclass
class _State:
    """What is known of the watching of a filesystem."""

    filesystem: Filesystem
    round: Round | None = None
    """What its child is at."""
    hung: str = ""
    """The key of the round in which its child was left behind."""
    ending: bool = False
    """Whether its child was told to end."""
    stopped: str = ""
    """Why what it is at was broken off, and is not to be done in another way either; else empty."""
    stopped_at: float = 0.0
    """When that was asked for first."""
    memory_mb: int = 0
    """What its child may remember."""
    why: str = ""
    """Why it is not watched; empty where it is, or nobody has tried yet."""
    retry: float = 0.0
    """When watching is tried again."""
    watched: bool = False
    """Whether a round has come to its end by watching; after a failure, one of each kind."""
    done: set[str] = field(default_factory=set)
    """The kinds of the rounds that its child has brought to an end: one may fit in its memory, and another not."""
    failed: bool = False
    """Whether the event of a failure was told, and none of its end."""
    failures: int = 0
    lost: int = 0
    """How often everything known was lost, without what its child tells of itself."""
    shown: Mapping[str, Any] = field(default_factory=lambda: _UNKNOWN)


def key_of(kind: str, device: str) -> str:
    """Return what a round is known by."""
    return f"{kind}/{device}"


def watcher_key(device: str) -> str:
    """Return the key of the child that watches a filesystem."""
    return f"watch/{device}"


class Engines:
    """Carries out rounds; of each key there is at most one at a time."""

    def __init__(
        self, places: Places, children: Children, hung: Hung, writer: Writer, say: Callable[[str], None]
    ) -> None:
        self._places = places
        self._children = children
        self._hung = hung
        self._writer = writer
        self._say = say
        self._settings = Settings()
        self._off: set[str] = set()
        """Devices of the filesystems at which watching is turned off."""
        self._of: dict[str, _State] = {}

    # -- Every cycle

    def look(self, present: Sequence[Filesystem], complete: bool, table: Sequence[Mount], settings: Settings) -> None:
        """Take on what there is to measure, and let go of what is not.

        :param present: the filesystems that something is measured on
        :param complete: whether these are all of them: else one that is missing may be there all the same
        """
        self._settings = settings
        self._off = {mounts.of_path(path, table).device for path in settings.watch_off}
        for filesystem in present:
            state = self._of.setdefault(filesystem.device, _State(filesystem))
            if filesystem.mountpoint:
                state.filesystem = filesystem
        for device, state in list(self._of.items()):
            watcher = watcher_key(device)
            if state.stopped and time.monotonic() - state.stopped_at > HEEDED_S:
                self._children.stop(watcher, state.stopped)
            is_gone = complete and device not in {one.device for one in present}
            unwanted = "nothing on it is measured" if is_gone else self._unwanted(state)[1]
            if not self._children.running(watcher):
                if is_gone:
                    del self._of[device]
            elif unwanted or state.memory_mb != settings.watch_memory_mb:
                self._end_watcher(state, unwanted or "begins anew, as it may remember more or less than before")

    def retry(self) -> None:
        """Try to watch again at once where that has failed: an operator may have put right what was wrong."""
        for state in self._of.values():
            state.retry = 0.0

    def _unwanted(self, state: _State) -> tuple[str, str]:
        """Return why a filesystem is not to be watched, as a cause and in words; both are empty when it is."""
        if not self._settings.watch:
            return OFF, "turned off (watch)"
        if state.filesystem.device in self._off:
            return OFF, "turned off here (watch_off)"
        return (SHARED, "other hosts may write there too") if state.filesystem.shared else ("", "")

    def _is_to_be_watched(self, state: _State) -> bool:
        return not self._unwanted(state)[0] and time.monotonic() >= state.retry and bool(state.filesystem.mountpoint)

    def _end_watcher(self, state: _State, why: str) -> None:
        child = watcher_key(state.filesystem.device)
        if not self._children.left_behind(child):
            state.ending = True
            self._children.stop(child, why)

    # -- Rounds

    def running(self, key: str) -> bool:
        """Return whether a round is under way, or its child was left behind and may hold open what it was at."""
        if self._children.running(key):
            return True
        state = self._of.get(key.partition("/")[2])
        if state is None:
            return False
        at_work = state.round is not None and state.round.key == key
        return at_work or (state.hung == key and self._children.left_behind(watcher_key(state.filesystem.device)))

    def watches(self, device: str) -> bool:
        """Return whether a round there takes in what has changed anywhere, so that it may open copies."""
        state = self._of.get(device)
        return state is not None and self._is_to_be_watched(state)

    def is_watching(self, device: str) -> bool:
        """Return whether such a round is under way, or its child was left behind and may hold open what it was at."""
        state = self._of.get(device)
        if state is None:
            return False
        return state.round is not None or bool(state.hung and self._children.left_behind(watcher_key(device)))

    def start(self, round: Round) -> bool:
        """Begin a round, and return whether it could begin: else its time comes with a later cycle."""
        round = replace(round, began=time.monotonic())
        state = self._of.setdefault(round.filesystem.device, _State(round.filesystem))
        if not self._is_to_be_watched(state):
            self._scan(round)
            return True
        if state.ending or self._children.left_behind(watcher_key(state.filesystem.device)):
            return False
        if state.round is not None:
            # Making room waits for the sizes of copies: for all else that is measured one cycle at most.
            if round.kind != COPIES or time.monotonic() < state.round.began + PATIENCE_S:
                return False
            self._scan(round)
            return True
        self._watch(state, round)
        return True

    def stop(self, key: str, why: str) -> None:
        """Have a round that is under way end. When it does not run any more, nothing that it measured is open."""
        self._children.stop(key, why)
        state = self._of.get(key.partition("/")[2])
        if state is not None and state.round is not None and state.round.key == key:
            self._break_off(state, why)

    def stop_watching(self, device: str, why: str) -> None:
        """Have the round end that takes in what has changed anywhere on a filesystem, whatever it is for."""
        state = self._of.get(device)
        if state is not None and state.round is not None:
            self._break_off(state, why)

    def _break_off(self, state: _State, why: str) -> None:
        if not state.stopped:
            state.stopped_at = time.monotonic()
            self._children.interrupt(watcher_key(state.filesystem.device))
        state.stopped = why

    def _scan(self, round: Round) -> None:
        def end(ending: Ending) -> None:
            if ending.silent:
                self._hung.note(round.filesystem.device, round.key)
            round.end(ending)

        self._children.start(round.key, round.body, round.take, end, SILENCE_S)

    def _watch(self, state: _State, round: Round) -> None:
        device = state.filesystem.device
        child = watcher_key(device)
        if not self._children.running(child):
            state.memory_mb = self._settings.watch_memory_mb
            watcher = Watcher(device, state.memory_mb << 20)
            self._children.keep(child, watcher, partial(self._take, state), partial(self._end, state))
        state.round = round
        order = Order(round.kind, round.body, self._settings.full_listing_interval_s)
        self._children.order(child, pickle.dumps(order), SILENCE_S)

    def _take(self, state: _State, message: Message) -> None:
        if "watching" in message:
            state.shown = message["watching"]
        elif "done" in message:
            round, state.round = state.round, None
            stopped, state.stopped = state.stopped, ""
            self._children.rest(watcher_key(state.filesystem.device))
            if round is not None and not message["done"]:
                state.done.add(round.kind)
            if message["watches"]:  # else there was nothing on it to count
                self._see_watched(state)
            if round is not None:
                round.end(Ending(stopped if message["done"] and stopped else message["done"]))
        elif state.round is not None:
            state.round.take(message)

    def _see_watched(self, state: _State) -> None:
        """Take on that a round was carried out by watching."""
        if state.failed:
            if not state.filesystem.kinds <= state.done:
                return
            state.failed = False
            self._tell(state, RESUMED, "is watched again")
        state.why, state.watched = "", True

    def _end(self, state: _State, ending: Ending) -> None:
        """Take on that a child is not there any more, or does not answer."""
        round, state.round = state.round, None
        intended, state.ending = state.ending, False
        stopped, state.stopped = state.stopped, ""
        state.lost += state.shown["lost"]
        state.shown, state.done = _UNKNOWN, set()
        if ending.silent:
            state.hung = "" if round is None else round.key
            self._hung.note(state.filesystem.device, watcher_key(state.filesystem.device))
        elif ending.error and not intended and not stopped:
            self._fail(state, ending.error)
        if round is None:
            return
        if ending.silent:
            round.end(ending)
        elif stopped:
            round.end(Ending(stopped))
        elif ending.error or round.again:
            self._scan(round)
        else:
            # It ended before it saw that there is something to do.
            self._watch(state, replace(round, again=True))

    def _fail(self, state: _State, error: str) -> None:
        """Scan from now on, for a while."""
        before, state.why = state.why, error
        state.retry = time.monotonic() + RETRY_S
        if state.watched:
            state.watched, state.failed = False, True
            state.failures += 1
            self._tell(state, FAILED, f"is not watched any more, and every file is looked at each time: {error}")
        elif error != before:
            self._say(f"{state.filesystem.mountpoint}: is not watched, and every file is looked at each time: {error}")

    def _tell(self, state: _State, reason: str, message: str) -> None:
        point = state.filesystem.mountpoint
        self._say(f"{point}: {message}")
        self._writer.do(partial(_record, self._places, f"filesystem{point}", reason, message))

    # -- Sections

    def publish(self, sections: Sections) -> None:
        found = sorted(self._of.values(), key=lambda state: state.filesystem.mountpoint)
        sections.put("measuring", {"filesystems": [self._shown(one) for one in found if one.filesystem.mountpoint]})

    def _shown(self, state: _State) -> dict[str, Any]:
        unwanted, why = self._unwanted(state)
        why = why or state.why
        return {
            "mountpoint": state.filesystem.mountpoint,
            "device": state.filesystem.source,
            "fstype": state.filesystem.fstype,
            "engine": SCAN if why else WATCH,
            "cause": unwanted or (UNABLE if why else ""),
            "reason": why,
            "failed": state.failed and not unwanted,
            "failures": state.failures,
            **state.shown,
            "lost": state.lost + state.shown["lost"],
        }


def _record(places: Places, name: str, reason: str, message: str) -> str:
    done = events.record(places, object=name, reason=reason, message=message)
    return "" if done else f"{places.events}: the event of {name} could not be recorded: {message}"
