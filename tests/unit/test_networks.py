# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses from the kernel's answer, RDMA ports from trees in the shape of sysfs, and the tools of NFS."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sysfs import write

from stowage_core import networks
from stowage_core.errors import StowageError
from stowage_core.networks import Address

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:b83f:d203:00ab:cdef"


# -- Addresses


def _message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body


def _new_address(index: int, prefix: int, scope: int, *attributes: tuple[int, bytes]) -> bytes:
    body = struct.pack("=BBBBI", 2, prefix, 0, scope, index)
    for kind, value in attributes:
        padded = value + bytes(-len(value) % 4)
        body += struct.pack("=HH", 4 + len(value), kind) + padded
    return _message(20, body)


def _packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


NAMES = {1: "lo", 2: "ib0"}
DONE = _message(3, bytes(4))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            _new_address(2, 24, 0, (1, _packed("10.1.0.7")), (2, _packed("10.1.0.7")), (3, b"ib0\0")),
            Address("ib0", "10.1.0.7", 24, "global"),
        ),
        (
            # A point-to-point link: the first is the other end's.
            _new_address(2, 32, 0, (1, _packed("10.9.9.9")), (2, _packed("10.1.0.8"))),
            Address("ib0", "10.1.0.8", 32, "global"),
        ),
        (_new_address(2, 64, 253, (1, _packed("fe80::1"))), Address("ib0", "fe80::1", 64, "link")),
        (_new_address(1, 8, 254, (1, _packed("127.0.0.1"))), Address("lo", "127.0.0.1", 8, "host")),
        (_new_address(9, 8, 0, (1, _packed("10.0.0.1"))), None),  # an interface that has gone meanwhile
        (_new_address(2, 8, 0, (3, b"ib0\0")), None),
        (_message(16, bytes(16)), None),  # another kind of message
    ],
)
def test_one_address(message: bytes, expected: Address | None) -> None:
    assert networks.parse_addresses(message, NAMES) == (False, [] if expected is None else [expected])
    assert networks.parse_addresses(message + DONE, NAMES) == (True, [] if expected is None else [expected])


def test_families() -> None:
    assert [Address("a", text, 8, "global").family for text in ("10.0.0.1", "fd00::1")] == ["ipv4", "ipv6"]


def test_a_refusal_is_an_error() -> None:
    with pytest.raises(StowageError, match="RTM_GETADDR"):
        networks.parse_addresses(_message(2, struct.pack("=i", -1)), NAMES)


@given(st.binary(max_size=200))
def test_any_answer_ends(answer: bytes) -> None:
    with contextlib.suppress(StowageError, struct.error, ValueError):  # not of the kernel's form
        networks.parse_addresses(answer, NAMES)


def test_this_host_has_its_own_loopback_address() -> None:
    here = networks.addresses()
    assert Address("lo", "127.0.0.1", 8, "host") in here
    assert {address.device for address in here} <= {name for _index, name in socket.if_nameindex()}


# -- RDMA


def _port(device: str, number: int, **attributes: str) -> dict[str, str]:
    base = f"class/infiniband/{device}/ports/{number}"
    return {f"{base}/{name.replace('__', '/')}": value for name, value in attributes.items()}


def test_infiniband(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            **_port("mlx5_0", 1, link_layer="InfiniBand", state="4: ACTIVE", rate="400 Gb/sec (4X NDR)"),
            **_port("mlx5_0", 1, gids__0=LINK_LOCAL, gids__1=NO_GID),
            **_port("mlx5_0", 2, link_layer="InfiniBand", state="1: DOWN", rate="10 Gb/sec (4X SDR)", gids__0=NO_GID),
            "class/infiniband/mlx5_0/device/net/ib0/dev_port": "0",
            "class/infiniband/mlx5_0/device/net/ib1/dev_port": "1",
        },
    )
    one, two = networks.rdma_ports(str(tmp_path))
    assert (one.device, one.port, one.link_layer, one.state, one.active) == ("mlx5_0", 1, "InfiniBand", "ACTIVE", True)
    assert (one.rate, one.subnet_prefix, one.gids) == ("400 Gb/sec (4X NDR)", "fe80:0000:0000:0000", (LINK_LOCAL,))
    assert one.netdevs == ("ib0",)
    assert (two.active, two.subnet_prefix, two.netdevs) == (False, "", ("ib1",))


def test_roce_goes_by_the_interfaces_of_its_gids(tmp_path: Path) -> None:
    """On Ethernet a VLAN or a bond has the address, not the adapter's own interface."""
    gids = {f"gids__{index}": NO_GID for index in range(20)}
    gids.update(gids__0=LINK_LOCAL, gids__3="0000:0000:0000:0000:0000:ffff:0a01:0007")
    write(
        tmp_path,
        {
            **_port("rocep1s0", 1, link_layer="Ethernet", state="4: ACTIVE", rate="100 Gb/sec (4X EDR)", **gids),
            **_port("rocep1s0", 1, gid_attrs__ndevs__0="bond0", gid_attrs__ndevs__3="bond0.100"),
            "class/infiniband/rocep1s0/device/net/ens1/dev_port": "0",
        },
    )
    (port,) = networks.rdma_ports(str(tmp_path))
    assert (port.link_layer, port.netdevs, len(port.gids)) == ("Ethernet", ("bond0", "bond0.100"), 2)


@pytest.mark.parametrize("state", ["5: ACTIVE_DEFER", "2: INIT", "3: ARMED", "1: DOWN", "ACTIVEX", ""])
def test_only_active_is_active(tmp_path: Path, state: str) -> None:
    write(tmp_path, _port("mlx5_0", 1, link_layer="InfiniBand", state=state))
    (port,) = networks.rdma_ports(str(tmp_path))
    assert not port.active


def test_without_rdma(tmp_path: Path) -> None:
    assert networks.rdma_ports(str(tmp_path)) == []


# -- NFS


def test_tools_and_listeners(tmp_path: Path) -> None:
    tools = tmp_path / "sbin"
    write(tools, {"mount.nfs": "#!", "exportfs": "#!", "rpc.nfsd": "#!"})
    (tools / "mount.nfs").chmod(0o755)
    (tools / "exportfs").chmod(0o755)
    write(tmp_path, {"fs/nfsd/portlist": "rdma 20049\nrdma 20049\ntcp 2049\ntcp 2049"})
    nfs = networks.nfs(str(tmp_path), [str(tools)])
    assert nfs.tools == {
        "exportfs": str(tools / "exportfs"),
        "mount.nfs": str(tools / "mount.nfs"),
        "rpc.nfsd": None,  # not executable
    }
    assert (nfs.can_mount, nfs.can_export) == (True, False)
    assert nfs.listeners == ("rdma 20049", "tcp 2049")


def test_without_nfs(tmp_path: Path) -> None:
    nfs = networks.nfs(str(tmp_path), [])
    assert (nfs.can_mount, nfs.can_export, nfs.listeners) == (False, False, ())
