# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making the network mounts of this host: what is mounted is believed only as the kernel shows it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .. import mounts as mount_table
from .. import own_files
from ..answers import answering
from ..errors import Refusal, StowageError, one_line
from ..facts import networks
from ..mounts import Mount
from . import mount_units, mountstats, records
from .asked import Asked, Key
from .client import Client
from .mount_units import RDMA, TCP, MountUnit
from .records import BOUND, EXPORTED, FAILED, PENDING, RELEASED, RELEASING, RESERVED_S, MountRecord
from .server import PACKAGES, TOOLS

FELL_BACK = "mounted over TCP (RDMA did not work)"
_RELEASE = "release its runs first"
_JOURNAL_PATIENCE_S = 2.0


@dataclass
class Making:
    """One call: network mounts made, each recorded before it is made, so that whatever ends it half way is undone."""

    client: Client
    run: str = ""
    """The run that is prepared: nobody else's release takes away what it is about to use."""

    def expect(self, asked: Iterable[Asked]) -> list[MountRecord]:
        """Record what is to be mounted, before it is exported; what is further stays as it is."""
        self.client.adopt()
        found = []
        for one in asked:
            before = self.client.known.get(one.key)
            further = before is not None and before.state != RELEASED
            found.append(self._kept(one) if further else self._record(one, PENDING))
        self.client.write(found)
        return [self.client.known[one.key] for one in found]

    def make(self, asked: Sequence[Asked]) -> list[MountRecord]:
        """Mount what is asked for, and return what came of each; what cannot be mounted is ``Failed`` and says why.

        So is what is mounted already and is not what is asked for; its record stays then, for it is still there.
        """
        if not networks.nfs().can_mount:
            raise Refusal("NFS client", f"this host has no {TOOLS['client']}", f"install {PACKAGES['client']}")
        self.client.adopt()
        found: dict[Key, MountRecord] = {}
        refused: dict[Key, MountRecord] = {}
        missing: list[Asked] = []
        table = mount_table.read()
        for one in asked:
            there = mount_units.at(one.point(self.client.places), table)
            if not there and not one.not_exported:
                missing.append(one)
                continue
            try:
                found[one.key] = self._there(one, there) if there else self._record(one, PENDING, one.not_exported)
            except (StowageError, OSError) as error:
                failed = self._record(one, FAILED, one_line(error))
                own = self._own(one, there[-1])
                found[one.key] = self._kept(one) if own else failed
                refused.update({one.key: failed} if own else {})
        self.client.write(self._record(one, EXPORTED) for one in missing)
        found.update(self._mount(missing))
        self.client.write(found.values())
        self.client.keep_at_boot()
        return [refused.get(one.key) or self.client.known[one.key] for one in asked]

    # -- Records

    def _record(self, one: Asked, state: str, reason: str = "", proto: str = "", message: str = "") -> MountRecord:
        kept = self._kept(one)
        record = one.record(self.client.places, state, reason, proto, message)
        return replace(record, serial=kept.serial, reserved=kept.reserved)

    def _kept(self, one: Asked) -> MountRecord:
        """Return the record that there is, or a new one, with the latest export's serial, and kept for the run."""
        before = self.client.known.get(one.key) or one.record(self.client.places, PENDING)
        now = records.now()
        reserved = {**before.reservations(now), **({self.run: now + RESERVED_S} if self.run else {})}
        return replace(before, serial=one.serial or before.serial, reserved=reserved)

    def _own(self, one: Asked, mount: Mount) -> MountRecord | None:
        """Return the record of *mount* when that was made and proved; None when it is of something else."""
        before = self.client.known.get(one.key)
        if before is None or before.state not in (BOUND, RELEASING):
            return None
        return before if (mount.fstype, mount.source) == (mount_units.FSTYPE, before.device) else None

    # -- What is there

    def _there(self, one: Asked, there: Sequence[Mount]) -> MountRecord:
        """Return the record of a network mount that something is mounted for already.

        What was made before stays as it was made, whatever address would be taken now.

        :raises StowageError: when it is not what is asked for
        """
        before, own = self.client.known.get(one.key), self._own(one, there[-1])
        proto = mount_units.mounted_proto(there[-1])
        protos: tuple[str, ...] = one.protos
        if own is not None:
            self._check_same(one, own, proto)
            one, protos = replace(one, address=own.server_address, export=own.export), (proto or own.proto,)
        elif one.not_exported:
            return self._record(one, PENDING, one.not_exported)
        if before is not None and not before.read_only:
            one = replace(one, read_only=False)  # a run writes to it; whoever reads only has it read-only
        unit = one.unit(self.client.places, proto if proto in protos else protos[0])
        drift = unit.drift(there[-1])
        if len(there) > 1:
            drift.append(f"{len(there)} mounts lie over each other there")
        if own is None and not drift:
            drift = _unproved(unit)
        if drift == [mount_units.IS_READ_ONLY]:
            self._make_writable(unit)
        elif drift:
            raise Refusal(unit.point, "; ".join(drift), "release it, or unmount it by hand")
        self.client.keep_unit(unit)
        return self._record(one, BOUND, "", unit.proto, own.message if own is not None else "")

    def _check_same(self, one: Asked, own: MountRecord, proto: str) -> None:
        if one.node != own.node:
            raise Refusal(own.path, f"it is mounted from {own.node} still", _RELEASE)
        if one.export and one.export != own.export:
            raise Refusal(own.path, f"another directory is mounted there still, {own.device}", _RELEASE)
        if one.transport != "Auto" and proto != one.transport.lower():
            raise Refusal(own.path, f"its transport is {one.transport}, and it is mounted over {proto} still", _RELEASE)

    def _make_writable(self, unit: MountUnit) -> None:
        if not self.client.differences.check_mode and not answering([unit.point]):
            rule = "it cannot be made writable, because its server does not answer"
            raise Refusal(unit.point, rule, "see whether that is up")
        self.client.differences.do(f"remount {unit.point} read-write", partial(self._remount, unit))
        self.client.differences.note(f"{unit.point} is writable", True, False)

    def _remount(self, unit: MountUnit) -> None:
        code, out, err = self.client.run_command(["mount", "-o", "remount,rw", unit.point])
        if code:
            raise StowageError(f"{unit.point}: cannot be made writable: {' '.join((err or out).split())}")

    # -- What is not

    def _mount(self, asked: Sequence[Asked]) -> dict[Key, MountRecord]:
        differences = self.client.differences
        before = differences.mark()
        had_units = any(os.path.lexists(one.unit(self.client.places, TCP).path) for one in asked)
        found: dict[Key, MountRecord] = {}
        failed = {one.key: one.no_rdma for one in asked if one.no_rdma}
        for proto in (RDMA, TCP):
            trying = [one for one in asked if proto in one.protos and one.key not in found]
            if proto == RDMA:
                trying = [one for one in trying if not one.no_rdma]
            why = self._try(trying, proto)
            for one in trying:
                if why[one.key]:
                    failed[one.key] = why[one.key]
                    continue
                message = f"{FELL_BACK}: {failed[one.key]}" if one.key in failed else ""
                found[one.key] = self._record(one, BOUND, "", proto, message)
        left = [one for one in asked if one.key not in found]
        for one in left:
            over = "RDMA" if one.protos == (RDMA,) else "TCP"
            reason = f"could not be mounted over {over}: {failed[one.key]}"
            found[one.key] = self._record(one, FAILED, reason)
        self._clean_up(left)
        if not had_units and len(left) == len(asked):
            differences.go_back(before)  # each unit that was tried is gone again
        return found

    def _try(self, asked: Sequence[Asked], proto: str) -> dict[Key, str]:
        """Mount all of *asked* by *proto* at once, and return why each is not mounted then; empty when it is."""
        differences = self.client.differences
        units: dict[Key, MountUnit] = {}
        why = dict.fromkeys((one.key for one in asked), "")
        for one in asked:
            unit = one.unit(self.client.places, proto)
            try:
                self.client.keep_unit(unit, reload=False)
            except (StowageError, OSError) as error:
                why[one.key] = one_line(error)
                continue
            differences.note(f"mount {unit.point}", f"{unit.what} over {proto}", None)
            units[one.key] = unit
        if not units:
            return why
        names = [unit.name for unit in units.values()]
        differences.do("systemctl daemon-reload", self.client.systemctl.daemon_reload)
        differences.do(
            f"mount {', '.join(unit.what for unit in units.values())} over {proto}", partial(self._start, names)
        )
        if not differences.check_mode:
            why.update({key: self._proved(unit) for key, unit in units.items()})
        return why

    def _start(self, names: Sequence[str]) -> None:
        # In parallel, each bounded by its unit; what failed is seen by what is mounted then.
        self.client.run_command(["systemctl", "reset-failed", "--", *names])
        self.client.run_command(["systemctl", "start", "--", *names])

    def _proved(self, unit: MountUnit) -> str:
        """Return why *unit* is not mounted as it says, in mount's own words, or nothing; what is wrong is unmounted."""
        there = mount_units.at(unit.point, mount_table.read())
        if not there:
            return self._why(unit)
        wrong = unit.drift(there[-1]) or _unproved(unit)
        if not wrong:
            return ""
        left = self.client.unmount([unit.point])
        return "; ".join([f"what was mounted is wrong: {'; '.join(wrong)}", *left.values()])

    def _why(self, unit: MountUnit) -> str:
        """Return mount's own message."""
        shown = self.client.systemctl.show([unit.name], ["InvocationID", "Result"])[unit.name]
        if shown["Result"] == "timeout":
            return f"no answer within {mount_units.MOUNT_LIMIT_S} s"
        journalctl = [self.client.journalctl, "--quiet", "--no-pager", "--output=cat"]
        asked = [f"_SYSTEMD_INVOCATION_ID={shown['InvocationID']}", "SYSLOG_IDENTIFIER=mount"]
        deadline = time.monotonic() + _JOURNAL_PATIENCE_S
        while True:
            _code, out, _err = self.client.run_command([*journalctl, *asked])
            lines = [" ".join(line.split()) for line in out.splitlines() if line.strip()]
            if lines:
                return "; ".join(dict.fromkeys(lines))
            if time.monotonic() > deadline:
                return f"mount failed ({shown['Result']}); see systemctl status {unit.name}"
            time.sleep(0.1)

    def _clean_up(self, failed: Iterable[Asked]) -> None:
        """Remove the units of what could not be mounted, but no one's that is not ours."""
        removed = False
        for one in failed:
            path = mount_units.unit_path(one.point(self.client.places))
            if own_files.is_there(path):
                removed = self.client.remove_unit(path, reload=False) or removed
        if removed:
            self.client.differences.do("systemctl daemon-reload", self.client.systemctl.daemon_reload)


def _unproved(unit: MountUnit) -> list[str]:
    """Return why it is not proved that *unit* goes over RDMA, where it says so.

    The transport that the kernel counts proves it: options only say what was asked for.
    """
    if unit.proto != RDMA:
        return []
    counted = mountstats.at(unit.point, mountstats.read([unit.point]))
    if counted is not None and counted.is_rdma:
        return []
    return [f"its transport is {(counted.protocol if counted is not None else '') or 'unknown'}, not rdma"]
