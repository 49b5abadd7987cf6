# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a location can be moved to a directory, and what moves along: all that is refused is refused here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import accounts, claims
from .. import mounts as mount_table
from ..answers import check_answers
from ..errors import Refusal, did_you_mean, printable
from ..layout import record as layout_record
from ..layout.access import Need, check_access
from ..layout.found import Place, find
from ..layout.rules import NAMES, Layout, check_apart, resolve
from ..mounts import Located, Mount, is_shared
from ..owner import Registry
from ..paths import check_path, is_within
from ..places import Places
from ..services.lasting_mounts import LastingMounts
from ..sizes import Space, decimal
from ..syscalls import is_unchangeable, open_beneath
from ..tiers.survey import is_marked
from ..trees.inode_set import InodeSet
from ..trees.walk import Problem, Walk
from ..use.child import answer_of, progress
from . import recorded
from .content import is_of_mkfs, names_in
from .copying import DEEPEST, LONGEST_PATH
from .directories import opened
from .old_path import UNITS, OldPath, kept_path
from .recorded import Identity, Relocation
from .stages import FINISHED, FORGOTTEN, GIVEN_UP, RETIRED, SWITCHED, UNDER_WAY, UNDONE

_SURVEY_DEADLINE_S = 600.0
_LEFT_BEHIND = "cache"
"""What the names of locations end with whose content can be made anew from elsewhere."""


@dataclass(frozen=True)
class Request:
    """What an operator asks for."""

    location: str
    to: str
    copy: bool = True
    here: bool = True
    """Whether this host makes the copy, where several share the location; of its own location each host does."""
    together: bool = False
    """Whether all hosts that share the location are moved at once."""
    users: Sequence[str] = ()
    host_name: str = ""


@dataclass(frozen=True)
class Content:
    """What there is to copy."""

    bytes: int
    """That its files take on the disk."""
    entries: int


def new_overrides(
    layout: Mapping[str, Any], reals: Mapping[str, str], location: str, to: str, mount_point: str
) -> tuple[dict[str, tuple[str, str]], dict[str, Any], dict[str, Any]]:
    """Return which locations move, with their old and new paths, and their overrides before and after.

    What lies below the location moves along: by default its own path follows, and an override of it has to.

    :param layout: as it is recorded
    :param reals: the path of each location without symbolic links
    :param mount_point: of the new directory
    """
    old = reals[location]
    moves, before, after = {}, {}, {}
    for name in sorted(layout["locations"], key=lambda one: (one != location, one)):
        recorded_one = layout["locations"][name]
        if not is_within(reals[name], old):
            continue
        new = to + reals[name][len(old) :]
        moves[name] = (str(recorded_one["path"]), new)
        if name == location or recorded_one["override"]:
            before[name] = _override(recorded_one["path"], recorded_one) if recorded_one["override"] else ""
            after[name] = {"path": new, "mount_point": mount_point} if mount_point != "/" else new
    return moves, before, after


def _override(path: str, location: Mapping[str, Any]) -> Any:
    return {"path": path, "require_mount": True} if location["require_mount"] else path


def former_paths(earlier: Relocation | None, to: str) -> tuple[str, ...]:
    """Return where the location was before, by earlier moves: but for *to*, when it is moved back."""
    if earlier is None:
        return ()
    left = (earlier.path,) if earlier.stage == FORGOTTEN else ()
    return tuple(path for path in (*earlier.former, *left) if path != to)


def check_room(location: str, to: str, content: Content, space: Space) -> None:
    """Refuse a filesystem without the room for what is to be copied."""
    if content.bytes > space.avail:
        rule = f"{to} has {decimal(space.avail)} free, and {decimal(content.bytes)} are to be copied"
        raise Refusal(location, rule, "name a directory on a larger filesystem, or make room")
    if space.files and content.entries > space.files_free:
        rule = f"the filesystem of {to} has {space.files_free} inodes free, and {content.entries} are needed"
        raise Refusal(location, rule, "name a directory on another filesystem")


def check_sharing(request: Request, old: str, new: str) -> None:
    """Refuse what would give hosts that share a location different ones.

    :param old: the type of the present filesystem
    :param new: that of the new one
    """
    if is_shared(old) and not is_shared(new):
        rule = f"hosts share it on {old}, and {request.to} is of this host only"
        raise Refusal(request.location, rule, "name a directory on a filesystem that all of them see")
    if is_shared(old) and not request.together:
        rule = f"hosts share it on {old}, and their settings must switch together"
        raise Refusal(
            request.location, rule, "run stowage.host.relocate for all hosts of its runs group (host_runs_group)"
        )


def check_earlier(one: Relocation | None, others: Iterable[Relocation], request: Request, to: str) -> None:
    """Refuse to begin while an earlier move is in the way."""
    recorded.check_alone(others, request.location)
    if one is None or one.stage in (FORGOTTEN, UNDONE):
        return
    if one.stage not in (*UNDER_WAY, GIVEN_UP) and one.to != to:
        rule = f"it was moved to {one.to}, and its old path {one.path} is still kept"
        raise Refusal(request.location, rule, "retire that (relocate_confirm), and forget it (relocate_forget=true)")
    if one.stage in UNDER_WAY and one.to != to:
        rule = f"it is being moved to {one.to}"
        raise Refusal(request.location, rule, "finish that, or give it up (relocate_give_up=true), first")
    if one.stage in UNDER_WAY and one.copy != request.copy:
        raise Refusal(request.location, "whether its content goes along cannot be changed", "give it up first")


def check_not_kept(moves: Iterable[Relocation], location: str, real: str) -> None:
    """Refuse to move what can be reached, and written, by the old path of another location.

    :param real: the path of *location* without symbolic links
    """
    for one in moves:
        if one.location != location and one.stage in (SWITCHED, FINISHED, RETIRED) and is_within(real, one.to_real):
            rule = f"it lies in {one.to}, to which the old path of {one.location}, {one.path}, leads as well"
            first = f"relocate_location={one.location}, with relocate_confirm, and with relocate_forget=true"
            raise Refusal(location, rule, f"retire and forget that first ({first})")


class Planning:
    """Finds out about one move on this host; nothing is changed."""

    def __init__(
        self,
        places: Places,
        request: Request,
        units: str = UNITS,
        lasting: Callable[[], LastingMounts] = LastingMounts.read,
    ) -> None:
        self._places = places
        self._request = request
        self._units = units
        self._lasting = lasting
        self._table: Sequence[Mount] = mount_table.read()

    def plan(self) -> Relocation:
        """Return the move as it is to be made, or as it is under way already.

        :raises Refusal: when anything is in the way
        """
        request = self._request
        name = request.location
        if name not in NAMES:
            remedy = did_you_mean(name, NAMES) or f"use one of {', '.join(NAMES)}"
            raise Refusal("relocate_location", f"there is no location {name!r}", remedy)
        if not request.copy and not name.endswith(_LEFT_BEHIND):
            raise Refusal(name, "only caches may be left behind, for they can be made anew", "copy it")
        to = check_path(request.to, "relocate_to")
        moves = recorded.load_all(self._places)
        earlier = next((one for one in moves if one.location == name), None)
        check_earlier(earlier, moves, request, to)
        if earlier is not None and earlier.to == to and earlier.stage in (*UNDER_WAY, FINISHED, RETIRED):
            return earlier
        resumed = earlier if earlier is not None and earlier.stage == GIVEN_UP and earlier.to == to else None
        return self._new(name, to, earlier, resumed)

    def _new(self, name: str, to: str, earlier: Relocation | None, resumed: Relocation | None) -> Relocation:
        request = self._request
        layout = layout_record.load(self._places.layout_json)
        if not layout["locations"]:
            raise Refusal(name, "this host has no storage layout", "roll it out first (stowage.host.site)")
        path = str(layout["locations"][name]["path"])
        check_answers([(name, path), ("relocate_to", to)])
        old, new = find(path, name, self._table), find(to, "relocate_to", self._table)
        check_not_kept(recorded.load_all(self._places), name, old.real)
        self._check_old(name, old, layout)
        self._check_new(name, old, new, layout)
        check_sharing(request, old.mount.fstype, new.mount.fstype)
        disk_at = os.path.join(self._places.relocations_dir, "disks", name) if old.mount.point == old.real else ""
        at_old_path = OldPath(old.real, new.real, disk_at)
        kept_path(name, at_old_path, self._table).check(name, self._units)
        reals = {one: find(value["path"], one, self._table).real for one, value in layout["locations"].items()}
        paths, before, after = new_overrides(layout, reals, name, to, new.mount.point)
        self._check_layout(layout, after)
        with opened(old.real) as old_fd, opened(new.real) as new_fd:
            was, now = Identity.of(old_fd, old.mount), Identity.of(new_fd, new.mount)
            if resumed is not None and not (resumed.old.matches(was) and resumed.new.matches(now)):
                resumed = None  # other directories than when it was given up
            if resumed is None and names_in(new_fd):
                why = _undone(earlier, to)
                raise Refusal("relocate_to", f"{to} is not empty{why}", "name an empty directory")
            content = Content(0, 0)
            here = request.here or not is_shared(old.mount.fstype)
            if here:
                there = survey(name, old_fd)
                content = there if request.copy else content
                if resumed is None:
                    check_room(name, to, content, Space.of(new_fd))
            avail = Space.of(new_fd).avail
        self._check_users(name, new)
        former = former_paths(earlier, to)
        return Relocation(
            location=name,
            identity=secrets.token_hex(8) if resumed is None else resumed.identity,
            path=path,
            real=old.real,
            to=to,
            to_real=new.real,
            old=was,
            new=now,
            moves=paths,
            before=before,
            after=after,
            copy=request.copy,
            here=here,
            disk_at=disk_at,
            bytes=content.bytes,
            avail=avail,
            former=former,
            copied=None if resumed is None else resumed.copied,
            began=resumed is not None and resumed.began,
            stage="",
        )

    def _check_old(self, name: str, old: Place, layout: Mapping[str, Any]) -> None:
        if not old.exists:
            raise Refusal(name, f"{old.path} does not exist", "roll the layout out first (stowage.host.site)")
        self._lasting().check(name, old.real, self._table)
        recorded_one = mount_table.FilesystemId.from_json(layout["locations"][name]["filesystem"])
        if not recorded_one.matches(old.filesystem):
            rule = f"{old.path} is on {old.filesystem.described}, and was rolled out on {recorded_one.described}"
            raise Refusal(name, rule, "mount the right disk, or roll the layout out again")
        if old.mount.point == old.real:
            self._check_disk(name, old)
        if old.mount.read_only:
            raise Refusal(name, f"the filesystem of {old.path} is mounted read-only", "mount it for writing")
        inside = [mount.point for mount in self._table if mount.point != old.real and is_within(mount.point, old.real)]
        if inside:
            rule = f"something is mounted inside it, at {printable(inside[0])}"
            raise Refusal(name, rule, "unmount that first: it is not copied")

    def _check_disk(self, name: str, old: Place) -> None:
        """Refuse a location that is mounted itself in a way that cannot be repeated at another place."""
        at = [mount for mount in self._table if mount.point == old.real]
        whole = len(at) == 1 and old.mount.root == "/" and old.filesystem.uuid is not None
        if not whole or is_shared(old.mount.fstype):
            rule = f"{old.path} is a mount point, and not of the whole filesystem of one local disk"
            raise Refusal(name, rule, "move it by hand: its old path cannot be kept")

    def _check_new(self, name: str, old: Place, new: Place, layout: Mapping[str, Any]) -> None:
        label = "relocate_to"
        if not new.exists:
            raise Refusal(label, f"{new.path} does not exist", "make it, after mounting its disk")
        self._lasting().check(label, new.real, self._table)
        if new.mount.read_only:
            raise Refusal(label, f"the filesystem of {new.path} is mounted read-only", "mount it for writing")
        lies = Located.of(new.real, self._table).lies_to(Located.of(old.real, self._table))
        if lies:
            raise Refusal(label, f"{new.path} {lies} {old.path}, where {name} is", "name a directory apart from it")
        taken = claims.of_stowage(self._places, Registry(self._places).all())
        claims.check_apart(label, new.real, taken, self._table, "choose a directory apart from it")
        owner = claims.owner_of(new.real, self._table)
        if owner:
            raise Refusal(label, f"{new.path} is, or is inside, {owner}", "choose a directory apart from it")

    def _check_layout(self, layout: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Refuse a layout that would overlap itself."""
        overrides = {one: value["path"] for one, value in layout["locations"].items() if value["override"]}
        overrides.update({one: _path_of(value) for one, value in after.items()})
        wanted: Layout = resolve(layout["root"], overrides, layout["volume_root"])
        check_apart(wanted, os.path.realpath)

    def _check_users(self, name: str, new: Place) -> None:
        """Refuse a directory that the location's users would not get to; itself it becomes what the old one is."""
        users = [user for user in map(accounts.find_user, self._request.users) if user is not None]
        above = os.path.dirname(new.real)
        if above != "/":
            check_access(users, [Need(name, above, os.X_OK)])


def _path_of(value: Any) -> str:
    return str(value["path"] if isinstance(value, Mapping) else value)


def _undone(earlier: Relocation | None, to: str) -> str:
    if earlier is None or earlier.stage != UNDONE or earlier.to != to:
        return ""
    return ": it holds the copy of the move that was undone, and what was written to it meanwhile"


def survey(name: str, fd: int) -> Content:
    """Return what there is to copy.

    :raises Refusal: when something of Stowage's own is in it, which knows its directory and cannot be moved so
    """
    found = answer_of(lambda: _survey(fd), _SURVEY_DEADLINE_S)
    if found["problem"]:
        raise Refusal(name, str(found["problem"]), "mend that first: it could not be copied")
    return Content(int(found["bytes"]), int(found["entries"]))


def _survey(fd: int) -> dict[str, Any]:
    problems: list[Problem] = []
    seen = InodeSet()
    size = entries = 0
    top = os.fstat(fd)
    walk = Walk(open_beneath(fd, b"."), problems.append)
    for directory in walk:
        progress()
        if walk.depth and is_marked(directory.fd):
            return {"problem": f"{walk.path()} in it bears an owner mark"}
        if walk.depth == 1 and is_of_mkfs(top, walk.names[0], directory.status):
            if os.listdir(directory.fd):
                return {"problem": f"{walk.path()} is not empty: fsck has put something there, which is not copied"}
            directory.leave_out()
            continue
        if walk.depth > DEEPEST:
            return {"problem": f"{walk.path()} in it is more than {DEEPEST} directories deep"}
        length = sum(len(os.fsencode(name)) + 1 for name in walk.names)
        if length - 1 > LONGEST_PATH:
            return {"problem": f"{walk.path()} in it has a path of more than {LONGEST_PATH} bytes"}
        unchangeable = walk.path() if is_unchangeable(directory.fd, b".") else ""
        statuses = [directory.status]
        for entry in directory.files():
            if length + len(os.fsencode(entry.name)) > LONGEST_PATH:
                return {"problem": f"{walk.path(entry.name)} in it has a path of more than {LONGEST_PATH} bytes"}
            statuses.append(entry.stat(follow_symlinks=False))
            if not unchangeable and is_unchangeable(directory.fd, os.fsencode(entry.name)):
                unchangeable = walk.path(entry.name)
        if unchangeable:
            return {"problem": f"{unchangeable} in it is immutable or append-only (lsattr), which is not copied"}
        for status in statuses:
            if status.st_nlink == 1 or seen.add(status.st_dev, status.st_ino):
                size += status.st_blocks * 512
                entries += 1
    return {"problem": str(problems[0]) if problems else "", "bytes": size, "entries": entries}
