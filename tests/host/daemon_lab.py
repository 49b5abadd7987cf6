# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real daemon as a process of its own, from the application that the role installs, below a prefix."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import py_compile
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from use_lab import Service, with_capabilities_of

from stowage_core.places import Places

REPOSITORY = Path(__file__).resolve().parents[2]
QUICK = {
    "host": "gpu-01",
    "cycle_s": 0.3,
    "scan_interval_s": 2,
    "minimum_age_s": 0,
    "boot_grace_s": 0,
    # Disks are filled and taken away on purpose; what that holds is for the tests of the gate.
    "disk_watermark_pct": 0,
}


def application(home: Path) -> Path:
    """Build the application once for a test session, and compile it: it is started thousands of times."""
    spec = importlib.util.spec_from_file_location("stowage_daemon_build", REPOSITORY / "daemon" / "build.py")
    assert spec is not None and spec.loader is not None
    builder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    path = home / "stowage"
    path.write_bytes(builder.build())
    source, compiled = home / "source", home / "compiled"
    with zipfile.ZipFile(path, "a") as archive:
        for name in archive.namelist():
            source.write_bytes(archive.read(name))
            mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
            py_compile.compile(str(source), str(compiled), f"{path}/{name}", doraise=True, invalidation_mode=mode)
            archive.write(compiled, f"{name}c")
    return path


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Return what *what* returns as soon as it is true."""
    deadline = time.monotonic() + seconds
    while True:
        found = what()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def hung_mount(path: Path, source: str = "hung") -> Iterator[None]:
    """Mount a FUSE filesystem whose server never answers: whoever touches it waits."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    os.set_inheritable(fd, True)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
    subprocess.run(["mount", "-i", "-t", "fuse", "-o", options, source, str(path)], check=True, close_fds=False)
    try:
        yield
    finally:
        os.close(fd)  # all requests fail now
        subprocess.run(["umount", str(path)], check=True)


class Daemon:
    """The daemon, or a command, of one host below a prefix."""

    def __init__(self, program: Path, home: Path, **settings: Any) -> None:
        self.program = program
        self.home = home
        self.places = Places.under(str(home))
        self.process: subprocess.Popen[str] | None = None
        self.log = home / "log"
        self.configure(**settings)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(home / "notify"))
        self._socket.setblocking(False)
        self.messages: list[str] = []
        self.service = Service.of(program, Path(self.places.use_socket))

    def configure(self, **settings: Any) -> None:
        self.configure_text(json.dumps({**QUICK, **settings}))

    def configure_text(self, text: str) -> None:
        path = Path(self.places.daemon_json)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def start(self, ready: bool = True, **environment: str) -> None:
        environment = {**os.environ, "NOTIFY_SOCKET": str(self.home / "notify"), **environment}
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [
                    *with_capabilities_of("stowaged.service"),
                    *(sys.executable, "-I", str(self.program), "--prefix", str(self.home), "daemon"),
                ],
                env=environment,
                stdout=log,
                stderr=log,
                text=True,
                cwd=self.home,
            )
        if ready:
            wait_for(lambda: self.has_said("READY=1"), 20)

    def has_said(self, text: str) -> bool:
        """Return whether the service manager was told *text*."""
        while True:
            try:
                self.messages.append(self._socket.recv(65536).decode())
            except BlockingIOError:
                return any(text in message for message in self.messages)

    def stop(self, number: int = signal.SIGTERM) -> float:
        """Stop the daemon and return how many seconds it took."""
        assert self.process is not None
        start = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(10)
        self.process = None
        return time.monotonic() - start

    def close(self) -> None:
        if self.process is not None:
            self.stop(signal.SIGKILL)
        self._socket.close()
        self.service.close()

    def state(self, section: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads(Path(self.places.state_dir, f"{section}.json").read_text())
        except FileNotFoundError:
            return {}
        return value

    def cycle(self) -> None:
        """Wait until the daemon has looked at the host twice more."""
        seen = {self.state("cycle").get("time")}
        wait_for(lambda: seen.add(self.state("cycle").get("time")) or len(seen) == 3, 60)  # type: ignore[func-returns-value]

    def location(self, name: str) -> dict[str, Any]:
        found = [one for one in self.state("locations").get("locations", []) if one["location"] == name]
        return found[0] if found else {}

    def copies(self) -> dict[str, dict[str, Any]]:
        found = self.state("copies").get("copies", [])
        return {f"{one['workspace']}.{one['drive']}": one for one in found}

    def logged(self) -> str:
        return self.log.read_text()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-I", str(self.program), "--prefix", str(self.home), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "COLUMNS": "80"},
        )
