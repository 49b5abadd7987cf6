# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command ``stowage``.

Exit status: 0 all is well; 1 it could not be done, the daemon is not at work, or a tier takes no writes (tier); 2 wrong
usage; 3 something is wrong with what was checked (check-config), not everything could be measured (measure), copies
cannot go that have to (evict, status), or jobs have to wait (gate).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

from stowage_core import accounts, events, mounts, records
from stowage_core.copies import fills
from stowage_core.data_location import locations as data_locations
from stowage_core.data_location.locations import DataLocation
from stowage_core.differences import Differences
from stowage_core.drives import recorded as drive_records
from stowage_core.drives.declared import check_name
from stowage_core.drives.refs import DriveRef
from stowage_core.errors import Refusal, StowageError, one_line, printable
from stowage_core.eviction import evict as eviction
from stowage_core.eviction import plan as eviction_plan
from stowage_core.eviction import stop as eviction_stop
from stowage_core.paths import check_relative
from stowage_core.places import Places
from stowage_core.runs import mounts as run_mounts
from stowage_core.runs import pinning, pins
from stowage_core.runs.drives import Source
from stowage_core.runs.mounts import Worker
from stowage_core.services import daemon_cycle
from stowage_core.sizes import decimal
from stowage_core.spans import ago, lasting
from stowage_core.trees import measure
from stowage_core.trees.measure import Usage

from . import declared, fill, gate_command, probe, settings, status, tier_command
from .declared import DATA_LOCATION, Target
from .leases import ended_path
from .outcome import FAILED, FOUND, OK, fail, is_privileged, outcome
from .tables import Column, table
from .version import VERSION


def main(arguments: Sequence[str], places: Places) -> int:
    options = _parser().parse_args(arguments)
    if options.needs_root and not is_privileged():
        return fail(f"{options.needs_root}: run it as root")
    return outcome(lambda: options.run(options, places))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stowage", description="Shows and handles the storage of this host.")
    parser.add_argument("--version", action="version", version=f"stowage {VERSION}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Any, text: str, into: Any = commands, root: bool = False) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = into.add_parser(name, help=text, description=text)
        command.set_defaults(run=run, needs_root=command.prog.partition(" ")[2] if root else "")
        return command

    one = add("status", _status, "show what the daemon knows")
    one.add_argument("--json", action="store_true", help="as JSON")
    tier_command.add_options(add("tier", tier_command.run, "show the tiers of a backend, and judge whether it writes"))
    gate_command.add_options(add("gate", gate_command.run, gate_command.DESCRIPTION))
    one = add("measure", _measure, "measure a directory, or everything declared, now")
    one.add_argument("path", nargs="?", help="a directory; without it locations, drives and copies of this host")
    one.add_argument("--json", action="store_true", help="as JSON")
    one = add("evict", _evict, "show which copies would be removed, and why the others stay", root=True)
    what = one.add_mutually_exclusive_group(required=True)
    what.add_argument("--dry-run", action="store_true", help="only show it: removing is the daemon's alone")
    what.add_argument("--go-on", action="store_true", help="let the daemon try again although removing freed nothing")
    one.add_argument("--json", action="store_true", help="as JSON")
    one = add("events", _events, "show what happened to copies on this host")
    one.add_argument("--limit", type=int, default=50, help="how many, the latest last (default: %(default)s)")
    one.add_argument("--json", action="store_true", help="as JSON, one a line")
    add("check-config", _check_config, "check the settings and all that is declared")

    filling = commands.add_parser("fill", help="fill copies, or show their fills").add_subparsers(
        metavar="ACTION", required=True
    )
    one = add("run", _fill_run, "fill a copy; the unit stowage-fill@COPY.service does", filling, True)
    one.add_argument("copy", metavar="WORKSPACE.DRIVE", help="the copy's name")
    one = add("end", _fill_end, "take away what a process that filled a copy has left", filling, True)
    one.add_argument("copy", metavar="WORKSPACE.DRIVE", help="the copy's name")
    one = add("list", _fill_list, "show the fills that are under way or have failed", filling, True)
    one.add_argument("--json", action="store_true", help="as JSON")

    lease = commands.add_parser("lease", help="take, confirm, release, expire or list uses of drives").add_subparsers(
        metavar="ACTION", required=True
    )
    one = add("take", _lease_take, "mount a drive for a worker, and print where", lease, True)
    one.add_argument("drive", help="WORKSPACE/DRIVE")
    one.add_argument("--run", required=True, dest="for_run", metavar="RUN", help="the run that it is for")
    one.add_argument("--worker", default="", help="the worker of the run")
    one.add_argument("--source", type=int, default=0, help="which source of the drive (default: %(default)s)")
    one.add_argument("--sub-path", default="", help="a folder inside the drive")
    one.add_argument("--read-only", action="store_true", help="the worker may not write")
    one.add_argument("--seconds", type=float, default=3600, help="within how long to confirm it (default: %(default)s)")
    one.add_argument("--user", default="", help="who alone reaches it beside root; everybody when left out")
    one = add("confirm", _lease_confirm, "bind a lease to the processes of its run", lease, True)
    _add_pin(one)
    holder = one.add_mutually_exclusive_group(required=True)
    holder.add_argument("--cgroup", default="", help="it lasts as long as this cgroup has processes")
    holder.add_argument("--pid", type=int, default=0, help="it lasts as long as this process")
    one = add("release", _lease_release, "unmount a lease and forget it", lease, True)
    _add_pin(one)
    one.add_argument("--wait", type=float, default=0, metavar="SECONDS", help="how long to wait for what still uses it")
    one.add_argument("--force", action="store_true", help="also while what it is bound to is there, if nothing uses it")
    add("expire", _lease_expire, "release the leases whose run has ended", lease, True)
    one = add("list", _lease_list, "show all leases", lease, True)
    one.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _add_pin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("for_run", metavar="RUN", help="the run")
    parser.add_argument("number", type=int, nargs="?", help="the lease's number; all of the run when left out")
    parser.add_argument("--worker", default="", help="of all leases of the run those of this worker")


def _width() -> int | None:
    """Return how many columns there are; None, for any number, in a pipe or a job's log."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None


def _print(lines: Sequence[str]) -> None:
    print("\n".join(lines))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, sort_keys=True))


# -- What is known


def _status(options: argparse.Namespace, places: Places) -> int:
    state = status.read(places)
    try:
        stale = daemon_cycle.is_stale(state.get("cycle"), time.time())
        lines = [] if options.json else status.render(state, _width())
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        rule = f"the daemon's state is of another version ({error!r})"
        raise Refusal(places.state_dir, rule, "restart stowaged") from error
    if options.json:
        _print_json(state)
    else:
        _print(lines)
    return FAILED if stale else FOUND if status.is_blocked(state) else OK


def _events(options: argparse.Namespace, places: Places) -> int:
    found = events.read(places, options.limit)
    if options.json:
        for event in found:
            print(json.dumps(event, sort_keys=True))
        return OK
    for event in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
        print(f"{when}  {printable(event['object'])}  {printable(event['message'])}")
    return OK


def _check_config(_options: argparse.Namespace, places: Places) -> int:
    problems = []
    host = ""
    try:
        host = settings.load(places).host
    except settings.SettingsError as error:
        problems += [f"{places.daemon_json}: {problem}" for problem in error.problems]
    except StowageError as error:
        problems.append(str(error))
    try:
        found = declared.load(places, host)
    except StowageError as error:
        problems.append(str(error))
    else:
        print(f"{len(found.targets)} directories and {len(found.drives)} drives are declared")
    for problem in problems:
        print(problem)
    print("not usable" if problems else "all is well")
    return FOUND if problems else OK


# -- Measuring


def _measure(options: argparse.Namespace, places: Places) -> int:
    targets, location = _measured(options.path, places)
    rows, values = [], []
    complete = True
    for target in targets:
        try:
            usage = _usage(places, target, location)
        except probe.UnmadeError:
            continue  # no fault, and nothing to measure
        except (StowageError, OSError) as error:
            if options.path:
                raise
            # The others can be measured all the same; of this one nothing is known, which is no zero.
            problem = one_line(error)
            figures: dict[str, Any] = {**dict.fromkeys(Usage().to_json()), "complete": False, "problems": [problem]}
            shown = ["-", "-", "-", "no"]
        else:
            figures = usage.to_json()
            shown = [
                decimal(usage.bytes),
                decimal(usage.allocated),
                str(usage.files),
                "yes" if usage.complete else "no",
            ]
        complete = complete and figures["complete"]
        name = options.path or target.object
        values.append({"object": name, "path": target.path, **figures})
        rows.append([printable(name), *shown])
    if options.json:
        _print_json(values)
    else:
        columns = (
            Column("Measured", shrinks=True),
            Column("Size", right=True),
            Column("On disk", right=True),
            Column("Files", right=True),
            Column("Complete"),
        )
        _print(table(columns, rows, _width()))
        for value in values:
            for problem in value["problems"]:
                print(f"! {problem}")
    return OK if complete else FOUND


def _measured(path: str | None, places: Places) -> tuple[list[Target], DataLocation | None]:
    """Return what is to be measured, and the data location."""
    if path:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))  # nothing is declared of it
        return [Target("directory", os.path.abspath(path))], None
    found = declared.load(places, settings.load(places).host)
    if not found.targets:
        raise StowageError("nothing is declared on this host: name a directory, or roll the host out")
    return list(found.targets), found.data_location


def _usage(places: Places, target: Target, location: DataLocation | None) -> Usage:
    """Measure a directory, which must be the declared one.

    :raises StowageError: when it is not there, or is only the place where its disk is missing
    """
    if (target.object == DATA_LOCATION or target.claim is not None) and not is_privileged():
        raise Refusal(target.path, "only root can see whose it is", "run it as root")
    fd, _mount, _table = probe.open_target(places, target, location, mounts.read())
    try:
        return measure.Scan().measure(fd)
    finally:
        os.close(fd)


# -- Eviction


def _evict(options: argparse.Namespace, places: Places) -> int:
    if options.go_on:
        print("eviction goes on" if eviction_stop.lift(places) else "eviction had not stopped")
        return OK
    configuration = settings.load(places)
    location = _data_location(places)
    plan = eviction.current_plan(places, location, configuration.limits)
    in_use = eviction.look(places, location, plan.victims)
    going = [victim for victim in plan.victims if victim.name not in in_use]
    kept = {**plan.kept, **in_use}
    if options.json:
        _print_json({"remove": [victim._asdict() for victim in going], "keep": kept, "blocked": plan.blocked})
        return FOUND if plan.blocked else OK
    if plan.triggers:
        reasons = " and ".join(eviction_plan.REASONS[trigger].split(": ")[-1] for trigger in sorted(plan.triggers))
        print(f"Room has to be made at {printable(location.path)}: {reasons}")
    else:
        print(f"No room has to be made at {printable(location.path)}")
    if going:
        verb = "goes" if configuration.evict == "on" else "would go"
        rows = [[printable(one.name), decimal(one.allocated), one.why] for one in going]
        columns = (Column(f"This {verb}", shrinks=True), Column("On disk", right=True), Column("Why", shrinks=True))
        _print(["", *table(columns, rows, _width())])
    if kept:
        rows = [[printable(name), why] for name, why in sorted(kept.items())]
        _print(["", *table((Column("This stays", shrinks=True), Column("Why", shrinks=True)), rows, _width())])
    if plan.blocked:
        _print(["", f"! {plan.blocked}"])
    return FOUND if plan.blocked else OK


def _data_location(places: Places) -> data_locations.DataLocation:
    location = data_locations.load(places)
    if location is None:
        raise StowageError("this host has no data location; choose one with the playbook data_location")
    return location


# -- Fills


def _fill_run(options: argparse.Namespace, places: Places) -> int:
    fill.end_on_signal()
    return OK if fill.run(places, options.copy) else FAILED


def _fill_end(options: argparse.Namespace, places: Places) -> int:
    fill.end(places, options.copy)
    return OK


def _fill_list(options: argparse.Namespace, places: Places) -> int:
    found = fills.load_all(places)
    if options.json:
        _print_json([{**one.to_json(), "at_work": one.at_work} for one in found])
        return OK
    rows = []
    for one in found:
        what = one.state if one.at_work or one.state == fills.FAILED else "ended"
        rows.append([printable(one.copy), what, ago(time.time() - one.since), f"{one.failures}", one.message or "-"])
    columns = (
        Column("Copy", shrinks=True),
        Column("State"),
        Column("Asked for", right=True),
        Column("Failures", right=True),
        Column("Why", shrinks=True),
    )
    _print(table(columns, rows, _width()) if rows else ["no fills"])
    return OK


# -- Leases


def _lease_take(options: argparse.Namespace, places: Places) -> int:
    shown = f"drive {printable(options.drive)}"
    workspace, slash, name = options.drive.partition("/")
    if not slash:
        raise Refusal(shown, "names no workspace", "write WORKSPACE/DRIVE as it was declared")
    check_name(workspace, shown)
    if options.seconds <= 0:
        raise Refusal("--seconds", "must be above 0")
    ref = DriveRef(
        check_name(name, shown),
        sub_path=check_relative(options.sub_path, "--sub-path"),
        mode=pins.READ_ONLY if options.read_only else pins.READ_WRITE,
        source_index=options.source,
    )
    drives = {drive.name: drive for drive in drive_records.load(places, workspace) or []}
    drive = drives.get(name)
    if drive is None or drive.spec is None or drive.absent:
        raise Refusal(shown, "does not exist on this host", "declare it, and roll the host out")
    if not 0 <= options.source < len(drive.spec["sources"]):
        raise Refusal(shown, f"has no source {options.source}", f"there are {len(drive.spec['sources'])}, from 0")
    host = str((records.read(drive_records.record_path(places, workspace)) or {}).get("host", ""))
    worker = Worker.of(options.for_run, options.worker)
    reader = accounts.find_owner(options.user) if options.user else -1
    if reader is None:
        raise Refusal("--user", f"there is no user {printable(options.user)} on this host", "name another one")
    pin = run_mounts.take(Source(places, host, drive, ref, reader), worker, options.seconds)
    print(pin.path(places))
    return OK


def _lease_confirm(options: argparse.Namespace, places: Places) -> int:
    worker = _worker_of(options)
    run_mounts.confirm(places, worker, options.cgroup, options.pid, Differences(), number=options.number)
    return OK


def _worker_of(options: argparse.Namespace) -> Worker:
    """Return whose leases are meant; with a number also that of a fill, whose process may have left it."""
    run, name = options.for_run, options.worker
    return Worker.of(run, name) if options.number is None else Worker(pins.check_run(run), name)


def _lease_release(options: argparse.Namespace, places: Places) -> int:
    worker = _worker_of(options)
    wait = max(0.0, options.wait)
    run_mounts.release(places, worker, Differences(), wait, force=options.force, number=options.number)
    return OK


def _lease_expire(_options: argparse.Namespace, places: Places) -> int:
    """Release what has ended; the file that says so goes first, so that what ends meanwhile is not missed."""
    records.remove(ended_path(places))
    result = OK
    for run, number in pins.all_names(places):
        try:
            why = pinning.release_ended(places, run, number)
        except records.RecordError as error:
            print(error)
            result = FAILED
        except StowageError as error:
            print(error)  # something still uses it: it is tried again
        except OSError as error:
            print(f"pin {printable(run)}/{number}: it stays: {one_line(error)}")
            result = FAILED
        else:
            if why:
                print(f"pin {printable(run)}/{number}: released, {why}")
    return result


def _lease_list(options: argparse.Namespace, places: Places) -> int:
    found = pins.all_pins(places)
    if options.json:
        fields = ("number", "copy", "left_s")
        _print_json(
            [
                {**pin.to_json(), **{name: getattr(pin, name) for name in fields}, "path": pin.path(places)}
                for pin in found
            ]
        )
        return OK
    rows = []
    for pin in found:
        left = "held" if pin.is_held else f"{lasting(pin.left_s)} left to confirm it" if pin.left_s else "-"
        ended = pins.ended(places, pin) or "-"
        rows.append(
            [f"{printable(pin.run)}/{pin.number}", printable(pin.worker) or "-", _leased(pin), pin.mode, left, ended]
        )
    columns = (
        Column("Lease", shrinks=True),
        Column("Worker", shrinks=True, goes=1),
        Column("Drive", shrinks=True),
        Column("Mode", goes=2),
        Column("State"),
        Column("Ended"),
    )
    _print(table(columns, rows, _width()) if rows else ["no leases"])
    return OK


def _leased(pin: pins.Pin) -> str:
    if pin.volume:
        return printable(f"volume {os.path.join(pin.volume, pin.sub_path)}").rstrip("/")
    return f"{pin.workspace}/{pin.drive}" + (f" [{pin.source}]" if pin.source else "")
