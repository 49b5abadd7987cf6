# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What uninstalling does with copies that lie aside: nobody is left to put them back afterwards."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from copies_lab import Lab

from stowage_core import records
from stowage_core.copies import aside
from stowage_core.data_location.locations import CONDEMNED, PENDING
from stowage_core.differences import Differences
from stowage_core.locks import try_lock


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Lab:
    made = Lab(disk, tmp_path)
    records.write(made.places.data_location_json, made.location.to_json())
    return made


def set_aside(lab: Lab, name: str, part: bytes, number: int = 1) -> str:
    if not lab.at(name).exists():
        lab.copy(name)
    entry = f"{name}.full-{number}-1"
    lab.at(name).rename(lab.path / os.fsdecode(part) / entry)
    return entry


def settle(lab: Lab, check_mode: bool = False) -> tuple[Differences, list[tuple[str, str]], list[str]]:
    differences, warnings = Differences(check_mode), list[str]()
    left = aside.settle(lab.places, differences, warnings.append)
    return differences, [(one.copy, one.path) for one in left], warnings


def test_what_was_not_judged_is_put_back_and_the_rest_is_told(lab: Lab) -> None:
    set_aside(lab, "ml.back", PENDING)
    replaced = set_aside(lab, "ml.replaced", PENDING)
    lab.copy("ml.replaced")
    condemned = set_aside(lab, "ml.gone", CONDEMNED)
    (lab.path / os.fsdecode(PENDING) / "of somebody").mkdir()
    before = lab.trash()

    predicted, left, warnings = settle(lab, check_mode=True)
    assert (lab.trash(), warnings) == (before, [])
    done, left_then, warnings = settle(lab)
    assert (predicted.diff(), predicted.actions, left) == (done.diff(), done.actions, left_then)
    assert done.actions == [f"put copy ml.back in {lab.path} back"]
    assert lab.names() == ["ml.back", "ml.replaced"]
    trash = lab.path / ".stowage-trash"
    assert (warnings, left) == (
        [],
        [
            ("ml.replaced", f"{trash}/pending/{replaced}"),
            ("", f"{trash}/pending/of somebody"),
            ("ml.gone", f"{trash}/condemned/{condemned}"),
        ],
    )
    assert not settle(lab)[0].changed


def test_of_two_that_were_aside_one_goes_back(lab: Lab) -> None:
    for number in (1, 2):
        set_aside(lab, "ml.twice", PENDING, number)
    predicted, left, _warnings = settle(lab, check_mode=True)
    done, left_then, _warnings = settle(lab)
    assert (predicted.actions, left) == (done.actions, left_then)
    assert (lab.names(), [name for name, _path in left]) == (["ml.twice"], ["ml.twice"])


def test_former_data_locations_are_looked_at_and_one_that_is_away_is_said(lab: Lab) -> None:
    set_aside(lab, "ml.back", PENDING)
    away = replace(lab.location, path=f"{lab.path}-away", identity="x", left=1.0)
    former = [replace(lab.location, left=1.0), away]
    records.write(lab.places.former_locations_json, {"locations": [one.to_json() for one in former]})
    records.remove(lab.places.data_location_json)
    done, left, warnings = settle(lab)
    assert (done.actions, left, lab.names()) == ([f"put copy ml.back in {lab.path} back"], [], ["ml.back"])
    assert warnings[0].startswith(f"what lies aside there is unknown: data location {lab.path}-away: ")


def test_a_copy_that_another_process_is_at_work_with_is_left_to_it(lab: Lab) -> None:
    set_aside(lab, "ml.held", PENDING)
    locks = os.open(lab.path / ".stowage" / "locks", os.O_RDONLY)
    held = try_lock(locks, b"ml.held")
    os.close(locks)
    assert held is not None
    _done, left, _warnings = settle(lab)
    os.close(held)
    assert (lab.names(), [name for name, _path in left]) == ([], ["ml.held"])
