# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host remembers of its tiers: the backends as they were declared, and what was found at each claim.

A host remembers a backend of which it has, or had, a member; positions on other hosts are remembered with it, because
they are frozen as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from .. import records
from ..errors import StowageError
from ..places import Places
from .declared import Backend
from .survey import Survey


@dataclass(frozen=True)
class Claimed:
    """A tier that this host has claimed, as it was found."""

    path: str
    identity: str
    """That of the owner mark."""
    claimed: float
    """When."""
    survey: Survey | None = None
    """None where the claim was made without one: nobody can tell any more what was there before."""
    as_found: list[int] | None = None
    """What the directory was like when its survey had no answer: it is asked again only while it is like that."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Claimed:
        claimed = records.typed(cls, value)
        survey = value.get("survey")
        return claimed if survey is None else replace(claimed, survey=records.typed(Survey, survey))


def load_backends(places: Places) -> dict[str, Backend]:
    """Return the recorded backends by name.

    :raises StowageError: when the record cannot be used: then nobody knows what is frozen
    """
    value = records.read(places.tiers_json) or {}
    try:
        backends = [Backend.from_json(one) for one in value.get("backends", [])]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unusable(places.tiers_json, error) from error
    return {backend.name: backend for backend in backends}


def backends_json(backends: Iterable[Backend]) -> dict[str, Any]:
    """Return the record of *backends*."""
    return {"backends": [backend.to_json() for backend in sorted(backends, key=lambda one: one.name)]}


def load_claimed(places: Places) -> dict[str, Claimed]:
    """Return what was found at each claim, by the tier's name (``chat/0``)."""
    value = records.read(places.tiers_found_json) or {}
    try:
        return {name: Claimed.from_json(one) for name, one in value.get("tiers", {}).items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unusable(places.tiers_found_json, error) from error


def write_claimed(places: Places, tiers: Mapping[str, Claimed]) -> bool:
    """Replace the record of what was found; return whether it changed."""
    if not tiers:
        return records.remove(places.tiers_found_json)
    return records.write(places.tiers_found_json, {"tiers": {name: one.to_json() for name, one in tiers.items()}})


def _unusable(path: str, error: Exception) -> StowageError:
    return StowageError(f"{path}: not a record of tiers ({type(error).__name__}: {error}); restore it")
