# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what frameworks in a training container are told of the caches of a host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.errors import StowageError
from ansible_collections.stowage.host.plugins.module_utils.renderings import framework_caches
from ansible_collections.stowage.host.plugins.module_utils.renderings.rebasing import rebase
from ansible_collections.stowage.host.plugins.plugin_utils import layouts


def framework_environment(value: Any, root: Any = "") -> dict[str, str]:
    """Return the variables of a container.

    :param value: a layout, as :func:`.layouts.read` takes it
    :param root: where the container has its root, if elsewhere than the host
    """
    try:
        layout, prefix, _protected = layouts.read(value)
        return framework_caches.environment(rebase(layout, root), prefix)
    except StowageError as error:
        raise AnsibleFilterError(f"framework_environment: {error}") from error


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"framework_environment": framework_environment}
