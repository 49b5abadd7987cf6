# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ownership marks on real filesystems."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import opened

from stowage_core import claims, mounts, owner, syscalls
from stowage_core.differences import Differences
from stowage_core.errors import Refusal, StowageError
from stowage_core.mark_search import find_marks
from stowage_core.places import Places
from stowage_core.syscalls import filesystem_uuid, open_beneath

SIZES = {"ext4": 16 << 20, "xfs": 300 << 20, "btrfs": 114 << 20}


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
    assert sorted(find_marks(table).marks) == [str(disk / "a"), str(disk / "b")]


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
    fd = os.open(disk.path, os.O_PATH)
    assert filesystem_uuid(fd) == blkid.stdout.strip()
    os.close(fd)


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
    found = find_marks(table[-1:], depth=8).marks
    assert found[str(disk / "a" / "data")] == mark
    assert not [path for path in found if path.endswith("inside") or "/loop/" in path]


def test_the_registry(tmp_path: Path, disk: Path) -> None:
    registry = owner.Registry(Places.under(str(tmp_path)))
    registry.add("/mnt/nvme0/stowage", claim(disk))
    assert list(registry.all()) == ["/mnt/nvme0/stowage"]
    registry.remove("/mnt/nvme0/stowage")
    assert registry.all() == {}


class Claiming:
    """A disk with a marked directory, and a host of its own to look at it."""

    def __init__(self, disk: Any, home: Path) -> None:
        self.disk = disk
        self.places = Places.under(str(home))
        self.registry = owner.Registry(self.places)
        self.path = disk.path / "stowage"
        self.path.mkdir()
        claim(self.path)

    def read(self, host: str = "gpu-01", *forget: str) -> claims.Claims:
        table = [mount for mount in mounts.read() if str(self.disk.path).startswith(mount.point)]
        if self.registry.is_lost():
            table = [mount for mount in table if mount.point == str(self.disk.path)]
        return claims.read(self.places, host, table, forget)

    def settle(self, host: str = "gpu-01", *forget: str) -> list[str]:
        differences = Differences()
        found = self.read(host, *forget)
        found.note(differences)
        found.register(self.registry, differences)
        assert differences.changed == bool(differences.actions)
        return differences.actions


@pytest.fixture
def claiming(tmp_path: Path, small_disk: Callable[..., Any]) -> Claiming:
    return Claiming(small_disk("ext4", SIZES["ext4"]), tmp_path)


def test_a_lost_registry_is_read_from_the_marks(tmp_path: Path, fstype: str, small_disk: Callable[..., Any]) -> None:
    claiming = Claiming(small_disk(fstype, SIZES[fstype]), tmp_path)
    with opened(claiming.path) as fd:
        uuid = filesystem_uuid(fd)
    marked = {"kind": "copy", "name": "ml.hf-cache", "identity": "one", "host": "gpu-01"}
    marked.update(filesystem=uuid, mounted=[str(claiming.disk.path), "/"])  # type: ignore[dict-item]
    assert claiming.registry.is_lost() and claiming.registry.all() == {}
    assert claiming.read().entries == {str(claiming.path): marked}
    assert claiming.settle() == ["register what was found by its mark"]
    assert claiming.registry.all() == {str(claiming.path): marked}
    assert claiming.settle() == []


def test_the_marks_of_another_host_are_not_this_host_s_claims(claiming: Claiming) -> None:
    assert claiming.settle("gpu-02") == []
    assert not claiming.registry.is_lost(), "the next run need not search"
    assert claiming.registry.all() == {}


def test_a_host_whose_name_is_not_known_registers_nothing(claiming: Claiming) -> None:
    assert list(claiming.read("").entries) == [str(claiming.path)]
    assert claiming.settle("") == []
    assert claiming.registry.is_lost()


def unmark(path: Path) -> None:
    os.removexattr(path, owner.XATTR)


@pytest.mark.parametrize("end", [shutil.rmtree, unmark, lambda path: path.rename(path.with_name("away"))])
def test_a_claim_whose_mark_is_gone_is_dropped(claiming: Claiming, end: Callable[[Path], object]) -> None:
    claiming.settle()
    end(claiming.path)
    found = claiming.read()
    assert (found.entries, found.warnings) == (
        {},
        [f"the claim of the copy {claiming.path} is dropped: its filesystem is mounted, and its mark is gone"],
    )
    assert claiming.settle() == [f"drop the claim of {claiming.path}, whose mark is gone"]
    assert claiming.registry.all() == {}


def test_a_claim_whose_disk_is_not_mounted_stays_until_it_is_forgotten(claiming: Claiming) -> None:
    claiming.settle()
    claiming.disk.unmount()
    assert claiming.settle() == claiming.settle("gpu-01", "another") == []
    found = claiming.read()
    taken = claims.of_stowage(claiming.places, found.entries, found.unseen)
    assert taken[str(claiming.path)] == "the copy (not mounted; if it is gone for good, forget: one)"
    assert claiming.settle("gpu-01", "one") == [f"give up {claiming.path}, whose disk is gone"]
    assert claiming.registry.all() == {}


def test_another_filesystem_in_its_place_does_not_end_a_claim(claiming: Claiming) -> None:
    claiming.settle()
    claiming.disk.unmount()
    subprocess.run(["mkfs.ext4", "-q", "-F", claiming.disk.device], check=True)
    claiming.disk.mount()
    assert claiming.settle() == []
    assert claiming.settle("gpu-01", "one") == [f"give up {claiming.path}, whose disk is gone"]


def test_a_claim_that_is_there_is_not_forgotten(claiming: Claiming) -> None:
    claiming.settle()
    with pytest.raises(Refusal, match=f"^forget: one: the copy {claiming.path} is there, and would be given up"):
        claiming.settle("gpu-01", "one")
    assert list(claiming.registry.all()) == [str(claiming.path)]


def test_a_part_of_the_same_filesystem_that_is_not_mounted_does_not_end_a_claim(claiming: Claiming) -> None:
    """Where it was mounted, its own filesystem is seen, and no mark."""
    part = claiming.disk.path / "mounted"
    part.mkdir()
    subprocess.run(["mount", "--bind", claiming.path, part], check=True)
    (claiming.path / "inside").mkdir()
    claiming.registry.add(str(part / "inside"), claim(claiming.path / "inside", identity="two"))
    assert claiming.settle() == []
    subprocess.run(["umount", part], check=True)
    assert claiming.settle() == []
    assert list(claiming.registry.all()) == [str(part / "inside")]


def test_the_search_is_bounded_and_says_so(claiming: Claiming) -> None:
    for number in range(40):
        (claiming.disk.path / f"a{number}" / "b").mkdir(parents=True)
    claim(claiming.disk.path / "a3" / "b", identity="deep")
    table = [mount for mount in mounts.read() if mount.point == str(claiming.disk.path)]
    whole = find_marks(table)
    assert (len(whole.marks), whole.unseen) == (2, [])
    search = find_marks(table, most=45)
    assert str(claiming.path) in search.marks, "what is near the top is found in any order"
    assert search.unseen == [
        f"{claiming.disk.path}: searched for owner marks in its first 45 directories only; it has more"
    ]


def test_a_damaged_mark_does_not_end_the_search(claiming: Claiming) -> None:
    (claiming.disk.path / "damaged").mkdir()
    os.setxattr(claiming.disk.path / "damaged", owner.XATTR, b"{}")
    search = find_marks([mount for mount in mounts.read() if mount.point == str(claiming.disk.path)])
    assert list(search.marks) == [str(claiming.path)]
    assert "its owner mark trusted.stowage.owner is damaged" in search.unseen[0]


def test_a_user_s_filesystem_is_not_searched(tmp_path: Path) -> None:
    """Its process may refuse root, or never answer: nobody answers for this one."""
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=1000,group_id=1000"
    libc = ctypes.CDLL(None, use_errno=True)
    kind, point = b"fuse.gocryptfs", os.fsencode(tmp_path)
    assert libc.mount(b"gocryptfs", point, kind, ctypes.c_ulong(6), options.encode()) == 0
    try:
        table = [mount for mount in mounts.read() if mount.point == str(tmp_path)]
        search = find_marks(table)
        assert search.unseen == [f"{tmp_path}: not searched for owner marks: a user's own filesystem (fuse.gocryptfs)"]
        ours = [replace(mount, super_options=("rw", "user_id=0")) for mount in table]
        assert "Permission denied; not searched for owner marks" in find_marks(ours).unseen[0]
    finally:
        os.close(fuse)
        subprocess.run(["umount", tmp_path], check=True)


def test_what_is_mounted_twice_is_found_once(disk: Path, small_disk: Callable[..., Any]) -> None:
    small = small_disk("ext4", SIZES["ext4"])
    (small.path / "stowage").mkdir()
    claim(small.path / "stowage")
    for name, source in (("whole", small.path), ("part", small.path / "stowage")):
        (disk / name).mkdir()
        subprocess.run(["mount", "--bind", str(source), str(disk / name)], check=True)
    device = mounts.of_path(str(small.path), mounts.read()).device
    found = find_marks([mount for mount in mounts.read() if mount.device == device]).marks
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
