# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that do not answer."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import NoReturn

import pytest

from stowage_core import answers
from stowage_core.answers import answering, check_answers
from stowage_core.errors import Refusal, StowageError


def test_a_path_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs

    def dead(path: str) -> os.statvfs_result:
        if path == "/dead":
            time.sleep(60)
        return real(path)

    monkeypatch.setattr(answers, "_PATIENCE", 0.3)
    monkeypatch.setattr(answers.os, "statvfs", dead)
    started = time.monotonic()
    with pytest.raises(StowageError) as error:
        check_answers([("runs", "/"), ("cache", "/dead")])
    assert str(error.value) == "cache: /dead does not answer within 0 s; see whether its server is up"
    assert time.monotonic() - started < 5


def test_a_stale_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: str) -> NoReturn:
        raise OSError(116, "Stale file handle", path)

    monkeypatch.setattr(answers.os, "statvfs", stale)
    with pytest.raises(Refusal, match="^runs: /x: Stale file handle; mount it anew$"):
        check_answers([("runs", "/x")])


def test_a_missing_path_is_an_answer(tmp_path: Path) -> None:
    check_answers([("runs", str(tmp_path)), ("cache", str(tmp_path / "missing"))])


def test_many_are_asked_in_the_time_of_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.statvfs

    def answer(path: str) -> os.statvfs_result:
        if path.startswith("/dead"):
            time.sleep(60)
        if path == "/stale":
            raise OSError(116, "Stale file handle", path)
        return real(path)

    monkeypatch.setattr(answers, "_PATIENCE", 1.0)
    monkeypatch.setattr(answers.os, "statvfs", answer)
    started = time.monotonic()
    missing = str(tmp_path / "missing")
    dead = [f"/dead{number}" for number in range(20)]
    assert answering([*dead, "/", "/stale", missing]) == {"/", missing}
    assert time.monotonic() - started < 10


def test_what_does_not_end_in_time_is_ended(tmp_path: Path) -> None:
    def for_ever(tell: answers.Tell) -> None:
        tell(os.getpid())
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    found = answers.each_in_child({"slow": for_ever, "quick": lambda tell: tell("done")}, 1.0)
    assert found == {"slow": None, "quick": ["done"]}
    child = int((tmp_path / "pid").read_text())
    with contextlib.suppress(ChildProcessError):  # already waited for
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
