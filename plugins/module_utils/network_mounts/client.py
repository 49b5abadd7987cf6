# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making and releasing the network mounts of this host: what is mounted is believed only as the kernel shows it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .. import mounts as mount_table
from .. import own_files
from .. import records as json_records
from ..answers import check_answers
from ..differences import Differences
from ..errors import Refusal, StowageError
from ..facts import networks
from ..mounts import Mount
from ..paths import check_path
from ..places import Places
from ..runs import pins
from ..services.systemd_units import RunCommand, Systemctl, mount_unit
from ..syscalls import unmount_forced
from . import at_boot, mount_units, mountstats, records
from .exports import check_address
from .mount_units import RDMA, TCP, MountUnit
from .records import BOUND, FAILED, PENDING, RELEASED, RELEASING, WITHDRAWN, MountRecord
from .server import PACKAGES, TOOLS

FELL_BACK = "mounted over TCP (RDMA did not work)"
_JOURNAL_PATIENCE_S = 2.0


@dataclass(frozen=True)
class Asked:
    """A network mount as a run needs it."""

    workspace: str
    drive: str
    source: int
    node: str
    address: str
    export: str
    read_only: bool
    transport: str
    """The drive's: ``Auto``, ``RDMA`` or ``TCP``."""
    rdma: bool
    """Whether both machines are on one RDMA network."""
    not_exported: str = ""
    """Why the other machine does not export it; empty when it does."""
    no_rdma: str = ""
    """Why RDMA cannot be had although both machines have it; empty when it can, or is not wanted."""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.workspace, self.drive, self.source

    @property
    def shown(self) -> str:
        return f"drive {self.workspace}/{self.drive} source {self.source} from {self.node}"

    @property
    def protos(self) -> tuple[str, ...]:
        """What may be mounted, the best first."""
        if not self.rdma:
            return (TCP,)
        return (RDMA,) if self.transport == "RDMA" else (RDMA, TCP)

    def unit(self, places: Places, proto: str) -> MountUnit:
        point = mount_units.mount_point(places, *self.key)
        return MountUnit(point, self.address, self.export, proto, self.read_only, f"Stowage: {self.shown}")

    def record(self, places: Places, state: str, reason: str = "", proto: str = "", message: str = "") -> MountRecord:
        point = mount_units.mount_point(places, *self.key)
        return MountRecord(
            *self.key,
            self.node,
            state,
            reason,
            records.now(),
            point,
            self.address,
            self.export,
            self.transport,
            proto,
            self.read_only,
            message,
        )


def read_asked(value: Mapping[str, Any], host: str) -> Asked:
    """Return one entry of the module's list, checked."""
    name = f"drive {value['workspace']}/{value['drive']}"
    if value["node"] == host:
        raise Refusal(name, f"source {value['source']} is on this machine", "use its path")
    for required in ("node", "address", "export"):
        if not value[required]:
            raise Refusal(name, f"{required} is required when state is present")
    if value["transport"] == "RDMA" and not value["rdma"]:
        raise Refusal(name, "its transport is RDMA, and rdma is false", "say rdma: true, or transport: Auto")
    return Asked(
        *records.read_key(value),
        value["node"],
        check_address(value["address"], f"{name}: address"),
        check_path(value["export"], f"{name}: export"),
        value["mode"] == pins.READ_ONLY,
        value["transport"],
        value["rdma"],
        value["not_exported"],
        value["no_rdma"],
    )


@dataclass
class Client:
    """One call: the network mounts of this host, made or released."""

    places: Places
    systemctl: Systemctl
    run_command: RunCommand
    journalctl: str
    differences: Differences
    known: dict[tuple[str, str, int], MountRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = {one.key: one for one in records.load_mounts(self.places)}
        own_files.read_ours(at_boot.path())  # refuses somebody else's before anything is changed

    # -- Making

    def make(self, asked: Sequence[Asked]) -> list[MountRecord]:
        """Mount what is asked for, and return what came of each; what cannot be mounted is ``Failed`` and says why."""
        if not networks.nfs().can_mount:
            raise Refusal("NFS client", f"this host has no {TOOLS['client']}", f"install {PACKAGES['client']}")
        found: dict[tuple[str, str, int], MountRecord] = {}
        missing: list[Asked] = []
        table = mount_table.read()
        for one in asked:
            record = self._there(one, table)
            if record is not None:
                found[one.key] = record
            elif one.not_exported:
                found[one.key] = one.record(self.places, PENDING, one.not_exported)
            else:
                missing.append(one)
        found.update(self._mount(missing))
        self._write(found.values())
        self._keep_at_boot()
        return [self.known[one.key] for one in asked]

    def _there(self, one: Asked, table: Sequence[Mount]) -> MountRecord | None:
        """Return the record of a network mount that something is mounted for already; None when nothing is."""
        point = mount_units.mount_point(self.places, *one.key)
        there = mount_units.at(point, table)
        if not there:
            return None
        before = self.known.get(one.key)
        if before is not None and not before.read_only:
            one = replace(one, read_only=False)  # a run writes to it; whoever reads only has it read-only
        proto = mount_units.mounted_proto(there[-1])
        unit = one.unit(self.places, proto if proto in one.protos else one.protos[0])
        drift = unit.drift(there[-1])
        if len(there) > 1:
            drift.append(f"{len(there)} mounts lie over each other there")
        if drift == [mount_units.IS_READ_ONLY]:
            return self._make_writable(one, unit)
        if drift:
            reason = f"{unit.point}: {'; '.join(drift)}; release it, or unmount it by hand"
            return one.record(self.places, FAILED, reason)
        self._keep_unit(unit)
        if before is not None and before.state == BOUND and before.proto == proto:
            return replace(one.record(self.places, BOUND, "", proto, before.message), time=before.time)
        return one.record(self.places, BOUND, "", proto)

    def _make_writable(self, one: Asked, unit: MountUnit) -> MountRecord:
        self._keep_unit(unit)
        self.differences.note(f"{unit.point} is writable", True, False)
        self.differences.do(f"remount {unit.point} read-write", partial(self._remount, unit))
        return one.record(self.places, BOUND, "", unit.proto)

    def _remount(self, unit: MountUnit) -> None:
        code, out, err = self.run_command(["mount", "-o", "remount,rw", unit.point])
        if code:
            raise StowageError(f"{unit.point}: cannot be made writable: {' '.join((err or out).split())}")

    def _mount(self, asked: Sequence[Asked]) -> dict[tuple[str, str, int], MountRecord]:
        before = self.differences.mark()
        had_units = any(os.path.lexists(one.unit(self.places, one.protos[0]).path) for one in asked)
        found: dict[tuple[str, str, int], MountRecord] = {}
        failed = {one.key: one.no_rdma for one in asked if one.no_rdma}
        for proto in (RDMA, TCP):
            trying = [one for one in asked if proto in one.protos and one.key not in found]
            if proto == RDMA:
                trying = [one for one in trying if not one.no_rdma]
            for key, why in self._try(trying, proto).items():
                one = next(other for other in trying if other.key == key)
                if not why:
                    message = f"{FELL_BACK}: {failed[key]}" if key in failed else ""
                    found[key] = one.record(self.places, BOUND, "", proto, message)
                else:
                    failed[key] = why
        for one in asked:
            if one.key not in found:
                over = "RDMA" if one.protos == (RDMA,) else "TCP"
                found[one.key] = one.record(self.places, FAILED, f"could not be mounted over {over}: {failed[one.key]}")
                self.remove_unit(mount_units.unit_path(found[one.key].path))
        if not had_units and all(one.state == FAILED for one in found.values()):
            self.differences.go_back(before)  # each unit that was tried is gone again
        return found

    def _try(self, asked: Sequence[Asked], proto: str) -> dict[tuple[str, str, int], str]:
        """Mount all of *asked* by *proto* at once, and return why each is not mounted then; empty when it is."""
        units = {one.key: one.unit(self.places, proto) for one in asked}
        if not units:
            return {}
        for unit in units.values():
            self.differences.note(f"mount {unit.point}", f"{unit.what} over {proto}", None)
            self._keep_unit(unit, reload=False)
        names = [unit.name for unit in units.values()]
        self.differences.do("systemctl daemon-reload", self.systemctl.daemon_reload)
        self.differences.do(
            f"mount {', '.join(unit.what for unit in units.values())} over {proto}", partial(self._start, names)
        )
        if self.differences.check_mode:
            return dict.fromkeys(units, "")
        return {key: self._proved(unit) for key, unit in units.items()}

    def _start(self, names: Sequence[str]) -> None:
        # In parallel, each bounded by its unit; what failed is seen by what is mounted then.
        self.run_command(["systemctl", "reset-failed", "--", *names])
        self.run_command(["systemctl", "start", "--", *names])

    def _proved(self, unit: MountUnit) -> str:
        """Return why *unit* is not mounted as it says, with mount's own words, or nothing; what is wrong is unmounted.

        Over RDMA only when the transport that the kernel counts is RDMA: options say what was asked for.
        """
        there = mount_units.at(unit.point, mount_table.read())
        if not there:
            return self._why(unit)
        wrong = unit.drift(there[-1])
        if not wrong and unit.proto == RDMA:
            counted = mountstats.at(unit.point, mountstats.read([unit.point]))
            if counted is None or not counted.is_rdma:
                wrong = [f"its transport is {counted.protocol if counted is not None else 'unknown'}, not rdma"]
        if not wrong:
            return ""
        self._unmount(unit)
        return f"what was mounted is wrong: {'; '.join(wrong)}"

    def _why(self, unit: MountUnit) -> str:
        """Return mount's own message."""
        shown = self.systemctl.show([unit.name], ["InvocationID", "Result"])[unit.name]
        if shown["Result"] == "timeout":
            return f"no answer within {mount_units.MOUNT_LIMIT_S} s"
        asked = [f"_SYSTEMD_INVOCATION_ID={shown['InvocationID']}", "SYSLOG_IDENTIFIER=mount"]
        deadline = time.monotonic() + _JOURNAL_PATIENCE_S
        while True:
            _code, out, _err = self.run_command([self.journalctl, "--quiet", "--no-pager", "--output=cat", *asked])
            lines = [" ".join(line.split()) for line in out.splitlines() if line.strip()]
            if lines:
                return "; ".join(dict.fromkeys(lines))
            if time.monotonic() > deadline:
                return f"mount failed ({shown['Result']}); see systemctl status {unit.name}"
            time.sleep(0.1)

    # -- Units

    def _keep_unit(self, unit: MountUnit, reload: bool = True) -> None:
        """Have the unit as it should be."""
        found = own_files.read_ours(unit.path)
        content = None if found is None else found[0]
        stale = self.differences.note(
            f"unit {unit.path}", own_files.in_lines(unit.content), own_files.in_lines(content)
        )
        if stale:
            self.differences.do(f"write {unit.path}", lambda: json_records.write_bytes(unit.path, unit.content))
        if stale and reload:
            self.differences.do("systemctl daemon-reload", self.systemctl.daemon_reload)

    def remove_unit(self, path: str) -> None:
        """Remove the unit at *path* if it is ours."""
        found = own_files.read_ours(path)
        if found is None:
            return

        def remove() -> None:
            json_records.remove(path)
            self.systemctl.daemon_reload()

        self.differences.note(f"unit {path}", None, own_files.in_lines(found[0]))
        self.differences.do(f"remove {path}", remove)

    def _keep_at_boot(self) -> None:
        lasting = [one for one in self.known.values() if one.state in (BOUND, RELEASING)]
        at_boot.keep([mount_unit(one.path) for one in lasting], self.systemctl, self.differences)

    # -- Releasing

    def release(self, keys: Iterable[tuple[str, str, int]] | None = None) -> list[MountRecord]:
        """Unmount the network mounts that no run uses; return what became of each that is not over and done with.

        Those that were unmounted by earlier calls are among them until their exports are known to be withdrawn.

        :param keys: which; None for all
        :raises RecordError: when a lease cannot be read: then nobody knows what it holds
        """
        used = {(pin.workspace, pin.drive, pin.source): pin.held_by for pin in pins.all_pins(self.places)}
        wanted = None if keys is None else set(keys)
        changed = []
        for key, record in sorted(self.known.items()):
            if (wanted is not None and key not in wanted) or record.state == RELEASED:
                continue
            if key in used:
                continue
            changed.append(self._release(record))
        self._write(changed)
        self._keep_at_boot()
        left = [one for _key, one in sorted(self.known.items()) if wanted is None or one.key in wanted]
        return [one for one in left if one.reason != WITHDRAWN]

    def note_withdrawn(self, keys: Iterable[tuple[str, str, int]]) -> list[MountRecord]:
        """Record that the other machines have withdrawn the exports of what is unmounted here."""
        found = [self.known[key] for key in keys if key in self.known and self.known[key].state == RELEASED]
        changed = [one for one in found if one.reason != WITHDRAWN]
        for one in changed:
            self.differences.note(f"export of drive {one.workspace}/{one.drive} from {one.node}", WITHDRAWN, "")
        self._write(replace(one, reason=WITHDRAWN, time=records.now()) for one in changed)
        return [self.known[one.key] for one in found]

    def _release(self, record: MountRecord) -> MountRecord:
        unit = MountUnit(record.path, record.server_address, record.export, record.proto or TCP, record.read_only, "")
        there = mount_units.at(record.path, mount_table.read())
        now = records.now()
        if there and not self.differences.check_mode:
            if record.state != RELEASING:
                self._write([replace(record, state=RELEASING, reason="", time=now)])
            self._unmount(unit)
            if mount_units.at(record.path, mount_table.read()):
                reason = f"{record.path} cannot be unmounted: something uses it; see fuser -vm {record.path}"
                return replace(record, state=RELEASING, reason=reason, time=now)
        if there:
            self.differences.note(f"mount {record.path}", None, there[-1].source)
            self.differences.act(f"unmount {record.path}")
        self.remove_unit(unit.path)
        if os.path.isdir(record.path) and not self.differences.check_mode:
            os.rmdir(record.path)
        return replace(record, state=RELEASED, reason="", message="", time=now)

    def _unmount(self, unit: MountUnit) -> None:
        """Unmount, by force when the server does not answer: what waits for it then gets an error."""
        code, _out, _err = self.run_command(["systemctl", "stop", "--", unit.name])
        if mount_units.at(unit.point, mount_table.read()) and not answers(unit.point):
            unmount_forced(unit.point)

    # -- Records

    def _write(self, changed: Iterable[MountRecord]) -> None:
        before = dict(self.known)
        for one in changed:
            self.known[one.key] = records.timed(one, before.get(one.key))
        if self.differences.check_mode or before == self.known:
            return
        records.write_mounts(self.places, self.known.values())


def answers(path: str) -> bool:
    """Return whether the filesystem at *path* answers, within a bounded time."""
    try:
        check_answers([("", path)])
    except StowageError:
        return False
    return True
