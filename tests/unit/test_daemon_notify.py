# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowaged.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address as systemd writes it, and the socket that hears."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@stowage-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0"))
        listener.settimeout(5)
        yield name, listener


def test_messages(manager: tuple[str, socket.socket]) -> None:
    address, listener = manager
    notifier = Notifier({"NOTIFY_SOCKET": address})
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.ready("all is well")
    notifier.reloading()
    notifier.alive()
    notifier.status("two copies")
    notifier.status("two copies")
    notifier.stopping()
    heard = [listener.recv(4096).decode() for _number in range(5)]
    assert heard[0] == "READY=1\nSTATUS=all is well"
    reloading, _equals, microseconds = heard[1].partition("\nMONOTONIC_USEC=")
    assert reloading == "RELOADING=1" and before <= int(microseconds) < before + 5_000_000
    assert heard[2:] == ["WATCHDOG=1", "STATUS=two copies", "STOPPING=1\nSTATUS=stopping"]


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog(environment: dict[str, str], seconds: float) -> None:
    assert Notifier(environment).watchdog_s == seconds


def test_without_a_manager_nothing_happens() -> None:
    Notifier({}).ready("all is well")


def test_a_manager_that_is_gone_does_not_stop_the_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("all is well")
    assert "was not told READY=1" in capsys.readouterr().out
