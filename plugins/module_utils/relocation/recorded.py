# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host remembers of moving each of its locations, and what follows from it for its layout."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .. import records
from ..errors import Refusal
from ..mounts import FilesystemId, Mount
from ..places import Places
from ..records import RecordError
from ..syscalls import birth_time, filesystem_uuid, subvolume
from . import signs
from .old_path import OldPath
from .stages import GIVEN_UP, HELD, IN_NEW_PLACE, UNDER_WAY, UNDONE, standing

_ENDING = ".json"
_REMEDY = "restore it from a backup beside it, or ask who has changed it"


@dataclass(frozen=True)
class Identity:
    """What tells a directory from any other that may be at its path later."""

    filesystem: FilesystemId
    inode: int
    birth: int | None
    subvolume: str | None

    @classmethod
    def of(cls, fd: int, mount: Mount) -> Identity:
        """Return that of the directory open at *fd*.

        :param mount: of its filesystem
        """
        filesystem = FilesystemId(mount.fstype, filesystem_uuid(fd), mount.source)
        return cls(filesystem, os.fstat(fd).st_ino, birth_time(fd), subvolume(fd))

    def matches(self, other: Identity) -> bool:
        same = (self.inode, self.subvolume) == (other.inode, other.subvolume)
        born = self.birth == other.birth or self.birth is None or other.birth is None
        return same and born and self.filesystem.matches(other.filesystem)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "filesystem": self.filesystem.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Identity:
        filesystem = FilesystemId.from_json(value["filesystem"])
        return cls(filesystem, int(value["inode"]), value["birth"], value["subvolume"])


@dataclass(frozen=True)
class State:
    """What of a tree changes with every change in it."""

    entries: int
    changes: str
    """Of all inodes, with their sizes and times of change."""
    kept: str
    """The same without what setting the content aside changes: the directory, and the time of what is in it itself."""


@dataclass(frozen=True)
class Relocation:
    """The move of one location."""

    location: str
    identity: str
    """Tells this move from any other."""
    path: str
    """The old path, as the layout had it."""
    real: str
    """The same without symbolic links."""
    to: str
    to_real: str
    old: Identity
    new: Identity
    moves: Mapping[str, tuple[str, str]]
    """The old and the new path of each location that moves along, by name."""
    before: Mapping[str, Any]
    """The overrides of these locations until now, as an inventory has them."""
    after: Mapping[str, Any]
    """Those that an inventory has to have from now on."""
    copy: bool
    """Whether its content goes along."""
    here: bool
    """Whether this host makes the copy, and deletes the old content: only one does on a shared filesystem."""
    disk_at: str = ""
    """Where the old disk is mounted as well, when the old directory is all of one."""
    bytes: int = 0
    """What there is to copy."""
    avail: int = 0
    """What was free on the new filesystem before."""
    former: tuple[str, ...] = ()
    """Where it was before earlier moves."""
    stage: str = HELD
    doing: str = ""
    since: float = 0.0
    """When the stage was reached."""
    backup: str = ""
    """The archive of Stowage's own metadata."""
    was: State | None = None
    """The old content, when it was compared."""
    copied: State | None = None
    """The new content since then, without the directory itself; None while it is copied to."""
    began: bool = False
    """Whether anything was put into the new directory."""
    aside: State | None = None
    """The old content, since it lies aside."""
    mode: int = 0
    """The mode of the old directory, once its content is being set aside."""

    @property
    def old_paths(self) -> tuple[str, ...]:
        """Under which names references may have stored it."""
        return tuple(dict.fromkeys((self.path, self.real)))

    @property
    def at_old_path(self) -> OldPath:
        return OldPath(self.real, self.to_real, self.disk_at)

    def standing(self, table: Sequence[Mount]) -> str:
        """Return the last stage that is reached by what is mounted, ``lost`` or ``foreign``."""
        return standing(self.stage, self.doing, self.at_old_path.found(table))

    @property
    def hold(self) -> str:
        return f"relocate/{self.location}"

    def at(self, stage: str, **changes: Any) -> Relocation:
        """Return the same at another stage, with nothing begun."""
        return replace(self, stage=stage, doing="", since=time.time(), **changes)

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "old": self.old.to_json(),
            "new": self.new.to_json(),
            "moves": {name: list(paths) for name, paths in self.moves.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Relocation:
        states = {name: State(**value[name]) if value[name] else None for name in ("was", "copied", "aside")}
        made = cls(
            **{
                **value,
                **states,
                "old": Identity.from_json(value["old"]),
                "new": Identity.from_json(value["new"]),
                "moves": {name: (str(old), str(new)) for name, (old, new) in value["moves"].items()},
                "former": tuple(value["former"]),
            }
        )
        if not all(isinstance(text, str) for text in (made.path, made.real, made.to, made.to_real, made.stage)):
            raise TypeError("a path is no text")
        return made


def path_of(places: Places, location: str) -> str:
    return os.path.join(places.relocations_dir, location + _ENDING)


def load(places: Places, location: str) -> Relocation | None:
    """Return what is recorded of moving a location, or None.

    :raises RecordError: when that cannot be used: nobody knows then which directory is whole
    """
    path = path_of(places, location)
    value = records.read(path, _REMEDY)
    if value is None:
        return None
    try:
        return Relocation.from_json(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: not the record of a moved location ({error!r}); {_REMEDY}") from error


def load_all(places: Places) -> list[Relocation]:
    """Return what is recorded of all moves, by the names of their locations."""
    try:
        names = sorted(os.listdir(places.relocations_dir))
    except FileNotFoundError:
        return []
    # Of a name that begins with a dot is what a killed writer has left.
    locations = [name[: -len(_ENDING)] for name in names if name.endswith(_ENDING) and not name.startswith(".")]
    return [one for one in (load(places, location) for location in locations) if one is not None]


def save(places: Places, one: Relocation) -> None:
    records.write(path_of(places, one.location), one.to_json())


def check_alone(moves: Iterable[Relocation], location: str) -> None:
    """Refuse to move *location* while jobs are held for the move of another one."""
    for one in moves:
        if one.stage in UNDER_WAY and one.location != location:
            rule = f"the move of {one.location} to {one.to} is not finished"
            raise Refusal(location, rule, "finish it, or give it up (relocate_give_up=true), first")


def check_layout(moves: Iterable[Relocation], locations: Mapping[str, str]) -> None:
    """Refuse a layout that would go back to where a location was before it was moved, be ahead of a move, or begin with
    what is left of one.

    :param locations: the path of each location, by name
    """
    for one in moves:
        for name, (old, new) in one.moves.items():
            path = locations.get(name)
            if path == new and one.stage in IN_NEW_PLACE:
                continue
            if one.stage in IN_NEW_PLACE and path in (old, *(one.former if name == one.location else ())):
                lines = "; ".join(f"{name}: {_value(value)}" for name, value in one.after.items())
                raise Refusal(
                    name,
                    f"{path} is where it was before it was moved to {new}",
                    f"put this into host_storage_overrides: {lines}",
                )
            if one.stage in UNDER_WAY and one.stage not in IN_NEW_PLACE and path != old:
                raise Refusal(
                    name,
                    f"it is being moved from {old} to {new}",
                    "run stowage.host.relocate again to finish that, or with relocate_give_up=true",
                )
            if one.stage in (GIVEN_UP, UNDONE) and path == new and _holds_copy(one):
                rule = f"{new} holds the copy of a move from {old} that was {one.stage}"
                raise Refusal(name, rule, "name the old path; have it moved by stowage.host.relocate, or empty it")


def _holds_copy(one: Relocation) -> bool:
    """Return whether the new directory has the sign of a copy; of a shared one the host that made it has left that."""
    try:
        names = os.listdir(os.fsencode(one.to_real))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(name.startswith(signs.COPY) and signs.is_roots(one.to_real, name) for name in names)


def is_told(moves: Iterable[Relocation], former: Mapping[str, str], locations: Mapping[str, str]) -> set[str]:
    """Return the locations whose change of path is such a move, so that no files stay behind."""
    return {
        name
        for one in moves
        for name, (old, new) in one.moves.items()
        if (one.stage in IN_NEW_PLACE and (former.get(name), locations.get(name)) == (old, new))
        or (one.stage in (*IN_NEW_PLACE, UNDONE) and (former.get(name), locations.get(name)) == (new, old))
    }


def _value(value: Any) -> str:
    """Return an override as an inventory has it, in one order however it was recorded."""
    if not isinstance(value, Mapping):
        return str(value)
    fields = sorted(value.items(), key=lambda field: (field[0] != "path", field[0]))
    return "{" + ", ".join(f"{name}: {str(one).lower() if one is True else one}" for name, one in fields) + "}"


def lines_of(after: Mapping[str, Any]) -> list[str]:
    """Return the lines that an inventory has to have."""
    return ["host_storage_overrides:", *(f"  {name}: {_value(value)}" for name, value in after.items())]
