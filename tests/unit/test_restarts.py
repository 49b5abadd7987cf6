# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restarts that wait."""

from __future__ import annotations

from pathlib import Path

from stowage_core.places import Places
from stowage_core.services.restarts import Restarts


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
