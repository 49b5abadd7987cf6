# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a machine reads a drive that is on another one: over RDMA or TCP, between which addresses, and why.

The rules are those of Astraeus's network mounts: RDMA where both machines are on one RDMA network, which is one
InfiniBand fabric or RoCE on both, and each has an address on it; never from one site into another.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Union

from ..drives import reasons
from ..drives.declared import TRANSPORTS
from ..drives.reasons import Reason
from ..errors import Refusal, quoted
from ..placement.machines import FABRIC, INFINIBAND, SITE, Machine
from .server import PACKAGES, TOOLS

AUTO, RDMA, TCP, LOCAL = TRANSPORTS
_CALLED = {INFINIBAND: INFINIBAND, "Ethernet": "RoCE"}
"""Link layers, and what a network of each is called."""

Interface = Union[ipaddress.IPv4Interface, ipaddress.IPv6Interface]


class Way(NamedTuple):
    """How a client reads what a server exports."""

    transport: str
    """``RDMA`` or ``TCP``."""
    server_address: str
    client_address: str
    why: str
    rdma_is_down: bool = False
    """Whether both have RDMA, and it is down on one of them."""

    @property
    def rdma(self) -> bool:
        return self.transport == RDMA


class NoWay(Refusal):
    """A machine may not read a drive that is on another one, or cannot."""

    def __init__(self, reason: Reason, remedy: str = "") -> None:
        super().__init__(reason.name, reason.rule, remedy)
        self.reason = reason


class NotReported(NoWay):
    """Nobody knows whether it can: one of them has not reported its storage."""


def decide(wanted: str, server: Machine, client: Machine, drive: str, source: int = 0) -> Way:
    """Return how *client* reads a drive that is on *server*.

    :param wanted: the drive's transport
    :param drive: what is told of, with the number of its source
    :raises NoWay: when it may not, or cannot
    """
    if wanted not in TRANSPORTS:
        raise Refusal("transport", f"{quoted(wanted)} is none of {', '.join(TRANSPORTS)}")
    if wanted == LOCAL:
        raise NoWay(reasons.only_local(drive, source, server.name))
    if client.in_another_site(server):
        raise NoWay(reasons.in_another_site(drive, server.name, server.labels[SITE]))
    if server.facts is None and not server.up:
        raise NoWay(reasons.is_down(drive, source, server.name))
    for one in (server, client):
        if one.facts is None:
            raise NotReported(reasons.not_reported(one.name))
    _check_tools(server, client, drive)
    if wanted == TCP:
        return _over_tcp(server, client, drive, "TCP is asked for")
    found, why = _rdma_addresses(server, client)
    if found is not None:
        return Way(RDMA, *found, why)
    if wanted == RDMA:
        name, rule = f"drive {drive}", "its transport is RDMA, and"
        several = f"{name}: {rule} {{count}} machines are on no RDMA network with {server.name}"
        raise NoWay(Reason(name, f"{rule} {why}", several), "put both on one RDMA network, or let it be Auto")
    has_rdma = server.rdma_ports and client.rdma_ports
    is_down = bool(has_rdma) and not all(list(_ports(one)) for one in (server, client))
    return _over_tcp(server, client, drive, why)._replace(rdma_is_down=is_down)


def _check_tools(server: Machine, client: Machine, drive: str) -> None:
    if server.facts is not None and not server.facts["nfs"]["can_export"]:
        rule = f"{server.name} has no {TOOLS['server']}"
        raise NoWay(Reason(f"drive {drive}", rule), f"install {PACKAGES['server']}")
    if client.facts is not None and not client.facts["nfs"]["can_mount"]:
        name, has_no = f"drive {drive}", f"no {TOOLS['client']}"
        reason = Reason(name, f"{client.name} has {has_no}", f"{name}: {{count}} machines have {has_no}")
        raise NoWay(reason, f"install {PACKAGES['client']}")


def _over_tcp(server: Machine, client: Machine, drive: str, why: str) -> Way:
    there = _one(server) or _all(server)
    here = _one(client) or _all(client)
    pair = _pair(there, here)
    if pair is None:
        missing = next((one.name for one, those in ((server, there), (client, here)) if not those), None)
        rule = (
            f"{missing} has no address" if missing else f"{server.name} and {client.name} have no address family both"
        )
        name = f"drive {drive}"
        several = f"{name}: {{count}} machines have no address of a family of {server.name}'s"
        raise NoWay(Reason(name, rule, several), "name an address for each in the host variable stowage_nfs_address")
    return Way(TCP, *pair, why)


def _one(machine: Machine) -> list[Interface]:
    if not machine.nfs_address:
        return []
    address = ipaddress.ip_address(machine.nfs_address)
    # With the network that the machine has it in, where it is one of the machine's own.
    return [own for own in _all(machine) if own.ip == address] or [_interface(machine.nfs_address)]


def _all(machine: Machine) -> list[Interface]:
    return _interfaces(machine.facts["addresses"]) if machine.facts is not None else []


@lru_cache(maxsize=4096)
def _interface(address: str) -> Interface:
    return ipaddress.ip_interface(address)  # slow, and placement asks for those of one server with every client


def _interfaces(addresses: Iterable[str]) -> list[Interface]:
    return [_interface(address) for address in addresses]


def _pair(there: Sequence[Interface], here: Sequence[Interface]) -> tuple[str, str] | None:
    """Return an address of each end that reach each other: those in one network first.

    An address that both have is of a network inside each machine, as of its containers.
    """
    both = {one.ip for one in there} & {one.ip for one in here}
    pairs = [
        (one, other)
        for one in there
        for other in here
        if one.version == other.version and one.ip not in both and other.ip not in both
    ]
    near = [pair for pair in pairs if pair[0].network == pair[1].network]
    for one, other in near or pairs:
        return str(one.ip), str(other.ip)
    return None


def _rdma_addresses(server: Machine, client: Machine) -> tuple[tuple[str, str] | None, str]:
    """Return an address of each on an RDMA network that both are on, if there is one, and why or why not."""
    ports = {machine.name: list(_ports(machine)) for machine in (server, client)}
    for name, those in ports.items():
        if not those:
            return None, f"{name} has no active RDMA port with an address"
    why = f"{server.name} and {client.name} have no kind of RDMA network both"
    for layer, called in _CALLED.items():
        there, here = ([one for kind, one in ports[end.name] if kind == layer] for end in (server, client))
        if not there or not here:
            continue
        if layer == INFINIBAND and not client.has_same(FABRIC, server):
            why = f"{server.name} and {client.name} are not known to be on one InfiniBand fabric"
            continue
        pair = _pair(there, here)
        if pair is not None:
            return pair, "both are on one InfiniBand fabric" if layer == INFINIBAND else f"both have {called}"
        why = f"{server.name} and {client.name} have no address family both on {called}"
    return None, why


def _ports(machine: Machine) -> Iterator[tuple[str, Interface]]:
    """Yield the link layer and address of each RDMA port, with the network that the machine has it in."""
    own = {str(one.ip): one for one in _all(machine)}
    for port in machine.active_rdma_ports:
        for address in port["addresses"]:
            yield port["link_layer"], own.get(address) or _interface(address)
