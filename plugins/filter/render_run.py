# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render what the container of a run is given, for what starts it: Docker, Kubernetes or Slurm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal, StowageError, check_choice
from ansible_collections.stowage.host.plugins.module_utils.renderings import docker, kubernetes
from ansible_collections.stowage.host.plugins.module_utils.renderings.claims import Claims, check_nodes
from ansible_collections.stowage.host.plugins.module_utils.renderings.containers import container
from ansible_collections.stowage.host.plugins.plugin_utils import layouts

TARGETS = ("docker", "kubernetes", "slurm")


def render_run(
    value: Any,
    target: Any,
    run: Any,
    inputs: Any = (),
    environment: Any = None,
    root: Any = "",
    claim: Any = "",
    claims: Any = None,
    access_modes: Any = None,
    nodes: Any = 1,
) -> dict[str, Any]:
    """Return what *target* needs to know.

    :param value: a layout, as :func:`.layouts.read` takes it
    :param run: what ``run_directory`` returned
    :param inputs: the mounts of its drives and volumes
    :param environment: variables of the job beside those of the caches
    :param root: where the root of the layout is for the job, if elsewhere than on the host
    :param claim: the persistent volume claim of the default root
    :param claims: those of single locations, by their settings
    :param access_modes: of the claims, by their names
    :param nodes: how many nodes the job is on
    """
    try:
        check_choice(target, "target", TARGETS)
        layout, prefix, protected = layouts.read(value)
        of_kubernetes = {"claim": claim, "claims": claims, "access_modes": access_modes, "nodes": nodes != 1}
        _check_of_target(target, root, inputs, of_kubernetes)
        given = container(layout, prefix, run, inputs, environment, protected, root, own_tmp=target != "slurm")
        if target == "docker":
            found: dict[str, Any] = {"arguments": docker.arguments(given)}
        elif target == "kubernetes":
            found = kubernetes.job(given, Claims.read(layout, claim, claims, access_modes), check_nodes(nodes))
        else:
            found = {"environment": dict(given.environment)}
        return {**found, "run": dict(given.run)}
    except StowageError as error:
        raise AnsibleFilterError(f"render_run: {error}") from error


def _check_of_target(target: str, root: Any, inputs: Any, of_kubernetes: dict[str, Any]) -> None:
    """Refuse what would do nothing for *target*."""
    if target == "docker" and root:
        raise Refusal("root", "a container of this host has the paths of the host", "leave it out")
    for name, value in of_kubernetes.items():
        if value and target != "kubernetes":
            raise Refusal(name, f"says nothing to {target}", "leave it out")
    if target == "slurm" and inputs:
        remedy = "let the prolog take its drives with stowage lease take"
        raise Refusal("inputs", "a job of Slurm has no mounts of its own", remedy)


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"render_run": render_run}
