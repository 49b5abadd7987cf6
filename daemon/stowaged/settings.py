# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of the daemon: /etc/stowage/daemon.json, checked as a whole before any of it is used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stowage_core import records
from stowage_core.accounting.quotas import Quotas
from stowage_core.errors import StowageError
from stowage_core.eviction import plan as eviction_plan
from stowage_core.gate.judgement import DEFAULT_WATERMARK_PCT
from stowage_core.places import Places
from stowage_core.services.daemon_settings import problems_of

VARIABLES = {
    "STORAGE_SCAN_INTERVAL_S": ("scan_interval_s", "a number of seconds"),
    "DISK_WATERMARK_PCT": ("disk_watermark_pct", "a percentage"),
}
"""Variables of the unit that come before what the file says: the setting, and what it is."""


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
    fill_engine: str = "auto"
    """What runs the containers that fill copies: ``podman``, ``docker``, or the first of them that is there."""
    quotas: Mapping[str, Any] = field(default_factory=dict)
    """How much users and teams may have, as it was written."""
    disk_watermark_pct: float = DEFAULT_WATERMARK_PCT
    """How full a filesystem of a location may be before jobs are held; 0 is no mark, and no hold for a missing one."""
    watch: bool = True
    """Whether filesystems are watched, so that a measurement looks only at what has changed."""
    watch_off: Sequence[str] = field(default_factory=list)
    """Paths on filesystems that are not."""
    full_listing_interval_s: float = 21600
    """After how long at most all of a directory that is watched is looked at again."""
    watch_memory_mb: int = 64
    """How much what watches one filesystem may remember."""
    declared: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What the file says: the rollout compares this with the file, to see whether it was taken on."""

    @property
    def allowed(self) -> Quotas:
        return Quotas.of(self.quotas)

    @property
    def limits(self) -> eviction_plan.Settings:
        return eviction_plan.Settings(minimum_age_s=self.minimum_age_s, boot_grace_s=self.boot_grace_s)


def load(places: Places, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of this host; a missing file means the defaults.

    :raises SettingsError: naming everything that is wrong
    """
    environment = os.environ if environment is None else environment
    declared = records.read(places.daemon_json) or {}
    value = dict(declared)
    problems = problems_of(value)
    for variable, (name, described) in VARIABLES.items():
        given = environment.get(variable)
        if given:
            try:
                value[name] = float(given)
            except ValueError:
                problems.append(f"{variable}: {given!r} must be {described}")
            else:
                problems += [f"{variable}: {problem}" for problem in problems_of({name: value[name]})]
    if problems:
        raise SettingsError(places.daemon_json, problems)
    return Settings(**value, declared=declared)
