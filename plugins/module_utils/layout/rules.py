# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TunePlane's storage layout: one root, eleven purposes, and the rules that keep them apart. Nothing here does I/O."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Callable

from ..errors import Refusal, did_you_mean, quoted
from ..paths import check_path, is_within, overlap, relation


@dataclass(frozen=True)
class Purpose:
    """One purpose of the layout; its default is *below* the cache parent, or below the root."""

    name: str
    below: str
    in_cache: bool = False

    @property
    def setting(self) -> str:
        return f"{self.name.upper()}_ROOT"


PURPOSES = (
    Purpose("runs", "runs"),
    Purpose("cache", "cache"),
    Purpose("hf_hub_cache", "hf/hub", in_cache=True),
    Purpose("hf_datasets_cache", "hf/datasets", in_cache=True),
    Purpose("modelscope_cache", "modelscope", in_cache=True),
    Purpose("hub_cache", "hubs", in_cache=True),
    Purpose("dataset_cache", "datasets", in_cache=True),
    Purpose("volume_cache", "volumes", in_cache=True),
    Purpose("packages", "packages"),
    Purpose("reflow", "reflow"),
    Purpose("state", "state"),
)
NAMES = tuple(purpose.name for purpose in PURPOSES)
FRAMEWORK_CACHES = ("hf_hub_cache", "hf_datasets_cache", "modelscope_cache")
"""What the frameworks in the containers of runs are pointed at."""
OF_ROOT = ("runs", "cache")
"""What holds directories of others and nothing of its own: who could write to it could put another in their place."""
BY_NAME = ("runs", "reflow")
"""What has a directory for each user, which counts for whom it is named after."""
_CACHES = frozenset(purpose.name for purpose in PURPOSES if purpose.in_cache)
_PREFIX = re.compile(r"[A-Z][A-Z0-9_]*_")


@dataclass(frozen=True)
class Layout:
    """Where everything is on a host."""

    root: str
    locations: Mapping[str, str]
    overridden: frozenset[str]
    volume_root: str | None

    def settings(self, prefix: str = "") -> dict[str, str]:
        """Return the settings by name, as an environment file or another host's layout has them."""
        values = {"STORAGE_ROOT": self.root}
        values.update({purpose.setting: self.locations[purpose.name] for purpose in PURPOSES})
        if self.volume_root is not None:
            values["VOLUME_ROOT"] = self.volume_root
        return {prefix + name: value for name, value in values.items()}

    def parent(self, name: str) -> str:
        """Return the name of what the default of *name* is below: the cache, or the root."""
        return "cache" if name in _CACHES else "root"

    @property
    def defaults(self) -> list[str]:
        """The names of the locations without an override."""
        return [name for name in NAMES if name not in self.overridden]

    def named(self) -> dict[str, str]:
        """Return every path of the layout by the name that an operator knows it as."""
        paths = {"root": self.root, **self.locations}
        if self.volume_root is not None:
            paths["volume_root"] = self.volume_root
        return paths


def resolve(root: str, overrides: Mapping[str, str | None], volume_root: str | None = None) -> Layout:
    """Return the layout of *root* with *overrides*; an empty override means the default.

    :raises Refusal: when a name is unknown or a path breaks a rule of :func:`.paths.check_path`
    """
    unknown = sorted(set(overrides) - set(NAMES))
    if unknown:
        remedy = did_you_mean(unknown[0], NAMES) or f"use one of {', '.join(NAMES)}"
        raise Refusal(f"overrides: {unknown[0]}", "there is no such location", remedy)
    checked_root = check_path(root, "root")
    given = {name: check_path(path, name) for name, path in overrides.items() if path}
    locations: dict[str, str] = {}
    for purpose in PURPOSES:
        parent = locations["cache"] if purpose.in_cache else checked_root
        locations[purpose.name] = given.get(purpose.name) or f"{parent}/{purpose.below}"
    return Layout(
        checked_root,
        locations,
        frozenset(given),
        check_path(volume_root, "volume_root") if volume_root else None,
    )


def check_prefix(prefix: str) -> str:
    """Return the prefix of the environment's names, or refuse it."""
    if not _PREFIX.fullmatch(prefix):
        raise Refusal(
            "environment_prefix",
            f"{quoted(prefix)} must be capital letters, digits and underscores, and end with an underscore",
            "write it like TUNEPLANE_",
        )
    return prefix


def check_protected(paths: Sequence[str], layout: Layout) -> list[str]:
    """Return the paths that no run may have mounted, in order, or refuse them.

    :raises Refusal: when one is, or is around, what every run has
    """
    checked = sorted({check_path(path, "protected_paths") for path in paths})
    for path in checked:
        for name in ("runs", *FRAMEWORK_CACHES):
            if is_within(layout.locations[name], path):
                lies = relation(path, layout.locations[name])
                rule = f"{path} {lies} {name}, {layout.locations[name]}, which runs work in"
                raise Refusal("protected_paths", rule, "protect what is in it, or move it elsewhere")
    return checked


def _unchanged(path: str) -> str:
    return path


def check_apart(layout: Layout, real: Callable[[str], str] = _unchanged) -> None:
    """Refuse locations that overlap, once *real* has resolved their symlinks.

    The caches may lie below the cache parent, and everything below the root: those two are parents and hold nothing
    of their own. The volume root holds governed material and lies apart from all of it.
    """
    for name, path in layout.locations.items():
        if is_within(real(layout.root), real(path)):
            raise _overlap(layout, real, name, "root", "give it a directory of its own")
    for name, other in itertools.combinations(NAMES, 2):
        path, other_path = real(layout.locations[name]), real(layout.locations[other])
        nested = name == "cache" and other in _CACHES and path != other_path and is_within(other_path, path)
        if overlap(path, other_path) and not nested:
            raise _overlap(layout, real, name, other, "give each a directory of its own")
    if layout.volume_root is not None:
        for name in ("root", *NAMES):
            if overlap(real(layout.volume_root), real(layout.named()[name])):
                raise _overlap(layout, real, "volume_root", name, "keep governed material apart from the layout")


def _overlap(layout: Layout, real: Callable[[str], str], name: str, other: str, remedy: str) -> Refusal:
    named = layout.named()
    path, other_path = real(named[name]), real(named[other])
    lies = "is the same directory as" if path == other_path else relation(path, other_path)
    return Refusal(name, f"{_seen(named[name], path)} {lies} {other}, {_seen(named[other], other_path)}", remedy)


def _seen(path: str, real: str) -> str:
    return path if path == real else f"{path} (which is {real})"


def moved(layout: Layout, former: Mapping[str, str]) -> list[str]:
    """Return a sentence for every path of the *former* layout, by name, whose files now stay behind.

    One for a parent that moved stands for what moved along with it.
    """
    named = layout.named()
    sentences: list[str] = []
    left: list[str] = []
    for name in ("root", *NAMES, "volume_root"):
        if name not in former or former[name] == named.get(name):
            continue
        if not any(is_within(former[name], path) for path in left):
            remedy = f"copy what is needed to {named[name]}" if name in named else "nothing takes its place"
            sentences.append(f"{name}: {former[name]} is no longer used and its files stay there; {remedy}")
        left.append(former[name])
    return sentences


def disagreements(hosts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a sentence for every setting on which *hosts* disagree, naming the values and their hosts."""
    sentences = []
    known = ("STORAGE_ROOT", *(purpose.setting for purpose in PURPOSES), "VOLUME_ROOT")
    others = sorted({name for settings in hosts.values() for name in settings} - set(known))
    for setting in (*known, *others):
        values: dict[str | None, list[str]] = {}
        for host in sorted(hosts):
            values.setdefault(hosts[host].get(setting), []).append(host)
        if len(values) > 1:
            parts = [f"{'not set' if value is None else value} on {', '.join(on)}" for value, on in values.items()]
            sentences.append(f"{setting} is {'; '.join(parts)}")
    return sentences
