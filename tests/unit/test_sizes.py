# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sizes as people write them and as messages show them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import Refusal
from stowage_core.sizes import Space, decimal, parse_quantity


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (0, 0),
        (1, 1),
        ("0", 0),
        ("4Ti", 4 * 2**40),
        ("500G", 500 * 10**9),
        ("16Mi", 16777216),
        ("1.5Gi", 1610612736),
        ("2k", 2000),
        ("1E", 10**18),
    ],
)
def test_quantity(value: object, size: int) -> None:
    assert parse_quantity(value) == size


@pytest.mark.parametrize(
    "value", ["", "G", "1 G", "1g", "1KB", "-1", "1e3", "+1", "１", "0.1", "8Ei", -1, True, 1.5, None, []]
)
def test_quantity_refused(value: object) -> None:
    with pytest.raises(Refusal, match="^max_bytes: "):
        parse_quantity(value, "max_bytes")


@given(st.text())
def test_any_text_is_a_size_or_refused(text: str) -> None:
    with contextlib.suppress(Refusal):
        assert 0 <= parse_quantity(text) < 2**63


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (107374182400, "107 GB"),
        (40 * 10**9, "40.0 GB"),
        (450 * 10**9, "450 GB"),
        (99_949_999_999, "99.9 GB"),
        (99_950_000_000, "100 GB"),
        (999_499_999_999, "999 GB"),
        (999_500_000_000, "1.0 TB"),
        (7 * 10**18, "7.0 EB"),
    ],
)
def test_decimal(size: int, text: str) -> None:
    assert decimal(size) == text


@pytest.mark.parametrize(
    ("space", "fraction", "files_fraction"),
    [
        (Space(100, 20, 15, 10, 5), 15 / 95, 0.5),  # blocks kept for root are neither used nor available
        (Space(0, 0, 0, 0, 0), 1.0, 1.0),
        (Space(100, 100, 100, 0, 0), 1.0, 1.0),  # btrfs counts no inodes
    ],
)
def test_fractions(space: Space, fraction: float, files_fraction: float) -> None:
    assert space.free_fraction == pytest.approx(fraction)
    assert space.files_free_fraction == pytest.approx(files_fraction)
