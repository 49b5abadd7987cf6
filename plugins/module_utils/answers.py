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
from collections.abc import Iterable, Mapping, Sequence
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
    pid, reading = _child_at(work)
    told: list[object] = []
    if _heard(pid, reading, time.monotonic() + _PATIENCE, told):
        return told
    raise StowageError(f"{described(len(told))} does not answer within {_PATIENCE:.0f} s; see whether its server is up")


def each_in_child(works: Mapping[str, Callable[[Tell], None]], patience: float) -> dict[str, list[object] | None]:
    """Run all of *works* at the same time, each in a child, and return what each told.

    :param patience: seconds for all of them
    :return: None for one that did not end in time: its child is killed, which ends most waits for a server
    """
    deadline = time.monotonic() + patience
    children = [(name, *_child_at(work)) for name, work in works.items()]
    found: dict[str, list[object] | None] = {}
    for name, pid, reading in children:
        told: list[object] = []
        found[name] = told if _heard(pid, reading, deadline, told) else None
    return found


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


def _heard(pid: int, reading: int, deadline: float, told: list[object]) -> bool:
    """Take what a child tells into *told*, and return whether it ended in time."""
    text = b""
    with open(reading, "rb", buffering=0) as pipe:
        while True:
            ready, _writing, _failed = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            piece = pipe.read(65536) if ready else None
            if not piece:
                break
            text += piece
    told += [json.loads(line) for line in text.splitlines()]
    if piece is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, os.WNOHANG)  # a process that waits for a dead server may outlive us; init reaps it
        return False
    _pid, status = os.waitpid(pid, 0)
    if status != 0:
        raise StowageError(str(told[-1]) if told else "a child process ended without an answer")
    return True


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
    found = each_in_child({path: partial(_tell_problem, path) for path in paths}, _PATIENCE)
    return {path for path, told in found.items() if told == [None]}


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
