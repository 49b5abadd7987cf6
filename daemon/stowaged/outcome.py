# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a command ends: its exit status, and one line for what went wrong."""

from __future__ import annotations

import os
import sys
from typing import Callable

from stowage_core.errors import StowageError, one_line

OK, FAILED, FOUND = 0, 1, 3
_CAP_SYS_ADMIN = 21


def outcome(run: Callable[[], int]) -> int:
    """Return the exit status of *run*; what it raises is told."""
    # A log may not be able to show what a path holds: it is escaped rather than fatal.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        result = run()
        sys.stdout.flush()
        return result
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has had enough, as with "| head"
        return OK
    except (StowageError, OSError) as error:
        text = one_line(error)
        denied = isinstance(error, PermissionError) or isinstance(error.__cause__, PermissionError)
        return fail(text + ("; run it as root" if denied and not is_privileged() else ""))


def is_privileged() -> bool:
    """Return whether owner marks can be seen: to anybody else every directory looks as if it was nobody's."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as stream:
        effective = next(line.split()[1] for line in stream if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


def fail(text: str) -> int:
    print(f"stowage: {text}", file=sys.stderr)
    return FAILED
