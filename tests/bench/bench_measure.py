# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A full measurement of 10^6 files in 10^4 directories against du, warm and cold, and its memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from run import Bench, command
from trees import make_tree

from stowage_core.trees.measure import Scan, Usage

# Of its own memory the kernel's VmHWM: ru_maxrss would count what this process took before it became another program.
_PEAK = """
import os, resource, sys
from stowage_core.trees.measure import Scan
Scan(workers=int(sys.argv[2])).measure(os.open(sys.argv[1], os.O_RDONLY))
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
"""


def run(bench: Bench) -> None:
    directories = 1000 if bench.quick else 10_000
    with bench.disk("ext4", 4 << 30, "-N", "1300000") as disk:
        tree = disk.path / "tree"
        make_tree(tree, directories, 100)
        linked = disk.path / "linked"
        make_links(linked, directories * 10)
        disk.forget()
        same_totals(tree)
        same_totals(linked)
        bench.compare("warm, one worker / du", measuring(tree, 1), du(tree), 1.8)
        bench.compare("warm, two workers / du", measuring(tree, 2), du(tree), 1.1)
        bench.compare("hard links, one worker / du", measuring(linked, 1), du(linked), 1.8)
        bench.compare("hard links, two workers / du", measuring(linked, 2), du(linked), 1.8)
        bench.compare("cold, eight workers / du", measuring(tree, 8), du(tree), 0.65, before=disk.forget)
        for what, path, workers in (("one worker", tree, 1), ("eight workers", tree, 8), ("hard links", linked, 2)):
            peak = int(command(sys.executable, "-c", _PEAK, str(path), str(workers))) / 1024
            bench.figure(f"peak memory of a process, {what}", peak, "MB", 25)


def make_links(root: Path, files: int) -> None:
    """Each file has two names, in two directories."""
    make_tree(root / "a", files // 100, 100)
    for directory, _names, names in os.walk(root / "a"):
        beside = Path(str(root / "b") + directory[len(str(root / "a")) :])
        beside.mkdir(parents=True)
        for name in names:
            os.link(os.path.join(directory, name), beside / name)


def measured(path: Path, workers: int) -> Usage:
    fd = os.open(path, os.O_RDONLY)
    try:
        return Scan(workers=workers).measure(fd)
    finally:
        os.close(fd)


def measuring(path: Path, workers: int) -> Callable[[], object]:
    return lambda: measured(path, workers)


def du(path: Path, *options: str) -> Callable[[], str]:
    return lambda: command("du", "-s", "--apparent-size", "--block-size=1", str(path)).split()[0]


def same_totals(path: Path) -> None:
    """A fast wrong answer is none."""
    total = int(du(path)())
    for workers in (1, 2, 8):
        usage = measured(path, workers)
        if not usage.complete or total not in (usage.bytes, usage.bytes + usage.directory_bytes):
            raise SystemExit(f"{path}: du counts {total} bytes, {workers} workers count {usage}")
