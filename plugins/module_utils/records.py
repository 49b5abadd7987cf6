# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON records on disk that are replaced as a whole: a reader sees the old one or the new one, never a half."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any

from .errors import StowageError

Record = dict[str, Any]


class RecordError(StowageError):
    """A record is there and cannot be used."""


def read(path: str) -> Record | None:
    """Return the record at *path*, or None when there is none; RecordError when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}; it must be a readable file of Stowage's own") from error
    with open(fd, "rb") as stream:
        try:
            value = json.loads(stream.read())
        except (OSError, ValueError) as error:
            raise RecordError(f"{path}: not valid JSON ({error}); restore it or roll the host out again") from error
    if not isinstance(value, dict):
        raise RecordError(f"{path}: not a JSON object; restore it or roll the host out again")
    return value


def dumps(value: Mapping[str, Any]) -> bytes:
    """Return *value* as an operator reads it: sorted, indented, ASCII (undecodable names survive as escapes)."""
    return json.dumps(value, indent=2, sort_keys=True).encode("ascii") + b"\n"


def write(path: str, value: Mapping[str, Any], mode: int = 0o644) -> bool:
    """Replace the record at *path* atomically and durably; return whether its content changed."""
    return write_bytes(path, dumps(value), mode)


def write_bytes(path: str, data: bytes, mode: int = 0o644) -> bool:
    """Replace the file at *path* with *data* atomically and durably; return whether anything changed."""
    if is_current(path, data, mode):
        return False
    directory, name = os.path.split(path)
    os.makedirs(directory, mode=0o755, exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=directory)
    try:
        with open(fd, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_directory(directory)
    return True


def remove(path: str) -> bool:
    """Remove the file at *path*; return whether it was there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    _sync_directory(os.path.dirname(path))
    return True


def is_current(path: str, data: bytes, mode: int = 0o644) -> bool:
    """Return whether the file at *path* has this content and mode already."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with open(fd, "rb") as stream:
        return (os.fstat(stream.fileno()).st_mode & 0o7777) == mode and stream.read() == data


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
