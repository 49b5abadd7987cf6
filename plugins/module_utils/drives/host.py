# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Declaring the drives of workspaces on this host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from .. import claims, records
from .. import mounts as mount_table
from ..data_location import locations as data_locations
from ..data_location.former import counted
from ..differences import Differences
from ..errors import Refusal, StowageError, printable
from ..mounts import Mount
from ..owner import Registry
from ..places import Places
from . import deletion as drive_deletion
from . import grants
from . import recorded as drive_records
from . import sources as drive_sources
from .declared import Entry, hidden, kind
from .grants import Grants
from .recorded import Drive, Found, Holdings


@dataclass(frozen=True)
class Outcome:
    """The drives of the workspaces that were named, and what this host holds."""

    drives: Mapping[str, Sequence[Drive]]
    holdings: Holdings
    orphans: Sequence[Found]
    warnings: Sequence[str]
    used_by: Mapping[tuple[str, str], Sequence[str]]
    """Run and worker of each live lease of a drive that is deleted, by workspace and drive."""
    unknown: Sequence[Drive] = ()
    """Tombstones of drives that this host never knew, and has nothing of."""
    unread: Sequence[str] = ()
    """Why leases could not be read: who uses the drives that are deleted is unknown then."""
    begun: Sequence[Drive] = ()
    """Tombstones that are new on this host, or force now what they did not, and may have something to delete."""

    def names(self, absent: bool) -> dict[str, list[str]]:
        """Return the names of the drives, or of the tombstones, by workspace."""
        return {name: [one.name for one in drives if one.absent == absent] for name, drives in self.drives.items()}

    def users(self, workspace: str) -> dict[str, list[str]]:
        """Return who uses the drives of a workspace that are deleted, by drive."""
        return {drive: list(those) for (named, drive), those in sorted(self.used_by.items()) if named == workspace}

    def kinds(self) -> dict[str, dict[str, str]]:
        """Return in words what the drives that are deleted were, as far as this host knows, by workspace and drive."""
        return {
            name: {one.name: kind(one.spec) for one in drives if one.absent and one.spec is not None}
            for name, drives in self.drives.items()
        }

    def deleting(self) -> dict[str, list[str]]:
        """Return the names of the tombstones of which this host still holds a copy, by workspace."""
        held = {found.copy_name for found in self.holdings.copies}
        return {
            name: [one.name for one in drives if one.absent and one.copy_name in held]
            for name, drives in self.drives.items()
        }


def declare(
    places: Places,
    host: str,
    lists: Mapping[str, Sequence[Entry]],
    manager: str,
    differences: Differences,
    host_paths: Grants | None = None,
) -> Outcome:
    """Make *lists* the complete lists of their workspaces, or of *manager*'s drives in them.

    :param host_paths: what drives may name on the hosts, by workspace; as it is recorded when left out
    """
    recorded = {workspace: drive_records.load(places, workspace) for workspace in lists}
    granted_before = {workspace: grants.load(places, workspace) for workspace in lists}
    granted = granted_before if host_paths is None else {name: list(host_paths.get(name, ())) for name in lists}
    present = data_locations.load(places)
    locations = [*([present] if present is not None else []), *data_locations.load_former(places)]
    mounts = mount_table.read()
    holdings = data_locations.holdings(locations, mounts)
    adopted = drive_records.load_adopted(places)

    merged = {
        workspace: drive_records.merge(
            workspace,
            entries,
            recorded[workspace] or [],
            holdings,
            manager,
            # A host without any list of the workspace was installed anew: its copies say which drives they are of.
            {**({} if recorded[workspace] is not None else _by_marks(holdings)), **adopted},
        )
        for workspace, entries in lists.items()
    }
    declared = [drive for drives in merged.values() for drive in drives]
    claimed = claims.read(places, host, mounts)
    reserved = claims.around_drives(places, claimed.entries, claimed.unseen)
    grants.check_written(declared, granted)
    for drive in declared:
        for _index, path in drive.sources_on(host):
            grants.check_leads(drive, path, granted[drive.workspace], mounts)
    check_sources(declared, host, reserved, mounts, claims.of_root(places))
    sources = drive_sources.plan(declared, host, granted, mounts)
    before = {(workspace, one.name): one for workspace, drives in recorded.items() for one in drives or []}
    deleted = [one for one in declared if one.absent and not _is_absent(before.get((one.workspace, one.name)))]
    claimed.note(differences)
    claimed.register(Registry(places), differences)
    with drive_deletion.no_new_use(present, [] if differences.check_mode else deleted, holdings):
        used_by, unread = drive_deletion.used_by(places, [one for one in declared if one.absent], deleted)
        drive_deletion.check_unused(deleted, used_by)
        for workspace, drives in merged.items():
            path = drive_records.record_path(places, workspace)
            record = drive_records.as_record(workspace, host, drives, granted[workspace])
            was = records.read(path)
            on = "unknown" if was is None else f"declared on {was.get('host')}"
            differences.note(f"workspace {workspace}", f"declared on {host}", on)
            differences.note(f"workspace {workspace} host_paths", granted[workspace], granted_before[workspace])
            _note(workspace, drives, recorded[workspace] or [], differences)
            mode = drive_records.record_mode(drives)
            if not records.is_current(path, records.dumps(record), mode):
                action = f"record the drives of workspace {workspace}"
                differences.do(action, partial(records.write, path, record, mode))
    _rename(places, host, [name for name in drive_records.workspaces(places) if name not in merged], differences)
    # An identity that was kept for a drive is that drive's now, and never another's.
    taken = {drive.copy_name for drive in declared}
    left = {name: identity for name, identity in adopted.items() if name not in taken}
    if left != adopted:
        path = drive_records.adopted_path(places)
        differences.do(f"write {path}", partial(drive_records.write_adopted, path, left))
    drive_sources.make_true(sources, differences)

    everything = list(declared)
    for workspace in drive_records.workspaces(places):
        if workspace not in merged:
            everything.extend(drive_records.load(places, workspace) or [])
    orphans = holdings.orphans(everything)
    warnings = [
        *claimed.warnings,
        *_about_found(merged, recorded, holdings),
        *_about_orphans(orphans, everything),
        *_about_unseen(holdings.unseen),
        *drive_sources.about_left(sources),
        *(f"who uses the drives that are deleted is unknown: {why}" for why in unread),
    ]
    unknown = [one for one in deleted if (one.workspace, one.name) not in before and not holdings.of(one.copy_name)]
    begun = [
        one
        for one in declared
        if one.absent and not _is_deleted_by(before.get((one.workspace, one.name)), one.force)
        if one not in unknown or holdings.unseen
    ]
    return Outcome(merged, holdings, orphans, warnings, used_by, unknown, unread, begun)


def _rename(places: Places, host: str, workspaces: Iterable[str], differences: Differences) -> None:
    """Let the lists that are left as they are say this host's name: one that was left behind would refuse the others.

    That *host* is the same machine under a new name was judged before, see :mod:`..host_name`.
    """
    for workspace in workspaces:
        path = drive_records.record_path(places, workspace)
        record, drives = records.read(path), drive_records.load(places, workspace)
        if record is None or drives is None or record.get("host") == host:
            continue
        differences.note(f"workspace {workspace}", f"declared on {host}", f"declared on {record.get('host')}")
        renamed, mode = {**record, "host": host}, drive_records.record_mode(drives)
        differences.do(f"record that workspace {workspace} is on {host}", partial(records.write, path, renamed, mode))


def _is_absent(drive: Drive | None) -> bool:
    return drive is not None and drive.absent


def _is_deleted_by(before: Drive | None, force: bool) -> bool:
    return before is not None and before.absent and (before.force or not force)


def _by_marks(holdings: Holdings) -> dict[str, str]:
    """Return the identities of the copies that are here by their names; the present data location's come first."""
    return {found.copy_name: found.identity for found in reversed(holdings.copies)}


def _note(workspace: str, drives: Iterable[Drive], before: Iterable[Drive], differences: Differences) -> None:
    wanted = {drive.name: drive for drive in drives}
    actual = {drive.name: drive for drive in before}
    for name in sorted({*wanted, *actual}):
        after = wanted[name].declared if name in wanted else None
        was = actual[name].declared if name in actual else None
        if after != was:
            differences.note(f"{workspace}/{name}", hidden(after, was), hidden(was))


def check_sources(
    drives: Iterable[Drive],
    host: str,
    paths: Mapping[str, str],
    mounts: Sequence[Mount],
    around: Mapping[str, str] | None = None,
) -> None:
    """Refuse a source on *host* that overlaps one of *paths*: workers would reach through it what is others'.

    :param around: what a source may be in, and not more
    """
    reserved = [*sorted(paths.items()), *sorted((around or {}).items())]
    there = [(claims.located(path, mounts), path, what) for path, what in reserved]
    for drive in drives:
        for index, path in drive.sources_on(host):
            source = claims.located(path, mounts)
            for other, shown, what in there:
                lies = source.lies_to(other)
                if lies and not (lies == "is inside" and shown in (around or {})):
                    raise Refusal(
                        f"drive {drive.workspace}/{drive.name}",
                        f"spec.sources[{index}].path {path} {lies} {what} {shown}",
                        "choose a directory apart from it",
                    )
            owner = claims.owner_of(source.path, mounts)
            if owner:
                raise Refusal(
                    f"drive {drive.workspace}/{drive.name}",
                    f"spec.sources[{index}].path {path} is, or is inside, {owner}",
                    "choose a directory apart from it",
                )


def _about_found(
    merged: Mapping[str, Sequence[Drive]], recorded: Mapping[str, Sequence[Drive] | None], holdings: Holdings
) -> list[str]:
    """Say which copies were found again by their names: nothing is left that tells orphans of an earlier list."""
    warnings = []
    for workspace, drives in merged.items():
        own = {drive.copy_name for drive in drives if not drive.absent}
        found = [one for one in holdings.copies if one.copy_name in own]
        if recorded[workspace] is None and found:
            warnings.append(
                f"workspace {workspace}: this host had no list of it, and takes what is here for copies of its drives"
                f" of the same names ({_listed(found)}); delete those that are not (state: absent)"
            )
    return warnings


def _about_orphans(orphans: Sequence[Found], drives: Iterable[Drive]) -> list[str]:
    names = {drive.copy_name for drive in drives}
    earlier = [found for found in orphans if found.copy_name in names]
    unlisted = [found for found in orphans if found.copy_name not in names]
    warnings = []
    if unlisted:
        warnings.append(
            f"this host holds {counted(len(unlisted))} of drives that are in no list ({_listed(unlisted)}), and nothing"
            " deletes them; declare a drive with state: absent to have its copies deleted"
        )
    if earlier:
        warnings.append(
            f"this host holds {counted(len(earlier))} of an earlier drive of that name ({_listed(earlier)}), and"
            " nothing deletes them; take them in with adopt of the data location, or declare the drive with"
            " state: absent"
        )
    return warnings


def _listed(copies: Sequence[Found]) -> str:
    return ", ".join(printable(found.path) for found in copies[:5]) + (", …" if len(copies) > 5 else "")


def _about_unseen(unseen: Iterable[StowageError]) -> list[str]:
    return [f"copies there are unknown: {error}" for error in unseen]
