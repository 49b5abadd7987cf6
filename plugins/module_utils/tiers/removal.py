# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking a deleted backend off a host: its tiers are emptied where that was declared, then their claims given up.

All of it is judged before anything is deleted, and each tier once more before its claim is given up. A tier that cannot
be emptied keeps its claim, so that nobody else takes it with what is in it, and another run goes on.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .. import claims, events
from ..claims import STALE, THERE, Claims
from ..data_location.place import read_mounts
from ..differences import Differences
from ..errors import PartlyFailed, StowageError, one_line, printable
from ..locks import host_lock
from ..mounts import Mount
from ..owner import Registry
from ..places import Places
from . import recorded
from .claim import KIND
from .cleanup import CLEANED, NOT_CLEANED, Claim, Cleanup, NotCleaned
from .declared import Backend
from .host import give_up, write_backends
from .recorded import Claimed

KEPT = "TierReleased"
"""The claim was given up, and the content stays."""


@dataclass
class _Going:
    """One tier that is to go."""

    name: str
    one: Claimed
    clean: bool | None
    """Whether its content goes with it; None when what was declared is not known."""
    state: str
    """Whether its claim is there, is no more, or cannot be seen."""
    entries: int = 0
    reason: str = ""
    message: str = ""
    files: int = 0

    @property
    def path(self) -> str:
        return printable(self.one.path)

    def report(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "path": self.path,
            "clean": bool(self.clean),
            "reason": self.reason,
            "message": self.message,
            "files": self.files,
        }


def remove(
    places: Places,
    host: str,
    names: Iterable[str],
    differences: Differences,
    forget: Sequence[str] = (),
    cleanup: Callable[..., Cleanup] = Cleanup,
) -> list[dict[str, Any]]:
    """Take the backends *names* off this host and return what became of each of their tiers; under the tier lock.

    :param forget: identities of claims whose disk is gone for good
    :raises PartlyFailed: when a tier keeps its claim, with what became of each
    """
    with contextlib.nullcontext() if differences.check_mode else host_lock(places):
        removing = _Removing(places, host, set(names), differences, forget, cleanup)
        removing.judge()
    # Without the host lock: this may take minutes. The claim keeps others away meanwhile.
    removing.empty()
    with contextlib.nullcontext() if differences.check_mode else host_lock(places):
        removing.finish()
    return removing.reports()


class _Removing:
    def __init__(
        self,
        places: Places,
        host: str,
        names: set[str],
        differences: Differences,
        forget: Sequence[str],
        cleanup: Callable[..., Cleanup],
    ) -> None:
        self.places = places
        self.host = host
        self.differences = differences
        self.backends = recorded.load_backends(places)
        self.names = names
        self.known = recorded.load_claimed(places)
        for one in self.known.values():
            os.path.exists(os.path.join(one.path, "."))  # this may have a disk mounted, so before the table is read
        self.mounts: list[Mount] = read_mounts(host)
        self.claimed: Claims = claims.read(places, host, self.mounts, forget)
        self.forgotten = set(forget)
        self.cleanup = cleanup
        self.going = self._going()

    def _going(self) -> list[_Going]:
        """Return the tiers of the backends that are claimed on this host, also when only their marks are left."""
        found = {name: one for name, one in self.known.items() if name.rpartition("/")[0] in self.names}
        for path, entry in self.claimed.entries.items():
            name = str(entry["name"])
            if entry["kind"] == KIND and entry["host"] == self.host and name.rpartition("/")[0] in self.names:
                found.setdefault(name, Claimed(path, str(entry["identity"]), 0.0))
        going = []
        for name, one in sorted(found.items()):
            entry = self.claimed.entries.get(one.path, {})
            gone = one.path in self.claimed.dropped or one.identity in self.forgotten
            state = STALE if gone else claims.state_of(one.path, entry, self.mounts) if entry else THERE
            clean = False if one.identity in self.forgotten else _is_clean(self.backends, name)
            going.append(_Going(name, one, clean, state))
        return going

    def judge(self) -> None:
        """Find out everything that is in the way, before anything is changed."""
        for tier in self.going:
            self._judge_one(tier)
        self._check()
        note = self.differences.note
        for tier in self.going:
            if tier.clean and tier.entries:
                note(f"content of {tier.path}", "nothing", f"{tier.entries} entries")
            note(f"claim of {tier.path}", None, f"tier {tier.name} of {self.host}")
        for name in sorted(self.names & set(self.backends)):
            note(f"backend {name}", None, self.backends[name].to_json())
        self.claimed.note(self.differences)
        self.claimed.register(Registry(self.places), self.differences)

    def _judge_one(self, tier: _Going) -> None:
        forget = f"if it is gone for good, give it up with forget: {tier.one.identity}"
        if tier.state == STALE and tier.clean is False:
            tier.reason, tier.message = KEPT, f"{tier.path} was not there any more"
        elif tier.state == STALE:
            rule = f"{tier.path} is not there any more, and its content may be elsewhere, as after it was renamed"
            tier.reason, tier.message = NOT_CLEANED, f"{rule}; bring it back, or, {forget}"
        elif tier.state != THERE:
            rule = f"{tier.path} cannot be seen now: its disk is not mounted"
            tier.reason, tier.message = NOT_CLEANED, f"{rule}; bring its disk back, or, {forget}"
        elif tier.clean is None:
            rule = f"whether its content goes (clean_after_delete) is not known: it is not in {self.places.tiers_json}"
            tier.reason, tier.message = NOT_CLEANED, f"{tier.path}: {rule}; roll the backend out again, then remove it"
        else:
            try:
                if tier.clean:
                    tier.entries = self._cleanup(tier).check()
                else:
                    self._cleanup(tier).check_stopped()
            except NotCleaned as error:
                tier.reason, tier.message = error.reason, error.why

    def _cleanup(self, tier: _Going) -> Cleanup:
        claim = Claim(tier.name, tier.one.path, tier.one.identity, self.host)
        return self.cleanup(self.places, claim, self.mounts)

    def empty(self) -> None:
        for tier in self.going:
            if tier.clean and tier.entries:
                self._empty(tier)
            elif not tier.message:
                kept = "it was empty" if tier.clean else "its content stays, as declared (clean_after_delete)"
                tier.reason, tier.message = (CLEANED if tier.clean else KEPT), f"{tier.path}: {kept}"

    def _empty(self, tier: _Going) -> None:
        tier.reason = CLEANED
        if self.differences.check_mode:
            tier.message = f"{tier.path}: {tier.entries} entries would go"
            self.differences.act(f"empty {tier.path}")
            return
        try:
            done = self._cleanup(tier).run()
        except NotCleaned as error:
            tier.reason, tier.message, tier.files = error.reason, error.why, error.files
            if error.files:
                self.differences.act(f"delete {error.files} files in {tier.path}, and stop")
            return
        tier.files = done.files
        tier.message = f"{tier.path}: {done.files} files and {done.directories} directories deleted; it is empty"
        self.differences.act(f"empty {tier.path}")

    def finish(self) -> None:
        """Give up the claims of all tiers that are done with, and forget backends without any left."""
        for tier in self.going:
            if tier.reason in (CLEANED, KEPT):
                self._finish_one(tier)
        kept = {tier.name.rpartition("/")[0] for tier in self._failed()}
        left = {name: one for name, one in self.backends.items() if name not in self.names or name in kept}
        write_backends(self.places, left, self.differences)
        self._check()

    def _finish_one(self, tier: _Going) -> None:
        try:
            if tier.state != STALE:
                # Others were emptied since it was judged, which takes minutes.
                self._cleanup(tier).check_stopped(empty=bool(tier.clean) and not self.differences.check_mode)
        except NotCleaned as error:
            tier.reason, tier.message = error.reason, error.why
            return
        try:
            self.differences.do(f"give up {tier.path}", partial(self._give_up, tier))
        except (StowageError, OSError) as error:
            tier.reason, tier.message = NOT_CLEANED, one_line(error, tier.path)
            return
        if not self.differences.check_mode:
            events.tell(self.places, object=f"tier/{tier.name}", reason=tier.reason, message=tier.message)

    def _give_up(self, tier: _Going) -> None:
        # The record first: without it what is cut short here is found by the mark, and without the mark it is not.
        if self.known.pop(tier.name, None) is not None:
            recorded.write_claimed(self.places, self.known)
        if tier.state != STALE:
            give_up(self.places, tier.name, tier.one, self.mounts)

    def _failed(self) -> list[_Going]:
        return [tier for tier in self.going if tier.reason not in ("", CLEANED, KEPT)]

    def _check(self) -> None:
        """Tell what is in the way, on this host by its events and to whoever asked by the failure."""
        failed = self._failed()
        if not failed:
            return
        if not self.differences.check_mode:
            for tier in failed:
                events.tell(self.places, object=f"tier/{tier.name}", reason=tier.reason, message=tier.message)
        text = "; ".join(f"tier {tier.name}: {tier.reason}: {tier.message}" for tier in failed)
        raise PartlyFailed(text, {"removed": self.reports()})

    def reports(self) -> list[dict[str, Any]]:
        return [tier.report() for tier in self.going]


def _is_clean(backends: Mapping[str, Backend], name: str) -> bool | None:
    """Return whether the content of a tier goes with it; None when what was declared is not known."""
    backend, _slash, position = name.rpartition("/")
    members = backends[backend].members if backend in backends else ()
    tier = members[int(position)].tier if position.isdigit() and int(position) < len(members) else None
    return None if tier is None else tier.clean_after_delete
