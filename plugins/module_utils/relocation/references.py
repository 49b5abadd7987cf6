# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a host has stored the absolute path of a location that is moved: what an operator has to change some time.

The old path is kept until then. Looked at are the files that name paths of hosts by their nature, symbolic links in all
locations, and the files of the location ``state``, as long as they are not large; what was not looked at is told.
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from .. import own_files
from ..answers import check_answers
from ..errors import StowageError, one_line, printable
from ..layout import record as layout_record
from ..paths import is_within
from ..places import Places
from ..services.systemd_units import mount_unit
from ..sizes import decimal
from ..syscalls import open_beneath
from ..trees.walk import Problem, Walk
from ..use.child import answer_of, progress
from .directories import opened

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
    "/etc/cron.*/*",
    "/etc/crontab",
    "/var/spool/cron/**",
    "/etc/auto.*",
    "/etc/auto.master.d/*",
    "/etc/samba/smb.conf",
    "/etc/tmpfiles.d/*",
    "/usr/local/etc/tmpfiles.d/*",
)
_LARGEST = 1 << 20
_MOST, _MOST_BELOW, _MOST_PROBLEMS = 100, 20, 3
_MOST_READ = 1 << 28
"""What is read of the files of one location."""
_LONGEST = 200
_DEADLINE_S = 600.0


def named_in(data: bytes, paths: Iterable[str]) -> Iterator[str]:
    """Yield where *data* names one of *paths*, or something below it: as ``line: path``, or ``path`` alone if not text.

    Nothing else of the data is told: lines may hold secrets.
    """
    is_text = b"\0" not in data
    choice = b"|".join(re.escape(one) for path in paths for one in sorted(_spelled(path), key=len, reverse=True))
    # Fields of a database follow each other without anything between them.
    ends = rb"(?![\w-]|\.[\w-])" if is_text else b""
    pattern = re.compile(rb"(?:" + choice + rb")" + ends + rb"[^\0-\x20\"'<>|;,:]{0,%d}" % _LONGEST)
    for number, line in enumerate(data.split(b"\n"), 1):
        if is_text and line.lstrip().startswith(b"#"):
            continue
        for match in pattern.finditer(line):
            if not (is_text and _is_within_another(line[: match.start()])):
                named = printable(match.group())
                yield f"{number}: {named}" if is_text else named
                break


def _spelled(path: str) -> set[bytes]:
    """Return a path as fstab, tables of exports, JSON, addresses and the names of units have it."""
    spelled = (path, path.replace(" ", "\\040"), path.replace("/", "\\/"), quote(path), mount_unit(path))
    return set(map(os.fsencode, spelled))


def _is_within_another(before: bytes) -> bool:
    """Return whether what comes before a path is the beginning of that: /mnt of /mnt/srv/runs."""
    beginning = re.search(rb"[\w./@%+-]*$", before)
    return beginning is not None and beginning.group().startswith(b"/") and not beginning.group().endswith(b"/")


@dataclass(frozen=True)
class Looked:
    """What a look for an old path has found."""

    named: Sequence[str] = ()
    """What names it, one line each."""
    unseen: Sequence[str] = ()
    """What was not looked at, one line each."""

    def __add__(self, other: Looked) -> Looked:
        return Looked([*self.named, *other.named], [*self.unseen, *other.unseen])


def references(places: Places, paths: Sequence[str], ours: Iterable[str] = (), files: Sequence[str] = FILES) -> Looked:
    """Return where files on this host name one of *paths*, as ``file:line: path``.

    :param ours: files that name it because it is kept
    """
    found: list[str] = []
    unseen = []
    for path in _files(places, files):
        if path in ours:
            continue
        try:
            if os.path.getsize(path) > _LARGEST:
                unseen.append(f"{printable(path)}, which is larger than {decimal(_LARGEST)}")
                continue
            there = own_files.read(path)
        except FileNotFoundError:
            continue
        except (OSError, StowageError) as error:
            unseen.append(one_line(error, path))
            continue
        lines = [] if there is None else named_in(there[0], paths)
        found += (f"{printable(path)}:{named}" for named in lines)
    if len(found) > _MOST:
        unseen.append(f"{len(found) - _MOST} more lines that name it")
    return Looked(found[:_MOST], unseen)


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


def named_below(path: str, paths: Sequence[str], contents: bool = False) -> Looked:
    """Return what names one of *paths* in the tree at *path*: symbolic links that lead there, or below it.

    :param contents: whether to look into files, too, as long as they are not large
    """
    try:
        check_answers([("it", path)])
        with opened(os.path.realpath(path)) as fd:
            named, unseen = answer_of(lambda: _named_below(fd, path, paths, contents), _DEADLINE_S)
    except (StowageError, OSError) as error:
        return Looked(unseen=[f"{printable(path)}: {one_line(error)}"])
    return Looked(named, unseen)


def _named_below(fd: int, top: str, paths: Sequence[str], contents: bool) -> tuple[list[str], list[str]]:
    named: list[str] = []
    problems: list[Problem] = []
    more = left_out = size = 0
    # Opened anew: btrfs does not list what has come since a directory was opened.
    walk = Walk(open_beneath(fd, b"."), problems.append)
    for directory in walk:
        for entry in directory.files():
            progress()
            found: Iterable[str] = ()
            name = f"{printable(top)}/{walk.path(entry.name)}"
            if entry.is_symlink():
                target = os.readlink(os.fsencode(entry.name), dir_fd=directory.fd)
                if any(is_within(os.fsdecode(target), path) for path in paths):
                    found = (f"the link {name} -> {printable(target)}",)
            elif contents and entry.is_file(follow_symlinks=False):
                data = None if size > _MOST_READ else _read(directory.fd, entry.name)
                if data is None:
                    left_out += 1
                else:
                    size += len(data)
                    found = (f"{name}:{named}" for named in named_in(data, paths))
            for one in found:
                if len(named) < _MOST_BELOW:
                    named.append(one)
                else:
                    more += 1
    unseen = [f"{printable(top)}/{problem}" for problem in problems[:_MOST_PROBLEMS]]
    if len(problems) > _MOST_PROBLEMS:
        unseen.append(f"{printable(top)}: {len(problems) - _MOST_PROBLEMS} more places")
    if left_out:
        bound = f"{decimal(_LARGEST)}, or came after the first {decimal(_MOST_READ)}"
        unseen.append(f"{printable(top)}: {left_out} files that are larger than {bound}")
    if more:
        unseen.append(f"{printable(top)}: {more} more links and lines that name it")
    return named, unseen


def _read(dir_fd: int, name: str) -> bytes | None:
    """Return the content of a file; None when it is too large, or cannot be read."""
    try:
        fd = open_beneath(dir_fd, os.fsencode(name), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            return None
        return file.read(_LARGEST)
