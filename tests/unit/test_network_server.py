# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NFS server of a host, and its listener for RDMA."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from stowage_core.differences import Differences
from stowage_core.facts import networks
from stowage_core.network_mounts import server
from stowage_core.network_mounts.server import Server

LISTENS = "NFS server listens on rdma 20049"


class Ports:
    """The server's list of ports."""

    def __init__(self, error: int = 0, deaf: bool = False) -> None:
        self.error = error
        self.deaf = deaf
        self.listeners = ["tcp 2049"]

    def listen(self) -> None:
        if self.error:
            raise OSError(self.error, "Protocol not supported", server.PORTLIST)
        self.listeners += [] if self.deaf else ["rdma 20049"]


def listen(
    ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_mode: bool = False
) -> tuple[str, Differences]:
    monkeypatch.setattr(server, "CONFIGURATION", str(tmp_path / "stowage.conf"))
    monkeypatch.setattr(server, "_listen", ports.listen)
    monkeypatch.setattr(networks, "nfs", lambda: networks.Nfs({}, tuple(ports.listeners)))
    differences = Differences(check_mode)
    systemctl: Any = None
    return Server(systemctl, differences).listen_for_rdma(), differences


def test_listening_is_predicted_and_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = Ports()
    _why, predicted = listen(ports, tmp_path, monkeypatch, check_mode=True)
    why, done = listen(ports, tmp_path, monkeypatch)
    assert (why, done.actions[-1]) == ("", "listen on rdma 20049")
    assert (predicted.diff(), predicted.actions) == (done.diff(), done.actions) and LISTENS in done.diff()["after"]
    assert not listen(ports, tmp_path, monkeypatch)[1].changed


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        (Ports(errno.EPROTONOSUPPORT), "/proc/fs/nfsd/portlist: Protocol not supported (the kernel has no NFS server"),
        (Ports(errno.EIO), "/proc/fs/nfsd/portlist: Protocol not supported"),
        (Ports(deaf=True), "the server took rdma 20049 and does not listen on it; see dmesg"),
    ],
)
def test_a_host_that_cannot_listen_has_not_changed(
    ports: Ports, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen(ports, tmp_path, monkeypatch)  # writes the configuration, for when it can
    why, differences = listen(ports, tmp_path, monkeypatch)
    assert why.startswith(expected)
    assert (differences.changed, differences.actions) == (False, [])
