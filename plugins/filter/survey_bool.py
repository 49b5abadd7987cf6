# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a field of a survey as true or false, in the same words wherever one is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.stowage.host.plugins.filter.survey_text import survey_text

_TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def survey_bool(value: Any) -> bool | None:
    """Return which of the two *value* says, false when it is blank; None when it says neither."""
    return _TRUTHS.get(survey_text(value).lower() or "false")


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"survey_bool": survey_bool}
