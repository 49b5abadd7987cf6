# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the settings that a store process was started with differ from what is declared of its tier.

The store does not tell its settings, and takes what it cannot understand for its default without a word. So what a
process has in its environment is compared, by value where both are numbers in the one form that the store can read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal

from stowage_core.errors import printable
from stowage_core.tiers.declared import MemberGroup, Tier
from stowage_core.tiers.environment import ENABLED, PATH, PREFIX, RENDERED, member_environment

_LONGEST = 64
_NUMBERS = (re.compile(r"[0-9]{1,20}"), re.compile(r"[0-9]{1,20}\.[0-9]{0,20}|[0-9]{1,20}"))
"""Whole numbers, and ratios, of which a whole number is one; what is declared says which of them a setting is."""


def declared(group: MemberGroup, tier: Tier) -> dict[str, str]:
    """Return the store's settings as they are declared."""
    extra = {name: value for name, value in group.extra_env.items() if name.startswith(PREFIX)}
    return {**extra, **member_environment(tier)}


def differences(wanted: Mapping[str, str], effective: Mapping[str, str]) -> list[str]:
    """Return what differs, a text each; what nothing is declared of but by ``extra_env`` is the store's own matter."""
    return list(_differences(wanted, effective))


def _differences(wanted: Mapping[str, str], effective: Mapping[str, str]) -> Iterator[str]:
    for name in dict.fromkeys((*RENDERED, *wanted)):
        want, have = wanted.get(name), effective.get(name)
        # Of its directory device and inode are known, by which the process was found; a container may call it
        # otherwise. And the store's own program is told by an argument whether it is to use a tier.
        if name == PATH or (name == ENABLED and have is None) or _is_same(want, have):
            continue
        says = "is not set" if have is None else f"is {_shown(have)}"
        yield f"{name} {says}, and {'nothing' if want is None else _shown(want)} is declared"


def _is_same(want: str | None, have: str | None) -> bool:
    if want is None or have is None or want == have:
        return want == have
    # Exponents, signs, blanks and digits of other scripts are numbers to Python, and none to the store.
    form = next((form for form in _NUMBERS if form.fullmatch(want)), None)
    return form is not None and form.fullmatch(have) is not None and Decimal(want) == Decimal(have)


def _shown(value: str) -> str:
    return printable(value)[:_LONGEST] or "empty"
