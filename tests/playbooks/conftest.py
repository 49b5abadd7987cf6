# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What tests of playbooks run them with."""

from __future__ import annotations

from pathlib import Path

import pytest
from playbooks_lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)
