# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate for whoever asks: how old a judgement may be, and what is held by hand."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from stowage_core import records
from stowage_core.accounting.quotas import Quotas
from stowage_core.errors import Refusal
from stowage_core.gate import holds, recorded
from stowage_core.gate.judgement import HELD, QUOTA, STALE, WATERMARK, Elsewhere, Hold
from stowage_core.locks import lock
from stowage_core.places import Places
from stowaged import gate_command
from stowaged.outcome import FOUND, OK

FULL = Hold(WATERMARK, "filesystem /a is 93 % full, the watermark is 90 %")
ANN = Hold(QUOTA, "user ann uses 1.2 TB of 1.0 TB", user="ann")
STATUS = "systemctl status stowaged"


def section(
    age: float, *found: Hold, cycle_s: float = 10, now: float = 1000.0, elsewhere: Elsewhere | None = None
) -> dict[str, Any]:
    holds = [hold.to_json() for hold in found]
    more = {"holds": holds, "elsewhere": (elsewhere or Elsewhere()).to_json()}
    return {"time": now - age, "cycle_s": cycle_s, "watermark_pct": 90, **more}


@pytest.mark.parametrize(
    ("age", "cycle_s", "text"),
    [
        (0, 10, ""),
        (60, 10, ""),
        (61, 10, "1 min"),
        (120, 10, "2 min"),
        (179, 60, ""),  # three cycles
        (181, 60, "3 min"),
        (7300, 10, "2 h"),
        (-30, 10, ""),
        (-90000, 10, "25 h"),  # of a time that is to come: the clock was set
    ],
)
def test_a_judgement_grows_stale(age: float, cycle_s: float, text: str) -> None:
    gate = recorded.as_of(section(age, FULL, ANN, cycle_s=cycle_s), 1000.0)
    assert gate.judged == 1000.0 - age and gate.stale is bool(text)
    if text:
        assert gate.holds == (Hold(STALE, f"the daemon has not judged for {text}: {STATUS}"),)
    else:
        assert gate.holding() == [FULL] and gate.holding("ann") == [FULL, ANN] and gate.holding("bob") == [FULL]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path))


@pytest.fixture
def running(places: Places) -> Any:
    """The daemon, as far as its lock shows it."""
    records.make_directory(places.run)
    directory = os.open(places.run, os.O_RDONLY)
    held = lock(directory, os.fsencode(os.path.basename(places.daemon_lock)), 0)
    yield
    os.close(held)
    os.close(directory)


def put(places: Places, *found: Hold, age: float = 0) -> str:
    path = os.path.join(places.state_dir, "gate.json")
    records.write(path, section(age, *found, now=time.time()))
    return path


def texts(places: Places, user: str = "") -> list[str]:
    return [hold.text for hold in recorded.read(places).holding(user)]


def test_a_host_without_a_daemon_is_held(places: Places) -> None:
    gate = recorded.read(places)
    assert gate.to_json() == {
        "open": False,
        "holds": [Hold(STALE, f"the daemon has not judged since this host was started: {STATUS}").to_json()],
        "unknown": [],
        "judged": None,
        "stale": True,
        "watermark_pct": None,
    }


def test_a_daemon_that_has_ended_is_a_hold_at_once(places: Places) -> None:
    put(places)
    gate = recorded.read(places)
    assert [hold.text for hold in gate.holds] == [f"the daemon does not run: {STATUS}"]
    assert gate.stale and gate.judged is not None


@pytest.mark.usefixtures("running")
def test_what_the_daemon_judged(places: Places) -> None:
    put(places)
    assert recorded.read(places).to_json()["open"] is True
    put(places, FULL, ANN)
    answer = recorded.read(places).to_json("ann")
    assert answer["open"] is False and [one["reason"] for one in answer["holds"]] == ["watermark", "quota"]
    assert answer["watermark_pct"] == 90 and answer["stale"] is False


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    ("quotas", "is_open"), [(Quotas(), True), (Quotas(users={"bob": 5}), True), (Quotas(users={"ann": 5}), False)]
)
def test_the_quotas_of_what_another_host_measures(
    places: Places, capsys: pytest.CaptureFixture[str], quotas: Quotas, is_open: bool
) -> None:
    away = section(0, now=time.time(), elsewhere=Elsewhere("/lustre/runs", "/lustre/runs", quotas))
    records.write(os.path.join(places.state_dir, "gate.json"), away)
    text = "what user ann uses is not known here: /lustre/runs is measured by another host"
    answer = recorded.read(places).to_json("ann")
    assert (answer["open"], [one["text"][: len(text)] for one in answer["holds"]]) == (is_open, [text] * (not is_open))
    assert [one[: len(text)] for one in answer["unknown"]] == [text]
    assert recorded.read(places).to_json() == {**answer, "open": True, "holds": [], "unknown": []}
    # A program that reads the answer reads nothing else, and whoever looks sees what it is worth.
    assert gate_command.main(["--user", "ann"], places) == (OK if is_open else FOUND)
    said = capsys.readouterr()
    assert said.out.startswith("open\n" if is_open else text) and said.err.startswith(f"stowage: {text}" * is_open)
    assert bool(said.err) is is_open


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("content", ["", "[]", "{}", '{"time": "now"}', '{"time": 1, "holds": [{}]}'])
def test_a_judgement_that_cannot_be_read_is_a_hold(places: Places, content: str) -> None:
    path = put(places)
    Path(path).write_text(content)
    gate = recorded.read(places)
    assert gate.stale and path in gate.holds[0].text and gate.holds[0].text.endswith(STATUS)


@pytest.mark.usefixtures("running")
def test_held_by_hand_at_once_and_released_at_once(places: Places) -> None:
    put(places)
    assert holds.set_hold(places, holds.OPERATOR, "the rack is being moved")
    assert not holds.set_hold(places, holds.OPERATOR, "the rack is being moved")
    assert holds.set_hold(places, "relocate/runs", "runs are being moved")
    assert texts(places) == ["the rack is being moved", "runs are being moved"]
    # As the daemon has seen it meanwhile: once, and not any more as soon as it was lifted.
    put(places, *holds.declared(places), FULL)
    assert texts(places) == ["the rack is being moved", "runs are being moved", FULL.text]
    assert holds.lift(places, holds.OPERATOR) and not holds.lift(places, holds.OPERATOR)
    assert texts(places) == ["runs are being moved", FULL.text]
    assert set(holds.load(places)) == {"relocate/runs"} and holds.load(places)["relocate/runs"].since > 0


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("content", ["", "[]", '{"operator": "text"}', '{"operator": {"text": 1, "since": 2}}'])
def test_holds_that_cannot_be_read_hold(places: Places, content: str) -> None:
    put(places)
    records.make_directory(places.var)
    Path(places.holds_json).write_text(content)
    (hold,) = recorded.read(places).holds
    assert hold.reason == HELD and hold.text.startswith(f"what is held is not known: {places.holds_json}: ")
    with pytest.raises(records.RecordError):
        holds.set_hold(places, holds.OPERATOR, "and what else was held would be lost")


@pytest.mark.parametrize("text", ["", " ", "two\nlines", "\x1b[31m"])
def test_a_hold_is_one_line(places: Places, text: str) -> None:
    with pytest.raises(Refusal, match="one line"):
        holds.set_hold(places, holds.OPERATOR, text)


@pytest.mark.parametrize("what", [["--hold", "ann is over quota"], ["--release"], ["--slurm"]])
@pytest.mark.parametrize("idle", [["--user", "ann"], ["--user", ""], ["--team", "vision"], ["--json"], ["--wait", "5"]])
def test_options_that_do_not_act_are_refused(
    places: Places, capsys: pytest.CaptureFixture[str], what: list[str], idle: list[str]
) -> None:
    """To hold by hand and name a user would hold everybody."""
    holds.set_hold(places, holds.OPERATOR, "the rack is being moved")
    with pytest.raises(SystemExit) as ended:
        gate_command.main([*what, *idle], places)
    assert ended.value.code == 2
    refused = f"error: {what[0]} is about all jobs of this host and has no answer: leave out {idle[0]}"
    assert capsys.readouterr().err.splitlines()[-1] == f"stowage gate: {refused}"
    assert [one.text for one in holds.load(places).values()] == ["the rack is being moved"]


@pytest.mark.usefixtures("running")
def test_waiting_ends_when_it_opens(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    put(places, FULL, ANN)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            put(places, ANN)

    monkeypatch.setattr(time, "sleep", sleep)
    assert recorded.wait(places, 60, "bob").holding("bob") == [] and len(slept) == 2
    slept.clear()
    assert recorded.wait(places, 0, "ann").holding("ann") == [ANN] and slept == []
