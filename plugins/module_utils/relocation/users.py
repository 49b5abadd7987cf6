# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses a location that is to be moved, and waiting until nobody does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ..errors import StowageError
from ..eviction import write_leases
from ..mounts import is_shared, of_fd
from ..mounts import read as read_mounts
from ..use.child import nothing
from ..use.look import InUse, Subject, in_use, last_names
from .old_path import OldPath

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 30.0


def users_of(fd: int, old: OldPath, look: InUse = in_use) -> list[str]:
    """Return the evidence that the location open at *fd* is in use on this host.

    What is mounted of it for the move is no use. On a shared filesystem each host tells its own uses.
    """
    table = read_mounts()
    device, place = old.beneath(table)
    name = os.path.basename(old.real)
    mounted = (old.real, old.disk_at) if old.disk_at else (old.real,)
    known_by = last_names(old.real)
    evidence = look([Subject(name, fd, device, place, (), (old.real,), mounted, known_by)])[name]
    if evidence or is_shared(of_fd(fd, table).fstype):
        return evidence
    open_file = write_leases.open_file(fd)
    return [open_file] if open_file else []


def wait_until_unused(
    find: Callable[[], list[str]],
    wait_s: float,
    say: Callable[[str], None] = nothing,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until *find* tells no use.

    :param say: told whom it waits for
    :raises StowageError: with who it is, when somebody is still there after *wait_s* seconds
    """
    end = clock() + wait_s
    pause = _FIRST_PAUSE_S
    while True:
        used = find()
        if not used:
            return
        who = "; ".join(used[:3]) + (f" (and {len(used) - 3} more)" if used[3:] else "")
        left = end - clock()
        if left <= 0:
            raise StowageError(f"in use after {wait_s:g} s: {who}")
        say(f"waits for its users: {who}")
        sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
