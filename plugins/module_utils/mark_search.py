# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Searching a host's own disks for marked directories: within bounds, and saying what was not looked at."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .errors import StowageError, one_line, printable
from .mounts import Mount, is_pseudo, is_shared
from .owner import Mark, read_mark
from .paths import is_within
from .syscalls import NO_DIRECTORY, open_beneath

DEPTH = 4
"""How many levels below where a filesystem is mounted a mark may be."""
MOST = 20_000
"""How many directories of a filesystem are looked at; those near its top come first."""


@dataclass
class Search:
    """What a search has found."""

    marks: dict[str, Mark] = field(default_factory=dict)
    mounts: dict[str, Mount] = field(default_factory=dict)
    """What each of them was found through."""
    unseen: list[str] = field(default_factory=list)
    """Where there may be more, and why it was not looked at: one line each."""


def find_marks(mounts: Sequence[Mount], depth: int = DEPTH, most: int = MOST) -> Search:
    """Return every marked directory, by path, at most *depth* levels below where a local filesystem is mounted.

    Marks inside a marked data location are not listed: copies are found from it. Nothing is followed, no other mount
    is entered, and a directory that is mounted in several places is found in one.
    """
    search = Search()
    for mount in mounts:
        if is_pseudo(mount.fstype) or is_shared(mount.fstype) or _is_part(mount, mounts):
            continue
        point = printable(mount.point)
        if _is_of_a_user(mount):
            search.unseen.append(f"{point}: not searched for owner marks: a user's own filesystem ({mount.fstype})")
            continue
        try:
            fd = os.open(mount.point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue  # unmounted since the table was read, or a mounted file
        except OSError as error:
            search.unseen.append(f"{one_line(error)}; not searched for owner marks")
            continue
        try:
            _find_below(fd, mount, depth, most, search)
        finally:
            os.close(fd)
    once = {mark.place: path for path, mark in reversed(search.marks.items())}
    search.marks = {path: mark for path, mark in search.marks.items() if once[mark.place] == path}
    return search


def _is_part(mount: Mount, mounts: Sequence[Mount]) -> bool:
    """Return whether *mount* shows only a part of what another mount shows: a bind mount, such as a worker's."""
    return any(
        other.device == mount.device and other.root != mount.root and is_within(mount.root, other.root)
        for other in mounts
    )


def _is_of_a_user(mount: Mount) -> bool:
    """Return whether a user's process answers for what is in it: it may refuse root, or never answer."""
    return mount.fstype.startswith("fuse") and "user_id=0" not in mount.super_options


def _find_below(root: int, mount: Mount, depth: int, most: int, search: Search) -> None:
    """Look at what *mount* shows, level by level: where marks usually are is looked at before the bound is met."""
    waiting = deque([(".", 0)])
    looked_at = 0
    troubles: list[str] = []
    while waiting and looked_at < most:
        below, level = waiting.popleft()
        looked_at += 1
        path = mount.point if below == "." else os.path.join(mount.point, below)
        try:
            fd = open_beneath(root, os.fsencode(below))
        except OSError as error:
            if error.errno not in NO_DIRECTORY:
                troubles.append(f"{printable(path)}: {error.strerror}")
            continue  # gone or replaced since it was listed, or another mount, which has its own turn
        try:
            mark = read_mark(fd)
            if mark is not None:
                search.marks[path], search.mounts[path] = mark, mount
            elif level < depth:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append((os.path.normpath(os.path.join(below, entry.name)), level + 1))
                        if len(waiting) > most:
                            break  # never looked at
        except OSError as error:
            troubles.append(f"{printable(path)}: {error.strerror}")
        except StowageError as error:
            troubles.append(str(error))
        finally:
            os.close(fd)
    if waiting:
        point = printable(mount.point)
        search.unseen.append(f"{point}: searched for owner marks in its first {most} directories only; it has more")
    if troubles:
        more = f" (and {len(troubles) - 1} more)" if troubles[1:] else ""
        search.unseen.append(f"{troubles[0]}{more}; not searched for owner marks")
