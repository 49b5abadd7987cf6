# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``stowage lease`` refuses, in one line with a remedy, and that the daemon has ended leases let go."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stowage_core import records
from stowage_core.places import Places
from stowage_core.runs import holders, pins
from stowage_core.runs.pins import RESERVED, Pin, Use
from stowaged import command
from stowaged.children import Children
from stowaged.command import FAILED, OK, main
from stowaged.leases import Leases, ended_path
from stowaged.loop import Loop


def ended_lease(places: Places, number: int) -> None:
    use = Use("ml", "a", 0, "/srv/scratch", "", "ReadOnly", "/data")
    pin = Pin(
        run="r",
        number=number,
        worker="w0",
        **use._asdict(),
        state=RESERVED,
        deadline=holders.boot_time() - 1,
        boot_id=holders.boot_id(),
        created=time.time(),
    )
    records.write(pin.record_path(places), pin.to_json())


def looking(places: Places, looks: list[str]) -> Leases:
    with contextlib.closing(Loop()) as loop:
        return Leases(
            places,
            Children(loop),
            looks.append,
            lambda _copy, _when: None,
            lambda: looks.append("look again"),
        )


def test_the_daemon_looks_again_once_ended_leases_are_let_go(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    looks: list[str] = []
    leases = looking(places, looks)
    leases.look()
    assert looks == [] and not os.path.exists(ended_path(places))
    ended_lease(places, 1)
    for _cycle in range(3):
        leases.look()
    assert looks == ["look again"], "it is tried again after a while only"
    assert records.read(ended_path(places)) == {"leases": ["pin r/1"]}


def test_each_ended_lease_is_tried_once_a_minute_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were found ended in different cycles, and stay."""
    places = Places.under(str(tmp_path))
    looks: list[str] = []
    tries: list[tuple[float, list[str]]] = []
    leases = looking(places, looks)
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for cycle in range(66):
        if cycle < 3:
            ended_lease(places, cycle + 1)
        before = len(looks)
        leases.look()
        if len(looks) > before:
            tries.append((now - 1000, (records.read(ended_path(places)) or {})["leases"]))
        now += 2
    names = [["pin r/1"], ["pin r/2"], ["pin r/3"]]
    assert tries == [(2.0 * index + 60 * turn, names[index]) for turn in range(3) for index in range(3)]


def test_a_new_lease_of_the_same_number_does_not_wait_for_the_former_one_s_minute(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    looks: list[str] = []
    leases = looking(places, looks)
    for _lease in range(2):
        ended_lease(places, 1)
        leases.look()
    assert looks == ["look again"] * 2


@pytest.fixture(autouse=True)
def _privileged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "is_privileged", lambda: True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["release", "r1", "0"], "lease r1/0: there is no such lease; see stowage lease list"),
        (["confirm", "r1", "--pid", "1"], "run r1: has no drives on this host; prepare them first"),
        (["confirm", "r1", "--worker", "w0", "--pid", "1"], "worker w0 of run r1: has no drives on this host; prepare"),
        (["release", "../r1"], "run '../r1': a run's name is printable, at most 255 bytes, without a slash"),
        (["confirm", "r1", "0", "--pid", "1"], "lease r1/0: there is no such lease; see stowage lease list"),
        (["take", "hf-cache", "--run", "r1"], "drive hf-cache: names no workspace; write WORKSPACE/DRIVE as it was"),
        (["take", "ml/a/b", "--run", "r1"], "drive ml/a/b: 'a/b' is not a name; only lowercase letters"),
        (["take", "ml/a", "--run", "r1", "--seconds", "0"], "--seconds: must be above 0"),
        (["take", "ml/a", "--run", "r1"], "drive ml/a: does not exist on this host; declare it"),
    ],
)
def test_what_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lease", *arguments], Places.under(str(tmp_path))) == FAILED
    said = capsys.readouterr().err
    assert said.startswith(f"stowage: {message}") and said.count("\n") == 1


@pytest.mark.parametrize("action", [["release"], ["confirm", "--pid", str(os.getppid())]])
@pytest.mark.parametrize(
    ("which", "problem"),
    [
        (["1", "--worker", "w9"], "lease r/1: there is no such lease of worker w9; there is "),
        (["2", "--worker", "w1"], "lease r/2: there is no such lease of worker w1; there is "),
        (["9"], "lease r/9: there is no such lease; there is "),
    ],
)
def test_a_number_and_a_worker_narrow_together(
    action: list[str], which: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = Places.under(str(tmp_path))
    ended_lease(places, 1)
    for worker, number in (("", 2), *((f"w{number}", number) for number in range(3, 8))):
        pin = replace(pins.get(places, "r", 1), number=number, worker=worker)
        records.write(pin.record_path(places), pin.to_json())
    there = "r/1 of worker w0, r/2, r/3 of worker w3, r/4 of worker w4, r/5 of worker w5 and 2 more"
    assert main(["lease", action[0], "r", *which, *action[1:]], places) == FAILED
    assert capsys.readouterr().err == f"stowage: {problem}{there}\n"


def test_what_is_confirmed_is_the_one_with_the_number(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    ended_lease(places, 1)
    ended_lease(places, 2)
    with subprocess.Popen(["sleep", "60"]) as worker:
        assert main(["lease", "confirm", "r", "2", "--worker", "w0", "--pid", str(worker.pid)], places) == OK
        assert [pin.pid for pin in pins.of_run(places, "r")] == [0, worker.pid]
        worker.kill()
