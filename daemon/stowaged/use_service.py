# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Looking whether copies are in use, apart from removing them: both ends of the connection between the two.

``stowaged`` removes and may not look into processes. Behind ``stowage-use.socket`` a process for each request looks,
and can change nothing. A request is a line for each copy, the copy's descriptor with it, and an empty line. Progress
and the answer come back as from a child of the asker's own; without an answer every copy is in use.

Another request is which processes of a KV-cache's store there are, and what they were started with.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from stowage_core.errors import StowageError
from stowage_core.tiers import processes
from stowage_core.tiers.processes import StoreProcess
from stowage_core.use import look as use
from stowage_core.use.child import NoAnswerError, answer_from, nothing, tell_answer
from stowage_core.use.look import Evidence, InUse, Subject

SOCKET = "stowage-use.socket"
_STORES = b"stores\n\n"
_SEND_S = 30.0
_ASKER_S = 1.0
_JOURNAL = "; see journalctl -u 'stowage-use*'"
_CREDENTIALS = struct.Struct("=3i")
_MOST_AT_ONCE = 253
"""The most descriptors that the kernel lets come with one message."""


# -- The asker


def asking(path: str) -> InUse:
    """Return a look that asks the service at the socket *path*."""
    return partial(_in_use, path)


def _in_use(
    path: str,
    subjects: Sequence[Subject],
    deadline_s: float = use.DEADLINE_S,
    alive: Callable[[], None] = nothing,
) -> Evidence:
    return use.found_or_unknown(subjects, lambda: _ask(path, subjects, deadline_s, alive))


def _ask(path: str, subjects: Sequence[Subject], deadline_s: float, alive: Callable[[], None]) -> Evidence:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(_SEND_S)
        try:
            link.connect(path)
        except OSError as error:
            raise NoAnswerError(f"{path}: {error.strerror or error}; systemctl restart {SOCKET}") from error
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it wants no more, and says why
                for subject in subjects:
                    _send(link, subject)
                link.sendall(b"\n")
            found = answer_from(link.fileno(), deadline_s, alive, _JOURNAL)
        except OSError as error:
            raise NoAnswerError(f"{path}: {error.strerror or error}{_JOURNAL}") from error
    if not _answers(found, subjects):
        raise NoAnswerError(f"{path}: the answer is not about the copies that were asked for; restart stowaged")
    return dict(found)


def _send(link: socket.socket, subject: Subject) -> None:
    line = json.dumps(asdict(subject)).encode("ascii") + b"\n"
    sent = socket.send_fds(link, [line], [subject.fd])
    link.sendall(line[sent:])


def _answers(found: Any, subjects: Sequence[Subject]) -> bool:
    return (
        isinstance(found, dict)
        and found.keys() == {subject.name for subject in subjects}
        and all(isinstance(texts, list) and all(isinstance(text, str) for text in texts) for texts in found.values())
    )


def stores(path: str, deadline_s: float = use.DEADLINE_S) -> list[StoreProcess]:
    """Ask the service at the socket *path* for the processes of stores.

    :raises NoAnswerError: when it does not answer, or could not look
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(_SEND_S)
        try:
            link.connect(path)
            link.sendall(_STORES)
            found = answer_from(link.fileno(), deadline_s, remedy=_JOURNAL)
        except OSError as error:
            raise NoAnswerError(f"{path}: {error.strerror or error}; systemctl restart {SOCKET}") from error
    try:
        return [StoreProcess(**one) for one in found]
    except TypeError as error:
        raise NoAnswerError(f"{path}: the answer is not about processes of stores; restart stowaged") from error


# -- The service


def main() -> int:
    """Answer the request on standard input, for which the service manager started this process."""
    try:
        link = socket.socket(fileno=os.dup(0))
        owner, _user, _group = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    except OSError as error:
        print(f"stowage use: standard input: {error.strerror}; {SOCKET} starts it when it is needed", file=sys.stderr)
        return 1
    link.setblocking(True)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started this may not wait for children, and leaves it so
    _end_with_asker(link)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody waits for the answer any more
        tell_answer(link.fileno(), lambda: _found(link, owner))
    return 0


def _found(link: socket.socket, owner: int) -> Any:
    data, fds = _request(link)
    if data == _STORES:
        return [asdict(one) for one in processes.store_processes()]
    subjects, own = _subjects(data, fds)
    try:
        return use.look(subjects, owner, own)
    finally:
        for subject in subjects:
            os.close(subject.fd)  # before there is an answer: to whoever looks next they would be a use


def _request(link: socket.socket) -> tuple[bytes, list[int]]:
    data, fds = bytearray(), []
    while not data.endswith(b"\n\n"):
        more, new, flags, _address = socket.recv_fds(link, 1 << 16, _MOST_AT_ONCE)
        fds += new
        if flags & socket.MSG_CTRUNC:
            raise StowageError(f"only {len(fds)} copies can be looked at together; raise LimitNOFILE=")
        if not more:
            raise StowageError("the request has no end")
        data += more
    return bytes(data), fds


def _subjects(data: bytes, fds: list[int]) -> tuple[list[Subject], list[int]]:
    """Return the subjects, at descriptors of this process, and the asker's own descriptors of them."""
    subjects = [json.loads(line) for line in data.splitlines()[:-1]]
    if len(subjects) != len(fds):
        raise StowageError(f"{len(fds)} descriptors came with {len(subjects)} copies")
    return [_subject(one, fd) for one, fd in zip(subjects, fds)], [one["fd"] for one in subjects]


def _subject(sent: dict[str, Any], fd: int) -> Subject:
    rows = {key: tuple(sent[key]) for key in ("around", "paths", "mounted", "known_by")}
    return Subject(**{**sent, "fd": fd, **rows})


def _end_with_asker(link: socket.socket) -> None:
    """End this process when the asker is gone, whatever it is busy with, or waiting for, then."""
    poll = select.poll()
    poll.register(link, 0)  # a hang-up is always told

    def look(*_signal: object) -> None:
        if poll.poll(0):
            os._exit(0)

    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, _ASKER_S, _ASKER_S)
