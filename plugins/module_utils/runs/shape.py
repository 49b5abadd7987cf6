# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shape of a run: ``<user>/<experiment>/<run_id>`` with ``work`` and ``attempts/<n>/{out,logs}``. No I/O here."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import Refusal, quoted
from ..paths import check_length

WORK, ATTEMPTS = "work", "attempts"
OUT, LOGS = "out", "logs"
NEXT = "next"
"""What asks for an attempt after all that there are."""

MAX_BYTES = 240
"""The stamp of a run is in a file that has this name with an ending, and a longer one while it is written."""
MAX_ATTEMPT = 999_999_999
_OF_FILESYSTEM = "lost+found"
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


class RunName(NamedTuple):
    """A run by its three names, each of which is that of a directory."""

    user: str
    experiment: str
    run_id: str

    @classmethod
    def checked(cls, user: str, experiment: str, run_id: str) -> RunName:
        """Return the run of that name.

        :raises Refusal: naming the one of the three that cannot be a directory's
        """
        return cls(check_name(user, "user"), check_name(experiment, "experiment"), check_name(run_id, "run_id"))

    @classmethod
    def parsed(cls, name: str) -> RunName:
        """Return the run that is called ``user/experiment/run_id``."""
        parts = name.split("/")
        if len(parts) != 3:
            raise Refusal(f"run {quoted(name)}", "is not user/experiment/run_id")
        return cls.checked(*parts)

    @classmethod
    def is_one(cls, names: tuple[str, ...]) -> bool:
        """Return whether the way from the runs location to a directory below it is a run's."""
        return len(names) == len(cls._fields) and all(map(is_somebodys, names))

    def __str__(self) -> str:
        return "/".join(self)

    @property
    def in_user(self) -> str:
        """Its name among the runs of its user."""
        return f"{self.experiment}/{self.run_id}"


def is_somebodys(name: str) -> bool:
    """Return whether a directory of runs, or of a user's, is not Stowage's own or the filesystem's by its name.

    Stowage's own begin with a dot: the trash, and what is not whole yet.
    """
    return bool(name) and not name.startswith(".") and name != _OF_FILESYSTEM


def check_name(value: str, name: str) -> str:
    """Return *value* when it can be the name of a user, experiment, run or team.

    What :func:`is_somebodys` does not count is none, nor what :func:`..paths.check_path` refuses in a path.

    :param name: what the operator knows it as
    """
    if not value:
        raise Refusal(name, "must not be empty")
    if "/" in value:
        raise Refusal(name, f"{quoted(value)} may not contain a slash", "it is the name of one directory")
    if value.startswith("."):
        raise Refusal(name, f"{quoted(value)} may not begin with a dot", "choose another name")
    if not is_somebodys(value):
        raise Refusal(name, f"{quoted(value)} is the filesystem's own directory", "choose another name")
    if value != value.strip():
        raise Refusal(name, f"{quoted(value)} may not begin or end with whitespace")
    if any(unicodedata.category(char) == "Cc" for char in value):
        raise Refusal(name, f"{quoted(value)} may not contain control characters")
    check_length(value, name, MAX_BYTES)
    return value


def check_attempt(value: str | None) -> str | int | None:
    """Return the attempt that is asked for: a number, ``next``, or None for none."""
    if value is None or value == NEXT:
        return value
    if _NUMBER.fullmatch(value):
        return int(value)
    raise Refusal("attempt", f"{quoted(value)} must be next, or a number from 1 to {MAX_ATTEMPT}")


def next_attempt(names: Iterable[str]) -> int:
    """Return the number after the highest among *names*, whatever has that name: it is taken."""
    highest = max((int(name) for name in names if _NUMBER.fullmatch(name)), default=0)
    if highest == MAX_ATTEMPT:
        raise Refusal("attempt", f"there is an attempt {highest}, and no number after it", "rename that one")
    return highest + 1
