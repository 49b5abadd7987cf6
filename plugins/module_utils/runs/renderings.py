# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The mounts of a worker, as those who start it write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Mount = Mapping[str, Any]
"""``source`` (the pin), ``target``, ``read_only``; and ``drive``, ``source_index`` or ``volume``, ``sub_path``,
``run_of``."""


def docker(mounts: Iterable[Mount], environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the arguments of ``docker run`` and ``podman run``, one by one.

    ``--volume`` would make a source that is missing, and give the worker an empty directory.
    """
    arguments = []
    for mount in mounts:
        fields = ["type=bind", f"source={mount['source']}", f"target={mount['target']}"]
        fields += ["readonly"] if mount["read_only"] else []
        arguments += ["--mount", ",".join(map(_csv, fields))]
    for name, value in (environment or {}).items():
        arguments += ["--env", f"{name}={value}"]
    return arguments


def _csv(field: str) -> str:
    """Return a field of a record of comma-separated values (RFC 4180), as which both programs read the argument."""
    if any(char in field for char in ',"\r\n'):
        return '"' + field.replace('"', '""') + '"'
    return field


def kubernetes(
    mounts: Iterable[Mount], environment: Mapping[str, str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return ``volumes`` of a pod, which must be on this host, with ``volumeMounts`` and ``env`` of its container.

    ``Directory``, unlike an empty type, has the kubelet refuse a source that is missing.
    """
    volumes: list[dict[str, Any]] = []
    volume_mounts: list[dict[str, Any]] = []
    for number, mount in enumerate(mounts):
        # A name of at most 63 characters that no other volume of these has.
        end = f"-{number}"
        what = f"drive-{mount['drive']}" if "drive" in mount else f"volume-{mount['volume']}"
        name = what[: 63 - len(end)].rstrip("-") + end
        volumes.append({"name": name, "hostPath": {"path": mount["source"], "type": "Directory"}})
        one = {"name": name, "mountPath": mount["target"], "readOnly": mount["read_only"]}
        volume_mounts.append(one)
    found = {"volumes": volumes, "volumeMounts": volume_mounts}
    if environment:
        found["env"] = variables(environment)
    return found


def variables(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the ``env`` of a container. Kubernetes expands ``$(NAME)`` in values, and ``$$`` is a dollar."""
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in environment.items()]
