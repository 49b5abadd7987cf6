# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a machine that holds drives has said of an export, for filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KEY = ("workspace", "drive", "source", "client")


def told_of(
    result: Mapping[str, Any] | None, node: str, export: Mapping[str, Any], *, down: str, otherwise: str
) -> Mapping[str, Any] | str:
    """Return what module nfs_exports has said on machine *node* of an export, or why it has said nothing of it.

    :param result: what is registered of it there
    :param down: what there is to say when it could not be reached
    :param otherwise: and when it gives no reason of its own
    """
    if result is None:
        return f"machine {node} was not asked: it is outside of --limit, or failed before"
    if result.get("unreachable"):
        return down
    for one in result.get("exports", ()):
        if all(one[field] == export[field] for field in _KEY):
            found: Mapping[str, Any] = one
            return found
    return " ".join(str(result.get("msg") or otherwise).split())
