# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the page of a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.plugin_utils.report import fleet, page


def report_page(report: Any) -> str:
    """Return the page of *report*, the JSON text of one or what was parsed from it."""
    try:
        return page.page(fleet.read(report))
    except StowageError as error:
        raise AnsibleFilterError(f"report_page: {error}") from error


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"report_page": report_page}
