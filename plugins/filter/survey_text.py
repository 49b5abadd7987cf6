# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a field of a survey as text, without taking 0 or false for one that is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def survey_text(value: Any) -> str:
    """Return *value* as text without the spaces around it; an empty one for none."""
    return "" if value is None else str(value).strip()


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"survey_text": survey_text}
