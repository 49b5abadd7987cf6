# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What measuring a watched tree of 10^6 files in 10^4 directories costs against du, and what watching costs writers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from bench_measure import du
from run import Bench, command
from trees import make_tree

from stowage_core.trees.measure import Scan
from stowage_core.trees.watching import Watch

SETTLES_S = 5.0
"""Less than it is, so that the tree need not wait so long until nothing in it may still change by itself."""

_PEAK = """
import os, sys
from stowage_core.trees.watching import Watch
fd = os.open(sys.argv[1], os.O_RDONLY)
watch = Watch(fd)
watch.measure(fd)
assert watch.knows(fd)
watch.measure(fd)
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


def run(bench: Bench) -> None:
    directories = 1000 if bench.quick else 10_000
    with bench.disk("ext4", 8 << 30, "-N", "1500000") as disk:
        tree = disk.path / "tree"
        make_tree(tree, directories, 100)
        os.sync()
        time.sleep(SETTLES_S)
        fd = os.open(tree, os.O_RDONLY)
        watch = Watch(fd, settles_s=SETTLES_S)
        try:
            measure(bench, watch, fd, tree, directories)
        finally:
            watch.close()
            os.close(fd)
        peak = int(command(sys.executable, "-c", _PEAK, str(tree))) / 1024
        bench.figure("peak memory of a process", peak, "MB", 32 + 450 * directories / 1e6)
        writers(bench, disk.path / "written")
    with bench.disk("ext4", 1 << 30, "-N", "100000") as disk:
        beside_mounts(bench, disk.path)
    with bench.disk("ext4", 1 << 30, "-N", "100000") as disk:
        beside_others(bench, disk.path)


def measure(bench: Bench, watch: Watch, fd: int, tree: Path, directories: int) -> None:
    total = du(tree)

    def checked() -> None:
        usage = watch.measure(fd)
        if not usage.complete or int(total()) not in (usage.bytes, usage.bytes + usage.directory_bytes):
            raise SystemExit(f"{tree}: du counts {total()} bytes, and {usage} is known")

    checked()
    bench.compare("listed in full / du", lambda: watch.measure(fd), total, 2.0, before=lambda: watch.forget(fd))
    bench.compare("nothing changed / du", lambda: watch.measure(fd), total, 0.005)
    files = [tree / f"{number // 100:03d}" / f"{number % 100:02d}" / "model-00000.safetensors" for number in
             range(0, directories, 100)]  # fmt: skip

    def change() -> None:
        for file in files:
            with open(file, "ab") as stream:
                stream.write(b"x")

    bench.compare("1 % of directories changed / du", lambda: watch.measure(fd), total, 0.03, before=change)
    checked()
    bench.compare("another scan / du", lambda: Scan().measure(fd), total, 1.8)


def writers(bench: Bench, path: Path) -> None:
    """Writers with and without a watch that somebody drains, in turn."""
    path.mkdir()
    number = 5000 if bench.quick else 50_000
    block = bytes(256 << 10)

    def creates() -> None:
        for name in range(number):
            os.close(os.open(path / f"{name}", os.O_CREAT | os.O_WRONLY))

    def writes() -> None:
        with open(path / "large", "wb", buffering=0) as stream:
            for _block in range(2000):
                stream.write(block)
                if stream.tell() >= 64 << 20:
                    stream.seek(0)

    def appends() -> None:
        with open(path / "log", "wb", buffering=0) as stream:
            for _line in range(number):
                stream.write(block[:4096])

    def clear() -> None:
        for name in os.listdir(path):
            os.unlink(path / name)

    for what, work, target in (
        ("creates", creates, 1.15),
        ("256 KiB writes", writes, 1.03),
        ("4 KiB appends", appends, 1.5),
    ):
        seconds: dict[bool, list[float]] = {False: [], True: []}
        work()
        for turn in range(2 * bench.rounds):
            is_watched = turn % 4 in (1, 2)
            with watched(path) if is_watched else nothing():
                clear()
                start = time.perf_counter()
                work()
                seconds[is_watched].append(time.perf_counter() - start)
        bench.ratio(f"{what}, watched / not", seconds[True], seconds[False], target)
        clear()


def beside_mounts(bench: Bench, path: Path) -> None:
    """Trees in which nothing changes, on a disk on which containers have mounts."""
    number = 30 if bench.quick else 300
    trees = [path / f"copies/{each}" for each in range(number)]
    points = [path / f"containers/{each}" for each in range(number)]
    for one in (*(tree / "data" for tree in trees), *points):
        one.mkdir(parents=True)
    os.sync()
    time.sleep(SETTLES_S)
    fds = [os.open(tree, os.O_RDONLY) for tree in trees]
    watch = Watch(fds[0], settles_s=SETTLES_S)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    try:
        for _round in range(bench.rounds):
            for has_mounts in (False, True):
                for point in points if has_mounts else ():
                    command("mount", "-t", "tmpfs", "none", str(point))
                try:
                    for timed in (False, True):
                        start = time.perf_counter()
                        for fd in fds:
                            watch.measure(fd)
                        if timed:
                            seconds[has_mounts].append(time.perf_counter() - start)
                finally:
                    if has_mounts:
                        command("umount", *map(str, points))
    finally:
        watch.close()
        for fd in fds:
            os.close(fd)
    what = f"{number} unchanged trees beside {number} mounts / without"
    bench.ratio(what, seconds[True], seconds[False], 2)


def beside_others(bench: Bench, path: Path) -> None:
    """A small tree that is known, and many directories of others in which much changes."""
    others = path / "others"
    number = 1200 if bench.quick else 12_000
    (path / "tree").mkdir()
    for each in range(number):
        (others / f"{each}").mkdir(parents=True)
    with watched(path / "tree") as watcher:
        before, memory = watcher.cpu_times(), watcher.memory_info().rss
        writer = time.process_time()
        until = time.monotonic() + (2 if bench.quick else 10)
        while time.monotonic() < until:
            for each in range(number):
                with open(others / f"{each}/file", "ab", buffering=0) as stream:
                    stream.write(b"x")
        writer = time.process_time() - writer
        after = watcher.cpu_times()
        took = after.user + after.system - before.user - before.system
        bench.figure("changes of others' directories: watching / writing", took / writer, "of its CPU time", 0.15)
        bench.figure("memory that grows by that", (watcher.memory_info().rss - memory) / 1e6, "MB", 1)


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def watched(path: Path) -> Iterator[psutil.Process]:
    """Watch a filesystem in another process, that drains what is told twenty times a second."""
    watching, told = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        fd = os.open(path, os.O_RDONLY)
        watch = Watch(fd)
        watch.measure(fd)
        os.write(told, b"x")
        while os.getppid() == parent:
            watch.drain()
            time.sleep(0.05)
        os._exit(0)
    os.read(watching, 1)
    os.close(watching)
    os.close(told)
    try:
        yield psutil.Process(child)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
