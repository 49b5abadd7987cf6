# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tiers of KV-caches on this host: what is in them, whether their filesystem holds out, and how their stores run.

A tier of a running store is only looked at. Deleting in it would make reads fail while the store goes on counting what
is gone, so making room there is the store's own.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

from stowage_core import events
from stowage_core.errors import printable
from stowage_core.places import Places
from stowage_core.sizes import Space, decimal
from stowage_core.tiers.claim import can_write, state_of
from stowage_core.tiers.declared import MOONCAKE
from stowage_core.tiers.environment import BUCKET_BYTES
from stowage_core.tiers.processes import StoreProcess

from . import tier_settings, use_service
from .children import Children, Ending, Message, Send
from .declared import HostTier
from .figures import Figures
from .sections import Sections
from .writer import Writer

SECTION = "tiers"
KEY = "stores"
SILENCE_S = 120.0
"""Longer than the look at all processes may take."""

UNACCOUNTED_USE = "TierUnaccountedUse"
FILLING = "TierFilesystemFilling"
SETTINGS_DIFFER = "TierSettingsDiffer"
NOT_WRITABLE = "TierNotWritable"

UNACCOUNTED_SHARE = 0.10
"""Of a tier's filesystem: what is used beside tiers is told once it is more. Less, filesystems use themselves."""
KEPT_FREE = 256 * 1024**2
"""Bytes that the store leaves free on the disk, at the cost of what is in its tier."""
LEAST_FREE = 0.10
"""Of the filesystem of a tier without a declared capacity, which nothing keeps from filling it."""
_ACL = "system.posix_acl_access"
"""With it a mode does not tell who can write."""
_WELL_S = 3600.0
"""What comes and goes is told again only after it was well for so long."""


@dataclass(frozen=True)
class Warned:
    """Something about a tier that an operator has to know."""

    reason: str
    message: str


@dataclass(frozen=True)
class Held:
    """What a tier took, and the space of its filesystem, at one time."""

    allocated: int
    capacity: int
    """0 when it is not declared."""
    space: Space
    measured: float
    kept_free: int = 0
    """What its store leaves free on the disk."""

    @property
    def left(self) -> int:
        """How much the tier may still grow."""
        return max(0, self.capacity - self.allocated)


def unaccounted(held: Sequence[Held]) -> int:
    """Return what is used of the filesystem of *held*, all its tiers, and is in none of them."""
    space = max(held, key=lambda one: one.measured).space
    return max(0, space.size - space.free - sum(one.allocated for one in held))


def warnings(held: Sequence[Held], mountpoint: str) -> list[Warned]:
    """Return what is wrong with a filesystem, given all its tiers.

    Sizes and space are of the same time. What a tier has written since then was free then, and may be written.
    """
    space = max(held, key=lambda one: one.measured).space
    where, found = printable(mountpoint), []
    beside = unaccounted(held)
    if beside > UNACCOUNTED_SHARE * space.size:
        rule = f"{decimal(beside)} of {decimal(space.size)} are used by what is in no tier"
        found.append(
            Warned(UNACCOUNTED_USE, f"{where}: {rule}; no store counts that: move it away, or lower the capacity")
        )
    left = sum(one.left for one in held)
    if any(not one.capacity for one in held):
        if space.free_fraction < LEAST_FREE:
            rule = f"{decimal(space.avail)} are free, and a tier without a declared capacity may fill it"
            found.append(Warned(FILLING, f"{where}: {rule}; free some space, or declare its capacity"))
    elif space.avail < left + (kept := max(one.kept_free for one in held)):
        rule = f"{decimal(space.avail)} are free, and its tiers may still write {decimal(left)}"
        rule += f", and leave {decimal(kept)} free" if kept else ""
        found.append(Warned(FILLING, f"{where}: {rule}; free some space, or lower the capacity"))
    return found


def is_full(tier: HostTier, allocated: int) -> bool:
    """Return whether a tier has ended taking writes, as declared: nothing leaves it, and no bucket fits any more."""
    eviction = tier.tier.eviction
    ends = eviction is not None and not eviction.enabled
    return ends and 0 < tier.tier.capacity < allocated + BUCKET_BYTES


class Told:
    """Which warnings were told; each once, until it was well for long enough."""

    def __init__(self, before: Iterable[str]) -> None:
        self._last = dict.fromkeys(before, time.monotonic())

    def new(self, names: Iterable[str]) -> set[str]:
        """Take on the warnings that there are now, and return those that are to be told."""
        now = time.monotonic()
        names = set(names)
        found = {name for name in names if now - self._last.get(name, float("-inf")) > _WELL_S}
        self._last.update(dict.fromkeys(names, now))
        self._last = {name: last for name, last in self._last.items() if now - last <= _WELL_S}
        return found

    def names(self) -> list[str]:
        return sorted(self._last)


class Tiers:
    """Puts together what is known of the tiers, and looks at the processes of their stores."""

    def __init__(
        self,
        places: Places,
        children: Children,
        figures: Figures,
        sections: Sections,
        writer: Writer,
        say: Callable[[str], None],
    ) -> None:
        self._places = places
        self._children = children
        self._figures = figures
        self._sections = sections
        self._writer = writer
        self._say = say
        self._tiers: Sequence[HostTier] = ()
        self._processes: dict[str, list[dict[str, Any]]] = {}
        """Those on each tier that could be looked at, by its name."""
        self._trouble = ""
        self._due = float("-inf")
        before = (sections.last(SECTION) or {}).get("told")
        self._told = Told(before if isinstance(before, list) else [])

    def look(self, tiers: Sequence[HostTier], interval_s: float) -> None:
        """Take on the tiers of this host, and ask for the processes of their stores when it is time to."""
        if tiers != self._tiers:
            self._due = float("-inf")
        self._tiers = tiers
        there = [one for one in tiers if self._figures.tier(one.object)["readable"] and one.group.store == MOONCAKE]
        names = {one.name for one in there}
        self._processes = {name: found for name, found in self._processes.items() if name in names}
        if there and time.monotonic() >= self._due and not self._children.running(KEY):
            self._due = float("inf")
            found: list[Message] = []
            body = partial(_look, self._places, there)
            self._children.start(
                KEY, body, found.append, lambda ending: self._end(found, ending, interval_s), SILENCE_S
            )
        self._publish()

    def _end(self, found: Sequence[Message], ending: Ending, interval_s: float) -> None:
        self._due = time.monotonic() + interval_s
        failed = ending.error or ("the look at their processes does not end" if ending.silent else "")
        unknown = "; ".join(message["unknown"] for message in found if "unknown" in message)
        trouble = failed or unknown
        # After a look that failed nothing is known: what ran before may be another one now.
        taken = [] if failed else [message for message in found if "tier" in message]
        self._processes = {message["tier"]: message["processes"] for message in taken}
        if trouble and trouble != self._trouble:
            self._say(f"settings of stores: {trouble}")
        self._trouble = trouble

    def _publish(self) -> None:
        shown = {one.object: self._shown(one) for one in self._tiers}
        self._compare(shown)
        warned = {
            f"{name} {warning['reason']}": (name, warning) for name, one in shown.items() for warning in one["warnings"]
        }
        for key in sorted(self._told.new(warned)):
            self._tell(*warned[key])
        self._sections.put(
            SECTION, {"tiers": list(shown.values()), "told": self._told.names(), "trouble": self._trouble}
        )

    def _tell(self, name: str, warning: Mapping[str, str]) -> None:
        self._say(f"{name}: {warning['message']}")
        self._writer.do(partial(_record, self._places, name, warning["reason"], warning["message"]))

    def _shown(self, one: HostTier) -> dict[str, Any]:
        figures = self._figures.tier(one.object)
        measured = _measured(figures.pop("tier"))
        found = measured.get("buckets")
        processes = self._processes_of(one)
        differ = None if not processes else any(process["differs"] for process in processes)
        return {
            "backend": one.backend,
            "position": one.position,
            "store": one.group.store,
            "capacity_bytes": one.tier.capacity or None,
            "key_limit": one.tier.key_limit or None,
            "bucket_bytes": BUCKET_BYTES if one.group.store == MOONCAKE else None,
            **figures,
            "written_bytes": None if found is None else found["bytes"],
            "buckets": None if found is None else found["complete"],
            "incomplete_buckets": None if found is None else found["incomplete"],
            "keys": None if found is None else found["keys"],
            "full": None if figures["allocated"] is None else is_full(one, figures["allocated"]),
            "filesystem": self._figures.space(one.object),
            "space": measured.get("space"),
            "unaccounted_bytes": None,
            "filling": None,
            "processes": processes,
            "settings_differ": differ,
            "writable": _all_can([process["writable"] for process in processes or []]),
            "warnings": [*_differing(processes or []), *_denied(self._processes.get(one.name, []))],
        }

    def _processes_of(self, one: HostTier) -> list[dict[str, Any]] | None:
        """Return the processes on a tier, what differs in their settings, and whether they can write to it.

        None when that is not known.
        """
        found = self._processes.get(one.name)
        if found is None:
            return None
        wanted = tier_settings.declared(one.group, one.tier)
        return [
            {
                "pid": process["pid"],
                "command": process["command"],
                "differs": tier_settings.differences(wanted, process["settings"]),
                "writable": process["writable"],
            }
            for process in found
        ]

    @staticmethod
    def _compare(shown: Mapping[str, dict[str, Any]]) -> None:
        """Judge each filesystem by all the tiers on it; with one that is not measured nothing is known of it."""
        filesystems: dict[str, list[dict[str, Any]]] = {}
        for one in shown.values():
            if one["filesystem"] is not None:
                filesystems.setdefault(one["filesystem"]["id"], []).append(one)
        for those in filesystems.values():
            if any(one["allocated"] is None or one["space"] is None or one["measured"] is None for one in those):
                continue
            held = [
                Held(
                    one["allocated"],
                    one["capacity_bytes"] or 0,
                    Space.from_json(one["space"]),
                    one["measured"],
                    KEPT_FREE if one["store"] == MOONCAKE else 0,
                )
                for one in those
            ]
            found = warnings(held, str(those[0]["filesystem"]["mountpoint"]))
            for one in those:
                one["unaccounted_bytes"] = unaccounted(held)
                one["filling"] = FILLING in {warning.reason for warning in found}
                one["warnings"] += [{"reason": each.reason, "message": each.message} for each in found]


def _measured(value: Any) -> dict[str, Any]:
    """Return what a measurement found in a tier; a record that is of another version, or damaged, tells nothing."""
    try:
        found = value["buckets"]
        if found is not None:
            found = {key: int(found[key]) for key in ("complete", "bytes", "keys", "incomplete")}
        return {"buckets": found, "space": {**vars(Space.from_json(value["space"]))}}
    except (KeyError, TypeError, ValueError):
        return {}


def _all_can(answers: Sequence[bool | None]) -> bool | None:
    """Return whether all can; None when that is not known of one, or there is none."""
    if False in answers:
        return False
    return None if None in answers or not answers else True


def _differing(processes: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the warning about the processes of a tier whose settings differ, if there are any."""
    texts = [
        f"process {process['pid']} ({printable(process['command'])}): {'; '.join(process['differs'])}"
        for process in processes
        if process["differs"]
    ]
    if not texts:
        return []
    remedy = "restart it with what is rendered, or declare what it has"
    return [{"reason": SETTINGS_DIFFER, "message": f"{'; '.join(texts)}; {remedy}"}]


def _denied(processes: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the warning about the processes of a tier that cannot write to it, if there are any."""
    those = [process for process in processes if process["writable"] is False]
    if not those:
        return []
    texts = [f"process {process['pid']} ({printable(process['command'])}) {process['denied']}" for process in those]
    remedy = f"{those[0]['remedy']}, or roll the host out"
    return [{"reason": NOT_WRITABLE, "message": f"{'; '.join(texts)}; {remedy}"}]


def _record(places: Places, name: str, reason: str, message: str) -> str:
    events.tell(places, object=name, reason=reason, message=message)
    return ""


def _look(places: Places, tiers: Sequence[HostTier], send: Send) -> None:
    """Tell the processes on each tier. A process is on it by device and inode, whatever it calls the directory."""
    found = use_service.stores(places.use_socket)
    for process in found:
        if process.unknown:
            send({"unknown": f"{process.described}: its directory could not be determined: {process.unknown}"})
    for tier in tiers:
        try:
            status = os.stat(tier.path, follow_symlinks=False)
            by_mode = not _has_acl(tier.path)
        except FileNotFoundError:
            continue
        here = [one for one in found if (one.device, one.inode) == (status.st_dev, status.st_ino)]
        shown = [
            {
                "pid": one.pid,
                "command": one.command,
                "settings": dict(one.settings),
                **_access(one, tier.path, status, by_mode),
            }
            for one in here
        ]
        send({"tier": tier.name, "processes": shown})


def _has_acl(path: str) -> bool:
    try:
        os.getxattr(path, _ACL, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise
    return True


def _access(process: StoreProcess, path: str, status: os.stat_result, by_mode: bool) -> dict[str, Any]:
    """Return whether a process can write to its tier, None when that cannot be told, and if not, why and what helps."""
    uid, gid = process.uid, process.gid
    if not by_mode or uid is None or gid is None or list(process.owner) != [status.st_uid, status.st_gid]:
        return {"writable": None}
    if can_write((uid, gid), status.st_uid, status.st_gid, status.st_mode, process.groups):
        return {"writable": True}
    where = printable(path)
    return {
        "writable": False,
        "denied": f"runs as {uid}:{gid} and cannot write to {where}, which has {state_of(status)}",
        "remedy": f"chmod u+rwx {where}" if uid == status.st_uid else f"chown {uid}:{gid} {where}",
    }
