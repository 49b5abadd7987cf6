# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every module that changes a host supports; a module says what it predicts and shows beyond that."""

from __future__ import annotations


class ModuleDocFragment:
    """The fragment, as Ansible looks for it."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Predicts the changes, the diff and the actions of a run.
    support: full
  diff_mode:
    description: Shows what differs.
    support: full
  platform:
    description: Linux. Must be run as root.
    support: full
    platforms: linux
"""
