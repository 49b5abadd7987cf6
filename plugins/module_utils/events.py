# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Events of a host: what happened to which object and why, one JSON object a line, oldest first."""

from __future__ import annotations

import json
import os
import syslog
import time
from typing import Any

from . import records
from .errors import printable
from .places import Places

MAX_BYTES = 4 * 1024 * 1024
"""The file's size beyond which it becomes ``events.jsonl.1`` and a new one begins."""


def record(places: Places, *, object: str, reason: str, message: str, **fields: Any) -> bool:
    """Append an event and return whether it could be written: a full disk must never hold up what is being recorded.

    :param object: what it happened to, such as ``drive/ml/hf-cache``
    :param reason: one word in camel case, such as ``Evicted``
    :param message: one line for an operator
    """
    event = {"time": time.time(), "object": object, "reason": reason, "message": message, **fields}
    line = json.dumps(event, sort_keys=True).encode("ascii") + b"\n"
    try:
        records.make_directory(places.var)
        _turn_over(places.events)
        fd = os.open(places.events, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(fd).st_size
            if not size:
                os.fchmod(fd, 0o644)  # whatever the umask is
            elif os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # the one before was cut short by a full disk
            return os.write(fd, line) == len(line)
        finally:
            os.close(fd)
    except OSError:
        return False


def tell(places: Places, *, object: str, reason: str, message: str, **fields: Any) -> None:
    """Record an event; when that cannot be done, because its disk is full for one, tell the system's log."""
    if not record(places, object=object, reason=reason, message=message, **fields):
        syslog.openlog("stowage")
        syslog.syslog(syslog.LOG_WARNING, f"{printable(object)}: {message}")


def read(places: Places, limit: int = 100) -> list[dict[str, Any]]:
    """Return the last *limit* events, oldest first; a line cut short by a full disk is left out."""
    lines: list[bytes] = []
    for path in (places.events + ".1", places.events):
        try:
            with open(path, "rb") as stream:
                lines.extend(stream.read().splitlines())
        except FileNotFoundError:
            continue
    found = []
    for line in lines[-limit:] if limit else lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _turn_over(path: str) -> None:
    try:
        if os.stat(path).st_size >= MAX_BYTES:
            os.replace(path, path + ".1")
    except FileNotFoundError:
        pass
