# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which filesystem does not answer: the one that was touched last, and no other is left alone with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

import pytest

from stowage_core import mounts
from stowage_core.places import Places
from stowaged.children import Ending
from stowaged.declared import Target
from stowaged.hung import Hung, Prober

ROOT = b"20 20 8:1 / / rw - ext4 /dev/sda1 rw\n"
STATE, RUNS, HUB = "location/state", "location/runs", "location/hub"


class _Silence(BaseException):
    """Here a child would wait for ever."""


class Children:
    """Children that run at once, in this process."""

    def __init__(self) -> None:
        self.rounds = 0

    def left_behind(self, _key: str) -> bool:
        return False

    def start(self, _key: str, body: Any, on_message: Any, on_end: Any, _silence_s: float) -> None:
        self.rounds += 1
        try:
            body(on_message)
        except _Silence:
            on_end(Ending("no answer", silent=True))
        else:
            on_end(Ending())


class Host:
    """A host whose root directory has ``/scratch`` in it, a link to what does not answer."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.dead = home / "lustre"
        for name in ("lustre/runs", "lustre/hub", "state"):
            (home / name).mkdir(parents=True)
        (home / "scratch").symlink_to("lustre")
        line = b"30 20 0:50 / %s rw - lustre mgs:/scratch rw\n" % os.fsencode(self.dead)
        self.table = mounts.parse(ROOT + line)
        self.children = Children()
        self.hung = Hung(self.children)  # type: ignore[arg-type]
        self.prober = Prober(Places.under(str(home)), self.children, self.hung, lambda _text: None)  # type: ignore[arg-type]
        self.answers: dict[str, Any] = {}
        open_file, readlink = os.open, os.readlink
        monkeypatch.setattr(os, "open", self._unless_dead(open_file))
        monkeypatch.setattr(os, "readlink", self._unless_dead(readlink))

    def _unless_dead(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def touch(path: Any, *more: Any, **other: Any) -> Any:
            real = os.path.join(self.home, "lustre")
            if str(path).startswith((real, f"{self.home}/scratch/")):
                raise _Silence
            return function(path, *more, **other)

        return touch

    def ask(self, **paths: str) -> dict[str, Any]:
        targets = [Target(f"location/{name}", f"{self.home}/{path}") for name, path in paths.items()]
        self.prober.start(targets, None, self.table, self.answers.update)
        return self.answers


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_only_what_is_on_the_dead_filesystem_is_left_alone(host: Host) -> None:
    answers = host.ask(runs="scratch/runs", state="state", hub="lustre/hub")
    assert [name for name, one in answers.items() if one.get("hung")] == [RUNS, HUB]
    assert not answers[STATE].get("hung") and answers[STATE]["place"]["shared"] is False
    for name in (RUNS, HUB):
        assert answers[name]["place"] == {"device": "0:50", "shared": True}
        assert answers[name]["reason"].endswith("its filesystem does not answer; left alone for 5 minutes")
    assert "0:50" in host.hung and "8:1" not in host.hung
    assert host.children.rounds == 2, "one round of waiting, and one for the rest"
    answers.clear()
    assert host.ask(runs="scratch/runs")[RUNS]["hung"] and host.children.rounds == 3, "it is not touched again"


def test_a_child_that_has_touched_nothing_says_nothing_of_a_filesystem(host: Host) -> None:
    def silent(_key: str, _body: Any, _message: Any, end: Any, _silence_s: float) -> None:
        end(Ending("no answer", silent=True))

    host.children.start = silent  # type: ignore[method-assign]
    answers = host.ask(runs="scratch/runs", state="state")
    assert {name: one["reason"] for name, one in answers.items()} == {RUNS: "no answer", STATE: "no answer"}
    assert not host.hung._until and not host.prober.busy
