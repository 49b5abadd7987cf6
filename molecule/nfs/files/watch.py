# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch the daemon of a client while the server of a network mount dies and comes back, with a reader at work.

    python3 watch.py DRIVE FILE

FILE is on the mount. What was seen is printed as JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from typing import Any, Callable

METRICS = "http://127.0.0.1:9823/metrics"
READER = 'while dd if="$0" of=/dev/null bs=1M iflag=direct 2>/dev/null; do :; done'
READING = "/run/lab-reading"
"""Appears when the reader is at work."""
PATIENCE_S = 420.0


def watches(pid: int) -> bool:
    """Return whether a child of the daemon watches a filesystem: those are always there."""
    try:
        return any("fanotify" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:  # it, or a descriptor of it, has gone meanwhile
        return False


class Watch:
    """The daemon, as somebody sees it who asks it every second."""

    def __init__(self, drive: str) -> None:
        self._drive = re.escape(drive)
        self._pid = subprocess.check_output(["systemctl", "show", "-p", "MainPID", "--value", "stowaged"], text=True)
        self._page = ""
        self.slowest_s = 0.0
        self.held = self.threads = self.children = 0

    def look(self) -> None:
        began = time.monotonic()
        with urllib.request.urlopen(METRICS, timeout=60) as answer:
            self._page = answer.read().decode()
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        home = f"/proc/{self._pid.strip()}"
        with open(f"{home}/task/{self._pid.strip()}/children", "rb") as children:
            busy = [child for child in children.read().split() if not watches(int(child))]
        self.children = max(self.children, len(busy))
        self.held = max(self.held, len(os.listdir(f"{home}/fd")))
        self.threads = max(self.threads, len(os.listdir(f"{home}/task")))

    def value(self, metric: str) -> float | None:
        found = re.search(
            rf'^stowage_network_mount_{metric}{{.*drive="{self._drive}".*}} (\S+)$', self._page, re.MULTILINE
        )
        return None if found is None else float(found[1])

    def until(self, what: Callable[[], bool], name: str) -> float:
        """Look every second until *what* is true, and return how many seconds it took."""
        began = time.monotonic()
        while True:
            self.look()
            took = time.monotonic() - began
            if what():
                return round(took, 1)
            if took > PATIENCE_S:
                raise SystemExit(f"not within {PATIENCE_S:.0f} s: {name}; {self._page}")
            time.sleep(1)


def main(drive: str, path: str) -> None:
    watch = Watch(drive)
    seen: dict[str, Any] = {}
    began = time.time()
    reader = subprocess.Popen(["sh", "-c", READER, path], start_new_session=True)
    try:
        watch.until(lambda: watch.value("answers") == 1, "the mount answers")
        before = watch.value("read_bytes_total") or 0
        watch.until(lambda: (watch.value("read_bytes_total") or 0) > before, "the reader reads")
        held, watch.slowest_s = watch.held, 0.0
        with open(READING, "w", encoding="ascii"):
            pass
        seen["silent_s"] = watch.until(lambda: watch.value("answers") == 0, "the server is dead")
        available = watch.value("available")
        watch.children = 0
        seen["back_s"] = watch.until(lambda: watch.value("answers") == 1, "the server answers again")
        # Before and after that the reader has most of this one processor.
        slowest = watch.slowest_s
        before = watch.value("read_bytes_total") or 0
        watch.until(lambda: (watch.value("read_bytes_total") or 0) > before, "the reader reads on")
        seen.update(available_while_dead=available, available=watch.value("available"))
        seen.update(slowest_s=round(slowest, 3), descriptors_more=watch.held - held)
        seen.update(threads=watch.threads, children=watch.children)
        seen["retransmissions"] = watch.value("retransmissions_total")
    finally:
        os.killpg(reader.pid, 9)
    journal = ["journalctl", "--unit=stowaged", f"--since=@{began:.0f}", "--output=cat", "--no-pager"]
    logged = subprocess.check_output(journal, text=True)
    seen["said"] = [line for line in logged.splitlines() if os.path.dirname(path) in line]
    shown = subprocess.run(["stowage", "status"], capture_output=True, text=True, check=False).stdout
    seen["shown"] = [line.split() for line in shown.splitlines() if f"/{drive} " in line]
    print(json.dumps(seen))


main(*sys.argv[1:])
