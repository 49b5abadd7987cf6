# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with tiers: what a module does is predicted, done, repeated and predicted again, and must agree."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stowage_core import events, records
from stowage_core.differences import Differences
from stowage_core.owner import Mark, read_mark
from stowage_core.places import Places
from stowage_core.tiers import host as tier_host
from stowage_core.tiers import removal
from stowage_core.tiers.cleanup import Cleanup
from stowage_core.tiers.declared import read_backends
from stowage_core.tiers.host import Declaration, Outcome

UID = 65532
STORE = "import sys, time; print(flush=True); time.sleep(60)"


class Host:
    """A host with places of its own."""

    def __init__(self, places: Places, name: str = "gpu-01") -> None:
        self.places = places
        self.name = name
        self.actions: list[str] = []
        self.diff: dict[str, Any] = {}
        records.write(places.claims_json, {"claims": {}})  # not lost: otherwise all disks are searched for marks

    def declare(self, *backends: dict[str, Any], **more: Any) -> Outcome:
        declaration = Declaration(self.name, read_backends(list(backends)), **more)
        return self._cycle(lambda differences: tier_host.declare(self.places, declaration, differences))

    def remove(self, *names: str, forget: tuple[str, ...] = (), **options: Any) -> list[dict[str, Any]]:
        def cleanup(*arguments: Any) -> Cleanup:
            return Cleanup(*arguments, **options)

        return self._cycle(
            lambda differences: removal.remove(self.places, self.name, names, differences, forget, cleanup)
        )

    def remove_once(self, *names: str, **options: Any) -> Any:
        differences = Differences()

        def cleanup(*arguments: Any) -> Cleanup:
            return Cleanup(*arguments, **options)

        try:
            return removal.remove(self.places, self.name, names, differences, (), cleanup)
        finally:
            self.actions = differences.actions

    def _cycle(self, operation: Callable[[Differences], Any]) -> Any:
        runs = []
        for check_mode in (True, False, False, True):
            differences = Differences(check_mode)
            runs.append((operation(differences), differences))
        (_outcome, predicted), (outcome, done), (again, repeated), (_again, last) = runs
        assert predicted.diff() == done.diff()
        assert predicted.actions == done.actions
        assert not repeated.changed, repeated.diff()
        assert not repeated.actions, repeated.actions
        assert not last.changed
        self.actions, self.diff = done.actions, done.diff()
        return outcome

    def found(self) -> dict[str, Any]:
        return dict((records.read(self.places.tiers_found_json) or {}).get("tiers", {}))

    def claims(self) -> dict[str, Any]:
        return dict((records.read(self.places.claims_json) or {})["claims"])

    def reasons(self) -> list[str]:
        return [event["reason"] for event in events.read(self.places)]


def backend(name: str, *paths: Path | str, clean: bool = False, **group: Any) -> dict[str, Any]:
    """A backend with a group for each path; none for an empty one."""
    members = []
    for path in paths:
        disks = [{"path": str(path), "clean_after_delete": clean}] if str(path) else []
        members.append({"capacity_per_member": "1Gi", "local_disks": disks, **group})
    return {"name": name, "members": members}


def mark_of(path: Path) -> Mark | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_mark(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def store_on(path: Path | str, *prefix: str) -> Iterator[int]:
    """Run something with the environment of a store that keeps its tier at *path*."""
    environment = {**os.environ, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(path), "MOONCAKE_OFFLOAD_ENABLED": "true"}
    command = [*prefix, sys.executable, "-c", STORE]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, cwd="/")
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
