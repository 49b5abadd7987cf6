# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of the daemon: /etc/stowage/daemon.json, checked as a whole before any of it is used."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Callable

from stowage_core import eviction_plan, records
from stowage_core.errors import StowageError
from stowage_core.places import Places

SCAN_INTERVAL_VARIABLE = "STORAGE_SCAN_INTERVAL_S"


class SettingsError(StowageError):
    """What is wrong with the settings: all of it, in one line."""

    def __init__(self, path: str, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{path}: " + "; ".join(problems))


@dataclass(frozen=True)
class Settings:
    """What an operator can choose; the role ``daemon`` documents each of them."""

    host: str = ""
    """The host's name in the inventory, by which drives name it."""
    cycle_s: float = 10
    scan_interval_s: float = 300
    evict: str = "plan"
    """``on`` removes, ``plan`` says what it would remove, ``off`` does not look."""
    minimum_age_s: float = 600
    boot_grace_s: float = 600
    measure_shared: bool = False
    """Whether this host measures what lies on filesystems that other hosts see too."""

    @property
    def limits(self) -> eviction_plan.Settings:
        return eviction_plan.Settings(minimum_age_s=self.minimum_age_s, boot_grace_s=self.boot_grace_s)


def _seconds(low: float, high: float) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return "" if number and low <= value <= high else f"must be a number of seconds from {low:.10g} to {high:.10g}"

    return check


def _mode(value: Any) -> str:
    return "" if value in ("on", "plan", "off") else "must be on, plan or off"


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "must be true or false"


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value.isprintable() else "must be printable text"


_CHECKS: dict[str, Callable[[Any], str]] = {
    "host": _text,
    "cycle_s": _seconds(0.1, 3600),
    "scan_interval_s": _seconds(1, 86400),
    "evict": _mode,
    "minimum_age_s": _seconds(0, 365 * 86400),
    "boot_grace_s": _seconds(0, 86400),
    "measure_shared": _flag,
}
assert list(_CHECKS) == [one.name for one in fields(Settings)]


def problems_of(value: Mapping[str, Any]) -> list[str]:
    """Return everything that is wrong with *value*, each as ``setting: what is required``."""
    problems = []
    for name, given in value.items():
        if name not in _CHECKS:
            near = difflib.get_close_matches(name, _CHECKS, 1)
            problems.append(f"{name}: no such setting" + (f"; did you mean {near[0]}?" if near else ""))
            continue
        rule = _CHECKS[name](given)
        if rule:
            problems.append(f"{name}: {given!r} {rule}")
    return problems


def load(places: Places, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this host; a missing file means the defaults.

    :raises SettingsError: naming everything that is wrong
    """
    environment = os.environ if environment is None else environment
    value = dict(records.read(places.daemon_json) or {})
    problems = problems_of(value)
    interval = environment.get(SCAN_INTERVAL_VARIABLE)
    if interval:
        try:
            value["scan_interval_s"] = float(interval)
        except ValueError:
            problems.append(f"{SCAN_INTERVAL_VARIABLE}: {interval!r} must be a number of seconds")
        else:
            problems += [
                f"{SCAN_INTERVAL_VARIABLE}: {p}" for p in problems_of({"scan_interval_s": value["scan_interval_s"]})
            ]
    if problems:
        raise SettingsError(places.daemon_json, problems)
    return Settings(**value)
