# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of real filesystems: disks that come and go, a real data location, and mounts that really hang."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts, owner, records
from stowage_core.facts import filesystems
from stowage_core.facts import report as facts
from stowage_core.facts.disks import Disks
from stowage_core.facts.filesystems import Filesystem
from stowage_core.places import Places


def _survey() -> dict[str, Filesystem]:
    return {one.mount.point: one for one in filesystems.survey(mounts.read(), Disks.read())}


def test_the_system_disk_is_where_the_root_is() -> None:
    root = mounts.of_path("/", mounts.read())
    if mounts.is_pseudo(root.fstype):
        pytest.skip(f"the root of this host is a {root.fstype}, on no disk")
    found = _survey()["/"]
    assert found.system_disk and found.disks
    assert found.space is not None and found.space.size == os.statvfs("/").f_blocks * os.statvfs("/").f_frsize


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
def test_a_disk_that_comes_and_goes(small_disk: Callable[..., Any], fstype: str) -> None:
    disk = small_disk(fstype)
    found = _survey()[str(disk.path)]
    assert found.kind == "disk image" and not found.shared and found.unfit == ""
    assert found.devices == (Path(disk.device).name,)
    assert found.uuid == _blkid(disk.device)
    # The image is a file of this host, so it shares the disk of that file.
    assert found.disks == _survey()[mounts.of_path(str(disk.image), mounts.read()).point].disks
    disk.unmount()
    assert str(disk.path) not in _survey()
    assert [one.name for one in Disks.read().whole() if one.path == disk.device] == [Path(disk.device).name]
    disk.mount("ro")
    assert _survey()[str(disk.path)].unfit == "read-only"


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
def test_what_is_taken_and_free_is_what_df_says(small_disk: Callable[..., Any], tmp_path: Path, fstype: str) -> None:
    """ext4 keeps blocks for root, so the two are less than the size."""
    disk = small_disk(fstype)
    (disk.path / "ballast").write_bytes(b"x" * (5 << 20))
    subprocess.run(["sync", "--file-system", str(disk.path)], check=True)
    told = facts.gather(Places.under(str(tmp_path)), {})["filesystems"]
    (found,) = [one for one in told if one["mount"] == str(disk.path)]
    df = ["df", "--block-size=1", "--output=size,used,avail", str(disk.path)]
    said = subprocess.run(df, capture_output=True, text=True, check=True).stdout.splitlines()[1]
    assert [found[field] for field in ("size_bytes", "used_bytes", "free_bytes")] == [int(one) for one in said.split()]
    assert found["used_bytes"] >= 5 << 20


def _blkid(device: str) -> str:
    command = ["blkid", "--probe", "--match-tag", "UUID", "--output", "value", device]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_data_location_whose_disk_goes(small_disk: Callable[..., Any], tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    disk = small_disk("ext4")
    folder = disk.path / "stowage"
    copy = folder / "drives" / "ml.a"
    for made in (copy, folder / ".stowage-trash" / "pending"):
        made.mkdir(parents=True)
    identity = str(uuid.uuid4())
    fd = os.open(folder, os.O_RDONLY)
    try:
        owner.claim(fd, "data-location", str(folder), identity, "gpu-01")
        filesystem = mounts.identify(fd, mounts.read())
    finally:
        os.close(fd)
    fd = os.open(copy, os.O_RDONLY)
    try:
        owner.claim(fd, "copy", "ml.a", str(uuid.uuid4()), "gpu-01")
    finally:
        os.close(fd)
    location = {"path": str(folder), "max_bytes": 0, "host": "gpu-01", "identity": identity}
    record = {**location, "filesystem": filesystem.to_json(), "inode": folder.stat().st_ino}
    records.write(places.data_location_json, record)

    found = facts.gather(places, {})
    assert found["problems"] == []
    assert found["data_location"]["available"] and found["data_location"]["free_bytes"] > 0
    assert {name: one["present"] for name, one in found["copies"].items()} == {"ml.a": True}
    assert found["compact"]["copies"] == {"ml.a": None}

    disk.unmount()
    found = facts.gather(places, {})
    assert len(found["problems"]) == 1 and str(folder) in found["problems"][0]
    assert not found["compact"]["data_location"]["available"]
    assert found["compact"]["data_location"]["free_bytes"] is None

    (disk.path / "stowage" / "drives").mkdir(parents=True)  # an existing directory proves nothing
    assert not facts.gather(places, {})["data_location"]["available"]
    (disk.path / "stowage" / "drives").rmdir()
    (disk.path / "stowage").rmdir()


# A FUSE filesystem whose server takes requests and never answers them. `early` does not even greet the kernel: then a
# waiting process can be killed. `late` greets, and takes the request: then it cannot.
_SERVER = """
import os, struct, sys
fd = int(sys.argv[2])
if sys.argv[1] == "late":
    while True:
        request = os.read(fd, 1 << 20)
        length, code, number = struct.unpack_from("=IIQ", request)
        if code == 26:
            body = struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 8, 8, 4096, 1, 0, 0, 0)
            os.write(fd, struct.pack("=IiQ", 16 + len(body), 0, number) + body)
            print("greeted", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["early", "late"])
def hung(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A mount point that hangs whoever asks it for its room."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("this host has no /dev/fuse to hang a mount with")
    libc = ctypes.CDLL(None, use_errno=True)
    point = tmp_path / "hung"
    point.mkdir()
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"hung", bytes(point), b"fuse.sshfs", 0, options) < 0:
        pytest.fail(f"mount of a FUSE filesystem: {os.strerror(ctypes.get_errno())}")
    command = [sys.executable, "-c", _SERVER, request.param, str(fd)]
    server = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    os.close(fd)
    try:
        if request.param == "late":
            assert server.stdout is not None and server.stdout.readline() == b"greeted\n"
        yield str(point)
    finally:
        server.kill()  # the last holder of its device: the kernel ends what waits
        server.communicate()
        assert libc.umount2(bytes(point), 2) == 0


def test_a_mount_that_hangs_is_reported_in_time(hung: str, tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    for _number in range(2):  # a second run must not add a second stuck process
        start = time.monotonic()
        found = facts.gather(places, {})
        assert time.monotonic() - start < 3
        (one,) = [each for each in found["filesystems"] if each["mount"] == hung]
        assert (one["shared"], one["answers"], one["error"]) == (True, False, "does not answer")
        assert one["size_bytes"] is None
        assert _children(hung) <= 1
        assert any(each["answers"] for each in found["filesystems"])


def _children(point: str) -> int:
    device = next(mount.device for mount in mounts.read() if mount.point == point)
    name = filesystems._child_name(device)
    found = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        found += text.split("(", 1)[1].rsplit(")", 1)[0] == name and text.rsplit(")", 1)[1].split()[0] != "Z"
    return found
