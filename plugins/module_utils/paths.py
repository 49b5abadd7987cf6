# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one checker for every path that an operator gives, and what it means for two paths to overlap."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from typing import Any

from .errors import Refusal, quoted

MAX_BYTES = 4096


def check_path(value: Any, name: str = "path") -> str:
    """Return *value* as a normalized absolute path, or refuse it.

    The rules are those of GPUStack's local disk tier (absolute, not the root directory, no ``..``, no whitespace at
    either end) and Stowage's own: at most 4096 bytes, no control characters, no ``.`` component. Doubled and trailing
    slashes are dropped; symlinks are left alone.

    :param name: what the operator knows the path as, for the message
    """
    text = _checked_text(value, name)
    if not text.startswith("/"):
        raise Refusal(name, f"{quoted(text)} must be absolute", "begin it with /")
    components = _checked_components(text, name)
    if not components:
        raise Refusal(name, "must not be the root directory", "name a directory below it")
    return "/" + "/".join(components)


def check_relative(value: Any, name: str = "path") -> str:
    """Return *value* as a normalized relative path, which may be empty, or refuse it."""
    if value == "":
        return ""
    text = _checked_text(value, name)
    if text.startswith("/"):
        raise Refusal(name, f"{quoted(text)} must be relative", "leave out the / at its beginning")
    return "/".join(_checked_components(text, name))


def _checked_text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise Refusal(name, "must be a path")
    if value != value.strip():
        raise Refusal(name, f"{quoted(value)} may not begin or end with whitespace")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise Refusal(name, f"{quoted(value)} may not contain control characters")
    check_length(value, name, MAX_BYTES)
    return value


def check_length(value: str, name: str, most: int) -> None:
    """Refuse a name, or a path, that takes more than *most* bytes, or that no file can have.

    :param name: what the operator knows it as, for the message
    """
    try:
        length = len(os.fsencode(value))
    except UnicodeEncodeError:
        raise Refusal(name, f"{value!a} is not a file name on this system") from None
    if length > most:
        raise Refusal(name, f"is {length} bytes long; at most {most} are allowed")


def _checked_components(text: str, name: str) -> list[str]:
    components = [part for part in text.split("/") if part]
    for part in components:
        if part in (".", ".."):
            raise Refusal(name, f"{quoted(text)} may not contain a {part!r} component")
        if len(os.fsencode(part)) > 255:
            raise Refusal(name, f"the component {quoted(part[:40])}… is longer than 255 bytes")
    return components


def resolve(path: str) -> str:
    """Return *path* with every symlink in it resolved, as far as it exists."""
    return os.path.realpath(path)


def is_within(path: str, directory: str) -> bool:
    """Return whether *path* is *directory* or below it; both normalized and resolved."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def overlap(one: str, other: str) -> bool:
    """Return whether two normalized, resolved paths are equal, or one is inside the other."""
    return is_within(one, other) or is_within(other, one)


def relation(path: str, other: str) -> str:
    """Return how *path* lies to *other*, as a verb; empty when they lie apart; both normalized and resolved."""
    if not overlap(path, other):
        return ""
    return "is" if path == other else "is inside" if is_within(path, other) else "contains"


def overlaps(named: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the pairs of names whose paths overlap once symlinks are resolved: an alias is an overlap."""
    resolved = {name: resolve(path) for name, path in named.items()}
    return [(a, b) for a, b in itertools.combinations(resolved, 2) if overlap(resolved[a], resolved[b])]
