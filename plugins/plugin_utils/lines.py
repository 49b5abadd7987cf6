# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of text for a terminal of 80 columns and a job's log, also where a site has thousands of hosts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

_NARROWEST = 40
_NAMED = 3
"""How many hosts of a kind are named."""


def check(name: str, width: Any, lines: Any) -> None:
    """Refuse a width and a number of lines that a table cannot have.

    :param name: the filter's
    """
    if not isinstance(width, int) or width < _NARROWEST:
        raise AnsibleFilterError(f"{name}: width must be a whole number, at least {_NARROWEST}")
    if not isinstance(lines, int) or lines < 1:
        raise AnsibleFilterError(f"{name}: lines must be a whole number, at least 1")


def named(hosts: Sequence[str]) -> str:
    """Return the first of some hosts, and how many more there are."""
    first = ", ".join(hosts[:_NAMED])
    return f"{first} and {len(hosts) - _NAMED} more" if len(hosts) > _NAMED else first


def rest(number: int, what: str) -> list[str]:
    """Return the line that tells how many are left out, if any."""
    return [f"  and {counted(number, f'more {what}')}"] if number > 0 else []


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def wrapped(text: str, width: int, first: str = "", others: str | None = None) -> list[str]:
    """Return *text* on as many lines as it needs; words, so also paths and names, are never cut.

    :param first: what the first line begins with
    :param others: what the others begin with; as the first where it is left out
    """
    after = first if others is None else others
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=after, break_long_words=False, break_on_hyphens=False
    )
