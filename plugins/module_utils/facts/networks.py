# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The networks of a host as far as storage needs them: addresses, RDMA ports, and the tools of NFS.

Addresses come from pyroute2 where it is installed, everything else from sysfs and procfs.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_TOOLS = ("exportfs", "mount.nfs", "rpc.nfsd")
_TOOL_DIRECTORIES = ("/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin")
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True)
class Address:
    """An address of this host, on the interface *device*."""

    device: str
    address: str
    prefix: int
    scope: str
    """``global``, ``link`` or ``host``."""

    @property
    def family(self) -> str:
        return "ipv6" if ":" in self.address else "ipv4"


# -- Addresses

_SCOPES = {0: "global", 253: "link", 254: "host"}
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B


def addresses(sys: str = "/sys", proc: str = "/proc") -> list[Address]:
    """Return every address of this host; without pyroute2 the first IPv4 address of each interface only."""
    try:
        # Loading it takes longer than all other facts together: nobody who imports this file has to wait for it.
        from pyroute2 import IPRoute
    except ImportError:
        return [*_ipv4_addresses(_names(os.path.join(sys, "class/net"))), *_ipv6_addresses(proc)]
    with IPRoute() as route:
        names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in route.get_links()}
        # On a point-to-point link IFA_ADDRESS is the other end.
        return [
            Address(
                names[message["index"]],
                message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS"),
                message["prefixlen"],
                _SCOPES.get(message["scope"], "link"),
            )
            for message in route.get_addr()
            if message["index"] in names
        ]


def is_down(device: str, sys: str = "/sys") -> bool:
    """Return whether an interface is known to carry nothing: it has been taken down, or has no cable."""
    # The loopback interface and tunnels have no other word than "unknown".
    state = _value(os.path.join(sys, "class/net", device, "operstate"))
    return state in ("down", "lowerlayerdown", "notpresent")


def _ipv4_addresses(devices: Sequence[str]) -> Iterator[Address]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as asked:
        for device in devices:
            request = struct.pack("16s240x", os.fsencode(device))
            try:
                answers = [fcntl.ioctl(asked, number, request) for number in (_SIOCGIFADDR, _SIOCGIFNETMASK)]
            except OSError as error:
                if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
                    continue  # it has no IPv4 address, or has gone
                raise
            address, mask = (ipaddress.IPv4Address(answer[20:24]) for answer in answers)
            scope = "host" if address.is_loopback else "link" if address.is_link_local else "global"
            yield Address(device, str(address), bin(int(mask)).count("1"), scope)


def _ipv6_addresses(proc: str) -> Iterator[Address]:
    try:
        with open(os.path.join(proc, "net/if_inet6"), encoding="ascii") as table:
            lines = table.read().splitlines()
    except FileNotFoundError:
        return  # a kernel without IPv6
    for line in lines:
        packed, _index, prefix, scope, _flags, device = line.split()
        # The scope in this table: 0 global, 0x10 host, 0x20 link.
        where = {0x00: "global", 0x10: "host"}.get(int(scope, 16), "link")
        yield Address(device, str(ipaddress.IPv6Address(bytes.fromhex(packed))), int(prefix, 16), where)


# -- RDMA


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device."""

    device: str
    port: int
    link_layer: str
    """``InfiniBand``, or ``Ethernet`` for RoCE and iWARP."""
    state: str
    """The kernel's word; only ``ACTIVE`` carries data (``ACTIVE_DEFER`` does not)."""
    rate: str
    subnet_prefix: str
    """The upper half of the first GID. The default one, fe80::, does not prove one fabric."""
    gids: tuple[str, ...]
    netdevs: tuple[str, ...]
    """The network interfaces that have their addresses on this port."""

    @property
    def active(self) -> bool:
        return self.state == "ACTIVE"


def rdma_ports(sys: str = "/sys") -> list[RdmaPort]:
    """Return the ports of every RDMA device; none where the kernel has no RDMA."""
    directory = os.path.join(sys, "class/infiniband")
    found = []
    for device in _names(directory):
        ports = os.path.join(directory, device, "ports")
        found += [_rdma_port(os.path.join(directory, device), device, int(port)) for port in _names(ports)]
    return found


def _rdma_port(base: str, device: str, number: int) -> RdmaPort:
    port = os.path.join(base, "ports", str(number))
    gids = {index: _value(os.path.join(port, "gids", index)) for index in _names(os.path.join(port, "gids"))}
    used = [index for index in sorted(gids, key=int) if gids[index] not in ("", _NO_GID)]
    netdevs = {_value(os.path.join(port, "gid_attrs/ndevs", index)) for index in used} - {""}
    return RdmaPort(
        device=device,
        port=number,
        link_layer=_value(os.path.join(port, "link_layer")),
        state=_value(os.path.join(port, "state")).split(": ")[-1],
        rate=_value(os.path.join(port, "rate")),
        subnet_prefix=gids[used[0]][:19] if used and used[0] == "0" else "",
        gids=tuple(gids[index] for index in used),
        netdevs=tuple(sorted(netdevs or _own_netdevs(base, number))),
    )


def _own_netdevs(base: str, number: int) -> list[str]:
    """Return the interfaces of the same adapter's port: InfiniBand's GIDs have no interface."""
    directory = os.path.join(base, "device/net")
    names = _names(directory)
    return [name for name in names if _value(os.path.join(directory, name, "dev_port")) in ("", str(number - 1))]


# -- NFS


@dataclass(frozen=True)
class Nfs:
    """What this host has of NFS."""

    tools: Mapping[str, str | None]
    """Where ``exportfs``, ``mount.nfs`` and ``rpc.nfsd`` are; None for one that is not installed."""
    listeners: tuple[str, ...]
    """What the running server listens on, as ``tcp 2049``; empty when there is none."""

    @property
    def can_export(self) -> bool:
        return self.tools["exportfs"] is not None and self.tools["rpc.nfsd"] is not None

    @property
    def can_mount(self) -> bool:
        return self.tools["mount.nfs"] is not None


def nfs(proc: str = "/proc", directories: Sequence[str] = _TOOL_DIRECTORIES) -> Nfs:
    """Return the tools of NFS and what the kernel's server listens on."""
    tools: dict[str, str | None] = {}
    for tool in _TOOLS:
        paths = (os.path.join(directory, tool) for directory in directories)
        tools[tool] = next((path for path in paths if os.access(path, os.X_OK)), None)
    listeners = _value(os.path.join(proc, "fs/nfsd/portlist")).splitlines()
    return Nfs(tools, tuple(sorted(set(listeners))))


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _value(path: str) -> str:
    """Return a kernel attribute, or "" where there is none: unused entries of a GID table answer with an error."""
    try:
        with open(path, "rb") as stream:
            return stream.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""
