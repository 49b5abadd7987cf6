# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filesystems on their disks, the recommended one, and shared filesystems that do not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sysfs import Sysfs, write

from stowage_core.facts import filesystems
from stowage_core.facts.disks import HARD_DISK, IMAGE, NETWORK, NVME, RAID, SSD, UNKNOWN, Disks
from stowage_core.facts.filesystems import Filesystem
from stowage_core.mounts import Mount, parse
from stowage_core.sizes import Space

GB = 10**9


def _mount(
    point: str, device: str = "8:1", fstype: str = "xfs", source: str = "/dev/sda1", options: str = "rw"
) -> Mount:
    line = f"{abs(hash((point, device))) % 9999} 1 {device} / {point} {options} - {fstype} {source} rw"
    return parse(line.encode())[0]


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    sysfs = Sysfs(tmp_path / "sys")
    sysfs.disk("sda", "8:0", 480, "pci/ata1", {"queue/rotational": "0"})
    for number in (1, 2, 3):
        sysfs.partition(f"sda{number}", "sda", f"8:{number}", 100)
    sysfs.disk("nvme0n1", "259:0", 3840, "pci/nvme/nvme0", {"device/transport": "pcie"})
    sysfs.disk("sdb", "8:16", 16000, "pci/ata2", {"queue/rotational": "1"})
    return sysfs


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Directories that stand in for mount points, so that they can be asked for their room."""
    found = {}
    for name in ("boot", "nvme", "home", "image", "nfs"):
        (tmp_path / name).mkdir()
        found[name] = str(tmp_path / name)
    return found


def _survey(mounts: list[Mount], sysfs: Sysfs) -> dict[str, Filesystem]:
    found = filesystems.survey(mounts, Disks.read(str(sysfs.root)), str(sysfs.root))
    return {filesystem.mount.point: filesystem for filesystem in found}


def test_each_filesystem_once_with_its_disk(sysfs: Sysfs, places: dict[str, str]) -> None:
    mounts = [
        _mount("/"),
        _mount("/proc", "0:5", "proc", "proc"),
        _mount(places["nvme"], "259:0", source="/dev/nvme0n1"),
        _mount(places["nvme"] + "/again", "259:0", source="/dev/nvme0n1"),
        _mount(places["home"], "8:2", source="/dev/sda2"),
    ]
    found = _survey(mounts, sysfs)
    assert list(found) == ["/", places["home"], places["nvme"]]
    nvme = found[places["nvme"]]
    assert (nvme.kind, nvme.devices, nvme.disks, nvme.system_disk) == (NVME, ("nvme0n1",), {"nvme0n1"}, False)
    assert nvme.points == (places["nvme"], places["nvme"] + "/again")
    assert nvme.space is not None and nvme.space.size > 0 and not nvme.unfit
    home = found[places["home"]]
    assert (home.kind, home.disks, home.system_disk) == (SSD, {"sda"}, True)


def test_a_filesystem_that_is_mounted_over_is_not_seen(sysfs: Sysfs, places: dict[str, str]) -> None:
    mounts = [_mount("/"), _mount(places["nvme"], "8:16"), _mount(places["nvme"], "259:0")]
    assert _survey(mounts, sysfs)[places["nvme"]].mount.device == "259:0"
    assert len(_survey(mounts, sysfs)) == 2


@pytest.mark.parametrize(
    ("mounted", "mount", "folder"),
    [
        (["/"], "/", "/var/lib/stowage-data"),
        (["/", "/var"], "/", "/stowage"),
        (["/", "/var"], "/var", "/var/lib/stowage-data"),
        (["/", "/usr"], "/usr", "/usr/stowage"),
    ],
)
def test_the_folder_lies_on_the_filesystem(sysfs: Sysfs, mounted: list[str], mount: str, folder: str) -> None:
    mounts = [_mount(point, f"8:{number}") for number, point in enumerate(mounted, 1)]
    found = _survey(mounts, sysfs)[mount]
    assert found.folder == folder and found.system_disk


def test_a_btrfs_over_several_disks_is_an_array(
    sysfs: Sysfs, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystems, "filesystem_uuid", lambda fd: "11-22")
    write(sysfs.root, {"fs/btrfs/11-22/devices/nvme0n1/x": "", "fs/btrfs/11-22/devices/sdb/x": ""})
    found = _survey([_mount("/"), _mount(places["nvme"], "0:40", "btrfs", "/dev/sdb")], sysfs)[places["nvme"]]
    assert (found.kind, found.disks) == (RAID, {"nvme0n1", "sdb"})


@pytest.mark.parametrize(
    ("fstype", "source", "kind", "disks"),
    [
        ("btrfs", "/dev/nvme0n1", NVME, {"nvme0n1"}),  # the kernel does not list its members: by what was mounted
        ("bcachefs", "/dev/nvme0n1:/dev/sdb", RAID, {"nvme0n1", "sdb"}),
        ("zfs", "tank/data", UNKNOWN, {"zfs tank"}),
        ("xfs", "/dev/hidden", UNKNOWN, {"xfs /dev/hidden"}),
    ],
)
def test_filesystems_with_device_numbers_of_their_own(
    sysfs: Sysfs, places: dict[str, str], fstype: str, source: str, kind: str, disks: set[str]
) -> None:
    found = _survey([_mount("/"), _mount(places["nvme"], "0:40", fstype, source)], sysfs)[places["nvme"]]
    assert (found.kind, found.disks) == (kind, disks)


def test_the_pool_of_a_zfs_root_is_the_system_disk(sysfs: Sysfs, places: dict[str, str]) -> None:
    mounts = [_mount("/", "0:40", "zfs", "rpool/ROOT"), _mount(places["home"], "0:41", "zfs", "rpool/home")]
    assert _survey(mounts, sysfs)[places["home"]].system_disk


@pytest.mark.parametrize(("there", "disks", "system"), [(True, {"sda"}, True), (False, {"loop0"}, False)])
def test_an_image_is_on_the_disk_of_its_file(
    sysfs: Sysfs, places: dict[str, str], tmp_path: Path, there: bool, disks: set[str], system: bool
) -> None:
    image = tmp_path / "disk.img"
    if there:
        image.touch()
    sysfs.disk("loop0", "7:0", 4, "virtual", {"loop/backing_file": str(image)})
    found = _survey([_mount("/"), _mount(places["image"], "7:0", source="/dev/loop0")], sysfs)[places["image"]]
    assert (found.kind, found.disks, found.system_disk) == (IMAGE, disks, system)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"options": "ro"}, "read-only"),
        ({"fstype": "vfat"}, "vfat cannot hold owner marks"),
        ({"fstype": "nfs4", "source": "server:/x"}, "shared: a data location must be on this machine's own disk"),
    ],
)
def test_what_a_data_location_cannot_be_on(
    sysfs: Sysfs, places: dict[str, str], changes: dict[str, str], why: str
) -> None:
    mount = _mount(places["nvme"], "259:0", **changes)  # type: ignore[arg-type]
    assert _survey([_mount("/"), mount], sysfs)[places["nvme"]].unfit == why


def test_a_disk_that_has_gone(sysfs: Sysfs) -> None:
    found = _survey([_mount("/"), _mount("/mnt/gone", "259:0")], sysfs)["/mnt/gone"]
    assert (found.answer, found.unfit) == ("no such file or directory", "no such file or directory")


# -- Which one to recommend


def _fs(point: str, kind: str, free: int, system: bool = False, answer: str = "") -> Filesystem:
    space = Space(10_000 * GB, free * GB, free * GB, 0, 0)
    return Filesystem(_mount(point), (point,), kind, (), frozenset(), None, answer or space, "", system)


@pytest.mark.parametrize(
    ("found", "best", "reason"),
    [
        (
            [_fs("/", NVME, 9, system=True), _fs("/a", HARD_DISK, 5), _fs("/b", SSD, 2)],
            "/b",
            "SSD, not the system disk; the fastest kind here",
        ),
        (
            [_fs("/a", NVME, 5), _fs("/b", NVME, 6), _fs("/c", RAID, 99)],
            "/b",
            "NVMe SSD, not the system disk; the fastest kind here; the most free space of 2 such",
        ),
        (
            [_fs("/b", NVME, 5), _fs("/a", NVME, 5)],
            "/a",
            "NVMe SSD, not the system disk; the most free space of 2 such",
        ),
        ([_fs("/a", RAID, 1), _fs("/b", SSD, 1)], "/b", "SSD, not the system disk; the fastest kind here"),
        ([_fs("/a", HARD_DISK, 9), _fs("/b", RAID, 1)], "/b", "RAID array, not the system disk; the fastest kind here"),
        (
            [_fs("/a", NETWORK, 9), _fs("/b", HARD_DISK, 1)],
            "/b",
            "hard disk, not the system disk; the fastest kind here",
        ),
        ([_fs("/a", IMAGE, 9)], "/a", "disk image, not the system disk"),
        ([_fs("/a", NVME, 9, answer="input/output error"), _fs("/b", SSD, 1)], "/b", "SSD, not the system disk"),
        (
            [_fs("/", NVME, 9, system=True)],
            None,
            "every local disk mounted here is the system disk; it is allowed, with a warning",
        ),
        ([_fs("/lustre", "shared", 9)], None, "this machine has no local disk that is mounted and writable"),
        ([], None, "this machine has no local disk that is mounted and writable"),
    ],
)
def test_recommendation(found: list[Filesystem], best: str | None, reason: str) -> None:
    recommendation = filesystems.recommend(found)
    assert recommendation.reason == reason
    assert (recommendation.filesystem.mount.point if recommendation.filesystem else None) == best


def _with_folder(point: str, kind: str, free: int, system: bool = False) -> Filesystem:
    return replace(_fs(point, kind, free, system), folder=f"{point.rstrip('/')}/stowage")


@pytest.mark.parametrize(
    ("taken", "folder", "unfit"),
    [
        ({}, "/a/stowage", ""),
        ({"/a/stowage": "runs"}, "/a/stowage-data", ""),
        ({"/a/stowage": "runs", "/a/stowage-data": "state"}, "/a/stowage", "taken by runs"),
    ],
)
def test_the_folder_is_free(taken: dict[str, str], folder: str, unfit: str) -> None:
    (found,) = filesystems.keep_apart([_with_folder("/a", NVME, 9)], taken.get)
    assert (found.folder, found.unfit) == (folder, unfit)


def test_a_disk_that_is_taken_as_a_whole_is_not_recommended() -> None:
    found = [_with_folder("/a", NVME, 9), _with_folder("/b", HARD_DISK, 1), _with_folder("/", SSD, 1, system=True)]
    apart = filesystems.keep_apart(found, lambda folder: "hf_hub_cache" if folder.startswith("/a/") else None)
    best = filesystems.recommend(apart).filesystem
    assert best is not None and best.folder == "/b/stowage"
    without_b = filesystems.recommend([apart[0], apart[2]])
    assert without_b.reason.startswith("every local disk mounted here, and not taken already, is the system disk;")
    nothing = filesystems.recommend(apart[:1])
    assert nothing.reason == "this machine has no local disk that is mounted and writable, and not taken already"


@pytest.mark.parametrize("point", ["/boot", "/boot/efi", "/run/media/me/stick", "/run/host/incoming"])
def test_what_is_not_for_data_is_never_recommended(point: str) -> None:
    best = _fs("/running", HARD_DISK, 1)
    assert filesystems.recommend([_fs(point, NVME, 9), best]).filesystem is best


# -- Shared filesystems


def test_shared_filesystems_answer(sysfs: Sysfs, places: dict[str, str]) -> None:
    found = _survey([_mount("/"), _mount(places["nfs"], "0:60", "nfs4", "server:/export")], sysfs)[places["nfs"]]
    assert (found.kind, found.shared, found.disks, found.folder) == ("shared", True, frozenset(), "")
    assert found.space is not None and found.space.size > 0


def test_one_that_fails_says_why() -> None:
    assert filesystems.ask({_device(5): "/nonexistent"}, 5) == {_device(5): "no such file or directory"}


def test_nothing_is_asked_without_need() -> None:
    assert filesystems.ask({}) == {}


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A mount point that does not answer: whoever looks at it sleeps, as with a server that has gone."""
    real = filesystems._message

    def message(point: str) -> bytes:
        if point == "/hanging":
            time.sleep(30)
        return real(point)

    monkeypatch.setattr(filesystems, "_message", message)
    yield "/hanging"


def _device(minor: int) -> str:
    """A device number that no other run of these tests asks after at the same time."""
    return f"{os.getpid()}:{minor}"


def test_one_that_hangs_does_not_hold_up_the_others(hanging: str) -> None:
    points = {_device(0): hanging, _device(1): "/", _device(2): hanging}
    answers = filesystems.ask(points, deadline=2)
    assert answers[_device(0)] == answers[_device(2)] == "does not answer"
    assert isinstance(answers[_device(1)], Space)
    names = {filesystems._child_name(device) for device in points}
    deadline = time.monotonic() + 10  # a child that can be killed is; on a busy machine not at once
    while names & filesystems._stuck_children():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_that_is_still_stuck_is_not_given_company(monkeypatch: pytest.MonkeyPatch) -> None:
    name = filesystems._child_name(_device(3))
    code = f"import time; open('/proc/self/comm', 'w').write({name!r}); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as stuck:
        assert stuck.stdout is not None
        stuck.stdout.readline()
        try:
            assert name in filesystems._stuck_children()
            monkeypatch.setattr(filesystems, "_start", lambda device, point: pytest.fail("a second child was started"))
            assert filesystems.ask({_device(3): "/"}) == {_device(3): "does not answer"}
        finally:
            os.kill(stuck.pid, signal.SIGKILL)


def test_a_child_that_has_ended_is_not_stuck() -> None:
    name = filesystems._child_name(_device(6))
    pid = os.fork()
    if pid == 0:
        with open("/proc/self/comm", "w", encoding="ascii") as comm:
            comm.write(name)
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{pid}/comm").read_text(encoding="ascii") == f"{name}\n"
    assert name not in filesystems._stuck_children()
    os.waitpid(pid, 0)


def test_a_child_that_stays_behind_holds_no_output_open(hanging: str) -> None:
    """Ansible waits until the module's output is closed by everyone."""
    code = (
        "import time, os; from stowage_core.facts import filesystems as f\n"
        "f._message = lambda point: time.sleep(5)\n"
        "f.os.kill = lambda *_: None  # a child that waits for a dead server may not die\n"
        "print(f.ask({f'{os.getpid()}:4': '/'}, 0.1), flush=True); os._exit(0)"
    )
    core = Path(filesystems.__file__).parents[1]
    with_path = f"import sys, importlib.util as u, types\n{_AS_PACKAGE.format(core=str(core))}\n{code}"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", with_path], capture_output=True, text=True, check=True, timeout=10)
    assert done.stdout.endswith("': 'does not answer'}\n")
    assert time.monotonic() - start < 3


_AS_PACKAGE = (
    "package = types.ModuleType('stowage_core'); package.__path__ = [{core!r}]; sys.modules['stowage_core'] = package"
)
