# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the daemon hands to an eviction; what an eviction does is tested on real disks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stowage_core import copies
from stowage_core.copies import CopyRecord
from stowage_core.places import Places
from stowaged.evicting import with_last_use

FIGURES = CopyRecord("ml", "a", "one", "", 5, 4096, 2, 3, True, 100.0, 50.0)


@pytest.mark.parametrize(
    ("recorded", "last_used"),
    [
        (None, 50.0),
        (replace(FIGURES, last_used=None), 50.0),
        (replace(FIGURES, last_used=70.0), 70.0),
        (replace(FIGURES, identity="another drive of the name", last_used=70.0), 50.0),
    ],
)
def test_the_last_use_is_the_latest_that_is_known(
    tmp_path: Path, recorded: CopyRecord | None, last_used: float
) -> None:
    places = Places.under(str(tmp_path))
    if recorded is not None:
        copies.write_record(places, "ml.a", recorded)
    assert with_last_use(places, {"ml.a": FIGURES}) == ({"ml.a": replace(FIGURES, last_used=last_used)}, {})


def test_a_copy_that_nobody_has_used(tmp_path: Path) -> None:
    never = replace(FIGURES, last_used=None)
    assert with_last_use(Places.under(str(tmp_path)), {"ml.a": never}) == ({"ml.a": never}, {})


@pytest.mark.parametrize("content", ["", "{}", '{"workspace": "ml", "last_used": "yesterday"}'])
def test_a_copy_whose_last_use_cannot_be_read_stays(tmp_path: Path, content: str) -> None:
    places = Places.under(str(tmp_path))
    path = Path(copies.record_path(places, "ml.a"))
    path.parent.mkdir(parents=True)
    path.write_text(content)
    figures, unknown = with_last_use(places, {"ml.a": FIGURES, "ml.b": FIGURES})
    assert figures == {"ml.a": FIGURES, "ml.b": FIGURES}  # it takes what it takes
    assert set(unknown) == {"ml.a"} and str(path) in unknown["ml.a"]
