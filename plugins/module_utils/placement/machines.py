# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What placement knows of a machine: the compact facts it reported, and where the inventory says that it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import Refusal, did_you_mean, quoted
from ..network_mounts.exports import check_address
from ..paths import is_within

SITE, RACK, FABRIC, NVLINK = LABELS = ("site", "rack", "infiniband_fabric", "nvlink_domain")
"""What only an operator knows: the keys of the variable ``stowage_topology``."""

INFINIBAND = "InfiniBand"
_DEFAULT_PREFIX = "fe80:0000:0000:0000"
"""The subnet prefix of every InfiniBand fabric that was given none: it does not prove one fabric."""


class Machine(NamedTuple):
    """One machine; a tuple, because there may be 10,000."""

    name: str
    facts: Mapping[str, Any] | None
    """The compact part of its facts; None when there are none."""
    labels: Mapping[str, str]
    """Those of ``LABELS`` that are known."""
    up: bool = True
    """False when it has just been asked, and did not answer."""
    nfs_address: str = ""
    """Its address for NFS over TCP, as the operator names it; empty to find one."""

    @property
    def data_location(self) -> Mapping[str, Any] | None:
        location: Mapping[str, Any] | None = self.facts["data_location"] if self.facts is not None else None
        return location

    def holds(self, copy: str) -> bool:
        """Return whether it has the copy of a placed drive of that name."""
        return self.facts is not None and copy in self.facts["copies"]

    def shares(self, path: str) -> bool:
        """Return whether *path* is on a shared filesystem that it reported."""
        if self.facts is None:
            return False
        return any(is_within(path, mount) for one in self.facts["shared"] for mount in one.get("mounts", ()))

    def in_another_site(self, other: Machine) -> bool:
        """Return whether both machines carry a site, and not the same one."""
        here, there = self.labels.get(SITE), other.labels.get(SITE)
        return here is not None and there is not None and here != there

    def has_same(self, label: str, other: Machine) -> bool:
        """Return whether both machines carry *label* with one value; an InfiniBand fabric may be told by its prefix."""
        here, there = self.labels.get(label), other.labels.get(label)
        if label == FABRIC and (here is None or there is None):
            return not self._prefixes().isdisjoint(other._prefixes())
        return here is not None and here == there

    def has_rdma_to(self, other: Machine) -> bool:
        """Return whether both are on one RDMA network (one InfiniBand fabric, or both RoCE), with an address on it."""
        layers = self._layers() & other._layers()
        return bool(layers - {INFINIBAND}) or (INFINIBAND in layers and self.has_same(FABRIC, other))

    @property
    def rdma_ports(self) -> list[Mapping[str, Any]]:
        """Its RDMA ports, those that are down too."""
        ports: list[Mapping[str, Any]] = self.facts["rdma"] if self.facts is not None else []
        return ports

    @property
    def active_rdma_ports(self) -> list[Mapping[str, Any]]:
        return [port for port in self.rdma_ports if port["active"]]

    def _layers(self) -> set[str]:
        return {port["link_layer"] for port in self.active_rdma_ports if port["addresses"]}

    def _prefixes(self) -> set[str]:
        prefixes = {port["subnet_prefix"] for port in self.active_rdma_ports if port["link_layer"] == INFINIBAND}
        return prefixes - {"", _DEFAULT_PREFIX}


def machine(
    name: str, facts: Mapping[str, Any] | None, topology: Any = None, up: bool = True, nfs_address: Any = None
) -> Machine:
    """Return the machine *name*.

    :param facts: the compact part of its facts, if there are any
    :param topology: where the inventory says that it is; None when it does not, and then the labels of its facts count
    :param up: False when it has just been asked, and did not answer
    :param nfs_address: which address the inventory names for NFS over TCP, if it does
    """
    address = check_address(str(nfs_address), f"stowage_nfs_address of {name}") if nfs_address else ""
    if topology is not None:
        return Machine(name, facts, check_topology(topology, f"stowage_topology of {name}"), up, address)
    labels = facts["labels"] if facts is not None else {}
    return Machine(name, facts, {label: labels[label] for label in LABELS if labels.get(label)}, up, address)


def check_topology(value: Any, name: str = "stowage_topology") -> dict[str, str]:
    """Return the labels in *value*; one that is empty is not carried."""
    if not isinstance(value, Mapping):
        raise Refusal(name, "must be a dictionary", f"with {', '.join(LABELS)} as far as they are known")
    labels = {}
    for label, given in value.items():
        if label not in LABELS:
            near = did_you_mean(label, LABELS) if isinstance(label, str) else ""
            raise Refusal(name, f"{quoted(str(label))} is no label", near or f"there are {', '.join(LABELS)}")
        if given is None or given == "":
            continue
        text = str(given) if isinstance(given, int) and not isinstance(given, bool) else given
        if not isinstance(text, str) or not text.isprintable():
            raise Refusal(name, f"{label} must be a name", "put quotes around it")
        labels[label] = text
    return labels
