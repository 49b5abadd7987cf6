# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a run is: by where its directory is, which only root makes, and by the stamp of that very directory."""

from __future__ import annotations

import os

from ..errors import Refusal, printable
from ..places import Places
from ..runs import location as runs_location
from ..runs import stamps
from ..runs.location import RunsLocation, check_parent
from ..runs.shape import RunName
from ..syscalls import NO_DIRECTORY, open_beneath
from .entitled import Whose


def whose(places: Places, run: str, team: str = "") -> tuple[Whose, str]:
    """Return whose the run ``user/experiment/run_id`` is, whose directory is on this host, and what is not known of it.

    :param team: that it is stamped with on the host that measures the runs, when that is another one
    :raises Refusal: when it has no directory here, or the team is not that of its stamp
    :raises RecordError: when its stamp cannot be used
    """
    named = RunName.parsed(run)
    with runs_location.opened_anywhere(places) as location:
        for number in (1, 2):
            fd = _opened(location, run, named[:number])
            try:
                check_parent(fd, location.path_of(*named[:number]))
            finally:
                os.close(fd)
        fd = _opened(location, run, named)
        try:
            stamp = stamps.stamp_of(places, named)
            owner = os.fstat(fd).st_uid
            stamped = stamp.team if stamp is not None and stamp.matches(fd) else ""
        finally:
            os.close(fd)
        if team and team != stamped and (stamped or location.is_measured_here):
            rule = f"{team} is not what run {printable(run)} is stamped with here, which is {stamped or 'no team'}"
            raise Refusal("volumes_team", rule, "leave it out on a host that has the stamps")
    if team or stamped or location.is_measured_here:
        return Whose(run, named.user, stamped or team, owner), ""
    rule = f"run {printable(run)}: its team is not known on this host, for another one measures its runs"
    return Whose(run, named.user, "", owner), f"{rule}; what is granted to teams is left out"


def _opened(location: RunsLocation, run: str, names: tuple[str, ...]) -> int:
    try:
        return open_beneath(location.fd, os.fsencode("/".join(names)))
    except OSError as error:
        if error.errno not in NO_DIRECTORY:
            raise
        rule = f"it has no directory below {printable(location.path)} ({error.strerror})"
        remedy = "make it first (run_directory), or mount the disk of the runs"
        raise Refusal(f"run {printable(run)}", rule, remedy) from error
