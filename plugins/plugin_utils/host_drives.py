# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lists of drives that the inventory declares for hosts, for filters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.module_utils.drives.reasons import Reason
from ansible_collections.stowage.host.plugins.module_utils.placement.asked import Declared

_TEMPLATE = ("{{", "{%", "{#")


class Lists:
    """The lists of drives that the inventory declares for hosts; equal ones are one object, checked once."""

    def __init__(self, hostvars: Mapping[str, Any]) -> None:
        self._hostvars = hostvars
        # What is no template is what it says: templating 100 drives of 1,000 hosts takes longer than placing a run.
        self._as_written: Callable[[str], Mapping[str, Any]] = getattr(hostvars, "raw_get", hostvars.__getitem__)
        self._known: dict[str, Declared] = {}

    def of(self, host: str) -> Declared:
        """Return the lists of a host by workspace, or why there are none."""
        try:
            value = self._as_written(host).get("host_drives")
            if not _as_is(value):
                value = _carried_out(value, self._hostvars[host].get("host_drives"))
            text = repr(value)
        except (AnsibleError, UndefinedError) as error:
            return Reason("host_drives", " ".join(str(error).split()))
        if text not in self._known:
            wrong = value is not None and not isinstance(value, Mapping)
            self._known[text] = Reason("host_drives", "must be a dictionary of workspaces") if wrong else value or {}
        return self._known[text]


def _as_is(written: Any) -> bool:
    """Return whether there is no template in *written*."""
    try:
        text = json.dumps(written)
    except (TypeError, ValueError):
        return False
    return not any(mark in text for mark in _TEMPLATE)


def _carried_out(written: Any, value: Any) -> Any:
    """Return *value*, which is *written* with its templates carried out; only these are looked at in it."""
    if isinstance(written, Mapping) and isinstance(value, Mapping) and len(written) == len(value):
        return {key: one if _as_is(one) else _carried_out(one, value[key]) for key, one in written.items()}
    if isinstance(written, list) and isinstance(value, list) and len(written) == len(value):
        return [one if _as_is(one) else _carried_out(one, value[index]) for index, one in enumerate(written)]
    return _plain(value)


def _plain(value: Any) -> Any:
    """Return *value* with every template in it carried out."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
