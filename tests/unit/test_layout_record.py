# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The storage layout as it is recorded, and what a diff shows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stowage_core import records
from stowage_core.differences import Differences
from stowage_core.errors import StowageError
from stowage_core.layout.record import load, note
from stowage_core.layout.rules import NAMES


def test_no_layout_yet(tmp_path: Path) -> None:
    assert load(str(tmp_path / "layout.json"))["locations"] == {}


@pytest.mark.parametrize("record", [{}, {"locations": {"runs": {}}}, {"locations": 7}, {"locations": {}}])
def test_a_record_that_is_no_layout(tmp_path: Path, record: dict[str, Any]) -> None:
    path = str(tmp_path / "layout.json")
    records.write(path, record)
    with pytest.raises(StowageError, match="is not a layout .*; move it away and roll out again"):
        load(path)


def recorded(point: str, uuid: str, **runs: Any) -> dict[str, Any]:
    location = {
        "override": False,
        "require_mount": False,
        "mount_point": point,
        "filesystem": {"fstype": "xfs", "uuid": uuid, "source": "/dev/vdb"},
    }
    locations: dict[str, Any] = {name: {**location, "path": f"/srv/{name}"} for name in NAMES}
    locations["runs"].update(runs)
    return {
        "root": "/srv",
        "volume_root": None,
        "environment_prefix": "STOWAGE_",
        "environment_files": ["/etc/stowage/stowage.env"],
        "protected_paths": [],
        "locations": locations,
    }


def test_a_diff_has_one_line_for_a_location_and_one_for_a_filesystem(tmp_path: Path) -> None:
    differences = Differences()
    note(differences, recorded("/srv", "new", override=True, require_mount=True), load(str(tmp_path / "none")))
    after = differences.diff()["after"]
    assert after["location state"] == "/srv/state on the mount at /srv"
    assert after["location runs"] == "/srv/runs on the mount at /srv (override) (mount required)"
    assert after["filesystem at /srv"] == "xfs new"
    assert str(after).count("xfs new") == 1


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ({}, []),
        ({"path": "/mnt/runs"}, ["location runs"]),
        ({"override": True}, ["location runs"]),
        ({"require_mount": True}, ["location runs"]),
        ({"mount_point": "/srv/runs"}, ["location runs", "filesystem at /srv/runs"]),
        ({"filesystem": {"fstype": "xfs", "uuid": "other", "source": "/dev/vdb"}}, ["filesystem at /srv"]),
    ],
)
def test_whatever_is_recorded_is_noted(changed: dict[str, Any], names: list[str]) -> None:
    differences = Differences()
    note(differences, recorded("/srv", "one", **changed), recorded("/srv", "one"))
    assert list(differences.diff()["after"]) == names


def test_a_layout_that_was_recorded_before_there_were_protected_paths(tmp_path: Path) -> None:
    path, record = str(tmp_path / "layout.json"), recorded("/srv", "one")
    del record["protected_paths"]
    records.write(path, record)
    differences = Differences()
    assert load(path) == recorded("/srv", "one")
    note(differences, {**recorded("/srv", "one"), "protected_paths": ["/db"]}, load(path))
    assert differences.diff() == {"before": {"protected_paths": []}, "after": {"protected_paths": ["/db"]}}
