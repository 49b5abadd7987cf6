# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which directories lie between two paths, and what modes they may have."""

from __future__ import annotations

import pytest

from stowage_core.errors import Refusal
from stowage_core.layout.directories import parse_mode, steps


@pytest.mark.parametrize(
    ("parent", "path", "expected"),
    [
        ("/srv", "/srv/a/b", ["/srv/a", "/srv/a/b"]),
        ("/", "/a/b", ["/a", "/a/b"]),
        ("/srv", "/srv/a", ["/srv/a"]),
    ],
)
def test_steps(parent: str, path: str, expected: list[str]) -> None:
    assert steps(parent, path) == expected


@pytest.mark.parametrize(("text", "mode"), [("0755", 0o755), ("02775", 0o2775), ("01777", 0o1777), ("0000", 0)])
def test_mode(text: str, mode: int) -> None:
    assert parse_mode(text) == mode


@pytest.mark.parametrize("text", ["493", "755", "1023", "u+x", "", "0999", "07777 ", "0755\n"])
def test_a_mode_that_yaml_may_have_changed(text: str) -> None:
    with pytest.raises(Refusal, match="must be an octal number that begins with 0"):
        parse_mode(text)


@pytest.mark.parametrize("text", ["0777", "0757", "02777"])
def test_a_mode_for_everybody(text: str) -> None:
    with pytest.raises(Refusal, match="would let everybody replace the locations below the root"):
        parse_mode(text)
