# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which mounts a host is to have, and which of them are missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stowage_core.errors import Refusal
from stowage_core.mounts import Mount
from stowage_core.services.lasting_mounts import LastingMount, LastingMounts

PATH = "/mnt/nvme1/a/stowage"
UNIT = "mnt-nvme1.mount"


def mount(point: str, fstype: str = "xfs") -> Mount:
    return Mount(1, 1, "8:1", "/", point, ("rw",), fstype, "/dev/sda1", ("rw",))


class Units:
    """The directories of a host's units."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directories = tuple(f"{home}/{name}" for name in ("etc", "run", "lib"))

    def lasting(self, fstab: str = "") -> LastingMounts:
        return LastingMounts(fstab.encode(), self.directories, self.directories[-1:])

    def make(self, *paths: str) -> None:
        for path in paths:
            at = self.home / path
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text("[Mount]\n")

    def mask(self, path: str) -> None:
        (self.home / path).parent.mkdir(parents=True, exist_ok=True)
        (self.home / path).symlink_to(os.devnull)


@pytest.fixture
def units(tmp_path: Path) -> Units:
    return Units(tmp_path)


@pytest.mark.parametrize(
    ("fstab", "points"),
    [
        ("", []),
        ("# /dev/sdb /mnt/nvme1 xfs\n", []),
        ("/dev/sdb /mnt/nvme1 xfs defaults 0 0", ["/mnt/nvme1"]),
        ("/dev/sdb\t/mnt/nvme1/ xfs noauto\n/dev/sdc /mnt/nvme1/a xfs", ["/mnt/nvme1/a", "/mnt/nvme1"]),
        ("/dev/sdb /mnt/nvme10 xfs\n/dev/sdc none swap sw\nbroken\n/dev/sdd / ext4", []),
        (r"/dev/sdb /mnt/with\040space xfs", []),
        ("/dev/sdb /mnt/x\v/dev/sdc /mnt/nvme1 xfs", []),  # one line: only a line feed ends one
    ],
)
def test_lines_of_fstab(units: Units, fstab: str, points: list[str]) -> None:
    assert units.lasting(fstab).above(PATH) == [LastingMount(point, "") for point in points]


def test_an_escaped_mount_point(units: Units) -> None:
    assert units.lasting(r"/dev/sdb /mnt/a\040b xfs").above("/mnt/a b/x") == [LastingMount("/mnt/a b", "")]


@pytest.mark.parametrize(
    ("made", "masked", "found"),
    [
        ([], [], []),
        (["etc/mnt-nvme1.mount"], [], [LastingMount("/mnt/nvme1", UNIT)]),
        (["run/mnt-nvme1.automount"], [], [LastingMount("/mnt/nvme1", "mnt-nvme1.automount")]),
        (["etc/mnt-nvme1-a-stowage.mount"], [], [LastingMount(PATH, "mnt-nvme1-a-stowage.mount")]),
        (["etc/mnt-nvme10.mount", "etc/nvme1.mount", "etc/-.mount"], [], []),
        # The first directory that has a unit counts.
        (["run/mnt-nvme1.mount"], ["etc/mnt-nvme1.mount"], []),
        (["etc/mnt-nvme1.mount"], ["run/mnt-nvme1.mount"], [LastingMount("/mnt/nvme1", UNIT)]),
        # What a distribution brings along is to be mounted where something wants it.
        (["lib/mnt-nvme1.mount"], [], []),
        (["lib/mnt-nvme1.mount", f"lib/local-fs.target.wants/{UNIT}"], [], [LastingMount("/mnt/nvme1", UNIT)]),
        (["lib/mnt-nvme1.mount", f"etc/x.service.requires/{UNIT}"], [], [LastingMount("/mnt/nvme1", UNIT)]),
    ],
)
def test_units(units: Units, made: list[str], masked: list[str], found: list[LastingMount]) -> None:
    units.make(*made)
    for path in masked:
        units.mask(path)
    assert units.lasting().above(PATH) == found


def test_the_name_of_a_unit_is_escaped(units: Units) -> None:
    units.make(r"etc/mnt-a\x2db\x20c.mount")
    assert units.lasting().above("/mnt/a-b c") == [LastingMount("/mnt/a-b c", r"mnt-a\x2db\x20c.mount")]


def test_what_is_missing(units: Units) -> None:
    units.make("etc/mnt-nvme1-a.mount")
    lasting = units.lasting("/dev/sdb /mnt/nvme1 xfs")
    outer, inner = LastingMount("/mnt/nvme1", ""), LastingMount("/mnt/nvme1/a", "mnt-nvme1-a.mount")
    root, over, below = mount("/"), mount("/mnt/nvme1"), mount("/mnt/nvme1/a")
    waiting = mount("/mnt/nvme1/a", "autofs")
    assert lasting.missing(PATH, [root]) == [outer, inner]
    assert lasting.missing(PATH, [root, over]) == [inner]
    assert lasting.missing(PATH, [root, over, waiting]) == [inner]
    assert lasting.missing(PATH, [root, over, waiting, below]) == []
    assert lasting.missing("/mnt/other", [root]) == []
    lasting.check("path", PATH, [root, over, below])
    with pytest.raises(Refusal) as refused:
        lasting.check("path", PATH, [root, over])
    assert str(refused.value) == (
        "path: /mnt/nvme1/a is to be mounted by mnt-nvme1-a.mount and is not; mount it (systemctl start"
        " mnt-nvme1-a.mount); when its disk is gone for good, take that out"
    )


def test_the_host_s_own_are_read() -> None:
    LastingMounts.read().above("/var/lib/stowage")
