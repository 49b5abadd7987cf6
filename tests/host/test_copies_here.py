# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which copies are in a data location, as everybody who asks is told it, and what is remembered of those that went."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from copies_lab import Lab

from stowage_core import mounts, records
from stowage_core.copies import present as copies
from stowage_core.data_location import locations as data_locations
from stowage_core.facts import objects
from stowage_core.runs import pinning
from stowage_core.trees.measure import Usage
from stowaged import declared, measuring


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Lab:
    made = Lab(disk, tmp_path)
    made.copy("ml.a", last_used=1000.0)
    return made


def set_aside(lab: Lab, name: str) -> None:
    os.rename(lab.at(name), lab.path / ".stowage-trash" / "pending" / f"{name}.full-1-3")


def measure(lab: Lab) -> list[Any]:
    told: list[Any] = []
    target = declared.Target(declared.DATA_LOCATION, lab.location.path, lab.location.filesystem)
    measuring.Measuring(lab.places, [target], lab.location, {}, mounts.read())._copies(target, told.append)
    return told


def test_all_who_ask_are_told_the_same(lab: Lab) -> None:
    lab.copy("ml.aside")
    set_aside(lab, "ml.aside")
    for name in ("backup of bob", "lost+found", "ml.unmarked"):
        (lab.path / "drives" / name).mkdir()
    (lab.path / "drives" / "ml.link").symlink_to(lab.at("ml.a"))
    lab.at("ml.a").rename(lab.path / "drives" / "ml.renamed")
    lab.copy("ml.a")
    strangers = [f"{lab.path}/drives/{name}" for name in sorted(set(lab.names()) - {"ml.a"})]
    assert len(strangers) == 5

    holdings = data_locations.holdings([lab.location], mounts.read())
    assert [found.copy_name for found in holdings.copies] == ["ml.a", "ml.aside"]
    assert holdings.strangers == strangers
    fd = os.open(lab.path, os.O_RDONLY)
    assert [copy.name for copy in copies.present(fd, lab.location)] == ["ml.a"]
    os.close(fd)
    assert measure(lab)[-1]["copies"] == ["ml.a"]
    report = objects.Objects(lab.places, mounts.read()).read()
    assert {name: (copy["present"], copy["aside"]) for name, copy in report["copies"].items()} == {
        "ml.a": (True, False),
        "ml.aside": (False, True),
    }
    assert report["data_location"]["strangers"] == strangers
    assert report["data_location"]["used_bytes"] is not None


def test_the_last_use_of_a_copy_made_meanwhile_is_kept(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run begins while the copies are measured, and ends before that does."""
    lab.declare("ml.new")
    lab.copy("ml.aside", last_used=2000.0)
    set_aside(lab, "ml.aside")
    lab.copy("ml.gone", last_used=3000.0)
    os.rename(lab.at("ml.gone"), lab.path / "taken away")
    real = measuring._ENGINE

    class Slow:
        def measure(self, root_fd: int) -> Usage:
            if "ml.new" not in lab.names():
                pin = pinning.take(lab.places, lab.location, "ml.new", run="job", read_only=False, seconds=60)
                pinning.release(lab.places, pin.run, pin.number)
            return real.measure(root_fd)

    monkeypatch.setattr(measuring, "_ENGINE", Slow())
    before = time.time()
    measure(lab)
    for name, last_used in (("ml.a", 1000.0), ("ml.aside", 2000.0)):
        record = copies.load_record(lab.places, name)
        assert record is not None and record.last_used == last_used
    new = copies.load_record(lab.places, "ml.new")
    assert new is not None and new.last_used is not None and new.last_used >= before
    assert copies.load_record(lab.places, "ml.gone") is None
    measure(lab)
    new = copies.load_record(lab.places, "ml.new")
    assert new is not None and new.last_used is not None and new.files == 0


def test_no_record_goes_while_copies_cannot_be_listed(lab: Lab) -> None:
    (lab.path / "drives").rename(lab.path / "away")
    fd = os.open(lab.path, os.O_RDONLY)
    try:
        with pytest.raises(FileNotFoundError):
            copies.forget_gone(lab.places, fd, lab.location)
    finally:
        os.close(fd)
    assert records.read(copies.record_path(lab.places, "ml.a")) is not None
