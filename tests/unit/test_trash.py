# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of copies that are aside."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.copies.trash import entry_of, parsed
from stowage_core.eviction.plan import REASONS, Victim


@pytest.mark.parametrize("reason", REASONS)
def test_a_name_aside_tells_the_copy_and_the_reason(reason: str) -> None:
    longest = "w" * 63 + "." + "d" * 63
    entry = entry_of(Victim(longest, "", reason, 0, 0))
    assert parsed(entry) == (longest, reason) and len(entry) <= 255
    assert entry != entry_of(Victim(longest, "", reason, 0, 0))


@pytest.mark.parametrize(
    "entry",
    [b"photos", b"ml.a", b"ml.a.", b"ml.a.soon-1-2", b"a.full-1-2", b"ml.a.b.full-1-2", b".full-1", b"\xff.a.full-1"],
)
def test_a_name_that_was_not_made_here(entry: bytes) -> None:
    assert parsed(entry) == ("", "")


@given(st.binary(min_size=1, max_size=40))
def test_any_name(entry: bytes) -> None:
    name, reason = parsed(entry)
    assert bool(name) == bool(reason)
    assert not name or os.fsdecode(entry).startswith(name + "." + reason)
