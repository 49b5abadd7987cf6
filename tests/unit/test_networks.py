# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses with and without pyroute2, RDMA ports from trees in the shape of sysfs, and the tools of NFS."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from sysfs import write

from stowage_core.facts import networks
from stowage_core.facts.networks import Address

NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:b83f:d203:00ab:cdef"


# -- Addresses


def test_families() -> None:
    assert [Address("a", text, 8, "global").family for text in ("10.0.0.1", "fd00::1")] == ["ipv4", "ipv6"]


@pytest.fixture(params=[True, False], ids=["pyroute2", "bare"])
def with_pyroute2(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setitem(sys.modules, "pyroute2", None)  # its import fails as on a host that has not got it


@pytest.mark.usefixtures("with_pyroute2")
def test_this_host_has_its_own_addresses() -> None:
    here = networks.addresses()
    assert Address("lo", "127.0.0.1", 8, "host") in here
    assert {address.device for address in here} <= {name for _index, name in socket.if_nameindex()}


@pytest.mark.parametrize(
    ("state", "down"), [("up", False), ("unknown", False), ("down", True), ("lowerlayerdown", True)]
)
def test_interfaces_that_carry_nothing(tmp_path: Path, state: str, down: bool) -> None:
    write(tmp_path, {"class/net/eth1/operstate": f"{state}\n"})
    assert networks.is_down("eth1", sys=str(tmp_path)) is down


def test_ipv6_without_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    write(
        tmp_path,
        {
            "net/if_inet6": "fe80000000000000b83fd20300abcdef 02 40 20 80 ib0\n"
            "fd000000000000000000000000000007 02 78 00 80 ib0\n"
            "00000000000000000000000000000001 01 80 10 80 lo"
        },
    )
    assert networks.addresses(sys=str(tmp_path), proc=str(tmp_path)) == [
        Address("ib0", "fe80::b83f:d203:ab:cdef", 64, "link"),
        Address("ib0", "fd00::7", 120, "global"),
        Address("lo", "::1", 128, "host"),
    ]


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
