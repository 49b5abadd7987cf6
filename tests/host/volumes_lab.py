# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with volumes below a volume root, and runs of users and teams that may read parts of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from copies_lab import HOST
from runs_lab import RunLab

from stowage_core import records
from stowage_core.differences import Differences
from stowage_core.drives import refs as drive_refs
from stowage_core.locks import host_lock
from stowage_core.runs import stamps
from stowage_core.runs.mounts import Outcome, Preparation, Worker
from stowage_core.runs.shape import RunName
from stowage_core.runs.stamps import Stamp
from stowage_core.volumes import change, stamped
from stowage_core.volumes.declared import check_volumes
from stowage_core.volumes.given import Given, given

ANN, BOB = "ann/tune/1", "bob/tune/1"


class VolumeLab(RunLab):
    """``ann/tune/1`` is of the team ``vision``, ``bob/tune/1`` of none."""

    def __init__(self, disk: Path, home: Path) -> None:
        super().__init__(disk, home)
        self.root, self.runs = disk / "volumes", disk / "runs"
        for directory in (self.root, self.runs):
            directory.mkdir()
        where = {"override": True, "require_mount": False, "mount_point": "/"}
        filesystem = self.location.filesystem.to_json()
        layout = {
            "root": str(disk / "storage"),
            "volume_root": str(self.root),
            "environment_prefix": "STOWAGE_",
            "environment_files": [],
            "locations": {"runs": {"path": str(self.runs), "filesystem": filesystem, **where}},
        }
        records.write(self.places.layout_json, layout)
        if not os.path.exists(self.places.claims_json):
            records.write(self.places.claims_json, {"claims": {}})  # not lost: all disks would be searched for marks
        self.make_run(ANN, "vision")
        self.make_run(BOB)

    def make_run(self, name: str, team: str = "") -> Path:
        path = self.runs / name
        path.mkdir(parents=True)
        if team:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                stamps.put(self.places, RunName.parsed(name), Stamp.of(fd, team, 1.0))
            finally:
                os.close(fd)
        return path

    def protect(self, *paths: Path) -> None:
        """Let the storage layout protect exactly these paths."""
        layout = records.read(self.places.layout_json) or {}
        records.write(self.places.layout_json, {**layout, "protected_paths": [str(path) for path in paths]})

    def declare(
        self, *volumes: dict[str, Any], differences: Differences | None = None, accept_new_filesystem: bool = False
    ) -> change.Outcome:
        found = Differences() if differences is None else differences
        with host_lock(self.places):
            declared = check_volumes(volumes, str(self.root))
            return change.declare(self.places, declared, found, accept_new_filesystem)

    def given(self, run_of: str = ANN, names: Sequence[str] | None = None, volumes_dir: str = "/volumes") -> Given:
        whose, _unknown = stamped.whose(self.places, run_of)
        return given(self.places, whose, names, volumes_dir)

    def give(
        self,
        run_of: str = ANN,
        names: Sequence[str] | None = None,
        worker: str = "w0",
        run: str = "r1",
        refs: Any = (),
        seconds: float = 60,
        differences: Differences | None = None,
    ) -> tuple[Outcome, Given]:
        """Prepare a worker with drives of workspace ``ml`` and what the run is granted, as the module does."""
        have = self.given(run_of, names)
        read = drive_refs.read(list(refs))
        whose = Worker.of(run, worker)
        wanted = Preparation.of(self.places, HOST, "ml", whose, read, self.started.append, have.folders, have.kept)
        return wanted.run(seconds, Differences() if differences is None else differences), have


def volume(name: str, *grants: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "grants": list(grants), **more}


def grant(sub_path: str = "", **whose: Sequence[str]) -> dict[str, Any]:
    return {"sub_path": sub_path, **whose}
