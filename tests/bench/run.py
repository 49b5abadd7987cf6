# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the benches: make bench, or tests/bench/run.py [--quick] [--rounds N] [NAME ...]

A bench is a file bench_NAME.py beside this one with a function `run(bench: Bench) -> None`. It builds what it needs in
`bench.scratch`, smaller when `bench.quick`, and calls, as often as it likes,

    bench.compare(what, ours, peer, target, before=prepare)   # runs both in turn, `prepare` untimed before each
    bench.ratio(what, ours, peer, target)                     # of seconds that were measured in turn elsewhere
    bench.figure(what, value, unit, target)                   # something measured in another way

`compare` takes the ratio of the medians of the seconds that `ours` and `peer`, two functions, take. A target is the
most that is wanted. Nothing is asserted: each line of the table says whether its target was met or missed. The
results of a bench are also in .build/bench/NAME.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / ".build"
# Where `make venv` puts stowage_core and stowaged.
PACKAGES = BUILD / "types"


@dataclass
class Row:
    """One line of the table."""

    what: str
    ours: str
    peer: str
    value: float
    target: float
    samples: dict[str, list[float]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return "met" if self.value <= self.target else "missed"


class Bench:
    """What a bench is given."""

    def __init__(self, name: str, quick: bool, rounds: int, scratch: Path) -> None:
        self.name = name
        self.quick = quick
        self.rounds = rounds
        self.scratch = scratch
        self.rows: list[Row] = []

    def compare(
        self,
        what: str,
        ours: Callable[[], object],
        peer: Callable[[], object],
        target: float,
        before: Callable[[], object] | None = None,
    ) -> float:
        """Time two functions in turn and note the ratio of their medians."""
        seconds: dict[str, list[float]] = {"peer": [], "ours": []}
        for _round in range(self.rounds):
            for who, function in (("peer", peer), ("ours", ours)):
                if before is not None:
                    before()
                start = time.perf_counter()
                function()
                seconds[who].append(time.perf_counter() - start)
        return self.ratio(what, seconds["ours"], seconds["peer"], target)

    def ratio(self, what: str, ours: list[float], peer: list[float], target: float) -> float:
        """Note the ratio of the medians of seconds."""
        mine, others = statistics.median(ours), statistics.median(peer)
        self._note(Row(what, f"{mine:.3g} s", f"{others:.3g} s", mine / others, target, {"peer": peer, "ours": ours}))
        return mine / others

    def figure(self, what: str, value: float, unit: str, target: float, peer: str = "") -> None:
        """Note one measured figure."""
        self._note(Row(what, f"{value:.3g} {unit}", peer, value, target))

    def _note(self, row: Row) -> None:
        self.rows.append(row)
        print(f"  {row.what}: {row.value:.3g}, at most {row.target:g} wanted: {row.verdict}", flush=True)

    @contextmanager
    def disk(self, fstype: str, size: int, *mkfs: str) -> Iterator[Disk]:
        """A filesystem of its own, on an image read without the page cache. Needs root."""
        home = Path(tempfile.mkdtemp(dir=self.scratch))
        image, point = home / "image", home / "disk"
        with open(image, "xb") as file:
            file.truncate(size)
        command("mkfs." + fstype, "-q", *mkfs, str(image))
        point.mkdir()
        device = command("losetup", "--find", "--show", "--direct-io=on", str(image))
        disk = Disk(device, point)
        try:
            disk.mount()
            try:
                yield disk
            finally:
                disk.unmount()
        finally:
            command("losetup", "--detach", device)
        os.rmdir(point)  # first: what is still mounted is not to be emptied
        shutil.rmtree(home)

    def save(self) -> None:
        """Write the results as JSON."""
        directory = BUILD / "bench"
        directory.mkdir(parents=True, exist_ok=True)
        record = {
            "bench": self.name,
            "quick": self.quick,
            "rounds": self.rounds,
            "kernel": platform.release(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "rows": [{**asdict(row), "verdict": row.verdict} for row in self.rows],
        }
        (directory / f"{self.name}.json").write_text(json.dumps(record, indent=2) + "\n")


@dataclass
class Disk:
    """A mounted image."""

    device: str
    path: Path

    def mount(self) -> None:
        command("mount", self.device, str(self.path))

    def unmount(self) -> None:
        command("umount", str(self.path))

    def forget(self) -> None:
        """Have nothing of it in memory any more; unmounting alone leaves the device's blocks there."""
        self.unmount()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        self.mount()


def command(*arguments: str) -> str:
    """Run a command and return what it says."""
    return subprocess.run(arguments, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def table(rows: list[Row]) -> str:
    """Return the rows, aligned."""
    lines = [("", "Stowage", "peer", "value", "at most", "")]
    lines += [(row.what, row.ours, row.peer, f"{row.value:.3g}", f"{row.target:g}", row.verdict) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def main() -> None:
    names = sorted(path.stem[len("bench_") :] for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(description="Measures Stowage against its peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all when none is given")
    parser.add_argument("--quick", action="store_true", help="smaller trees, for development")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is run")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(names))
    if unknown:
        parser.error(f"no bench {', '.join(unknown)}; there are {', '.join(names)}")
    if os.geteuid() != 0:
        parser.error("the benches mount filesystems and need root")
    for path in (str(PACKAGES), str(HERE)):
        sys.path.insert(0, path)
    os.environ["PYTHONPATH"] = str(PACKAGES)
    rows: list[Row] = []
    for name in arguments.names or names:
        print(f"{name}:", flush=True)
        spec = importlib.util.spec_from_file_location(f"bench_{name}", HERE / f"bench_{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with tempfile.TemporaryDirectory(prefix="stowage-bench-", dir="/var/tmp") as scratch:
            bench = Bench(name, arguments.quick, arguments.rounds, Path(scratch))
            module.run(bench)
        bench.save()
        rows += bench.rows
    print("\n" + table(rows))


if __name__ == "__main__":
    main()
