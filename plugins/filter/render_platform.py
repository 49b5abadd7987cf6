# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render the storage of a platform's own services, which have every configured path: settings, Compose, Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal, StowageError, check_choice
from ansible_collections.stowage.host.plugins.module_utils.renderings import docker, kubernetes
from ansible_collections.stowage.host.plugins.module_utils.renderings.claims import Claims, check_nodes
from ansible_collections.stowage.host.plugins.module_utils.renderings.rebasing import rebase
from ansible_collections.stowage.host.plugins.plugin_utils import layouts

TARGETS = ("settings", "compose", "kubernetes", "helm")


def render_platform(
    value: Any,
    target: Any,
    root: Any = "",
    claim: Any = "",
    claims: Any = None,
    access_modes: Any = None,
    nodes: Any = 1,
) -> dict[str, Any]:
    """Return what *target* needs to know.

    :param value: a layout, as :func:`.layouts.read` takes it
    :param root: where the root of the layout is for the platform, if elsewhere than on the host
    :param claim: the persistent volume claim of the default root
    :param claims: those of single locations, by their settings
    :param access_modes: of the claims, by their names
    :param nodes: how many nodes the services and the jobs are on
    """
    try:
        check_choice(target, "target", TARGETS)
        layout, prefix, _protected = layouts.read(value)
        if target not in ("kubernetes", "helm"):
            for name, told in (("access_modes", bool(access_modes)), ("nodes", nodes != 1)):
                if told:
                    raise Refusal(name, f"says nothing to {target}", "leave it out")
        if target == "compose":
            for name, given in (("root", root), ("claim", claim), ("claims", claims)):
                if given:
                    raise Refusal(name, "containers of this host have the paths of the host", "leave it out")
            return docker.compose(layout, prefix)
        seen = rebase(layout, root)
        held = Claims.read(layout, claim, claims, access_modes)
        if target == "settings":
            return {**seen.settings(prefix), **held.settings(prefix)}
        many = check_nodes(nodes)
        return kubernetes.helm(seen, held, many) if target == "helm" else kubernetes.platform(seen, held, prefix, many)
    except StowageError as error:
        raise AnsibleFilterError(f"render_platform: {error}") from error


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"render_platform": render_platform}
