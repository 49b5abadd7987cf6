# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""From declared drives to leases of their copies: on a host installed anew, and when a drive is made again.

The host has no disk but the test's, and a name of its own: it finds nothing that other tests have on this machine.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stowage_core import claims, mounts, records
from stowage_core.data_location import change as data_location_change
from stowage_core.data_location import locations as data_locations
from stowage_core.data_location.change import Choice
from stowage_core.differences import Differences
from stowage_core.drives import host as drives_host
from stowage_core.drives import recorded as drive_records
from stowage_core.drives.declared import check_lists
from stowage_core.errors import Refusal
from stowage_core.eviction import evict as eviction
from stowage_core.eviction.plan import Settings
from stowage_core.mark_search import Search, find_marks
from stowage_core.places import Places
from stowage_core.runs import pinning, pins

HF_CACHE: dict[str, Any] = {"metadata": {"name": "hf-cache"}, "spec": {"sources": [{"node_scope": "placed"}]}}
TOMBSTONE: dict[str, Any] = {"metadata": {"name": "hf-cache"}, "state": "absent"}


HOST = f"gpu-{uuid.uuid4()}"


class Host:
    """A host with a data location, whose drives are declared and leased."""

    def __init__(self, places: Places, path: Path) -> None:
        self.places = places
        self.path = path

    def choose(self, **choice: Any) -> None:
        wanted = Choice(path=str(self.path), max_bytes=0, host=HOST, **choice)
        data_location_change.choose(self.places, wanted, Differences())

    def declare(self, *drives: dict[str, Any]) -> drives_host.Outcome:
        lists = check_lists([{"name": "vision", "drives": list(drives)}])
        return drives_host.declare(self.places, HOST, lists, "", Differences())

    @property
    def identity(self) -> str:
        (drive,) = drive_records.load(self.places, "vision") or []
        return drive.identity

    def lease(self) -> Path:
        location = data_locations.load(self.places)
        assert location is not None
        pin = pinning.take(self.places, location, "vision.hf-cache", run="r", read_only=False, seconds=60)
        return Path(pin.path(self.places))

    def release(self) -> None:
        for pin in pins.all_pins(self.places):
            pinning.release(self.places, pin.run, pin.number)

    def install_anew(self) -> None:
        """Forget all that is on the system disk."""
        for path in (self.places.etc, self.places.var, self.places.run):
            shutil.rmtree(path)
        self.choose()  # finds it by its mark


@pytest.fixture
def host(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    own = mounts.of_path(str(disk), mounts.read()).point
    monkeypatch.setattr(claims, "find_marks", lambda table: find_marks([one for one in table if one.point == own]))
    made = Host(Places.under(str(tmp_path)), disk / "stowage")
    records.write(made.places.claims_json, {"claims": {}})  # not lost: otherwise all disks are searched for marks
    made.choose()
    made.declare(HF_CACHE)
    (made.lease() / "weights").write_text("of the first")
    yield made
    made.release()


def test_a_host_installed_anew_has_its_drives_and_their_copies(host: Host) -> None:
    first = host.identity
    host.release()
    host.install_anew()
    outcome = host.declare(HF_CACHE)
    assert host.identity == first
    assert outcome.orphans == []
    copy = host.path / "drives" / "vision.hf-cache"
    assert outcome.warnings == [
        "workspace vision: this host had no list of it, and takes what is here for copies of its drives of the same"
        f" names ({copy}); delete those that are not (state: absent)"
    ]
    assert (host.lease() / "weights").read_text() == "of the first"
    assert host.declare(HF_CACHE).warnings == []


def test_a_host_installed_anew_deletes_what_is_to_be_deleted(host: Host) -> None:
    host.release()
    host.install_anew()
    assert host.declare(TOMBSTONE).deleting() == {"vision": ["hf-cache"]}


def test_a_drive_made_again_does_not_have_the_former_one_s_copy(host: Host) -> None:
    first = host.identity
    host.release()
    left = host.declare()
    assert "holds 1 copy of drives that are in no list" in left.warnings[0]
    with pytest.raises(Refusal, match="drive vision/hf-cache: is in no list of this host"):
        host.lease()
    again = host.declare(HF_CACHE)
    assert host.identity != first
    assert "holds 1 copy of an earlier drive of that name" in again.warnings[0]
    orphan = f"{host.path}/drives/vision.hf-cache is an orphan, the copy of an earlier drive of that name; take it in"
    with pytest.raises(Refusal, match=re.escape(f"drive vision/hf-cache: {orphan}")):
        host.lease()
    host.choose(adopt=["vision.hf-cache"])
    assert host.declare(HF_CACHE).warnings == []
    assert (host.lease() / "weights").read_text() == "of the first"


def test_a_drive_made_again_has_a_copy_of_its_own_once_the_orphan_is_away(host: Host) -> None:
    host.release()
    host.declare()
    host.declare(HF_CACHE)
    (host.path / "drives/vision.hf-cache").rename(host.path / "moved away")
    assert list(host.lease().iterdir()) == []


def test_a_tombstone_ends_every_orphan_of_its_name(host: Host) -> None:
    """One is in a former data location, and of another drive than that in the present one."""
    host.choose()
    host.declare(HF_CACHE)
    host.lease()
    host.release()
    host.declare()
    former = data_locations.load(host.places)
    host.path = host.path.with_name("second")
    host.choose()
    host.declare(HF_CACHE)
    host.lease()
    host.release()
    present = data_locations.load(host.places)
    assert former is not None and present is not None
    host.declare()
    assert len(host.declare().orphans) == 2

    outcome = host.declare(TOMBSTONE)
    assert (outcome.deleting(), list(outcome.orphans), list(outcome.warnings)) == ({"vision": ["hf-cache"]}, [], [])
    now = Settings(minimum_age_s=0, boot_grace_s=0)
    for location in (present, former):
        assert [one["reason"] for one in eviction.evict(host.places, location, now).removed] == ["deleted"]
    outcome = host.declare(TOMBSTONE)
    assert (outcome.deleting(), list(outcome.orphans), list(outcome.warnings)) == ({"vision": []}, [], [])


def test_a_host_with_drives_only_is_searched_for_marks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[int] = []
    monkeypatch.setattr(claims, "find_marks", lambda mounts: searches.append(1) or Search())
    host = Host(Places.under(str(tmp_path)), tmp_path)
    for _number in range(3):
        host.declare(HF_CACHE)
    assert len(searches) == 1
