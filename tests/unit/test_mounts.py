# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading mountinfo, and telling shared filesystems from local ones."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core import mounts
from stowage_core.errors import StowageError
from stowage_core.mounts import FilesystemId

MOUNTINFO = rb"""21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 21 259:1 / /mnt/nvme0 rw,relatime shared:2 master:1 - xfs /dev/nvme0n1 rw,attr2
31 30 259:1 /stowage/drives /mnt/nvme0/alias ro - xfs /dev/nvme0n1 rw
32 21 0:50 / /mnt/a\040b\134c rw - nfs4 server:/x\040y rw,vers=4.2
33 30 0:51 / /mnt/nvme0 rw - btrfs /dev/sdb rw,subvol=/
"""


def test_fields() -> None:
    root, disk, alias, nfs, _over = mounts.parse(MOUNTINFO)
    assert (root.id, root.parent, root.device, root.point, root.source) == (21, 1, "8:1", "/", "/dev/sda1")
    assert disk.super_options == ("rw", "attr2") and not disk.read_only
    assert alias.root == "/stowage/drives" and alias.read_only
    assert (nfs.point, nfs.source) == ("/mnt/a b\\c", "server:/x y")


def test_undecodable_names_survive() -> None:
    (mount,) = mounts.parse(b"1 2 8:1 / /m\xff rw - ext4 /dev/x rw")
    assert os.fsencode(mount.point) == b"/m\xff"


def _escaped(name: bytes) -> bytes:
    """As the kernel writes names: all but these bytes as they are."""
    return b"".join(b"\\%03o" % byte if byte in b" \t\n\\#" else bytes((byte,)) for byte in name)


_NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name).map(lambda name: b"/" + name)


@given(st.lists(st.tuples(_NAMES, _NAMES, _NAMES), max_size=4))
def test_names_of_any_bytes_are_read_as_they_are(names: list[tuple[bytes, bytes, bytes]]) -> None:
    table = b"".join(
        b"%d 1 8:1 %s %s rw shared:1 - ext4 %s rw\n" % (number, *map(_escaped, three))
        for number, three in enumerate(names)
    )
    found = mounts.parse(table)
    assert [mount.id for mount in found] == list(range(len(names)))
    assert [tuple(map(os.fsencode, (mount.root, mount.point, mount.source))) for mount in found] == names


@given(st.binary(max_size=80))
def test_anything_else_is_an_error_of_one_line(text: bytes) -> None:
    try:
        mounts.parse(text)
    except StowageError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize("line", [b"1 2 8:1 / /x rw", b"a 2 8:1 / /x rw - ext4 d rw", b"1 2 8:1 / /x rw - ext4", b" "])
def test_a_line_of_another_form_is_an_error(line: bytes) -> None:
    with pytest.raises(StowageError, match="^mountinfo: cannot read the line"):
        mounts.parse(line)


@pytest.mark.parametrize(
    ("path", "number"), [("/etc", 21), ("/mnt/nvme0x", 21), ("/mnt/nvme0", 33), ("/mnt/nvme0/alias/x", 31), ("/", 21)]
)
def test_the_topmost_mount_covers_a_path(path: str, number: int) -> None:
    assert mounts.of_path(path, mounts.parse(MOUNTINFO)).id == number


LINKS = {
    "/scratch": "/lustre/ours",
    "/data": "mnt/nvme0/./data",
    "/mnt/nvme0/data/up": "../../../srv/x",
    "/mnt/nvme0/back": "/lustre/../data",
    "/round": "/round",
    "/lustre/ours/on": "/mnt/nvme0",
    "/mnt": "/never read: it has a mount below it",
    "/mnt/nvme0/x": "/hidden",
}
TREE = mounts.parse(
    b"""21 21 8:1 / / rw - ext4 /dev/sda1 rw
30 21 259:1 / /mnt/nvme0 rw - xfs /dev/nvme0n1 rw
33 30 259:2 / /mnt/nvme0 rw - xfs /dev/nvme1n1 rw
34 30 259:3 / /mnt/nvme0/x rw - xfs /dev/nvme2n1 rw
40 21 0:50 / /lustre rw - lustre mgs:/scratch rw
41 40 259:4 / /lustre/here/local rw - xfs /dev/nvme3n1 rw
42 21 0:51 / /auto rw - autofs systemd-1 rw
"""
)


@pytest.mark.parametrize(
    ("path", "real", "number"),
    [
        ("/", "/", 21),
        ("/srv/none", "/srv/none", 21),
        ("/lustre", "/lustre", 40),
        ("/scratch/runs", "/lustre/ours/runs", 40),
        ("/data/a", "/mnt/nvme0/data/a", 33),
        ("/data/up/y", "/srv/x/y", 21),
        ("/mnt/nvme0/back/a", "/mnt/nvme0/data/a", 33),
        ("/mnt/nvme0/x/y", "/hidden/y", 21),  # what was mounted there is hidden by what lies over it
        ("/lustre/ours/on", "/lustre/ours/on", 40),
        ("/lustre/here/local/x", "/lustre/here/local/x", 41),
        ("/auto/home", "/auto/home", 42),
        ("/round/x", "/round/x", 21),
    ],
)
def test_links_are_followed_but_on_what_may_not_answer(
    path: str, real: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(mounts, "_target", lambda path: read.append(path) or LINKS.get(path))
    found, mount = mounts.follow(path, TREE)
    assert (found, mount.id) == (real, number)
    assert not [one for one in read if one.startswith(("/lustre/", "/auto/")) or one in ("/mnt", "/mnt/nvme0")]


def test_what_may_be_waited_for_is_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    monkeypatch.setattr(mounts, "_target", lambda path: done.append(path) or LINKS.get(path))

    def touch(mount: mounts.Mount) -> bool:
        done.append(mount.id)
        return True

    assert mounts.follow("/scratch/on/data", TREE, touch)[0] == "/mnt/nvme0/data"
    assert done == [21, "/scratch", 40, "/lustre/ours", 40, "/lustre/ours/on", 33, "/mnt/nvme0/data"]
    done.clear()
    mounts.follow("/mnt/nvme0", TREE, touch)
    assert done == [], "a local directory above a mount is in memory"


def test_a_table_is_read_anew_where_opening_has_mounted_something() -> None:
    table = mounts.read()
    fd = os.open("/", os.O_RDONLY)
    try:
        assert mounts.with_mount_of(fd, table) is table
        without = [mount for mount in table if mount.id != mounts.of_fd(fd, table).id]
        assert mounts.of_fd(fd, mounts.with_mount_of(fd, without)).point == "/"
    finally:
        os.close(fd)


def test_own_mount_table() -> None:
    table = mounts.read()
    fd = os.open("/", os.O_RDONLY)
    try:
        assert mounts.of_fd(fd, table).point == "/"
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("fstype", "shared"),
    [
        ("nfs", True),
        ("nfs4", True),
        ("lustre", True),
        ("gpfs", True),
        ("wekafs", True),
        ("beegfs", True),
        ("ceph", True),
        ("9p", True),
        ("fuse.ceph-fuse", True),
        ("fuse.juicefs", True),
        ("fuse.s3fs", True),
        ("fuse", True),
        ("fuseblk", False),
        ("fuse.lxcfs", False),
        ("ext4", False),
        ("xfs", False),
        ("btrfs", False),
        ("zfs", False),
        ("tmpfs", False),
    ],
)
def test_shared(fstype: str, shared: bool) -> None:
    assert mounts.is_shared(fstype) is shared


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (FilesystemId("ext4", "u1", "/dev/sda"), FilesystemId("ext4", "u1", "/dev/sdb"), True),
        (FilesystemId("ext4", "u1", "/dev/sda"), FilesystemId("ext4", "u2", "/dev/sda"), False),
        (FilesystemId("ext4", "u1", "/dev/sda"), FilesystemId("ext4", None, "/dev/sda"), False),
        (FilesystemId("nfs4", None, "s:/x"), FilesystemId("nfs4", None, "s:/x"), True),
        (FilesystemId("nfs4", None, "s:/x"), FilesystemId("nfs4", None, "s:/y"), False),
    ],
)
def test_one_filesystem_or_another(one: FilesystemId, other: FilesystemId, same: bool) -> None:
    assert one.matches(other) is same and other.matches(one) is same
    assert FilesystemId.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("path", "other", "lies"),
    [
        ("/mnt/z", "/mnt/nvme0/runs", "is"),
        ("/mnt/z/kv", "/mnt/nvme0/runs", "is inside"),
        ("/mnt/nvme0", "/mnt/z", "contains"),
        ("/mnt/nvme0/runs/a", "/mnt/z", "is inside"),
        ("/mnt/z", "/mnt/y", "is inside"),
        ("/mnt/z", "/mnt/nvme0/runs2", ""),
        ("/mnt/z", "/runs", ""),  # of another filesystem
        ("/mnt/nvme0/a", "/mnt/nvme0/a/b", "contains"),
    ],
)
def test_a_bind_mount_is_another_name(path: str, other: str, lies: str) -> None:
    table = mounts.parse(
        MOUNTINFO.partition(b"33 30")[0]
        + b"""40 21 259:1 /runs /mnt/z rw - xfs /dev/nvme0n1 rw
41 21 259:1 / /mnt/y rw - xfs /dev/nvme0n1 rw
"""
    )
    assert mounts.Located.of(path, table).lies_to(mounts.Located.of(other, table)) == lies


def test_every_name_of_a_directory() -> None:
    table = mounts.parse(
        MOUNTINFO
        + b"""40 21 259:1 /runs /mnt/z rw - xfs /dev/nvme0n1 rw
41 21 259:1 / /mnt/y rw - xfs /dev/nvme0n1 rw
"""
    )
    # Something else was mounted over the first one.
    assert mounts.names_of("/mnt/z/kv", table) == ["/mnt/z/kv", "/mnt/y/runs/kv"]
    assert mounts.names_of("/mnt/y/other", table) == ["/mnt/y/other"]
    assert mounts.names_of("/srv", table) == ["/srv"]
