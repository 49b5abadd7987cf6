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
from typing import NamedTuple, Union

from ..drives.declared import TRANSPORTS
from ..errors import Refusal, quoted
from ..placement.machines import FABRIC, INFINIBAND, SITE, Machine

AUTO, RDMA, TCP, LOCAL = TRANSPORTS
_CALLED = {INFINIBAND: INFINIBAND, "Ethernet": "RoCE"}
"""Link layers, and what a network of each is called."""

Interface = Union[ipaddress.IPv4Interface, ipaddress.IPv6Interface]


class End(NamedTuple):
    """A machine at one end of a network mount."""

    machine: Machine
    address: str = ""
    """Its address for NFS over TCP, as the operator names it; empty to find one."""

    @property
    def name(self) -> str:
        return self.machine.name


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


def decide(wanted: str, server: End, client: End) -> Way:
    """Return how *client* reads what is on *server*.

    :param wanted: the drive's transport
    :raises Refusal: when it may not, or cannot; the object in it is left to the caller, who knows the drive
    """
    if wanted not in TRANSPORTS:
        raise Refusal("transport", f"{quoted(wanted)} is none of {', '.join(TRANSPORTS)}")
    if wanted == LOCAL:
        raise Refusal("", f"its transport is Local: it is never read over the network, only on {server.name}")
    if client.machine.in_another_site(server.machine):
        site = server.machine.labels[SITE]
        raise Refusal("", f"{server.name} is in another site ({site}): data is never read across sites")
    for end in (server, client):
        if end.machine.facts is None:
            raise Refusal("", f"machine {end.name} has not reported its storage yet", "gather its facts")
    if wanted == TCP:
        return _over_tcp(server, client, "TCP is asked for")
    found, why = _rdma_addresses(server.machine, client.machine)
    if found is not None:
        return Way(RDMA, *found, why)
    if wanted == RDMA:
        raise Refusal("", f"its transport is RDMA, and {why}", "put both on one RDMA network, or let it be Auto")
    has_rdma = all(end.machine.rdma_ports for end in (server, client))
    is_down = has_rdma and not all(list(_ports(end.machine)) for end in (server, client))
    return _over_tcp(server, client, why)._replace(rdma_is_down=is_down)


def _over_tcp(server: End, client: End, why: str) -> Way:
    there = _one(server) or _all(server.machine)
    here = _one(client) or _all(client.machine)
    pair = _pair(there, here)
    if pair is None:
        missing = next((end.name for end, those in ((server, there), (client, here)) if not those), None)
        rule = (
            f"{missing} has no address" if missing else f"{server.name} and {client.name} have no address family both"
        )
        raise Refusal("", rule, "name an address for each in the host variable stowage_nfs_address")
    return Way(TCP, *pair, why)


def _one(end: End) -> list[Interface]:
    if not end.address:
        return []
    try:
        address = ipaddress.ip_address(end.address)
    except ValueError as error:
        raise Refusal(f"stowage_nfs_address of {end.name}", f"{quoted(end.address)} is no IP address") from error
    # With the network that the machine has it in, where it is one of the machine's own.
    return [own for own in _all(end.machine) if own.ip == address] or [ipaddress.ip_interface(end.address)]


def _all(machine: Machine) -> list[Interface]:
    return _interfaces(machine.facts["addresses"]) if machine.facts is not None else []


def _interfaces(addresses: Iterable[str]) -> list[Interface]:
    return [ipaddress.ip_interface(address) for address in addresses]


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
            yield port["link_layer"], own.get(address) or ipaddress.ip_interface(address)
