# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Placing a run: the function over 10,000 hosts, and the playbook over 1,000 hosts in a fact cache."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from run import BUILD, Bench, command

from stowage_core.drives import refs as drive_refs
from stowage_core.drives.declared import check_drives
from stowage_core.facts import report as facts
from stowage_core.placement.decision import Placement, place
from stowage_core.placement.machines import machine
from stowage_core.places import Places

HOSTS = 10_000
CACHED = 1_000
DRIVES = 100
REFS = "cache-0,cache-1,data-0,shared-0"


def declared() -> list[dict[str, Any]]:
    """A workspace of 100 drives: copies on each host, data on one host, a shared filesystem."""
    drives = []
    for number in range(DRIVES):
        kind, index = ("cache", "data", "shared")[number % 3], number // 3
        source = {
            "cache": {"node_scope": "placed"},
            "data": {"node": f"gpu-{index:05}", "path": f"/mnt/nvme0/data-{index}"},
            "shared": {"node_scope": "shared", "path": f"/lustre/{index}"},
        }[kind]
        size = {"size_hint_bytes": 107 * 10**9} if kind == "cache" else {}
        drives.append({"metadata": {"name": f"{kind}-{index}"}, "spec": {"sources": [source], **size}})
    return drives


def compact(chance: random.Random, number: int) -> dict[str, Any]:
    """What a host reports: a data location with some ten copies, a shared filesystem, an RDMA port."""
    copies = {f"ml.cache-{index}": 107 * 10**9 for index in range(DRIVES // 3) if chance.random() < 0.3}
    return {
        "gathered": 1.0,
        "labels": {},
        "data_location": {
            "path": "/mnt/nvme0/stowage",
            "available": True,
            "size_bytes": 4 * 10**12,
            "free_bytes": chance.randrange(4 * 10**12),
            "max_bytes": 2 * 10**12,
            "used_bytes": 107 * 10**9 * len(copies),
        }
        if chance.random() < 0.9
        else None,
        "copies": copies,
        "shared": [{"mount": "/lustre", "mounts": ["/lustre"], "fstype": "lustre", "source": "a:/b", "answers": True}]
        if chance.random() < 0.9
        else [],
        "addresses": [f"10.{number // 65536}.{number // 256 % 256}.{number % 256}/8"],
        "rdma": [
            {
                "link_layer": "Ethernet",
                "subnet_prefix": "fe80:0000:0000:0000",
                "active": True,
                "addresses": [f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"],
            }
        ],
        "nfs": {"can_export": True, "can_mount": True},
    }


def topology(number: int) -> dict[str, str]:
    return {"site": f"s{number % 2}", "rack": f"r{number // 16}", "nvlink_domain": f"n{number // 64}"}


def placed(hosts: Mapping[str, Any]) -> Placement:
    """What the filter does, from what it is given."""
    wanted = drive_refs.resolve(drive_refs.read(REFS), check_drives(declared()))
    known = {name: machine(name, found, topology(number)) for number, (name, found) in enumerate(hosts.items())}
    return place(dict.fromkeys(hosts, wanted), known, "ml")


def whole(number: int) -> tuple[float, float]:
    """The seconds and, with the hosts' facts, the megabytes that placing a run takes."""
    chance = random.Random(1)
    hosts = {f"gpu-{index:05}": compact(chance, index) for index in range(number)}
    began = time.perf_counter()
    found = placed(hosts).to_json()
    seconds = time.perf_counter() - began
    if not found["candidates"] or not found["refused"]:
        raise SystemExit("the placement is wrong")
    status = Path("/proc/self/status").read_text()
    return seconds, int(status.split("VmHWM:")[1].split()[0]) / 1024


def site(directory: Path, number: int) -> dict[str, str]:
    """Make an inventory and a fact cache as storage_facts fills it, and return the environment that uses them."""
    from ansible.plugins.loader import cache_loader  # much memory, which is not placement's

    chance = random.Random(1)
    reported = facts.gather(Places.under(str(directory / "bare")), {})
    inventory = {
        "all": {
            "vars": {"host_drives": {"ml": declared()}, "ansible_ssh_executable": "/bin/false"},
            "hosts": {f"gpu-{index:05}": {"stowage_topology": topology(index)} for index in range(number)},
        }
    }
    (directory / "inventory.json").write_text(json.dumps(inventory))
    cache = cache_loader.get("jsonfile", _uri=str(directory / "facts"))
    for index, name in enumerate(inventory["all"]["hosts"]):
        found = {**reported, "compact": compact(chance, index)}
        one = {"present": True, "workspace": "ml", "identity": "i" * 36, "bytes": 10**11, "allocated": 10**11}
        found["copies"] = {copy: {**one, "drive": copy[3:]} for copy in found["compact"]["copies"]}
        cache.set(name, {"stowage_storage": found})
    return {
        **os.environ,
        "ANSIBLE_CACHE_PLUGIN": "jsonfile",
        "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(directory / "facts"),
        "ANSIBLE_COLLECTIONS_PATH": str(BUILD / "collections"),
    }


def run(bench: Bench) -> None:
    hosts, cached = (HOSTS // 10, CACHED // 10) if bench.quick else (HOSTS, CACHED)
    samples = [json.loads(command(sys.executable, __file__, str(hosts))) for _round in range(bench.rounds)]
    bench.figure(f"placement over {hosts:,} hosts", sorted(one for one, _size in samples)[len(samples) // 2], "s", 1)
    bench.figure("the same, peak memory", max(size for _seconds, size in samples), "MB", 200)
    environment = site(bench.scratch, cached)
    playbook = ["ansible-playbook", "stowage.host.place", "-i", str(bench.scratch / "inventory.json"), "-e"]
    began = time.perf_counter()
    subprocess.run([*playbook, f"place_drives={REFS}"], env=environment, check=True, stdout=subprocess.DEVNULL)
    bench.figure(f"place.yml over {cached:,} cached hosts", time.perf_counter() - began, "s", 20)


if __name__ == "__main__":
    print(json.dumps(whole(int(sys.argv[1]))))
