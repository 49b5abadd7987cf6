# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the layout's host side that need neither root nor a filesystem of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NoReturn

import pytest

from stowage_core import layout_host
from stowage_core.errors import Refusal, StowageError
from stowage_core.layout_host import MountRule, check_answers, find_group, find_owner, find_user, steps


def test_a_path_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def dead(path: str) -> os.stat_result:
        if path == "/dead":
            time.sleep(60)
        return real(path)

    monkeypatch.setattr(layout_host, "_PATIENCE", 0.3)
    monkeypatch.setattr(layout_host.os, "stat", dead)
    started = time.monotonic()
    with pytest.raises(StowageError) as error:
        check_answers([("runs", "/"), ("cache", "/dead")])
    assert str(error.value) == "cache: /dead does not answer within 0 s; see whether its server is up"
    assert time.monotonic() - started < 5


def test_a_stale_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(path: str) -> NoReturn:
        raise OSError(116, "Stale file handle", path)

    monkeypatch.setattr(layout_host.os, "stat", stale)
    with pytest.raises(Refusal, match="^runs: /x: Stale file handle; mount it anew$"):
        check_answers([("runs", "/x")])


def test_a_missing_path_is_an_answer(tmp_path: Path) -> None:
    check_answers([("runs", str(tmp_path)), ("cache", str(tmp_path / "missing"))])


@pytest.mark.parametrize(
    ("parent", "path", "expected"),
    [
        ("/srv", "/srv/a/b", ["/srv/a", "/srv/a/b"]),
        ("/", "/a/b", ["/a", "/a/b"]),
        ("/srv", "/srv/a", ["/srv/a"]),
    ],
)
def test_steps(parent: str, path: str, expected: list[str]) -> None:
    assert steps(parent, path) == expected


def test_users_and_groups_by_name_and_number() -> None:
    root = find_user("root")
    assert root is not None and root == find_user("0") and (root.uid, root.name) == (0, "root")
    assert find_user("no-such-user") is None
    assert (find_owner("root"), find_owner("12345"), find_owner("no-such-user")) == (0, 12345, None)
    assert (find_group("root"), find_group("12345"), find_group("no-such-group")) == (0, 12345, None)


def test_a_mount_point_implies_a_mount() -> None:
    assert MountRule.of("runs", False, "/mnt/a/") == MountRule(True, "/mnt/a")
    assert MountRule.of("runs", False, None) == MountRule(False, None)
    with pytest.raises(Refusal, match="^runs: mount_point: 'mnt' must be absolute"):
        MountRule.of("runs", True, "mnt")
