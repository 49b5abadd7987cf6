# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Over what a machine reads a drive of another one: Astraeus's rules, and which addresses are taken."""

from __future__ import annotations

from typing import Any

import pytest

from stowage_core.errors import Refusal
from stowage_core.network_mounts.transport import AUTO, LOCAL, RDMA, TCP, decide
from stowage_core.placement.machines import Machine, machine

DEFAULT_PREFIX = "fe80:0000:0000:0000"
OWN_PREFIX = "fec0:0000:0000:0001"
NFS = {"can_export": True, "can_mount": True}


def port(layer: str, *addresses: str, prefix: str = DEFAULT_PREFIX, active: bool = True) -> dict[str, Any]:
    return {"link_layer": layer, "subnet_prefix": prefix, "active": active, "addresses": list(addresses)}


def end(name: str, *addresses: str, rdma: Any = (), address: str = "", nfs: Any = None, **labels: str) -> Machine:
    facts = {"labels": labels, "addresses": list(addresses), "rdma": list(rdma), "nfs": nfs or NFS}
    return machine(name, facts, nfs_address=address)


PLAIN = (end("gpu-01", "192.0.2.11/24"), end("gpu-02", "192.0.2.12/24"))
ROCE = (
    end("gpu-01", "192.0.2.11/24", "10.1.0.11/24", rdma=[port("Ethernet", "10.1.0.11")]),
    end("gpu-02", "192.0.2.12/24", "10.1.0.12/24", rdma=[port("Ethernet", "10.1.0.12")]),
)


def fabric(first: str = "", second: str = "", prefix: str = DEFAULT_PREFIX) -> tuple[Machine, Machine]:
    found = []
    for number, label in ((1, first), (2, second)):
        labels = {"infiniband_fabric": label} if label else {}
        address = f"10.2.0.1{number}"
        ports = [port("InfiniBand", address, prefix=prefix)]
        found.append(end(f"gpu-0{number}", f"192.0.2.1{number}/24", f"{address}/24", rdma=ports, **labels))
    return found[0], found[1]


@pytest.mark.parametrize(
    ("wanted", "ends", "expected"),
    [
        (AUTO, ROCE, (RDMA, "10.1.0.11", "10.1.0.12", "both have RoCE")),
        (RDMA, ROCE, (RDMA, "10.1.0.11", "10.1.0.12", "both have RoCE")),
        (TCP, ROCE, (TCP, "192.0.2.11", "192.0.2.12", "TCP is asked for")),
        (AUTO, PLAIN, (TCP, "192.0.2.11", "192.0.2.12", "gpu-01 has no active RDMA port with an address")),
        (
            AUTO,
            (ROCE[0], PLAIN[1]),
            (TCP, "192.0.2.11", "192.0.2.12", "gpu-02 has no active RDMA port with an address"),
        ),
        (AUTO, fabric("a", "a"), (RDMA, "10.2.0.11", "10.2.0.12", "both are on one InfiniBand fabric")),
        (AUTO, fabric(prefix=OWN_PREFIX), (RDMA, "10.2.0.11", "10.2.0.12", "both are on one InfiniBand fabric")),
        (
            AUTO,
            fabric(),
            (TCP, "192.0.2.11", "192.0.2.12", "gpu-01 and gpu-02 are not known to be on one InfiniBand fabric"),
        ),
        (
            AUTO,
            fabric("a", "b", OWN_PREFIX),
            (TCP, "192.0.2.11", "192.0.2.12", "gpu-01 and gpu-02 are not known to be on one InfiniBand fabric"),
        ),
        (
            AUTO,
            (fabric("a")[0], ROCE[1]),
            (TCP, "192.0.2.11", "192.0.2.12", "gpu-01 and gpu-02 have no kind of RDMA network both"),
        ),
    ],
)
def test_transport(wanted: str, ends: tuple[Machine, Machine], expected: tuple[str, ...]) -> None:
    way = decide(wanted, *ends, "imagenet")
    assert (*way[:4], way.rdma_is_down) == (*expected, False)


def test_rdma_that_is_down_at_one_end() -> None:
    """Both have it: that this is not it is not to stay unsaid."""
    down = end("gpu-02", "192.0.2.12/24", rdma=[port("Ethernet", active=False)])
    for ends in ((ROCE[0], down), (down, ROCE[0])):
        way = decide(AUTO, *ends, "imagenet")
        assert (way.transport, way.why) == (TCP, "gpu-02 has no active RDMA port with an address")
        assert way.rdma_is_down
    assert not decide(TCP, ROCE[0], down, "imagenet").rdma_is_down


def test_the_label_decides_and_not_the_prefix() -> None:
    """An operator knows that two fabrics were given one prefix."""
    assert decide(AUTO, *fabric("a", "b", OWN_PREFIX), "imagenet").transport == TCP


@pytest.mark.parametrize(
    ("there", "here", "expected"),
    [
        (["192.0.2.11/24"], ["192.0.2.12/24"], ("192.0.2.11", "192.0.2.12")),
        # The bridges of containers have the same address on every machine.
        (["172.17.0.1/16", "10.0.0.11/8"], ["172.17.0.1/16", "10.0.0.12/8"], ("10.0.0.11", "10.0.0.12")),
        # One network goes before what comes first.
        (["198.51.100.11/24", "10.0.0.11/8"], ["192.0.2.12/24", "10.0.0.12/8"], ("10.0.0.11", "10.0.0.12")),
        # Routed: nothing is nearer.
        (["198.51.100.11/24"], ["192.0.2.12/24"], ("198.51.100.11", "192.0.2.12")),
        (["2001:db8::11/64", "10.0.0.11/8"], ["2001:db8::12/64"], ("2001:db8::11", "2001:db8::12")),
    ],
)
def test_addresses_that_reach_each_other(there: list[str], here: list[str], expected: tuple[str, str]) -> None:
    way = decide(TCP, end("gpu-01", *there), end("gpu-02", *here), "imagenet")
    assert (way.server_address, way.client_address) == expected


def test_the_operator_names_the_addresses() -> None:
    server = end("gpu-01", "192.0.2.11/24", "10.0.0.11/8", address="10.0.0.11")
    client = end("gpu-02", "192.0.2.12/24", "10.0.0.12/8")
    assert decide(TCP, server, client, "imagenet")[1:3] == ("10.0.0.11", "10.0.0.12"), (
        "the client's is of the same network"
    )
    assert decide(TCP, server, client._replace(nfs_address="192.0.2.12"), "imagenet")[1:3] == (
        "10.0.0.11",
        "192.0.2.12",
    )
    with pytest.raises(Refusal, match="stowage_nfs_address of gpu-01: 'storage' is no IP address"):
        end("gpu-01", address="storage")


@pytest.mark.parametrize(
    ("wanted", "ends", "message"),
    [
        (LOCAL, PLAIN, "drive imagenet: source 0 is local to machine gpu-01 and its transport is Local"),
        (
            RDMA,
            PLAIN,
            "drive imagenet: its transport is RDMA, and gpu-01 has no active RDMA port with an address; "
            "put both on one RDMA network, or let it be Auto",
        ),
        (
            AUTO,
            (end("gpu-01", "192.0.2.11/24", site="eu-west"), end("gpu-02", "192.0.2.12/24", site="us-east")),
            "drive imagenet is on gpu-01, in another site (eu-west)",
        ),
        (
            TCP,
            (end("gpu-01", "192.0.2.11/24", site="eu-west"), end("gpu-02", "192.0.2.12/24", site="us-east")),
            "drive imagenet is on gpu-01, in another site (eu-west)",
        ),
        (
            AUTO,
            (machine("gpu-01", None), PLAIN[1]),
            "machine gpu-01 has not reported its storage yet; gather its facts",
        ),
        (
            TCP,
            (PLAIN[0], end("gpu-02")),
            "drive imagenet: gpu-02 has no address; name an address for each in the host variable stowage_nfs_address",
        ),
        (
            TCP,
            (PLAIN[0], end("gpu-02", "2001:db8::12/64")),
            "drive imagenet: gpu-01 and gpu-02 have no address family both; "
            "name an address for each in the host variable stowage_nfs_address",
        ),
        (
            AUTO,
            (end("gpu-01", nfs={"can_export": False, "can_mount": True}), PLAIN[1]),
            "drive imagenet: gpu-01 has no exportfs and rpc.nfsd; "
            "install nfs-kernel-server (Debian, Ubuntu) or nfs-utils",
        ),
        (
            AUTO,
            (PLAIN[0], end("gpu-02", nfs={"can_export": True, "can_mount": False})),
            "drive imagenet: gpu-02 has no mount.nfs; install nfs-common (Debian, Ubuntu) or nfs-utils",
        ),
        ("UDP", PLAIN, "transport: 'UDP' is none of Auto, RDMA, TCP, Local"),
    ],
)
def test_refusals(wanted: str, ends: tuple[Machine, Machine], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        decide(wanted, *ends, "imagenet")
    assert str(refused.value) == message


def test_one_site_or_none_named() -> None:
    """Machines without the label are taken to be where the others are."""
    there, here = end("gpu-01", "192.0.2.11/24", site="eu-west"), end("gpu-02", "192.0.2.12/24")
    assert decide(TCP, there, here, "imagenet").transport == TCP
