# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Child processes for all work that may hang: whatever touches a disk runs in one of them, never in the daemon.

A child runs a function and sends messages, one JSON object a line, through a pipe (an empty one says only that it is
alive). One that is silent for too long is killed. A process that waits for a dead disk does not die of it: such a child
is left behind until the disk answers, and as long as it is there no other child of the same key is started.

A child that is kept takes orders through a second pipe, one after the other. While it has none it may be silent. An
empty order breaks off the one before it: by the same pipe, so that it is never taken for one about another order.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

from stowage_core.errors import StowageError, one_line
from stowage_core.forked import close_all_but, fork

from .loop import Loop, Timer

Message = dict[str, Any]
Send = Callable[[Mapping[str, Any]], None]
Body = Callable[[Send], None]
Kept = Callable[[Send, int], None]
"""What a child does that is kept: it is given the descriptor that its orders come from."""

_LENGTH = struct.Struct("=Q")
"""What is before each order."""


@dataclass(frozen=True)
class Ending:
    """How a child ended: *silent* when it was given up, else with *error* as one line, empty when all went well."""

    error: str = ""
    silent: bool = False


@dataclass
class _Child:
    key: str
    pid: int
    pidfd: int
    pipe: int
    silence_s: float | None
    """None while it may be silent."""
    on_message: Callable[[Message], None]
    on_end: Callable[[Ending], None]
    orders: int = -1
    timer: Timer | None = None
    buffer: bytearray = field(default_factory=bytearray)
    ordered: bytearray = field(default_factory=bytearray)
    """Of its orders what the pipe has not taken yet."""
    error: str = ""
    given_up: bool = False


class Children:
    """The children of the daemon, at most one of each key."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._children: dict[str, _Child] = {}

    def running(self, key: str) -> bool:
        """Return whether a child of this key is there, be it at work or left behind."""
        return key in self._children

    def left_behind(self, key: str) -> bool:
        child = self._children.get(key)
        return child is not None and child.given_up

    def start(
        self,
        key: str,
        body: Body,
        on_message: Callable[[Message], None],
        on_end: Callable[[Ending], None],
        silence_s: float,
    ) -> None:
        """Run *body* in a child; *on_end* is called once, when it ended or was given up after *silence_s*."""
        self._start(key, body, on_message, on_end, silence_s)

    def keep(
        self, key: str, body: Kept, on_message: Callable[[Message], None], on_end: Callable[[Ending], None]
    ) -> None:
        """Run *body* in a child that stays and takes orders; *on_end* is called as by :meth:`start`."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(writer, False)
        try:
            self._start(key, lambda send: body(send, reader), on_message, on_end, None, reader)
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        self._children[key].orders = writer

    def _start(
        self,
        key: str,
        body: Body,
        on_message: Callable[[Message], None],
        on_end: Callable[[Ending], None],
        silence_s: float | None,
        *also: int,
    ) -> None:
        if key in self._children:
            raise ValueError(f"a child {key} is there already")
        reader, writer = os.pipe2(os.O_CLOEXEC)
        pid = fork(lambda: _run(writer, body, *also))
        os.close(writer)
        os.set_blocking(reader, False)
        child = _Child(key, pid, os.pidfd_open(pid), reader, silence_s, on_message, on_end)
        self._children[key] = child
        self._watch_silence(child)
        self._loop.watch(reader, lambda: self._read(child))
        self._loop.watch(child.pidfd, lambda: self._reap(child))

    def order(self, key: str, order: bytes, silence_s: float) -> None:
        """Send an order to a child that is kept; until :meth:`rest` it is given up after *silence_s*."""
        child = self._children[key]
        self._put(child, order)
        child.silence_s = silence_s
        self._watch_silence(child)

    def rest(self, key: str) -> None:
        """Let a child that is kept be silent: it has done what it was ordered to do."""
        child = self._children[key]
        child.silence_s = None
        self._watch_silence(child)

    def stop(self, key: str, why: str) -> None:
        """Kill the child of this key, if it is there; it ends with *why*."""
        child = self._children.get(key)
        if child is not None and not child.given_up:
            child.error = why
            _kill(child)

    def end(self, key: str, why: str) -> None:
        """Tell the child of this key to end by itself, with *why*: it heeds SIGTERM, and sends first what it has done.

        Like any other child it is given up when it is silent for too long.
        """
        child = self._children.get(key)
        if child is not None and not child.given_up:
            child.error = why
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child.pidfd, signal.SIGTERM)

    def interrupt(self, key: str) -> None:
        """Tell the child of this key, which is kept, to break off its last order: it stays."""
        child = self._children.get(key)
        if child is not None and not child.given_up:
            self._put(child, b"")

    def _put(self, child: _Child, order: bytes) -> None:
        if not child.ordered and child.orders >= 0:
            self._loop.watch_writing(child.orders, lambda: self._write(child))
        child.ordered += _LENGTH.pack(len(order)) + order

    def kill_all(self, wait_s: float) -> None:
        """Kill every child and wait for them at most *wait_s* seconds in all; a hung one is left to the kernel."""
        for child in self._children.values():
            _kill(child)
        deadline = time.monotonic() + wait_s
        for child in list(self._children.values()):
            with contextlib.closing(select.epoll()) as poll:
                poll.register(child.pidfd, select.EPOLLIN)
                poll.poll(max(0.0, deadline - time.monotonic()))
            os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOHANG)
            self._drop(child)

    def _drop(self, child: _Child) -> None:
        self._end_silence(child)
        self._close_pipes(child)
        self._loop.unwatch(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.key]

    @staticmethod
    def _end_silence(child: _Child) -> None:
        if child.timer is not None:
            child.timer.cancel()
            child.timer = None

    def _watch_silence(self, child: _Child) -> None:
        """Let the time begin anew after which a child is given up."""
        self._end_silence(child)
        if child.silence_s is not None:
            child.timer = self._loop.later(child.silence_s, lambda: self._give_up(child))

    def _read(self, child: _Child) -> bool:
        """Take what the child has sent and return whether there was anything."""
        try:
            data = os.read(child.pipe, 1 << 20)
        except BlockingIOError:
            return False
        if not data:
            self._close_pipe(child)
            return False
        self._watch_silence(child)
        child.buffer += data
        *lines, child.buffer = child.buffer.split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "failed" in message:
                child.error = message["failed"]
            elif not child.given_up and message:
                child.on_message(message)
        return True

    def _close_pipe(self, child: _Child) -> None:
        if child.pipe >= 0:
            self._loop.unwatch(child.pipe)
            os.close(child.pipe)
            child.pipe = -1

    def _close_pipes(self, child: _Child) -> None:
        self._close_pipe(child)
        if child.orders >= 0:
            if child.ordered:
                self._loop.unwatch(child.orders)
            os.close(child.orders)
            child.orders = -1

    def _write(self, child: _Child) -> None:
        """Give a child what its pipe takes of its orders."""
        try:
            del child.ordered[: os.write(child.orders, child.ordered)]
        except BlockingIOError:
            return
        except BrokenPipeError:
            child.ordered.clear()  # it is ending, and how is told when it has
        if not child.ordered:
            self._loop.unwatch(child.orders)

    def _give_up(self, child: _Child) -> None:
        child.given_up = True
        self._close_pipes(child)
        _kill(child)
        child.on_end(Ending("no answer", silent=True))

    def _reap(self, child: _Child) -> None:
        result = os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOHANG)
        if result is None:
            return
        while child.pipe >= 0 and self._read(child):
            pass  # what it sent before it ended; a helper of its own may hold the other end open
        self._drop(child)
        if child.given_up:
            return
        if not child.error and (result.si_code != os.CLD_EXITED or result.si_status != 0):
            how = f"exit status {result.si_status}" if result.si_code == os.CLD_EXITED else f"signal {result.si_status}"
            child.error = f"{child.key}: ended with {how}; its messages are in the journal"
        child.on_end(Ending(child.error))


def _kill(child: _Child) -> None:
    # Its own helpers are in its process group, whose number stays taken until the child is reaped.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)


def next_order(orders: int) -> bytes | None:
    """Return the next order from the descriptor of a child that is kept; None when the daemon has no more.

    An empty one breaks off the one before it.
    """
    length = _read_all(orders, _LENGTH.size)
    return None if length is None else _read_all(orders, _LENGTH.unpack(length)[0])


def _read_all(fd: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = os.read(fd, min(size - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


def _run(writer: int, body: Body, *also: int) -> None:
    close_all_but(writer, *also)
    os.setpgid(0, 0)

    busy = False

    def send(message: Mapping[str, Any]) -> None:
        nonlocal busy
        if busy:
            return  # a signal handler shows that the child is alive, while a message does so itself
        busy = True
        data = memoryview(json.dumps(message).encode("ascii") + b"\n")
        while data:
            data = data[os.write(writer, data) :]
        busy = False

    try:
        body(send)
    except StowageError as error:
        send({"failed": str(error)})
    except OSError as error:
        send({"failed": one_line(error)})
