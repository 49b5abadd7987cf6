# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts tell, as it can be relied on: a part that is missing, or is not what it should be, is not known.

Unknown is None and never 0. Every text is printable, so that it stays one line wherever it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.stowage.host.plugins.module_utils.errors import printable

Told = Mapping[str, Any]
Part = dict[str, Any]


def mapping(value: Any) -> Told:
    """Return *value* when it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: Any) -> list[Told]:
    """Return the mappings of a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, (list, tuple)) else []


def texts(value: Any) -> list[str]:
    """Return the texts of a list."""
    return [text(one) for one in value] if isinstance(value, (list, tuple)) else []


def text(value: Any) -> str:
    """Return *value* as printable text; nothing for None."""
    if isinstance(value, str) and value.isprintable():
        return value
    return "" if value is None else printable(str(value))


def whole(value: Any) -> int | None:
    """Return a number of bytes, files or the like; None where it is not known, or no filesystem could have so many."""
    known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return int(value) if known else None


def moment(value: Any) -> float | None:
    """Return a time in seconds since 1970, or another number that is not negative; None where it is not known."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**36
    return float(value) if known else None


def truth(value: Any) -> bool | None:
    """Return whether it is so; None where it is not known."""
    return bool(value) if isinstance(value, bool) else None


def some(names: Sequence[str]) -> str:
    """Return the first of some names in words."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")


def folded(lines: Iterable[str]) -> list[str]:
    """Return lines of the form ``what: why`` with each reason once, and the first of those that it is true of."""
    by_reason: dict[str, list[str]] = {}
    for line in lines:
        what, colon, why = line.partition(": ")
        by_reason.setdefault(colon + why, []).append(what)
    # What has no reason is told in full.
    return [line for why, those in by_reason.items() for line in ([some(those) + why] if why else those)]


def oldest(*moments: float | None) -> float | None:
    """Return the earliest of those times that are known."""
    return min((one for one in moments if one is not None), default=None)


class Sum:
    """A figure that many parts add up to, some of which may not be known."""

    def __init__(self) -> None:
        self.known = 0
        self.unknown = 0
        self._total = 0

    def add(self, value: int | None) -> None:
        if value is None:
            self.unknown += 1
        else:
            self.known += 1
            self._total += value

    @property
    def total(self) -> int | None:
        """The sum of the parts that are known; None when none is."""
        return self._total if self.known else None


class Measured:
    """The sum of measurements: bytes and files, how old the oldest is, and how many parts are missing or incomplete."""

    def __init__(self) -> None:
        self.bytes = Sum()
        self.files = Sum()
        self.incomplete = 0
        self.measured: float | None = None

    def add(self, one: Told, size: str = "bytes") -> None:
        """Add a measurement with ``bytes`` (or what *size* names), ``files``, ``complete`` and ``measured``."""
        self.bytes.add(whole(one.get(size)))
        self.files.add(whole(one.get("files")))
        self.incomplete += truth(one.get("complete")) is False
        self.measured = oldest(self.measured, moment(one.get("measured")))

    def part(self) -> Part:
        """Return the figures; ``unmeasured`` is how many parts are not in the sum."""
        return {
            "bytes": self.bytes.total,
            "files": self.files.total,
            "unmeasured": self.bytes.unknown,
            "incomplete": self.incomplete,
            "measured": self.measured,
        }
