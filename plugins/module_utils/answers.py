# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is asked in a child process, because it may never be answered or must be asked as another user."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Callable

from .errors import Refusal, StowageError
from .forked import close_all_but, fork

_PATIENCE = 20.0
Tell = Callable[[object], None]


def in_child(work: Callable[[Tell], None], described: Callable[[int], str]) -> list[object]:
    """Run *work* in a child and return what it told: a child can drop its ids, and a dead server holds only it.

    :param described: given how often the child has told something, what it was busy with when it stopped answering
    """
    return _told(*_child_at(work), time.monotonic() + _PATIENCE, described)


def _child_at(work: Callable[[Tell], None]) -> tuple[int, int]:
    """Start a child at *work*, and return its pid and where it can be heard."""
    reading, writing = os.pipe()

    def tell(value: object) -> None:
        os.write(writing, json.dumps(value).encode("ascii") + b"\n")

    def child() -> None:
        # A child that stays behind must not keep the connection open that the module answers on.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        close_all_but(writing)
        try:
            work(tell)
        except BaseException as error:
            tell(str(error))
            os._exit(1)

    pid = fork(child)
    os.close(writing)
    return pid, reading


def _told(pid: int, reading: int, deadline: float, described: Callable[[int], str]) -> list[object]:
    text = b""
    with open(reading, "rb", buffering=0) as pipe:
        while True:
            ready, _writing, _failed = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)  # a process that waits for a dead server may outlive us; init reaps it
                busy = described(text.count(b"\n"))
                raise StowageError(f"{busy} does not answer within {_PATIENCE:.0f} s; see whether its server is up")
            piece = pipe.read(65536)
            if not piece:
                break
            text += piece
    _pid, status = os.waitpid(pid, 0)
    told = [json.loads(line) for line in text.splitlines()]
    if status != 0:
        raise StowageError(str(told[-1]) if told else "a child process ended without an answer")
    return told


def check_answers(named: Sequence[tuple[str, str]]) -> None:
    """Refuse the first of (name, path) whose filesystem does not answer; a missing path is an answer."""

    def work(tell: Tell) -> None:
        for _name, path in named:
            tell(_problem(path))

    problems = in_child(work, lambda count: "{}: {}".format(*named[count]))
    for (name, path), problem in zip(named, problems):
        if problem is not None:
            raise Refusal(name, f"{path}: {problem}", "mount it anew")


def answering(paths: Iterable[str]) -> set[str]:
    """Return those of *paths* whose filesystem answers, of any number in the time of one; a missing path does."""
    deadline = time.monotonic() + _PATIENCE
    children = [(path, *_child_at(partial(_tell_problem, path))) for path in paths]
    found = set()
    for path, pid, reading in children:
        with suppress(StowageError):
            if _told(pid, reading, deadline, str) == [None]:
                found.add(path)
    return found


def _tell_problem(path: str, tell: Tell) -> None:
    tell(_problem(path))


def _problem(path: str) -> str | None:
    """Say why the filesystem at *path* is of no use; this may never return."""
    try:
        os.statvfs(path)  # unlike what a file looks like, never answered out of a cache
    except OSError as error:
        if error.errno in (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EHOSTDOWN):
            return error.strerror
    return None
