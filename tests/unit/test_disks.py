# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Disks in plain words, from trees in the shape of sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest
from sysfs import Sysfs, write

from stowage_core.facts.disks import HARD_DISK, IMAGE, NETWORK, NVME, RAID, SSD, UNKNOWN, Disks

NVME_DISK = {"device/model": "SAMSUNG MZQL23T8HCLS-00A07", "device/transport": "pcie", "queue/rotational": "0"}
SATA_SSD = {"device/vendor": "ATA", "device/model": "Micron_5300_MTFD", "queue/rotational": "0"}
SATA_DISK = {"device/vendor": "ATA", "device/model": "ST16000NM001G-2K", "queue/rotational": "1"}


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path / "sys")


@pytest.mark.parametrize(
    ("name", "route", "attributes", "kind", "model"),
    [
        ("nvme0n1", "pci/nvme/nvme0", NVME_DISK, NVME, "SAMSUNG MZQL23T8HCLS-00A07"),
        ("nvme0n1", "nvme-fabrics/ctl/nvme0", {**NVME_DISK, "device/transport": "rdma"}, NETWORK, None),
        # With native multipathing the disk is its subsystem's, and transports are its controllers'.
        (
            "nvme0n1",
            "virtual/nvme-subsystem/nvme-subsys0",
            {"device/model": "KCM61", "device/nvme0/transport": "pcie", "queue/rotational": "0"},
            NVME,
            "KCM61",
        ),
        (
            "nvme1n1",
            "virtual/nvme-subsystem/nvme-subsys1",
            {"device/nvme0/transport": "tcp", "device/nvme1/transport": "tcp"},
            NETWORK,
            "",
        ),
        ("nvme2n1", "pci/nvme/nvme2", {**NVME_DISK, "device/model": "Amazon Elastic Block Store"}, NETWORK, None),
        ("nvme3n1", "pci/nvme/nvme3", {**NVME_DISK, "device/model": "Amazon EC2 NVMe Instance Storage"}, NVME, None),
        ("sda", "pci/ata1/host0", SATA_SSD, SSD, "Micron_5300_MTFD"),
        ("sdb", "pci/ata2/host1", SATA_DISK, HARD_DISK, "ST16000NM001G-2K"),
        (
            "sdc",
            "pci/host2",
            {"device/vendor": "SEAGATE", "device/model": "XS3840SE70045", "queue/rotational": "0"},
            SSD,
            "SEAGATE XS3840SE70045",
        ),
        (
            "sdd",
            "pci/host3",
            {"device/vendor": "DELL", "device/model": "PERC H755 Front", "queue/rotational": "0"},
            RAID,
            "DELL PERC H755 Front",
        ),
        ("sdd", "pci/host3", {"device/vendor": "BROADCOM", "device/model": "MR9560-16i"}, RAID, None),
        (
            "sde",
            "pci/host4",
            {"device/vendor": "HPE", "device/model": "LOGICAL VOLUME", "device/raid_level": "RAID 5"},
            RAID,
            None,
        ),
        ("sdf", "pci/host4", {**SATA_SSD, "device/raid_level": "N/A"}, SSD, None),
        ("sdg", "platform/host9/session1/target9:0:0", SATA_DISK, NETWORK, None),
        ("sdh", "pci/host7/rport-7:0-0/target7:0:0", SATA_DISK, NETWORK, None),
        ("rbd0", "rbd/0", {"queue/rotational": "0"}, NETWORK, ""),
        ("vda", "pci/virtio1", {"device/vendor": "0x1af4", "queue/rotational": "1"}, HARD_DISK, "virtio"),
        ("mmcblk0", "mmc0", {"queue/rotational": "0"}, SSD, ""),
        ("loop3", "virtual", {"loop/backing_file": "/srv/a.img", "queue/rotational": "1"}, IMAGE, ""),
        ("cciss!c0d0", "pci/cciss0", {"device/raid_level": "RAID 1(+0)"}, RAID, ""),
        ("dasda", "css0", {}, UNKNOWN, ""),
    ],
)
def test_words_of_one_disk(
    sysfs: Sysfs, name: str, route: str, attributes: dict[str, str], kind: str, model: str
) -> None:
    disks = Disks.read(str(sysfs.disk(name, "8:0", 3840, route, attributes).root))
    (device,) = disks.whole()
    assert device.name == name.replace("!", "/") and device.path == "/dev/" + device.name
    assert disks.kind(device.name) == kind
    assert device.size == 3840 * 10**9 // 512 * 512
    if model is not None:
        assert disks.model(device.name) == model


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("loop0", {}),  # not attached
        ("loop1", {"loop/backing_file": "/var/lib/snapd/snaps/core.snap", "ro": "1"}),
        ("zram0", {"queue/rotational": "0"}),
        ("ram0", {}),
        ("sr0", {"queue/rotational": "1"}),
        ("sda", {"size": "0"}),  # a card reader without a card
        ("nvme0c0n1", {**NVME_DISK, "hidden": "1"}),
    ],
)
def test_no_disk(sysfs: Sysfs, name: str, attributes: dict[str, str]) -> None:
    assert Disks.read(str(sysfs.disk(name, "8:0", 1, attributes=attributes).root)).devices == {}


def test_without_sysfs(tmp_path: Path) -> None:
    assert Disks.read(str(tmp_path)).devices == {}


@pytest.fixture
def stacked(sysfs: Sysfs) -> Disks:
    """A server: a system SSD with LUKS and LVM, two NVMe disks in an array, volumes over several disks, multipath."""
    sysfs.disk("sda", "8:0", 480, "pci/ata1", SATA_SSD)
    sysfs.partition("sda1", "sda", "8:1", 1).partition("sda2", "sda", "8:2", 479)
    sysfs.stacked("dm-0", "252:0", 479, ["sda2"], {"dm/name": "cryptroot", "dm/uuid": "CRYPT-LUKS2-1-cryptroot"})
    sysfs.stacked("dm-1", "252:1", 100, ["dm-0"], {"dm/name": "vg0-root", "dm/uuid": "LVM-abc"})
    for number in (0, 1):
        sysfs.disk(f"nvme{number}n1", f"259:{number}", 3840, f"pci/nvme/nvme{number}", NVME_DISK)
    sysfs.stacked("md0", "9:0", 7680, ["nvme0n1", "nvme1n1"], {"md/level": "raid0", "md/array_state": "clean"})
    sysfs.partition("md0p1", "md0", "259:9", 7680)
    sysfs.stacked("dm-2", "252:2", 1000, ["md0p1"], {"dm/name": "data", "dm/uuid": "CRYPT-LUKS2-2-data"})
    for number, letter in enumerate("bc"):
        sysfs.disk(f"sd{letter}", f"8:{16 + 16 * number}", 16000, f"pci/ata{letter}", SATA_DISK)
    sysfs.stacked("dm-3", "252:3", 32000, ["sdb", "sdc"], {"dm/name": "vg1-wide", "dm/uuid": "LVM-def"})
    sysfs.stacked("dm-4", "252:4", 100, ["sdb"], {"dm/name": "vg1-one", "dm/uuid": "LVM-ghi"})
    for number, letter in enumerate("de"):
        route = f"pci/host1/rport-1:0-{number}/target1:0:{number}"
        sysfs.disk(f"sd{letter}", f"8:{64 + 16 * number}", 9000, route, SATA_SSD)
    sysfs.stacked("dm-5", "252:5", 9000, ["sdd", "sde"], {"dm/name": "mpatha", "dm/uuid": "mpath-3600"})
    return Disks.read(str(sysfs.root))


@pytest.mark.parametrize(
    ("path", "kind", "under"),
    [
        ("/dev/sda2", SSD, {"sda"}),
        ("/dev/mapper/cryptroot", SSD, {"sda"}),
        ("/dev/mapper/vg0-root", SSD, {"sda"}),
        ("/dev/dm-1", SSD, {"sda"}),
        ("/dev/md0", RAID, {"nvme0n1", "nvme1n1"}),
        ("/dev/md0p1", RAID, {"nvme0n1", "nvme1n1"}),
        ("/dev/mapper/data", RAID, {"nvme0n1", "nvme1n1"}),
        ("/dev/mapper/vg1-wide", RAID, {"sdb", "sdc"}),
        ("/dev/mapper/vg1-one", HARD_DISK, {"sdb"}),
        ("/dev/mapper/mpatha", NETWORK, {"sdd", "sde"}),
    ],
)
def test_words_of_stacked_devices(stacked: Disks, path: str, kind: str, under: set[str]) -> None:
    device = stacked.of_path(path)
    assert device is not None
    assert stacked.kind(device.name) == kind
    assert stacked.under(device.name) == under
    assert stacked.of_number(device.number) == device


def test_what_an_operator_calls_disks(stacked: Disks) -> None:
    names = [device.name for device in stacked.whole()]
    assert names == ["md0", "nvme0n1", "nvme1n1", "sda", "sdb", "sdc", "sdd", "sde"]
    assert stacked.model("md0") == "SAMSUNG MZQL23T8HCLS-00A07"
    assert stacked.stack("dm-2") == {"dm-2", "md0p1", "md0", "nvme0n1", "nvme1n1"}


def test_a_stack_whose_disk_cannot_be_seen(sysfs: Sysfs) -> None:
    sysfs.stacked("dm-0", "252:0", 1, [], {"dm/name": "zero"})
    write(sysfs.root, {"devices/virtual/block/dm-0/slaves/sdz": "-> ../../sdz"})
    disks = Disks.read(str(sysfs.root))
    assert disks.kind("dm-0") == UNKNOWN and disks.under("dm-0") == {"dm-0"}
