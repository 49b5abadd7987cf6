# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a member of the Mooncake store has really written to its tier: complete buckets, and the keys in them.

A bucket is a pair of files in the directory itself, ``<number>.bucket`` and ``<number>.meta``. The store writes both
under their final names, data before description, and removes them the other way round. So data without a description
is being written or removed, or is left of a process that was killed; the store deletes it at its next start.

The description is a protobuf message: field 1 the length of the data, field 2 each key, field 3 where each value is.
A bucket never changes, so its description is read once: on a full tier that is a quarter of a million files.
"""

from __future__ import annotations

import base64
import os
import re
import stat
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

DATA, DESCRIPTION = ".bucket", ".meta"
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
_LARGEST = 16 * 1024**2
"""Bytes of a description that are read at most; the keys of a bucket are few."""
_LENGTH, _KEY, _VALUE = 0x08, 0x12, 0x1A


@dataclass(frozen=True)
class Buckets:
    """What is in a tier's directory."""

    complete: int = 0
    bytes: int = 0
    """Of the data of the complete ones."""
    keys: int = 0
    incomplete: int = 0
    """Data without a description that fits it."""


Known = Mapping[str, tuple[int, int]]
"""Complete buckets by number: the size of their data, and their keys."""


def remembered(known: Known) -> str:
    """Return *known* as a text without spaces or line ends, as small as it can be."""
    flat = array("q", (number for name, (size, keys) in known.items() for number in (int(name), size, keys)))
    return base64.b64encode(flat.tobytes()).decode("ascii")


def recalled(text: str) -> Known:
    """Return what ``remembered`` made *text* of."""
    flat = array("q", base64.b64decode(text))
    return {str(name): (size, keys) for name, size, keys in zip(flat[::3], flat[1::3], flat[2::3])}


def count(fd: int, step: Callable[[], None], known: Known) -> tuple[Buckets, Known]:
    """Count the buckets in the directory open at *fd*, and return which are known now.

    :param step: called after each small piece of work
    :param known: those of an earlier time
    """
    data: dict[str, int] = {}
    described: list[tuple[int, str]] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            name, suffix = os.path.splitext(entry.name)
            if suffix not in (DATA, DESCRIPTION) or not _NUMBER.fullmatch(name):
                continue
            if suffix == DESCRIPTION:
                described.append((entry.inode(), name))
            else:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed meanwhile
                if stat.S_ISREG(status.st_mode):
                    data[name] = status.st_size
            step()
    found = {}
    for _inode, name in sorted(described):  # as they lie on the disk
        if name in data:
            before = known.get(name)
            is_known = before is not None and before[0] == data[name]
            keys = before[1] if before is not None and is_known else _keys(fd, name + DESCRIPTION, data[name])
            if keys is not None:
                found[name] = (data[name], keys)
        step()
    written, keys_in_all = (sum(one[place] for one in found.values()) for place in (0, 1))
    return Buckets(len(found), written, keys_in_all, len(data) - len(found)), found


def _keys(directory: int, name: str, size: int) -> int | None:
    """Return how many keys a description names; None when it is gone, or is not one of *size* bytes of data."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOATIME | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            return None
        return keys_of(os.read(fd, status.st_size), size)
    finally:
        os.close(fd)


def keys_of(description: bytes, size: int) -> int | None:
    """Return how many keys a description names; None when it is cut short, or is not one of *size* bytes of data."""
    position, counts, length = 0, {_KEY: 0, _VALUE: 0}, 0
    try:
        while position < len(description):
            tag, position = _varint(description, position)
            number, position = _varint(description, position)
            if tag == _LENGTH:
                length = number
            else:
                counts[tag] += 1
                position += number
    except (IndexError, KeyError):
        return None
    is_whole = position == len(description) and length == size and counts[_KEY] == counts[_VALUE]
    return counts[_KEY] if is_whole and counts[_KEY] else None


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at *position* and where the next one is."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, position
