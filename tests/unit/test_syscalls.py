# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names that the kernel would take for others."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stowage_core import locks, syscalls


@pytest.fixture
def directory(tmp_path: Path) -> int:
    (tmp_path / "in").mkdir()
    return os.open(tmp_path / "in", os.O_RDONLY | os.O_DIRECTORY)


@pytest.mark.parametrize(
    "call",
    [
        lambda fd: syscalls.open_beneath(fd, b"a\0b", os.O_RDWR | os.O_CREAT, 0o600),
        lambda fd: syscalls.rename_noreplace(fd, b"a\0b", fd, b"c"),
        lambda fd: syscalls.rename_noreplace(fd, b"a", fd, b"c\0b"),
        lambda fd: syscalls.unmount("/a\0b"),
        lambda fd: locks.try_lock(fd, b"a\0b"),
    ],
)
def test_a_nul_byte_does_not_cut_a_name(directory: int, call: Callable[[int], object]) -> None:
    os.close(os.open("a", os.O_WRONLY | os.O_CREAT, dir_fd=directory))
    with pytest.raises(OSError, match="cannot hold a NUL byte") as raised:
        call(directory)
    assert raised.value.errno == errno.EINVAL and os.listdir(directory) == ["a"]


@pytest.mark.parametrize("take", [locks.try_lock, lambda fd, name: locks.lock(fd, name, 0.1)])
@pytest.mark.parametrize("name", [b"../out", b"/tmp/out", b"link/out"])
def test_a_lock_is_made_in_its_directory_only(
    directory: int, tmp_path: Path, take: Callable[[int, bytes], object], name: bytes
) -> None:
    (tmp_path / "in" / "link").symlink_to(tmp_path)
    with pytest.raises(OSError):
        take(directory, name)
    assert os.listdir(directory) == ["link"] and os.listdir(tmp_path) == ["in"]


def test_what_open_beneath_makes_has_the_mode_asked_for(directory: int) -> None:
    fd = syscalls.open_beneath(directory, b"new", os.O_WRONLY | os.O_CREAT, 0o600)
    assert os.fstat(fd).st_mode & 0o777 == 0o600


class _OldKernel:
    """A C library on a kernel that has no mount_setattr."""

    def syscall(self, number: object, *arguments: object) -> int:
        if getattr(number, "value", 0) == 428:
            return os.open("/", os.O_PATH)
        syscalls.ctypes.set_errno(errno.ENOSYS)
        return -1


def test_an_older_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "_libc", _OldKernel())
    with pytest.raises(OSError, match=r"needs Linux 5\.12 or newer, and runs on"):
        syscalls.bind_mount(0, "/nowhere")
