# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tiers of one host: claiming what is declared, leaving alone what is not declared any more.

Everything is found out and checked before anything is changed, and noted as it is found, so that a prediction is what
a run does.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .. import claims, events, owner, records
from ..accounts import find_group, find_owner
from ..claims import STALE, UNSEEN, Claims
from ..data_location.place import read_mounts
from ..differences import Differences
from ..errors import Refusal, printable
from ..mounts import Mount, of_path
from ..owner import Registry
from ..places import Places
from ..services.lasting_mounts import LastingMounts
from ..syscalls import NO_DIRECTORY
from . import claim, processes, recorded, set_aside
from .claim import KIND, Found, Wanted
from .declared import DEFAULT_GID, DEFAULT_UID, Backend, MemberGroup, Tier, check_floors, tier_name
from .files_eviction import Limits, check_access_times
from .files_round import forget_aside
from .frozen import check_unchanged
from .recorded import Claimed
from .survey import PREEXISTING, WAS_EMPTY, Survey, state_of, survey

Report = dict[str, Any]


@dataclass(frozen=True)
class Declaration:
    """What a host is told."""

    host: str
    """Its name in the inventory."""
    backends: Sequence[Backend]
    """All of the site's."""
    users: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """As whom a store runs, by its image."""
    adopt_from: str = ""
    """The name that the host had before."""
    forget: Sequence[str] = ()
    """Identities of claims whose disk is gone for good."""


@dataclass(frozen=True)
class Outcome:
    """What is true once a run is over."""

    tiers: Sequence[Report]
    left: Sequence[str]
    """What stays although it is no longer declared, one line each."""
    warnings: Sequence[str]


@dataclass
class _Plan:
    """One tier of this host, from what is to what is to be."""

    wanted: Wanted
    tier: Tier
    found: Found
    known: Claimed | None
    identity: str
    survey: Survey | None
    registered: bool
    fd: int | None = None
    as_found: list[int] | None = None
    """What the directory is like while its survey may be asked."""

    @property
    def name(self) -> str:
        return self.wanted.name


def declare(places: Places, declaration: Declaration, differences: Differences) -> Outcome:
    """Make the tiers of this host what is declared; call it under the tier lock and the host lock."""
    with contextlib.ExitStack() as stack:
        return _Declaring(places, declaration, differences, stack).run()


class _Declaring:
    def __init__(
        self, places: Places, declaration: Declaration, differences: Differences, stack: contextlib.ExitStack
    ) -> None:
        self.places = places
        self.declaration = declaration
        self.host = declaration.host
        self.differences = differences
        self.stack = stack
        self.warnings: list[str] = []
        self.left: list[str] = []
        self.registry = Registry(places)
        self.recorded = recorded.load_backends(places)
        self.known = recorded.load_claimed(places)
        self.declared = {backend.name: backend for backend in declaration.backends}
        for _name, _group, tier in self._here():
            os.path.exists(os.path.join(tier.path, "."))  # this may have a disk mounted, so before the table is read
        self.mounts: list[Mount] = read_mounts(self.host)
        self.lasting = LastingMounts.read()
        self.claimed: Claims = claims.read(places, self.host, self.mounts, declaration.forget)
        self.warnings.extend(self.claimed.warnings)
        self.forgotten = {name for name, one in self.known.items() if one.identity in set(declaration.forget)}

    def run(self) -> Outcome:
        for backend in self.declaration.backends:
            old = self.recorded.get(backend.name)
            if old is not None:
                check_unchanged(old, backend)
            check_floors(backend, old)
        taken = self._taken()
        plans = [self._plan(name, group, tier, taken) for name, group, tier in self._here()]
        dropped = self._dropped()
        self._tell_what_is_left({plan.name for plan in plans})
        remembered = self._remembered()
        for plan in plans:
            self._note(plan)
        for name, one in dropped.items():
            self.differences.note(f"mark of {one.path}", None, f"tier {name}")
        for name in sorted(set(self.recorded) | set(remembered)):
            old, new = self.recorded.get(name), remembered.get(name)
            self.differences.note(f"backend {name}", new and new.to_json(), old and old.to_json())
        self.claimed.note(self.differences)
        self.claimed.register(self.registry, self.differences)
        for name, one in dropped.items():
            self.differences.do(f"give up {one.path}, tier {name}, and leave what is in it", partial(self._drop, name))
        for plan in plans:
            self._act(plan)
        self._write(remembered, {*dropped, *(self.forgotten - {plan.name for plan in plans})})
        return Outcome([_report(plan) for plan in plans], self.left, self.warnings)

    def _here(self) -> list[tuple[str, MemberGroup, Tier]]:
        """Return the tiers that this host is to have, by name."""
        return [
            (tier_name(backend.name, position), group, tier)
            for backend in self.declaration.backends
            for position, group, tier in backend.tiers(self.host)
        ]

    def _taken(self) -> dict[str, str]:
        return {
            **claims.of_layout(self.places),
            **claims.of_drives(self.places, self.host),
            **claims.of_stowage(self.places, self.claimed.entries, self.claimed.unseen),
        }

    # -- Finding out

    def _plan(self, name: str, group: MemberGroup, tier: Tier, taken: Mapping[str, str]) -> _Plan:
        wanted = self._wanted(name, group, tier)
        known = None if name in self.forgotten else self.known.get(name)
        claim.check_seen(wanted, self.claimed)
        claim.check_apart(wanted, taken, self.claimed, self.mounts)
        claim.check_place(wanted, self.mounts, self.lasting)
        hosts = (self.host, self.declaration.adopt_from or self.host)
        limits = Limits.of(group, tier)
        check_access_times(f"{wanted.title}: eviction", limits, of_path(tier.path, self.mounts))
        found = claim.find(wanted, hosts, self.differences.check_mode, self.warnings, self.stack)
        if found.fd is not None and found.mark is None and known is None:
            busy = processes.why_busy(tier.path, os.fstat(found.fd))
            if busy:
                raise Refusal(wanted.title, f"it is there, and {busy}", "stop that first: it may be another backend's")
        if tier.clean_after_delete:
            claim.check_can_be_emptied(wanted, found.fd, self.mounts)
        claim.check_known(wanted, known, found.mark, self.claimed)
        wanted = self._as_it_is(wanted, group, found)
        identity = found.mark.identity if found.mark is not None else str(uuid.uuid4())
        entry = self.claimed.entries.get(tier.path, {})
        registered = (entry.get("identity"), entry.get("host")) == (identity, self.host)
        plan = _Plan(wanted, tier, found, known, identity, None, registered, found.fd)
        plan.survey = self._survey(plan)
        self._warn(plan)
        return plan

    def _wanted(self, name: str, group: MemberGroup, tier: Tier) -> Wanted:
        user = self.declaration.users.get(group.image)
        uid, gid = user if user is not None else (DEFAULT_UID, DEFAULT_GID)
        if group.owner:
            found = find_owner(group.owner)
            if found is None:
                raise Refusal(f"tier {name}: owner", f"there is no user {group.owner} on this host", "give its number")
            uid = found
        if group.group:
            number = find_group(group.group)
            if number is None:
                raise Refusal(f"tier {name}: group", f"there is no group {group.group} on this host", "give its number")
            gid = number
        return Wanted(name, tier.path, uid, gid, int(group.mode, 8), user if user is not None else (uid, gid))

    def _as_it_is(self, wanted: Wanted, group: MemberGroup, found: Found) -> Wanted:
        """Return what is wanted of a directory whose image does not tell its user now, as it may have done before."""
        if not group.image or group.image in self.declaration.users or found.mark is None:
            return wanted
        status = os.fstat(_descriptor(wanted, found.fd))
        uid = wanted.uid if group.owner else status.st_uid
        return replace(wanted, uid=uid, gid=wanted.gid if group.group else status.st_gid)

    def _survey(self, plan: _Plan) -> Survey | None:
        """Return what was in the directory before its backend: as it was found out, or as it is found out now."""
        known, fd = plan.known, plan.found.fd
        if known is not None and (known.survey is None or known.survey.entries is not None):
            return known.survey
        if known is None and plan.found.mark is not None:
            self.warnings.append(f"{plan.wanted.title}: it was claimed earlier, and what was in it before is not known")
            return None
        if fd is None:
            return Survey(0, time.time()) if known is None else known.survey
        plan.as_found = state_of(fd)
        if known is not None and known.as_found != plan.as_found:
            # What is in it may be the backend's own: this is never asked again.
            plan.as_found = None
            return known.survey
        return survey(fd, time.time())

    def _warn(self, plan: _Plan) -> None:
        found, wanted = plan.found, plan.wanted
        if found.fd is not None and found.mark is not None and os.fstat(found.fd).st_uid != wanted.uid:
            self.warnings.append(f"{wanted.title}: its owner becomes {wanted.uid}; what is in it keeps its own")
        if found.fd is None or plan.known is not None or plan.survey is None:
            return
        if plan.survey.entries is None:
            self.warnings.append(f"{wanted.title}: what was in it before is not known: {plan.survey.reason}")
        elif plan.survey.entries:
            rule = f"{WAS_EMPTY}=False ({PREEXISTING}): {_counted(plan.survey.entries)} in it"
            goes = (
                ", and goes with what the backend writes (clean_after_delete)" if plan.tier.clean_after_delete else ""
            )
            self.warnings.append(f"{wanted.title}: {rule} that another may have left; it stays{goes}")

    def _dropped(self) -> dict[str, Claimed]:
        """Return the claims of last groups that are not declared any more, or refuse to give up what is not seen."""
        gone = {}
        for name, one in self.known.items():
            backend = self.declared.get(name.rpartition("/")[0])
            if backend is None or int(name.rpartition("/")[2]) < len(backend.members) or name in self.forgotten:
                continue
            entry = self.claimed.entries.get(one.path)
            if entry is not None and claims.state_of(one.path, entry, self.mounts) == UNSEEN:
                remedy = f"bring it back first, or, if it is gone for good, give it up with forget: {one.identity}"
                raise Refusal(f"tier {name}: path {printable(one.path)}", "its disk is not mounted", remedy)
            busy = self._busy(one)
            if busy:
                rule = f"{busy}, and another tier could be laid there once its group is dropped"
                raise Refusal(f"tier {name}: path {printable(one.path)}", rule, "stop it first")
            gone[name] = one
            self.left.append(f"content of {printable(one.path)}: its group {name} was dropped, and the claim given up")
        return gone

    def _busy(self, one: Claimed) -> str:
        """Return which store process is on a claimed directory; empty also when it is not there."""
        try:
            fd = claim.open_directory(one.path, self.mounts)
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
            return ""
        try:
            return processes.why_busy(one.path, os.fstat(fd))
        finally:
            os.close(fd)

    def _tell_what_is_left(self, here: set[str]) -> None:
        remove = "stowage.host.tier_remove gives it up"
        for name, one in sorted(self.known.items()):
            backend, position = name.rpartition("/")[0], int(name.rpartition("/")[2])
            if name in here or name in self.forgotten:
                continue
            declared = self.declared.get(backend)
            if declared is None:
                self.left.append(f"tier {name} {printable(one.path)}: its backend is not declared any more; {remove}")
            elif position < len(declared.members):
                why = "this host is none of its group's any more"
                self.left.append(f"tier {name} {printable(one.path)}: {why}; {remove}")

    def _remembered(self) -> dict[str, Backend]:
        """Return the backends that this host has, or had, a member of: those are frozen here."""
        kept = {name: replace(backend, is_declared=False) for name, backend in self.recorded.items()}
        for name, backend in self.declared.items():
            if name in self.recorded or any(group.is_on(self.host) for group in backend.members):
                kept[name] = backend
        return kept

    # -- Noting and acting

    def _note(self, plan: _Plan) -> None:
        note, path = self.differences.note, plan.wanted.path
        note(f"directory {path}", plan.wanted.state, plan.found.state)
        mark = plan.found.mark
        is_own = f"tier {plan.name} of {self.host}"
        note(f"mark of {path}", is_own, f"tier {mark.name} of {mark.host}" if mark is not None else None)
        note(f"registered claim of {path}", True, plan.registered)
        before = plan.known.survey if plan.known is not None else None
        note(f"survey of {plan.name}", _told(plan.survey), _told(before))
        note(f"content of {path} set aside", False, _is_left_aside(plan))

    def _act(self, plan: _Plan) -> None:
        do, path, wanted = self.differences.do, plan.wanted.path, plan.wanted
        mark = plan.found.mark
        if plan.fd is None:
            do(f"make directory {path}", partial(self._make, plan))
        elif plan.found.state != wanted.state:
            do(f"give {path} itself {wanted.state}", lambda: claim.own(wanted, _there(plan)))
        if _is_left_aside(plan):
            do(f"put back what a cleanup has left aside in {path}", lambda: set_aside.bring_back(_there(plan)))
        if mark is None:
            do(f"mark {path} as tier {plan.name} of {self.host}", partial(self._mark, plan))
        elif mark.host != self.host:
            renewed = {"name": plan.name, "identity": plan.identity, "host": self.host}
            do(f"take {path} over from {mark.host}", lambda: owner.renew(_there(plan), mark, **renewed))
        if not plan.registered:
            do(f"register {path}", partial(self._register, plan))
        if not self.differences.check_mode:
            self._remember(plan)

    def _make(self, plan: _Plan) -> None:
        plan.fd = claim.make(plan.wanted, plan.found.parent, self.stack)

    def _mark(self, plan: _Plan) -> None:
        owner.claim(_there(plan), KIND, plan.name, plan.identity, self.host)

    def _register(self, plan: _Plan) -> None:
        mark = owner.read_mark(_there(plan))
        if mark is None:
            raise Refusal(plan.wanted.title, "its owner mark is gone again", "is another program removing it?")
        self.registry.add(plan.wanted.path, mark)

    def _remember(self, plan: _Plan) -> None:
        """Write down what was found, at once: it cannot be found out again."""
        known = plan.known
        as_found = None
        if plan.as_found is not None and plan.survey is not None and plan.survey.entries is None:
            state = state_of(_there(plan))
            as_found = state if state[:2] == plan.as_found[:2] else None  # owner, mode and mark are of this run
        claimed = known.claimed if known is not None and known.identity == plan.identity else time.time()
        new = Claimed(plan.wanted.path, plan.identity, claimed, plan.survey, as_found)
        if new != self.known.get(plan.name):
            self.known[plan.name] = new
            recorded.write_claimed(self.places, self.known)
        entries = plan.survey.entries if plan.survey is not None else None
        if entries and known is None:
            message = f"{WAS_EMPTY}=False: {_counted(entries)} in {printable(plan.wanted.path)} when it was claimed"
            events.tell(self.places, object=f"tier/{plan.name}", reason=PREEXISTING, message=message, entries=entries)

    def _drop(self, name: str) -> None:
        give_up(self.places, name, self.known[name], self.mounts)

    def _write(self, remembered: Mapping[str, Backend], gone: Iterable[str]) -> None:
        left = {name: one for name, one in self.known.items() if name not in set(gone)}
        if not self.differences.check_mode and left != recorded.load_claimed(self.places):
            recorded.write_claimed(self.places, left)
        write_backends(self.places, remembered, self.differences)


def write_backends(places: Places, backends: Mapping[str, Backend], differences: Differences) -> None:
    """Make the record of what is declared hold *backends*."""
    path, value = places.tiers_json, recorded.backends_json(backends.values())
    if not backends:
        if os.path.lexists(path):
            differences.do(f"remove {path}", partial(records.remove, path))
    elif not records.is_current(path, records.dumps(value)):
        differences.do(f"write {path}", partial(records.write, path, value))


def give_up(places: Places, name: str, one: Claimed, mounts: Sequence[Mount]) -> None:
    """Take the mark of a tier off its directory, which stays with what is in it; call it under the host lock."""
    registry = Registry(places)
    entry = registry.all().get(one.path)
    if entry is None or claims.state_of(one.path, entry, mounts) != STALE:
        fd = claim.open_directory(one.path, mounts)
        try:
            mark = owner.read_mark(fd)
            if mark is not None and (mark.kind, mark.name, mark.identity) == (KIND, name, one.identity):
                set_aside.bring_back(fd)
                forget_aside(fd)
                owner.release(fd, mark)
        finally:
            os.close(fd)
    if entry is not None and entry["identity"] == one.identity:
        registry.remove(one.path)


def _is_left_aside(plan: _Plan) -> bool:
    return plan.found.mark is not None and set_aside.is_left(_there(plan))


def _there(plan: _Plan) -> int:
    return _descriptor(plan.wanted, plan.fd)


def _descriptor(wanted: Wanted, fd: int | None) -> int:
    if fd is None:
        raise Refusal(wanted.title, "is not there any more", "run again")
    return fd


def _report(plan: _Plan) -> Report:
    wanted = plan.wanted
    return {
        "name": plan.name,
        "path": wanted.path,
        "owner": wanted.uid,
        "group": wanted.gid,
        "mode": f"{wanted.mode:04o}",
        "entries_found": plan.survey.entries if plan.survey is not None else None,
        "was_empty": plan.survey.was_empty if plan.survey is not None else None,
    }


def _told(found: Survey | None) -> Report | None:
    """Return a survey as the diff shows it."""
    return None if found is None else {"entries": found.entries, "reason": found.reason}


def _counted(entries: int) -> str:
    return f"{entries} entr{'y' if entries == 1 else 'ies'}"
