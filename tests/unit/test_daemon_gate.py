# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate in the daemon: from what it judges, and how often it tells."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from test_gate_judgement import account, filesystem, full, location

from stowage_core import events, records
from stowage_core.gate.judgement import HELD, Hold
from stowage_core.places import Places
from stowaged import declared, status
from stowaged.gate import Gate
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


def test_what_is_held_is_read_with_what_is_declared(host: Host) -> None:
    stamp = declared.stamp(host.places)
    records.write(host.places.holds_json, {"operator": {"text": "moved", "since": 1.0}})
    assert declared.stamp(host.places) != stamp
    assert declared.load(host.places, "gpu-01").holds == (Hold(HELD, "moved"),)
    Path(host.places.holds_json).write_text("x")
    (hold,) = declared.load(host.places, "gpu-01").holds
    assert "what is held is not known" in hold.text


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
