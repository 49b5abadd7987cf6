# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exports of this host to one client address each: what stands in a file of exports(5), and what the server has.

Each network mount has a file of its own in /etc/exports.d, so that nobody else's lines are touched, and is made live
for itself: ``exportfs -r`` would drop what others have exported by hand.
"""

from __future__ import annotations

import ipaddress
import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import Refusal, quoted
from ..mounts import table_lines, unescaped
from ..own_files import HEADER

DIRECTORY = "/etc/exports.d"
ETAB = "/var/lib/nfs/etab"
"""What rpc.mountd answers clients from, and the kernel asks it for: the exports that are live."""
SQUASHES = {"root": ("root_squash", "no_all_squash"), "all": ("root_squash", "all_squash"), "none": ("no_root_squash",)}
"""Whose files a client's root, or everybody of it, is taken for nobody's: root's, all, or none."""

_NAMESPACE = uuid.UUID("7a64ac52-9a0d-5ac4-8b8f-0f0d7b8c5f0e")
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=@:,%~")
_FILE_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True)
class Export:
    """A source of a drive, exported to one address."""

    workspace: str
    drive: str
    source: int
    client: str
    """The machine, by its name in the inventory."""
    address: str
    path: str
    """Where the source leads, without symbolic links."""
    read_only: bool
    fsid: str
    mount_point: str
    """The mount that it is on: without it nothing is exported. Empty on the root filesystem."""
    squash: str = "root"
    anonymous_uid: int | None = None
    anonymous_gid: int | None = None

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.workspace, self.drive, self.source, self.client

    @property
    def name(self) -> str:
        return shown(*self.key)

    @property
    def file(self) -> str:
        return file_path(*self.key)

    @property
    def options(self) -> list[str]:
        """Return the options in the order of exports(5); what is left to its defaults is written out all the same."""
        found = ["ro" if self.read_only else "rw", "sync", "secure", "no_subtree_check", "sec=sys"]
        found += SQUASHES[self.squash]
        found += [f"anonuid={self.anonymous_uid}"] if self.anonymous_uid is not None else []
        found += [f"anongid={self.anonymous_gid}"] if self.anonymous_gid is not None else []
        found += [f"mountpoint={_escaped(self.mount_point)}"] if self.mount_point else []
        return [*found, f"fsid={self.fsid}"]

    @property
    def content(self) -> bytes:
        """The file of exports(5)."""
        line = f"{_escaped(self.path)} {self.address}({','.join(self.options)})"
        return f"{HEADER}\n# {self.name}\n{line}\n".encode("ascii")

    @property
    def argument(self) -> str:
        return argument(self.address, self.path)


def shown(workspace: str, drive: str, source: int, client: str) -> str:
    """Return what the operator knows an export as."""
    return f"drive {workspace}/{drive} source {source} to {client}"


def argument(address: str, path: str) -> str:
    """Return a directory of a machine as ``exportfs`` and ``mount`` take it, and the mount table shows it."""
    return f"[{address}]:{path}" if ":" in address else f"{address}:{path}"


def file_path(workspace: str, drive: str, source: int, client: str) -> str:
    """Return the file of an export; names of drives hold no dot, and those of machines no slash."""
    if not client or not set(client) <= _FILE_NAME:
        raise Refusal("client", f"{quoted(client)} is not the name of a machine")
    return os.path.join(DIRECTORY, f"stowage-{workspace}.{drive}-{source}@{client}.exports")


def check_address(value: str, name: str) -> str:
    """Return an IP address in its shortest form; a network, a name or a wildcard would be more than one client."""
    try:
        return str(ipaddress.ip_address(value))
    except ValueError as error:
        raise Refusal(name, f"{quoted(value)} is no IP address", "an export is to one address only") from error


def check_mount_point(point: str, name: str) -> str:
    """Return the value of the option ``mountpoint`` for an export on the mount at *point*; empty for the root."""
    if "," in point:
        raise Refusal(
            name, f"the mount point {quoted(point)} has a comma, which exports(5) cannot hold", "mount it elsewhere"
        )
    return "" if point == "/" else point


def fsid(path: str, filesystem: str) -> str:
    """Return what clients know an exported directory by: the same at every boot, another on another filesystem.

    :param filesystem: what tells its filesystem from others, as its UUID
    """
    return str(uuid.uuid5(_NAMESPACE, f"{filesystem}\n{path}"))


# -- What the server has


class Live(NamedTuple):
    """An export as the server has it."""

    path: str
    client: str
    options: frozenset[str]


def parse_etab(text: bytes) -> list[Live]:
    """Return the exports in etab: a path and ``client(options)``, with octal escapes in the path."""
    found = []
    for line in table_lines(text):
        path, _tab, rest = line.partition(b"\t")
        client, parenthesis, options = rest.partition(b"(")
        if not parenthesis or not options.endswith(b")"):
            continue
        words = os.fsdecode(options[:-1]).split(",")
        found.append(Live(unescaped(path), os.fsdecode(client), frozenset(words)))
    return found


def find(live: Iterable[Live], address: str, path: str) -> Live | None:
    """Return the export of *path* to *address* alone."""
    return next((one for one in live if one.path == path and one.client == address), None)


def missing(export: Export, live: Live | None) -> list[str]:
    """Return which options the server does not have of an export: all when it does not have it."""
    have = frozenset() if live is None else live.options
    return [option for option in export.options if option not in have]


def _escaped(path: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in os.fsencode(path))
