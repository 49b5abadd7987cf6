# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors that reach an operator, each of them one line: the object, the rule, the remedy."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class StowageError(Exception):
    """Something could not be done; ``str()`` is one line fit for an operator."""


class Refusal(StowageError):
    """Input or a state of the host that a rule forbids, found before anything was changed.

    :param name: the object that was refused, as the operator wrote it
    :param rule: what is required or what is wrong
    :param remedy: what to do about it; empty where the rule says it
    """

    def __init__(self, name: str, rule: str, remedy: str = "") -> None:
        self.name = name
        self.rule = rule
        self.remedy = remedy
        text = f"{name}: {rule}" if name else rule
        super().__init__(f"{text}; {remedy}" if remedy else text)


class PartlyFailed(StowageError):
    """Some of many things could not be done.

    :param results: what came of each, for whoever goes on with the others
    """

    def __init__(self, text: str, results: Mapping[str, Any]) -> None:
        self.results = results
        super().__init__(text)


def one_line(error: StowageError | OSError, otherwise: str = "") -> str:
    """Return *error* in one line, the kernel's with the file that it is about: of one that was to be replaced its own,
    not the new one's.

    :param otherwise: what an error is about that names no file
    """
    if isinstance(error, StowageError):
        return str(error)
    named = (name for name in (error.filename2, error.filename) if isinstance(name, (str, bytes)) and name)
    about = printable(next(named, otherwise))
    text = error.strerror or str(error)
    return f"{about}: {text}" if about else text


def printable(name: str | bytes) -> str:
    """Return *name* with every control or undecodable character escaped, so that a message stays one line."""
    return "".join(char if char.isprintable() else _escaped(char) for char in os.fsdecode(name))


def quoted(name: str | bytes) -> str:
    """Return *name* printable and in quotes, for a message in which its ends matter."""
    return f"'{printable(name)}'"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question for the one of *known* that was probably meant by *name*, or nothing."""
    by_lower = {each.lower(): each for each in known}
    matches = difflib.get_close_matches(name[:80].lower(), list(by_lower), n=1)
    return f"did you mean {by_lower[matches[0]]}?" if matches else ""


def check_choice(value: Any, name: str, choices: Sequence[str]) -> str:
    """Return *value* when it is one of *choices*, or refuse it."""
    for choice in choices:
        if value == choice:
            return choice
    raise Refusal(name, f"{value!r} is not one of {', '.join(choices)}", did_you_mean(str(value), choices))


def _escaped(char: str) -> str:
    try:
        raw = char.encode("utf-8", "surrogateescape").decode("latin-1")
    except UnicodeEncodeError:
        raw = char  # half of a surrogate pair, which no file name has but JSON can
    return raw.encode("unicode_escape").decode("ascii")
