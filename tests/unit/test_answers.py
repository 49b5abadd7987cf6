# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths that do not answer."""

from __future__ import annotations

import contextlib
import multiprocessing
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

    monkeypatch.setattr(answers, "_PATIENCE", 2.0)
    monkeypatch.setattr(answers.os, "statvfs", dead)
    started = time.monotonic()
    with pytest.raises(StowageError) as error:
        check_answers([("runs", "/"), ("cache", "/dead")])
    assert str(error.value) == "cache: /dead does not answer within 2 s; see whether its server is up"
    assert time.monotonic() - started < 30
    assert answering(["/", "/dead"]) == {"/"}


def test_a_stale_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: str) -> NoReturn:
        raise OSError(116, "Stale file handle", path)

    monkeypatch.setattr(answers.os, "statvfs", stale)
    with pytest.raises(Refusal, match="^runs: /x: Stale file handle; mount it anew$"):
        check_answers([("runs", "/x")])


def test_a_missing_path_is_an_answer(tmp_path: Path) -> None:
    check_answers([("runs", str(tmp_path)), ("cache", str(tmp_path / "missing"))])


def test_many_are_asked_at_the_same_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.statvfs
    slow = [f"/slow{number}" for number in range(20)]
    all_of_them = multiprocessing.get_context("fork").Barrier(len(slow))

    def answer(path: str) -> os.statvfs_result:
        if path in slow:
            all_of_them.wait()  # one after another they would wait for ever, and none of them answer
        if path == "/stale":
            raise OSError(116, "Stale file handle", path)
        return real("/" if path in slow else path)

    monkeypatch.setattr(answers.os, "statvfs", answer)
    missing = str(tmp_path / "missing")
    assert answering([*slow, "/", "/stale", missing]) == {*slow, "/", missing}


def test_what_does_not_end_in_time_is_ended(tmp_path: Path) -> None:
    def for_ever(tell: answers.Tell) -> None:
        tell(os.getpid())
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    found = answers.each_in_child({"slow": for_ever, "quick": lambda tell: tell("done")}, 3.0)
    assert found == {"slow": None, "quick": ["done"]}
    child = int((tmp_path / "pid").read_text())
    with contextlib.suppress(ChildProcessError):  # already waited for
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
