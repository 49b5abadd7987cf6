# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs the gates named as arguments, all of them whatever fails, and closes with one line of counts.

A gate is a list of checks. A check's output goes to .build/logs and is shown when the check fails. A check that leaves
JUnit files in $STOWAGE_RESULTS counts as the tests in them; every other check, and every scenario, counts as one test.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / ".build"
PLUGINS = "ansible_collections.stowage.host.plugins"
PYTHON = str(REPOSITORY / ".venv/bin/python")
# About twice what the longest check takes, so that a hung one ends, with its name and its log, while there is time for
# the others.
LIMIT_S = 1200
BUSY_SCENARIOS_S = {"host": 1500, "nfs": 2400}
"""Those that keep both processors busy, which the others do not, with the limits that are theirs."""
LONGEST = "modules"
"""Of the others it begins first, so that it does not run alone at their end."""
HEARTBEAT_S = 60
SHOWN_LINES = 150
TOLD_FAILURES, TOLD_TASKS, TOLD_LINES, TOLD_COLUMNS = 10, 3, 12, 200
"""How much of each failed check is told once more at the end, where a log that was cut short still has it."""
STOPPED = threading.Event()
"""Set when a stop from outside takes the running checks along."""


@dataclass(frozen=True)
class Check:
    name: str
    command: list[str]
    # Counts as a test of its own beside the tests in its JUnit files.
    is_test: bool = True
    cleanup: list[str] = field(default_factory=list)
    # Keeps both processors busy.
    alone: bool = False
    limit_s: int = LIMIT_S


@dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """What failed, in a few lines each; told once more at the end."""

    def add(self, other: Counts) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def pytest(name: str, *arguments: str) -> Check:
    command = [PYTHON, "-m", "pytest", "-q", f"--junit-xml={BUILD}/results/{name}/pytest.xml", *arguments]
    return Check(name, command, is_test=False)


def tracked(*patterns: str) -> list[str]:
    listing = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", *patterns], cwd=REPOSITORY)
    return [name for name in listing.decode().splitlines() if (REPOSITORY / name).is_file()]


def lint() -> Iterator[Check]:
    yield Check("ruff check", ["ruff", "check", "--quiet", "."])
    yield Check("ruff format", ["ruff", "format", "--check", "--quiet", "--diff", "."])
    yield Check("mypy", ["mypy", "-p", "stowage_core", "-p", "stowaged"])
    kinds = sorted({path.parent.name for path in REPOSITORY.glob("plugins/*/*.py")} - {"module_utils"})
    yield Check("mypy plugins", ["mypy", *(word for kind in kinds for word in ("-p", f"{PLUGINS}.{kind}"))])
    # What the daemon and the modules run on: nothing that Python 3.9 lacks.
    yield Check("vermin", ["vermin", "-q", "--no-tips", "-t=3.9-", "--violations", "plugins", "daemon/stowaged"])
    yield Check("yamllint", ["yamllint", "."])
    # It would take a release of this collection that is installed in the user's home for this one.
    yield Check("ansible-lint", ["env", f"ANSIBLE_HOME={BUILD}/ansible-lint", "ansible-lint", "-q"])
    yield Check("shellcheck", ["shellcheck", *tracked("*.sh", ".ci/run")])
    yield Check("changelog", ["antsibull-changelog", "lint"])
    yield Check("promtool", ["tests/gates/promtool.sh"])
    yield pytest("tree", "tests/unit/test_tree.py")


def unit() -> Iterator[Check]:
    # Tests of one file stay together: some look at the processes of the machine.
    yield pytest("pytest", "--numprocesses=2", "--dist=loadfile", "tests/unit", "--ignore=tests/unit/test_tree.py")


def playbooks() -> Iterator[Check]:
    yield pytest("playbooks", "--numprocesses=2", "tests/playbooks")
    # The page that one of them makes.
    yield pytest("browser", "tests/browser")


def sanity() -> Iterator[Check]:
    for core in ("oldest", "newest"):
        yield Check(f"{core} core", [PYTHON, "tests/gates/sanity.py", core])


def molecule() -> Iterator[Check]:
    names = [path.parent.name for path in REPOSITORY.glob("molecule/*/molecule.yml")]
    for name in sorted(names, key=lambda name: (name in BUSY_SCENARIOS_S, name != LONGEST, name)):
        test, destroy = (["molecule", verb, "--scenario-name", name] for verb in ("test", "destroy"))
        limit_s = BUSY_SCENARIOS_S.get(name, LIMIT_S)
        yield Check(name, test, cleanup=destroy, alone=name in BUSY_SCENARIOS_S, limit_s=limit_s)


def python39() -> Iterator[Check]:
    # Neither the tree's rules nor the schemas of Kubernetes depend on the Python of a host.
    left_out = [f"--ignore=tests/unit/test_{name}.py" for name in ("tree", "kubernetes_manifests")]
    command = pytest("oldest-python", "tests/unit", *left_out).command[3:]
    yield Check("oldest-python", [PYTHON, "tests/gates/oldest_python.py", *command], is_test=False)


def importer() -> Iterator[Check]:
    yield Check("galaxy-importer", ["tests/gates/importer.sh"])


GATES = {
    "lint": lint,
    "unit": unit,
    "playbooks": playbooks,
    "python39": python39,
    "sanity": sanity,
    "importer": importer,
    "molecule": molecule,
}
SIDE_BY_SIDE = ("lint", "sanity", "molecule")
"""Whose checks run two at a time, as they take one processor each; save for those that run alone."""


def last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").splitlines()
    text = next((line for line in reversed(lines) if line.strip()), "")
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]|[^\x20-\x7e]", "", text).strip(" *")


def show(text: str, *, passing: bool = False) -> None:
    """Print one line; a passing one is overwritten by the next and needs a terminal."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        print("\r\x1b[K" + (text[:width] if passing else text), end="" if passing else "\n", flush=True)
    elif not passing:
        print(text, flush=True)


def run(command: list[str], log: Path, title: str, environment: dict[str, str], limit_s: int = LIMIT_S) -> int | None:
    """Run a command with its output in a log; None when it ran out of time."""
    started = time.monotonic()
    beat = HEARTBEAT_S
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    return process.wait(timeout=0.5)
                except subprocess.TimeoutExpired:
                    spent = int(time.monotonic() - started)
                    line = f"  ...   {title:<22}{spent:6d} s  {last_line(log)}"
                    show(line, passing=True)
                    if spent >= beat and not sys.stdout.isatty():
                        beat += HEARTBEAT_S
                        show(line[:110])
                    if spent > limit_s or STOPPED.is_set():
                        return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def count(check: Check, results: Path, status: int | None) -> Counts:
    counts = Counts()
    for path in sorted(results.rglob("*.xml")):
        for case in xml.etree.ElementTree.parse(path).iter("testcase"):
            if found := [each for each in case if each.tag in ("failure", "error")]:
                counts.failed += 1
                why = (found[0].get("message") or "").splitlines()[:1]
                counts.reasons.append(f"{case.get('classname')}::{case.get('name')}: {' '.join(why)}")
            elif (skipped := case.find("skipped")) is not None:
                counts.skipped.append(f"{case.get('name')}: {skipped.get('message')}")
            else:
                counts.passed += 1
    if check.is_test and status == 0:
        counts.passed += 1
    elif status != 0 and (check.is_test or not counts.failed):
        counts.failed += 1
    return counts


def failed_tasks(log: str) -> list[str]:
    """Return what Ansible says of the last tasks that failed, below their names; without any, how the log ends."""
    lines, tasks = log.splitlines(), []
    task = ""
    for number, line in enumerate(lines):
        if line.startswith("TASK ["):
            task = line.rstrip(" *")
        elif line.startswith(("fatal: ", "failed: ")):
            tasks.append("\n".join([task, *lines[number : number + TOLD_LINES]]))
    return tasks[-TOLD_TASKS:] or ["\n".join(lines[-TOLD_LINES:])]


def run_check(gate: str, check: Check) -> Counts:
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", check.name)
    log = BUILD / f"logs/{gate}-{slug}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    results = BUILD / "results" / slug
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir(parents=True)
    environment = {
        **os.environ,
        # Logs are read as text, and molecule would have what Ansible prints in colors, also where a test compares it.
        "NO_COLOR": "1",
        "PY_COLORS": "0",
        "STOWAGE_RESULTS": str(results),
        # Else molecule takes the state of any other checkout whose directory has the same name for this one's.
        "MOLECULE_EPHEMERAL_DIRECTORY": str(BUILD / "molecule" / slug),
    }
    show(f"  ...   {check.name}", passing=True)

    started = time.monotonic()
    status = run(check.command, log, check.name, environment, check.limit_s)
    seconds = time.monotonic() - started
    if status is None and check.cleanup:
        run(check.cleanup, log.with_suffix(".cleanup.log"), f"{check.name} cleanup", environment)

    counts = count(check, results, status)
    details = f"{counts.passed} passed" if counts.passed + counts.failed + len(counts.skipped) > 1 else ""
    if counts.skipped:
        details += f", {len(counts.skipped)} skipped"
    lines = [f"  {'ok  ' if status == 0 else 'FAIL'}  {check.name:<22}{seconds:6.1f} s  {details}".rstrip()]
    lines += (f"        skipped {reason}" for reason in counts.skipped)
    if status != 0:
        output = log.read_text(errors="replace")
        lines += output.splitlines()[-SHOWN_LINES:]
        counts.reasons = counts.reasons or failed_tasks(output)
        why = f"no end within {check.limit_s} s" if status is None else f"exit status {status}"
        lines.append(f"        {why}: {' '.join(check.command)}")
        lines.append(f"        whole output: {log.relative_to(REPOSITORY)}")
    show("\n".join(lines))
    return counts


def run_checks(gate: str, checks: list[Check]) -> Iterator[tuple[Check, Counts]]:
    for alone, some in itertools.groupby(checks, lambda check: check.alone):
        together = list(some)
        with ThreadPoolExecutor(2 if gate in SIDE_BY_SIDE and not alone else 1) as lanes:
            try:
                yield from zip(together, lanes.map(partial(run_check, gate), together))
            except BaseException:
                STOPPED.set()
                lanes.shutdown(cancel_futures=True)
                raise


def main() -> int:
    parser = argparse.ArgumentParser(description="Run gates and count their tests.")
    parser.add_argument("gate", nargs="+", choices=list(GATES))
    started = time.monotonic()
    total = Counts()
    failed: dict[str, list[str]] = {}
    for gate in parser.parse_args().gate:
        checks = list(GATES[gate]())
        show(gate)
        if not checks:
            show("  FAIL  nothing to run")
            total.failed += 1
            failed[gate] = []
        for check, counts in run_checks(gate, checks):
            total.add(counts)
            if counts.failed:
                failed[f"{gate}/{check.name}"] = counts.reasons
    for name, reasons in failed.items():
        show(f"\n{name}")
        for line in (line for reason in reasons[:TOLD_FAILURES] for line in reason.splitlines()):
            show(f"    {line[:TOLD_COLUMNS]}")
    minutes, seconds = divmod(int(time.monotonic() - started), 60)
    show("")
    show(f"{minutes} min {seconds} s" + (f", failed: {', '.join(failed)}" if failed else ""))
    # The closing line, alone on its line; other programs read it.
    print(f"{total.passed} passed, {total.failed} failed", flush=True)
    return 1 if total.failed else 0


if __name__ == "__main__":
    # A stop from outside takes the running check along, as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
