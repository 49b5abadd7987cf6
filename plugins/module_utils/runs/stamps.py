# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which team each run is of: stamped when it is made, on the host that measures the runs, out of its users' reach.

A stamp is of one directory, which it knows by inode and time of birth. One that was made by other means under the same
name later is another run, and has none. Who a run's owner works for now changes no stamp.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

from .. import records
from ..copies.present import opened
from ..places import Places
from ..syscalls import NO_DIRECTORY, birth_time
from .shape import RunName

_ENDING = ".json"
_REMEDY = "restore it, or move it away and have run_directory stamp the run anew"


@dataclass(frozen=True)
class Stamp:
    """The team of one run, and the directory that this is true of."""

    team: str
    inode: int
    birth: int | None
    """When the directory was made, in nanoseconds since 1970; None when its filesystem does not tell."""
    created: float
    """When it was stamped."""

    @classmethod
    def of(cls, fd: int, team: str, created: float) -> Stamp:
        """Return the stamp for the directory open at *fd*."""
        return cls(team, os.fstat(fd).st_ino, birth_time(fd), created)

    def matches(self, fd: int) -> bool:
        """Return whether it is the stamp of the directory open at *fd*."""
        return self.is_of(os.fstat(fd).st_ino, birth_time(fd))

    def is_of(self, inode: int, birth: int | None) -> bool:
        """Return whether it is the stamp of such a directory; only what both tell of its birth can differ."""
        return self.inode == inode and (self.birth == birth or self.birth is None or birth is None)


def user_dir(places: Places, user: str) -> str:
    """Return where the stamps of a user's runs are, in a directory an experiment."""
    return os.path.join(places.run_teams_dir, user)


def record_path(places: Places, run: RunName) -> str:
    return os.path.join(places.run_teams_dir, *run) + _ENDING


def load_all(places: Places) -> dict[str, Stamp]:
    """Return all stamps by the names of their runs, ``user/experiment/run_id``.

    :raises RecordError: when one of them cannot be used: then nobody knows the team of that run
    """
    found, problems = readable(places)
    if problems:
        raise problems[0]
    return {str(run): stamp for run, stamp in found.items()}


def load(places: Places, user: str) -> dict[str, Stamp]:
    """Return the stamps of a user's runs by ``experiment/run_id``.

    :raises RecordError: when one of them cannot be used
    """
    found = {run.in_user: stamp_of(places, run) for run in _stamped_of(places, user)}
    return {name: stamp for name, stamp in found.items() if stamp is not None}


def readable(places: Places) -> tuple[dict[RunName, Stamp], list[records.RecordError]]:
    """Return the stamps that can be used, by their runs, and what is wrong with the others."""
    found, problems = {}, []
    for user in _names(places.run_teams_dir):
        try:
            for run in _stamped_of(places, user):
                try:
                    stamp = stamp_of(places, run)
                except records.RecordError as error:
                    problems.append(error)
                else:
                    found.update({} if stamp is None else {run: stamp})
        except records.RecordError as error:
            problems.append(error)
    return found, problems


def directories(places: Places) -> list[str]:
    """Return the directories that hold stamps, for whoever sweeps up what killed writers have left."""
    users = [user_dir(places, user) for user in _names(places.run_teams_dir)]
    return [os.path.join(user, experiment) for user in users for experiment in _names(user)]


def _stamped_of(places: Places, user: str) -> Iterator[RunName]:
    for experiment in _names(user_dir(places, user)):
        for name in _names(os.path.join(user_dir(places, user), experiment)):
            if name.endswith(_ENDING):
                yield RunName(user, experiment, name[: -len(_ENDING)])


def _names(directory: str) -> list[str]:
    """Return what is in a directory, in order; what begins with a dot is what a killed writer has left."""
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise records.RecordError(f"{directory}: {error.strerror}; it must be a directory of Stowage's own") from error


def stamp_of(places: Places, run: RunName) -> Stamp | None:
    """Return the stamp of a run, or None when it has none.

    :raises RecordError: when it cannot be used
    """
    path = record_path(places, run)
    value = records.read(path, _REMEDY)
    try:
        return None if value is None else records.typed(Stamp, value)
    except TypeError as error:
        raise records.RecordError(f"{path}: not the stamp of a run ({error!r}); {_REMEDY}") from error


# -- Writing, under the lock of runs


def put(places: Places, run: RunName, stamp: Stamp) -> None:
    """Record the stamp of a run; one that was of another directory is replaced."""
    stamp_of(places, run)  # one that is damaged is not written over
    records.write(record_path(places, run), asdict(stamp))


def remove(places: Places, run: RunName, stamp: Stamp) -> None:
    """Forget the stamp of a run, unless it is another directory's by now."""
    if stamp_of(places, run) == stamp:
        path = record_path(places, run)
        records.remove(path)
        with suppress(OSError):  # others are stamped there
            os.rmdir(os.path.dirname(path))
            os.rmdir(user_dir(places, run.user))


def follow(places: Places, before_fd: int, after_fd: int) -> None:
    """Have stamps be true of the same runs where they were copied to, when the runs location is moved.

    One that is true of nothing in the former location is left as it is, so that this can be done again.

    :param before_fd: the former runs location
    :param after_fd: the new one, with a whole copy of what is in that
    :raises RecordError: when one cannot be used, after all others were made true
    """
    found, problems = readable(places)
    for run, stamp in found.items():
        path = os.fsencode(str(run))
        try:
            with opened(before_fd, path) as before, opened(after_fd, path) as after:
                if stamp.matches(before):
                    put(places, run, Stamp.of(after, stamp.team, stamp.created))
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
    if problems:
        raise problems[0]
