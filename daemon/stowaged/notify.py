# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a service of ``Type=notify`` tells the service manager (sd_notify)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends to the socket in ``NOTIFY_SOCKET``; without one, as in a terminal, it does nothing."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address = environment.get("NOTIFY_SOCKET", "")
        # "@" stands for the NUL byte of an abstract address.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._status = ""
        self.watchdog_s = _watchdog(environment)
        """Within how many seconds the manager wants to hear of the service; None when it does not watch."""

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def status(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self._send(f"STATUS={status}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=stopping")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            # A manager that does not read must not stop the service; it will miss the watchdog's message and act.
            sender.setblocking(False)
            try:
                sender.sendto(message.encode("utf-8", "replace"), self._address)
            except OSError as error:
                print(f"service manager: {error.strerror}; it was not told {message.splitlines()[0]}", flush=True)


def _watchdog(environment: Mapping[str, str]) -> float | None:
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        return int(environment["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None
