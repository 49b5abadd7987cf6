# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making the directory of a run and of its attempts, and taking in one that was made by other means.

Whatever is made is made under another name, where nobody but root can enter it, and appears as a whole: with its owner,
what belongs in it and, for a run, the stamp of its team. Those above a run are root's, so that nobody can put another
directory in its place; below it everything is its owner's, who may do anything there at any time.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from time import time
from typing import Any

from .. import events, selinux
from ..accounts import owner_name
from ..differences import Differences
from ..errors import Refusal, StowageError, printable
from ..layout.directories import Ownership
from ..locks import aside_lock, runs_lock
from ..places import Places
from ..syscalls import open_beneath, rename_directory
from . import location as runs_location
from . import stamps, trash
from .location import RunsLocation, check_parent, open_child
from .shape import ATTEMPTS, LOGS, OUT, WORK, RunName, next_attempt
from .stamps import Stamp
from .trash import Brought

_NEW = ".stowage-new-"
_LEFT = re.compile(re.escape(_NEW) + r"[0-9a-f]{32}")
_PARENT = Ownership("root", "root", 0o755, 0, 0)
_TRIES = 10


@dataclass(frozen=True)
class Request:
    """What is to be there."""

    run: RunName
    team: str
    ownership: Ownership
    """Of the run's directory and of what is made in it."""
    attempt: str | int | None = None
    """A number, ``next``, or None for none."""
    accept_new_team: bool = False
    """Whether a run that is stamped with another team is stamped anew."""


@dataclass(frozen=True)
class Outcome:
    """Where it is, or would be."""

    run: RunName
    team: str
    path: str
    attempt: int | None
    warnings: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        attempt = None if self.attempt is None else os.path.join(self.path, ATTEMPTS, str(self.attempt))
        return {
            "run": str(self.run),
            "team": self.team,
            "path": self.path,
            "work": os.path.join(self.path, WORK),
            "attempt": self.attempt,
            "out": attempt and os.path.join(attempt, OUT),
            "logs": attempt and os.path.join(attempt, LOGS),
        }


def make(places: Places, request: Request, differences: Differences) -> Outcome:
    """Have the directory of a run, and of the attempt that is asked for."""
    with ExitStack() as stack:
        if not differences.check_mode:
            stack.enter_context(aside_lock(places, trash.key_of(request.run)))
            stack.enter_context(runs_lock(places))
        location = stack.enter_context(runs_location.opened(places))
        is_local = location.is_local
        brought = trash.bring_back(places, location, differences, request.run) if is_local else Brought()
        if not differences.check_mode:
            # What is to be refused is, before the first change.
            _Making(places, location, request, Differences(check_mode=True), brought).make()
        return _Making(places, location, request, differences, brought).make()


@dataclass(frozen=True)
class _Making:
    places: Places
    location: RunsLocation
    request: Request
    differences: Differences
    brought: Brought

    def make(self) -> Outcome:
        run = self.request.run
        with ExitStack() as stack:
            parent: int | None = self.location.fd
            for number in (1, 2):
                parent = self._parent(parent, run[:number], stack)
            fd = self._run(parent, stack)
            attempt = self._attempt(fd, stack) if self.request.attempt is not None else None
            if fd is not None:
                self._have_team(fd)
        return Outcome(run, self.request.team, self.location.path_of(*run), attempt, list(self.brought.stay.values()))

    # -- The directories above, and the run's own

    def _parent(self, parent: int | None, names: Sequence[str], stack: ExitStack) -> int | None:
        fd = self._there(parent, names, stack)
        if fd is None and self.request.run in self.brought.back:
            return None  # it comes back with the run
        if fd is None:
            return self._made(parent, names, _PARENT, stack)
        check_parent(fd, self.location.path_of(*names))
        return fd

    def _run(self, parent: int | None, stack: ExitStack) -> int | None:
        run, ownership = self.request.run, self.request.ownership
        path = self.location.path_of(*run)
        stamps.stamp_of(self.places, run)  # one that is damaged is not written over
        fd = self._there(parent, run, stack)
        if fd is None:
            fd = self.brought.open(self.location, run)
            if fd is not None:
                stack.callback(os.close, fd)
        if fd is None:
            self._check_not_aside()
            self._note_team("")
            return self._made(parent, run, ownership, stack, (WORK, ATTEMPTS), self._stamp)
        self._check_owner(fd, path)
        self._check_team(self._team(fd))
        self._keep(fd, path)
        for name in (WORK, ATTEMPTS):
            self._have(fd, (*run, name), stack)
        return fd

    def _check_not_aside(self) -> None:
        """Refuse to make a run while another one of its name is not judged."""
        why = self.brought.stay.get(trash.key_of(self.request.run))
        if why is not None:
            rule = f"lies aside, where a removal that was killed has left it: {why}"
            raise Refusal(f"run {printable(str(self.request.run))}", rule, "see to that one first")

    # -- Its team

    def _team(self, fd: int) -> str:
        """Return what the run open at *fd* is stamped with, or "" for nothing."""
        stamp = stamps.stamp_of(self.places, self.request.run)
        return stamp.team if stamp is not None and stamp.matches(fd) else ""

    def _check_team(self, team: str) -> None:
        if team not in ("", self.request.team) and not self.request.accept_new_team:
            rule = f"is stamped with team {team}, and a stamp never changes by itself"
            remedy = f"give team: {team}, or set accept_new_team when that was wrong from the beginning"
            raise Refusal(f"run {printable(str(self.request.run))}", rule, remedy)

    def _have_team(self, fd: int) -> None:
        """Have the run that was there stamped: last, for whatever fails before leaves it to be stamped anew."""
        team, run = self._team(fd), self.request.run
        if not self._note_team(team):
            return
        path = self.location.path_of(*run)
        self.differences.do(f"stamp {path} with team {self.request.team}", partial(self._stamp, fd))
        if team and not self.differences.check_mode:
            events.tell(
                self.places,
                object=f"run/{printable(str(run))}",
                reason="RunTeamChanged",
                message=f"Run of team {team} is stamped with team {self.request.team}: {printable(path)}",
            )

    def _note_team(self, actual: str) -> bool:
        return self.differences.note(f"team of run {self.request.run}", self.request.team, actual or None)

    def _stamp(self, fd: int) -> None:
        stamps.put(self.places, self.request.run, Stamp.of(fd, self.request.team, time()))

    # -- Its directory

    def _keep(self, fd: int, path: str) -> None:
        """Have group and mode of the run's directory itself; what is below is left to its owner."""
        wanted, present = self.request.ownership, Ownership.of(os.fstat(fd))
        if self.differences.note(f"directory {path}", wanted.described, present.described):
            self.differences.do(f"set group and mode of {path}", partial(_give, fd, wanted))

    # -- The attempt

    def _attempt(self, run_fd: int | None, stack: ExitStack) -> int:
        asked, run = self.request.attempt, self.request.run
        for _try in range(_TRIES):
            attempts = self._there(run_fd, (*run, ATTEMPTS), stack)
            number = asked if isinstance(asked, int) else next_attempt(() if attempts is None else os.listdir(attempts))
            names = (*run, ATTEMPTS, str(number))
            fd = self._there(attempts, names, stack)
            if fd is not None:
                self._check_owner(fd, self.location.path_of(*names))
                for name in (OUT, LOGS):
                    self._have(fd, (*names, name), stack)
                return number
            mark = self.differences.mark()
            try:
                self._made(attempts, names, self.request.ownership, stack, (OUT, LOGS))
                return number
            except FileExistsError:  # the run's owner was faster
                self.differences.go_back(mark)
        path = self.location.path_of(*run, ATTEMPTS)
        raise StowageError(f"{printable(path)}: somebody makes attempts in it all the time; try again")

    def _have(self, parent: int, names: Sequence[str], stack: ExitStack) -> None:
        """Have a directory of the owner's in a directory of the owner's."""
        fd = self._there(parent, names, stack)
        if fd is None:
            self._made(parent, names, self.request.ownership, stack)
        else:
            self._check_owner(fd, self.location.path_of(*names))

    # -- Any of them

    def _there(self, parent: int | None, names: Sequence[str], stack: ExitStack) -> int | None:
        """Open what is there; None when there is nothing, or nothing above it yet."""
        if parent is None:
            return None
        try:
            fd = open_child(parent, names[-1], self.location.path_of(*names))
        except FileNotFoundError:
            return None
        stack.callback(os.close, fd)
        return fd

    def _check_owner(self, fd: int, path: str) -> None:
        wanted, uid = self.request.ownership, os.fstat(fd).st_uid
        if uid != wanted.uid:
            rule = f"belongs to {owner_name(uid)}, and not to {wanted.owner}"
            raise Refusal(printable(path), rule, "give its owner, or name another run")

    def _made(
        self,
        parent: int | None,
        names: Sequence[str],
        ownership: Ownership,
        stack: ExitStack,
        within: Sequence[str] = (),
        ready: Callable[[int], None] | None = None,
    ) -> int | None:
        """Make a directory and those *within* it; return a descriptor of it, or None in check mode."""
        path = self.location.path_of(*names)
        for name in ("", *within):
            self.differences.note(f"directory {os.path.join(path, name).rstrip('/')}", ownership.described, None)
        made: list[int] = []
        if not self.differences.check_mode:
            if parent is None:
                raise AssertionError(f"{path}: what it is in was to be made before it")
            made.append(_appear(parent, names[-1], path, ownership, within, ready))
            stack.callback(os.close, made[0])
        self.differences.act(f"make directory {path}")
        return made[0] if made else None


# -- Making


def _appear(
    parent: int,
    name: str,
    path: str,
    ownership: Ownership,
    within: Sequence[str],
    ready: Callable[[int], None] | None,
) -> int:
    """Make a directory in one that may be anybody's, and have it appear by its name when all is done; return it open.

    :raises FileExistsError: when there is something by that name
    """
    _sweep(parent)
    temporary = os.fsencode(_NEW + secrets.token_hex(16))
    os.mkdir(temporary, 0o700, dir_fd=parent)
    fd = open_beneath(parent, temporary)
    try:
        status = os.fstat(fd)
        if status.st_uid != 0 or stat.S_IMODE(status.st_mode) & 0o077 or os.listdir(fd):
            rule = "what root makes in it is not root's: its server maps root to another user, or it was replaced"
            raise Refusal(printable(os.path.dirname(path)), rule, "have its server not squash root for this host")
        if ownership is not _PARENT:
            selinux.label(fd)
        for each in within:
            os.mkdir(each, 0o700, dir_fd=fd)
            child = open_beneath(fd, os.fsencode(each))
            try:
                _give(child, ownership)
            finally:
                os.close(child)
        if ready is not None:
            ready(fd)
        _give(fd, ownership)
        rename_directory(parent, temporary, parent, os.fsencode(name))
        with suppress(OSError), ExitStack() as stack:
            there = open_beneath(parent, os.fsencode(name))
            stack.callback(os.close, there)
            if os.path.samestat(os.fstat(there), os.fstat(fd)):
                return fd
        raise StowageError(f"{printable(path)}: somebody has replaced it while it was made; try again")
    except BaseException:
        os.close(fd)
        _sweep(parent)
        raise


def _give(fd: int, ownership: Ownership) -> None:
    if ownership.uid is None or ownership.gid is None:
        raise StowageError(f"there is no {ownership.owner}:{ownership.group} on this host; make them first")
    os.fchown(fd, ownership.uid, ownership.gid)
    os.fchmod(fd, ownership.mode)


def _sweep(parent: int) -> None:
    """Remove what a call that was killed, or has failed, has left half made: empty directories."""
    for name in filter(_LEFT.fullmatch, trash.names_in(parent)):
        with suppress(OSError), ExitStack() as stack:  # whatever is not as it was made stays
            fd = open_beneath(parent, os.fsencode(name))
            stack.callback(os.close, fd)
            for child in (WORK, ATTEMPTS, OUT, LOGS):
                with suppress(OSError):
                    os.rmdir(child, dir_fd=fd)
            os.rmdir(name, dir_fd=parent)
