# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Makes trees in the shape of sysfs, as input for what reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

Attributes = Mapping[str, str]


def write(root: Path, files: Attributes) -> Path:
    """Write attribute files, each ending with a newline as the kernel's do; a value ``-> x`` makes a link to x."""
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if value.startswith("-> "):
            path.symlink_to(value[len("-> ") :])
        else:
            path.write_text(value + "\n")
    return root


class Sysfs:
    """A tree that block devices can be added to, laid out as the kernel does: real directories below ``devices``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "class/block").mkdir(parents=True)
        self._routes: dict[str, str] = {}

    def disk(
        self, name: str, number: str, gigabytes: float, route: str = "pci0000:00", attributes: Attributes | None = None
    ) -> Sysfs:
        """Add a disk whose real directory is below ``devices/<route>``."""
        return self._add(name, number, gigabytes, f"devices/{route}/block/{name}", attributes or {})

    def partition(self, name: str, disk: str, number: str, gigabytes: float) -> Sysfs:
        return self._add(name, number, gigabytes, f"{self._routes[disk]}/{name}", {"partition": "1"})

    def stacked(
        self, name: str, number: str, gigabytes: float, on: list[str], attributes: Attributes | None = None
    ) -> Sysfs:
        """Add a device of device mapper or md."""
        self._add(name, number, gigabytes, f"devices/virtual/block/{name}", attributes or {})
        for slave in on:
            write(self.root / self._routes[name], {f"slaves/{slave}": f"-> ../../{slave}"})
        return self

    def _add(self, name: str, number: str, gigabytes: float, route: str, attributes: Attributes) -> Sysfs:
        self._routes[name] = route
        base = self.root / route
        sectors = int(gigabytes * 10**9) // 512
        write(base, {"dev": number, "size": str(sectors), "ro": "0", "hidden": "0", **attributes})
        (self.root / "class/block" / name).symlink_to(base)
        return self
