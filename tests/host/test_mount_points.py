# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory underneath a mount, seen and made immutable without unmounting it."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts
from stowage_core.errors import Refusal
from stowage_core.services.mount_points import is_immutable, make_immutable, underneath

GETFLAGS, SETFLAGS = 0x80086601, 0x40086602


def clear_flags(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        flags = struct.unpack("i", fcntl.ioctl(fd, GETFLAGS, struct.pack("i", 0)))[0]
        fcntl.ioctl(fd, SETFLAGS, struct.pack("i", flags & ~0x10))
    finally:
        os.close(fd)


@pytest.fixture
def inner(disk: Path, small_disk: Callable[..., Any]) -> Iterator[Any]:
    """A filesystem mounted on a directory of another real filesystem; its ``path`` is that mount point."""
    point = disk / "point"
    point.mkdir()
    inner = small_disk("ext4")
    inner.unmount()
    inner.mount(at=point)
    inner.path = point
    yield inner
    if os.path.ismount(point):
        inner.unmount()
    clear_flags(point)


def test_nothing_can_be_written_underneath(inner: Any) -> None:
    point = str(inner.path)
    assert is_immutable(point, mounts.read()) is False
    make_immutable(point, mounts.read())
    assert is_immutable(point, mounts.read()) is True
    (inner.path / "in-the-mount").touch()
    before = [mount.point for mount in mounts.read()]
    inner.unmount()
    with pytest.raises(PermissionError):
        (inner.path / "underneath").touch()
    assert is_immutable(point, mounts.read()) is True
    inner.mount(at=inner.path)
    assert [mount.point for mount in mounts.read()] == before


def test_what_was_written_underneath_is_not_hidden_for_good(inner: Any) -> None:
    inner.unmount()
    (inner.path / "stray").touch()
    inner.mount(at=inner.path)
    with pytest.raises(Refusal) as refusal:
        is_immutable(str(inner.path), mounts.read())
    assert str(refusal.value) == (
        f"{inner.path}: the directory underneath the mount is not empty (1 entry); "
        "unmount, look at what was written there, and move it away"
    )


def test_looking_underneath_leaves_no_mount(inner: Any) -> None:
    before = mounts.read()
    with underneath(str(inner.path), before) as fd:
        assert os.listdir(fd) == []
        assert os.fstat(fd).st_dev != inner.path.stat().st_dev
    assert mounts.read() == before
