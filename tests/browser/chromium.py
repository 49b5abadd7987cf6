# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A headless Chromium, told what to do over its own protocol, so that a test sees what a browser has computed."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 60
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)


class Chromium:
    """One browser with one page."""

    def __init__(self, home: Path) -> None:
        binary = subprocess.run(
            [REPOSITORY / "tests/gates/chromium.sh"], check=True, text=True, stdout=subprocess.PIPE
        ).stdout.strip()
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # It reads commands from descriptor 3 and writes to 4, each message ending with a zero byte.
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._log = (home / "chromium.log").open("wb")
        command = ["bash", "-c", script, "bash", binary, *_FLAGS, f"--user-data-dir={home / 'profile'}", "about:blank"]
        self._process = subprocess.Popen(
            command,
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """What the browser has said by itself: requests, what was refused, what went wrong."""
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._out)  # it ends when nobody can tell it anything any more
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._log.close()

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Carry out a command of the protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == self._number:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']['message']}")
                result: dict[str, Any] = told["result"]
                return result
            self.events.append(told)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            ready = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise RuntimeError("chromium has ended or does not answer; see chromium.log in the test's directory")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        told: dict[str, Any] = json.loads(message)
        return told

    def show(self, page: Path, *, width: int, height: int = 900, dark: bool = False, scripts: bool = True) -> None:
        """Open a file as it would be seen on a screen of that width, and wait until it is there."""
        self.events.clear()
        self.do("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.do("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self.do("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Take a picture, of the whole page or of the screen."""
        found = self.do("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def troubles(self) -> list[str]:
        """Return what went wrong in the page since it was opened, and what it asked for besides itself."""
        said = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                said.append(str(parameters["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                said.append(parameters["entry"]["text"])
            elif event.get("method") == "Network.requestWillBeSent" and parameters["type"] != "Document":
                said.append(f"asked for {parameters['request']['url']}")
        return said
