# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the service manager does by the units: a process for each connection, and the capabilities they have."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
UNITS = REPOSITORY / "roles" / "daemon" / "templates"
LOOK = "stowage-use@.service"
NOBODY = "65534"
LISTENER = """
import signal, socket, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
while True:
    connection, address = listener.accept()
    with connection:
        subprocess.Popen(sys.argv[2:], stdin=connection, stdout=sys.stderr, cwd="/")
"""


def with_capabilities_of(unit: str) -> list[str]:
    """Return what gives a command no more capabilities than a unit has; the rest of its hardening is not here."""
    (line,) = re.findall(r"^CapabilityBoundingSet=(.*)$", (UNITS / f"{unit}.j2").read_text(), re.MULTILINE)
    capabilities = ",".join("+" + name[len("CAP_") :].lower() for name in line.split())
    sets = ("bounding-set", "inh-caps", "ambient-caps") if unit == LOOK else ("bounding-set",)
    return ["setpriv", "--no-new-privs", *(f"--{one}=-all,{capabilities}" for one in sets)]


def as_who_looks() -> list[str]:
    """Return what makes a command run as ``stowage-use@.service`` does."""
    return [*with_capabilities_of(LOOK), f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


class Service:
    """The service at the socket *path*; *command* answers each connection, which it has as standard input."""

    def __init__(self, path: Path, command: list[str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        # A process and not a thread: looks of the tests' own fork.
        self._listener = subprocess.Popen(
            [sys.executable, "-c", LISTENER, str(path), *command],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._listener.stdout is not None and self._listener.stdout.readline() == "ready\n"

    @classmethod
    def of(cls, program: Path, path: Path) -> Service:
        return cls(path, [*as_who_looks(), sys.executable, "-I", str(program), "use"])

    def looks(self) -> list[int]:
        """Return the processes that look now."""
        pid = self._listener.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def close(self) -> None:
        os.killpg(self._listener.pid, signal.SIGKILL)
        self._listener.wait()
        assert self._listener.stdout is not None
        self._listener.stdout.close()
        self.path.unlink()
