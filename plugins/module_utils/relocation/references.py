# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a host has stored the absolute path of a location that is moved: what an operator has to change some time.

The old path is kept until then. Looked at are the files that name paths of hosts by their nature, not all files.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from .. import own_files
from ..errors import StowageError, printable
from ..layout import record as layout_record
from ..paths import is_within
from ..places import Places
from ..syscalls import open_beneath
from ..trees.walk import Walk
from ..use.child import answer_of, nothing, progress

FILES = (
    "/etc/fstab",
    "/etc/exports",
    "/etc/exports.d/*",
    "/etc/default/*",
    "/etc/sysconfig/*",
    "/etc/environment",
    "/etc/systemd/system/**",
    "/run/systemd/system/**",
    "/usr/local/lib/systemd/system/**",
    "/etc/slurm/*.conf",
    "/etc/docker/daemon.json",
    "/etc/logrotate.d/*",
    "/etc/cron.d/*",
    "/etc/tmpfiles.d/*",
    "/usr/local/etc/tmpfiles.d/*",
)
_LARGEST = 1 << 20
_MOST = 100
_DEADLINE_S = 600.0


def named_in(data: bytes, paths: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line of *data* that names one of *paths*, or something below it."""
    # fstab and the tables of exports have no spaces in a field.
    spelled = dict.fromkeys(one for path in paths for one in (path, path.replace(" ", "\\040")))
    choice = b"|".join(re.escape(os.fsencode(path)) for path in spelled)
    # Not a part of a longer name, on either side.
    pattern = re.compile(rb"(?<![\w./])(?:" + choice + rb")(?![\w.-])")
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.lstrip().startswith(b"#") and pattern.search(line):
            yield number, printable(line.strip())


def references(
    places: Places, paths: Sequence[str], ours: Iterable[str] = (), files: Sequence[str] = FILES
) -> list[str]:
    """Return the lines on this host that name one of *paths*, as ``file:line: text``.

    :param ours: files that name it because it is kept
    """
    found = []
    for path in _files(places, files):
        if path in ours:
            continue
        for number, text in _lines_of(path, paths):
            found.append(f"{printable(path)}:{number}: {text}")
            if len(found) == _MOST:
                return [*found, "and perhaps more"]
    return found


def _files(places: Places, patterns: Sequence[str]) -> Iterator[str]:
    seen = set()
    for pattern in patterns:
        for path in sorted(glob.glob(pattern, recursive=True)):
            seen.add(path)
    for pattern in ("*.json", "*/*.json", "*.env"):
        seen.update(glob.glob(os.path.join(glob.escape(places.etc), pattern)))
    seen.update(environment_files(places))
    seen.discard(places.layout_json)  # which follows
    return iter(sorted(path for path in seen if os.path.isfile(path) and not os.path.islink(path)))


def environment_files(places: Places) -> list[str]:
    """Return the environment files of the layout: these follow, and earlier ones that are still there do not."""
    try:
        return list(layout_record.load(places.layout_json)["environment_files"])
    except StowageError:
        return []


def _lines_of(path: str, paths: Sequence[str]) -> list[tuple[int, str]]:
    try:
        found = own_files.read(path) if os.path.getsize(path) <= _LARGEST else None
    except (OSError, StowageError):
        return []  # it is gone, or no file
    return [] if found is None else list(named_in(found[0], paths))


def links_into(fd: int, paths: Sequence[str], most: int = 20) -> list[str]:
    """Return the first symbolic links below the directory open at *fd* that lead to one of *paths*, or below it."""
    found: list[str] = answer_of(lambda: list(islice(_links_into(fd, paths), most)), _DEADLINE_S)
    return found


def _links_into(fd: int, paths: Sequence[str]) -> Iterator[str]:
    # Opened anew: btrfs does not list what has come since a directory was opened.
    walk = Walk(open_beneath(fd, b"."), nothing)
    for directory in walk:
        for entry in directory.files():
            progress()
            if entry.is_symlink():
                target = os.readlink(entry.name, dir_fd=directory.fd)
                if any(is_within(target, path) for path in paths):
                    yield f"{walk.path(entry.name)} -> {printable(target)}"
