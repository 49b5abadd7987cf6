# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Render a tier for the store that writes to it: variables, an environment file, parts of a Pod, a systemd drop-in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.errors import (
    Refusal,
    StowageError,
    check_choice,
    did_you_mean,
    quoted,
)
from ansible_collections.stowage.host.plugins.module_utils.layout import environment_file
from ansible_collections.stowage.host.plugins.module_utils.own_files import HEADER
from ansible_collections.stowage.host.plugins.module_utils.paths import check_path
from ansible_collections.stowage.host.plugins.module_utils.renderings import kubernetes
from ansible_collections.stowage.host.plugins.module_utils.runs import renderings
from ansible_collections.stowage.host.plugins.module_utils.services.systemd_units import quote_word
from ansible_collections.stowage.host.plugins.module_utils.tiers.declared import (
    Backend,
    MemberGroup,
    Tier,
    check_floors,
    read_backends,
)
from ansible_collections.stowage.host.plugins.module_utils.tiers.environment import leader_arguments, member_environment

TARGETS = ("mooncake", "environment", "kubernetes", "systemd")

_VOLUME = "kv-cache-tier"
_PATTERN = "\\*?["
"""What an EnvironmentFile= cannot hold, for it is a pattern, and no quotes keep it from being one."""
_SHUTDOWN_SECONDS = 60
"""What the store has to close itself, after the time that its backend grants it."""
_HOOK_MARGIN_SECONDS = 10
"""How much longer than the store the hook waits: well below what the store has to close, which comes after it."""


def render(
    backends: Any,
    target: Any,
    backend: Any,
    position: Any = None,
    rest_port: Any = 8080,
    environment_path: Any = "",
) -> Any:
    """Return what *target* needs to know of the tier of a backend's group.

    :param position: which group it is; the only one with a tier when it is left out
    :param rest_port: where the store's own service answers in a Pod
    :param environment_path: the environment file that a systemd service reads
    """
    try:
        check_choice(target, "target", TARGETS)
        found = _backend(read_backends(backends, "the input"), backend)
        check_floors(found)
        group, tier = _group(found, position)
        if target == "kubernetes":
            return _kubernetes(found, group, tier, rest_port)
        if target == "systemd":
            return _systemd(found, tier, environment_path)
        environment = {**member_environment(tier), **group.extra_env}
        if target == "environment":
            return environment_file.render(environment).decode("utf-8")
        return {"environment": environment, "leader_arguments": leader_arguments(found)}
    except StowageError as error:
        raise AnsibleFilterError(f"render: {error}") from error


def _backend(backends: list[Backend], name: Any) -> Backend:
    for backend in backends:
        if backend.name == name:
            return backend
    raise Refusal("backend", f"{name!r} is not declared", did_you_mean(str(name), [each.name for each in backends]))


def _group(backend: Backend, position: Any) -> tuple[MemberGroup, Tier]:
    tiers = {index: (group, tier) for index, group, tier in backend.tiers() if group.is_offloading}
    if position is None and len(tiers) == 1:
        return next(iter(tiers.values()))
    if isinstance(position, int) and not isinstance(position, bool) and position in tiers:
        return tiers[position]
    listed = ", ".join(map(str, tiers)) or "none"
    rule = "which group is not said" if position is None else f"group {position!r} has no tier of the Mooncake store"
    raise Refusal(backend.name, f"{rule}; the positions of those that have one are: {listed}")


def _kubernetes(backend: Backend, group: MemberGroup, tier: Tier, rest_port: Any) -> dict[str, Any]:
    if isinstance(rest_port, bool) or not isinstance(rest_port, int) or not 0 < rest_port < 65536:
        raise Refusal("rest_port", f"{rest_port!r} is not the number of a port")
    path = kubernetes.check_mount_path(tier.path, backend.name)
    environment = {**member_environment(tier), **group.extra_env}
    return {
        "pod": {
            "terminationGracePeriodSeconds": backend.grace_period + _SHUTDOWN_SECONDS,
            "volumes": [{"name": _VOLUME, "hostPath": {"path": path, "type": "Directory"}}],
        },
        "container": {
            "env": renderings.variables(environment),
            "volumeMounts": [{"name": _VOLUME, "mountPath": path}],
            "lifecycle": {"preStop": {"exec": {"command": _sign_off(backend.grace_period, rest_port)}}},
        },
    }


def _sign_off(grace_period: int, port: int) -> list[str]:
    """Return the command by which a member signs off its tier, so that readers are not sent to it any more.

    It is a request with a body, which a hook of Kubernetes's own cannot send; Python is there where the store is.
    """
    body = json.dumps({"grace_period_seconds": grace_period})
    lines = (
        "import http.client, sys",
        f"store = http.client.HTTPConnection('127.0.0.1', {port}, timeout={grace_period + _HOOK_MARGIN_SECONDS})",
        f"store.request('POST', '/api/unmount_local_disk', '{body}', {{'Content-Type': 'application/json'}})",
        "answer = store.getresponse()",
        "sys.exit(0 if answer.status == 200 else answer.read().decode(errors='replace'))",
    )
    return ["python3", "-c", "\n".join(lines)]


def _systemd(backend: Backend, tier: Tier, environment_path: Any) -> str:
    path = check_path(environment_path, "environment_path")
    if any(character in path for character in _PATTERN):
        rule = f"{quoted(path)} may not contain {' '.join(_PATTERN)}, which systemd does not take as they are"
        raise Refusal("environment_path", rule, "name another file")
    lines = (
        HEADER,
        "[Unit]",
        f"RequiresMountsFor={quote_word(tier.path)}",
        "",
        "[Service]",
        f"EnvironmentFile={path.replace('%', '%%')}",
        f"TimeoutStopSec={backend.grace_period + _SHUTDOWN_SECONDS}",
    )
    return "\n".join(lines) + "\n"


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"render": render}
