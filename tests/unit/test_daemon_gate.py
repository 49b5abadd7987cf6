# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate in the daemon: from what it judges, and how often it tells."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_gate_judgement import account, filesystem, full, location

from stowage_core import events, records
from stowage_core.errors import StowageError
from stowage_core.gate.judgement import HELD, Hold
from stowage_core.places import Places
from stowaged import status
from stowaged.children import Body, Ending, Message
from stowaged.declared import Declared
from stowaged.gate import Gate
from stowaged.reader import Reader
from stowaged.sections import Sections
from stowaged.settings import Settings
from stowaged.writer import Writing


class Now:
    """Writes at once what the daemon has written by a child."""

    def do(self, writing: Writing) -> None:
        assert writing() == ""


class Host:
    def __init__(self, home: Path) -> None:
        self.places = Places.under(str(home))
        self.said: list[str] = []
        self.settings = Settings()
        self.start()

    def start(self) -> None:
        self.sections = Sections(self.places, self.said.append)
        self.gate = Gate(self.places, self.sections, Now(), self.said.append)  # type: ignore[arg-type]

    def judge(self, *filesystems: dict[str, Any], held: str = "", **more: dict[str, Any]) -> str:
        """Judge, and return what the file says."""
        self.sections.put("filesystems", {"filesystems": list(filesystems)})
        for name, section in more.items():
            self.sections.put(name, section)
        self.gate.judge([Hold(HELD, held)] if held else [], self.settings)
        return Path(self.places.gate).read_text()

    def told(self) -> list[str]:
        return [f"{one['reason']}: {one['message']}" for one in events.read(self.places)]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_each_cycle_is_told_by_the_time_and_each_hold_once(host: Host) -> None:
    assert host.judge(filesystem("/a", 50, 50)) == "open\n"
    inode = os.stat(host.places.gate).st_ino
    os.utime(host.places.gate, (1, 1))
    assert host.judge(filesystem("/a", 50, 50)) == "open\n"
    after = os.stat(host.places.gate)
    assert after.st_ino == inode and after.st_mtime > time.time() - 60
    assert host.told() == []
    assert host.judge(filesystem("/a", 93, 7)) == f"held: {full('/a', 93)}\n"
    assert host.judge(filesystem("/a", 94, 6)) == f"held: {full('/a', 94)}\n"
    assert host.judge(filesystem("/a", 94, 6), held="moved") == f"held: moved; {full('/a', 94)}\n"
    assert host.judge(filesystem("/a", 50, 50), held="moved") == "held: moved\n"
    assert host.judge(filesystem("/a", 50, 50)) == "open\n"
    expected = [
        f"GateHeld: Jobs are held: {full('/a', 93)}",
        "GateHeld: Jobs are held: moved",
        "GateOpened: Jobs may start",
    ]
    assert host.told() == expected
    assert host.said == [one.partition(": ")[2] for one in expected]


def test_a_daemon_that_is_started_again_does_not_tell_it_again(host: Host) -> None:
    host.judge(filesystem("/a", 93, 7))
    host.start()
    host.judge(filesystem("/a", 95, 5))
    assert len(host.told()) == 1
    host.start()
    host.judge(filesystem("/a", 50, 50))
    assert host.told()[1:] == ["GateOpened: Jobs may start"]
    Path(host.places.state_dir, "gate.json").write_text('{"holds": [{"text": 1}]}')
    host.start()
    assert host.judge(filesystem("/a", 50, 50)) == "open\n"


def test_a_disk_that_swings_around_the_mark_is_told_once(host: Host) -> None:
    for used in (91, 89.5, 90.5, 89.5):
        assert host.judge(filesystem("/a", int(used * 10), 1000 - int(used * 10))).startswith("held: ")
    host.start()  # the daemon, again
    assert host.judge(filesystem("/a", 895, 105)) == f"held: {full('/a', 90)}\n"
    assert host.judge(filesystem("/a", 890, 110)) == "open\n"
    assert host.judge(filesystem("/a", 895, 105)) == "open\n"
    assert host.told() == [f"GateHeld: Jobs are held: {full('/a', 91)}", "GateOpened: Jobs may start"]


def test_a_mark_that_is_raised_holds_at_once_only_what_is_past_it(host: Host) -> None:
    assert host.judge(filesystem("/a", 945, 55)) == f"held: {full('/a', 95)}\n"
    host.settings = Settings(disk_watermark_pct=95)
    assert host.judge(filesystem("/a", 945, 55)) == "open\n"


def test_the_judgement_says_what_another_host_measures(host: Host) -> None:
    host.settings = Settings(quotas={"default_user": "1T"})
    host.judge(filesystem("/a", 50, 50), locations={"locations": [location("runs", elsewhere=True)]})
    section = host.sections.current("gate")
    assert section is not None and section["elsewhere"]["user"] == "/mnt/runs"
    assert section["elsewhere"]["quotas"]["default_user"] == 10**12


def test_everything_that_is_published_counts(host: Host) -> None:
    missing = {"locations": [location("runs", available=False, reason="/mnt/runs: gone")]}
    accounts = {"users": {"ann": account(2, 1, 5.0)}, "teams": {}}
    text = host.judge(filesystem("/a", 93, 7), locations=missing, accounts=accounts)
    # A quota is nobody else's business.
    assert text == f"held: location runs (/mnt/runs) is not available: gone; {full('/a', 93)}\n"
    section = host.sections.current("gate")
    assert section is not None
    assert [one["reason"] for one in section["holds"]] == ["unavailable", "watermark", "quota"]
    assert section["watermark_pct"] == 90 and section["cycle_s"] == 10
    host.settings = Settings(disk_watermark_pct=0)
    assert host.judge(filesystem("/a", 93, 7)) == "open\n"


def test_a_gate_that_cannot_be_written_is_said_once(host: Host) -> None:
    host.judge()
    os.unlink(host.places.gate)
    os.mkdir(host.places.gate)
    for _cycle in range(2):
        host.gate.judge([], host.settings)
    (said,) = host.said
    assert host.places.gate in said and said.endswith("what it says is old")


def test_a_section_that_cannot_be_written_counts_as_it_is_now(host: Host) -> None:
    assert host.judge(filesystem("/a", 50, 50)) == "open\n" and host.sections.all_written("cycle")
    path = Path(host.places.state_dir, "filesystems.json")
    before = path.read_text()
    path.rename(path.with_suffix(".kept"))
    path.mkdir()  # as if there were room for the judgement, and not for this
    for used in (93, 94):
        assert host.judge(filesystem("/a", used, 100 - used)) == f"held: {full('/a', used)}\n"
        assert not host.sections.all_written("cycle")
    old = [said for said in host.said if said.endswith("; what it says is old")]
    assert len(old) == 1 and old[0].startswith(f"{path}: "), "it is said once"
    path.rmdir()
    path.with_suffix(".kept").rename(path)
    assert path.read_text() == before
    host.judge(filesystem("/a", 94, 6))  # nothing is new, and it was not written yet
    assert host.sections.all_written("cycle") and json.loads(path.read_text()) == host.sections.current("filesystems")


def test_a_last_section_that_could_not_be_written_is_tried_again(host: Host) -> None:
    path = Path(host.places.state_dir, "cycle.json")
    path.mkdir(parents=True)
    host.sections.put("cycle", {"time": 1.0})
    assert host.sections.all_written(but="cycle") and not host.sections.all_written(but="gate")
    path.rmdir()
    host.sections.put("cycle", {"time": 1.0})
    assert host.sections.all_written(but="gate") and json.loads(path.read_text()) == {"time": 1.0}


UNKNOWN = (
    "what is declared is not known: /etc/stowage/layout.json: not valid JSON; restore it or roll the host out again"
)
WRONG = UNKNOWN.split(": ", 1)[1]


def test_what_is_declared_is_not_known(host: Host) -> None:
    host.judge(filesystem("/a", 93, 7))
    host.start()  # the daemon, again
    moved = [Hold(HELD, "moved")]
    host.gate.judge_unknown(WRONG, moved, host.settings)
    assert Path(host.places.gate).read_text() == f"held: moved; {UNKNOWN}\n"
    section = host.sections.current("gate")
    assert section is not None and [one["reason"] for one in section["holds"]] == ["held", "unknown"]
    lines = status.render({"gate": status.read(host.places)["gate"]}, 200)
    assert lines[:2] == ["! Jobs are held: moved", f"! Jobs are held: {UNKNOWN}"]
    # A filesystem that was past the mark still has to get below it, when it is known again.
    assert host.judge(filesystem("/a", 895, 105)) == f"held: {full('/a', 90)}\n"
    assert host.judge(filesystem("/a", 50, 50)) == "open\n"
    assert [one.partition(":")[0] for one in host.told()] == [
        "GateHeld",
        "GateHeld",
        "GateHeld",
        "GateHeld",
        "GateOpened",
    ]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (Settings(disk_watermark_pct=0), "open\n"),  # neither a filesystem nor a quota could hold jobs
        (Settings(disk_watermark_pct=0, quotas={"users": {"ann": "1T"}}), f"held: {UNKNOWN}\n"),
        (Settings(), f"held: {UNKNOWN}\n"),
    ],
)
def test_what_is_not_known_holds_where_it_could_hold(host: Host, settings: Settings, text: str) -> None:
    host.gate.judge_unknown(WRONG, [], settings)
    assert Path(host.places.gate).read_text() == text


class AtOnce:
    """Does at once, and in this process, what the daemon has a child do."""

    def running(self, _key: str) -> bool:
        return False

    def start(
        self, _key: str, body: Body, take: Callable[[Message], None], end: Callable[[Ending], None], _silence: float
    ) -> None:
        error = ""
        try:
            body(lambda message: take(json.loads(json.dumps(message))))
        except StowageError as wrong:
            error = str(wrong)
        end(Ending(error))


def test_what_is_held_is_read_each_time_whatever_is_declared(host: Host) -> None:
    found: list[Declared] = []
    held: list[list[str]] = []
    reader = Reader(
        host.places,
        AtOnce(),  # type: ignore[arg-type]
        lambda declared, _recorded: found.append(declared),
        lambda holds: held.append([one.text for one in holds]),
    )

    def read() -> tuple[str, int, list[str]]:
        wrong: list[str] = []
        reader.start("gpu-01", host.said.append, wrong.append)
        return wrong[0], len(found), held[-1]

    volumes = Path(host.places.volumes_json)
    volumes.parent.mkdir(parents=True)
    volumes.write_text("{")
    records.write(host.places.holds_json, {"operator": {"text": "moved", "since": 1.0}})
    wrong, taken, holds = read()
    assert wrong.startswith(f"{volumes}: not valid JSON") and taken == 0 and holds == ["moved"]
    volumes.write_text('{"volumes": []}')
    assert read() == ("", 1, ["moved"])
    volumes.write_text("{")  # the earlier one stays in force
    records.write(host.places.holds_json, {"relocate/runs": {"text": "runs is being moved", "since": 1.0}})
    wrong, taken, holds = read()
    assert wrong and taken == 1 and holds == ["runs is being moved"]
    Path(host.places.holds_json).write_text("x")
    _wrong, _taken, holds = read()
    assert len(holds) == 1 and "what is held is not known" in holds[0]


def test_the_status_begins_with_it(host: Host) -> None:
    accounts = {"users": {"ann": account(2, 1, 5.0)}, "teams": {"vision": account(4, 1, 5.0)}}
    host.judge(filesystem("/a", 93, 7), accounts=accounts)
    lines = status.render({"gate": status.read(host.places)["gate"]}, 200)
    assert lines[0] == f"! Jobs are held: {full('/a', 93)}" and "Jobs" not in "".join(lines[1:])
    host.judge(filesystem("/a", 50, 50), accounts={})
    assert "Jobs" not in "\n".join(status.render({"gate": status.read(host.places)["gate"]}, 200))
    later = time.time() + 500
    assert status.render({"gate": status.read(host.places)["gate"]}, 200, later)[0].startswith(
        "! Jobs are held: the daemon has not judged for 8 min"
    )
