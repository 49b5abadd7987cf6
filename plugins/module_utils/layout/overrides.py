# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The overrides of a storage layout as they are given: paths, and rules for the mounts under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import Refusal, did_you_mean
from .found import MountRule
from .rules import Layout

_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_FIELDS = ("path", "require_mount", "mount_point")
_EITHER = "must be a path, or a dictionary of path, require_mount and mount_point"


def parse(overrides: Mapping[str, Any]) -> tuple[dict[str, str | None], dict[str, MountRule]]:
    """Return the paths and the mount rules of *overrides*, by name."""
    paths: dict[str, str | None] = {}
    rules: dict[str, MountRule] = {}
    for name, value in overrides.items():
        label = f"overrides: {name}"
        given = value if isinstance(value, Mapping) else {"path": value}
        for field in given:
            if field not in _FIELDS:
                remedy = did_you_mean(str(field), _FIELDS) or f"use {', '.join(_FIELDS[:-1])} or {_FIELDS[-1]}"
                raise Refusal(f"{label}.{field}", "there is no such field", remedy)
        path, required, point = (given.get(field) for field in _FIELDS)
        if not isinstance(path or "", str):
            raise Refusal(label, _EITHER)
        if not path and (required or point):
            raise Refusal(label, "it has a rule for its mount and no path", "give it a path")
        paths[name] = path
        rules[name] = MountRule.of(label, _flag(required or False, f"{label}.require_mount"), point)
    return paths, rules


def _flag(value: Any, name: str) -> bool:
    """Return a boolean as Ansible hands it over in a dictionary: as such, or as the word that a template made."""
    word = str(value).lower()
    if isinstance(value, (bool, str)) and word in _TRUE + _FALSE:
        return word in _TRUE
    raise Refusal(name, f"cannot be {value!r}", "give true or false")


def for_all(layout: Layout, root: MountRule, overrides: Mapping[str, MountRule]) -> dict[str, MountRule]:
    """Return the rule of every path of *layout*: a default has that of its parent."""
    rules = {"root": root, **overrides}
    for name in layout.locations:
        if name not in layout.overridden:
            rules[name] = rules[layout.parent(name)]
    return rules
