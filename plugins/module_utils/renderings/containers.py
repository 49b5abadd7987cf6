# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the container of a run is given: its own slice of the runs, the caches of frameworks, authorized inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import Refusal, printable, quoted
from ..layout.rules import FRAMEWORK_CACHES, Layout
from ..paths import check_path, is_within, relation
from ..places import Places
from ..runs.authorised import check_run_mounts
from . import framework_caches
from .rebasing import moved, rebase

Input = Mapping[str, Any]
"""A mount as it was prepared for a run: ``source`` (the pin), ``target``, ``read_only``, and what it is of."""

PATHS = ("path", "work", "out", "logs")
"""What of a run is a path, as ``run_directory`` returns it."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Share:
    """A directory of the layout that the container has, and writes to."""

    location: str
    source: str
    """Where the host has it."""
    target: str
    """Where the container has it."""


@dataclass(frozen=True)
class Container:
    """All that it is given."""

    run: Mapping[str, str]
    """The paths of the run in the container."""
    shares: Sequence[Share]
    inputs: Sequence[Input]
    environment: Mapping[str, str]


def container(
    layout: Layout,
    prefix: str,
    run: Any,
    inputs: Any = (),
    environment: Any = None,
    protected: Sequence[str] = (),
    root: str = "",
    own_tmp: bool = True,
) -> Container:
    """Return what the container of *run* is given.

    :param run: what ``run_directory`` returned
    :param inputs: the mounts of drives and volumes
    :param environment: variables beside those of the caches
    :param protected: what no container is given, beside what Stowage knows itself
    :param root: where the root of the layout is in the container; empty where the host has it
    :param own_tmp: whether its ``/tmp`` is its own; a job without a container has that of its host
    :raises Refusal: when it would be given anything else, or when one of these would hide another
    """
    paths = _paths(run)
    found = _inputs(inputs, paths["path"], layout.locations["runs"])
    sources = {"runs": paths["path"], **{name: layout.locations[name] for name in FRAMEWORK_CACHES}}
    recorded = {
        "root": layout.root,
        "volume_root": layout.volume_root,
        "locations": {name: {"path": path} for name, path in layout.locations.items()},
    }
    check_run_mounts(recorded, paths["path"], protected, [*sources.values(), *(one["source"] for one in found)])
    seen = rebase(layout, root)
    shares = [Share(name, path, moved(path, layout.root, seen.root)) for name, path in sources.items()]
    there = {name: moved(path, layout.root, seen.root) for name, path in paths.items()}
    if own_tmp:
        variables = framework_caches.environment(seen, prefix)
    else:
        home = framework_caches.home_in_run(there.get("work") or f"{there['path']}/work")
        variables = {framework_caches.HOME: home, **framework_caches.caches(seen)}
    taken = {one.target: one.location for one in shares}
    _check_targets(found, {variables[framework_caches.HOME]: "HF_HOME, which nobody else is to see", **taken})
    return Container(
        there,
        shares,
        found,
        {**variables, **_environment(environment, variables)},
    )


def _paths(run: Any) -> dict[str, str]:
    if not isinstance(run, Mapping) or "path" not in run:
        raise Refusal("run", "must be what run_directory returned, or a dictionary with its path")
    paths = {name: check_path(run[name], f"run: {name}") for name in PATHS if run.get(name)}
    for name, path in paths.items():
        if not is_within(path, paths["path"]):
            raise Refusal(f"run: {name}", f"{quoted(path)} is outside of the run, {paths['path']}")
    return paths


def _inputs(inputs: Any, path: str, runs: str) -> list[dict[str, Any]]:
    """Return the mounts that were prepared for the run at *path*, and for one alone.

    :param runs: the location of the runs, below which a run's path is its name
    """
    if isinstance(inputs, str) or not isinstance(inputs, Sequence):
        raise Refusal("inputs", "must be a list of mounts, as drive_mount returns them")
    pins = Places().pins_dir
    found = []
    for number, one in enumerate(inputs):
        name = f"inputs[{number}]"
        if not isinstance(one, Mapping) or not {"source", "target", "read_only"} <= set(one):
            raise Refusal(name, "must have source, target and read_only, as drive_mount returns them")
        paths = {key: check_path(one[key], f"{name}: {key}") for key in ("source", "target")}
        if not is_within(paths["source"], pins):
            rule = f"{quoted(paths['source'])} was not prepared for a run"
            raise Refusal(name, rule, "have drive_mount prepare it, and give the mounts that it returns")
        _check_input(one, name, path, runs)
        found.append({**one, **paths})
    names = sorted({one["source"][len(pins) + 1 :].partition("/")[0] for one in found})
    if len(names) > 1:
        rule = f"were prepared for {' and '.join(map(quoted, names))}"
        raise Refusal("inputs", rule, "give those of one run, and have it prepare all that it needs")
    return found


def _check_input(one: Input, name: str, path: str, runs: str) -> None:
    """Refuse what is of neither a drive nor a volume, and a volume that is another run's or could be written to."""
    if not isinstance(one["read_only"], bool):
        raise Refusal(f"{name}: read_only", f"must be true or false, not {one['read_only']!r}")
    of = [kind for kind in ("drive", "volume") if isinstance(one.get(kind), str) and one[kind]]
    if len(of) != 1:
        raise Refusal(name, "must name a drive or a volume, as the mounts that drive_mount returns do")
    if of == ["drive"]:
        return
    if path != f"{runs}/{one.get('run_of')}":
        rule = f"volume {printable(one['volume'])} was prepared for run {quoted(str(one.get('run_of', '')))}"
        raise Refusal(name, rule, f"have drive_mount prepare it with volumes_of {printable(path[len(runs) + 1 :])}")
    if not one["read_only"]:
        raise Refusal(name, f"volume {printable(one['volume'])} is not read-only, as volumes are", "prepare it anew")


def _check_targets(inputs: Sequence[Input], taken: Mapping[str, str]) -> None:
    """Refuse an input that would hide what the container has at *taken*, or take it in. Inputs may nest."""
    targets: list[str] = []
    for number, one in enumerate(inputs):
        name, target = f"inputs[{number}]", one["target"]
        for path, what in taken.items():
            lies = relation(target, path)
            if lies:
                raise Refusal(name, f"{target} {lies} {path}, where the container has {what}", "mount it elsewhere")
        if target in targets:
            raise Refusal(name, f"{target} is where inputs[{targets.index(target)}] is", "mount it elsewhere")
        targets.append(target)


def _environment(given: Any, taken: Mapping[str, str]) -> dict[str, str]:
    if given is not None and not isinstance(given, Mapping):
        raise Refusal("environment", "must be a dictionary of variables")
    for name, value in (given or {}).items():
        label = f"environment: {name}"
        if not _NAME.fullmatch(str(name)):
            raise Refusal(label, "is not the name of an environment variable")
        if name in taken:
            raise Refusal(label, f"is {taken[name]} by the layout", "leave it out")
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise Refusal(label, "must be a text", "write it in quotes")
    return {str(name): str(value) for name, value in (given or {}).items()}
