# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where machines are, and what they have in common."""

from __future__ import annotations

from typing import Any

import pytest

from stowage_core.errors import Refusal
from stowage_core.placement.machines import FABRIC, NVLINK, RACK, Machine, check_topology, machine

PREFIX = "fec0:0000:0000:0001"
DEFAULT = "fe80:0000:0000:0000"


def port(layer: str = "InfiniBand", prefix: str = DEFAULT, *addresses: str) -> dict[str, Any]:
    return {"link_layer": layer, "subnet_prefix": prefix, "active": True, "addresses": list(addresses)}


def one(*ports: dict[str, Any], **labels: str) -> Machine:
    facts = {"labels": {}, "data_location": None, "copies": {}, "shared": [], "rdma": list(ports)}
    return machine("m", facts, labels)


@pytest.mark.parametrize(
    ("here", "there", "another"),
    [
        ({"site": "eu"}, {"site": "us"}, True),
        ({"site": "eu"}, {"site": "eu"}, False),
        ({"site": "eu"}, {}, False),
        ({}, {"site": "us"}, False),
        ({}, {}, False),
    ],
)
def test_only_two_sites_that_are_known_differ(here: dict[str, str], there: dict[str, str], another: bool) -> None:
    assert one(**here).in_another_site(one(**there)) is another


@pytest.mark.parametrize("label", [RACK, FABRIC, NVLINK])
def test_a_label_that_one_of_them_lacks_is_not_the_same(label: str) -> None:
    assert one(**{label: "x"}).has_same(label, one(**{label: "x"}))
    assert not one(**{label: "x"}).has_same(label, one(**{label: "y"}))
    assert not one(**{label: "x"}).has_same(label, one())
    assert not one().has_same(label, one())


@pytest.mark.parametrize(
    ("here", "there", "same"),
    [
        (one(port(prefix=PREFIX)), one(port(prefix=PREFIX)), True),
        (one(port(prefix=PREFIX)), one(port(prefix="fec0:0000:0000:0002")), False),
        (one(port()), one(port()), False),
        (one(port(prefix="")), one(port(prefix="")), False),
        (one(port("Ethernet", PREFIX)), one(port("Ethernet", PREFIX)), False),
        # The operator's labels decide where both carry one.
        (one(port(prefix=PREFIX), infiniband_fabric="a"), one(port(prefix=PREFIX), infiniband_fabric="b"), False),
        (one(port(prefix=PREFIX), infiniband_fabric="a"), one(port(prefix=PREFIX)), True),
    ],
    ids=["one prefix", "two", "the default proves nothing", "none", "not InfiniBand", "labels", "one label"],
)
def test_a_fabric_is_told_by_its_prefix(here: Machine, there: Machine, same: bool) -> None:
    assert here.has_same(FABRIC, there) is there.has_same(FABRIC, here) is same


ROCE, IB = port("Ethernet", DEFAULT, "10.0.0.1"), port("InfiniBand", DEFAULT, "10.1.0.1")


@pytest.mark.parametrize(
    ("here", "there", "rdma"),
    [
        (one(ROCE), one(ROCE), True),
        (one(ROCE), one(IB), False),
        (one(ROCE), one(), False),
        (one(ROCE), one(port("Ethernet")), False),
        (one(IB), one(IB), False),
        (one(IB, infiniband_fabric="a"), one(IB, infiniband_fabric="a"), True),
        (one(IB, infiniband_fabric="a"), one(IB, infiniband_fabric="b"), False),
        (one(IB, ROCE), one(IB, ROCE), True),
        (machine("m", None, {}), one(ROCE), False),
    ],
    ids=["RoCE", "two kinds", "one end", "no address", "which fabric", "one fabric", "two", "either", "no facts"],
)
def test_rdma_at_both_ends(here: Machine, there: Machine, rdma: bool) -> None:
    assert here.has_rdma_to(there) is there.has_rdma_to(here) is rdma


@pytest.mark.parametrize(
    ("path", "shared"),
    [
        ("/lustre/checkpoints", True),
        ("/lustre", True),
        ("/home/a", True),
        ("/lustre2", False),
        ("/", False),
    ],
)
def test_what_is_on_a_shared_filesystem(path: str, shared: bool) -> None:
    facts = {"labels": {}, "shared": [{"mount": "/home", "mounts": ["/home", "/lustre"]}]}
    assert machine("m", facts).shares(path) is shared
    assert not machine("m", None).shares(path)


def test_the_inventory_says_where_a_machine_is() -> None:
    facts = {"labels": {"site": "eu", "rack": "r1", "fabric": "unknown here", "nvlink_domain": ""}}
    assert machine("m", facts).labels == {"site": "eu", "rack": "r1"}
    assert machine("m", facts, {"site": "us"}).labels == {"site": "us"}
    assert machine("m", facts, {}).labels == {}
    assert machine("m", None).labels == {}
    assert machine("m", None, {"site": "us"}).labels == {"site": "us"}


def test_labels() -> None:
    assert check_topology({"site": "eu", "rack": 7, "nvlink_domain": None, "infiniband_fabric": ""}) == {
        "site": "eu",
        "rack": "7",
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "eu",
            "stowage_topology of m: must be a dictionary; with site, rack, infiniband_fabric, nvlink_domain as far ",
        ),
        ({"sites": "eu"}, "stowage_topology of m: 'sites' is no label; did you mean site?"),
        (
            {"zone": "a"},
            "stowage_topology of m: 'zone' is no label; there are site, rack, infiniband_fabric, nvlink_domain",
        ),
        ({1: "a"}, "stowage_topology of m: '1' is no label; there are site, rack, infiniband_fabric, nvlink_domain"),
        ({"site": False}, "stowage_topology of m: site must be a name; put quotes around it"),
        ({"site": 1.5}, "stowage_topology of m: site must be a name; put quotes around it"),
        ({"rack": "a\nb"}, "stowage_topology of m: rack must be a name; put quotes around it"),
    ],
)
def test_labels_that_would_not_act_are_refused(value: Any, message: str) -> None:
    with pytest.raises(Refusal) as refused:
        machine("m", None, value)
    assert str(refused.value).startswith(message)
