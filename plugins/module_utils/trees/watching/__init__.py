# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watching a filesystem, so that measuring a tree again costs what has changed in it."""

from __future__ import annotations

from .engine import Watch
from .errors import WatchError

__all__ = ["Watch", "WatchError"]
