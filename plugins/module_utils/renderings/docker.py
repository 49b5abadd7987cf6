# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What containers are given, as Docker, Podman and Compose take it: at the same path as on the host."""

from __future__ import annotations

from typing import Any

from ..layout.rules import Layout
from ..runs import renderings
from .containers import Container


def arguments(container: Container) -> list[str]:
    """Return the arguments of ``docker run`` and ``podman run`` for the container of a run."""
    shares = [{"source": one.source, "target": one.target, "read_only": False} for one in container.shares]
    return renderings.docker([*shares, *container.inputs], container.environment)


def compose(layout: Layout, prefix: str) -> dict[str, Any]:
    """Return ``volumes`` and ``environment`` of a platform's own services, which have every configured path.

    The root is mounted as a whole, because the platform counts what else is in it. An override inside of it may be on
    another disk, and is mounted for itself.
    """
    paths = {layout.root, *(layout.locations[name] for name in layout.overridden)}
    volumes = [_bind(path) for path in sorted(paths)]
    if layout.volume_root is not None:
        volumes.append({**_bind(layout.volume_root), "read_only": True})
    return {
        "volumes": volumes,
        "environment": {name: _escaped(value) for name, value in layout.settings(prefix).items()},
    }


def _bind(path: str) -> dict[str, Any]:
    # A source that is missing would be made, and the platform would begin in an empty directory.
    escaped = _escaped(path)
    return {"type": "bind", "source": escaped, "target": escaped, "bind": {"create_host_path": False}}


def _escaped(text: str) -> str:
    """Return *text* as Compose reads it, which expands variables."""
    return text.replace("$", "$$")
