# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mount units of network mounts, and whether what is mounted is what such a unit says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..errors import Refusal, printable
from ..mounts import Mount
from ..own_files import HEADER
from ..places import Places
from ..services.systemd_units import escape_path, mount_unit
from .exports import argument
from .server import RDMA_PORT

UNITS = "/etc/systemd/system"
FSTYPE = "nfs4"
TCP, RDMA = "tcp", "rdma"
MOUNT_LIMIT_S = 30
"""How long one attempt to mount, or to unmount, may take."""
IS_READ_ONLY = "it is read-only"
_PORTS = {TCP: 2049, RDMA: RDMA_PORT}
# hard: whoever reads waits for the server instead of taking an error for the end of a file. Versions and times are
# written out: their defaults are other ones on other kernels. retry: one attempt, the unit's limit bounds it.
_KEPT = ("hard", "timeo=600", "retrans=2")
_VERSIONS = {TCP: "4.2", RDMA: "4.1"}
"""Not the same: the kernel takes two connections to one server for one, and would mount the second over the transport
of the first. Clients of another minor version are another client to it."""
_ASKED = ("retry=0", "nosuid", "nodev")
_WHAT = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<four>[^:\[\]]+)):(?P<export>/.*)")
_LONGEST = 255
"""Bytes in the name of a unit."""


def mount_point(places: Places, workspace: str, drive: str, source: int) -> str:
    """Return where a source of a drive that is on another machine is mounted."""
    return os.path.join(root(places), f"{workspace}.{drive}-{source}")


def root(places: Places) -> str:
    """Return the directory of all network mounts."""
    return os.path.join(places.var, "datavolumes", "mounts")


def unit_path(point: str) -> str:
    """Return the file of the unit of a mount point."""
    return os.path.join(UNITS, mount_unit(point))


def check_length(name: str, point: str) -> None:
    """Refuse a mount point whose unit would have no name."""
    length = len(mount_unit(point))
    if length > _LONGEST:
        rule = f"the name of its mount unit would have {length} bytes, and the longest has {_LONGEST}"
        raise Refusal(name, rule, "shorten the name of the drive or its workspace")


def files(places: Places) -> Iterator[str]:
    """Return the files that may be the units of network mounts."""
    prefix = f"{escape_path(root(places))}-"
    names = os.listdir(UNITS) if os.path.isdir(UNITS) else []
    for name in sorted(names):
        if name.startswith(prefix) and name.endswith(".mount"):
            yield os.path.join(UNITS, name)


@dataclass(frozen=True)
class MountUnit:
    """A network mount as systemd is to mount it."""

    point: str
    address: str
    """The server's."""
    export: str
    """The path on the server."""
    proto: str
    """``tcp`` or ``rdma``."""
    read_only: bool
    description: str

    @property
    def name(self) -> str:
        return mount_unit(self.point)

    @property
    def path(self) -> str:
        return unit_path(self.point)

    @property
    def what(self) -> str:
        return argument(self.address, self.export)

    @property
    def options(self) -> list[str]:
        access = "ro" if self.read_only else "rw"
        return [access, *self._kept, f"port={_PORTS[self.proto]}", *_ASKED]

    @property
    def _kept(self) -> list[str]:
        """Return the options that the kernel shows of the filesystem."""
        proto = f"{self.proto}6" if ":" in self.address else self.proto
        return [f"vers={_VERSIONS[self.proto]}", f"proto={proto}", *_KEPT]

    @property
    def content(self) -> bytes:
        lines = [
            HEADER,
            "[Unit]",
            f"Description={_plain(self.description)}",
            "Wants=network-online.target",
            "After=network-online.target",
            "",
            "[Mount]",
            f"What={_plain(self.what)}",
            f"Where={_plain(self.point)}",
            f"Type={FSTYPE}",
            f"Options={','.join(self.options)}",
            f"TimeoutSec={MOUNT_LIMIT_S}",
            "DirectoryMode=0700",
        ]
        return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")

    # -- What is mounted

    def drift(self, mount: Mount) -> list[str]:
        """Return what of *mount*, which is at the mount point, is not as the unit says."""
        if mount.fstype != FSTYPE or mount.source != self.what:
            return [f"{printable(mount.source)} ({mount.fstype}) is mounted there"]
        # As the kernel shows them: the access and what programs may do is of the mount, the rest of the filesystem.
        have = {*mount.options, *mount.super_options}
        wanted = [*self._kept, "nosuid", "nodev", *(["ro"] if self.read_only else [])]
        found = [f"{option} is missing" for option in wanted if option not in have]
        if not self.read_only and mount.read_only:
            found.append(IS_READ_ONLY)
        return found


def parse(content: bytes) -> MountUnit | None:
    """Return the unit that a file of ours is; None when it is none of a network mount."""
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    said = {key: value.replace("%%", "%") for key, equals, value in (line.partition("=") for line in lines) if equals}
    what = _WHAT.fullmatch(said.get("What", ""))
    options = said.get("Options", "").split(",")
    proto = next((one for one in _PORTS for six in ("", "6") if f"proto={one}{six}" in options), None)
    if what is None or proto is None or "Where" not in said:
        return None
    address = what["six"] or what["four"]
    return MountUnit(said["Where"], address, what["export"], proto, "ro" in options, said.get("Description", ""))


def mounted_proto(mount: Mount) -> str:
    """Return by which protocol a network mount goes, as its options say: ``tcp``, ``rdma``, or nothing."""
    for option in mount.super_options:
        if option.startswith("proto="):
            return option[len("proto=") :].rstrip("6")
    return ""


def at(point: str, mounts: Iterable[Mount]) -> list[Mount]:
    """Return what is mounted at *point*, the topmost last."""
    return [mount for mount in mounts if mount.point == point]


def _plain(text: str) -> str:
    """Return *text* for a setting of a unit, with nothing left to expand."""
    return text.replace("%", "%%")
