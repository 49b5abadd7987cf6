# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long an eviction that did not help stays stopped."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stowage_core import records
from stowage_core.data_location.locations import DataLocation
from stowage_core.eviction import stop as eviction_stop
from stowage_core.eviction.stop import Stop
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
    why = eviction_stop.keep(places, LOCATION, "why", space(700))
    assert why.startswith("stopped: why; ") and "'stowage evict --go-on' is run" in why
    found = eviction_stop.in_force(places, LOCATION, now)
    assert found == (Stop(1, why) if stopped else Stop())


@pytest.mark.parametrize(
    ("tries", "seconds", "stopped"),
    [
        (1, 599, True),
        (1, 600, False),
        (2, 3599, True),
        (2, 3600, False),
        (3, 6 * 3600 - 1, True),
        (3, 6 * 3600, False),
        (4, 10 * 365 * 86400, True),
        (1, -5, True),
    ],
)
def test_one_more_try_after_a_while_until_the_operator_is_asked(
    places: Places, tries: int, seconds: float, stopped: bool
) -> None:
    why = eviction_stop.keep(places, LOCATION, "why", space(700), tries)
    assert ("one more copy is tried in " in why) == (tries < 4)
    record = records.read(os.path.join(places.var, "eviction_stop.json"))
    assert record is not None
    found = eviction_stop.in_force(places, LOCATION, space(700), record["time"] + seconds)
    assert found == Stop(tries, why if stopped else "")


def test_a_filesystem_without_inodes_of_its_own(places: Places) -> None:
    now = Space(10_000, 700, 700, 0, 0)
    eviction_stop.keep(places, LOCATION, "why", now)
    assert eviction_stop.in_force(places, LOCATION, now).why.startswith("stopped: why; ")


def test_until_it_is_lifted(places: Places) -> None:
    assert not eviction_stop.lift(places)
    eviction_stop.keep(places, LOCATION, "why", space(700))
    assert eviction_stop.lift(places)
    assert eviction_stop.in_force(places, LOCATION, space(700)) == Stop()


def test_of_this_data_location_alone(places: Places) -> None:
    eviction_stop.keep(places, OTHER, "why", space(700))
    assert eviction_stop.in_force(places, LOCATION, space(700)) == Stop()


def test_kept_in_memory_where_the_disk_of_records_is_full(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    write = records.write

    def full(path: str, value: records.Record) -> bool:
        if path.startswith(places.var):
            raise OSError(28, "No space left on device")
        return write(path, value)

    monkeypatch.setattr(records, "write", full)
    eviction_stop.keep(places, LOCATION, "why", space(700))
    assert eviction_stop.in_force(places, LOCATION, space(700)).tries == 1
    assert eviction_stop.lift(places)
    assert eviction_stop.in_force(places, LOCATION, space(700)) == Stop()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"location": "one"}', '{"location": "one", "avail": "much"}'])
def test_a_damaged_record_is_a_stop(places: Places, text: str) -> None:
    os.makedirs(places.var)
    Path(places.var, "eviction_stop.json").write_text(text)
    found = eviction_stop.in_force(places, LOCATION, space(9000))
    assert found.tries == 3 and found.why.startswith("stopped: why cannot be read (")
