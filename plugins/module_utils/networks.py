# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The networks of a host as far as storage needs them: addresses, RDMA ports, and the tools of NFS.

Addresses come from the kernel by one netlink request, everything else from sysfs and procfs. Nothing is imported for
it: pyroute2 asks the kernel the same question, and takes 130 ms to load where the whole answer takes one.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .errors import StowageError

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


# -- Addresses, by RTM_GETADDR (see rtnetlink(7))

_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ADDRESS_MESSAGE = struct.Struct("=BBBBI")  # family, prefix, flags, scope, interface index
_ATTRIBUTE = struct.Struct("=HH")  # length, type
_RTM_GETADDR, _RTM_NEWADDR = 22, 20
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST_DUMP = 0x301
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_SCOPES = {0: "global", 253: "link", 254: "host"}


def addresses() -> list[Address]:
    """Return every address of this host, in the kernel's order."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as asked:
        asked.settimeout(1)
        body = _ADDRESS_MESSAGE.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        asked.send(_HEADER.pack(_HEADER.size + len(body), _RTM_GETADDR, _NLM_F_REQUEST_DUMP, 1, 0) + body)
        names = dict(socket.if_nameindex())
        found: list[Address] = []
        while True:
            done, part = parse_addresses(asked.recv(1 << 16), names)
            found += part
            if done:
                return found


def parse_addresses(answer: bytes, names: Mapping[int, str]) -> tuple[bool, list[Address]]:
    """Return whether one datagram of the kernel's *answer* was the last, and the addresses in it."""
    found: list[Address] = []
    offset = 0
    while offset + _HEADER.size <= len(answer):
        length, kind, _flags, _sequence, _port = _HEADER.unpack_from(answer, offset)
        if kind == _NLMSG_DONE:
            return True, found
        if kind == _NLMSG_ERROR or length < _HEADER.size:
            raise StowageError("the kernel refused to list this host's addresses (RTM_GETADDR)")
        if kind == _RTM_NEWADDR:
            address = _address(answer[offset + _HEADER.size : offset + length], names)
            if address is not None:
                found.append(address)
        offset += _aligned(length)
    return False, found


def _address(message: bytes, names: Mapping[int, str]) -> Address | None:
    _family, prefix, _flags, scope, index = _ADDRESS_MESSAGE.unpack_from(message)
    values = dict(_attributes(message[_ADDRESS_MESSAGE.size :]))
    # On a point-to-point link ADDRESS is the other end.
    packed = values.get(_IFA_LOCAL, values.get(_IFA_ADDRESS))
    if packed is None or index not in names:
        return None
    return Address(names[index], str(ipaddress.ip_address(packed)), prefix, _SCOPES.get(scope, "link"))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[offset + _ATTRIBUTE.size : offset + length]
        offset += _aligned(length)


def _aligned(length: int) -> int:
    return (length + 3) & ~3


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
