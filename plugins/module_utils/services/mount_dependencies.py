# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tying services to the mounts of their paths by drop-ins: what is asked is refused first, and only then written."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .. import mounts, own_files, records
from ..differences import Differences
from ..errors import Refusal, StowageError
from ..paths import check_path, resolve
from . import mount_points, systemd_units
from .lasting_mounts import LastingMounts
from .systemd_units import Properties, Systemctl

_UNITS = "/etc/systemd/system"
_DROP_IN = "50-stowage-mounts.conf"
_PROPERTIES = ("ActiveState", "DropInPaths", "FragmentPath", "NeedDaemonReload", "Where")


@dataclass(frozen=True)
class Dependency:
    """A service, the resolved paths that it needs, and the mounts that cover them."""

    service: str
    present: bool
    paths: tuple[str, ...]
    mount_points: tuple[str, ...] = ()

    @property
    def drop_in(self) -> str:
        return f"{_UNITS}/{self.service}.d/{_DROP_IN}"

    @property
    def content(self) -> bytes | None:
        if not self.paths:
            return None
        return systemd_units.render_mount_drop_in(self.paths, self.mount_points)

    def to_json(self) -> dict[str, Any]:
        return {
            "service": self.service,
            "drop_in": self.drop_in,
            "paths": list(self.paths),
            "mount_points": list(self.mount_points),
        }


def find_drop_ins() -> list[str]:
    """Return the drop-ins on this host that have the name of ours."""
    return sorted(glob.glob(f"{_UNITS}/*.d/{_DROP_IN}"))


def parse(items: Iterable[Mapping[str, Any]]) -> list[Dependency]:
    """Return what was asked for, with symlinks resolved."""
    dependencies = []
    for item in items:
        service = systemd_units.service_name(item["service"])
        present = item["state"] == "present"
        paths = [resolve(check_path(path, service)) for path in item["paths"]]
        if present and not paths:
            raise Refusal(service, "needs at least one path", "name its paths, or set state to absent")
        dependencies.append(Dependency(service, present, tuple(dict.fromkeys(paths)) if present else ()))
    return dependencies


@dataclass(frozen=True)
class Tying:
    """One call: how services are to be tied, and how the host is."""

    systemctl: Systemctl
    differences: Differences
    allow_root: bool = False
    immutable: bool = False
    """Whether the directory underneath each mount is to be immutable."""
    complete: bool = False
    """Whether all services that are to be tied are named."""
    table: Sequence[mounts.Mount] = field(default_factory=mounts.read)
    lasting: LastingMounts = field(default_factory=LastingMounts.read)
    warnings: list[str] = field(default_factory=list)

    def tie(self, asked: Sequence[Dependency]) -> list[Dependency]:
        """Tie the services, and return what they are tied to."""
        dependencies, units = self._plan(asked)
        if self.complete:
            self._warn_of_others({dependency.drop_in for dependency in dependencies})
        differences = self.differences
        points = dict.fromkeys(point for dependency in dependencies for point in dependency.mount_points)
        to_protect = [point for point in points if self.immutable and self._note_immutable(point)]
        differing = []
        stale = False
        for dependency in dependencies:
            found = own_files.read_ours(dependency.drop_in, dependency.service)
            wanted, actual = dependency.content, None if found is None else found[0]
            name = f"drop-in {dependency.drop_in}"
            if differences.note(name, own_files.in_lines(wanted), own_files.in_lines(actual)):
                differing.append(dependency)
            elif not is_loaded(dependency, units[dependency.service]):
                # A run that failed between the file and the reload has left this; it is not in effect yet.
                stale = differences.note(f"loaded {dependency.drop_in}", wanted is not None, wanted is None)

        for point in to_protect:
            work = partial(mount_points.make_immutable, point, self.table)
            differences.do(f"make the directory underneath {point} immutable", work)
        for dependency in differing:
            verb = "remove" if dependency.content is None else "write"
            differences.do(f"{verb} {dependency.drop_in}", partial(_put, dependency))
        if differing or stale:
            differences.do("systemctl daemon-reload", self.systemctl.daemon_reload)
            if not differences.check_mode:
                self._verify(dependencies)
        return dependencies

    def _warn_of_others(self, named: Collection[str]) -> None:
        for path in find_drop_ins():
            if path not in named and own_files.is_there(path):
                service = os.path.basename(os.path.dirname(path))[: -len(".d")]
                rule = f"is not named any more and still tied to its mounts by {path}"
                self.warnings.append(f"{service}: {rule}; name it with state absent to untie it")

    def _note_immutable(self, point: str) -> bool:
        immutable = mount_points.is_immutable(point, self.table)
        return self.differences.note(f"immutable underneath {point}", True, immutable)

    def _plan(self, asked: Sequence[Dependency]) -> tuple[list[Dependency], dict[str, Properties]]:
        """Return the dependencies with everything known about them, and the units as systemd has them."""
        names = [dependency.service for dependency in asked]
        for dependency in asked:
            for path in dependency.paths:
                names.extend(systemd_units.mount_units_above(path).values())
        units = self.systemctl.show(names, _PROPERTIES)
        units.update({unit["Id"]: unit for unit in list(units.values())})
        dependencies = [self._covered(self._canonical(dependency, units), units) for dependency in asked]
        services = [dependency.service for dependency in dependencies]
        for service in services:
            if services.count(service) > 1:
                raise Refusal(service, "is named more than once", "put its paths into one entry")
        return dependencies, units

    def _canonical(self, dependency: Dependency, units: Mapping[str, Properties]) -> Dependency:
        """Return *dependency* with the service's own name instead of an alias; refuse one that cannot be tied."""
        unit = units[dependency.service]
        state = unit["LoadState"]
        if dependency.present and state == "not-found":
            rule = "there is no such service on this host"
            if not self.differences.check_mode:
                raise Refusal(dependency.service, rule, "install it first")
            self.warnings.append(f"{dependency.service}: {rule}; taken to be installed before a run")
        elif dependency.present and state != "loaded":
            raise Refusal(dependency.service, f"systemd has it as {state}", "see systemctl status")
        return replace(dependency, service=unit["Id"] if state == "loaded" else dependency.service)

    def _covered(self, dependency: Dependency, units: Mapping[str, Properties]) -> Dependency:
        """Return *dependency* with the paths that need a mount, and the mount points that cover them."""
        covered = {path: self._mount_point(dependency.service, path, units) for path in dependency.paths}
        kept = {path: point for path, point in covered.items() if point is not None}
        points = dict.fromkeys(point for point in kept.values() if point)
        return replace(dependency, paths=tuple(kept), mount_points=tuple(points))

    def _mount_point(self, service: str, path: str, units: Mapping[str, Properties]) -> str | None:
        """Return the mount point that covers *path*: empty where it is yet to be made, None where none is needed.

        :raises Refusal: when no lasting mount unit covers it
        """
        mounted = mounts.of_path(path, self.table).point
        lasting = self._lasting_point(service, path, units)
        if lasting == mounted == "/":
            if self.allow_root:
                return None
            if self.differences.check_mode and not os.path.lexists(path):
                self.warnings.append(f"{service}: {path} does not exist; taken to be mounted before a run")
                return ""
            raise Refusal(
                service,
                f"{path} is on the root filesystem and no mount unit covers it: systemd would silently do nothing",
                "mount its disk by fstab or a mount unit, or set allow_root",
            )
        if len(mounted) > len(lasting):
            raise Refusal(
                service,
                f"{path} is on the mount at {mounted}, which has no unit and would not come back at the next boot",
                "add it to fstab or give it a mount unit, then daemon-reload",
            )
        if len(lasting) > len(mounted):
            if units[service]["ActiveState"] == "active":
                raise Refusal(
                    service,
                    f"it is running and nothing is mounted at {lasting}: systemd would stop it at once",
                    "mount that, or stop the service first",
                )
            rule = f"nothing is mounted at {lasting} now"
            self.warnings.append(f"{service}: {rule}; it starts only once that is mounted")
        return lasting

    def _lasting_point(self, service: str, path: str, units: Mapping[str, Properties]) -> str:
        """Return the deepest mount point at or above *path* that the host is to have, mounted or not."""
        for point, by in self.lasting.above(path):
            unit = systemd_units.mount_unit(point)
            if units[unit]["LoadState"] != "loaded" or not units[unit]["FragmentPath"]:
                rule = f"{path} is on the mount of {by or '/etc/fstab'}, and systemd does not know {unit}"
                raise Refusal(service, rule, "systemctl daemon-reload")
            return point
        return "/"

    def _verify(self, dependencies: Sequence[Dependency]) -> None:
        """Fail when systemd does not use what was written: what silently does not act is worse than nothing."""
        units = self.systemctl.show([dependency.service for dependency in dependencies], _PROPERTIES)
        for dependency in dependencies:
            if not is_loaded(dependency, units[dependency.service]):
                rule = f"systemd does not use {dependency.drop_in}"
                raise StowageError(f"{dependency.service}: {rule}; see systemctl status")


def is_loaded(dependency: Dependency, unit: Properties) -> bool:
    """Return whether systemd has the drop-in, or its absence, in effect."""
    if unit["LoadState"] != "loaded":
        return True
    there = dependency.drop_in in shlex.split(unit["DropInPaths"])
    return there == (dependency.content is not None) and not (there and unit["NeedDaemonReload"] == "yes")


def _put(dependency: Dependency) -> None:
    """Write the drop-in, or remove it and the directory that was made for it."""
    if dependency.content is not None:
        records.write_bytes(dependency.drop_in, dependency.content)
        return
    records.remove(dependency.drop_in)
    directory = os.path.dirname(dependency.drop_in)
    if not os.listdir(directory):
        os.rmdir(directory)
