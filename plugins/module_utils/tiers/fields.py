# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A mapping as an operator wrote it: fields in snake case or in camel case, named in messages as they were written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ..errors import Refusal, did_you_mean, printable, quoted

T = TypeVar("T")

_LONGEST_SHOWN = 80


class Fields:
    """One mapping under check. Whatever is wrong is added to the problems, and a default stands in for it.

    A field that is null counts as left out.

    :param prefix: what messages put before the names of its fields
    :param known: its fields, in snake case
    :param hints: what to do about fields that it cannot have, by their names
    """

    def __init__(
        self, value: Any, prefix: str, problems: list[str], known: Iterable[str], hints: Mapping[str, str] | None = None
    ) -> None:
        self.problems = problems
        self._prefix = prefix
        self.is_mapping = isinstance(value, Mapping)
        self._value: Mapping[Any, Any] = value if self.is_mapping else {}
        if not self.is_mapping:
            problems.append(f"{prefix.rstrip('.: ')}: {shown(value)} must be a dictionary")
        spellings = {spelling: name for name in known for spelling in (name, camel_case(name))}
        for key in self._value:
            if not isinstance(key, str) or key not in spellings:
                hint = (hints or {}).get(key, "") if isinstance(key, str) else ""
                remedy = hint or (did_you_mean(key, spellings) if isinstance(key, str) else "")
                self.add(plain(key), "unknown field" + (f"; {remedy}" if remedy else ""))
        for name in known:
            if name != camel_case(name):
                self._check_once(name)

    def _check_once(self, name: str) -> None:
        one, other = self._value.get(name), self._value.get(camel_case(name))
        # Ansible puts a module's option beside the alias that was written, and converts only the option.
        if None not in (one, other) and type(one) is type(other) and one != other:
            self.add(name, f"is given twice, as {name} and as {camel_case(name)}; leave one out")

    def path(self, name: str) -> str:
        """Return how messages name a field or an item of it: as it was written, in snake case when it was left out."""
        field, bracket, index = name.partition("[")
        written = camel_case(field) if self._value.get(camel_case(field)) is not None else field
        return f"{self._prefix}{written}{bracket}{index}"

    def add(self, name: str, rule: str) -> None:
        self.problems.append(f"{self.path(name)}: {rule}")

    def value(self, name: str) -> Any:
        value = self._value.get(name)
        return self._value.get(camel_case(name)) if value is None else value

    def inner(self, name: str, known: Iterable[str]) -> Fields:
        """Return the mapping in a field, which may have the fields *known*; an empty one when it is left out."""
        value = self.value(name)
        return Fields({} if value is None else value, f"{self.path(name)}.", self.problems, known)

    def items(self, name: str) -> list[Any]:
        value = self.value(name)
        if value is None:
            return []
        if not isinstance(value, list):
            self.add(name, f"{shown(value)} must be a list")
            return []
        return value

    def text(self, name: str) -> str:
        """Return a text, empty when it is left out; a whole number, as ``owner: 65532``, is one too."""
        value = self.value(name)
        if value in (None, ""):
            return ""
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.text_of(value, name)

    def text_of(self, value: Any, name: str) -> str:
        if not isinstance(value, str) or not value:
            self.add(name, f"{shown(value)} must be a text that is not empty")
        elif not value.isprintable():
            self.add(name, f"{shown(value)} may not contain control characters")
        else:
            return value
        return ""

    def texts(self, name: str) -> list[str]:
        return [self.text_of(item, f"{name}[{index}]") for index, item in enumerate(self.items(name))]

    def boolean(self, name: str, default: bool) -> bool:
        value = self.value(name)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.add(name, f"{shown(value)} must be true or false")
        return default

    def integer(self, name: str, default: int, smallest: int, largest: int) -> int:
        value = self.value(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not smallest <= value <= largest:
            self.add(name, f"{shown(value)} must be a whole number from {smallest} to {largest}")
            return default
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str, why: str = "") -> str:
        """Return one of *choices*, spelt exactly so.

        :param why: what comes of another spelling, for the message
        """
        value = self.value(name)
        if value is None or (isinstance(value, str) and value in choices):
            return default if value is None else value
        near = did_you_mean(value, choices) if isinstance(value, str) else ""
        self.add(name, "; ".join(filter(None, (f"{shown(value)} is not one of {', '.join(choices)}", near, why))))
        return default

    def checked(self, name: str, check: Callable[[Any, str], T], otherwise: T) -> T:
        """Return what *check* makes of a field; *otherwise* where it refuses it."""
        try:
            return check(self.value(name), self.path(name))
        except Refusal as error:
            self.problems.append(str(error))
            return otherwise


def camel_case(name: str) -> str:
    """Return a name in snake case as Kubernetes spells it: ``keyLimit`` for ``key_limit``."""
    return re.sub(r"_([a-z])", lambda match: match.group(1).upper(), name)


def shown(value: Any) -> str:
    """Return *value* as a message shows it: short and on one line, whatever it is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quoted(value if len(value) <= _LONGEST_SHOWN else value[:_LONGEST_SHOWN] + "…")
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**64):
        return repr(value)
    if isinstance(value, int):
        return "a number above 2^64"
    return "a list" if isinstance(value, list) else "a dictionary" if isinstance(value, Mapping) else "this value"


def plain(value: Any) -> str:
    """Return a field's name as a message shows it."""
    return printable(value) if isinstance(value, str) and len(value) <= _LONGEST_SHOWN else shown(value)
