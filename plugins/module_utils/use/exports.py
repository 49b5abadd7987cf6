# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NFS exports of this host: remote readers hold no descriptor here, so an export is a use of what it reaches."""

from __future__ import annotations

import os
import re

from ..mounts import table_lines, unescaped

KERNEL_TABLE = "/proc/fs/nfsd/exports"
ALL_TABLE = "/var/lib/nfs/etab"

_LINE = re.compile(rb"([^ \t]+)[ \t]+([^ \t].*)", re.DOTALL)


def exported() -> list[str]:
    """Return every exported path; the kernel's table has only those that a client has asked for since the last flush.

    :raises OSError: when a table is there and cannot be read
    """
    paths: dict[str, None] = {}
    for table in (KERNEL_TABLE, ALL_TABLE):
        try:
            with open(table, "rb") as stream:
                text = stream.read()
        except FileNotFoundError:
            continue  # no NFS server, or one that exports nothing
        paths.update(dict.fromkeys(parse(text)))
    return list(paths)


def edition() -> tuple[int, ...]:
    """Return what is another one after each change of what is exported: exportfs replaces its table."""
    try:
        status = os.stat(ALL_TABLE)
    except FileNotFoundError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def parse(text: bytes) -> list[str]:
    """Return the paths of an export table.

    Those that the server makes up for version 4, so that clients can walk to what is exported, export nothing.
    """
    paths = []
    for line in table_lines(text):
        match = None if line.startswith(b"#") else _LINE.match(line)
        if match is not None and b"v4root" not in re.split(rb"[(),]", match.group(2)):
            paths.append(unescaped(match.group(1)))
    return paths
