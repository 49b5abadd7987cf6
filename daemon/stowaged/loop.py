# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The main loop of a process with one thread: descriptors, timers by the monotonic clock, and signals."""

from __future__ import annotations

import heapq
import itertools
import selectors
import signal
import socket
import time
from typing import Callable

Call = Callable[[], object]


class Timer:
    """Something that is to happen once, unless it is cancelled before."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def fire(self) -> None:
        if not self._cancelled:
            self._call()


class Loop:
    """Waits for whatever comes first and calls what belongs to it. Nothing that it calls may block."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._signals: dict[int, Call] = {}
        self._stopped = False
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self.watch(self._woken.fileno(), self._take_signals)

    def watch(self, fd: int, call: Call) -> None:
        """Call *call* whenever *fd* can be read."""
        self._selector.register(fd, selectors.EVENT_READ, call)

    def watch_writing(self, fd: int, call: Call) -> None:
        """Call *call* whenever *fd* takes something."""
        self._selector.register(fd, selectors.EVENT_WRITE, call)

    def unwatch(self, fd: int) -> None:
        self._selector.unregister(fd)

    def on_signal(self, number: int, call: Call) -> None:
        """Call *call*, from the loop and not from the handler, after signal *number* came."""
        self._signals[number] = call
        signal.signal(number, lambda _number, _frame: None)

    def later(self, seconds: float, call: Call) -> Timer:
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def every(self, seconds: Callable[[], float], call: Call) -> None:
        """Call *call* now and again *seconds* after each call; *seconds* is asked each time."""

        def again() -> None:
            self.later(seconds(), again)
            call()

        again()

    def run(self) -> None:
        """Run until :meth:`stop`."""
        while not self._stopped:
            self.run_once()

    def run_once(self) -> None:
        timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
        for key, _events in self._selector.select(timeout):
            if self._selector.get_map().get(key.fd) is key:  # else an earlier call of this round let go of it
                key.data()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2].fire()

    def stop(self) -> None:
        self._stopped = True

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._woken.close()
        self._waker.close()

    def _take_signals(self) -> None:
        for number in set(self._woken.recv(4096)):
            if number in self._signals:
                self._signals[number]()
