# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Neighbors that keep every core busy, and work beside them that goes on until it is ended."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from stowage_core.forked import fork

Self = TypeVar("Self", bound="EveryCore")
_BEGINS_S = 1.0


class EveryCore:
    """A process for each core, which works until it is ended."""

    def __init__(self, own_session: bool) -> None:
        self.cores = os.cpu_count() or 1
        self._own_session = own_session
        self._pids: list[int] = []

    def work(self, core: int) -> None:
        """Do what a process does, for ever."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        for core in range(self.cores):
            pid = os.fork()
            if not pid:
                if self._own_session:
                    os.setsid()
                self.work(core)
                os._exit(1)
            self._pids.append(pid)
        time.sleep(_BEGINS_S)
        return self

    def __exit__(self, *_exception: object) -> None:
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Have a process of its own work on and on, which is to be ended and not to end by itself."""
    pid = fork(work)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        if os.waitpid(pid, 0)[1] != signal.SIGKILL:
            raise SystemExit("the work in the background ended by itself")
