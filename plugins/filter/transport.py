# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say how one host reads a drive that is on another: over RDMA or TCP, between which addresses, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.module_utils.network_mounts.transport import AUTO, decide
from ansible_collections.stowage.host.plugins.plugin_utils.machines import machine_of


def transport(hostvars: Any, server: Any, client: Any, wanted: Any = AUTO) -> dict[str, str]:
    """Return the transport from *server* to *client*, the address of each, and why.

    :param wanted: the drive's transport
    """
    if not isinstance(hostvars, Mapping):
        raise AnsibleFilterError("transport: the input must be hostvars")
    try:
        there, here = (machine_of(hostvars, str(name)) for name in (server, client))
        way = decide(str(wanted), there, here, f"of {server}")
    except StowageError as error:
        raise AnsibleFilterError(f"transport: {error}") from error
    return way._asdict()


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"transport": transport}
