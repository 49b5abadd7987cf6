# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Having tiers of whole files kept between their marks: by children, one a tier.

A child watches how its filesystem fills, looks at the files when the tier may be full, and ends when it is not any
more; then the next one watches. What it does is in ``tiers.files_keeping``, which files go in ``tiers.files_eviction``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from stowage_core import events
from stowage_core.errors import StowageError, printable
from stowage_core.places import Places
from stowage_core.sizes import Space, decimal
from stowage_core.tiers import recorded
from stowage_core.tiers.files_eviction import Estimate, Limits, files_text
from stowage_core.tiers.files_keeping import GivenWay, Terms, keep

from . import settings
from .children import Children, Ending, Message, Send
from .declared import HostTier
from .eviction_decision import FAILED, SHORT
from .figures import Figures
from .sections import Sections
from .settings import Settings
from .writer import Writer

SECTION = "tier_evictions"
SILENCE_S = 60.0

EVICTED = "TierEvicted"
PLANNED = "TierEvictionPlanned"
BLOCKED = "TierEvictionBlocked"
UNBLOCKED = "TierEvictionUnblocked"

RETRY_S = 60.0
"""How long nothing is tried again after it failed, and no plan is made again."""
BLOCKED_S = 30.0
"""The same while what is too much cannot go, which is an event once it has lasted so long."""
TOLD_S = 300.0
"""How often it is told, of one tier, that files were removed."""
VAIN = 10.0
"""How many times as long as a look none other follows, when it showed that others fill the filesystem."""

NEVER = float("-inf")


@dataclass
class _Tier:
    """What is known of one tier."""

    host_tier: HostTier
    limits: Limits
    base: tuple[int, int] = (0, 0)
    """What it held after the last look."""
    looked: float | None = None
    """When that was."""
    rest_until: float = NEVER
    space: Space | None = None
    """Its filesystem before that."""
    seconds: float = 0.0
    """How long the last look took."""
    has_looked: bool = False
    """Whether the present child, or the last, has come to that."""
    gave_way: bool = False
    withdrawn: bool = False
    planned: tuple[int, int] = (0, 0)
    told_planned: bool = False
    blocked: tuple[str, str] = ("", "")
    blocked_since: float = NEVER
    told_blocked: tuple[str, str] = ("", "")
    untold: tuple[int, int] = (0, 0)
    """Bytes and files removed since that was told last."""
    told: float = NEVER
    problems: tuple[str, ...] = ()


@dataclass
class _Count:
    """What was removed from a tier since the host was started."""

    allocated: int = 0
    files: int = 0


def key_of(name: str) -> str:
    """Return the key of the child that keeps a tier between its marks."""
    return f"evict-tier/{name}"


def terms(places: Places, one: HostTier, before: Settings) -> Terms | None:
    """Return what is declared of a tier now; None when its files are not to go any more.

    :param before: the settings that were in force then; they stay so while the new ones are wrong
    """
    try:
        now = settings.load(places)
    except (StowageError, OSError):
        now = before
    backend = recorded.load_backends(places).get(one.backend)
    if now.evict != before.evict or backend is None or not backend.is_declared:
        return None
    for position, group, tier in backend.tiers(now.host):
        limits = Limits.of(group, tier)
        if position == one.position and limits is not None:
            claimed = recorded.load_claimed(places).get(one.name)
            if claimed is None or claimed.path != tier.path:
                raise StowageError(f"{printable(tier.path)}: is not claimed by this host; roll it out again")
            return Terms(one.name, tier.path, claimed.identity, limits)
    return None


class TierEvicting:
    """Has a child at work on each tier whose files may go."""

    def __init__(
        self,
        places: Places,
        children: Children,
        figures: Figures,
        sections: Sections,
        writer: Writer,
        say: Callable[[str], None],
        mode: str,
    ) -> None:
        self._places = places
        self._children = children
        self._figures = figures
        self._sections = sections
        self._writer = writer
        self._say = say
        self._mode = mode
        self._configuration = Settings()
        self._of: dict[str, _Tier] = {}
        self._counts = _counted(sections.last(SECTION) or {})

    def change_mode(self, mode: str) -> None:
        """Take on what an operator has decided anew: nothing goes any more that would not go under it."""
        if mode == self._mode:
            return
        self._mode = mode
        for name, one in self._of.items():
            one.rest_until, one.planned = NEVER, (0, 0)
            self._withdraw(name, one, f"evict is {mode} now")

    def _withdraw(self, name: str, one: _Tier, why: str) -> None:
        one.withdrawn = True
        self._children.end(key_of(name), f"ended, because {why}")  # what it removed until then counts

    def look(self, tiers: Sequence[HostTier], configuration: Settings) -> None:
        """Take on the tiers of this host, and start what is due."""
        self._configuration = configuration
        found: dict[str, _Tier] = {}
        for tier in tiers:
            is_meant = tier.is_declared and tier.group.is_on(configuration.host)
            limits = Limits.of(tier.group, tier.tier) if is_meant else None
            if limits is None or self._mode == "off":
                continue
            one = self._of.get(tier.name)
            if one is None or one.host_tier.path != tier.path:
                one = _Tier(tier, limits)
            elif one.limits != limits:
                one.limits, one.rest_until = limits, NEVER
                self._withdraw(tier.name, one, "it is declared anew")
            one.host_tier = tier
            found[tier.name] = one
        for name, one in self._of.items():
            if found.get(name) is not one:
                self._withdraw(name, one, "it is not evicted any more")
        self._of = found
        for one in found.values():
            self._decide(one)
            self._tell_all(one)
        self._publish()

    def _decide(self, one: _Tier) -> None:
        running = self._children.running(key_of(one.host_tier.name))
        if not self._figures.tier(one.host_tier.object)["readable"]:
            if running:
                self._withdraw(one.host_tier.name, one, "it is not there")
            one.looked = None
            self._block(one, "", "")
        elif not running and time.monotonic() >= one.rest_until:
            self._start(one)

    def _start(self, one: _Tier) -> None:
        now = partial(terms, self._places, one.host_tier, self._configuration)
        removes, interval_s = self._mode == "on", self._configuration.scan_interval_s
        before = Estimate(*one.base, one.space) if one.looked is not None and one.space is not None else None
        one.has_looked = one.gave_way = one.withdrawn = False

        def body(send: Send) -> None:
            try:
                keep(self._places, now, removes, interval_s, before, lambda **message: send(message))
            except GivenWay:
                send({"step": "gave way"})

        key = key_of(one.host_tier.name)
        self._children.start(key, body, partial(self._take, one), partial(self._end, one), SILENCE_S)

    # -- What comes of it

    def _take(self, one: _Tier, message: Message) -> None:
        step = message.get("step")
        if step == "looked":
            self._take_look(one, message)
        elif step == "planned":
            one.planned = message["allocated"], message["files"]
        elif step == "removed":
            self._count(one, message["allocated"], message["files"])
        elif step == "ended":
            self._take_end(one, message)
        elif step == "gave way":
            one.gave_way = True
        self._publish()

    def _take_look(self, one: _Tier, message: Message) -> None:
        one.seconds, one.space = message["seconds"], Space.from_json(message["space"])
        one.base, one.looked, one.has_looked = (message["allocated"], message["files"]), time.time(), True
        one.rest_until = time.monotonic() + VAIN * one.seconds if message["vain"] else NEVER
        problems = tuple(message["problems"])
        if problems and problems != one.problems:
            more = f" and {len(problems) - 1} more" if problems[1:] else ""
            self._say(f"tier {one.host_tier.name}: could not be looked at as a whole: {problems[0]}{more}")
        one.problems = problems

    def _take_end(self, one: _Tier, message: Message) -> None:
        one.base = message["allocated"], message["files"]
        self._block(one, SHORT if message["blocked"] else "", message["blocked"])

    def _count(self, one: _Tier, allocated: int, files: int) -> None:
        if files:
            one.untold = one.untold[0] + allocated, one.untold[1] + files
            count = self._counts.setdefault(one.host_tier.name, _Count())
            count.allocated += allocated
            count.files += files

    def _end(self, one: _Tier, ending: Ending) -> None:
        now = time.monotonic()
        if one.withdrawn or one.gave_way:
            one.looked = None
        elif ending.silent or ending.error:
            one.rest_until = now + RETRY_S
            self._block(one, FAILED, f"no progress for {SILENCE_S:g} s" if ending.silent else ending.error)
        else:
            if one.blocked[0] == FAILED:
                self._block(one, "", "")
            if one.blocked[0] or one.planned[1]:
                one.rest_until = now + max(RETRY_S if one.planned[1] else BLOCKED_S, VAIN * one.seconds)
            if one.has_looked and one.rest_until <= now and self._of.get(one.host_tier.name) is one:
                self._start(one)  # it goes on watching
        self._publish()

    def _block(self, one: _Tier, kind: str, why: str) -> None:
        if bool(kind) != bool(one.blocked[0]):
            one.blocked_since = time.monotonic()
        one.blocked = kind, why

    # -- What is told

    def _tell_all(self, one: _Tier) -> None:
        now = time.monotonic()
        path = printable(one.host_tier.path)
        if one.untold[1] and now - one.told >= TOLD_S:
            one.told, (allocated, files), one.untold = now, one.untold, (0, 0)
            self._tell(one, EVICTED, f"{path}: {files_text(files)} ({decimal(allocated)}) removed: {_why(one.limits)}")
        self._tell_planned(one, path)
        (kind, why), before = one.blocked, one.told_blocked
        lasts = kind == FAILED or now - one.blocked_since >= BLOCKED_S
        if kind and lasts and (kind != before[0] or (kind == FAILED and why != before[1])):
            self._tell(one, BLOCKED, f"{path}: files cannot be removed: {why}")
            one.told_blocked = one.blocked
        elif before[0] and not kind:
            self._tell(one, UNBLOCKED, f"{path}: eviction is not blocked any more")
            one.told_blocked = "", ""

    def _tell_planned(self, one: _Tier, path: str) -> None:
        allocated, files = one.planned
        if files and not one.told_planned:
            what = f"{files_text(files)} ({decimal(allocated)}) would be removed"
            self._tell(one, PLANNED, f"{path}: {what}: {_why(one.limits)}")
        one.told_planned = bool(files)

    def _tell(self, one: _Tier, reason: str, message: str) -> None:
        name = one.host_tier.object
        self._say(f"{name}: {message}")
        self._writer.do(partial(_record, self._places, name, reason, message, time.time()))

    def _publish(self) -> None:
        shown = []
        for name, one in sorted(self._of.items()):
            count = self._counts.setdefault(name, _Count())
            shown.append(
                {
                    "backend": one.host_tier.backend,
                    "position": one.host_tier.position,
                    "path": one.host_tier.path,
                    "allocated": None if one.looked is None else one.base[0],
                    "files": None if one.looked is None else one.base[1],
                    "looked": one.looked,
                    "evicted_bytes": count.allocated,
                    "evicted_files": count.files,
                    "reason": one.blocked[0],
                    "why": one.blocked[1],
                    "planned_bytes": one.planned[0],
                    "planned_files": one.planned[1],
                }
            )
        self._sections.put(SECTION, {"mode": self._mode, "tiers": shown})


def _counted(section: Mapping[str, Any]) -> dict[str, _Count]:
    """Return what an earlier daemon has removed since the host was started; of another version it tells nothing."""
    try:
        return {
            f"{one['backend']}/{one['position']}": _Count(int(one["evicted_bytes"]), int(one["evicted_files"]))
            for one in section["tiers"]
        }
    except (KeyError, TypeError, ValueError):
        return {}


def _why(limits: Limits) -> str:
    what = [f"{decimal(limits.capacity)}"] if limits.capacity else []
    what += [files_text(limits.key_limit)] if limits.key_limit else []
    return f"it was above {limits.marks.high} % of {' or '.join(what)}"


def _record(places: Places, name: str, reason: str, message: str, when: float) -> str:
    is_there = events.record(places, object=name, reason=reason, message=message, time=when)
    return "" if is_there else f"{places.events}: the event {reason} could not be recorded"
