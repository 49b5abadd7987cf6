# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a location asks of its mount."""

from __future__ import annotations

import pytest

from stowage_core.errors import Refusal
from stowage_core.layout.found import MountRule


def test_a_mount_point_implies_a_mount() -> None:
    assert MountRule.of("runs", False, "/mnt/a/") == MountRule(True, "/mnt/a")
    assert MountRule.of("runs", False, None) == MountRule(False, None)
    with pytest.raises(Refusal, match="^runs: mount_point: 'mnt' must be absolute"):
        MountRule.of("runs", True, "mnt")
