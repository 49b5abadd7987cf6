# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long an eviction that did not help stays stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stowage_core import eviction_stop, records
from stowage_core.data_locations import DataLocation
from stowage_core.mounts import FilesystemId
from stowage_core.places import Places
from stowage_core.sizes import Space

LOCATION = DataLocation("/mnt/stowage", 0, "gpu-01", FilesystemId("ext4", "1", "/dev/sda"), "one")
OTHER = DataLocation("/mnt/stowage", 0, "gpu-01", FilesystemId("ext4", "1", "/dev/sda"), "two")


def space(avail: int, files_free: int = 100) -> Space:
    return Space(10_000, avail, avail, 10_000, files_free)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path))


@pytest.mark.parametrize(
    ("now", "stopped"),
    [
        (space(700), True),
        (space(100, 0), True),
        (space(799), True),
        (space(800), False),
        (space(5000), False),
        (space(700, 199), True),
        (space(700, 200), False),
    ],
)
def test_until_a_hundredth_more_is_free(places: Places, now: Space, stopped: bool) -> None:
    eviction_stop.keep(places, LOCATION, "stopped: why", space(700))
    assert eviction_stop.in_force(places, LOCATION, now) == ("stopped: why" if stopped else "")


def test_a_filesystem_without_inodes_of_its_own(places: Places) -> None:
    now = Space(10_000, 700, 700, 0, 0)
    eviction_stop.keep(places, LOCATION, "stopped: why", now)
    assert eviction_stop.in_force(places, LOCATION, now) == "stopped: why"


def test_until_it_is_lifted(places: Places) -> None:
    assert not eviction_stop.lift(places)
    eviction_stop.keep(places, LOCATION, "stopped: why", space(700))
    assert eviction_stop.lift(places)
    assert eviction_stop.in_force(places, LOCATION, space(700)) == ""


def test_of_this_data_location_alone(places: Places) -> None:
    eviction_stop.keep(places, OTHER, "stopped: why", space(700))
    assert eviction_stop.in_force(places, LOCATION, space(700)) == ""


def test_kept_in_memory_where_the_disk_of_records_is_full(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    write = records.write

    def full(path: str, value: records.Record) -> bool:
        if path.startswith(places.var):
            raise OSError(28, "No space left on device")
        return write(path, value)

    monkeypatch.setattr(records, "write", full)
    eviction_stop.keep(places, LOCATION, "stopped: why", space(700))
    assert eviction_stop.in_force(places, LOCATION, space(700)) == "stopped: why"
    assert eviction_stop.lift(places)
    assert eviction_stop.in_force(places, LOCATION, space(700)) == ""


@pytest.mark.parametrize("text", ["", "{", "[]", '{"location": "one"}', '{"location": "one", "avail": "much"}'])
def test_a_damaged_record_is_a_stop(places: Places, text: str) -> None:
    os.makedirs(places.var)
    Path(places.var, "eviction_stop.json").write_text(text)
    assert eviction_stop.in_force(places, LOCATION, space(9000)).startswith("stopped: why cannot be read (")
