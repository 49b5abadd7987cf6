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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .. import mounts as mount_table
from .. import own_files
from .. import records as json_records
from ..differences import Differences
from ..drives import reasons
from ..drives import recorded as drive_records
from ..drives.declared import ON_ONE_MACHINE
from ..drives.recorded import Drive
from ..drives.refs import DriveRef
from ..errors import Refusal, StowageError, one_line, printable
from ..facts import networks
from ..own_files import HEADER
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

    # -- Exporting

    def export(self, asked: Sequence[Asked]) -> tuple[list[ExportRecord], str]:
        """Export what is asked for; return what came of each, and why the server does not listen for RDMA."""
        check_tools()
        found: dict[Key, ExportRecord] = {}
        for one in asked:
            try:
                found[one.key] = self._record(one, self._looked_at(one))
            except (StowageError, OSError) as error:
                found[one.key] = _failed(one, one_line(error), self.known.get(one.key))
        sound = [one for one in found.values() if one.state == EXPORTED]
        no_rdma = ""
        if sound:
            self.server.start()
            if any(one.rdma for one in asked):
                no_rdma = self.server.listen_for_rdma()
        # What is exported already stays so, and stays recorded: its client may have it mounted.
        exported = {key for key, one in self.known.items() if one.state == EXPORTED}
        made = {key: one for key, one in found.items() if one.state == EXPORTED or key not in exported}
        self._make(made)
        return [{**found, **made}[one.key] for one in asked], no_rdma

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
            path = os.readlink(f"/proc/self/fd/{fd}")
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

    # -- Withdrawing

    def withdraw(self, keys: Iterable[Key]) -> list[ExportRecord]:
        """Withdraw exports whose clients have unmounted them; one of which nothing is known is withdrawn already.

        One that is recorded as withdrawn is looked at again: whoever recorded that may have come no further.
        """
        found: dict[Key, ExportRecord] = {}
        for key in keys:
            before = self.known.get(key)
            if before is not None:
                found[key] = replace(before, state=RELEASED, reason="", time=records.now())
        self._make(found)
        return list(found.values())

    # -- What both come to

    def _make(self, changed: dict[Key, ExportRecord]) -> None:
        """Record *changed*, and make files and server agree with what is recorded then."""
        before = dict(self.known)
        self.known.update({key: records.timed(one, before.get(key)) for key, one in changed.items()})
        groups = {(one.path, one.address) for one in changed.values() if one.path}
        earlier = [before[key] for key in changed if key in before]
        groups |= {(one.path, one.address) for one in earlier if one.path}
        self._write()
        live = _live()
        for path, address in sorted(groups):
            group = [one for one in self.known.values() if (one.path, one.address) == (path, address)]
            exported = sorted((one for one in group if one.state == EXPORTED), key=lambda one: one.key)
            try:
                self._files(group, exported)
                if exported:
                    self._live(_merged(exported), live)
                else:
                    self._gone(path, address, live)
            except (StowageError, OSError) as error:
                for one in exported or group:
                    if one.key in changed:
                        self.known[one.key] = replace(one, state=FAILED, reason=one_line(error), time=records.now())
        self._write()
        for key in changed:
            changed[key] = self.known[key]

    def _files(self, group: Sequence[ExportRecord], exported: Sequence[ExportRecord]) -> None:
        for one in group:
            path = exports.file_path(*one.key)
            content: bytes | None = None
            if one.state == EXPORTED:
                lead = exported[0]
                content = _merged(exported).content if one is lead else _shares(one, lead)
            found = own_files.read_ours(path)
            actual = None if found is None else found[0]
            if self.differences.note(f"file {path}", own_files.in_lines(content), own_files.in_lines(actual)):
                if content is None:
                    self.differences.do(f"remove {path}", partial(json_records.remove, path))
                else:
                    self.differences.do(f"write {path}", partial(json_records.write_bytes, path, content))

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

    def _gone(self, path: str, address: str, live: Sequence[exports.Live]) -> None:
        have = exports.find(live, address, path)
        if not self.differences.note(f"export of {path} to {address}", None, have and sorted(have.options)):
            return
        self.differences.do(
            f"withdraw {path} from {address}", partial(self._exportfs, "-u", exports.argument(address, path))
        )
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


def _shares(one: ExportRecord, lead: ExportRecord) -> bytes:
    shown = exports.shown(*one.key)
    same = os.path.basename(exports.file_path(*lead.key))
    return f"{HEADER}\n# {shown}: the same as in {same}\n".encode("ascii")


def _failed(one: Asked, reason: str, before: ExportRecord | None) -> ExportRecord:
    if before is not None and before.state != RELEASED and before.path:
        return replace(before, state=FAILED, reason=reason, time=records.now())  # something of it may be there
    export = Export(*one.key, one.address, "", one.read_only, "", "", one.squash, one.anonymous_uid, one.anonymous_gid)
    return records.of_export(export, FAILED, reason)


def _live() -> list[exports.Live]:
    if networks.nfs().tools["exportfs"] is None:
        return []  # the server is gone from this host, and nobody reads the table that it may have left
    try:
        with open(exports.ETAB, "rb") as stream:
            return exports.parse_etab(stream.read())
    except FileNotFoundError:
        return []
