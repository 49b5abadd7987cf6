# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moving a location of the layout to another directory, stage by stage.

Each stage is recorded before and after, can be called again, and goes by what is mounted rather than by the record.
Until the switch the old directory is what is used, and afterwards the new one, which was compared with it by content;
the switch itself is one mount. The old content goes last, on a call of its own.
"""

from __future__ import annotations

from .afterwards import Afterwards
from .until_switch import UntilTheSwitch


class Moving(UntilTheSwitch, Afterwards):
    """The move of one location on one host. Its stages are to be called under its lock."""
