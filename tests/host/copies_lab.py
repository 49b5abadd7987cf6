# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A data location with copies in it, and processes that hold something of a copy, for the tests of eviction."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from stowage_core import mounts, owner, records
from stowage_core.copies import present as copies
from stowage_core.copies.present import CopyRecord
from stowage_core.data_location.locations import CONDEMNED, DRIVES, KIND, LOCKS, PENDING, DataLocation
from stowage_core.drives.declared import check_drives
from stowage_core.eviction import evict as eviction
from stowage_core.eviction.plan import Settings
from stowage_core.places import Places
from stowage_core.use import look as use
from stowage_core.use.look import InUse

HOST = "gpu-01"
NOW = Settings(minimum_age_s=0, boot_grace_s=0)
EVERYTHING = 1
"""A limit of one byte: every cache copy has to go."""

PRELUDE = """
import ctypes, mmap, os, socket, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def mount(source, target, fstype, flags, data=None):
    check(libc.mount(source.encode(), target.encode(), fstype.encode(), ctypes.c_ulong(flags), data and data.encode()))
def unshare(flags):
    check(libc.unshare(flags))
def own_namespace():
    unshare(0x00020000)
    mount("none", "/", "", 16384 | 262144)  # MS_REC | MS_PRIVATE
def ready():
    print("ready", flush=True)
    time.sleep(600)
copy = sys.argv[1] if len(sys.argv) > 1 else ""
"""


@contextlib.contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python code that calls ``ready()`` when it holds what it should, and end it afterwards."""
    child = subprocess.Popen([sys.executable, "-c", PRELUDE + code, *arguments], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n", code
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


class Lab:
    """One host: its places, its data location, and the copies in it."""

    def __init__(self, disk: Path, home: Path) -> None:
        self.places = Places.under(str(home))
        self.path = disk / "stowage"
        self.path.mkdir()
        self.path.chmod(0o755)
        for name in (DRIVES, b".stowage", LOCKS, b".stowage-trash", PENDING, CONDEMNED):
            (self.path / os.fsdecode(name)).mkdir(mode=0o700)
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            identity = str(uuid.uuid4())
            filesystem = mounts.identify(fd, mounts.read())
            owner.claim(fd, KIND, str(self.path), identity, HOST)
        finally:
            os.close(fd)
        self.location = DataLocation(str(self.path), 0, HOST, filesystem, identity)
        records.write(self.places.data_location_json, self.location.to_json())
        self.drives: dict[str, dict[str, dict[str, Any]]] = {}
        self.in_use: InUse = use.in_use

    def limited(self, max_bytes: int) -> DataLocation:
        return replace(self.location, max_bytes=max_bytes)

    def declare(self, name: str, **changes: Any) -> str:
        """Declare the drive of a copy and return its identity."""
        workspace, drive = name.split(".")
        known = self.drives.setdefault(workspace, {})
        identity = known[drive]["identity"] if drive in known else str(uuid.uuid4())
        spec = {
            "sources": [{"node_scope": "placed", "path": changes.pop("path", "")}],
            "evictable": changes.pop("evictable", True),
            **{key: changes.pop(key) for key in ("fill", "permissions", "size_hint_bytes") if key in changes},
        }
        (entry,) = check_drives([{"metadata": {"name": drive}, "spec": spec}])
        known[drive] = {
            **entry,
            "identity": identity,
            **changes,
        }
        records.write(
            os.path.join(self.places.drives_dir, f"{workspace}.json"),
            {"workspace": workspace, "host": HOST, "drives": list(known.values())},
        )
        return identity

    def copy(self, name: str, size: int = 65536, last_used: float | None = None, **changes: Any) -> Path:
        """Make a copy with one file of *size* bytes, ``data/file``, and its record."""
        identity = self.declare(name, **changes)
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with copies.locked(fd, name), copies.prepared(fd, self.location, name, identity):
                pass
        finally:
            os.close(fd)
        path = self.at(name)
        (path / "data").mkdir()
        with open(path / "data" / "file", "wb") as stream:
            for start in range(0, size, 1 << 20):
                stream.write(os.urandom(1 << 12) * 256 if size - start >= 1 << 20 else b"x" * (size - start))
        workspace, drive = name.split(".")
        record = CopyRecord(workspace, drive, identity, "", size, size, 1, 3, True, 1.0, last_used)
        copies.write_record(self.places, name, record)
        return path

    def at(self, name: str) -> Path:
        return self.path / "drives" / name

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path / "drives"))

    def trash(self) -> list[str]:
        trash = self.path / ".stowage-trash"
        return sorted(f"{part}/{name}" for part in ("pending", "condemned") for name in os.listdir(trash / part))

    def evict(self, max_bytes: int = EVERYTHING, settings: Settings = NOW, **more: Any) -> eviction.Result:
        return eviction.evict(self.places, self.limited(max_bytes), settings, **{"in_use": self.in_use, **more})
