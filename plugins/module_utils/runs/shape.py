# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shape of a run: ``<user>/<experiment>/<run_id>`` with ``work`` and ``attempts/<n>/{out,logs}``. No I/O here."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

from ..errors import Refusal, quoted

WORK, ATTEMPTS = "work", "attempts"
OUT, LOGS = "out", "logs"
NEXT = "next"
"""What asks for an attempt after all that there are."""

MAX_BYTES = 255
MAX_USER_BYTES = 240
"""The stamps of a user's runs are in a file that has this name with an ending."""
MAX_ATTEMPT = 999_999_999
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
        check_name(user, "user", MAX_USER_BYTES)
        return cls(user, check_name(experiment, "experiment"), check_name(run_id, "run_id"))

    @classmethod
    def parsed(cls, name: str) -> RunName:
        """Return the run that is called ``user/experiment/run_id``."""
        parts = name.split("/")
        if len(parts) != 3:
            raise Refusal(f"run {quoted(name)}", "is not user/experiment/run_id")
        return cls.checked(*parts)

    @classmethod
    def is_one(cls, names: tuple[str, ...]) -> bool:
        """Return whether the way from the runs location to a directory below it is a run's.

        What begins with a dot is none, on any level: Stowage's own trash, and what is not whole yet.
        """
        return len(names) == len(cls._fields) and all(name and not name.startswith(".") for name in names)

    def __str__(self) -> str:
        return "/".join(self)

    @property
    def in_user(self) -> str:
        """Its name among the runs of its user."""
        return f"{self.experiment}/{self.run_id}"


def check_name(value: str, name: str, most: int = MAX_BYTES) -> str:
    """Return *value* when it can be the name of a user, experiment, run or team.

    :param name: what the operator knows it as
    """
    if not value:
        raise Refusal(name, "must not be empty")
    if "/" in value:
        raise Refusal(name, f"{quoted(value)} may not contain a slash", "it is the name of one directory")
    if value.startswith("."):
        raise Refusal(name, f"{quoted(value)} may not begin with a dot", "choose another name")
    if any(unicodedata.category(char) == "Cc" for char in value):
        raise Refusal(name, f"{quoted(value)} may not contain control characters")
    try:
        length = len(os.fsencode(value))
    except UnicodeEncodeError:
        raise Refusal(name, f"{value!a} is not a file name on this system") from None
    if length > most:
        raise Refusal(name, f"is {length} bytes long; at most {most} are allowed")
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
