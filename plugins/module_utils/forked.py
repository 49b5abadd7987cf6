# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forked children for work that may hang, fail or take long, without carrying the parent's state along."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

from .syscalls import end_with_parent


def fork(body: Callable[[], None]) -> int:
    """Run `body` in a child and return the child's pid; the child's exit status is 1 when `body` raises.

    The child dies with its parent and has the default signal handlers. `body` should begin with `close_all_but`.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        end_with_parent()
        if os.getppid() == parent:
            _reset_signals()
            body()
            status = 0
    except BaseException:  # nothing may go on in the parent's code above this frame
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def close_all_but(*keep: int) -> None:
    """Close what the parent had open: a lock or a connection must not live on in a child that is stuck."""
    start = 3
    for fd in sorted(fd for fd in set(keep) if fd >= start):
        os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))
