# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How modules answer."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from stowage_core.differences import Differences
from stowage_core.errors import Refusal
from stowage_core.module_run import run


class Module:
    """As much of AnsibleModule as the answer takes."""

    _name = "storage_layout"

    def __init__(self, check_mode: bool) -> None:
        self.check_mode = check_mode
        self.answer: dict[str, Any] = {}

    def exit_json(self, **answer: Any) -> None:
        self.answer = answer

    fail_json = exit_json


def answer(work: Callable[[], object], check_mode: bool = False) -> dict[str, Any]:
    def body(_module: Any, differences: Differences) -> dict[str, Any]:
        differences.note("file", "new", "old")
        differences.do("write /etc/one", lambda: None)
        differences.do("write /etc/two", work)
        return {"result": 7}

    module: Any = Module(check_mode)
    run(module, body)
    return dict(module.answer)


def raising(error: Exception) -> Callable[[], object]:
    def work() -> object:
        raise error

    return work


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_prediction_has_the_actions_of_a_run(check_mode: bool) -> None:
    done: list[int] = []
    got = answer(lambda: done.append(1), check_mode)
    assert got == {
        "changed": True,
        "diff": {"before": {"file": "old"}, "after": {"file": "new"}},
        "actions": ["write /etc/one", "write /etc/two"],
        "result": 7,
    }
    assert done == ([] if check_mode else [1])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Refusal("root", "is taken", "choose another"), "root: is taken; choose another"),
        (OSError(errno.EISDIR, "Is a directory"), "storage_layout: Is a directory"),
        (OSError(errno.EISDIR, "Is a directory", 7), "storage_layout: Is a directory"),
        (OSError(errno.EACCES, "Permission denied", "/etc/x"), "/etc/x: Permission denied"),
        (OSError(errno.EISDIR, "Is a directory", "/etc/.x.tmp", None, "/etc/x"), "/etc/x: Is a directory"),
    ],
)
def test_a_failure_has_an_object_and_the_actions_before_it(error: Exception, message: str) -> None:
    assert answer(raising(error)) == {"msg": message, "changed": True, "actions": ["write /etc/one"]}


def test_a_failed_prediction_has_done_nothing() -> None:
    def body(_module: Any, differences: Differences) -> dict[str, Any]:
        differences.do("write /etc/one", lambda: None)
        raise Refusal("root", "is taken")

    module: Any = Module(check_mode=True)
    run(module, body)
    assert module.answer == {"msg": "root: is taken", "changed": False, "actions": []}
