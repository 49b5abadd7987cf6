# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Making a list of volumes the one of this host: what is wrong is refused first, and only the record is written.

Nothing is done to a volume: its contents are others'.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .. import claims, records
from ..answers import answering
from ..differences import Differences
from ..errors import Refusal, StowageError, printable
from ..layout import record as layout_record
from ..mounts import Located, identify
from ..paths import check_path
from ..places import Places
from ..runs import pins
from ..runs.drives import Sight
from ..runs.pins import Pin
from ..runs.shape import RunName
from . import recorded
from .declared import Declared, check_apart
from .entitled import Whose, entitled, is_covered
from .found import check_mount, reached
from .recorded import Volume

_APART = "register material that is apart from it"


@dataclass(frozen=True)
class Outcome:
    """The volumes of this host now."""

    volumes: Sequence[Volume]
    warnings: Sequence[str]


def volume_root(places: Places, given: str | None, check_mode: bool = False) -> str:
    """Return where the volumes of this host are.

    :param given: where they will be once the storage layout is made true; in check mode it may not have been yet
    """
    known = layout_record.load(places.layout_json)["volume_root"]
    wanted = check_path(given, "volume_root") if given else known
    if not wanted:
        remedy = "give its storage layout one (host_volume_root)"
        raise Refusal("volumes", "this host has no volume root, where external volumes are", remedy)
    if wanted != known and not check_mode:
        rule = f"{wanted} is not the volume root of this host's storage layout, which has {known or 'none'}"
        raise Refusal("volume_root", rule, "make the storage layout true first")
    return str(wanted)


def declare(
    places: Places, declared: Sequence[Declared], differences: Differences, accept_new_filesystem: bool = False
) -> Outcome:
    """Make *declared* the complete list of this host's volumes.

    :param accept_new_filesystem: a volume may be on another filesystem than when it was recorded
    :raises Refusal: when a volume is not there that is new to the list, is not apart from what else is on this host,
        or one that workers still have is not in the list any more
    """
    return _Declaring(places, declared, differences, accept_new_filesystem).run()


class _Declaring:
    def __init__(
        self, places: Places, declared: Sequence[Declared], differences: Differences, accept_new_filesystem: bool
    ) -> None:
        self._places = places
        self._declared = declared
        self._differences = differences
        self._accept_new_filesystem = accept_new_filesystem
        self._before = recorded.load(places)
        self._sight = Sight()
        self._warnings: list[str] = []

    def run(self) -> Outcome:
        volumes = self._found()
        found, unreadable = pins.readable(self._places)
        self._check_kept({volume.name: volume for volume in volumes}, found, unreadable)
        self._warnings += self._about_revoked(volumes, found) + [str(problem) for problem in unreadable]

        now = {volume.name: volume.to_json() for volume in volumes}
        before = {volume.name: volume.to_json() for volume in self._before.values()}
        for name in sorted({*now, *before}):
            self._differences.note(f"volume {name}", now.get(name), before.get(name))
        if now != before:
            path = self._places.volumes_json
            write = partial(records.write, path, recorded.as_record(volumes))
            self._differences.do(f"write {path}", write)
        return Outcome(volumes, self._warnings)

    # -- Where they are

    def _found(self) -> list[Volume]:
        """Return the volumes as they are to be recorded."""
        if not self._declared:
            return []
        answer = answering({one.path for one in self._declared})
        taken = self._taken()
        volumes, real = [], {}
        for one in self._declared:
            before = self._before.get(one.name)
            known = before if before is not None and before.path == one.path else None
            try:
                if one.path not in answer:
                    raise Refusal(one.described, f"the filesystem at {one.path} does not answer", "see to its server")
                volume, path = self._look(one, known)
            except StowageError as error:
                if known is None:
                    raise
                # Its grants can be changed all the same: above all, taken away.
                self._warnings.append(f"{error}; until then runs are not given it")
                volume = self._merged(one, known)
            else:
                real[one.name] = path
                self._check_apart(one, path, taken)
            volumes.append(volume)
        places = [(one, Located.of(real[one.name], self._sight.mounts)) for one in self._declared if one.name in real]
        for (one, place), (other, other_place) in itertools.combinations(places, 2):
            check_apart(one, other, place.lies_to(other_place))
        return volumes

    def _look(self, one: Declared, known: Volume | None) -> tuple[Volume, str]:
        """Return a volume that is there, and where its path leads."""
        with reached(one.described, one.path, self._sight) as found:
            if found.missing:
                rule = f"{printable(found.path)} is not there, and a volume is never made"
                raise Refusal(one.described, rule, "mount its disk, or correct the path")
            mount = self._sight.mount_of(found.fd)
            required = one.require_mount
            if required is None:
                required = known.require_mount if known is not None else mount.point != "/"
            if required and mount.point == "/":
                rule = f"{one.path} is on the root filesystem, nothing is mounted there"
                raise Refusal(one.described, rule, "mount its disk, or set require_mount to false")
            filesystem = identify(found.fd, self._sight.mounts)
            if known is not None and required and not self._accept_new_filesystem:
                check_mount(replace(known, require_mount=known.mount_point != "/"), found.fd, self._sight)
                # A disk that got another device name at a boot stays as recorded.
                filesystem = known.filesystem if known.filesystem.matches(filesystem) else filesystem
            return Volume(one.name, one.path, required, mount.point, filesystem, one.grants), found.path

    @staticmethod
    def _merged(one: Declared, known: Volume) -> Volume:
        required = known.require_mount if one.require_mount is None else one.require_mount
        return replace(known, require_mount=required, grants=one.grants)

    def _taken(self) -> Mapping[str, str]:
        """Return what volumes must be apart from."""
        claimed = claims.read(self._places, "", self._sight.mounts)
        return {
            **claims.of_drives_here(self._places),
            **claims.of_root(self._places),
            **claims.of_locations(self._places),
            **claims.of_stowage(self._places, claimed.entries, claimed.unseen),
            **claims.of_protected(self._places),
        }

    def _check_apart(self, one: Declared, path: str, taken: Mapping[str, str]) -> None:
        name, mounts = f"{one.described}: path {one.path}", self._sight.mounts
        claims.check_apart(name, path, taken, mounts, _APART)
        owner = claims.owner_of(path, mounts)
        if owner:
            raise Refusal(name, f"it is, or is inside, {owner}", _APART)

    # -- Who has them

    def _check_kept(
        self, volumes: Mapping[str, Volume], found: Iterable[Pin], unreadable: Sequence[records.RecordError]
    ) -> None:
        """Refuse to drop a volume, or put another directory in its place, while workers have something of it."""
        dropped = {name for name, one in self._before.items() if name not in volumes or volumes[name].path != one.path}
        if not dropped:
            return
        if unreadable:
            raise unreadable[0]
        for name in sorted(dropped):
            held = [f"{pin.described} of {printable(pin.held_by)}" for pin in found if pin.volume == name]
            if held:
                change = "is on another path now" if name in volumes else "is not in the list any more"
                rule = f"it {change}, and workers still have it: {', '.join(held)}"
                raise Refusal(f"volume {name}", rule, "end them or release them (stowage lease list), then roll out")

    @staticmethod
    def _about_revoked(volumes: Iterable[Volume], found: Iterable[Pin]) -> list[str]:
        """Say which workers keep, until they end, what their runs are not granted any more."""
        grants = {volume.name: volume.grants for volume in volumes}
        warnings = []
        for pin in found:
            if not pin.volume or pin.volume not in grants or pins.stale(pin):
                continue
            whose = Whose(pin.run_of, RunName.parsed(pin.run_of).user, pin.run_team)
            if not is_covered(entitled(grants, whose), pin.volume, pin.sub_path):
                folder = f"folder {printable(pin.sub_path)} of it" if pin.sub_path else "it"
                rule = f"{folder} is not granted to run {printable(pin.run_of)} any more"
                rest = f"{pin.described} of {printable(pin.held_by)} keeps that until it ends or is released"
                warnings.append(f"volume {pin.volume}: {rule}; {rest}")
        return warnings
