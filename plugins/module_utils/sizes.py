# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sizes: Kubernetes quantities in, decimal units out, and the space of a filesystem."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any

from .errors import Refusal

_UNITS = {"": 1}
_UNITS.update({unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P", "E"), 1)})
_UNITS.update({unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)})
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]{0,2})", re.ASCII)
_LARGEST = 2**63 - 1


def parse_quantity(value: Any, name: str = "size") -> int:
    """Return *value* in bytes: a plain integer, or a Kubernetes quantity such as ``4Ti``, ``500G`` or ``1.5Gi``.

    :raises Refusal: when it is neither, negative, no whole number of bytes, or 2^63 and above
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise Refusal(name, "must be a whole number of bytes or a quantity such as 500G or 4Ti")
    if isinstance(value, int):
        number = Decimal(value)
    else:
        match = _QUANTITY.fullmatch(value)
        if match is None or match.group(2) not in _UNITS:
            raise Refusal(name, f"{value!r} is not a size", "write bytes or a quantity such as 500G or 4Ti")
        number = Decimal(match.group(1)) * _UNITS[match.group(2)]
    if number < 0 or number > _LARGEST or number != int(number):
        raise Refusal(name, f"{value!r} is not a whole number of bytes from 0 to 2^63-1")
    return int(number)


def decimal(size: int) -> str:
    """Return *size* bytes in decimal units as messages show them: ``107 GB``, ``40.0 GB``, ``512 B``."""
    value = float(size)
    units = iter(("B", "kB", "MB", "GB", "TB", "PB", "EB"))
    unit = next(units)
    while value >= 999.5 and unit != "EB":
        value /= 1000
        unit = next(units)
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"


@dataclass(frozen=True)
class Space:
    """Room on a filesystem, in bytes and in inodes; a filesystem without inodes of its own has ``files`` 0."""

    size: int
    free: int
    avail: int
    files: int
    files_free: int

    @classmethod
    def of(cls, place: int | str) -> Space:
        """Return the space of the filesystem that *place*, a descriptor or a path, is on."""
        answer = os.statvfs(place)
        unit = answer.f_frsize
        return cls(
            answer.f_blocks * unit, answer.f_bfree * unit, answer.f_bavail * unit, answer.f_files, answer.f_ffree
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Space:
        """Return the space in a mapping that has its fields, and may have others."""
        return cls(**{field.name: value[field.name] for field in fields(cls)})

    @property
    def usable(self) -> int:
        """Bytes that unprivileged users can ever have: what they use and what is available to them."""
        return self.size - self.free + self.avail

    @property
    def free_fraction(self) -> float:
        """Available bytes as a fraction of what is usable, as ``df`` counts it; 1 for a filesystem without blocks."""
        return self.avail / self.usable if self.usable > 0 else 1.0

    @property
    def files_free_fraction(self) -> float:
        """Free inodes as a fraction of all; 1 where the filesystem makes inodes as it needs them."""
        return self.files_free / self.files if self.files > 0 else 1.0
