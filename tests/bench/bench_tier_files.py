# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tiers of whole files: looking at 10^5 files against find, and keeping the marks at 10,000 files a second."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from run import Bench

FILE = 4096
RATE = 10_000
DIRECTORIES = 256
GIB = 1 << 30


def run(bench: Bench) -> None:
    for fstype in ("ext4", "xfs", "btrfs"):
        with bench.disk(fstype, 4 * GIB) as disk:
            for shape, directories in (("one directory", 1), ("1000 directories", 1000)):
                look(bench, f"{fstype}, {shape}", disk.path / shape, directories)
    for fstype in ("tmpfs", "ext4"):
        with in_memory(bench, fstype) as point, first():
            keep(bench, fstype, point, GIB, 30 if bench.quick else 60)


def look(bench: Bench, what: str, root: Path, directories: int) -> None:
    """Look at all files and choose the tenth of them that goes."""
    from stowage_core.tiers import files_eviction, files_round
    from stowage_core.tiers.declared import Watermark

    files = 20_000 if bench.quick else 100_000
    write(root, files, directories)
    time.sleep(files_eviction.YOUNG_S + 0.1)
    fd = os.open(root, os.O_RDONLY)
    limits = files_eviction.Limits(0, files, Watermark(99, 90))

    def ours() -> None:
        plan, _problems = files_round.look(fd, limits, lambda: None)
        if len(list(plan.victims())) != files // 10:
            raise SystemExit(f"not a tenth of {files} files would go")

    def peer() -> None:
        subprocess.run(
            ["find", str(root), "-type", "f", "-printf", "%b %n %T@ %p\\n"], stdout=subprocess.DEVNULL, check=True
        )

    bench.compare(f"look at {files} files, {what} / find -printf", ours, peer, 2.0)
    os.close(fd)


def write(root: Path, files: int, directories: int) -> None:
    for number in range(directories):
        directory = root / f"{number:03}" if directories > 1 else root
        directory.mkdir(parents=True)
        for file in range(files // directories):
            (directory / f"{file:06}.kv").write_bytes(b"x")


@contextmanager
def in_memory(bench: Bench, fstype: str) -> Iterator[Path]:
    """A filesystem in memory: the machine's disk is not what is measured."""
    from run import command

    memory, point = bench.scratch / f"{fstype}-memory", bench.scratch / fstype
    memory.mkdir()
    point.mkdir()
    command("mount", "-t", "tmpfs", "-o", "size=8G,nr_inodes=2000000", "tmpfs", str(memory))
    try:
        if fstype == "tmpfs":
            command("mount", "--bind", str(memory), str(point))
        else:
            with open(memory / "image", "xb") as file:
                file.truncate(6 * GIB)
            command(f"mkfs.{fstype}", "-q", "-N", "2000000", str(memory / "image"))
            command("mount", "-o", "loop", str(memory / "image"), str(point))
        try:
            yield point
        finally:
            command("umount", str(point))
    finally:
        command("umount", str(memory))


@contextmanager
def first() -> Iterator[None]:
    """Let what is measured go before the machine's other work, where the kernel shares time between sessions."""
    group = Path("/proc/self/autogroup")
    before = group.read_text().split()[-1] if group.exists() else ""
    if before:
        group.write_text("-10")
    try:
        yield
    finally:
        if before:
            group.write_text(before)


def keep(bench: Bench, fstype: str, point: Path, capacity: int, seconds: int) -> None:
    """Have the daemon, with its own settings, keep a tier that is written to from nothing to a burst at once."""
    tier, home = point / "tier", bench.scratch / f"{fstype}-host"
    declare(home, tier, capacity)
    before = used(point)
    fill(tier, int(capacity * 0.85 / FILE))
    daemon = subprocess.Popen(daemon_command(home))
    others = []
    try:
        time.sleep(25)  # it has looked, and sees no need to again
        idle = processor_time(daemon.pid)
        time.sleep(20)
        idle = (processor_time(daemon.pid) - idle) / 20
        for what in ("writer", "reader"):
            command = [sys.executable, __file__, what, str(tier), str(seconds)]
            others.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        began, spent = time.monotonic(), processor_time(daemon.pid)
        samples = []
        while others[0].poll() is None:
            samples.append(used(point) - before)
            time.sleep(0.05)
        spent = (processor_time(daemon.pid) - spent) / (time.monotonic() - began)
        told = [json.loads(one.communicate()[0]) for one in others]
    finally:
        for process in (daemon, *others):
            if process.poll() is None:
                process.terminate()
            process.wait()
    rate = told[0]["files"] / told[0]["seconds"]
    bench.figure(f"{fstype}: {RATE} files a second wanted / written", RATE / rate, "", 1.01, f"{rate:.0f}/s")
    bench.figure(f"{fstype}: most of its capacity in use, written to so fast", max(samples) / capacity * 100, "%", 100)
    least = min(samples[len(samples) // 3 :]) / capacity * 100
    bench.figure(f"{fstype}: low mark / least in use after a third of the time", 80 / least, "", 1.02)
    opened = f"of {told[0]['opened'] + told[1]['opened']}"
    bench.figure(f"{fstype}: open files that were removed", told[0]["lost"] + told[1]["lost"], "", 0, opened)
    bench.figure(f"{fstype}: stowaged meanwhile", spent * 100, "% of a core", 100)
    bench.figure(f"{fstype}: stowaged before", idle * 100, "% of a core", 0.5)
    # Who has found a name, and is not yet about to open it, gets the whole file without a name.
    print(f"  {fstype}: {told[1]['raced']} of {told[1]['opened']} files lost their names as they were opened")


def declare(home: Path, tier: Path, capacity: int) -> None:
    from stowage_core import owner, records
    from stowage_core.places import Places
    from stowage_core.tiers import host, recorded
    from stowage_core.tiers.declared import read_backends

    places = Places.under(str(home))
    records.write(places.daemon_json, {"host": "gpu-01", "evict": "on"})
    disk = {"path": str(tier), "capacity": capacity, "eviction": {"enabled": True}}
    group = {"store": "files", "owner": "0", "local_disks": [disk]}
    (backend,) = read_backends([{"name": "files", "members": [group]}])
    records.write(places.tiers_json, recorded.backends_json([backend]))
    # tier_directory takes no disk that memory is.
    tier.mkdir()
    fd = os.open(tier, os.O_RDONLY)
    mark = owner.claim(fd, host.KIND, "files/0", "one", "gpu-01")
    os.close(fd)
    records.write(places.claims_json, {"claims": {}})
    owner.Registry(places).add(str(tier), mark)
    recorded.write_claimed(places, {"files/0": recorded.Claimed(str(tier), "one", time.time())})


def daemon_command(home: Path) -> list[str]:
    repository = Path(__file__).resolve().parents[2]
    program = home / "program"
    subprocess.run([sys.executable, str(repository / "daemon" / "build.py"), str(program)], check=True)
    return [sys.executable, str(program), "--prefix", str(home), "daemon"]


def used(point: Path) -> int:
    space = os.statvfs(point)
    return (space.f_blocks - space.f_bfree) * space.f_frsize


def processor_time(pid: int) -> float:
    """Return the seconds of a process, of its children that have ended, and of those at work."""
    total = 0.0
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for one, fields in ((pid, range(11, 15)), *((int(child), range(11, 13)) for child in children)):
        try:
            values = Path(f"/proc/{one}/stat").read_bytes().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(int(values[field]) for field in fields)
    return total / os.sysconf("SC_CLK_TCK")


# -- Who writes, and who reads


def fill(tier: Path, files: int) -> None:
    for number in range(DIRECTORIES):
        (tier / f"{number:02x}").mkdir()
    for number in range(files):
        with open(tier / f"{number % DIRECTORIES:02x}" / f"old-{number:09}", "wb") as file:
            file.write(bytes(FILE))


def writer(tier: Path, seconds: float) -> dict[str, Any]:
    """Write so many files a second for so long, each open for 10 ms at least."""
    content, opened, files, lost = bytes(FILE), [], 0, 0
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        for _number in range(RATE // 100):
            name = f"{tier}/{files % DIRECTORIES:02x}/new-{files:09}"
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(fd, content)
            opened.append(fd)
            files += 1
        due = began + files / RATE
        time.sleep(max(0.0, due - time.monotonic()))
        for fd in opened:
            lost += not os.fstat(fd).st_nlink
            os.close(fd)
        opened.clear()
    return {"files": files, "opened": files, "seconds": time.monotonic() - began, "lost": lost, "raced": 0}


def reader(tier: Path, seconds: float) -> dict[str, Any]:
    """Open old files, those first that are about to go, and hold each for a second."""
    held: list[tuple[float, int]] = []
    opened = lost = raced = 0
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        directory = f"{tier}/{random.randrange(DIRECTORIES):02x}"
        for name in sorted(os.listdir(directory), key=lambda name: (name[:3] == "new", name))[:20]:
            try:
                fd = os.open(f"{directory}/{name}", os.O_RDONLY)
            except FileNotFoundError:
                continue
            opened += 1
            if os.fstat(fd).st_nlink:
                held.append((time.monotonic(), fd))
            else:
                raced += 1
                os.close(fd)
        while held and time.monotonic() - held[0][0] > 1:
            _time, fd = held.pop(0)
            lost += not os.fstat(fd).st_nlink
            os.close(fd)
        time.sleep(0.01)
    return {"opened": opened, "lost": lost, "raced": raced}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print(json.dumps({"writer": writer, "reader": reader}[sys.argv[1]](Path(sys.argv[2]), float(sys.argv[3]))))
