# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose a run is: by where its directory is, which only root makes, and by the stamp of that very directory."""

from __future__ import annotations

import os

from ..answers import check_answers
from ..drives import host_paths
from ..errors import Refusal, printable
from ..layout import record as layout_record
from ..places import Places
from ..runs import stamps
from ..runs.shape import RunName
from ..syscalls import NO_DIRECTORY, open_beneath
from .entitled import Whose


def whose(places: Places, run: str) -> Whose:
    """Return whose the run ``user/experiment/run_id`` is that is on this host.

    :raises Refusal: when it has no directory here
    :raises RecordError: when the stamps of its user's runs cannot be used
    """
    named = RunName.parsed(run)
    name = f"run {printable(run)}"
    location = layout_record.load(places.layout_json)["locations"].get("runs")
    if location is None:
        rule = "this host has no storage layout, and so no runs"
        raise Refusal(name, rule, "roll the host out with host_storage_root")
    path = location["path"]
    check_answers([(name, path)])
    with host_paths.opened(path, name) as found:
        if found.missing:
            raise Refusal(name, f"the runs location {printable(found.path)} is not there", "mount its disk")
        try:
            fd = open_beneath(found.fd, os.fsencode(run))
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                raise
            rule = f"it has no directory below {printable(path)} ({error.strerror})"
            raise Refusal(name, rule, "make it first (run_directory), or mount the disk of the runs") from error
        try:
            stamp = stamps.load(places, named.user).get(named.in_user)
            team = stamp.team if stamp is not None and stamp.matches(fd) else ""
        finally:
            os.close(fd)
    return Whose(run, named.user, team)
