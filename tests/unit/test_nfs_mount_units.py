# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mount units of network mounts, and whether what is mounted is what they say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stowage_core.mounts import Mount
from stowage_core.network_mounts import mount_units
from stowage_core.network_mounts.mount_units import MountUnit
from stowage_core.places import Places

POINT = "/var/lib/stowage/datavolumes/mounts/vision.imagenet-0"
UNIT = MountUnit(POINT, "192.0.2.11", "/mnt/nvme0/imagenet", "tcp", True, "Stowage: drive vision/imagenet 100%")
OPTIONS = "ro,vers=4.2,rsize=131072,namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys,addr=192.0.2.11"
MOUNTED = Mount(
    90, 30, "0:50", "/", POINT, ("ro", "nosuid", "nodev", "relatime"), "nfs4", UNIT.what, tuple(OPTIONS.split(","))
)


def changed(old: str, new: str) -> Mount:
    return replace(MOUNTED, super_options=tuple(OPTIONS.replace(old, new).split(",")))


def test_unit() -> None:
    assert UNIT.name == r"var-lib-stowage-datavolumes-mounts-vision.imagenet\x2d0.mount"
    assert UNIT.content.decode().splitlines() == [
        "# Written by Stowage. Local changes are lost.",
        "[Unit]",
        "Description=Stowage: drive vision/imagenet 100%%",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Mount]",
        "What=192.0.2.11:/mnt/nvme0/imagenet",
        f"Where={POINT}",
        "Type=nfs4",
        "Options=ro,vers=4.2,proto=tcp,hard,timeo=600,retrans=2,port=2049,retry=0,nosuid,nodev",
        "TimeoutSec=30",
        "DirectoryMode=0700",
    ]


def test_rdma_and_addresses_of_version_6() -> None:
    assert (
        "Options=ro,vers=4.1,proto=rdma,hard,timeo=600,retrans=2,port=20049,"
        in replace(UNIT, proto="rdma").content.decode()
    )
    six = replace(UNIT, address="2001:db8::11", proto="rdma")
    assert six.what == "[2001:db8::11]:/mnt/nvme0/imagenet"
    assert "vers=4.1,proto=rdma6," in six.content.decode()


def test_where_it_is_mounted() -> None:
    assert mount_units.mount_point(Places(), "vision", "imagenet", 0) == POINT


@pytest.mark.parametrize(
    ("mount", "expected"),
    [
        (MOUNTED, []),
        (replace(MOUNTED, source="192.0.2.99:/x"), ["192.0.2.99:/x (nfs4) is mounted there"]),
        (replace(MOUNTED, fstype="ext4", source="/dev/sda1"), ["/dev/sda1 (ext4) is mounted there"]),
        (changed("hard", "soft"), ["hard is missing"]),
        (changed("vers=4.2", "vers=4.1"), ["vers=4.2 is missing"]),
        (changed("proto=tcp", "proto=rdma"), ["proto=tcp is missing"]),
        (changed("timeo=600", "timeo=10"), ["timeo=600 is missing"]),
        (replace(MOUNTED, options=("ro", "relatime")), ["nosuid is missing", "nodev is missing"]),
    ],
)
def test_what_is_not_as_the_unit_says(mount: Mount, expected: list[str]) -> None:
    assert UNIT.drift(mount) == expected


def test_access() -> None:
    writable = replace(UNIT, read_only=False)
    assert writable.drift(MOUNTED) == [mount_units.IS_READ_ONLY]
    mounted = replace(changed("ro,", "rw,"), options=("rw", "nosuid", "nodev", "relatime"))
    assert writable.drift(mounted) == []
    assert UNIT.drift(mounted) == ["ro is missing"]


@pytest.mark.parametrize(("option", "expected"), [("tcp", "tcp"), ("tcp6", "tcp"), ("rdma", "rdma"), ("rdma6", "rdma")])
def test_protocol_of_a_mount(option: str, expected: str) -> None:
    assert mount_units.mounted_proto(changed("proto=tcp", f"proto={option}")) == expected
    assert mount_units.mounted_proto(replace(MOUNTED, super_options=("ro",))) == ""
