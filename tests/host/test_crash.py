# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An eviction that is killed at any step loses nothing that is in use, and the next start finishes or puts back."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from copies_lab import Lab, process

from stowage_core import copies, events, eviction, records

STEPS = [
    "planned",
    "locked",
    "unused",
    "kept",
    "aside",
    "unused aside",
    "write leases",
    "condemned",
    "recorded",
    "emptying",
    "emptied",
    "freed",
]


def killed_at(step: str, lab: Lab, number: int = 1) -> None:
    """Evict everything in a child that kills itself at the given occurrence of a step."""
    pid = os.fork()
    if pid == 0:
        left = number

        def kill(now: str, _copy: str) -> None:
            nonlocal left
            left -= now == step
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            lab.evict(step=kill)
        finally:
            os._exit(1)
    _pid, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{step} was not reached"


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Lab:
    made = Lab(disk, tmp_path)
    made.copy("ml.held", last_used=None)
    for number in range(3):
        made.copy(f"ml.c{number}", last_used=float(number))
    return made


def content(path: Path) -> bytes:
    return (path / "data" / "file").read_bytes()


@pytest.mark.parametrize("step", STEPS)
def test_killed_and_started_again(lab: Lab, step: str) -> None:
    whole = content(lab.at("ml.held"))
    with process("os.chdir(copy + '/data'); ready()", str(lab.at("ml.held"))):
        killed_at(step, lab)
        eviction.recover(lab.places, lab.location, empty=True)
        assert lab.trash() == []
        assert content(lab.at("ml.held")) == whole
        for name in lab.names():
            assert content(lab.at(name)) == whole, "what is in its place is whole"
            assert copies.load_record(lab.places, name) is not None
        gone = {"ml.c0", "ml.c1", "ml.c2"} - set(lab.names())
        told = {event["object"] for event in events.read(lab.places)}
        assert told == {f"drive/ml/{name[3:]}" for name in gone}, "each removal is told once, whenever it was cut short"
        assert len(events.read(lab.places)) == len(gone)
        lab.evict()
        assert lab.names() == ["ml.held"] and lab.trash() == []


@pytest.mark.parametrize("step", ["aside", "unused aside", "write leases"])
def test_put_back_when_it_came_into_use_meanwhile(lab: Lab, step: str) -> None:
    """What lies aside has not been judged finally, so that it goes back, used or not."""
    killed_at(step, lab)
    aside = [name for name in lab.trash() if name.startswith("pending/")]
    assert aside
    result = eviction.recover(lab.places, lab.location, empty=False)
    assert result.removed == [] and lab.trash() == []
    assert lab.names() == ["ml.c0", "ml.c1", "ml.c2", "ml.held"]


def test_put_back_when_eviction_was_switched_off_meanwhile(lab: Lab) -> None:
    killed_at("condemned", lab)
    eviction.recover(lab.places, lab.location, empty=False)
    assert [name.partition("/")[0] for name in lab.trash()] == ["condemned"], "judged, but nothing may be removed now"
    assert len(lab.names()) == 3


@pytest.mark.parametrize("used", [True, False])
def test_a_new_copy_was_made_before_the_next_start(lab: Lab, used: bool) -> None:
    killed_at("aside", lab)
    (aside,) = lab.trash()
    name = aside.partition("/")[2].rpartition(".")[0]
    fd = os.open(lab.path, os.O_RDONLY)
    try:
        with copies.prepared(fd, lab.location, name, lab.declare(name)):
            pass
    finally:
        os.close(fd)
    old = lab.path / ".stowage-trash" / aside
    if used:
        with process("os.chdir(copy); ready()", str(old)):
            eviction.recover(lab.places, lab.location, empty=True)
            assert lab.trash() == [aside] and content(old)
    eviction.recover(lab.places, lab.location, empty=True)
    assert lab.trash() == [] and name in lab.names()
    assert records.read(copies.record_path(lab.places, name)) is not None, "that is the new copy's"


def test_killed_again_while_it_recovers(lab: Lab) -> None:
    killed_at("aside", lab, number=3)
    assert len(lab.trash()) == 3

    def recover_and_die(step: str) -> Callable[[str, str], None]:
        def kill(now: str, _copy: str) -> None:
            if now == step:
                os.kill(os.getpid(), signal.SIGKILL)

        return kill

    pid = os.fork()
    if pid == 0:
        try:
            eviction.recover(lab.places, lab.location, empty=True, step=recover_and_die("put back"))
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    assert len(lab.trash()) == 2
    eviction.recover(lab.places, lab.location, empty=True)
    assert lab.trash() == [] and len(lab.names()) == 4


def test_half_emptied(lab: Lab) -> None:
    for number in range(600):
        (lab.at("ml.held") / f"f{number}").touch()
    killed_at("emptying", lab, number=2)
    assert lab.trash()[0].startswith("condemned/")
    eviction.recover(lab.places, lab.location, empty=True)
    assert lab.trash() == [] and "ml.held" not in lab.names()
