# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever is changed while the daemon measures, and whatever happens to it: its figures are those of du.

`STOWAGE_SOAK_TURNS=200` makes it a long one; `STOWAGE_SOAK_SEED`, which it says, makes the same changes again.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from changes_lab import OFTEN, SELDOM, SIZES, Changes, Elsewhere
from copies_lab import Lab
from daemon_lab import Daemon, wait_for
from test_daemon_watch import declare, is_watched, measuring, reload, truth, watchers

TURNS = int(os.environ.get("STOWAGE_SOAK_TURNS", "4"))
CHANGED_S = 1.5
TOO_MANY = 17_000
"""More directories than the kernel keeps events."""
KINDS = [*OFTEN, *OFTEN, *OFTEN, *SELDOM]
COPIES = ("ml.one", "ml.two", "ml.three")


class Soak:
    """A daemon that measures a layout and copies, what changes them, and what happens to it."""

    def __init__(self, changes: Changes, lab: Lab, daemon: Daemon, chance: random.Random) -> None:
        self.changes = changes
        self.lab = lab
        self.daemon = daemon
        self.chance = chance
        places = (Path(os.fsdecode(path)) for path in changes.roots)
        self.paths = dict(zip(("cache", "hf_hub_cache", "packages"), places))
        for name in COPIES:
            lab.copy(name)
        declare(daemon, **self.paths)
        daemon.start()
        wait_for(lambda: daemon.state("filesystems").get("filesystems"))
        self.point = Path(daemon.state("filesystems")["filesystems"][0]["mountpoint"])

    def change(self) -> None:
        """Change much while the daemon measures."""
        pick = self.chance.randrange
        until = time.monotonic() + CHANGED_S
        while time.monotonic() < until:
            self.changes.run(self.chance.choice(KINDS), pick(50), pick(50), self.chance.choice(SIZES))
            if len(self.changes.held) > 100:
                self.changes.run("close", pick(50), 0, 0)
            with open(self.lab.at(self.chance.choice(COPIES)) / f"data/{pick(5)}", "ab") as stream:
                stream.write(bytes(pick(5000)))

    def watcher(self) -> int:
        # One that was killed may linger.
        (found,) = wait_for(lambda: len(there := watchers(self.daemon)) == 1 and there)
        return int(found)

    def kill(self) -> None:
        self.daemon.stop(signal.SIGKILL)
        self.change()
        self.start()

    def restart(self) -> None:
        self.daemon.stop()
        self.change()
        self.start()

    def start(self) -> None:
        self.daemon.messages.clear()
        self.daemon.start()

    def kill_what_watches(self) -> None:
        os.kill(self.watcher(), signal.SIGKILL)
        self.change()
        wait_for(lambda: measuring(self.daemon, self.point).get("engine") == "scan")
        self.change()
        reload(self.daemon, scan_interval_s=1)

    def overflow(self) -> None:
        """Let more change than the kernel keeps while nobody takes it."""
        watcher = self.watcher()
        wait_for(lambda: is_watched(self.daemon, self.point))
        lost = measuring(self.daemon, self.point)["lost"]
        many = Path(os.fsdecode(self.changes.base)) / "in/too many"
        os.kill(watcher, signal.SIGSTOP)
        try:
            for number in range(TOO_MANY):
                (many / f"{number}/in").mkdir(parents=True)
            shutil.rmtree(many)
        finally:
            os.kill(watcher, signal.SIGCONT)
        wait_for(lambda: measuring(self.daemon, self.point).get("lost", 0) > lost)

    def shown(self) -> dict[str, dict[str, Any]]:
        """Return what the daemon says of all that it measures here."""
        found = {name: self.daemon.location(name) for name, path in self.paths.items() if path.is_dir()}
        copies = self.daemon.copies()
        return {**found, **{name: copies.get(name, {}) for name in COPIES}}

    def measured_after(self, times: dict[str, float]) -> dict[str, dict[str, Any]]:
        """Return what it says once all has been measured after these times."""

        def found() -> dict[str, dict[str, Any]] | None:
            shown = self.shown()
            return shown if all((shown[name].get("measured") or 0.0) > times[name] for name in shown) else None

        return dict(wait_for(found, 60))

    def compare(self) -> None:
        """Once nothing changes any more, compare what is measured next, at the first try."""
        while self.changes.mounted:  # du would count what is mounted there
            self.changes.run("umount", 0, 0, 0)
        os.sync()
        wait_for(lambda: is_watched(self.daemon, self.point))
        # What a measurement finds that ends after now may be of before; that of the next one is not.
        ended = self.measured_after(dict.fromkeys(self.shown(), time.time()))
        found = self.measured_after({name: one["measured"] for name, one in ended.items()})
        expected = {name: truth(path, across=True) for name, path in self.paths.items() if name in found}
        expected.update({name: truth(self.lab.at(name)) for name in COPIES})
        assert {name: one["complete"] for name, one in found.items()} == dict.fromkeys(expected, True)
        assert {name: (one["bytes"], one["allocated"], one["inodes"]) for name, one in found.items()} == expected


def test_every_figure_is_that_of_du_whatever_happens(
    disk: Path, fstype: str, shown: Path, elsewhere: Elsewhere, start: Callable[..., Daemon], tmp_path: Path
) -> None:
    seed = int(os.environ.get("STOWAGE_SOAK_SEED", time.time_ns()))
    print(f"STOWAGE_SOAK_SEED={seed}")
    lab = Lab(disk, tmp_path)
    changes = Changes(disk / "world", fstype, shown, elsewhere)
    try:
        soak = Soak(changes, lab, start(lab, scan_interval_s=1), random.Random(seed))
        accidents = [soak.kill, soak.overflow, soak.kill_what_watches, soak.restart]
        for turn in range(TURNS):
            soak.change()
            accidents[turn % len(accidents)]()
            soak.change()
            soak.compare()
    finally:
        changes.close()
