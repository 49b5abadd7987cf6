# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with NFS's client and server, of which kernel and service manager are stood in for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable

import pytest

from stowage_core import mounts
from stowage_core.answers import Tell
from stowage_core.differences import Differences
from stowage_core.facts import networks
from stowage_core.mounts import Mount
from stowage_core.network_mounts import client, exports, making, mount_units, mountstats
from stowage_core.network_mounts.asked import Asked
from stowage_core.network_mounts.client import Client
from stowage_core.network_mounts.exporting import Exporting
from stowage_core.network_mounts.making import Making
from stowage_core.network_mounts.mountstats import MountStats
from stowage_core.network_mounts.records import MountRecord
from stowage_core.network_mounts.releasing import release
from stowage_core.network_mounts.server import Server
from stowage_core.places import Places


def in_this_process(works: Mapping[str, Callable[[Tell], None]], _patience: float) -> dict[str, list[object] | None]:
    told: dict[str, list[object] | None] = {}
    for name, work in works.items():
        said: list[object] = []
        work(said.append)
        told[name] = said
    return told


class Host:
    """What ``systemctl start`` mounts and ``stop`` unmounts, and what ``exportfs`` exports, as far as it works."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places = Places.under(str(tmp_path))
        self.units = tmp_path / "units"
        self.mounted: dict[str, Mount] = {}
        self.denied: set[str] = set()
        """What cannot be mounted, by the last part of its mount point; ``rdma`` is whatever goes over that."""
        self.busy: set[str] = set()
        self.hung: set[str] = set()
        """Mount points whose server does not answer."""
        self.result = "exit-code"
        self.counted = ("rdma",)
        """What the kernel counts of what is mounted over RDMA."""
        self.commands: list[Sequence[str]] = []
        self.reloads = 0
        monkeypatch.setattr(mount_units, "UNITS", str(self.units))
        self.etab = tmp_path / "etab"
        self.stubborn = False
        self.exports = tmp_path / "exports.d"
        monkeypatch.setattr(exports, "ETAB", str(self.etab))
        monkeypatch.setattr(exports, "DIRECTORY", str(self.exports))
        monkeypatch.setattr(mounts, "read", lambda *_pid: list(self.mounted.values()))
        for module in (client, making):
            monkeypatch.setattr(module, "answering", lambda paths: set(paths) - self.hung)
        monkeypatch.setattr(client, "each_in_child", in_this_process)
        monkeypatch.setattr(client, "unmount_forced", self._unmount_forced)
        monkeypatch.setattr(mountstats, "read", self._mountstats)
        monkeypatch.setattr(networks, "nfs", lambda: networks.Nfs(dict.fromkeys(networks._TOOLS, "/x"), ()))

    def run_command(self, argv: Sequence[str]) -> tuple[int, str, str]:
        self.commands.append(argv)
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
        if argv[:2] == ["systemctl", "stop"]:
            for name in set(argv[3:]) - self.busy:
                if name in self.mounted and self.mounted[name].point not in self.hung:
                    del self.mounted[name]
        if argv[:3] == ["mount", "-o", "remount,rw"]:
            self.change(argv[3], ("ro", "rw"))
        return 0, "", ""

    def _start(self, name: str) -> None:
        text = (self.units / name).read_text()
        said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        proto = "rdma" if "proto=rdma" in said["Options"] else "tcp"
        if not self.denied & {said["Where"].rpartition("/")[2], proto}:
            options = tuple(said["Options"].split(","))
            self.mounted[name] = Mount(9, 1, "0:9", "/", said["Where"], options, "nfs4", said["What"], options)

    def change(self, point: str, option: tuple[str, str]) -> None:
        """Mount what is at *point* with another option than it was."""
        (name,) = (name for name, mount in self.mounted.items() if mount.point == point)
        mount = self.mounted[name]
        options = tuple(option[1] if one == option[0] else one for one in mount.options)
        self.mounted[name] = replace(mount, options=options, super_options=options)

    def _unmount_forced(self, point: str) -> None:
        self.commands.append(["umount2", point])
        self.mounted = {name: mount for name, mount in self.mounted.items() if mount.point != point}

    def _mountstats(self, points: Sequence[str]) -> list[MountStats]:
        return [
            MountStats(mount.source, mount.point, "nfs4", mount.options, 0, self.counted, 0, 0, ())
            for mount in self.mounted.values()
            if mount.point in points
        ]

    def daemon_reload(self) -> None:
        self.reloads += 1

    def tell(self, verb: str, unit: str) -> None:
        pass

    def show(self, names: Sequence[str], _properties: Sequence[str]) -> dict[str, dict[str, str]]:
        return {name: {"InvocationID": "i", "Result": self.result} for name in names}

    def call(self, check_mode: bool = False) -> tuple[Client, Differences]:
        differences = Differences(check_mode)
        systemctl: Any = self
        return Client(self.places, systemctl, self.run_command, "journalctl", differences), differences

    def make(self, *asked: Asked, run: str = "") -> tuple[list[MountRecord], Differences]:
        made, differences = self.call()
        return Making(made, run).make(asked), differences

    def expect(self, *asked: Asked, run: str = "") -> tuple[list[MountRecord], Differences]:
        made, differences = self.call()
        return Making(made, run).expect(asked), differences

    def release(self, run: str = "") -> tuple[list[MountRecord], Differences]:
        made, differences = self.call()
        return release(made, None, run), differences

    def exporting(self, check_mode: bool = False) -> tuple[Exporting, Differences]:
        differences = Differences(check_mode)
        systemctl: Any = self
        return Exporting(
            self.places, "gpu-01", Server(systemctl, differences), self.run_command, differences
        ), differences
