# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Environment files that systemd's ``EnvironmentFile=`` and a POSIX shell read alike, and those of containers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ..errors import Refusal
from ..own_files import HEADER

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")
_SPECIAL = re.compile(r'(["\\`$])')
_ESCAPED = re.compile(r'\\(["\\`$])')


def quote(value: str) -> str:
    """Return *value* as both readers understand it; a plain one stays bare, for readers that know no quotes."""
    if value and _PLAIN.fullmatch(value):
        return value
    return '"' + _SPECIAL.sub(r"\\\1", value) + '"'


def as_it_is(value: str) -> str:
    """Return *value* for readers that take all after the equals sign: ``docker run --env-file`` knows no quotes."""
    return value


def render(values: Mapping[str, str], written: Callable[[str], str] = quote) -> bytes:
    """Return the file that sets *values*, in their order, each as its readers want it *written*."""
    lines = [HEADER]
    for name, value in values.items():
        if not _NAME.fullmatch(name):
            raise Refusal(name, "is not the name of an environment variable")
        if any(ord(char) < 32 or ord(char) == 127 for char in value):
            raise Refusal(name, "its value may not contain control characters")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise Refusal(name, "its value is not UTF-8, which systemd does not read") from None
        lines.append(f"{name}={written(value)}")
    return ("\n".join(lines) + "\n").encode("utf-8")


def parse(data: bytes) -> dict[str, str]:
    """Return what a file of :func:`render` sets. It does not read what others write."""
    values = {}
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        name, equals, value = line.partition("=")
        if not equals or line.startswith("#"):
            continue
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = _ESCAPED.sub(r"\1", value[1:-1])
        values[name] = value
    return values
