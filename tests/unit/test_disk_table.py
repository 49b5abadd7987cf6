# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The table of a host's disks, as whoever chooses the data location sees it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.filter.disk_table import FilterModule, disk_table

TB = 10**12


def _filesystem(mount: str, kind: str, free: int | None, size: int | None, **fields: Any) -> dict[str, Any]:
    return {
        "mount": mount,
        "kind": kind,
        "free_bytes": free,
        "size_bytes": size,
        "system_disk": False,
        "error": "",
        "unfit": "",
        "shared": kind == "shared",
        **fields,
    }


def _disk(name: str, kind: str, size: int, mounts: list[str], members: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "kind": kind, "size_bytes": size, "mounts": mounts, "members": list(members)}


def _facts(**fields: Any) -> dict[str, Any]:
    return {
        "filesystems": [],
        "disks": [],
        "recommended": {"mount": None, "folder": None, "reason": "this machine has none"},
        "data_location": None,
        **fields,
    }


SERVER = _facts(
    filesystems=[
        _filesystem("/", "SSD", 29 * TB // 100, 47 * TB // 100, system_disk=True),
        _filesystem("/lustre", "shared", None, None, error="does not answer", unfit="shared: a data location must ..."),
        _filesystem("/mnt/nvme0", "NVMe SSD", 32 * TB // 10, 38 * TB // 10),
        _filesystem("/mnt/old", "hard disk", TB, 4 * TB, unfit="read-only"),
        _filesystem("/scratch", "shared", 900 * TB, 1200 * TB, unfit="shared: a data location must ..."),
    ],
    disks=[
        _disk("loop4", "disk image", TB, []),
        _disk("md0", "RAID array", 8 * TB, [], ("nvme2n1", "nvme3n1")),
        _disk("nvme0n1", "NVMe SSD", 38 * TB // 10, ["/mnt/nvme0"]),
        _disk("nvme2n1", "NVMe SSD", 4 * TB, []),
        _disk("nvme3n1", "NVMe SSD", 4 * TB, []),
    ],
    recommended={
        "mount": "/mnt/nvme0",
        "folder": "/mnt/nvme0/stowage",
        "reason": "NVMe SSD, not the system disk; the fastest kind here",
    },
)


def test_a_server() -> None:
    assert disk_table(SERVER) == [
        "Disk             Free     Size  Mounted at",
        "SSD            290 GB   470 GB  /           system disk",
        "shared              ?        ?  /lustre     does not answer",
        "NVMe SSD       3.2 TB   3.8 TB  /mnt/nvme0  recommended",
        "hard disk      1.0 TB   4.0 TB  /mnt/old    read-only",
        "shared         900 TB   1.2 PB  /scratch",
        "RAID array              8.0 TB  -           md0, not mounted",
        "",
        "Recommended: /mnt/nvme0/stowage (NVMe SSD, not the system disk; the",
        "  fastest kind here)",
        "Data location: not chosen",
    ]


def test_nothing_to_recommend() -> None:
    assert disk_table(_facts()) == [
        "Disk             Free     Size  Mounted at",
        "",
        "Recommended: none (this machine has none)",
        "Data location: not chosen",
    ]


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (
            {"path": "/mnt/nvme0/stowage", "max_bytes": 2 * TB, "available": True},
            "Data location: /mnt/nvme0/stowage (at most 2.0 TB of copies)",
        ),
        (
            {"path": "/mnt/a", "max_bytes": 0, "available": False},
            "Data location: /mnt/a (no limit but the disk, NOT AVAILABLE)",
        ),
    ],
)
def test_the_data_location_as_it_is(location: dict[str, Any], line: str) -> None:
    assert disk_table(_facts(data_location=location))[-1] == line


@pytest.mark.parametrize("width", [40, 68, 76, 200])
def test_lines_are_as_wide_as_they_may_be_and_paths_whole(width: int) -> None:
    long = "/srv/a-mount-point-with-a-name-that-goes-on/and-on"
    facts = _facts(filesystems=[*SERVER["filesystems"], _filesystem(long, "hard disk", TB, TB, system_disk=True)])
    lines = disk_table(facts, width)
    assert sum(long in line for line in lines) == 1
    assert all(len(line) <= width for line in lines if long not in line)
    assert all(line.isascii() for line in lines)


@pytest.mark.parametrize("value", [None, [], {}, {"disks": []}, "text"])
def test_what_are_no_facts_is_refused(value: object) -> None:
    with pytest.raises(AnsibleFilterError, match="run stowage.host.storage_facts first"):
        disk_table(value)


@pytest.mark.parametrize("width", [0, 39, "wide"])
def test_a_width_that_is_none_is_refused(width: Any) -> None:
    with pytest.raises(AnsibleFilterError, match="at least 40"):
        disk_table(SERVER, width)


def test_its_name() -> None:
    assert FilterModule().filters() == {"disk_table": disk_table}
