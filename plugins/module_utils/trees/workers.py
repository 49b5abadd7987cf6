# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counting one directory tree in several forked workers.

Each worker walks a part of the tree. While somebody is idle a byte of shared memory says so, and a busy worker gives
away a directory that it has not visited yet: it sends the descriptor to the parent, which passes it on. Only the
parent counts files with several hard links, so that each counts once whichever workers come across its names.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import socket
import struct
from collections import deque
from selectors import EVENT_READ, DefaultSelector

from ..errors import StowageError
from ..forked import close_all_but, fork
from .inode_set import InodeSet
from .pace import Pace, Pacer
from .tally import FirstProblems, Tally
from .walk import Problem, Walk

# The first byte of a message says what it is.
_DIRECTORY = b"d"  # its path, with its descriptor: to visit
_LINKS = b"l"  # records of _LINK: names of files with several links
_PROBLEM = b"p"  # a problem, as JSON
_IDLE = b"i"
_END = b"e"  # from the parent: say the sums, and end
_SUMS = b"s"  # the sums, as JSON

_LINK = struct.Struct("=QQQQ")  # device, inode, bytes, blocks
_LINKS_A_MESSAGE = 512
_LONGEST_MESSAGE = 65536


def tally_in_workers(root_fd: int, workers: int, pace: Pace | None, problems: FirstProblems) -> Tally:
    """Count the tree at `root_fd`; a worker that ends before its work is done raises `StowageError`."""
    hungry = mmap.mmap(-1, 1)
    team: dict[int, socket.socket] = {}
    try:
        for _number in range(workers):
            pid, connection = _start(hungry, pace)
            team[pid] = connection
        return _coordinate(root_fd, list(team.values()), hungry, problems)
    except OSError as error:
        raise StowageError(f"measuring in {workers} processes: {os.strerror(error.errno or errno.EIO)}") from error
    finally:
        for pid, ours in team.items():
            ours.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        hungry.close()


def _start(hungry: mmap.mmap, pace: Pace | None) -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            return fork(lambda: _work(theirs, hungry, pace)), ours
        except OSError:
            ours.close()
            raise


def _coordinate(root_fd: int, team: list[socket.socket], hungry: mmap.mmap, problems: FirstProblems) -> Tally:
    seen = InodeSet()
    tally = Tally(lambda status: True)
    offers: deque[tuple[int, bytes]] = deque([(os.dup(root_fd), b"")])
    idle = list(team)
    unfinished = len(team)
    try:
        with DefaultSelector() as ready:
            for worker in team:
                ready.register(worker, EVENT_READ, worker)
            while unfinished:
                while offers and idle:
                    fd, path = offers.popleft()
                    try:
                        socket.send_fds(idle.pop(), [_DIRECTORY + path], [fd])
                    finally:
                        os.close(fd)
                hungry[0] = min(len(idle), 255)
                if len(idle) == len(team):
                    for worker in team:
                        worker.send(_END)
                    idle = []
                for key, _events in ready.select():
                    kind, content, fd = _receive(key.data)
                    if kind == _LINKS:
                        for dev, ino, size, blocks in _LINK.iter_unpack(content):
                            if seen.add(dev, ino):
                                tally.add(size, 0, blocks, 1, 0, blocks)
                    elif kind == _DIRECTORY:
                        offers.append((fd, content))
                    elif kind == _PROBLEM:
                        problems.add(Problem(*json.loads(content)))
                    elif kind == _IDLE:
                        idle.append(key.data)
                    elif kind == _SUMS:
                        tally.add(*json.loads(content))
                        ready.unregister(key.data)
                        unfinished -= 1
                    else:
                        raise StowageError("measuring: a process ended before it was done")
        return tally
    finally:
        for fd, _path in offers:
            os.close(fd)


def _receive(connection: socket.socket) -> tuple[bytes, bytes, int]:
    message, fds, _flags, _address = socket.recv_fds(connection, _LONGEST_MESSAGE, 1)
    return message[:1], message[1:], fds[0] if fds else -1


class _Links:
    """Names of files with several links, on their way to the parent."""

    def __init__(self, parent: socket.socket) -> None:
        self._parent = parent
        self._records: list[bytes] = []

    def pass_on(self, status: os.stat_result) -> bool:
        self._records.append(_LINK.pack(status.st_dev, status.st_ino, status.st_size, status.st_blocks))
        if len(self._records) == _LINKS_A_MESSAGE:
            self.flush()
        return False

    def flush(self) -> None:
        if self._records:
            self._parent.send(_LINKS + b"".join(self._records))
            self._records.clear()


def _work(parent: socket.socket, hungry: mmap.mmap, pace: Pace | None) -> None:
    close_all_but(parent.fileno())
    links = _Links(parent)
    tally = Tally(links.pass_on)
    pacer = Pacer(pace)

    def report(problem: Problem) -> None:
        parent.send(_PROBLEM + json.dumps([problem.path, problem.what, problem.missing]).encode())

    while True:
        kind, content, root_fd = _receive(parent)
        if kind != _DIRECTORY:
            break
        walk = Walk(root_fd, report, prefix=content.decode())

        def step(walk: Walk = walk) -> None:
            pacer.step()
            if hungry[0]:
                offer = walk.split()
                if offer is not None:
                    hungry[0] = max(hungry[0] - 1, 0)  # at worst another worker gives one too many
                    fd, path = offer
                    socket.send_fds(parent, [_DIRECTORY + path.encode()], [fd])
                    os.close(fd)

        tally.count(walk, step)
        os.close(root_fd)
        links.flush()
        parent.send(_IDLE)
    if kind == _END:
        parent.send(_SUMS + json.dumps(tally.sums()).encode())
