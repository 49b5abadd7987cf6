# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Spans of time in words."""

from __future__ import annotations


def ago(seconds: float | None) -> str:
    """Return a time in the past in words; None is never."""
    if seconds is None:
        return "never"
    return f"{lasting(max(0.0, seconds))} ago"


def lasting(seconds: float) -> str:
    """Return a span of time in words."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (size == 60 and seconds >= 60):
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"
