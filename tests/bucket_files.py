# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Buckets as the Mooncake store writes them."""

from __future__ import annotations

from pathlib import Path


def varint(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def field(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + varint(len(data)) + data


def description(keys: list[str], value_bytes: int) -> tuple[bytes, int]:
    """Return the description of a bucket with a value for each of *keys*, and how large its data is."""
    names, values, offset = b"", b"", 0
    for key in keys:
        name = b"default\0" + key.encode()
        names += field(0x12, name)
        where = (b"\x08" + varint(offset) if offset else b"") + b"\x10" + varint(len(name))
        values += field(0x1A, where + b"\x18" + varint(value_bytes))
        offset += len(name) + value_bytes
    return b"\x08" + varint(offset) + names + values, offset


def put(directory: Path, number: int, keys: int = 16, value_bytes: int = 1 << 10) -> int:
    """Write a bucket and return the size of its data."""
    described, size = description([f"{number}-{key}" for key in range(keys)], value_bytes)
    (directory / f"{number}.bucket").write_bytes(bytes(size))
    (directory / f"{number}.meta").write_bytes(described)
    return size
