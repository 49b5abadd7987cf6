# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with NFS's client and server, of which kernel and service manager are stood in for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts
from stowage_core.differences import Differences
from stowage_core.facts import networks
from stowage_core.mounts import Mount
from stowage_core.network_mounts import client, exports, mount_units
from stowage_core.network_mounts.client import Asked, Client
from stowage_core.network_mounts.exporting import Exporting
from stowage_core.network_mounts.records import MountRecord
from stowage_core.network_mounts.server import Server
from stowage_core.places import Places


class Host:
    """What ``systemctl start`` mounts and ``stop`` unmounts, and what ``exportfs`` exports, as far as it works."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places = Places.under(str(tmp_path))
        self.units = tmp_path / "units"
        self.mounted: dict[str, Mount] = {}
        self.denied: set[str] = set()
        self.busy: set[str] = set()
        monkeypatch.setattr(mount_units, "UNITS", str(self.units))
        self.etab = tmp_path / "etab"
        self.stubborn = False
        self.exports = tmp_path / "exports.d"
        monkeypatch.setattr(exports, "ETAB", str(self.etab))
        monkeypatch.setattr(exports, "DIRECTORY", str(self.exports))
        monkeypatch.setattr(mounts, "read", lambda *_pid: list(self.mounted.values()))
        monkeypatch.setattr(client, "answers", lambda _path: True)
        monkeypatch.setattr(networks, "nfs", lambda: networks.Nfs(dict.fromkeys(networks._TOOLS, "/x"), ()))

    def run_command(self, argv: Sequence[str]) -> tuple[int, str, str]:
        if argv[0] == "exportfs" and not self.stubborn:
            client_address, _colon, path = argv[-1].partition(":")
            lines = [line for line in self.etab.read_text().splitlines() if not line.startswith(f"{path}\t")]
            lines += [f"{path}\t{client_address}({argv[3]})"] if argv[1] == "-i" else []
            self.etab.write_text("".join(f"{line}\n" for line in lines))
        if "journalctl" in argv[0]:
            return 0, "mount.nfs4: access denied by server\n", ""
        if argv[:2] == ["systemctl", "start"]:
            for name in argv[3:]:
                self._start(name)
        if argv[:2] == ["systemctl", "stop"] and argv[3] not in self.busy:
            self.mounted.pop(argv[3], None)
        return 0, "", ""

    def _start(self, name: str) -> None:
        text = (self.units / name).read_text()
        said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        if said["Where"].rpartition("/")[2] not in self.denied:
            options = tuple(said["Options"].split(","))
            self.mounted[name] = Mount(9, 1, "0:9", "/", said["Where"], options, "nfs4", said["What"], options)

    def daemon_reload(self) -> None:
        pass

    def tell(self, verb: str, unit: str) -> None:
        pass

    def show(self, names: Sequence[str], _properties: Sequence[str]) -> dict[str, dict[str, str]]:
        return {name: {"InvocationID": "i", "Result": "exit-code"} for name in names}

    def call(self, check_mode: bool = False) -> tuple[Client, Differences]:
        differences = Differences(check_mode)
        systemctl: Any = self
        return Client(self.places, systemctl, self.run_command, "journalctl", differences), differences

    def make(self, *asked: Asked) -> tuple[list[MountRecord], Differences]:
        made, differences = self.call()
        return made.make(asked), differences

    def release(self) -> tuple[list[MountRecord], Differences]:
        made, differences = self.call()
        return made.release(), differences

    def exporting(self, check_mode: bool = False) -> tuple[Exporting, Differences]:
        differences = Differences(check_mode)
        systemctl: Any = self
        return Exporting(
            self.places, "gpu-01", Server(systemctl, differences), self.run_command, differences
        ), differences
