# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What frameworks are told of the caches that a host keeps for them."""

from __future__ import annotations

from ..errors import Refusal
from ..layout.rules import FRAMEWORK_CACHES, Layout
from ..paths import relation

HOME = "HF_HOME"


def caches(layout: Layout) -> dict[str, str]:
    """Return the variables that name the caches: each is called as its location."""
    return {name.upper(): layout.locations[name] for name in FRAMEWORK_CACHES}


def environment(layout: Layout, prefix: str) -> dict[str, str]:
    """Return the variables of a training container, and nothing else that frameworks read.

    What they keep for one user alone, a token above all, goes into ``HF_HOME``, which others do not see.

    :raises Refusal: when that would be at, in or around what others have too
    """
    home = private_home(prefix)
    for name, path in layout.named().items():
        lies = relation(path, home)
        if lies:
            raise Refusal(name, f"{path} {lies} {home}, which is {HOME} and each container's own", "put it elsewhere")
    return {HOME: home, **caches(layout)}


def private_home(prefix: str) -> str:
    """Return a directory of the container's own, called as the settings are: ``TUNEPLANE_`` gives ``tuneplane``.

    It is that in a container only: everybody may make it on a host, before whoever means to have it alone.
    """
    return f"/tmp/{prefix.rstrip('_').lower()}-hf"


def home_in_run(work: str) -> str:
    """Return the directory of a job that has the paths of its host, in the run's own *work*."""
    return f"{work}/.hf"
