# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unmounting by force: whether somebody uses it or not, it is gone from the mount table, and only once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts
from stowage_core.syscalls import unmount_forced


def is_mounted(path: Path) -> bool:
    return any(mount.point == str(path) for mount in mounts.read())


@pytest.mark.parametrize("used", [False, True])
def test_what_is_mounted_goes(small_disk: Callable[..., Any], used: bool) -> None:
    point = small_disk("ext4").path
    user = os.open(point, os.O_RDONLY) if used else -1
    unmount_forced(str(point))
    assert not is_mounted(point)
    if used:
        os.close(user)
    with pytest.raises(OSError, match="Invalid argument"):
        unmount_forced(str(point))
