# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A browser for the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chromium import Chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    found = Chromium(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()
