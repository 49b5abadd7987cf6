# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of everything declared: the last answer, and the last complete measurement with its time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Callable

from stowage_core.accounting.totals import Location
from stowage_core.copies.present import Copy, CopyRecord
from stowage_core.data_location.locations import DataLocation
from stowage_core.drives import recorded as drive_records
from stowage_core.drives.declared import split_copy_name
from stowage_core.mounts import Mount
from stowage_core.places import Places

from . import credentials
from .children import Children, Ending, Message
from .declared import DATA_LOCATION, ROOT, VOLUME, Declared, Target
from .engines import COPIES, MEASURE, Engines, Filesystem, Round, key_of
from .hung import Hung
from .last_measured import KEPT, KEPT_OF_COPY, PARTIAL, last_shares
from .leases import Leases
from .measuring import SILENCE_S, Measuring
from .runs import RUNS
from .sections import Sections
from .settings import Settings

_FOR_ROOM = "ended, because room has to be made"
"""Why a measurement ends with which nothing is wrong: figures stay as they were."""


def eviction_key(location: DataLocation) -> str:
    """Return the key of the child that removes copies from a data location: none waits for another one's disk."""
    return f"evict/{location.identity}"


class Figures:
    """Measures what is due and remembers what was found."""

    def __init__(
        self,
        places: Places,
        children: Children,
        engines: Engines,
        hung: Hung,
        say: Callable[[str], None],
        soon: Callable[[], None],
    ) -> None:
        self._places = places
        self._children = children
        self._engines = engines
        self._hung = hung
        self._say = say
        self._soon = soon
        self._declared = Declared()
        self._answers: dict[str, Message] = {}
        self._measured: dict[str, dict[str, Any]] = {}
        self._copies: dict[str, dict[str, Any]] = {}
        self._buckets: dict[str, str] = {}
        """Of each tier those that need not be looked into again, as the measurement wrote them down."""
        self._ended: dict[str, float] = {}
        """When each child ended last, by its key, infinite while it is there; what is not in it is due at once."""
        self._copies_device = ""
        """Of the filesystem that the copies are on."""
        self._elsewhere: set[str] = set()
        self._said: dict[str, str] = {}
        self._listed: float | None = None

    def declare(self, declared: Declared, recorded: Mapping[str, Mapping[str, Any]]) -> None:
        """Take on what is declared now, with what is recorded of the last measurement of each object."""
        if _place(self._declared.data_location) != _place(declared.data_location):
            self._copies = {}
            self._listed = None
            self._ended.clear()
        before, wanted = ({one.object: one.path for one in all_of.measured} for all_of in (self._declared, declared))
        self._declared = declared
        for name in [name for name in self._measured if wanted.get(name) != before[name]]:
            del self._measured[name]
            self._buckets.pop(name, None)
        for name in wanted:
            if name not in self._measured:
                record = recorded.get(name, {})
                known = {key: record.get(key) for key in (*KEPT, "runs", "tier", "credentials", "listed")}
                complete, reason = record.get("complete", False), record.get("reason", "")
                shares = last_shares(record)
                self._measured[name] = {**known, "shares": shares, "complete": complete, "reason": reason}
                self._ended.clear()

    # -- Answers

    def answered(self, answers: dict[str, Message]) -> None:
        before, self._answers = self._answers, answers
        for name, answer in answers.items():
            measured = self._measured.get(name)
            if not answer.get("made", True) and measured is not None and measured["bytes"] is None:
                answer.update(available=True, reason="")  # it may be used, and was never there to be missed
            elif answer["available"] and name in before and not _was_there(before[name]):
                self._ended.clear()  # what was missing is there again
                if measured is not None:
                    measured["reason"] = ""
            reason = answer["reason"]
            if reason != self._said.get(name, ""):
                self._say(reason or f"{name}: is there again")
                self._said[name] = reason
            if not answer["available"] and name in self._measured:
                self._measured[name]["complete"] = False

    # -- Measuring

    def measure_when_due(self, table: Sequence[Mount], configuration: Settings) -> None:
        """Begin a round for each filesystem whose time has come, unless one is under way or it hangs.

        The copies have one of their own: making room waits for their sizes, and not for all else that is measured.
        """
        groups: dict[tuple[str, str], list[Target]] = {}
        shared: dict[str, bool] = {}
        complete = True
        for target in self._declared.measured:
            place = self._answers.get(target.object, {}).get("place")
            if place is None:
                complete = False
                continue  # where it is was not found out this time
            self._elsewhere.discard(target.object)
            if place["shared"] and not (target.shared or configuration.measure_shared):
                self._elsewhere.add(target.object)
                continue
            kind = COPIES if target.object == DATA_LOCATION else MEASURE
            groups.setdefault((kind, place["device"]), []).append(target)
            shared[place["device"]] = place["shared"]
        present = {
            device: replace(
                self._filesystem(device, is_shared), kinds=frozenset(kind for kind, on in groups if on == device)
            )
            for device, is_shared in shared.items()
        }
        self._engines.look(list(present.values()), complete, table, configuration)
        now = time.monotonic()
        for (kind, device), targets in sorted(groups.items(), key=lambda group: group[0][0] != COPIES):
            key = key_of(kind, device)
            if kind == COPIES:
                self._copies_device = device
            busy = self._engines.running(key)
            if kind == COPIES or (device == self._copies_device and self._engines.watches(device)):
                # A copy that is being measured is open, and would be taken for one in use.
                busy = busy or self._is_evicting()
            due = self._ended.get(key, float("-inf")) + configuration.scan_interval_s
            if now >= due and device not in self._hung and not busy:
                self._start(kind, present[device], targets, table, configuration.scan_interval_s)

    def _filesystem(self, device: str, shared: bool) -> Filesystem:
        for answer in self._answers.values():
            found = answer.get("filesystem")
            if found is not None and found["id"] == device:
                return Filesystem(device, shared, found["mountpoint"], found["device"], found["fstype"])
        return Filesystem(device, shared)

    def _is_evicting(self) -> bool:
        location = self._declared.data_location
        return location is not None and self._children.running(eviction_key(location))

    def _start(
        self, kind: str, filesystem: Filesystem, targets: list[Target], table: Sequence[Mount], scan_interval_s: float
    ) -> None:
        key = key_of(kind, filesystem.device)
        drives = {drive.copy_name: drive for drive in self._declared.drives if drive.placed}
        place = _place(self._declared.data_location)
        location = self._declared.data_location
        body = Measuring(self._places, targets, location, drives, table, scan_interval_s, dict(self._buckets))

        paths = {target.object: target.path for target in targets}

        def take(message: Message) -> None:
            name = message.get("object")
            if name in paths and paths[name] not in (one.path for one in self._declared.measured if one.object == name):
                return  # it is another directory since the child was started
            if place == _place(self._declared.data_location):  # else its copies are not of the present one
                self._take(message)

        def end(ending: Ending) -> None:
            if ending.silent:
                self._say(f"{targets[0].path}: no progress for {SILENCE_S:g} s; its filesystem is left alone")
            elif ending.error:
                self._say(f"measuring {targets[0].path}: {ending.error}")
            if ending.silent or ending.error not in ("", _FOR_ROOM):
                for target in targets:
                    self._fail(target.object, "could not be measured to the end")
            if key in self._ended:  # else it is due again already
                self._ended[key] = time.monotonic()
            self._soon()

        if self._engines.start(Round(kind, filesystem, body, take, end)):
            self._ended[key] = float("inf")

    def _take(self, message: Message) -> None:
        if "say" in message:
            self._say(message["say"])
        elif "copy" in message:
            self._take_copy(message)
        elif message["object"] not in self._measured:
            pass  # no longer declared since the child was started
        elif not message["complete"]:
            self._fail(message["object"], message["reason"])
            partly = {key: message[key] for key in PARTIAL if key in message}
            if "shares" in partly:
                partly["shares"] = last_shares(message)
            self._measured[message["object"]].update(partly)
        elif message["object"] == DATA_LOCATION:
            present = set(message["copies"])
            self._copies = {name: copy for name, copy in self._copies.items() if name in present}
            self._listed = time.monotonic()
            self._measured[DATA_LOCATION].update(complete=True, reason="", measured=time.time())
        else:
            kept = {key: message[key] for key in KEPT}
            more = {key: message.get(key) for key in ("runs", "tier", "credentials", "listed")}
            more["shares"] = last_shares(message)
            if "known" in message:
                self._buckets[message["object"]] = message["known"]
            self._measured[message["object"]].update(kept, **more, complete=True, reason="")

    def _fail(self, name: str, reason: str) -> None:
        """Mark a measurement as incomplete; the last complete figures stay."""
        if name in self._measured:
            self._measured[name].update(complete=False, reason=reason)

    def _take_copy(self, message: Message) -> None:
        name = message["copy"]
        before = self._copies.get(name)
        if not message["complete"] and before is not None and before["identity"] == message["identity"]:
            use = {key: message[key] for key in ("last_used", "unused_s")}
            before.update(complete=False, reason=message["reason"], **use)
            return
        self._copies[name] = {**dict.fromkeys((*KEPT_OF_COPY, "last_used", "listed")), "filling": False, **message}

    # -- What others ask

    def space(self, name: str) -> Message | None:
        """Return the filesystem of an object as it last answered, None when it did not."""
        answer = self._answers.get(name)
        return answer.get("filesystem") if answer is not None else None

    @property
    def copies_known(self) -> bool:
        """Whether the data location has been listed since the daemon was started."""
        return self._listed is not None

    def copies_age(self) -> float:
        """Return how many seconds ago the copies were measured."""
        return float("inf") if self._listed is None else time.monotonic() - self._listed

    def allocated(self) -> int:
        """Return what all copies take on their disk, as far as they were measured."""
        return sum(one["allocated"] or 0 for one in self._copies.values())

    @property
    def measuring_copies(self) -> bool:
        """Whether copies are being measured, or may be open because something else is."""
        key = key_of(COPIES, self._copies_device)
        return self._engines.running(key) or self._engines.is_watching(self._copies_device)

    def hurry(self) -> None:
        """Let the copies be measured at once."""
        self._ended.pop(key_of(COPIES, self._copies_device), None)

    def make_way(self) -> None:
        """End the measurements that are under way and may hold copies open, for room has to be made."""
        self._engines.stop(key_of(COPIES, self._copies_device), _FOR_ROOM)
        self._engines.stop_watching(self._copies_device, _FOR_ROOM)

    def used(self, name: str, when: float | None) -> None:
        """Take on when a copy was last used."""
        if name in self._copies:
            self._copies[name].update(last_used=when, unused_s=0.0)

    def copies(self) -> list[Copy]:
        return [Copy(name, one["identity"], one["created"]) for name, one in sorted(self._copies.items())]

    def copy_records(self) -> dict[str, CopyRecord]:
        """Return what is known of each copy."""
        found = {}
        for name, one in self._copies.items():
            workspace, drive = split_copy_name(name)
            figures = {key: one[key] for key in (*KEPT_OF_COPY, "complete", "last_used", "unused_s")}
            found[name] = CopyRecord(workspace, drive, one["identity"], "", watched_copy=one["created"], **figures)
        return found

    def filling(self) -> set[str]:
        return {name for name, one in self._copies.items() if one["filling"]}

    def removed(self, name: str) -> None:
        """Forget a copy that was removed."""
        self._copies.pop(name, None)

    def summary(self) -> str:
        there = sum(1 for answer in self._answers.values() if answer["available"])
        return f"{there} of {len(self._answers)} objects there, {len(self._copies)} copies"

    def accounted(self) -> list[Location]:
        """Return what is known of each location, and of the root, that this host measures."""
        found = []
        for target in self._declared.measured:
            kind, _slash, name = target.object.partition("/")
            if kind in ("location", ROOT) and target.object not in self._elsewhere:
                shown, shares = self._shown(target), self._measured[target.object]["shares"]
                figures = {key: shown[key] for key in ("path", "bytes", "measured", "complete", "reason")}
                found.append(Location(name or kind, **figures, shares=shares))
        return found

    # -- Sections

    def publish(self, sections: Sections) -> None:
        sections.put("filesystems", {"filesystems": self._filesystems()})
        sections.put("locations", {"locations": [self._shown_location(one) for one in self._of("location/")]})
        sections.put("drives", {"drives": [self._shown_source(one) for one in self._of("drive/")]})

    def _of(self, prefix: str) -> Iterable[Target]:
        for target in self._declared.targets:
            if target.object.startswith(prefix) or (prefix == "location/" and target.object == DATA_LOCATION):
                yield target

    def _filesystems(self) -> list[dict[str, Any]]:
        """Return each filesystem once, however many objects are on it."""
        found: dict[str, dict[str, Any]] = {}
        for name, answer in self._answers.items():
            # Where volumes are is others' room, and no matter of this host's; of the root it is what is in it.
            if "filesystem" in answer and name != ROOT and not name.startswith(VOLUME):
                one = found.setdefault(answer["filesystem"]["id"], {**answer["filesystem"], "objects": []})
                one["objects"].append(name)
        return sorted(found.values(), key=lambda one: str(one["mountpoint"]))

    def _shown(self, target: Target) -> dict[str, Any]:
        answer = self._answers.get(target.object, {"available": False, "reason": ""})
        measured = self._measured[target.object]
        return {
            "path": target.path,
            "available": answer["available"],
            "made": answer.get("made", True),
            "answers": not answer.get("hung", False),
            "reason": answer["reason"] or measured["reason"],
            "complete": measured["complete"],
            "elsewhere": target.object in self._elsewhere,
            "listed": measured["listed"],
            **{key: measured[key] for key in KEPT},
        }

    def _shown_location(self, target: Target) -> dict[str, Any]:
        shown = {"location": target.object.partition("/")[2] or target.object, **self._shown(target)}
        if target.object == RUNS:
            shown["runs"] = self._measured[target.object]["runs"]
        if target.object in credentials.CACHES:
            shown["credentials"] = self._measured[target.object]["credentials"]
        if target.object == DATA_LOCATION and self.copies_known:
            for key in ("bytes", "allocated", "files"):
                sizes = [one[key] for one in self._copies.values()]
                shown[key] = None if None in sizes else sum(sizes)
            reasons = [one["reason"] for one in self._copies.values() if not one["complete"]]
            shown["complete"] = shown["complete"] and not reasons
            listings = [one["listed"] for one in self._copies.values()]
            shown["listed"] = None if None in listings else min(listings, default=None)
            shown["reason"] = shown["reason"] or "".join(reasons[:1])
        return shown

    def _shown_source(self, target: Target) -> dict[str, Any]:
        _kind, workspace, drive, source = target.object.split("/")
        return {"workspace": workspace, "drive": drive, "source": int(source), **self._shown(target)}

    def tier(self, name: str) -> dict[str, Any]:
        """Return what is known of a tier, by its object's name."""
        target = next(target for target in self._declared.targets if target.object == name)
        answer = self._answers.get(name, {"available": None})
        available = None if answer.get("hung") else answer["available"]
        claimed = answer.get("claimed", available)
        return {**self._shown(target), "readable": available, "claimed": claimed, "tier": self._measured[name]["tier"]}

    def copies_shown(self, declared: Declared, leases: Leases) -> list[dict[str, Any]]:
        drive_of = drive_records.by_copy(declared.drives)
        shown = []
        for name, one in sorted(self._copies.items()):
            workspace, drive = split_copy_name(name)
            known = drive_of(name, one["identity"])
            kind = "orphan" if known is None else "deleted" if known.absent else "cache" if known.evictable else "kept"
            shown.append(
                {
                    "workspace": workspace,
                    "drive": drive,
                    "identity": one["identity"],
                    "kind": kind,
                    "in_use": leases.holds(name),
                    **{key: one[key] for key in (*KEPT, "complete", "filling", "last_used")},
                }
            )
        return shown


def _place(location: DataLocation | None) -> tuple[str, str] | None:
    return None if location is None else (location.identity, location.path)


def _was_there(answer: Message) -> bool:
    return bool(answer["available"] and answer.get("made", True))
