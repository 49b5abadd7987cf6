# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with a layout on one disk and an empty directory on another, to which its runs are moved."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stowage_core import records
from stowage_core.differences import Differences
from stowage_core.gate import holds
from stowage_core.layout import overrides as layout_overrides
from stowage_core.layout.change import Outcome, Request, lay_out
from stowage_core.layout.found import MountRule
from stowage_core.layout.rules import resolve
from stowage_core.places import Places
from stowage_core.relocation import plan, recorded
from stowage_core.relocation.moving import Moving
from stowage_core.relocation.recorded import Relocation
from stowage_core.relocation.work import Tools
from stowage_core.services.lasting_mounts import LastingMounts
from stowage_core.services.systemd_units import Systemctl

WAIT_S = 300.0
WRITER = """
import os, sys, time
target, told = sys.argv[1:]
number = 0
while True:
    try:
        fd = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError:
        time.sleep(0.002)
        continue
    try:
        line = b"%08d\\n" % number
        os.write(fd, line)
        os.fsync(fd)
    except OSError:
        continue
    finally:
        os.close(fd)
    with open(told, "ab") as done:
        done.write(line)
    number += 1
    time.sleep(0.05)
"""
NOT_TEXT = os.fsdecode(b"na\xffme\n")


def nothing(_step: str) -> None:
    """Go on."""


class Lab:
    def __init__(self, home: Path, old: Path, new: Path, again: bool = False) -> None:
        self.places = Places.under(str(home))
        records.write(self.places.claims_json, {"claims": {}})  # not lost: otherwise all disks are searched for marks
        self.units = home / "units"
        self.units.mkdir()
        self.root = old / "stowage"
        self.path = self.root / "runs"
        self.to = new / "runs"
        self.to.mkdir(exist_ok=again)
        self.told: list[str] = []
        """What systemctl was told."""
        self.overrides: dict[str, Any] = {}
        self.lay_out()

    def run(self, words: Sequence[str], pass_fds: Sequence[int] = ()) -> tuple[int, str, str]:
        if words[0] != "systemctl":
            done = subprocess.run(words, pass_fds=pass_fds, capture_output=True, text=True, check=False)
            return done.returncode, done.stdout, done.stderr
        if words[1] != "show":
            self.told.append(" ".join(words[1:]))
            return 0, "", ""
        names = words[words.index("--") + 1 :]
        blocks = [f"Id={name}\nLoadState=loaded\nFragmentPath={self.units}/{name}" for name in names]
        return 0, "\n\n".join(blocks) + "\n", ""

    @property
    def systemctl(self) -> Systemctl:
        return Systemctl("systemctl", self.run)

    def lay_out(self, **overrides: Any) -> Outcome:
        given, rules = layout_overrides.parse({**self.overrides, **overrides})
        layout = resolve(str(self.root), given)
        request = Request(environment_file=self.places.environment, host_name="gpu-01")
        all_rules = layout_overrides.for_all(layout, MountRule(), rules)
        return lay_out(self.places, layout, all_rules, request, self.systemctl, Differences())

    def moving(self, step: Callable[[str], None] = nothing, location: str = "runs", **tools: Any) -> Moving:
        made = Tools(self.run, self.systemctl, "rsync", str(self.units), **tools)
        return Moving(self.places, location, made, Differences(), step)

    def planned(self, location: str = "runs", to: Path | None = None, **more: Any) -> Relocation:
        request = plan.Request(location, str(to or self.to), **more)
        return plan.Planning(self.places, request, str(self.units), lambda: LastingMounts(b"", ())).plan()

    def until_switched(self, step: Callable[[str], None] = nothing, wait_s: float = WAIT_S, **more: Any) -> Moving:
        moving = self.moving(step)
        moving.close(self.planned(**more), wait_s)
        moving.copy()
        moving.switch()
        return moving

    def move(self, step: Callable[[str], None] = nothing, **more: Any) -> Moving:
        """Do all of it as the playbook does."""
        moving = self.until_switched(step, **more)
        self.lay_out(**moving.recorded().after)
        moving.finish()
        return moving

    @property
    def stage(self) -> str:
        one = recorded.load(self.places, "runs")
        return "" if one is None else one.stage

    @property
    def held(self) -> bool:
        return "relocate/runs" in holds.load(self.places)

    @contextlib.contextmanager
    def writer(self) -> Iterator[Path]:
        """Somebody who appends to a file of the runs, over and over, and tells what they have written."""
        told = Path(self.places.var) / "written"
        told.touch()
        words = [sys.executable, "-c", WRITER, str(self.path / "ann/e/r/log"), str(told)]
        with subprocess.Popen(words, cwd="/") as process:
            try:
                yield told
            finally:
                process.kill()


def fill(path: Path) -> None:
    """Make a bit of everything that a filesystem can hold."""
    run = path / "ann/e/r"
    (run / "work").mkdir(parents=True)
    (run / "log").write_bytes(b"")
    for number in range(40):
        (run / f"work/f{number}").write_bytes(os.urandom(number * 977))
    (run / NOT_TEXT).write_text("not text")
    os.link(run / "work/f7", run / "hard")
    os.link(run / "work/f7", path / "ann/hard")
    with open(run / "sparse", "wb") as file:
        file.truncate(48 << 20)
        file.seek(20 << 20)
        file.write(b"in the middle")
    (run / "latest").symlink_to(run / "work/f1")
    (run / "relative").symlink_to("work/f2")
    os.mkfifo(run / "fifo", 0o640)
    os.mknod(run / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(run / "socket"))
    os.chown(run / "work/f3", 1234, 4321)
    os.chown(run / "latest", 1234, 4321, follow_symlinks=False)
    os.chmod(run / "work/f3", 0o4755)
    os.chmod(run / "work", 0o2771)
    os.setxattr(run / "work/f4", "user.note", b"\0\xff")
    os.setxattr(run / "work/f4", "trusted.note", b"x")
    # As rsync --fake-super makes them, and as anybody can.
    for name, what in (("work/f4", "%stat"), ("work/f8", "%any"), ("work", "%stat"), ("work", "%aacl")):
        os.setxattr(run / name, f"user.rsync.{what}", b"100644 0,0 1234:4321")
    # Access list of version 2: owner, user 1234, group, mask, others.
    entries = ((1, 6, -1), (2, 4, 1234), (4, 4, -1), (16, 4, -1), (32, 0, -1))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(run / "work/f5", "system.posix_acl_access", acl)
    os.setxattr(run, "system.posix_acl_default", acl)
    for number, name in enumerate(("work/f6", "work", "relative")):
        os.utime(run / name, ns=(10**18, 10**18 + 123456789 + number), follow_symlinks=False)
    os.chmod(path, 0o2775)
    os.chown(path, 0, 4321)


def contents(path: Path, but: Sequence[str] = ("ann/e/r/log",)) -> dict[str, Any]:
    """Return what is in a tree: independently of how the product compares."""
    found: dict[str, Any] = {}
    links: dict[int, list[str]] = {}
    for directory, names, files in os.walk(path):
        for name in [".", *files, *(one for one in names if os.path.islink(os.path.join(directory, one)))]:
            place = os.path.normpath(os.path.join(directory, name))
            relative = os.path.relpath(place, path)
            if relative in but:
                continue
            status = os.lstat(place)
            content = ""
            if stat.S_ISREG(status.st_mode):
                with open(place, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(place)
            # XFS shows access lists a second time, by names of its own.
            names_of = [one for one in os.listxattr(place, follow_symlinks=False) if "SGI_ACL" not in one]
            attributes = {one: os.getxattr(place, one, follow_symlinks=False) for one in names_of}
            size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
            # The directory of the log, to which somebody writes.
            time = 0 if relative == "ann/e/r" and but else status.st_mtime_ns
            found[relative] = (
                status.st_mode,
                status.st_uid,
                status.st_gid,
                size,
                time,
                status.st_rdev,
                content,
                attributes,
            )
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                links.setdefault(status.st_ino, []).append(relative)
    found["links"] = sorted(sorted(names) for names in links.values())
    return found
