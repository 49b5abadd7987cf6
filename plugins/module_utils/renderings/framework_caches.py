# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What frameworks are told of the caches that a host keeps for them."""

from __future__ import annotations

from ..layout.rules import FRAMEWORK_CACHES, Layout

HOME = "HF_HOME"


def environment(layout: Layout, prefix: str) -> dict[str, str]:
    """Return the variables of a training container, and nothing else that frameworks read.

    What they keep for one user alone, a token above all, goes into ``HF_HOME``, which others do not see. A cache is
    named by the variable that is called as its location.
    """
    return {HOME: private_home(prefix), **{name.upper(): layout.locations[name] for name in FRAMEWORK_CACHES}}


def private_home(prefix: str) -> str:
    """Return a directory of the container's own, called as the settings are: ``TUNEPLANE_`` gives ``tuneplane``."""
    return f"/tmp/{prefix.rstrip('_').lower()}-hf"
