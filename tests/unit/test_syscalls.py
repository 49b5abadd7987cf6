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


UUID = "6f0c1f3e-8a52-4d9b-9c55-0a2f6be1d7c4"
UUID_BYTES = bytes.fromhex(UUID.replace("-", ""))


class Ext4OfAnOlderKernel:
    """An ext4 that knows no request for its UUID; statfs tells both halves of it combined, as since Linux 2.6."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, links: Path) -> None:
        first, second = (int.from_bytes(part, "little") for part in (UUID_BYTES[:8], UUID_BYTES[8:]))
        self.f_fsid, self.device = first ^ second, True
        monkeypatch.setattr(syscalls.fcntl, "ioctl", self._ioctl)
        monkeypatch.setattr(syscalls.os, "fstatvfs", lambda fd: self)
        monkeypatch.setattr(syscalls, "is_on_block_device", lambda fd: self.device)
        monkeypatch.setattr(syscalls, "_LINKS_BY_UUID", str(links))
        monkeypatch.setattr(syscalls, "_uuids_by_fsid", {})

    def _ioctl(self, fd: int, request: int, buffer: bytes) -> bytes:
        raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))


def test_the_uuid_on_an_older_kernel_is_the_link_that_the_filesystem_confirms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ext4 = Ext4OfAnOlderKernel(monkeypatch, tmp_path / "by-uuid")
    assert syscalls.filesystem_uuid(0) is None, "no udev"
    (tmp_path / "by-uuid").mkdir()
    for name in ("2C6B-11F0", "01D7A4C2F3B59E60", "00000000-1111-2222-3333-444444444444"):
        (tmp_path / "by-uuid" / name).symlink_to("../../sda1")
    assert syscalls.filesystem_uuid(0) is None, "no link of this filesystem"
    (tmp_path / "by-uuid" / UUID).symlink_to("../../another")
    assert syscalls.filesystem_uuid(0) == UUID
    ext4.f_fsid ^= 1
    assert syscalls.filesystem_uuid(0) is None, "another filesystem"


def test_a_filesystem_without_a_block_device_is_not_asked_for_its_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ext4 = Ext4OfAnOlderKernel(monkeypatch, tmp_path)
    ext4.device = False
    monkeypatch.setattr(syscalls.os, "fstatvfs", lambda fd: pytest.fail("a server may never answer"))
    assert syscalls.filesystem_uuid(0) is None
