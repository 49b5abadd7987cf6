# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the exporter serves, as bytes: made again, section by section, only when the daemon wrote something new."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection
from typing import Any

from stowage_core import records
from stowage_core.gate.recorded import Gate, as_of
from stowage_core.places import Places
from stowage_core.services import daemon_cycle

from . import metrics, sections


class Pages:
    """The pages of the exporter."""

    def __init__(self, places: Places, left_out: Collection[str] = ()) -> None:
        self._places = places
        self._left_out = left_out
        self._stamps: dict[str, tuple[int, int] | None] = {}
        self._rendered = {"": metrics.build_info()}
        self._sources: dict[str, bytes] = {}
        self._cycle: dict[str, Any] | None = None
        self._gate: dict[str, Any] | None = None
        self._gate_shown: Gate | None = None
        self.metrics = self._rendered[""]
        self.status = b"{}\n"

    def refresh(self) -> bool:
        """Take in the sections that were replaced since the last time; return whether anything is shown otherwise."""
        changed = [name for name in sections.NAMES if self._take(name)]
        if self._show_gate() or changed:
            self.metrics = b"".join(self._rendered.values())
            self.status = b"{" + b",\n".join(b'"%s": %s' % item for item in self._items()) + b"}\n"
            return True
        return False

    def health(self) -> tuple[bool, str]:
        """Return whether the daemon is at work, in one line."""
        if self._cycle is None:
            return False, "the daemon has not finished a cycle since this host was started"
        now = time.time()
        text = f"last cycle of the daemon {max(0.0, now - self._cycle['time']):.0f} s ago"
        return not daemon_cycle.is_stale(self._cycle, now), text

    def _items(self) -> list[tuple[bytes, bytes]]:
        return [(name.encode(), source) for name, source in self._sources.items()]

    def _take(self, name: str) -> bool:
        path = sections.path_of(self._places, name)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return False
        stamp = (status.st_mtime_ns, status.st_ino)
        if self._stamps.get(name) == stamp:
            return False
        self._stamps[name] = stamp
        with open(path, "rb") as stream:
            source = stream.read()
        try:
            section = json.loads(source)
            if name == "cycle":
                daemon_cycle.is_stale(section, 0.0)
            elif name == "gate":
                as_of(section, 0.0)
            rendered = metrics.render(name, section, self._left_out)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            # What is not shown is not known; the daemon writes it anew once it is of the exporter's version.
            print(f"{path}: left out, it is of another version ({error!r}); restart stowaged", file=sys.stderr)
            self._rendered[name] = b""
            self._sources.pop(name, None)
            section = None
        else:
            self._rendered[name] = rendered
            self._sources[name] = source.strip()
        if name == "cycle":
            self._cycle = section
        elif name == "gate":
            self._gate = section
        return True

    def _show_gate(self) -> bool:
        """Show the gate as it is now: held as soon as the judgement is too old, though nothing new was written."""
        gate = None if self._gate is None else as_of(self._gate, time.time())
        if gate == self._gate_shown:
            return False
        self._gate_shown = gate
        if gate is not None:
            section = {**(self._gate or {}), "stale": gate.stale, "holds": [hold.to_json() for hold in gate.holds]}
            self._rendered["gate"] = metrics.render("gate", section)
            self._sources["gate"] = records.dumps(section).strip()
        return True
