# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which directories lie between two paths."""

from __future__ import annotations

import pytest

from stowage_core.layout_directories import steps


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
