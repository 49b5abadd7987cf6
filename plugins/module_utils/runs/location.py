# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runs location of a host, proven to be there, and the directories on the way to a run."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .. import mounts as mount_table
from .. import records
from ..accounts import owner_name
from ..answers import check_answers
from ..errors import Refusal, printable
from ..layout import available
from ..layout import record as layout_record
from ..layout.found import find
from ..layout.found import opened as opened_path
from ..mounts import FilesystemId, Mount
from ..places import Places
from ..syscalls import NO_DIRECTORY, open_beneath
from .shape import RunName

NAME = "runs"


@dataclass(frozen=True)
class RunsLocation:
    """It is open as long as this is used."""

    fd: int
    path: str
    """As the layout has it."""
    mount: Mount
    table: Sequence[Mount]
    measures_shared: bool = False
    """Whether this host measures what others see too."""

    @property
    def is_local(self) -> bool:
        return not mount_table.is_shared(self.mount.fstype)

    @property
    def is_measured_here(self) -> bool:
        """Whether this is the host that measures the runs, and so has their stamps."""
        return self.is_local or self.measures_shared

    def path_of(self, *names: str) -> str:
        return os.path.join(self.path, *names)

    def open(self, names: Sequence[str]) -> int | None:
        """Return a descriptor of the directory that *names* lead to, or None when something on the way is missing.

        :raises Refusal: when something else is in the way
        """
        fd = open_beneath(self.fd, b".")
        for number, name in enumerate(names, 1):
            parent, fd = fd, -1
            try:
                fd = open_child(parent, name, self.path_of(*names[:number]))
            except FileNotFoundError:
                return None
            finally:
                os.close(parent)
        return fd


def open_child(parent: int, name: str, path: str) -> int:
    """Open a directory in the one open at *parent*.

    :param path: of it, for messages
    :raises FileNotFoundError: when there is nothing by that name
    :raises Refusal: when that is no directory of the same filesystem
    """
    try:
        return open_beneath(parent, os.fsencode(name))
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in NO_DIRECTORY:
            rule = f"something else than a directory of this filesystem is in the way ({error.strerror})"
            raise Refusal(printable(path), rule, "move it away") from error
        raise


def check_parent(fd: int, path: str) -> None:
    """Refuse a directory above runs in which anybody but root could put another one in a run's place."""
    _check_roots(os.fstat(fd), path)


def _check_above(path: str) -> None:
    """Refuse a runs location that anybody but root could put another one in the place of."""
    for above in (path, os.path.realpath(path)):
        while above != "/":
            above = os.path.dirname(above)
            _check_roots(os.stat(above), above, sticky=True)


def _check_roots(status: os.stat_result, path: str, sticky: bool = False) -> None:
    """Refuse a directory in which others than root can replace what is root's.

    :param sticky: whether a sticky bit keeps them from that: it does for what is there already
    """
    if status.st_uid != 0:
        rule = f"belongs to {owner_name(status.st_uid)}, who could put another directory in a run's place"
        raise Refusal(printable(path), rule, f"chown root {printable(path)}")
    if status.st_mode & 0o022 and not (sticky and status.st_mode & stat.S_ISVTX):
        mode = f"mode {stat.S_IMODE(status.st_mode):04o}"
        rule = f"others than root can write to it ({mode}), who could put another directory in a run's place"
        raise Refusal(printable(path), rule, f"chmod go-w {printable(path)}")


def run_path(places: Places, run: RunName) -> str:
    """Return where a run is, or would be, by the layout of this host.

    :raises Refusal: when there is no layout
    """
    return os.path.join(str(_recorded(places)["path"]), *run)


def _recorded(places: Places) -> Mapping[str, Any]:
    recorded: Mapping[str, Any] | None = layout_record.load(places.layout_json)["locations"].get(NAME)
    if recorded is None:
        raise Refusal(NAME, "this host has no storage layout", "roll the host out with host_storage_root first")
    return recorded


@contextmanager
def opened(places: Places) -> Iterator[RunsLocation]:
    """Open the runs location for as long as it takes, on the host that measures it.

    :raises Refusal: when there is no layout, its disk is missing, or another host measures what is on it
    """
    with opened_anywhere(places) as location:
        if not location.is_measured_here:
            fstype = location.mount.fstype
            rule = f"is on {fstype}, which other hosts see too, and teams are stamped on the host that measures it"
            remedy = (
                "run this on that host: the one with the daemon's setting measure_shared (daemon_shared_measured_by)"
            )
            raise Refusal(location.path, rule, remedy)
        yield location


@contextmanager
def opened_anywhere(places: Places) -> Iterator[RunsLocation]:
    """Open the runs location for as long as it takes, whichever host measures it.

    :raises Refusal: when there is no layout, its disk is missing, or others than root could replace what is in it
    """
    recorded = _recorded(places)
    path = str(recorded["path"])
    check_answers([(NAME, path)])  # this may have a disk mounted, so before the table is read
    table = mount_table.read()
    place = find(path, NAME, table)
    if not place.exists:
        available.check_mounted(path, place.real, table)
        raise Refusal(path, "does not exist", "mount its disk or roll the layout out again")
    with opened_path(place.real) as there:
        fd = open_beneath(there, b".")
    try:
        mount = available.check(
            path,
            fd,
            table,
            str(recorded["mount_point"]) if recorded["require_mount"] else None,
            FilesystemId.from_json(recorded["filesystem"]),
        )
        _check_above(path)
        check_parent(fd, path)
        yield RunsLocation(
            fd, path, mount, table, (records.read(places.daemon_json) or {}).get("measure_shared") is True
        )
    finally:
        os.close(fd)
