# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fields of a survey: only what is blank is left out, and true and false are the same words everywhere."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.stowage.host.plugins.filter.survey_bool import survey_bool
from ansible_collections.stowage.host.plugins.filter.survey_text import survey_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("", ""),
        (" \t", ""),
        (" w0 ", "w0"),
        (0, "0"),
        (7, "7"),
        (0.0, "0.0"),
        (False, "False"),
        (True, "True"),
        ([], "[]"),
        ("None", "None"),
    ],
)
def test_only_what_is_blank_is_left_out(value: Any, text: str) -> None:
    assert survey_text(value) == text


@pytest.mark.parametrize("value", [True, 1, "true", "True", " YES ", "on", "1"])
def test_true(value: Any) -> None:
    assert survey_bool(value) is True


@pytest.mark.parametrize("value", [False, 0, "false", "No", "off ", "0", "", " ", None])
def test_false(value: Any) -> None:
    assert survey_bool(value) is False


@pytest.mark.parametrize("value", ["maybe", "y", "t", "truee", 2, -1, 1.0, [], {}, [True], "None"])
def test_neither(value: Any) -> None:
    assert survey_bool(value) is None
