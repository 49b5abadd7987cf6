# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The storage layout of a host, as filters are given it: reported by the host, or declared in the inventory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible.errors import AnsibleError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal
from ansible_collections.stowage.host.plugins.module_utils.layout.rules import (
    Layout,
    check_apart,
    check_prefix,
    check_protected,
    resolve,
)

_DEFAULT_PREFIX = "STOWAGE_"


class HostLayout(NamedTuple):
    """What a host has, or is to have."""

    layout: Layout
    prefix: str
    """What the names of its settings begin with."""
    protected: tuple[str, ...] = ()
    """What no run is given, beside what the layout itself protects."""


def read(value: Any) -> HostLayout:
    """Return the layout that *value* tells of.

    :param value: ``layout`` of the facts, what ``storage_layout`` returned, or the variables of a host
    :raises Refusal: when it tells of none, or of one that breaks a rule
    """
    try:
        if isinstance(value, Mapping) and "locations" in value:
            found = _reported(value)
        elif isinstance(value, Mapping) and "host_storage_root" in value:
            prefix = str(value.get("host_environment_prefix", _DEFAULT_PREFIX))
            found = _checked(declared(value), prefix, value.get("host_protected_paths"))
        else:
            rule = "the input is none"
            remedy = "give the layout in the facts of a host, what storage_layout returned, or the variables of a host"
            raise Refusal("layout", rule, f"{remedy} with host_storage_root")
    except (AnsibleError, UndefinedError) as error:
        raise Refusal("layout", " ".join(str(error).split()), "correct the variables") from error
    check_apart(found.layout)
    return found


def declared(variables: Mapping[str, Any]) -> Layout:
    """Return the layout that the variables of a host declare for the role ``host``."""
    overrides = variables.get("host_storage_overrides") or {}
    paths = {str(name): value.get("path") if isinstance(value, Mapping) else value for name, value in overrides.items()}
    return resolve(str(variables["host_storage_root"]), paths, variables.get("host_volume_root"))


def _reported(value: Mapping[str, Any]) -> HostLayout:
    try:
        overrides = {name: one["path"] for name, one in value["locations"].items() if one["override"]}
        layout = resolve(value["root"], overrides, value["volume_root"])
        if {name: one["path"] for name, one in value["locations"].items()} != layout.locations:
            raise Refusal("layout", "its locations are not those that follow from its root and overrides")
        return _checked(layout, str(value["environment_prefix"]), value["protected_paths"])
    except (AttributeError, KeyError, TypeError) as error:
        raise Refusal(
            "layout", f"the input is none ({error!r})", "roll the host out, and gather its facts anew"
        ) from error


def _checked(layout: Layout, prefix: str, protected: Any) -> HostLayout:
    return HostLayout(layout, check_prefix(prefix), tuple(check_protected(list(protected or []), layout)))
