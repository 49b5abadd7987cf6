# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exporting sources of drives of this host, and withdrawing them: recorded, in files, and live in the server.

Two network mounts may be of one directory for one client, as of drives of two workspaces. The server knows one export
of it then, which stands in the file of the first, is writable when one of them is, and goes with the last.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .. import mounts as mount_table
from .. import own_files
from ..differences import Differences
from ..drives import reasons
from ..drives import recorded as drive_records
from ..drives.declared import ON_ONE_MACHINE
from ..drives.recorded import Drive
from ..drives.refs import DriveRef
from ..errors import Refusal, StowageError, one_line, printable
from ..facts import networks
from ..places import Places
from ..runs import pins
from ..runs.drives import Source
from ..services.systemd_units import RunCommand
from ..syscalls import DIRECTORY
from . import exports, records
from .exports import Export
from .records import EXPORTED, FAILED, RELEASED, ExportRecord
from .server import Server, check_tools

Key = tuple[str, str, int, str]

ANEW = "it was exported anew in between"
"""The reason of what was not withdrawn, because its client has asked for it once more."""
RENEWED_S = 3600.0
"""How long a client that has asked for an export may take to mount it."""


@dataclass(frozen=True)
class Asked:
    """An export as a network mount needs it."""

    workspace: str
    drive: str
    source: int
    client: str
    address: str
    read_only: bool
    rdma: bool
    squash: str = "root"
    anonymous_uid: int | None = None
    anonymous_gid: int | None = None

    @property
    def key(self) -> Key:
        return self.workspace, self.drive, self.source, self.client

    @property
    def shown(self) -> str:
        return exports.shown(*self.key)


def read_asked(value: Mapping[str, Any], host: str) -> Asked:
    """Return one entry of the module's list, checked."""
    name = f"drive {value['workspace']}/{value['drive']}"
    if value["client"] == host:
        raise Refusal(name, f"{printable(host)} is this machine itself", "an export is to another one")
    return Asked(
        *read_key(value),
        exports.check_address(value["address"], f"{name}: address"),
        value["mode"] == pins.READ_ONLY,
        value["rdma"],
        value["squash"],
        value["anonymous_uid"],
        value["anonymous_gid"],
    )


def read_key(value: Mapping[str, Any]) -> Key:
    """Return which export an entry of the module's list is about, checked."""
    key = (*records.read_key(value), value["client"])
    exports.file_path(*key)  # refuses what cannot name a file
    return key


@dataclass
class Exporting:
    """One call: the exports of this host, made or withdrawn."""

    places: Places
    host: str
    server: Server
    run_command: RunCommand
    differences: Differences
    known: dict[Key, ExportRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = {one.key: one for one in records.load_exports(self.places)}
        for export in exports.read_files(_own_files()):
            before = self.known.get(export.key)
            if before is None or not before.path:  # its record is lost
                self.known[export.key] = records.of_export(export, EXPORTED)

    # -- Exporting

    def export(self, asked: Sequence[Asked]) -> tuple[list[ExportRecord], str]:
        """Export what is asked for; return what came of each, and why the server does not listen for RDMA.

        Nothing is withdrawn: its client may have it mounted. What is exported already stays so, and stays recorded,
        when it cannot be exported as it is asked for now.
        """
        check_tools()
        live = _live()
        found: dict[Key, ExportRecord] = {}
        wanted: dict[Key, ExportRecord] = {}
        for one in asked:
            before = self.known.get(one.key)
            try:
                export = self._looked_at(one)
                if before is not None and self._stays(before, export, live):
                    found[one.key] = self._kept(before, export)
                else:
                    self._check_others(export, live)
                    wanted[one.key] = _renewed(self._record(one, export), before)
            except (StowageError, OSError) as error:
                found[one.key] = self._failed(one, one_line(error), live)
        no_rdma = ""
        if wanted or any(one.state == EXPORTED for one in found.values()):
            self.server.start()
            if any(one.rdma for one in asked):
                no_rdma = self.server.listen_for_rdma()
        found.update(self._make(wanted))
        return [found[one.key] for one in asked], no_rdma

    def _looked_at(self, one: Asked) -> Export:
        """Return the export, once everything about its directory is checked; nothing is changed."""
        drive = {other.name: other for other in drive_records.load(self.places, one.workspace) or []}.get(one.drive)
        shown = f"drive {one.workspace}/{one.drive}"
        if drive is None or drive.absent or drive.spec is None:
            raise Refusal("", f"{shown} is not in the list that {self.host} has of its workspace", "roll the host out")
        sources = drive.spec["sources"]
        if one.source >= len(sources):
            raise Refusal("", f"{shown} has no source {one.source}", f"there are {len(sources)}, from 0")
        declared = sources[one.source]
        if declared["node_scope"] != ON_ONE_MACHINE or declared["node"] != self.host:
            raise Refusal(shown, f"its source {one.source} is not on machine {self.host}")
        if drive.spec["transport"] == "Local":
            raise reasons.only_local(one.drive, one.source, self.host).refusal()
        eligible = declared["eligible_nodes"]
        if eligible and one.client not in eligible:
            raise reasons.not_usable(one.drive, one.source, one.client).refusal()
        return self._opened(one, drive)

    def _opened(self, one: Asked, drive: Drive) -> Export:
        source = Source(self.places, self.host, drive, DriveRef(drive.name, source_index=one.source))
        with source.opened() as fd:
            path = exports.check_path(os.readlink(f"/proc/self/fd/{fd}"), one.shown)
            check_above(f"drive {one.workspace}/{one.drive}", fd)
            table = mount_table.read()
            mount = mount_table.of_fd(fd, table)
            if mount_table.is_shared(mount.fstype):
                rule = f"its source {printable(path)} is on a {mount.fstype} filesystem, which other machines can mount"
                raise Refusal(f"drive {one.workspace}/{one.drive}", rule, "declare it as shared")
            filesystem = mount_table.identify(fd, table)
        return Export(
            *one.key,
            one.address,
            path,
            one.read_only,
            exports.fsid(path, filesystem.uuid or filesystem.source),
            exports.check_mount_point(mount.point, one.shown),
            one.squash,
            one.anonymous_uid,
            one.anonymous_gid,
        )

    def _record(self, one: Asked, export: Export) -> ExportRecord:
        before = self.known.get(one.key)
        read_only = one.read_only
        if before is not None and before.state == EXPORTED and before.path == export.path:
            read_only = read_only and before.read_only  # a run on the client writes to it
        return records.of_export(replace(export, read_only=read_only), EXPORTED)

    def _stays(self, before: ExportRecord, export: Export, live: Sequence[exports.Live]) -> bool:
        """Return whether *before* is exported of another directory or to another address than *export*."""
        same = (before.path, before.address) == (export.path, export.address)
        return not same and (before.state == EXPORTED or self.is_live(before, live))

    def _kept(self, before: ExportRecord, export: Export) -> ExportRecord:
        """Leave *before* as it is, and return it with why it is not exported as *export*."""
        where = f"to {before.address}" if before.path == export.path else f"as {printable(before.path)}"
        reason = f"{export.name}: it is exported {where} still; release its runs on {export.client} first"
        kept = before
        if before.state != EXPORTED:  # whoever withdrew it came no further than its record
            kept = replace(before, state=FAILED, reason=reason, time=records.now())
        self.known[before.key] = kept = _renewed(kept, before)
        return replace(kept, reason=reason)

    def _failed(self, one: Asked, reason: str, live: Sequence[exports.Live]) -> ExportRecord:
        """Record that *one* is not exported, unless it is exported from before."""
        before = self.known.get(one.key)
        if before is not None and before.path and (before.state != RELEASED or self.is_live(before, live)):
            failed = replace(before, state=FAILED, reason=reason, time=records.now())  # something of it may be there
        else:
            squashing = (one.squash, one.anonymous_uid, one.anonymous_gid)
            export = Export(*one.key, one.address, "", one.read_only, "", "", *squashing)
            failed = records.of_export(export, FAILED, reason)
        failed = records.timed(failed, before)
        if before is None or before.state != EXPORTED:
            self.known[one.key] = failed
        return failed

    def _check_others(self, export: Export, live: Sequence[exports.Live]) -> None:
        """Refuse what somebody else exports to the same address: it would be taken over, and withdrawn in the end."""
        have = exports.find(live, export.address, export.path)
        group = self._group(export.path, export.address)
        if have is None or have.has_any_of([export, *group]) or any(one.state == EXPORTED for one in group):
            return
        rule = f"somebody else exports {printable(export.path)} to {export.address}"
        remedy = f"withdraw that (exportfs -u {printable(export.argument)}), and take it out of /etc/exports"
        raise Refusal(export.name, rule, remedy)

    def is_live(self, one: ExportRecord, live: Sequence[exports.Live] | None = None) -> bool:
        """Return whether the server has the export *one*, and has it for no other that is recorded as exported."""
        have = exports.find(_live() if live is None else live, one.address, one.path)
        others = (other for other in self._group(one.path, one.address) if other.key != one.key)
        return have is not None and have.has_any_of([one]) and not any(other.state == EXPORTED for other in others)

    # -- Withdrawing

    def withdraw(self, serials: Mapping[Key, str]) -> list[ExportRecord]:
        """Withdraw exports whose clients have unmounted them; one of which nothing is known is withdrawn already.

        One that is recorded as withdrawn is looked at again: whoever recorded that may have come no further.

        :param serials: which, with the serial that its client had of it. When it has another one by now, the client is
            about to mount it again, or has done so: it stays. An empty one withdraws whatever there is
        """
        found: dict[Key, ExportRecord] = {}
        wanted: dict[Key, ExportRecord] = {}
        for key, serial in serials.items():
            before = self.known.get(key)
            if before is None:
                found[key] = self._unknown(key)
            elif serial and _is_anew(before, serial):
                found[key] = replace(before, reason=ANEW)
            else:
                wanted[key] = replace(before, state=RELEASED, reason="", time=records.now())
        found.update(self._make(wanted))
        return [found[key] for key in serials]

    def _unknown(self, key: Key) -> ExportRecord:
        """Take away the file of an export that neither a record nor the file itself says anything of."""
        released = records.of_export(Export(*key, "", "", True, "", ""), RELEASED)
        try:
            self._files([released], [])
        except (StowageError, OSError) as error:
            return replace(released, state=FAILED, reason=one_line(error))
        return released

    # -- What both come to

    def _make(self, wanted: Mapping[Key, ExportRecord]) -> dict[Key, ExportRecord]:
        """Record *wanted*, make files and server agree with what is recorded then, and return what came of each."""
        before = dict(self.known)
        found = {key: records.timed(one, before.get(key)) for key, one in wanted.items()}
        self.known.update(found)
        self._write()
        live = _live()
        for path, address in sorted({(one.path, one.address) for one in found.values() if one.path}):
            group = self._group(path, address)
            exported = sorted((one for one in group if one.state == EXPORTED), key=lambda one: one.key)
            try:
                self._files(group, exported)
                if exported:
                    self._live(_merged(exported), live)
                else:
                    self._gone(group, live)
            except (StowageError, OSError) as error:
                for one in exported or group:
                    if one.key in found:
                        found[one.key] = replace(one, state=FAILED, reason=one_line(error), time=records.now())
        for key, one in found.items():
            earlier = before.get(key)
            self.known[key] = one
            if earlier is not None and earlier.state == EXPORTED == wanted[key].state and one.state == FAILED:
                self.known[key] = replace(earlier, serial=one.serial, renewed=one.renewed)  # it may be mounted
        self._write()
        return found

    def _group(self, path: str, address: str) -> list[ExportRecord]:
        return [one for one in self.known.values() if (one.path, one.address) == (path, address)]

    def _files(self, group: Sequence[ExportRecord], exported: Sequence[ExportRecord]) -> None:
        for one in group:
            content: bytes | None = None
            if one.state == EXPORTED:
                lead = exported[0]
                content = _merged(exported).content if one is lead else one.content_with(lead)
            own_files.keep("file", one.file, content, self.differences)

    def _live(self, export: Export, live: Sequence[exports.Live]) -> None:
        have = exports.find(live, export.address, export.path)
        if not exports.missing(export, have):
            return
        actual = None if have is None else sorted(have.options)
        self.differences.note(f"export of {export.path} to {export.address}", export.options, actual)
        options = ",".join(export.options)
        self.differences.do(
            f"export {export.path} to {export.address}",
            partial(self._exportfs, "-i", "-o", options, export.argument),
        )
        if self.differences.check_mode:
            return
        wrong = exports.missing(export, exports.find(_live(), export.address, export.path))
        if wrong:
            raise StowageError(f"{export.name}: the server does not have it as {', '.join(wrong)}; see exportfs -v")

    def _gone(self, group: Sequence[ExportRecord], live: Sequence[exports.Live]) -> None:
        """Withdraw the export that the records of *group* are of; somebody else's stays."""
        path, address = group[0].path, group[0].address
        have = exports.find(live, address, path)
        if have is None or not have.has_any_of(group):
            return
        self.differences.note(f"export of {path} to {address}", None, sorted(have.options))
        self.differences.do(f"withdraw {path} from {address}", partial(self._exportfs, "-u", group[0].argument))
        if not self.differences.check_mode and exports.find(_live(), address, path) is not None:
            raise StowageError(f"{path}: the server still exports it to {address}; see exportfs -v")

    def _exportfs(self, *arguments: str) -> None:
        code, out, err = self.run_command(["exportfs", *arguments])
        if code or err.strip():
            raise StowageError(f"exportfs: {' '.join((err or out).split()) or f'exit status {code}'}")

    def _write(self) -> None:
        if not self.differences.check_mode:
            records.write_exports(self.places, self.known.values())


def check_above(name: str, fd: int) -> None:
    """Refuse a directory that others than root could replace: the server looks it up by its name, again and again."""
    here = os.dup(fd)
    try:
        while True:
            below = os.fstat(here)
            above = os.open("..", DIRECTORY, dir_fd=here)
            os.close(here)
            here = above
            status = os.fstat(here)
            if os.path.samestat(status, below):
                return  # the root
            shared = status.st_mode & 0o022 and not (status.st_mode & stat.S_ISVTX and below.st_uid == 0)
            if status.st_uid or shared:
                rule = f"{printable(os.readlink(f'/proc/self/fd/{here}'))} can be changed by others than root"
                raise Refusal(name, f"{rule}, who could have another directory exported", "let it be root's")
    finally:
        os.close(here)


def _merged(exported: Sequence[ExportRecord]) -> Export:
    """Return the one export that the server is to have for all of *exported*."""
    lead = exported[0]
    for other in exported[1:]:
        if other.squashing != lead.squashing:
            shown = exports.shown(*other.key)
            rule = f"the same directory is exported to it for drive {lead.workspace}/{lead.drive} with other squashing"
            raise Refusal(shown, rule, "let both have the same")
    return replace(lead, read_only=all(one.read_only for one in exported))


def _renewed(one: ExportRecord, before: ExportRecord | None) -> ExportRecord:
    """Return *one* with a serial of its own; since when it is so stays when nothing else has changed."""
    if before is not None:
        one = records.timed(replace(one, serial=before.serial, renewed=before.renewed), before)
    return replace(one, serial=uuid.uuid4().hex, renewed=records.now())


def _is_anew(one: ExportRecord, serial: str) -> bool:
    """Return whether *one* was asked for since it had *serial*, so lately that its client may still mount it."""
    lately = abs(records.now() - one.renewed) < RENEWED_S
    return one.state == EXPORTED and one.serial != serial and lately


def _own_files() -> dict[str, bytes]:
    """Return the content of the files in which exports of ours may be, by their names."""
    found = {}
    for name in exports.file_names():
        path = os.path.join(exports.DIRECTORY, name)
        with suppress(StowageError):  # not a file: somebody else's
            file = own_files.read(path)
            if file is not None:
                found[name] = file[0]
    return found


def _live() -> list[exports.Live]:
    if networks.nfs().tools["exportfs"] is None:
        return []  # the server is gone from this host, and nobody reads the table that it may have left
    try:
        with open(exports.ETAB, "rb") as stream:
            return exports.parse_etab(stream.read())
    except FileNotFoundError:
        return []
