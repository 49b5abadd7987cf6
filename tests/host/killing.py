# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work that is killed at one of its steps, as by a power failure."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable


def killed(step: str, work: Callable[[Callable[[str], None]], object]) -> None:
    """Do some work in a child that kills itself at a step."""
    pid = os.fork()
    if pid == 0:

        def kill(now: str) -> None:
            if now == step:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            work(kill)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _pid, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{step} was not reached"
