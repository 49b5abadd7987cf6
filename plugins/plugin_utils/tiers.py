# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory declares of tiers, and what hosts have said of theirs, for filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleError
from jinja2.exceptions import UndefinedError

from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.module_utils.tiers.declared import Backend, read_backends

VARIABLE = "host_kv_caches"

Facts = Mapping[str, Any]


class Declared:
    """The backends that the inventory declares for hosts; most have the same, which are read once."""

    def __init__(self, hostvars: Mapping[str, Any]) -> None:
        self._hostvars = hostvars
        self._known: dict[str, Sequence[Backend] | str] = {}

    def of(self, host: str) -> Sequence[Backend] | str:
        """Return the backends of a host, or why they cannot be told."""
        try:
            value = self._hostvars[host].get(VARIABLE)
            text = repr(value)
        except (AnsibleError, UndefinedError) as error:
            return " ".join(str(error).split())
        if text not in self._known:
            try:
                self._known[text] = read_backends([] if value is None else value, VARIABLE)
            except (AnsibleError, UndefinedError, StowageError) as error:
                self._known[text] = " ".join(str(error).split())
        return self._known[text]


UNREADABLE = "its records of tiers cannot be read"
_UNASKED = "it has no facts: run stowage.host.storage_facts"


def tiers_of(variables: Facts) -> list[Facts] | str:
    """Return the tiers in the facts of a host, fresh or from a cache, or why they are not known."""
    try:
        facts = (variables.get("ansible_facts") or {}).get("stowage_storage")
    except (AnsibleError, UndefinedError):
        return _UNASKED
    if not isinstance(facts, Mapping) or "tiers" not in facts:
        return _UNASKED
    return UNREADABLE if facts["tiers"] is None else list(facts["tiers"])
