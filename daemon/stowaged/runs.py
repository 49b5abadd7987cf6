# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The figures of each run, in one record: runs are too many for series, and for more than a few lines of a page."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from stowage_core import records
from stowage_core.places import Places
from stowage_core.trees.measure import Usage

RUNS = "location/runs"
LARGEST = 5


class Runs:
    """Takes the runs of one measurement one by one. Of each only its line is kept: there may be 100,000."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._lines = bytearray()
        self._count = 0
        self._largest: list[dict[str, Any]] = []
        self._before: Mapping[str, Mapping[str, Any]] | None = None

    def add(self, name: str, usage: Usage) -> None:
        figures = {"bytes": usage.bytes, "files": usage.files, "complete": usage.complete, "measured": time.time()}
        if not usage.complete:
            # What could not be read is not zero: the last complete figures stay.
            figures.update(self._last(name), complete=False)
        self._lines += b",\n" if self._count else b"\n"
        self._lines += f"{json.dumps(name)}: {json.dumps(figures)}".encode("ascii")
        self._count += 1
        self._largest.append({"run": name, **figures})
        self._largest.sort(key=lambda run: (-run["bytes"], run["run"]))
        del self._largest[LARGEST:]

    def _last(self, name: str) -> Mapping[str, Any]:
        if self._before is None:
            try:
                record = records.read(self._places.runs_json) or {}
            except records.RecordError:
                record = {}  # it is about to be replaced
            self._before = record.get("runs", {})
        return self._before.get(name, {})

    def write(self, path: str, complete: bool) -> None:
        """Replace the record; one that is not complete may lack runs."""
        head = json.dumps({"path": path, "complete": complete, "measured": time.time()})
        text = b'%s, "runs": {%s\n}}\n' % (head[:-1].encode("ascii"), self._lines)
        records.write_bytes(self._places.runs_json, text, 0o644)

    def summary(self) -> dict[str, Any]:
        return {"count": self._count, "largest": self._largest}
