# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON records on disk that are replaced as a whole: a reader sees the old one or the new one, never a half."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from .errors import StowageError

Record = dict[str, Any]
_TEMPORARY = re.compile(r"\..+\.(json|env)\.[a-z0-9_]{8}")
"""How :func:`write_bytes` names a file until it is whole."""
_CHECKED = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "None": (type(None),)}
_T = TypeVar("_T")


class RecordError(StowageError):
    """A record is there and cannot be used."""


def read(path: str, remedy: str = "restore it or roll the host out again") -> Record | None:
    """Return the record at *path*, or None when there is none; RecordError when it cannot be read.

    :param remedy: what to do about one that is broken
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}; it must be a readable file of Stowage's own") from error
    try:
        value = json.loads(_content(fd))
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}; it must be a readable file of Stowage's own") from error
    except ValueError as error:
        raise RecordError(f"{path}: not valid JSON ({error}); {remedy}") from error
    finally:
        os.close(fd)
    if not isinstance(value, dict):
        raise RecordError(f"{path}: not a JSON object; {remedy}")
    return value


def typed(cls: Callable[..., _T], value: Mapping[str, Any]) -> _T:
    """Return the dataclass that a record holds the fields of.

    :raises TypeError: when one is missing, unknown, not of its declared type, or no finite number
    """
    made = cls(**value)
    for one in fields(made):  # type: ignore[arg-type]
        names = str(one.type).split(" | ")
        if not set(names) <= set(_CHECKED):
            continue  # made of a record of its own, which was checked then
        given = getattr(made, one.name)
        kinds = tuple(kind for name in names for kind in _CHECKED[name])
        fits = isinstance(given, kinds) and (not isinstance(given, bool) or bool in kinds)
        if not fits or (isinstance(given, float) and not math.isfinite(given)):
            raise TypeError(f"{one.name}: {given!r} is no {one.type}")
    return made


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
    make_directory(directory)
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


def make_directory(path: str) -> None:
    """Make a directory, and those above it, where they are missing: readable whatever the umask is."""
    if os.path.isdir(path):
        return
    make_directory(os.path.dirname(path))
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o755)
        os.chmod(path, 0o755)


def sweep(directory: str, older_than_s: float = 3600.0) -> list[str]:
    """Remove what killed writers of records have left in one of Stowage's own directories; return the names."""
    swept = []
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return []
    for entry in entries:
        if not _TEMPORARY.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
            continue
        with contextlib.suppress(FileNotFoundError):  # its writer has put it in place
            if time.time() - entry.stat(follow_symlinks=False).st_mtime >= older_than_s:
                os.unlink(entry.path)
                swept.append(entry.name)
    return swept


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
    try:
        status = os.fstat(fd)
        return stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == mode and _content(fd) == data
    finally:
        os.close(fd)


def _content(fd: int) -> bytes:
    return b"".join(iter(partial(os.read, fd, 1 << 16), b""))


def _sync_directory(directory: str) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
