# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an eviction knows of copies, and what it may remove; what it does is tested on real disks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stowage_core import records
from stowage_core.copies import present as copies
from stowage_core.copies.present import Copy, CopyRecord
from stowage_core.data_location.locations import DataLocation
from stowage_core.eviction import evict as eviction
from stowage_core.eviction.plan import Settings as Limits
from stowage_core.mounts import FilesystemId
from stowage_core.places import Places
from stowaged.evicting import terms
from stowaged.eviction_decision import DELETED, REMOVE, ROOM, Decision
from stowaged.settings import Settings

FIGURES = CopyRecord("ml", "a", "one", "", 5, 4096, 2, 3, True, 100.0, 50.0)
COPY = Copy("ml.a", "one", 1.0)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path))


# -- Last use


@pytest.mark.parametrize(
    ("recorded", "figures", "known"),
    [
        (None, FIGURES, FIGURES),
        (None, None, None),
        (FIGURES, None, FIGURES),
        (replace(FIGURES, last_used=None), FIGURES, FIGURES),
        (replace(FIGURES, last_used=70.0), FIGURES, replace(FIGURES, last_used=70.0)),
        (replace(FIGURES, last_used=70.0), replace(FIGURES, last_used=None), replace(FIGURES, last_used=70.0)),
        (replace(FIGURES, allocated=1), replace(FIGURES, allocated=2), replace(FIGURES, allocated=2)),
        (replace(FIGURES, identity="another drive of the name", last_used=70.0), FIGURES, FIGURES),
        (FIGURES, replace(FIGURES, identity="another drive of the name", last_used=70.0), FIGURES),
        (replace(FIGURES, last_used=None), replace(FIGURES, last_used=None), replace(FIGURES, last_used=None)),
    ],
)
def test_the_last_use_is_the_latest_that_is_known(
    places: Places, recorded: CopyRecord | None, figures: CopyRecord | None, known: CopyRecord | None
) -> None:
    if recorded is not None:
        copies.write_record(places, "ml.a", recorded)
    found = eviction.with_records(places, [COPY], {} if figures is None else {"ml.a": figures})
    assert found == ({} if known is None else {"ml.a": known}, {})


@pytest.mark.parametrize("content", ["", "{}", '{"workspace": "ml", "last_used": "yesterday"}'])
def test_a_copy_whose_last_use_cannot_be_read_stays(places: Places, content: str) -> None:
    path = Path(copies.record_path(places, "ml.a"))
    path.parent.mkdir(parents=True)
    path.write_text(content)
    known, unknown = eviction.with_records(places, [COPY, Copy("ml.b", "one", 1.0)], {"ml.a": FIGURES, "ml.b": FIGURES})
    assert known == {"ml.a": FIGURES, "ml.b": FIGURES}  # it takes what it takes
    assert set(unknown) == {"ml.a"} and str(path) in unknown["ml.a"]


# -- What is declared now

LOCATION = DataLocation("/mnt/stowage", 500, "gpu-01", FilesystemId("ext4", "1", "/dev/sda"), "one")
MAKING_ROOM = Decision(REMOVE, frozenset({ROOM}), caches=True, limit=True)
BEFORE = Settings(evict="on", minimum_age_s=7)


@pytest.mark.parametrize(
    ("chosen", "declared", "settings", "max_bytes", "limits"),
    [
        (MAKING_ROOM, LOCATION, {"evict": "on"}, 500, Limits()),
        (MAKING_ROOM, replace(LOCATION, max_bytes=900), {"evict": "on"}, 900, Limits()),
        (MAKING_ROOM, replace(LOCATION, max_bytes=0), {"evict": "on"}, 0, Limits()),
        (MAKING_ROOM, LOCATION, {"evict": "on", "minimum_age_s": 5}, 500, Limits(minimum_age_s=5)),
        # Switched off, or no longer the data location: copies of deleted drives alone
        (MAKING_ROOM, LOCATION, {"evict": "plan"}, 0, Limits(caches=False)),
        (MAKING_ROOM, LOCATION, {"evict": "off"}, 0, Limits(caches=False)),
        (MAKING_ROOM, LOCATION, {}, 0, Limits(caches=False)),
        (MAKING_ROOM, replace(LOCATION, identity="two"), {"evict": "on"}, 0, Limits(caches=False)),
        (MAKING_ROOM, None, {"evict": "on"}, 0, Limits(caches=False)),
        # Never more than what was decided when it began
        (Decision(REMOVE, frozenset({DELETED})), LOCATION, {"evict": "on"}, 0, Limits(caches=False)),
        (replace(MAKING_ROOM, limit=False), LOCATION, {"evict": "on"}, 0, Limits()),
        # New settings that are wrong
        (MAKING_ROOM, LOCATION, {"evict": "maybe"}, 500, Limits(minimum_age_s=7)),
    ],
)
def test_what_may_go_is_what_is_declared_now(
    places: Places,
    chosen: Decision,
    declared: DataLocation | None,
    settings: dict[str, object],
    max_bytes: int,
    limits: Limits,
) -> None:
    records.write(places.daemon_json, settings)
    if declared is not None:
        records.write(places.data_location_json, declared.to_json())
    location, found = terms(places, LOCATION, BEFORE, chosen, making_room=False)
    assert (location.identity, location.max_bytes, found) == ("one", max_bytes, limits)
    _location, found = terms(places, LOCATION, BEFORE, chosen, making_room=True)
    assert found == replace(limits, start_free=limits.stop_free)
