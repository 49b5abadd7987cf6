# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""``stowaged``: looks at the host every ten seconds, measures every five minutes, and makes room where it may.

One thread, which never waits for a disk: whatever touches one runs in a child. Between its work the daemon holds no
descriptor and no directory on any disk, so the host can unmount them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from stowage_core import mounts, records
from stowage_core.drives import recorded as drive_records
from stowage_core.errors import StowageError, one_line
from stowage_core.gate.judgement import Hold
from stowage_core.locks import lock
from stowage_core.mounts import Mount
from stowage_core.places import Places
from stowage_core.runs import stamps

from . import settings
from .accounts import Accounting
from .children import Children, Message
from .declared import DATA_LOCATION, Declared
from .engines import Engines
from .evicting import Evicting
from .figures import Figures
from .filling import Fillings
from .gate import Gate
from .hung import Hung, Prober
from .leases import Leases
from .loop import Loop
from .network import NetworkMounts
from .notify import Notifier
from .reader import ACCOUNTS, Reader, Recorded
from .sections import Sections
from .settings import Settings
from .tier_evicting import TierEvicting
from .tiers import Tiers
from .version import VERSION
from .volumes import Volumes
from .writer import Writer

STOP_S = 0.5
LET_GO_S = 2.0
"""How long the service manager may take to have ended leases let go."""
INSTANCE_S = 2.0
"""How long an earlier daemon may take to be gone."""


def main(places: Places) -> int:
    try:
        configuration = settings.load(places)
    except (StowageError, OSError) as error:
        print(f"stowaged: {error}", file=sys.stderr)
        return 1
    os.chdir("/")
    try:
        held = _hold_instance(places)
    except (StowageError, OSError) as error:
        print(f"stowaged: {error}", file=sys.stderr)
        return 1
    # A path may be no text at all: it is escaped in the log rather than fatal.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    service = Service(places, configuration)
    try:
        service.run()
    finally:
        service.close()
        os.close(held)
    return 0


def _hold_instance(places: Places) -> int:
    """Return a descriptor that holds this host's place for one daemon: two would decide against each other."""
    records.make_directory(places.run)
    directory = os.open(places.run, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return lock(directory, os.fsencode(os.path.basename(places.daemon_lock)), INSTANCE_S)
    except StowageError as error:
        raise StowageError("another one is at work on this host: systemctl status stowaged") from error
    finally:
        os.close(directory)


def say(text: str) -> None:
    """Tell the journal."""
    print(text, flush=True)


class Service:
    """The daemon."""

    def __init__(self, places: Places, configuration: Settings) -> None:
        self._places = places
        self._settings = configuration
        self._started = time.time()
        self._loop = Loop()
        self._notifier = Notifier()
        self._children = children = Children(self._loop)
        self._hung = Hung(children)
        self._reader = Reader(places, children, self._declare, self._take_holds)
        self._prober = Prober(places, children, self._hung, say)
        self._sections = Sections(places, say)
        self._writer = Writer(children, say)
        self._engines = Engines(places, children, self._hung, self._writer, say)
        self._figures = Figures(places, children, self._engines, self._hung, say, self._soon)
        self._leases = Leases(
            places, children, say, self._figures.used, lambda: self._loop.later(LET_GO_S, self._cycle)
        )
        self._fillings = Fillings(places, say)
        self._network = NetworkMounts(children, self._hung, self._sections, say)
        self._volumes = Volumes(places, self._sections, self._writer)
        self._accounting = Accounting(places, self._sections, self._writer, say)
        self._gate = Gate(places, self._sections, self._writer, say)
        self._tiers = Tiers(places, children, self._figures, self._sections, self._writer, say)
        self._tier_evicting = TierEvicting(
            places, children, self._figures, self._sections, self._writer, say, configuration.evict
        )
        self._evicting = Evicting(
            places,
            children,
            self._sections,
            self._figures,
            self._fillings,
            self._leases.holds,
            self._writer,
            say,
            lambda seconds: self._loop.later(seconds, self._cycle),
            configuration.evict,
        )
        self._declared: Declared | None = None
        """None until it was read once: nothing is concluded from what is not known."""
        self._holds: list[Hold] = []
        """What holds jobs because somebody said so."""
        self._wrong = {"settings": "", "declared": ""}
        self._config: dict[str, Any] = {
            "successful": True,
            "error": "",
            "loaded": self._started,
            "settings": dict(configuration.declared),
        }
        self._ready = False

    def run(self) -> None:
        """Work until a signal says to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, self._loop.stop)
        self._loop.on_signal(signal.SIGHUP, self._reload)
        if self._notifier.watchdog_s:
            period = self._notifier.watchdog_s / 3
            self._loop.every(lambda: period, self._notifier.alive)
        self._writer.do(self._sweep)
        self._loop.every(lambda: self._settings.cycle_s, self._cycle)
        self._loop.run()
        self._notifier.stopping()

    def close(self) -> None:
        self._children.kill_all(STOP_S)
        self._loop.close()

    def _reload(self) -> None:
        self._notifier.reloading()
        try:
            self._settings = settings.load(self._places)
        except (StowageError, OSError) as error:
            self._note_config("settings", str(error))
        else:
            self._note_config("settings", "")
            self._evicting.change_mode(self._settings.evict)
            self._tier_evicting.change_mode(self._settings.evict)
            self._engines.retry()
        self._notifier.ready(self._status())
        self._soon()

    def _note_config(self, part: str, error: str) -> None:
        """Take on what is wrong with a part of the configuration, or that nothing is."""
        if part == "declared" and error == self._wrong[part]:
            return
        if error:
            is_first = part == "declared" and self._declared is None
            kept = "nothing is looked at until it can be" if is_first else "the earlier one stays in force"
            say(f"the configuration could not be loaded, {kept}: {error}")
        elif self._wrong[part]:
            say("the configuration could be loaded again")
        self._wrong[part] = error
        wrong = "; ".join(filter(None, self._wrong.values()))
        self._config = {
            "successful": not wrong,
            "error": wrong,
            "loaded": time.time(),
            "settings": dict(self._settings.declared),
        }
        self._publish_config()

    def _publish_config(self) -> None:
        self._sections.put("config", {**self._config, "declared": self._declared is not None})

    def _declare(self, found: Declared, recorded: Recorded) -> None:
        self._declared = found
        self._figures.declare(found, recorded)
        if ACCOUNTS in recorded:
            self._accounting.recall(recorded[ACCOUNTS])

    def _take_holds(self, found: list[Hold]) -> None:
        self._holds = found

    def _sweep(self) -> str:
        """Remove what killed processes have left half written."""
        try:
            for directory in (*self._places.directories, *stamps.directories(self._places)):
                records.sweep(directory)
        except (OSError, records.RecordError) as error:
            return one_line(error)
        return ""

    # -- Every cycle

    def _cycle(self) -> None:
        if self._reader.busy or self._prober.busy:
            return  # a filesystem does not answer: that round ends soon, and the next one leaves it out
        self._reader.start(self._settings.host, say, self._look)

    def _look(self, wrong: str) -> None:
        self._note_config("declared", wrong)
        declared = self._declared
        if declared is None:
            self._wait(wrong)
            return
        table = mounts.read()
        self._leases.look(drive_records.forced(declared.drives))
        self._fillings.look()
        self._network.look(declared.network_mounts, declared.network_error, table)
        self._prober.start(
            declared.asked,
            declared.data_location,
            table,
            lambda answers: self._answered(declared, answers, table),
        )

    def _wait(self, wrong: str) -> None:
        """Do what needs no declaration while it is not known what is declared; no cycle has ended with that."""
        self._leases.look()
        self._sections.put("leases", self._leases.shown())
        self._publish_config()
        self._gate.judge_unknown(wrong, self._holds, self._settings)
        self._notify()

    def _soon(self) -> None:
        """Look again at once: what was waited for is there."""
        self._loop.later(0.0, self._cycle)

    def _answered(self, declared: Declared, answers: dict[str, Message], table: list[Mount]) -> None:
        self._figures.answered(answers)
        # First: a measurement of the copies that is due again at once would leave no moment for it.
        self._evicting.decide(declared, self._settings, answers.get(DATA_LOCATION))
        self._figures.measure_when_due(table, self._settings)
        self._tiers.look(declared.tiers, self._settings.scan_interval_s)
        self._tier_evicting.look(declared.tiers, self._settings)
        self._volumes.look(declared.volumes, answers)
        self._publish(declared)
        self._notify()

    def _notify(self) -> None:
        """Tell the service manager how it goes, the first time that the daemon is at work."""
        if not self._ready:
            self._ready = True
            self._notifier.ready(self._status())
        else:
            self._notifier.status(self._status())

    def _publish(self, declared: Declared) -> None:
        self._figures.publish(self._sections)
        self._engines.publish(self._sections)
        self._accounting.look(self._figures.accounted(), self._settings.allowed)
        self._sections.put("copies", {"copies": self._figures.copies_shown(declared, self._leases)})
        self._sections.put("fills", self._fillings.shown(declared))
        self._sections.put("leases", self._leases.shown())
        self._publish_config()
        self._gate.judge(self._holds, self._settings)
        if not self._sections.all_written(but="cycle"):
            return  # the time of the last cycle shows that what is published is old
        self._sections.put(
            "cycle",
            {
                "time": time.time(),
                "cycle_s": self._settings.cycle_s,
                "version": VERSION,
                "host": self._settings.host,
                "evict": self._settings.evict,
                "started": self._started,
                "pid": os.getpid(),
            },
        )

    def _status(self) -> str:
        text = f"evict: {self._settings.evict}; {self._figures.summary()}"
        return text + "; the configuration could not be loaded" if self._config["error"] else text
