# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fixtures that all tests on real filesystems stand on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def filesystem(path: Path) -> str:
    return subprocess.run(
        ["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(path)],
        text=True,
        capture_output=True,
        check=True,
    ).stdout.strip()


def test_disk_is_a_fresh_directory_on_a_real_filesystem(disk: Path, fstype: str) -> None:
    assert filesystem(disk) == fstype
    assert list(disk.iterdir()) == []
    os.setxattr(disk, "trusted.stowage.test", b"1", os.XATTR_CREATE)


def test_disk_is_left_clean_whatever_a_test_leaves(disk: Path, small_disk: Callable[..., Any]) -> None:
    below = disk / "mounted here"
    below.mkdir()
    small_disk("ext4").mount(at=below)
    assert below.is_mount()


def test_small_disk_can_be_unmounted_and_mounted_again(small_disk: Callable[..., Any], fstype: str) -> None:
    new = small_disk(fstype)
    assert filesystem(new.path) == fstype
    (new.path / "file").write_bytes(b"data")
    new.unmount()
    assert not new.path.is_mount()
    new.mount("ro")
    assert (new.path / "file").read_bytes() == b"data"


def test_small_disks_have_the_size_asked_for(small_disk: Callable[..., Any]) -> None:
    status = os.statvfs(small_disk("ext4", 64 << 20).path)
    assert 50 << 20 < status.f_blocks * status.f_frsize <= 64 << 20


def test_nothing_is_left_where_other_tests_clean_up(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Pytest removes what earlier runs left in its usual place, and a mount there makes it warn."""
    assert "pytest-of-" not in str(tmp_path)
    assert Path(request.config.option.basetemp) in tmp_path.parents
