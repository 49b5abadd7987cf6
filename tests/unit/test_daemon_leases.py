# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``stowage lease`` refuses, in one line with a remedy, and that the daemon has ended leases let go."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from stowage_core import records
from stowage_core.places import Places
from stowage_core.runs import holders
from stowage_core.runs.pins import RESERVED, Pin, Use
from stowaged import command
from stowaged.children import Children
from stowaged.command import FAILED, main
from stowaged.leases import Leases, ended_path
from stowaged.loop import Loop


def test_the_daemon_looks_again_once_ended_leases_are_let_go(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    looks: list[str] = []
    with contextlib.closing(Loop()) as loop:
        leases = Leases(
            places,
            Children(loop),
            looks.append,
            lambda _copy, _when: None,
            lambda: looks.append("look again"),
        )
    leases.look()
    assert looks == [] and not os.path.exists(ended_path(places))
    use = Use("ml", "a", 0, "/srv/scratch", "", "ReadOnly", "/data")
    pin = Pin("r", 1, "w0", *use, RESERVED, holders.boot_time() - 1, holders.boot_id(), time.time())
    records.write(pin.record_path(places), pin.to_json())
    for _cycle in range(3):
        leases.look()
    assert looks == ["look again"], "it is tried again after a while only"
    assert records.read(ended_path(places)) == {"leases": ["pin r/1"]}


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
        (["confirm", "r1", "0", "--pid", "1"], "pin r1/0: there is no such pin; see stowage lease list"),
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
