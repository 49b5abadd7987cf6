# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drives as they are recorded on a host: one file per workspace, each drive with an identity of its own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import records
from ..errors import Refusal, StowageError
from ..places import Places
from .declared import SCRATCH, SHARED, Entry, copy_name, is_placed, kind, managed_refusal, split_copy_name
from .reasons import not_usable


@dataclass(frozen=True)
class Drive:
    """One drive of a workspace as this host knows it."""

    workspace: str
    metadata: Mapping[str, Any]
    spec: Mapping[str, Any] | None
    """As Astraeus's JSON, with defaults filled in; None in the tombstone of a drive this host never knew."""
    identity: str
    """Tells the drive from another of its name that was made before or after it."""
    state: str = "present"
    force: bool = False

    @property
    def name(self) -> str:
        return str(self.metadata["name"])

    @property
    def copy_name(self) -> str:
        return copy_name(self.workspace, self.name)

    @property
    def absent(self) -> bool:
        """Whether it is a tombstone: its copies are to be deleted."""
        return self.state == "absent"

    def has(self, identity: str) -> bool:
        """Return whether a copy of its name is its own; a tombstone means every copy of the name, orphans too."""
        return self.absent or self.identity == identity

    @property
    def placed(self) -> bool:
        return is_placed(self.spec)

    @property
    def evictable(self) -> bool:
        return not self.absent and self.spec is not None and bool(self.spec["evictable"])

    @property
    def idle_ttl_s(self) -> int:
        """After how many seconds without a use a copy of it goes; 0 is never."""
        if self.absent or self.spec is None or not self.placed:
            return 0
        return int(self.spec.get("idle_ttl_seconds", 0))

    @property
    def path(self) -> str:
        """The folder inside a placed drive's copy that workers see; empty for the whole of it."""
        return str(self.spec["sources"][0]["path"]) if self.spec is not None and self.placed else ""

    @property
    def fill(self) -> Mapping[str, Any] | None:
        """The template of the container that fills a copy before it is used; None when none does."""
        if self.absent or not self.placed or self.spec is None or not self.spec.get("fill"):
            return None
        template: Mapping[str, Any] = self.spec["fill"]["template"]
        return template

    def folder(self, sub_path: str) -> str:
        """Return where a folder inside the drive is below its source, or below its copy's directory."""
        return "/".join(part for part in (self.path, sub_path) if part)

    def sources_on(self, host: str) -> list[tuple[int, str]]:
        """Return the sources, with their numbers, that name a path on *host*."""
        if self.spec is None or self.absent:
            return []
        found = []
        for index, source in enumerate(self.spec["sources"]):
            everywhere = source["node_scope"] in (SHARED, SCRATCH) and (
                not source["eligible_nodes"] or host in source["eligible_nodes"]
            )
            if everywhere or source["node"] == host:
                found.append((index, source["path"]))
        return found

    @property
    def manager(self) -> str:
        """The object that the drive is managed for, as ``model/llama``; empty for a workspace's own."""
        return str(self.spec.get("managed_by", "")) if self.spec is not None else ""

    @property
    def declared(self) -> Entry:
        """What was declared: everything but the identity."""
        return {"metadata": self.metadata, "spec": self.spec, "state": self.state, "force": self.force}

    @classmethod
    def from_json(cls, workspace: str, value: Mapping[str, Any]) -> Drive:
        fields = {key: value[key] for key in ("metadata", "spec", "identity", "state", "force")}
        drive = records.typed(cls, {**fields, "workspace": workspace})
        _check_types(drive)
        return drive

    def to_json(self) -> dict[str, Any]:
        return {**self.declared, "identity": self.identity}


def _check_types(drive: Drive) -> None:
    """Raise TypeError, KeyError or AttributeError unless what this host reads in a drive is of the types it reads."""
    sources = [] if drive.spec is None else drive.spec["sources"]
    texts = [drive.metadata["name"]]
    for source in sources:
        texts += [
            source.get("node_scope", ""),
            source.get("node", ""),
            source["path"],
            *(source.get("eligible_nodes") or []),
        ]
    if drive.spec is not None and drive.spec.get("fill"):
        template = drive.spec["fill"]["template"]
        variables = template.get("env", {})
        texts += [template["image"], template["command"], *template["args"], *variables, *variables.values()]
    wrong = [text for text in texts if not isinstance(text, str)]
    if wrong or (drive.spec is not None and not isinstance(drive.spec["evictable"], bool)):
        raise TypeError(f"{(wrong or [drive.spec])[0]!r}")


def record_path(places: Places, workspace: str) -> str:
    return os.path.join(places.drives_dir, f"{workspace}.json")


def load(places: Places, workspace: str) -> list[Drive] | None:
    """Return the complete list of a workspace's drives, or None when this host was never given one."""
    path = record_path(places, workspace)
    value = records.read(path)
    if value is None:
        return None
    try:
        return [Drive.from_json(value["workspace"], one) for one in value["drives"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise records.RecordError(f"{path}: not a list of drives ({error!r}); roll the host out again") from error


def load_all(places: Places) -> list[Drive]:
    """Return the drives of every workspace that this host has a list of."""
    return [drive for workspace in workspaces(places) for drive in load(places, workspace) or []]


def workspaces(places: Places) -> list[str]:
    """Return the workspaces that this host has a list of."""
    try:
        names = os.listdir(places.drives_dir)
    except FileNotFoundError:
        return []
    return sorted(name[: -len(".json")] for name in names if name.endswith(".json") and not name.startswith("."))


def by_copy(drives: Iterable[Drive]) -> Callable[[str, str], Drive | None]:
    """Return what finds, among *drives*, the one that a copy is of: by its name and by the identity in its mark."""
    named = {drive.copy_name: drive for drive in drives}

    def find(name: str, identity: str) -> Drive | None:
        drive = named.get(name)
        return drive if drive is not None and drive.has(identity) else None

    return find


def forced(drives: Iterable[Drive]) -> set[tuple[str, str]]:
    """Return workspace and name of the drives that were deleted although workers use them."""
    return {(drive.workspace, drive.name) for drive in drives if drive.absent and drive.force}


def find_placed(places: Places, name: str, host: str) -> Drive:
    """Return the drive that *host* may have the copy *name* of, as it is declared now."""
    workspace, drive_name = split_copy_name(name)
    drive = {one.name: one for one in load(places, workspace) or []}.get(drive_name)
    shown = f"drive {workspace}/{drive_name}"
    if drive is None:
        raise Refusal(shown, "is in no list of this host", "declare it, and roll the host out")
    if drive.absent or drive.spec is None:
        raise Refusal(shown, "is to be deleted (state: absent)", "declare it anew")
    if not drive.placed:
        raise Refusal(shown, f"it is {kind(drive.spec)}, and has no copies", "use the path of its source")
    eligible = drive.spec["sources"][0]["eligible_nodes"]
    if eligible and host not in eligible:
        raise not_usable(f"{workspace}/{drive_name}", 0, host).refusal("add the machine to its eligible_nodes")
    return drive


def adopted_path(places: Places) -> str:
    return os.path.join(places.var, "adopted.json")


def load_adopted(places: Places) -> dict[str, str]:
    """Return the identities that copies were given before their drive was declared, by copy name."""
    return dict((records.read(adopted_path(places)) or {}).get("copies", {}))


def write_adopted(path: str, copies: Mapping[str, str]) -> bool:
    return records.write(path, {"copies": dict(copies)}) if copies else records.remove(path)


def record_mode(drives: Iterable[Drive]) -> int:
    """Return the mode of a list: what a fill's container has in its environment may be secret."""
    return 0o600 if any(drive.fill is not None and drive.fill.get("env") for drive in drives) else 0o644


def as_record(workspace: str, host: str, drives: Sequence[Drive], host_paths: Sequence[str] = ()) -> records.Record:
    """Return what is recorded of a workspace.

    :param host_paths: what its drives may name on the hosts, see :mod:`.grants`
    """
    record = {"workspace": workspace, "host": host, "drives": [drive.to_json() for drive in drives]}
    return {**record, "host_paths": list(host_paths)} if host_paths else record


@dataclass(frozen=True)
class Found:
    """A copy that was found on this host."""

    copy_name: str
    path: str
    identity: str
    """The drive that it is of, by its owner mark."""


@dataclass(frozen=True)
class Holdings:
    """What this host holds of drives, as far as it can be seen."""

    copies: Sequence[Found] = ()
    strangers: Sequence[str] = ()
    """Paths among the copies that carry no owner mark: nobody's, so nobody removes them."""
    unseen: Sequence[StowageError] = ()
    """Why data locations could not be looked into: copies there are unknown, not none."""

    def of(self, name: str) -> list[Found]:
        return [found for found in self.copies if found.copy_name == name]

    def orphans(self, drives: Iterable[Drive]) -> list[Found]:
        """Return the copies of drives that are in no list, tombstones included: nothing ever deletes them."""
        drive_of = by_copy(drives)
        return [found for found in self.copies if drive_of(found.copy_name, found.identity) is None]


def _new_identity() -> str:
    return str(uuid.uuid4())


def merge(
    workspace: str,
    declared: Iterable[Entry],
    recorded: Sequence[Drive],
    holdings: Holdings,
    manager: str = "",
    known: Mapping[str, str] | None = None,
    new_identity: Callable[[], str] = _new_identity,
) -> list[Drive]:
    """Return a workspace's drives once *declared* is the complete list of *manager*'s among them.

    A drive keeps its identity while it stays in the list. One that was not in it, or was a tombstone, is another drive,
    unless it is *known*.

    :param manager: the object that the drives are managed for; empty for a workspace's own
    :param known: identities that placed drives have although they are new to the list, by copy name
    :raises Refusal: when a change would hide or lose what a copy holds, or a drive is another manager's
    """
    mine = {drive.name: drive for drive in recorded if drive.manager == manager}
    others = {drive.name: drive for drive in recorded if drive.manager != manager}
    merged = []
    for entry in declared:
        name = entry["metadata"]["name"]
        if name in others:
            raise _belongs_to_another(entry, others[name])
        spec = entry["spec"]
        if spec is not None and manager:
            spec = {**spec, "managed_by": manager}
        before = mine.get(name)
        drive = Drive(workspace, entry["metadata"], spec, "", entry["state"], entry["force"])
        if drive.absent:
            if manager and before is None and spec is None:
                continue  # nothing here could say whose tombstone it is
            drive = _tombstone(drive, before, new_identity)
        else:
            identity = _identity(drive, before, known or {}) or new_identity()
            drive = Drive(workspace, entry["metadata"], spec, identity)
        if before is not None and not before.absent and not drive.absent:
            _check_change(before, drive, holdings)
        merged.append(drive)
    return sorted([*merged, *others.values()], key=lambda drive: drive.name)


def _identity(drive: Drive, before: Drive | None, known: Mapping[str, str]) -> str | None:
    if before is not None and not before.absent:
        return before.identity
    return known.get(drive.copy_name) if drive.placed else None


def _tombstone(drive: Drive, before: Drive | None, new_identity: Callable[[], str]) -> Drive:
    """Return the tombstone with what is known of the drive."""
    spec = before.spec if before is not None else drive.spec
    identity = before.identity if before is not None else new_identity()
    return Drive(drive.workspace, drive.metadata, spec, identity, "absent", drive.force)


def _belongs_to_another(entry: Entry, other: Drive) -> Refusal:
    if other.manager and entry["state"] == "absent":
        return managed_refusal(other.name, other.manager)
    owner = f"is managed by {other.manager}" if other.manager else f"is a drive of workspace {other.workspace} itself"
    return Refusal(f"drive {other.name}", f"the name {owner}", "choose another name")


def _check_change(before: Drive, after: Drive, holdings: Holdings) -> None:
    """Refuse to change what a copy means while there is one: its content would be hidden, or become nobody's."""
    if before.spec is None or after.spec is None or not before.placed or (after.placed and before.path == after.path):
        return
    present = holdings.of(after.copy_name)
    if not present and not holdings.unseen:
        return
    holds = f"holds a copy of it at {present[0].path}" if present else f"may hold a copy of it ({holdings.unseen[0]})"
    change = (
        f"the folder inside it changes from {_folder(before.path)} to {_folder(after.path)}"
        if after.placed
        else f"it becomes {kind(after.spec)}"
    )
    raise Refusal(
        f"drive {after.workspace}/{after.name}",
        f"{change}, and this host {holds}",
        "delete it first (state: absent), or give the new drive another name",
    )


def _folder(path: str) -> str:
    return path or "the whole drive"
