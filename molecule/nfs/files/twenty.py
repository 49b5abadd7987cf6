# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Export a drive to twenty machines from twenty processes at once, as nfs_exports does, and print the states.

They are twenty of one process, which has read the code: as many Python interpreters would begin one after the other on
an emulated processor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

sys.path.insert(0, "/usr/local/bin/stowage")

from stowage_core.differences import Differences
from stowage_core.locks import network_lock
from stowage_core.network_mounts.exporting import Exporting, read_asked
from stowage_core.network_mounts.server import Server
from stowage_core.places import Places
from stowage_core.services.systemd_units import Systemctl

HOST = "gpu-01"


def run_command(argv: Sequence[str], **_more: object) -> tuple[int, str, str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def export(number: int) -> str:
    entry = {
        "workspace": "vision",
        "drive": "imagenet",
        "source": 0,
        "client": f"other-{number}",
        "address": f"192.0.2.{number}",
        "mode": "ReadOnly",
        "rdma": False,
        "squash": "root",
        "anonymous_uid": None,
        "anonymous_gid": None,
    }
    places, differences = Places(), Differences(False)
    with network_lock(places, alone=True):
        server = Server(Systemctl("/usr/bin/systemctl", run_command), differences)
        (found,), _no_rdma = Exporting(places, HOST, server, run_command, differences).export([read_asked(entry, HOST)])
    return found.state


def main() -> None:
    reading, writing = os.pipe()
    ready, go = os.pipe()
    for number in range(1, 21):
        if os.fork() == 0:
            os.close(go)
            os.read(ready, 1)  # until all are there
            os.write(writing, f"{export(number)}\n".encode("ascii"))
            os._exit(0)
    os.close(go)
    os.close(writing)
    with open(reading, encoding="ascii") as said:
        print(said.read(), end="")


main()
