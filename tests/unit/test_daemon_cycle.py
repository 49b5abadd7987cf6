# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the daemon is at work, as modules see it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stowage_core.places import Places
from stowage_core.services import daemon_cycle


@pytest.mark.parametrize(
    ("written", "at_work"),
    [
        (None, False),
        ('{"time": %(now)f, "cycle_s": 10}', True),
        ('{"time": %(earlier)f, "cycle_s": 10}', False),
        ('{"time": %(earlier)f, "cycle_s": 60}', True),
        ('{"time": "yesterday", "cycle_s": 10}', False),
        ('{"cycle_s": 10}', False),
        ("{", False),
    ],
)
def test_what_the_last_cycle_says(tmp_path: Path, written: str | None, at_work: bool) -> None:
    places = Places.under(str(tmp_path))
    if written is not None:
        os.makedirs(places.state_dir)
        now = time.time()
        Path(places.state_dir, "cycle.json").write_text(written % {"now": now, "earlier": now - 40})
    assert daemon_cycle.is_at_work(places) == at_work
