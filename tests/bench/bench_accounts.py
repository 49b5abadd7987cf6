# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""10^6 files in 5,000 runs attributed to users and teams in the one walk that measures them, against a bare walk."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from run import Bench, command

from stowage_core import mounts
from stowage_core.accounting.totals import Shares
from stowage_core.places import Places
from stowage_core.runs import stamps
from stowage_core.runs.shape import RunName
from stowage_core.runs.stamps import Stamp
from stowage_core.trees.measure import Scan, Usage
from stowaged import measuring
from stowaged.declared import Target
from stowaged.measuring import Measuring

FILES = 200
USERS = 50
BYTES = 16

# Of its own memory, like the bench of measuring.
_PEAK = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import bench_accounts
bench_accounts.attributed(Path(sys.argv[2]), Path(sys.argv[3]))
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


def run(bench: Bench) -> None:
    runs = 500 if bench.quick else 5000
    with bench.disk("ext4", 8 << 30, "-N", "1700000") as disk:
        for what, links, target in (("", False, 1.3), (", all files with two names", True, 1.5)):
            root = disk.path / ("linked" if links else "plain")
            home = bench.scratch / root.name
            make_runs(root / "runs", home, runs, FILES // 2 if links else FILES, links)
            check(attributed(root, home), runs)
            bench.compare(f"attributed / bare{what}", partial(attributed, root, home), partial(bare, root), target)
        peak = command(sys.executable, "-c", _PEAK, str(Path(__file__).parent), str(root), str(home))
        bench.figure(f"peak memory of a process, {runs} runs", int(peak) / 1024, "MB", 40)


def make_runs(path: Path, home: Path, runs: int, files: int, links: bool) -> None:
    """Make so many runs of so many files each, all of them stamped."""
    found: dict[RunName, Stamp] = {}
    for number in range(runs):
        user, experiment = f"user-{number % USERS:02d}", f"experiment-{number // USERS % 10}"
        run = path / user / experiment / f"run-{number:04d}"
        (run / "work").mkdir(parents=True)
        work_fd, run_fd = (os.open(one, os.O_RDONLY) for one in (run / "work", run))
        for file in range(files):
            fd = os.open(f"shard-{file:05d}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=work_fd)
            os.write(fd, bytes(BYTES))
            os.close(fd)
            if links:
                os.link(f"shard-{file:05d}", f"link-{file:05d}", src_dir_fd=work_fd, dst_dir_fd=run_fd)
        found[RunName(user, experiment, run.name)] = Stamp.of(run_fd, f"team-{number % 7}", 1.0)
        os.close(work_fd)
        os.close(run_fd)
    places = Places.under(str(home))
    for run, stamp in found.items():
        stamps.put(places, run, stamp)


def attributed(root: Path, home: Path) -> dict[str, dict[str, object]]:
    """Measure as the daemon's child does, at full speed, and return the messages by object."""
    measuring._PACE = None  # type: ignore[assignment]
    measuring._beat = lambda send: None
    found: dict[str, dict[str, object]] = {}
    targets = [Target("location/runs", str(root / "runs")), Target("root", str(root))]
    Measuring(Places.under(str(home)), targets, None, {}, mounts.read())(
        lambda message: found.update({str(message["object"]): dict(message)})
    )
    return found


def bare(root: Path) -> Usage:
    fd = os.open(root, os.O_RDONLY)
    try:
        return Scan().measure(fd)
    finally:
        os.close(fd)


def check(found: dict[str, dict[str, object]], runs: int) -> None:
    """A fast wrong answer is none."""
    shares = Shares.from_json(found["location/runs"]["shares"])  # type: ignore[arg-type]
    users, teams = shares.users.values(), shares.teams.values()
    if not sum(one.runs for one in users) == sum(one.runs for one in teams) == runs:
        raise SystemExit(f"of {runs} runs some have no user or no team: {shares}")
    if sum(one.runs_bytes for one in users) != sum(one.bytes for one in teams):
        raise SystemExit(f"the users have other bytes than the teams: {shares}")
