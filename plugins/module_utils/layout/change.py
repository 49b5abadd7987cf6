# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Laying out a host's storage: what is wanted is compared and refused first, and only then made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .. import accounts, claims, mounts, own_files, records
from ..differences import Differences
from ..errors import Refusal
from ..owner import Registry
from ..paths import check_path
from ..places import Places
from ..relocation import recorded as relocations
from ..renderings import framework_caches
from ..services.lasting_mounts import LastingMounts
from ..services.restarts import Restarts
from ..services.systemd_units import Systemctl, unit_name
from . import directories as layout_directories
from . import environment_file
from . import record as layout_record
from .access import check_users
from .directories import Wanted
from .found import MountRule, Place, check_same_filesystem, find_all
from .rules import BY_NAME, NAMES, Layout, check_prefix, check_protected, moved

_OF_OTHERS = {
    "runs": "each may have a run count for any user",
    "reflow": "a directory there counts for its own owner, or for nobody, and not for whom it is named after",
}


@dataclass(frozen=True)
class Request:
    """What an operator asks for beside the paths of the layout."""

    owner: str | None = None
    group: str | None = None
    mode: str | None = None
    users: Sequence[str] = ()
    environment_file: str = "/etc/stowage/stowage.env"
    environment_prefix: str = "STOWAGE_"
    framework_environment_file: str | None = None
    """Where the variables that name the framework caches are written, if anywhere."""
    container_environment_file: str | None = None
    """Where the variables of a training container are written, if anywhere."""
    restart: Sequence[str] = ()
    protected_paths: Sequence[str] = ()
    accept_new_filesystem: bool = False
    host_name: str = ""
    """The host's name in the inventory, by which its own marks are told from those of others."""


@dataclass(frozen=True)
class Outcome:
    """What is true once the operation is done."""

    record: Mapping[str, Any]
    restarted: Sequence[str]
    warnings: Sequence[str]


def lay_out(
    host: Places,
    layout: Layout,
    rules: Mapping[str, MountRule],
    request: Request,
    systemctl: Systemctl,
    differences: Differences,
) -> Outcome:
    """Make *layout* true on this host."""
    return _LayingOut(host, layout, rules, request, systemctl, differences).run()


@dataclass(frozen=True)
class _LayingOut:
    host: Places
    layout: Layout
    rules: Mapping[str, MountRule]
    request: Request
    systemctl: Systemctl
    differences: Differences
    warnings: list[str] = field(default_factory=list)
    lasting: LastingMounts = field(default_factory=LastingMounts.read)

    def run(self) -> Outcome:
        request, differences = self.request, self.differences
        prefix = check_prefix(request.environment_prefix)
        environments = self._environments(prefix)
        protected = check_protected(request.protected_paths, self.layout)
        wanted, users = self._wanted(), self._users()
        units = self._units()
        former = layout_record.load(self.host.layout_json)
        relocated = relocations.load_all(self.host)
        relocations.check_layout(relocated, self.layout.locations)
        table = mounts.read()
        places = find_all(self.layout, table)
        claimed = claims.read(self.host, request.host_name, table)
        self.warnings.extend(claimed.warnings)
        self._check_apart(places, claims.of_stowage(self.host, claimed.entries, claimed.unseen), table)
        for name in ("root", *NAMES):
            self.lasting.check(name, places[name].real, table)
            self.rules[name].check(name, places[name])
            if name in former["locations"] and not request.accept_new_filesystem:
                check_same_filesystem(name, places[name], former["locations"][name])

        changing = [one for one in layout_directories.directories(self.layout, places, wanted) if one.differs]
        for directory in changing:
            now = None if directory.present is None else directory.present.described
            differences.note(f"directory {directory.path}", directory.wanted.described, now)
        check_users(users, places, wanted, [one.path for one in changing if one.present is not None])
        self._warn_of_names(places, wanted)
        record = layout_record.make(
            self.layout,
            places,
            self.rules,
            prefix,
            self._environment_files(list(environments), former),
            protected,
            former,
        )
        layout_record.note(differences, record, former)
        differing = [path for path, one in environments.items() if self._note_environment(path, *one)]
        restarts = Restarts(self.host, next(iter(environments)))
        due = restarts.due(units, bool(differing))
        differences.note("restarted", due, [])
        told = relocations.is_told(relocated, layout_record.paths(former), self.layout.locations)
        left = {name: path for name, path in layout_record.paths(former).items() if name not in told}
        self.warnings.extend(moved(self.layout, left))

        claimed.note(differences)
        claimed.register(Registry(self.host), differences)
        for directory in changing:
            verb = "make" if directory.present is None else "set owner and mode of"
            differences.do(
                f"{verb} directory {directory.path}",
                partial(layout_directories.make, directory.path, directory.wanted),
            )
        if changing and not differences.check_mode:
            check_users(users, find_all(self.layout, mounts.read()), wanted)
        if record != former:
            path = self.host.layout_json
            differences.do(f"write {path}", partial(records.write, path, record))
        if differing and not differences.check_mode:
            restarts.keep(due)
        for path in differing:
            content = environments[path][1]
            differences.do(f"write {path}", partial(records.write_bytes, path, content))
        for number, unit in enumerate(due, 1):
            differences.do(f"restart {unit}", partial(self.systemctl.restart, unit))
            if not differences.check_mode:
                restarts.keep(due[number:])
        return Outcome(record, due, self.warnings)

    def _check_apart(
        self, places: Mapping[str, Place], taken: Mapping[str, str], table: Sequence[mounts.Mount]
    ) -> None:
        """Refuse a layout over or inside what is Stowage's own or a drive's.

        The root holds nothing itself, and may be around it. Nor may anything but the volume root overlap a volume,
        which others own.
        """
        taken = {**claims.of_drives_here(self.host), **taken}
        volumes = claims.of_volumes(self.host)
        for name, place in places.items():
            there = taken if name == "volume_root" else {**taken, **volumes}
            found = claims.overlapping(place.real, there, table, but=("contains",) if name == "root" else ())
            if found is not None:
                lies, what, other = found
                raise Refusal(name, f"{place.path} {lies} {what} {other}", "choose a directory apart from it")
            owner = claims.owner_of(place.real, table)
            if owner:
                raise Refusal(name, f"{place.path} is, or is inside, {owner}", "choose a directory apart from it")

    def _warn_of_names(self, places: Mapping[str, Place], wanted: Wanted) -> None:
        """Warn where others than root say whose space something is, and quotas go by it."""
        try:
            quotas = (records.read(self.host.daemon_json) or {}).get("quotas") or {}
        except records.RecordError as error:
            self.warnings.append(str(error))
            return
        if not (quotas.get("users") or quotas.get("default_user")):
            return
        for name in BY_NAME:
            path = places[name].real
            present = layout_directories.ownership(path)
            its = layout_directories.wanted_of(name, wanted, present)
            if present is not None and name in self.layout.overridden:
                its = present
            if its.others_write:
                rule = f"{path} may be written to by others than its owner ({its.described})"
                self.warnings.append(f"{name}: {rule}; {_OF_OTHERS[name]}, and users have quotas")
            elif its.uid != 0:
                rule = f"{path} is {its.owner}'s, who may have what is in it count for any user"
                self.warnings.append(f"{name}: {rule}, and users have quotas")

    def _expect(self, name: str, rule: str) -> None:
        """Refuse what must be there before; in check mode an earlier task may have been going to make it."""
        if not self.differences.check_mode:
            raise Refusal(name, rule, "make it first")
        self.warnings.append(f"{name}: {rule}; taken to be made before a run")

    def _wanted(self) -> Wanted:
        """Return who is to own the directories that are ours to make."""
        owner, group, mode = self.request.owner, self.request.group, self.request.mode
        uid = None if owner is None else accounts.find_owner(owner)
        gid = None if group is None else accounts.find_group(group)
        if owner is not None and uid is None:
            self._expect("owner", f"there is no user {owner!r} on this host")
        if group is not None and gid is None:
            self._expect("group", f"there is no group {group!r} on this host")
        return Wanted(
            owner if uid is None else accounts.owner_name(uid),
            group if gid is None else accounts.group_name(gid),
            None if mode is None else layout_directories.parse_mode(mode),
            uid,
            gid,
        )

    def _users(self) -> list[accounts.User]:
        users = []
        for name in self.request.users:
            user = accounts.find_user(name)
            if user is None:
                self._expect("users", f"there is no user {name!r} on this host")
            else:
                users.append(user)
        return users

    def _units(self) -> dict[str, bool]:
        """Return the units to restart and whether each is active; refuse one that does not exist."""
        units = self.systemctl.show([unit_name(name) for name in self.request.restart], ["ActiveState"])
        for name, properties in units.items():
            if properties["LoadState"] == "not-found":
                self._expect("restart", f"there is no unit {name} on this host")
        return {name: unit["ActiveState"] not in ("inactive", "failed", "deactivating") for name, unit in units.items()}

    def _environments(self, prefix: str) -> dict[str, tuple[str, bytes]]:
        """Return the option and the content of each environment file by its path, that of the layout first."""
        layout, request, render = self.layout, self.request, environment_file.render
        path = check_path(request.environment_file, "environment_file")
        found = {path: ("environment_file", render(layout.settings(prefix)))}

        def add(name: str, given: str, content: bytes) -> None:
            path = check_path(given, name)
            if path in found:
                other = found[path][0]
                which = "the environment file of the layout" if other == "environment_file" else other
                raise Refusal(name, f"{path} is {which}", "name another one")
            found[path] = (name, content)

        if request.framework_environment_file:
            add(
                "framework_environment_file",
                request.framework_environment_file,
                render(framework_caches.caches(layout)),
            )
        if request.container_environment_file:
            add(
                "container_environment_file",
                request.container_environment_file,
                render(framework_caches.environment(layout, prefix), environment_file.as_it_is),
            )
        return found

    def _environment_files(self, paths: Sequence[str], former: Mapping[str, Any]) -> list[str]:
        """Return the environment files and the earlier ones that are still there, and warn of these."""
        earlier = [one for one in former["environment_files"] if one not in paths and own_files.is_there(one)]
        for one in earlier:
            rule = f"{one} is an earlier one and no longer kept up to date"
            self.warnings.append(f"environment_file: {rule}; let services read {' or '.join(paths)}, and remove it")
        return [*paths, *earlier]

    def _note_environment(self, path: str, name: str, wanted: bytes) -> bool:
        """Note how an environment file differs, and return whether it does; refuse one that is not ours."""
        now = own_files.read_ours(path, name)
        content = None if now is None else now[0]
        note = self.differences.note
        differs = note(f"environment {path}", own_files.in_lines(wanted), own_files.in_lines(content))
        if now is not None:
            differs = note(f"mode of {path}", "0644", f"{now[1]:04o}") or differs
        return differs
