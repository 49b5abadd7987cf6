# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions that may hang are asked in child processes: one that is stuck or fails leaves its question unanswered.

Stuck is measured by progress: how long it all takes depends on the host's size and on who else wants its processors.

A child dies with the process that started it, so that nothing is left behind whoever is killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional

from ..errors import StowageError, one_line
from ..forked import close_all_but, fork
from ..syscalls import mount_id

_ALIVE_S = 1.0
_ASIDE_AFTER_S = 0.05
_ANSWER = struct.Struct("=iQQQ?Q")
_PROGRESS = b"."
_PROGRESS_EVERY_S = 0.2


class NoAnswerError(StowageError):
    """A question about the host has no answer; whoever asked must assume the worst."""


def nothing(*_anything: Any) -> None:
    """Do nothing with what is told, or while an answer is waited for."""


class _Progress:
    """The way on which a child says that its work goes on."""

    writer = -1
    said = 0.0


def progress() -> None:
    """Say, in the body of a question, that the work goes on; cheap enough for every small piece of it."""
    now = time.monotonic()
    if _Progress.writer >= 0 and now - _Progress.said >= _PROGRESS_EVERY_S:
        _Progress.said = now
        os.write(_Progress.writer, _PROGRESS)


def answer_of(body: Callable[[], Any], deadline_s: float, alive: Callable[[], None] = nothing) -> Any:
    """Return what *body*, run in a child, returns; it must fit in JSON.

    :param alive: called about every second while the answer is waited for
    :raises NoAnswerError: when it fails, or has neither answered nor made progress for *deadline_s* seconds
    """
    reader, writer = os.pipe()

    def child() -> None:
        os.close(reader)
        # The kernel's word that somebody wants a file on which a lease is held.
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        tell_answer(writer, body)

    pid = fork(child)
    os.close(writer)
    try:
        return answer_from(reader, deadline_s, alive)
    finally:
        os.close(reader)
        _end(pid)


def tell_answer(fd: int, body: Callable[[], Any]) -> None:
    """Write to *fd* what *body* returns, or why it failed, and meanwhile that it makes progress."""
    _Progress.writer = fd
    try:
        said = _said_by(body)
    finally:
        _Progress.writer = -1
    _write(fd, said)


def answer_from(fd: int, deadline_s: float, alive: Callable[[], None] = nothing, remedy: str = "") -> Any:
    """Return what another process tells by ``tell_answer``; see ``answer_of``.

    :param remedy: what to do when that process dies or is silent, behind a semicolon
    """
    data = _read_line(fd, deadline_s, alive)
    if data is None:
        raise NoAnswerError(f"no answer within {deadline_s:g} s{remedy}")
    try:
        said = json.loads(data)
    except ValueError:
        raise NoAnswerError(f"the process that looked died{remedy}") from None
    if "failed" in said:
        raise NoAnswerError(said["failed"])
    return said["answer"]


def _said_by(body: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"answer": body()}
    except OSError as error:
        return {"failed": one_line(error)}
    except Exception as error:  # whatever it was, the parent must hear that there is no answer
        return {"failed": f"{type(error).__name__}: {error}" if not isinstance(error, StowageError) else str(error)}


def _write(fd: int, value: Any) -> None:
    data = memoryview(json.dumps(value).encode("ascii") + b"\n")
    while data:
        data = data[os.write(fd, data) :]


def _read_line(fd: int, deadline_s: float, alive: Callable[[], None]) -> bytes | None:
    """Return a line, less when the writer died, None when nothing has come for too long."""
    deadline = time.monotonic() + deadline_s
    said = time.monotonic()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    data = b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        ready = poll.poll(min(left, _ALIVE_S) * 1000)
        if time.monotonic() - said >= _ALIVE_S or not ready:
            said = time.monotonic()
            alive()
        if not ready:
            continue
        more = os.read(fd, 1 << 16)
        if not more:
            break
        deadline = time.monotonic() + deadline_s
        data = (data + more).lstrip(_PROGRESS)
    return data


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 2
    # One that waits for a dead disk cannot be ended now; it ends when the kernel lets go of it.
    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.001)


@dataclass(frozen=True)
class Identity:
    """What a path or descriptor led to."""

    dev: int
    ino: int
    links: int
    directory: bool = False
    mount: int = 0
    """Of a directory: the id of the mount that it was reached through."""


Then = Callable[[Optional[Identity], int], None]


@dataclass(frozen=True)
class _Helper:
    pid: int
    link: socket.socket


class Resolver:
    """Asks what paths lead to, in helpers: a path on a dead server holds up its own helper only.

    *then* is called with the identity, or None and the kernel's errno, or None and 0 when there was no answer.
    """

    def __init__(self) -> None:
        self.pids: set[int] = set()
        self._spare: _Helper | None = None
        self._aside: list[tuple[_Helper, Then]] = []

    def ask(self, path: str, then: Then) -> None:
        helper = self._spare or self._start()
        self._spare = None
        helper.link.send(os.fsencode(path))
        if self._heard(helper, then, _ASIDE_AFTER_S):
            self._spare = helper
        else:
            self._aside.append((helper, then))

    def finish(self, patience_s: float) -> None:
        """Collect the answers that were late; what is still missing after *patience_s* seconds has none."""
        deadline = time.monotonic() + patience_s
        for helper, then in self._aside:
            if not self._heard(helper, then, max(0.0, deadline - time.monotonic())):
                then(None, 0)
        for helper in [*(helper for helper, _then in self._aside), *([self._spare] if self._spare else [])]:
            helper.link.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(helper.pid, signal.SIGKILL)
        self._aside, self._spare = [], None

    @staticmethod
    def _heard(helper: _Helper, then: Then, timeout_s: float) -> bool:
        helper.link.settimeout(max(timeout_s, 0.001))
        try:
            data = helper.link.recv(_ANSWER.size)
        except socket.timeout:
            return False
        if len(data) != _ANSWER.size:
            raise NoAnswerError("a process that looked died")
        number, *identity = _ANSWER.unpack(data)
        then(None if number else Identity(*identity), number)
        return True

    def _start(self) -> _Helper:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = fork(lambda: _answer(theirs))
        theirs.close()
        self.pids.add(pid)
        return _Helper(pid, ours)


def _answer(link: socket.socket) -> None:
    close_all_but(link.fileno())  # what is looked at would be held by one that is stuck, or dies late
    while True:
        path = link.recv(1 << 16)
        if not path:
            return
        try:
            answer = _identified(path)
        except OSError as error:
            answer = _ANSWER.pack(error.errno or errno.EIO, 0, 0, 0, False, 0)
        link.send(answer)


def _identified(path: bytes) -> bytes:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        directory = stat.S_ISDIR(status.st_mode)
        mount = mount_id(fd) if directory else 0
    finally:
        os.close(fd)
    return _ANSWER.pack(0, status.st_dev, status.st_ino, status.st_nlink, directory, mount)
