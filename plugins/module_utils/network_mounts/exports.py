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
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import Refusal, quoted
from ..mounts import table_lines, unescaped
from ..own_files import HEADER, is_ours

DIRECTORY = "/etc/exports.d"
ETAB = "/var/lib/nfs/etab"
"""What rpc.mountd answers clients from, and the kernel asks it for: the exports that are live."""
SQUASHES = {"root": ("root_squash", "no_all_squash"), "all": ("root_squash", "all_squash"), "none": ("no_root_squash",)}
"""Whose files a client's root, or everybody of it, is taken for nobody's: root's, all, or none."""

_NAMESPACE = uuid.UUID("7a64ac52-9a0d-5ac4-8b8f-0f0d7b8c5f0e")
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=@:,%~")
_OPTION = _PLAIN - frozenset(b",")
_FILE_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_FILE = re.compile(r"stowage-([^.]+)\.([^.]+)-(\d+)@([A-Za-z0-9._-]+)\.exports")
_SAME = ": the same as in "


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

    def content_with(self, lead: Export) -> bytes:
        """The file when the server has it by that of *lead*: it knows one export of a directory to an address."""
        return f"{HEADER}\n# {self.name}{_SAME}{os.path.basename(lead.file)}\n".encode("ascii")

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


def file_names() -> list[str]:
    """Return the names of the files that may be those of exports of ours."""
    try:
        names = os.listdir(DIRECTORY)
    except FileNotFoundError:
        return []
    return sorted(name for name in names if name.startswith("stowage-") and name.endswith(".exports"))


def check_address(value: str, name: str) -> str:
    """Return an IP address in its shortest form; a network, a name or a wildcard would be more than one client."""
    try:
        address = str(ipaddress.ip_address(value))
    except ValueError as error:
        raise Refusal(name, f"{quoted(value)} is no IP address", "an export is to one address only") from error
    if "%" in address:  # a scope id may hold anything, as another client and its options
        raise Refusal(name, f"{quoted(value)} has a scope id", "give an address that is not link-local")
    return address


def check_path(path: str, name: str) -> str:
    """Return a directory that can be exported, and withdrawn again: exportfs takes ``\\134`` in it for a backslash."""
    if "\\" in path:
        raise Refusal(name, f"{quoted(path)} has a backslash, which exportfs cannot withdraw", "rename it")
    return path


def check_mount_point(point: str, name: str) -> str:
    """Return the value of the option ``mountpoint`` for an export on the mount at *point*; empty for the root.

    ``exportfs -r`` writes it into its table as it is: with a space there, it loses everybody's exports.
    """
    wrong = [os.fsdecode(bytes((byte,))) for byte in os.fsencode(point) if byte not in _OPTION]
    if wrong:
        rule = f"the mount point {quoted(point)} has {quoted(wrong[0])}, which an option of exports(5) cannot hold"
        raise Refusal(name, rule, "mount it elsewhere")
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

    def has_any_of(self, ours: Iterable[Export]) -> bool:
        """Return whether it is one of *ours*, and not somebody else's of the same directory."""
        return any(f"fsid={one.fsid}" in self.options for one in ours)


def parse_etab(text: bytes, between: bytes = b"\t") -> list[Live]:
    """Return the exports in etab: a path and ``client(options)``, with octal escapes in the path."""
    found = []
    for line in table_lines(text):
        path, _between, rest = line.partition(between)
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


# -- What our own files say, where the records are lost


def read_files(contents: Mapping[str, bytes]) -> list[Export]:
    """Return the exports in files of ours.

    :param contents: by the name of the file; what others have is left out
    """
    found = []
    for name, content in contents.items():
        match = _FILE.fullmatch(name)
        if match is None:
            continue
        lead = os.fsdecode(content).partition(_SAME)[2].strip()
        lines = parse_etab(contents.get(lead, content), b" ")
        if is_ours(content) and lines:
            workspace, drive, source, client = match.groups()
            found.append(_of_live((workspace, drive, int(source), client), lines[0]))
    return found


def _of_live(key: tuple[str, str, int, str], live: Live) -> Export:
    values = dict(option.split("=", 1) for option in live.options if "=" in option)
    squash = "all" if "all_squash" in live.options else "none" if "no_root_squash" in live.options else "root"
    uid, gid = (int(values[name]) if name in values else None for name in ("anonuid", "anongid"))
    point = unescaped(os.fsencode(values.get("mountpoint", "")))
    fsid = values.get("fsid", "")
    return Export(*key, live.client, live.path, "rw" not in live.options, fsid, point, squash, uid, gid)


def _escaped(path: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in os.fsencode(path))
