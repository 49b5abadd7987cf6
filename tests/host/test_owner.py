# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ownership marks on real filesystems."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts, owner, syscalls
from stowage_core.errors import Refusal, StowageError
from stowage_core.places import Places
from stowage_core.syscalls import filesystem_uuid, open_beneath

SIZES = {"ext4": 16 << 20, "xfs": 300 << 20, "btrfs": 114 << 20}


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def claim(path: Path, name: str = "ml.hf-cache", identity: str = "one") -> owner.Mark:
    with opened(path) as fd:
        return owner.claim(fd, "copy", name, identity, "gpu-01")


def mark_of(path: Path) -> owner.Mark | None:
    with opened(path) as fd:
        return owner.read_mark(fd)


def test_a_claim_is_taken_once(disk: Path) -> None:
    mark = claim(disk)
    assert mark_of(disk) == mark
    with pytest.raises(Refusal, match=f"^{disk}: is claimed by copy ml.hf-cache of host gpu-01 already; choose"):
        claim(disk, "ml.other")
    assert mark_of(disk) == mark


def test_a_snapshot_is_not_what_it_was_made_of(small_disk: Callable[..., Any]) -> None:
    """Filesystem, inode and mark are the same."""
    disk = small_disk("btrfs").path
    subprocess.run(["btrfs", "-q", "subvolume", "create", disk / "a"], check=True)
    (disk / "a" / "folder").mkdir()
    for place in ("a", "a/folder"):
        claim(disk / place)
    subprocess.run(["btrfs", "-q", "subvolume", "snapshot", disk / "a", disk / "b"], check=True)
    for place in ("", "folder"):
        assert os.stat(disk / "a" / place).st_ino == os.stat(disk / "b" / place).st_ino
        assert mark_of(disk / "a" / place) is not None
        assert mark_of(disk / "b" / place) is None
        claim(disk / "b" / place, "ml.another")
        assert mark_of(disk / "a" / place) != mark_of(disk / "b" / place)
    table = [mount for mount in mounts.read() if mount.point == str(disk)]
    assert sorted(owner.find_marks(table)) == [str(disk / "a"), str(disk / "b")]


def test_a_claim_survives_a_rename_and_goes_with_its_release(disk: Path) -> None:
    place = disk / "before"
    place.mkdir()
    mark = claim(place)
    place = place.rename(disk / "after")
    assert mark_of(place) == mark
    with opened(place) as fd:
        owner.release(fd, mark)
        with pytest.raises(Refusal, match="is not claimed by copy ml.hf-cache"):
            owner.release(fd, mark)
    assert mark_of(place) is None


def test_a_mark_that_a_copying_tool_carried_along_is_no_claim(disk: Path) -> None:
    original, carried = disk / "original", disk / "carried"
    original.mkdir()
    carried.mkdir()
    mark = claim(original)
    os.setxattr(carried, owner.XATTR, os.getxattr(original, owner.XATTR))
    assert mark_of(carried) is None
    assert claim(carried, "ml.other").name == "ml.other"
    assert mark_of(original) == mark


def test_a_damaged_mark_is_said(disk: Path) -> None:
    os.setxattr(disk, owner.XATTR, b"{}")
    with pytest.raises(StowageError, match=r"its owner mark trusted.stowage.owner is damaged"):
        mark_of(disk)


def test_a_filesystem_without_marks_is_refused() -> None:
    with opened(Path("/dev/pts")) as fd, pytest.raises(Refusal, match="use ext4, XFS or btrfs"):
        owner.claim(fd, "copy", "ml.hf-cache", "one", "gpu-01")


def test_the_uuid_is_the_filesystems_own(fstype: str, small_disk: Callable[..., Any]) -> None:
    disk = small_disk(fstype, SIZES[fstype])
    blkid = subprocess.run(
        ["blkid", "-p", "-s", "UUID", "-o", "value", disk.device], capture_output=True, text=True, check=True
    )
    with opened(disk.path) as fd:
        assert filesystem_uuid(fd) == blkid.stdout.strip()


def test_a_mark_is_the_same_on_a_kernel_that_does_not_tell_the_uuid_of_ext4(
    small_disk: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ext4 before Linux 6.0, as on Ubuntu 22.04 and RHEL 9: what is marked there is known after an upgrade."""
    disk = small_disk("ext4")
    with opened(disk.path) as fd:
        uuid = filesystem_uuid(fd)
    ioctl = syscalls.fcntl.ioctl

    def older(fd: int, request: int, *more: Any) -> Any:
        if request in (syscalls._FS_IOC_GETFSUUID, syscalls._EXT4_IOC_GETFSUUID):
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        return ioctl(fd, request, *more)

    with monkeypatch.context() as kernel:
        kernel.setattr(syscalls.fcntl, "ioctl", older)
        kernel.setattr(syscalls, "_LINKS_BY_UUID", str(tmp_path))
        with pytest.raises(Refusal, match="does not tell the UUID of its filesystem"):
            claim(disk.path)
        (tmp_path / str(uuid)).symlink_to(disk.device)
        mark = claim(disk.path)
        assert mark_of(disk.path) == mark and mark.filesystem_uuid == uuid
    assert mark_of(disk.path) == mark


def test_marks_are_found_again(disk: Path) -> None:
    (disk / "a" / "data").mkdir(parents=True)
    mark = claim(disk / "a" / "data", "location")
    (disk / "a" / "data" / "inside").mkdir()
    claim(disk / "a" / "data" / "inside")
    (disk / "loop").symlink_to(disk)
    table = [mount for mount in mounts.read() if mount.point == mounts.of_path(str(disk), mounts.read()).point]
    found = owner.find_marks(table[-1:], depth=8)
    assert found[str(disk / "a" / "data")] == mark
    assert not [path for path in found if path.endswith("inside") or "/loop/" in path]


def test_the_registry(tmp_path: Path, disk: Path) -> None:
    registry = owner.Registry(Places.under(str(tmp_path)))
    registry.add("/mnt/nvme0/stowage", claim(disk))
    assert list(registry.all()) == list(registry.claims([])) == ["/mnt/nvme0/stowage"]
    registry.remove("/mnt/nvme0/stowage")
    assert registry.all() == {}


def test_a_lost_registry_is_read_from_the_marks(tmp_path: Path, fstype: str, small_disk: Callable[..., Any]) -> None:
    disk = small_disk(fstype, SIZES[fstype])
    (disk.path / "stowage").mkdir()
    claim(disk.path / "stowage")
    registry = owner.Registry(Places.under(str(tmp_path)))
    table = [mount for mount in mounts.read() if mount.point == str(disk.path)]
    marked = {"kind": "copy", "name": "ml.hf-cache", "identity": "one", "host": "gpu-01"}
    assert registry.is_lost()
    assert registry.all() == {}
    assert registry.claims(table) == {str(disk.path / "stowage"): marked}
    registry.rebuild(registry.claims(table))
    assert not registry.is_lost()
    assert registry.all() == {str(disk.path / "stowage"): marked}


def test_what_is_mounted_twice_is_found_once(disk: Path, small_disk: Callable[..., Any]) -> None:
    small = small_disk("ext4", SIZES["ext4"])
    (small.path / "stowage").mkdir()
    claim(small.path / "stowage")
    for name, source in (("whole", small.path), ("part", small.path / "stowage")):
        (disk / name).mkdir()
        subprocess.run(["mount", "--bind", str(source), str(disk / name)], check=True)
    device = mounts.of_path(str(small.path), mounts.read()).device
    found = owner.find_marks([mount for mount in mounts.read() if mount.device == device])
    assert list(found) == [str(small.path / "stowage")]


def test_opening_beneath_follows_nothing_and_leaves_no_mount(disk: Path) -> None:
    (disk / "in" / "side").mkdir(parents=True)
    (disk / "out").symlink_to("/etc")
    (disk / "mounted").mkdir()
    subprocess.run(["mount", "--bind", str(disk / "in"), str(disk / "mounted")], check=True)
    with opened(disk) as fd:
        os.close(open_beneath(fd, b"in/side"))
        for name, error in (
            (b"out", "not a directory"),
            (b"out/ssl", "symbolic links"),
            (b"mounted", "cross-device"),
            (b"../..", "cross-device"),
        ):
            with pytest.raises(OSError, match=f"(?i){error}"):
                open_beneath(fd, name)
    subprocess.run(["umount", str(disk / "mounted")], check=True)
    shutil.rmtree(disk / "in")
