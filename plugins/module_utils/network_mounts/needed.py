# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which network mounts the workers of a run need: one for each drive on another machine than their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..drives.declared import ON_ONE_MACHINE
from ..drives.refs import Wanted
from ..placement.machines import Machine, machine
from .transport import NoWay, Way, decide

_READ_ONLY = "ReadOnly"


class NetworkMount(NamedTuple):
    """A source of a drive on machine *node*, to be read on machine *client*."""

    workspace: str
    drive: str
    source: int
    node: str
    client: str
    export: str
    """The source's path on *node*."""
    read_only: bool
    wanted: str
    """The drive's transport, as it is declared."""
    way: Way

    def to_export(self) -> dict[str, Any]:
        """Return what module nfs_exports takes on *node*."""
        return {
            "workspace": self.workspace,
            "drive": self.drive,
            "source": self.source,
            "client": self.client,
            "address": self.way.client_address,
            "mode": "ReadOnly" if self.read_only else "ReadWrite",
            "rdma": self.way.rdma,
        }

    def to_mount(self) -> dict[str, Any]:
        """Return what module nfs_mounts takes on *client*."""
        return {
            "workspace": self.workspace,
            "drive": self.drive,
            "source": self.source,
            "node": self.node,
            "address": self.way.server_address,
            "export": self.export,
            "mode": "ReadOnly" if self.read_only else "ReadWrite",
            "transport": self.wanted,
            "rdma": self.way.rdma,
            "no_rdma": self.way.why if self.way.rdma_is_down else "",
        }


@dataclass(frozen=True)
class Needed:
    """The network mounts of a run, and which of them cannot be."""

    mounts: Sequence[NetworkMount]
    refused: Mapping[str, Sequence[str]]
    """By client, why it cannot have a drive; one line each."""


def holders(wanted: Mapping[str, Sequence[Wanted]]) -> set[str]:
    """Return the machines that hold what the workers of some clients read from others."""
    remote = (one for client, those in wanted.items() for _key, one in _remote(client, those))
    return {str((one.source or {})["node"]) for one in remote}


def needed(workspace: str, wanted: Mapping[str, Sequence[Wanted]], machines: Mapping[str, Machine]) -> Needed:
    """Return the network mounts that a worker on each client needs.

    A source that is mounted twice is one network mount, writable when one of them is.

    :param wanted: by client, the drives of its worker
    :param machines: what is known of them
    """
    mounts: list[NetworkMount] = []
    refused: dict[str, list[str]] = {}
    for client, those in wanted.items():
        read_only: dict[tuple[str, int], bool] = {}
        for key, one in _remote(client, those):
            read_only[key] = read_only.get(key, True) and one.ref.mode == _READ_ONLY
        for key, one in dict(_remote(client, those)).items():
            source, transport = one.source or {}, str((one.spec or {})["transport"])
            node = str(source["node"])
            there, here = (machines.get(name) or machine(name, None) for name in (node, client))
            try:
                way = decide(transport, there, here, one.name, key[1])
            except NoWay as error:
                refused.setdefault(client, []).append(str(error))
                continue
            path = str(source["path"])
            mounts.append(NetworkMount(workspace, one.name, key[1], node, client, path, read_only[key], transport, way))
    return Needed(mounts, refused)


def _remote(client: str, wanted: Iterable[Wanted]) -> Iterator[tuple[tuple[str, int], Wanted]]:
    """Yield the drives that are on another machine than *client*, by drive and source."""
    for one in wanted:
        if one.source is not None and one.source["node_scope"] == ON_ONE_MACHINE and one.source["node"] != client:
            yield (one.name, one.ref.source_index), one
