# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The persistent volume claims of Kubernetes that hold a layout: which holds what, and what a job may write to."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import Refusal, did_you_mean, quoted
from ..layout.rules import NAMES, Layout
from ..paths import is_within

ROOT = "root"
"""What the claim of the default root begins at, by the name that a layout has for it."""
VOLUME_ROOT = "volume_root"
"""What none of a platform's services writes to."""
_OF_MANY_NODES, _READ_ONLY, _OF_ONE_POD = "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"
_ACCESS_MODES = ("ReadWriteOnce", _READ_ONLY, _OF_MANY_NODES, _OF_ONE_POD)
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def setting(name: str) -> str:
    """Return the setting of a path of the layout, in lower case: that of ``runs`` is ``runs_root``."""
    return {ROOT: "storage_root", VOLUME_ROOT: VOLUME_ROOT}.get(name, f"{name}_root")


def check_nodes(value: Any) -> int:
    """Return on how many nodes the pods are that have the claims, or refuse what is no number of nodes."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refusal("nodes", f"{value!r} is not a number of nodes")
    return value


@dataclass(frozen=True)
class Part:
    """A directory in a claim."""

    claim: str
    begins: str
    """What the claim begins at, by its name in the layout."""
    sub_path: str
    """Where in the claim the directory is; empty for all of it."""


@dataclass(frozen=True)
class Claims:
    """Each begins at the directory of the layout that it is for."""

    layout: Layout
    held: Mapping[str, str]
    """The claims by the names of these directories, in the layout's order."""
    access_modes: Mapping[str, frozenset[str]]
    """Of each claim of which they are known."""

    @classmethod
    def read(cls, layout: Layout, claim: Any, claims: Any, access_modes: Any) -> Claims:
        """Return the claims as they are given.

        :param claim: that of the default root; empty when there is none
        :param claims: those of locations with a path of their own, by the names of their settings
        :param access_modes: by the name of the claim
        """
        found = {ROOT: _claim(claim, "claim")} if claim else {}
        own = _own(layout, _mapping(claims, "claims"))
        found.update({name: own[name] for name in (*NAMES, VOLUME_ROOT) if name in own})
        for name, one in found.items():
            first = next(other for other, its in found.items() if its == one)
            if first != name:
                rule = f"{one} is the claim of {setting(first)} too, and cannot begin at both"
                raise Refusal(f"claims: {setting(name)}", rule, "give each a claim of its own")
        modes = _access_modes(_mapping(access_modes, "access_modes"), found.values())
        return cls(layout, found, modes)

    def settings(self, prefix: str) -> dict[str, str]:
        """Return the settings that name them."""
        own = {setting(name): claim for name, claim in self.held.items() if name != ROOT}
        found = {f"{prefix}K8S_STORAGE_PVC": self.held[ROOT]} if ROOT in self.held else {}
        if own:
            found[f"{prefix}K8S_STORAGE_PVCS"] = json.dumps(own, separators=(",", ":"))
        return found

    def part(self, name: str, path: str) -> Part:
        """Return where *path* is, which is the location *name* or below it: in the innermost claim around it.

        :raises Refusal: when no claim is around it
        """
        named = self.layout.named()
        around = [one for one in self.held if is_within(path, named[one])]
        if not around:
            remedy = f"give {setting(name)} one in claims"
            if is_within(path, self.layout.root):
                remedy = "name the claim of the default root"
            raise Refusal(name, f"{path} is in no claim", remedy)
        begins = max(around, key=lambda one: len(named[one]))
        sub_path = posixpath.relpath(path, named[begins])
        return Part(self.held[begins], begins, "" if sub_path == "." else sub_path)

    def demands(
        self, written: Mapping[str, Iterable[str]], nodes: int, read: Mapping[str, Iterable[str]] | None = None
    ) -> list[str]:
        """Return what has to hold of the claims that pods have and whose access modes are not known.

        :param written: the locations that they write to in each claim
        :param nodes: how many nodes they are on
        :param read: those that they only read
        :raises Refusal: when the access modes of a claim are known, and do not allow it
        """
        demands = []
        uses = [(claim, locations, "write to") for claim, locations in written.items()]
        uses += [(claim, locations, "read") for claim, locations in (read or {}).items() if claim not in written]
        for claim, locations, verb in uses:
            what = " and ".join(locations)
            enough = [_OF_MANY_NODES] if verb == "write to" else [_READ_ONLY, _OF_MANY_NODES]
            wanted = f"{claim} must be {' or '.join(enough)}: {nodes} nodes {verb} {what}"
            modes = self.access_modes.get(claim)
            if modes is None:
                demands += [f"claim {wanted}"] if nodes > 1 else []
            elif modes == {_OF_ONE_POD}:
                rule = f"{claim} is {_OF_ONE_POD}, and jobs have {what} beside the platform's own pods"
                raise Refusal("claim", rule, "give them a claim that several pods can have")
            elif nodes > 1 and not modes.intersection(enough):
                raise Refusal("claim", f"{wanted}, and it is {_listed(modes)}", "give them a claim that is")
            elif verb == "write to" and modes == {_READ_ONLY}:
                rule = f"{claim} is {_READ_ONLY}, and {what} {'are' if ' and ' in what else 'is'} written to"
                raise Refusal("claim", rule, "give them a claim that can be written to")
        return demands


def _mapping(value: Any, name: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Refusal(name, "must be a dictionary")
    return value


def _own(layout: Layout, claims: Mapping[Any, Any]) -> dict[str, str]:
    """Return the claims of single locations by the names of these."""
    names = {setting(name): name for name in (*NAMES, VOLUME_ROOT)}
    found = {}
    for key, value in claims.items():
        label = f"claims: {key}"
        if key == setting(ROOT):
            raise Refusal(label, "the claim of the default root is no independent one", "give it as claim")
        if key not in names:
            raise Refusal(label, "there is no such setting", did_you_mean(str(key), names) or "write it like runs_root")
        name = names[key]
        if name not in layout.overridden and (name != VOLUME_ROOT or layout.volume_root is None):
            rule = f"{name} has no path of its own that a claim could begin at"
            remedy = "give it one: host_volume_root" if name == VOLUME_ROOT else "give it an override"
            raise Refusal(label, rule, remedy)
        found[name] = _claim(value, label)
    return found


def _claim(value: Any, name: str) -> str:
    if not isinstance(value, str) or not _CLAIM.fullmatch(value):
        raise Refusal(name, f"{quoted(str(value))} is not the name of a persistent volume claim")
    return value


def _access_modes(given: Mapping[Any, Any], claims: Iterable[str]) -> dict[str, frozenset[str]]:
    known = list(claims)
    found = {}
    for claim, modes in given.items():
        name = f"access_modes: {claim}"
        if claim not in known:
            raise Refusal(name, "there is no such claim here", did_you_mean(str(claim), known))
        if isinstance(modes, str) or not isinstance(modes, Iterable):
            raise Refusal(name, "must be a list of access modes")
        if not modes:
            raise Refusal(name, "names none", "leave it out where they are not known")
        found[claim] = frozenset(map(str, modes))
        for mode in sorted(found[claim] - set(_ACCESS_MODES)):
            raise Refusal(name, f"{mode} is no access mode", did_you_mean(mode, _ACCESS_MODES))
    return found


def _listed(modes: Iterable[str]) -> str:
    return " and ".join(sorted(modes))
