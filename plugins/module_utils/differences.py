# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a module found to differ, recorded once: both ``changed`` and the diff come from it."""

from __future__ import annotations

from typing import Any, Callable

Mark = tuple[int, int]


class Differences:
    """The differences between what is wanted and what is, and what was done about them."""

    def __init__(self, check_mode: bool = False) -> None:
        self.check_mode = check_mode
        self._noted: dict[str, tuple[Any, Any]] = {}
        self.actions: list[str] = []
        """What was done or, in check mode, would be done: one line each, as ``write /etc/hosts``."""

    def note(self, name: str, wanted: Any, actual: Any) -> bool:
        """Record *name* when *wanted* and *actual* differ, and return whether they do."""
        if wanted == actual:
            return False
        self._noted[name] = (wanted, actual)
        return True

    def do(self, action: str, work: Callable[[], object]) -> None:
        """Do one thing and record it, so that a failure later on can say what was done before; predict it only."""
        if not self.check_mode:
            work()
        self.act(action)

    def act(self, action: str) -> None:
        """Record one thing done elsewhere, or that would be done."""
        self.actions.append(action)

    def mark(self) -> Mark:
        """Return how far this has come, for :meth:`go_back`."""
        return len(self._noted), len(self.actions)

    def go_back(self, mark: Mark) -> None:
        """Forget what came since *mark*: all of it was undone again, and the host is as it was."""
        noted, actions = mark
        self._noted = dict(list(self._noted.items())[:noted])
        del self.actions[actions:]

    @property
    def changed(self) -> bool:
        return bool(self._noted)

    def diff(self) -> dict[str, dict[str, Any]]:
        """Return the differences as Ansible's ``before`` and ``after``."""
        return {
            "before": {name: actual for name, (_wanted, actual) in self._noted.items()},
            "after": {name: wanted for name, (wanted, _actual) in self._noted.items()},
        }
