# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a host may be mounted into the container of a run. Nothing here does I/O.

Of the storage layout a run has its own directory and the framework caches, of what Stowage keeps the pins of its drives
and volumes. Paths are compared by their text: whoever can resolve symbolic links does that before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import Refusal, printable
from ..layout import record as layout_record
from ..layout.rules import FRAMEWORK_CACHES
from ..paths import check_path, is_within, relation
from ..places import Places
from .shape import RunName

_REMEDY = "mount the run's own directory, framework caches, and pins of drives and volumes only"
_PIN = re.compile(r"[^/]+/[1-9][0-9]*(/.*)?", re.DOTALL)
_ALIAS = "/var/run"
"""A link to ``/run`` on every host with systemd."""


def check_run_mounts(
    layout: Mapping[str, Any],
    run_path: str,
    protected: Iterable[str],
    mounts: Iterable[str],
    places: Places | None = None,
) -> None:
    """Refuse the first of *mounts*, which are paths of the host, that the run at *run_path* may not have.

    :param layout: as it is recorded in ``layout.json``
    :param protected: what no run may see beside the layout: the database, credentials, the telemetry spool
    :raises Refusal: naming the mount, or *run_path* when there is no run at it
    """
    places = Places() if places is None else places
    named = layout_record.paths(layout)
    run = check_path(run_path, "run")
    _check_run(run, named.get("runs"))
    allowed = [run, *(named[name] for name in FRAMEWORK_CACHES if name in named)]
    hidden = {_canonical(check_path(path, "protected_paths")): "the protected path" for path in protected}
    hidden.update(dict.fromkeys((places.etc, places.var, places.run), "Stowage's own directory"))
    for mount in mounts:
        path = _canonical(check_path(mount, "mount"))
        if _is_pin(path, places):
            continue
        found = _overlapping(path, hidden)
        if found is None and not any(is_within(path, one) for one in allowed):
            found = _in_layout(path, named)
        if found is not None:
            raise Refusal(f"mount {printable(mount)}", f"it {found}", _REMEDY)


def _check_run(run: str, runs: str | None) -> None:
    if runs is None:
        raise Refusal(f"run {printable(run)}", "there is no storage layout", "roll the host out with host_storage_root")
    if not is_within(run, runs) or not RunName.is_one(tuple(run[len(runs) + 1 :].split("/"))):
        rule = f"is not at <user>/<experiment>/<run_id> in the runs location {printable(runs)}"
        raise Refusal(f"run {printable(run)}", rule, "give the path that run_directory returns")


def _is_pin(path: str, places: Places) -> bool:
    return is_within(path, places.pins_dir) and bool(_PIN.fullmatch(path[len(places.pins_dir) + 1 :]))


def _in_layout(path: str, named: Mapping[str, str]) -> str | None:
    """Return how *path* lies to a location, the root or the volume root, in words; None when it is apart from all."""
    if relation(path, named["runs"]) == "is inside":
        return f"is inside the runs location {printable(named['runs'])} and not in the run's own directory"
    whole = {"root": "the storage root", "volume_root": "the volume root"}
    return _overlapping(path, {other: whole.get(name, f"the location {name},") for name, other in named.items()})


def _overlapping(path: str, others: Mapping[str, str]) -> str | None:
    """Return how *path* lies to one of *others*, in words: to the innermost that it is in, else to the outermost."""
    for verb, inner in (("is", True), ("is inside", True), ("contains", False)):
        found = [other for other in others if relation(path, other) == verb]
        if found:
            other = sorted(found, key=len, reverse=inner)[0]
            return f"{verb} {others[other]} {printable(other)}"
    return None


def _canonical(path: str) -> str:
    return path[len("/var") :] if is_within(path, _ALIAS) else path
