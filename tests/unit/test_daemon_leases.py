# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``stowage lease`` refuses, in one line with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowage_core.places import Places
from stowaged import command
from stowaged.command import FAILED, main


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
