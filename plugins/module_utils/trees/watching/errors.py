# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why something cannot be watched."""

from __future__ import annotations

from ...errors import StowageError


class WatchError(StowageError):
    """A filesystem cannot be watched, or not any longer: what is on it has to be scanned each time."""
