# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module storage_facts, as a host runs it, against the hardware part of Ansible's own setup module."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

from run import BUILD, Bench

from stowage_core import records
from stowage_core.facts import report as facts
from stowage_core.places import Places

OURS = "ansible_collections.stowage.host.plugins.modules.storage_facts"
PEER = "ansible.modules.setup"


def module(name: str, **arguments: object) -> float:
    """Run a module in a process of its own, as Ansible does on a host, and return the seconds it took."""
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "collections")}
    given = json.dumps({"ANSIBLE_MODULE_ARGS": arguments})
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", name], input=given, env=environment, check=True, text=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def run(bench: Bench) -> None:
    hardware = ["!all", "!min", "hardware"]
    bench.compare(
        "storage_facts / setup, hardware", lambda: module(OURS), lambda: module(PEER, gather_subset=hardware), 1
    )
    seconds = [module(OURS) for _round in range(bench.rounds)]
    bench.figure("storage_facts, whole module", statistics.median(seconds), "s", 0.5)
    places = Places.under(str(bench.scratch))
    copies = 500 if bench.quick else 5000
    record = {"workspace": "team", "path": "", "bytes": 10**11, "allocated": 10**11, "files": 812, "complete": True}
    os.makedirs(places.copies_dir)
    for number in range(copies):
        with open(f"{places.copies_dir}/team.drive-{number}.json", "wb") as stream:
            stream.write(records.dumps({**record, "drive": f"drive-{number}", "identity": "i" * 36}))
    start = time.perf_counter()
    found = facts.gather(places, {})
    bench.figure(f"facts with {copies} copies", time.perf_counter() - start, "s", 0.5)
    bench.figure(f"compact facts with {copies} copies", len(json.dumps(found["compact"])) / 1000, "kB", 500)
