# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folders of volumes that a run is granted, for a worker of it that is to have them, read-only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..answers import answering
from ..claims import of_protected
from ..drives.declared import Problems, check_name
from ..drives.permissions import Applied
from ..errors import Refusal, StowageError, did_you_mean, one_line
from ..locks import host_lock
from ..paths import check_path
from ..places import Places
from ..runs import pinning
from ..runs.drives import Look, Sight
from ..runs.pins import READ_ONLY, Pin, Use
from . import recorded
from .entitled import Entitlement, Whose, entitled, is_covered
from .found import opened_folder
from .recorded import Volume

VARIABLE = "VOLUMES_DIR"
"""What tells a worker where its volumes are."""


def _untold(_applied: Applied) -> None:
    """Nobody has to be told of what never happens to a volume."""


@dataclass(frozen=True)
class VolumeFolder:
    """A folder of a volume as a worker is to have it."""

    places: Places
    whose: Whose
    volume: Volume
    sub_path: str
    target: str
    """Where the worker has it."""

    @property
    def name(self) -> str:
        return self.volume.described

    @property
    def use(self) -> Use:
        place = (self.volume.path, self.sub_path, READ_ONLY, self.target)
        return Use("", "", 0, *place, self.volume.name, self.whose.run, self.whose.team)

    def look(self, sight: Sight) -> Look:
        """Look whether it can be had.

        :raises StowageError: when it cannot
        """
        with opened_folder(self.volume, self.sub_path, sight, of_protected(self.places)):
            return Look()

    def take(self, run: str, worker: str, seconds: float, _tell: Callable[[Applied], object] = _untold, /) -> Pin:
        """Mount it for a worker, as reserved for *seconds*."""
        protected = of_protected(self.places)
        with opened_folder(self.volume, self.sub_path, Sight(), protected) as fd, host_lock(self.places):
            # Nobody takes the grant away between this and the pin, by which that is seen.
            now = recorded.load(self.places).get(self.volume.name)
            if now is None or now.path != self.volume.path or not self._is_granted(now):
                rule = f"it is not granted to {self.whose.described} any more"
                raise Refusal(self.name, rule, "prepare the run again")
            reader = self.whose.owner
            return pinning.hold(self.places, self.use, fd, run=run, worker=worker, seconds=seconds, reader=reader)

    def _is_granted(self, volume: Volume) -> bool:
        return is_covered(entitled({volume.name: volume.grants}, self.whose), volume.name, self.sub_path)

    def foretell(self, _sight: Sight) -> None:
        """Return what of its owner and mode would be changed: nothing, ever."""


@dataclass(frozen=True)
class Given:
    """What of the volumes a worker is to have."""

    folders: Sequence[VolumeFolder] = ()
    left_out: Sequence[str] = ()
    """What it is granted and does not get, because it is not there now: a line each."""
    kept: frozenset[Use] = frozenset()
    """What of that it keeps if it has it already."""


def given(places: Places, whose: Whose, names: Sequence[str] | None, volumes_dir: str) -> Given:
    """Return what a worker of a run is to have of the volumes.

    :param names: the volumes that were asked for, each of which it gets or is refused; None for all that it is granted,
        of which those are left out that are not there now
    :raises Refusal: when one does not exist, or nothing of it is granted to the run
    """
    volumes = recorded.load(places)
    parts = entitled({name: volume.grants for name, volume in volumes.items()}, whose)
    target = check_path(volumes_dir, "volumes_dir")
    folders = [_folder(places, whose, volumes[part.volume], part, target) for part in parts]
    if names is not None:
        wanted = _asked_for(volumes, folders, whose, names)
        return Given([folder for folder in folders if folder.volume.name in wanted])
    # All at once: each that does not answer would be waited for.
    answer = answering({folder.volume.path for folder in folders})
    there, left_out, kept = [], [], set()
    sight = Sight()
    for folder in folders:
        why = _why_not(folder, sight) if folder.volume.path in answer else f"{folder.name}: it does not answer"
        if why:
            left_out.append(why)
            kept.add(folder.use)
        else:
            there.append(folder)
    return Given(there, list(dict.fromkeys(left_out)), frozenset(kept))


def _folder(places: Places, whose: Whose, volume: Volume, part: Entitlement, volumes_dir: str) -> VolumeFolder:
    target = os.path.join(volumes_dir, part.volume, part.sub_path).rstrip("/")
    return VolumeFolder(places, whose, volume, part.sub_path, target)


def _asked_for(
    volumes: Mapping[str, Volume], folders: Sequence[VolumeFolder], whose: Whose, names: Sequence[str]
) -> set[str]:
    """Return the names once each is that of a volume of which the run is granted something."""
    granted = {folder.volume.name for folder in folders}
    problems = []
    for name in dict.fromkeys(names):
        check_name(name, "volumes")
        if name not in volumes:
            remedy = did_you_mean(name, volumes) or "register it, and roll the host out"
            problems.append(str(Refusal(f"volume {name}", "does not exist on this host", remedy)))
        elif name not in granted:
            rule = f"nothing of it is granted to {whose.described}"
            problems.append(str(Refusal(f"volume {name}", rule, "grant it in the list of volumes (host_volumes)")))
    if problems:
        raise Problems(problems)
    return set(names)


def _why_not(folder: VolumeFolder, sight: Sight) -> str:
    """Return why a folder cannot be had now; empty when it can."""
    try:
        folder.look(sight)
    except StowageError as error:
        return str(error)
    except OSError as error:
        return one_line(error, folder.name)
    return ""
