# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find hosts whose storage layouts disagree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.layout import disagreements


def layout_disagreements(hosts: Any) -> list[str]:
    """Return a sentence for every setting on which hosts disagree."""
    if not isinstance(hosts, Mapping) or not all(
        isinstance(settings, Mapping) and all(isinstance(path, str) for path in settings.values())
        for settings in hosts.values()
    ):
        raise AnsibleFilterError(
            "layout_disagreements: the input must be a dictionary of hosts, each a dictionary of settings and paths; "
            "collect the value settings that stowage.host.storage_layout returned on every host"
        )
    return disagreements(hosts)


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"layout_disagreements": layout_disagreements}
