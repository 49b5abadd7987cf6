# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What pods are given, as parts of their manifests and as values for Helm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import Refusal, quoted
from ..layout.rules import Layout
from ..runs import renderings
from .claims import ROOT, VOLUME_ROOT, Claims, setting
from .containers import Container

Parts = dict[str, Any]


def check_mount_path(path: str, name: str) -> str:
    """Return *path*, or refuse what no volume is mounted at."""
    if ":" in path:
        raise Refusal(name, f"Kubernetes mounts nothing at a path with a colon, as {quoted(path)}")
    return path


def job(container: Container, claims: Claims, nodes: int) -> Parts:
    """Return parts of the pod of a run and of its container, and what has to hold that is not known to.

    :param nodes: how many nodes the pods of the run are on
    :raises Refusal: when a directory is in no claim, or in one that the job may not write to
    """
    parts = {one.location: claims.part(one.location, one.source) for one in container.shares}
    written: dict[str, list[str]] = {}
    for location, part in parts.items():
        written.setdefault(part.claim, []).append(location)
    inputs = renderings.kubernetes(container.inputs)
    for one in inputs["volumeMounts"]:
        check_mount_path(one["mountPath"], "inputs")
    mounts = [
        {
            "name": _volume_name(parts[one.location].begins),
            "mountPath": check_mount_path(one.target, one.location),
            **({"subPath": parts[one.location].sub_path} if parts[one.location].sub_path else {}),
        }
        for one in container.shares
    ]
    volumes = _volumes(claims, dict.fromkeys(part.begins for part in parts.values()))
    demands = claims.demands(written, nodes)
    if container.inputs and nodes > 1:
        demands.append(
            f"the inputs are pins of one host, and the pods are on {nodes}: each needs those of its own host"
        )
    return {
        "pod": {"volumes": [*volumes, *inputs["volumes"]]},
        "container": {
            "volumeMounts": [*mounts, *inputs["volumeMounts"]],
            "env": renderings.variables(container.environment),
        },
        "demands": demands,
    }


def platform(seen: Layout, claims: Claims, prefix: str, nodes: int) -> Parts:
    """Return parts of a pod of the platform itself, which has every claim as a whole, and what has to hold of them.

    :param seen: the layout as it is in the pod
    :param nodes: how many nodes its services and the jobs are on
    :raises Refusal: when a path of the layout is in no claim, or in one that they cannot all have
    """
    demands = _demands(claims, nodes)
    named = seen.named()
    mounts = [
        {
            "name": _volume_name(name),
            "mountPath": check_mount_path(named[name], name),
            **({"readOnly": True} if name == VOLUME_ROOT else {}),
        }
        for name in claims.held
    ]
    return {
        "pod": {"volumes": _volumes(claims, claims.held)},
        "container": {
            "volumeMounts": mounts,
            "env": renderings.variables({**seen.settings(prefix), **claims.settings(prefix)}),
        },
        "demands": demands,
    }


def helm(seen: Layout, claims: Claims, nodes: int) -> Parts:
    """Return the values of the chart for what has a claim of its own; that of the default root is none of these.

    What has to hold of the claims is no value of the chart, and told by :func:`platform`.
    """
    _demands(claims, nodes)
    named = seen.named()
    return {
        "storageLocations": [
            {"name": _volume_name(name), "existingClaim": claim, "mountPath": check_mount_path(named[name], name)}
            for name, claim in claims.held.items()
            if name != ROOT
        ]
    }


def _demands(claims: Claims, nodes: int) -> list[str]:
    """Return what has to hold of the claims that services and jobs have, once every path of the layout is in one."""
    for name, path in claims.layout.named().items():
        claims.part(name, path)
    written = {claim: [name] for name, claim in claims.held.items() if name != VOLUME_ROOT}
    return claims.demands(written, nodes, {claims.held[name]: [name] for name in claims.held if name == VOLUME_ROOT})


def _volumes(claims: Claims, names: Iterable[str]) -> list[Parts]:
    return [{"name": _volume_name(one), "persistentVolumeClaim": {"claimName": claims.held[one]}} for one in names]


def _volume_name(name: str) -> str:
    """Return the name of a claim's volume, which may hold no underscore."""
    return setting(name).replace("_", "-")
