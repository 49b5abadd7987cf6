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
    number = 2000 if bench.quick else 20_000
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
        for turn in range(2 * bench.rounds):
            with watched(path) if turn % 2 else nothing():
                clear()
                start = time.perf_counter()
                work()
                seconds[bool(turn % 2)].append(time.perf_counter() - start)
        bench.ratio(f"{what}, watched / not", seconds[True], seconds[False], target)
        clear()


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def watched(path: Path) -> Iterator[None]:
    """Watch a filesystem in another process, that drains what is told twenty times a second."""
    watching, told = os.pipe()
    child = os.fork()
    if not child:
        fd = os.open(path, os.O_RDONLY)
        watch = Watch(fd)
        watch.measure(fd)
        os.write(told, b"x")
        while os.getppid() != 1:
            watch.drain()
            time.sleep(0.05)
        os._exit(0)
    os.read(watching, 1)
    os.close(watching)
    os.close(told)
    try:
        yield
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
