# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the module storage_layout reads its arguments."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.stowage.host.plugins.modules.storage_layout import (
    Restarts,
    former_layout,
    mode_of,
    overrides_of,
)
from stowage_core import records
from stowage_core.errors import Refusal, StowageError
from stowage_core.layout_places import MountRule
from stowage_core.places import Places


@pytest.mark.parametrize(("text", "mode"), [("0755", 0o755), ("02775", 0o2775), ("01777", 0o1777), ("0000", 0)])
def test_mode(text: str, mode: int) -> None:
    assert mode_of(text) == mode


@pytest.mark.parametrize("text", ["493", "755", "1023", "u+x", "", "0999", "07777 ", "0755\n"])
def test_a_mode_that_yaml_may_have_changed(text: str) -> None:
    with pytest.raises(Refusal, match="must be an octal number that begins with 0"):
        mode_of(text)


@pytest.mark.parametrize("text", ["0777", "0757", "02777"])
def test_a_mode_for_everybody(text: str) -> None:
    with pytest.raises(Refusal, match="would let everybody replace the locations below the root"):
        mode_of(text)


def overrides(value: dict[str, Any]) -> Any:
    return overrides_of(SimpleNamespace(params={"overrides": value}))


def test_overrides() -> None:
    paths, rules = overrides(
        {
            "runs": "/runs",
            "cache": None,
            "state": {"path": "/state", "require_mount": "yes"},
            "reflow": {"path": "/mnt/a/reflow", "mount_point": "/mnt/a"},
            "packages": {"path": ""},
        }
    )
    assert paths == {"runs": "/runs", "cache": None, "state": "/state", "reflow": "/mnt/a/reflow", "packages": ""}
    assert rules == {
        "runs": MountRule(),
        "cache": MountRule(),
        "state": MountRule(True),
        "reflow": MountRule(True, "/mnt/a"),
        "packages": MountRule(),
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "runs: its override must be a path, or a dictionary of path, require_mount and mount_point"),
        (["/x"], "runs: its override must be a path, or a dictionary of path, require_mount and mount_point"),
        ({"dir": "/x"}, "runs: its override must be a path, or a dictionary of path, require_mount and mount_point"),
        ({"path": 7}, "runs: its override must be a path, or a dictionary of path, require_mount and mount_point"),
        ({"require_mount": True}, "runs: its override has a rule for its mount and no path; give it a path"),
        ({"path": "/x", "require_mount": "maybe"}, "runs: require_mount cannot be 'maybe'; give true or false"),
        ({"path": "/x", "mount_point": "x"}, "runs: mount_point: 'x' must be absolute; begin it with /"),
    ],
)
def test_bad_overrides(value: Any, message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        overrides({"runs": value})
    assert str(refusal.value) == message


def test_no_layout_yet(tmp_path: Path) -> None:
    assert former_layout(str(tmp_path / "layout.json"))["locations"] == {}


@pytest.mark.parametrize("record", [{}, {"locations": {"runs": {}}}, {"locations": 7}, {"locations": {}}])
def test_a_record_that_is_no_layout(tmp_path: Path, record: dict[str, Any]) -> None:
    path = str(tmp_path / "layout.json")
    records.write(path, record)
    with pytest.raises(StowageError, match="is not a layout .*; move it away and roll out again"):
        former_layout(path)


def test_restarts_are_kept_until_they_are_done(tmp_path: Path) -> None:
    host = Places.under(str(tmp_path))
    units = {"a.service": True, "b.service": True, "stopped.service": False}
    first = Restarts(host, "/etc/a.env")
    assert first.due(units, changed=False) == []
    assert first.due(units, changed=True) == ["a.service", "b.service"]
    first.keep(["a.service", "b.service"])
    first.keep(["b.service"])
    assert Restarts(host, "/etc/a.env").due(units, changed=False) == ["b.service"]
    assert Restarts(host, "/etc/other.env").due(units, changed=False) == []
    Restarts(host, "/etc/a.env").keep([])
    assert not (tmp_path / "run" / "stowage" / "restarts.json").exists()
