# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A layout on nodes that see its root at another path."""

from __future__ import annotations

from ..layout.rules import Layout, check_apart
from ..paths import check_path, is_within


def rebase(layout: Layout, root: str) -> Layout:
    """Return *layout* with its root at *root*: what lies below it moves along, what lies elsewhere keeps its path.

    :param root: empty when it is where it was
    :raises Refusal: when the locations would not lie apart there
    """
    if not root:
        return layout
    new = check_path(root, "root")
    locations = {name: moved(path, layout.root, new) for name, path in layout.locations.items()}
    rebased = Layout(new, locations, layout.overridden, layout.volume_root)
    check_apart(rebased)
    return rebased


def moved(path: str, root: str, new: str) -> str:
    """Return where *path* is when what is below *root* is below *new*."""
    return new + path[len(root) :] if is_within(path, root) else path
