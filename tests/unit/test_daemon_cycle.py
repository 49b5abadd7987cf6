# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the daemon is at work, as modules see it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from stowage_core.places import Places
from stowage_core.services import daemon_cycle


@pytest.mark.parametrize(
    ("written", "runs", "at_work"),
    [
        (None, True, False),
        ('{"time": %(now)f, "cycle_s": 10}', True, True),
        ('{"time": %(now)f, "cycle_s": 10}', False, False),
        ('{"time": %(earlier)f, "cycle_s": 10}', True, False),
        ('{"time": %(earlier)f, "cycle_s": 60}', True, True),
        ('{"time": "yesterday", "cycle_s": 10}', True, False),
        ('{"cycle_s": 10}', True, False),
        ("{", True, False),
    ],
)
def test_what_its_lock_and_the_last_cycle_say(tmp_path: Path, written: str | None, runs: bool, at_work: bool) -> None:
    places = Places.under(str(tmp_path))
    if written is not None:
        os.makedirs(places.state_dir)
        now = time.time()
        Path(places.state_dir, "cycle.json").write_text(written % {"now": now, "earlier": now - 40})
    os.makedirs(os.path.dirname(places.daemon_lock), exist_ok=True)
    with open(places.daemon_lock, "w") as lock:
        if runs:
            fcntl.flock(lock, fcntl.LOCK_EX)
        assert daemon_cycle.is_at_work(places) == at_work


def test_a_host_without_a_daemon(tmp_path: Path) -> None:
    assert not daemon_cycle.is_at_work(Places.under(str(tmp_path)))
