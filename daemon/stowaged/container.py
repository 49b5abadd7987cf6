# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Running one container to its end, with Podman or Docker, by the engine's own command."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stowage_core.errors import Refusal, StowageError, printable

ENGINES = ("podman", "docker")
"""The first that the host has is taken."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LINES, _LINE, _LONGEST = 10, 200, 1 << 16
_TICK_MS = 500
_REMOVE_S = 60.0
_TRIES, _PAUSE_S = 5, 0.5
_HINT = re.compile(r"(See|Run) 'docker run --help'")
"""What Docker says last when it could not run a container; why is in the line before."""


@dataclass(frozen=True)
class Container:
    """What is run: it sees one directory of the host, at ``/drive``, and nothing else."""

    name: str
    image: str
    command: str
    """The one program that is run instead of the image's; empty for the image's own."""
    args: Sequence[str]
    source: str
    env_file: str = ""
    secrets: Sequence[str] = field(default=(), repr=False)
    """Texts that are not shown when the container prints them."""


class Tail:
    """Takes what a container prints, tells it line by line without secrets, and keeps the last lines."""

    def __init__(self, secrets: Sequence[str], say: Callable[[str], None]) -> None:
        # The longest first: one may be a part of another. What is as short as this would be found everywhere.
        self._secrets = sorted((text for text in secrets if len(text) > 3), key=len, reverse=True)
        self._say = say
        self._begun = bytearray()
        self.lines: deque[str] = deque(maxlen=_LINES)

    def take(self, data: bytes) -> None:
        *ended, rest = data.replace(b"\r", b"\n").split(b"\n")
        for part in ended:
            self._add(part)
            self.end()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._begun += part[: _LONGEST - len(self._begun)]

    def end(self) -> None:
        """Take the line that has begun as whole."""
        text = self._begun.decode("utf-8", "replace").strip()
        self._begun.clear()
        for secret in self._secrets:
            text = text.replace(secret, "***")
        if text:
            text = printable(text)[:_LINE]
            self.lines.append(text)
            self._say(text)


class Engine:
    """A container engine of this host."""

    def __init__(self, program: str) -> None:
        self.program = program
        self.name = os.path.basename(program)

    def command(self, container: Container) -> list[str]:
        """Return the command that runs *container* in the foreground."""
        arguments = [
            *("run", "--rm", f"--name={container.name}", "--pull=missing", "--log-driver=none"),
            "--security-opt=no-new-privileges",
            f"--mount=type=bind,source={container.source},target=/drive",
        ]
        if container.env_file:
            arguments.append(f"--env-file={container.env_file}")
        if container.command:
            # Podman takes one word, or several as JSON.
            entry = json.dumps([container.command]) if self.name == "podman" else container.command
            arguments.append(f"--entrypoint={entry}")
        return [self.program, *arguments, "--", container.image, *container.args]

    def run(
        self, container: Container, say: Callable[[str], None], tick: Callable[[], None]
    ) -> tuple[int, Sequence[str]]:
        """Run *container* to its end; return its exit status and the last lines that it printed.

        :param tick: called every now and then; what it raises ends the container
        """
        tail = Tail(container.secrets, say)
        try:
            with subprocess.Popen(
                self.command(container), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            ) as process:
                try:
                    assert process.stdout is not None
                    self._follow(process.stdout.fileno(), tail, tick)
                    tail.end()
                    while True:
                        try:
                            status = process.wait(_TICK_MS / 1000)
                            return status, tuple(line for line in tail.lines if not _HINT.match(line))
                        except subprocess.TimeoutExpired:
                            tick()
                finally:
                    if process.poll() is None:
                        process.kill()
        finally:
            self.remove(container.name)

    @staticmethod
    def _follow(fd: int, tail: Tail, tick: Callable[[], None]) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        while True:
            if poll.poll(_TICK_MS):
                data = os.read(fd, 1 << 16)
                if not data:
                    return
                tail.take(data)
            tick()

    def remove(self, name: str) -> None:
        """End and remove the container *name*, and see that it is gone.

        :raises StowageError: when it is still there
        """
        at_once = ["--time=0"] if self.name == "podman" else []
        # Podman 5 finds out with the first call only that the monitor of a container was killed too.
        for _try in range(_TRIES):
            self._call("rm", "--force", *at_once, name)
            if self._call("container", "inspect", name) != 0:
                return
            time.sleep(_PAUSE_S)
        raise StowageError(f"container {name}: {self.name} cannot remove it; see {self.name} ps --all")

    def _call(self, *arguments: str) -> int:
        try:
            done = subprocess.run(
                [self.program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
                timeout=_REMOVE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise StowageError(f"{self.name} {arguments[0]}: no answer within {_REMOVE_S:g} s") from error
        return done.returncode


def find(choice: str, path: str = _PATH) -> Engine:
    """Return the host's engine.

    :param choice: ``podman``, ``docker``, or ``auto`` for the first of them that is there
    """
    names = ENGINES if choice == "auto" else (choice,)
    for name in names:
        program = shutil.which(name, path=path)
        if program:
            return Engine(program)
    raise Refusal(
        "container engine", f"this host has no {' or '.join(names)}", "install one; copies are filled with it"
    )


def environment(variables: Mapping[str, str]) -> bytes:
    """Return the file by which an engine is told a container's variables: on its command line everybody saw them."""
    return "".join(f"{name}={value}\n" for name, value in variables.items()).encode()
