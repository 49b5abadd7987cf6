# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host whose workspace ``ml`` has drives of every kind, and runs on it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from copies_lab import HOST, Lab

from stowage_core import mounts, records
from stowage_core.differences import Differences
from stowage_core.drives import refs as drive_refs
from stowage_core.drives.declared import check_drives
from stowage_core.runs import mounts as run_mounts
from stowage_core.runs import pinning, pins
from stowage_core.runs.mounts import Outcome, Preparation, Worker


def make(path: Path, content: str = "x") -> Path:
    """Make a directory with a file."""
    path.mkdir(parents=True)
    (path / "file").write_text(content)
    return path


class RunLab(Lab):
    """Sources are in the directory ``sources`` beside the data location, which is granted as a whole."""

    def __init__(self, disk: Path, home: Path) -> None:
        super().__init__(disk, home)
        records.write(self.places.data_location_json, self.location.to_json())
        self.sources = disk / "sources"
        self.sources.mkdir()
        self.started: list[str] = []

    def have(self, *drives: dict[str, Any], host_paths: Sequence[Path] = ()) -> None:
        """Declare exactly these drives, beside the copies that were declared before."""
        known = self.drives.setdefault("ml", {})
        for entry in check_drives(list(drives)):
            known[entry["metadata"]["name"]] = {**entry, "identity": str(uuid.uuid4())}
        granted = [str(path) for path in (host_paths or [self.sources])]
        value = {"workspace": "ml", "host": HOST, "drives": list(known.values()), "host_paths": granted}
        records.write(os.path.join(self.places.drives_dir, "ml.json"), value)

    def preparation(self, refs: Any, worker: str = "w0", run: str = "r1") -> Preparation:
        read = drive_refs.read(refs)
        return Preparation.of(self.places, HOST, "ml", Worker.of(run, worker), read, self.started.append)

    def prepare(
        self,
        refs: Any,
        worker: str = "w0",
        run: str = "r1",
        seconds: float = 60,
        differences: Differences | None = None,
    ) -> Outcome:
        found = Differences() if differences is None else differences
        return self.preparation(refs, worker, run).run(seconds, found)

    def release(self, worker: str = "", run: str = "r1", timeout_s: float = 0, *, force: bool = False) -> Differences:
        differences = Differences()
        run_mounts.release(self.places, Worker.of(run, worker), differences, timeout_s, force=force)
        return differences

    def pinned(self) -> list[str]:
        """The mounts below the directory of pins, of which there is none more than there are pins."""
        found = sorted(mount.point for mount in mounts.read() if mount.point.startswith(self.places.pins_dir + "/"))
        assert found == sorted(pin.path(self.places) for pin in pins.all_pins(self.places))
        return found

    def close(self) -> None:
        for run, number in pins.all_names(self.places):
            pinning.release(self.places, run, number)


def drive(name: str, path: Path | str = "", *, scope: str = "", **more: Any) -> dict[str, Any]:
    """Return the body of a drive with one source, mounted at ``/<name>``."""
    source = {"node_scope": scope, "path": str(path), "mount_path": f"/{name}", "mode": more.pop("mode", "ReadWrite")}
    if not scope:
        source["node"] = more.pop("node", HOST)
    source["eligible_nodes"] = more.pop("eligible_nodes", [])
    return {"metadata": {"name": name}, "spec": {"sources": [source], **more}}


def refs(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, **more} for name in names]
