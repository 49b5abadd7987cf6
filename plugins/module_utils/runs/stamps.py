# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which team each run is of: stamped when it is made, on the host that measures the runs, out of its users' reach.

A stamp is of one directory, which it knows by inode and time of birth. One that was made by other means under the same
name later is another run, and has none. Who a run's owner works for now changes no stamp.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .. import records
from ..copies.present import opened
from ..places import Places
from ..syscalls import NO_DIRECTORY, birth_time
from .shape import RunName

_ENDING = ".json"
_REMEDY = "restore it, or move it away and have run_directory stamp the runs of this user anew"


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


def record_path(places: Places, user: str) -> str:
    return os.path.join(places.run_teams_dir, user + _ENDING)


def load_all(places: Places) -> dict[str, Stamp]:
    """Return all stamps by the names of their runs, ``user/experiment/run_id``.

    :raises RecordError: when a file of them cannot be used: then nobody knows the teams of that user's runs
    """
    found = {}
    for user in _users(places):
        found.update({f"{user}/{name}": stamp for name, stamp in load(places, user).items()})
    return found


def _users(places: Places) -> list[str]:
    try:
        names = os.listdir(places.run_teams_dir)
    except FileNotFoundError:
        return []
    # Of a name that begins with a dot is what a killed writer has left.
    return sorted(name[: -len(_ENDING)] for name in names if name.endswith(_ENDING) and not name.startswith("."))


def load(places: Places, user: str) -> dict[str, Stamp]:
    """Return the stamps of a user's runs by ``experiment/run_id``.

    :raises RecordError: when their file cannot be used
    """
    path = record_path(places, user)
    value = records.read(path, _REMEDY)
    try:
        return {} if value is None else {name: records.typed(Stamp, one) for name, one in value["runs"].items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise records.RecordError(f"{path}: not the stamps of runs ({error!r}); {_REMEDY}") from error


# -- Writing, under the lock of runs


def put(places: Places, run: RunName, stamp: Stamp) -> None:
    """Record the stamp of a run; one that was of another directory is replaced."""
    _write(places, run.user, {**load(places, run.user), run.in_user: stamp})


def remove(places: Places, run: RunName, stamp: Stamp) -> None:
    """Forget the stamp of a run, unless it is another directory's by now."""
    known = load(places, run.user)
    if known.get(run.in_user) == stamp:
        del known[run.in_user]
        _write(places, run.user, known)


def follow(places: Places, before_fd: int, after_fd: int) -> None:
    """Have stamps be true of the same runs where they were copied to, when the runs location is moved.

    One that is true of nothing in the former location is left as it is, so that this can be done again.

    :param before_fd: the former runs location
    :param after_fd: the new one, with a whole copy of what is in that
    """
    for user in _users(places):
        known = load(places, user)
        for name, stamp in known.items():
            path = os.fsencode(f"{user}/{name}")
            try:
                with opened(before_fd, path) as before, opened(after_fd, path) as after:
                    if stamp.matches(before):
                        known[name] = Stamp.of(after, stamp.team, stamp.created)
            except OSError as error:
                if error.errno not in NO_DIRECTORY:
                    raise
        _write(places, user, known)


def _write(places: Places, user: str, known: Mapping[str, Stamp]) -> None:
    path = record_path(places, user)
    if known:
        value: dict[str, Any] = {"runs": {name: asdict(stamp) for name, stamp in known.items()}}
        records.write(path, value)
    else:
        records.remove(path)
