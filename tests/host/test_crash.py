# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""An eviction that is killed at any step loses nothing that is in use, and the next start finishes or puts back."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from copies_lab import HOST, Lab, process

from stowage_core import events, records
from stowage_core.copies import present as copies
from stowage_core.data_location import adoption
from stowage_core.eviction import evict as eviction
from stowage_core.eviction.round import STEPS

RECOVERY = [step for step in STEPS if step not in ("planned", "locked", "unused", "kept", "aside", "freed")]
"""The steps of what a next start does."""


Step = Callable[[str, str], None]


def killed(step: str, work: Callable[[Step], object], number: int = 1, meanwhile: Step | None = None) -> None:
    """Do some work in a child that kills itself at the given occurrence of a step."""
    pid = os.fork()
    if pid == 0:
        left = number

        def kill(now: str, copy: str) -> None:
            nonlocal left
            if meanwhile is not None:
                meanwhile(now, copy)
            left -= now == step
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            work(kill)
        finally:
            os._exit(1)
    _pid, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{step} was not reached"


def killed_at(step: str, lab: Lab, number: int = 1, meanwhile: Step | None = None) -> None:
    """Evict everything in a child that kills itself at the given occurrence of a step."""
    killed(step, lambda kill: lab.evict(step=kill), number, meanwhile)


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Lab:
    made = Lab(disk, tmp_path)
    made.copy("ml.held", last_used=None)
    for number in range(3):
        made.copy(f"ml.c{number}", last_used=float(number))
    return made


def content(path: Path) -> bytes:
    return (path / "data" / "file").read_bytes()


class Turmoil:
    """What has to happen during an eviction so that it goes through every step there is."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.opened: list[int] = []
        for name in ("ml.late", "ml.twice"):
            lab.copy(name, last_used=10.0)
        self.lasting = lab.at("ml.c2") / "data" / "lasting"
        self.lasting.touch()
        subprocess.run(["chattr", "+i", self.lasting], check=True)
        (lab.path / ".stowage-trash" / "pending" / "photos").mkdir()

    def __call__(self, step: str, copy: str) -> None:
        if step == "unused" and copy in ("ml.late", "ml.twice"):
            self.opened.append(os.open(self.lab.at(copy) / "data", os.O_RDONLY))
        if (step, copy) == ("aside", "ml.twice"):
            self.lab.at(copy).mkdir()

    def end(self) -> None:
        """Let go of what lasts, wherever it is."""
        for found in self.lab.path.glob("**/lasting"):
            subprocess.run(["chattr", "-i", found], check=True)


@pytest.fixture
def turmoil(lab: Lab) -> Iterator[Turmoil]:
    made = Turmoil(lab)
    yield made
    made.end()


def test_the_turmoil_reaches_every_step(lab: Lab, turmoil: Turmoil) -> None:
    """So that a step that is new is either killed at, too, or makes this fail."""
    seen = []

    def step(now: str, copy: str) -> None:
        seen.append(now)
        turmoil(now, copy)

    try:
        with process("os.chdir(copy + '/data'); ready()", str(lab.at("ml.held"))):
            lab.evict(step=step)
    finally:
        for fd in turmoil.opened:
            os.close(fd)
    assert set(seen) == set(STEPS) - {"not recorded"}


@pytest.mark.parametrize("step", STEPS)
def test_killed_and_started_again(lab: Lab, turmoil: Turmoil, step: str) -> None:
    whole = content(lab.at("ml.held"))
    number = os.stat(lab.at("ml.held")).st_ino
    if step == "not recorded":
        os.makedirs(lab.places.events)
    with process("os.chdir(copy + '/data'); ready()", str(lab.at("ml.held"))) as holder:
        killed_at(step, lab, meanwhile=turmoil)
        assert os.stat(f"/proc/{holder.pid}/cwd/..").st_ino == number
        turmoil.end()
        if step == "not recorded":
            os.rmdir(lab.places.events)
        eviction.recover(lab.places, lab.location, caches=True)
        assert lab.trash() == ["pending/photos"]
        assert content(lab.at("ml.held")) == whole and os.stat(lab.at("ml.held")).st_ino == number
        back = {name for name in lab.names() if os.listdir(lab.at(name))}
        for name in back:
            assert content(lab.at(name)) == whole, "what is in its place is whole"
            assert copies.load_record(lab.places, name) is not None
        gone = {"ml.c0", "ml.c1", "ml.c2", "ml.late", "ml.twice"} - back
        told = sorted(event["object"] for event in events.read(lab.places))
        assert told == sorted(f"drive/ml/{name[3:]}" for name in gone), "each is told once, wherever it was cut short"
        lab.evict()
        assert set(lab.names()) - {"ml.twice"} == {"ml.held"} and content(lab.at("ml.held")) == whole
        assert lab.trash() == ["pending/photos"]


@pytest.mark.parametrize("step", [None, *RECOVERY])
def test_killed_while_it_recovers(lab: Lab, turmoil: Turmoil, step: str | None) -> None:
    whole = content(lab.at("ml.held"))
    lab.drives["ml"].pop("held")
    lab.declare("ml.held", evictable=False)
    turmoil.end()
    killed_at("condemned", lab)
    entries = {name.partition("/")[2].rpartition(".")[0]: lab.path / ".stowage-trash" / name for name in lab.trash()}
    assert entries["ml.c0"].parent.name == "condemned", "to be emptied; the others are only aside"
    lasting = entries["ml.c0"] / "data" / "lasting"
    lasting.touch()
    subprocess.run(["chattr", "+i", lasting], check=True)
    for name in ("ml.c1", "ml.twice"):
        lab.at(name).mkdir()

    def recover(kill: Step | None = None) -> None:
        more = {} if kill is None else {"step": kill}
        eviction.recover(lab.places, lab.location, caches=True, **more)

    with process("os.chdir(copy + '/data'); ready()", str(entries["ml.twice"])):
        if step is None:
            seen: list[str] = []
            recover(lambda now, _copy: seen.append(now))
            assert set(seen) == set(RECOVERY) - {"not recorded"}
        else:
            if step == "not recorded":
                os.makedirs(lab.places.events)
            killed(step, recover)
            if step == "not recorded":
                os.rmdir(lab.places.events)
        assert content(entries["ml.twice"]) == whole
        turmoil.end()
        recover()
        assert lab.trash() == [f"pending/{entries['ml.twice'].name}", "pending/photos"]
        assert content(entries["ml.twice"]) == whole
        for name in ("ml.c2", "ml.held", "ml.late"):
            assert content(lab.at(name)) == whole
        assert os.listdir(lab.at("ml.c1")) == os.listdir(lab.at("ml.twice")) == []
        told = sorted(event["object"] for event in events.read(lab.places))
        assert told == ["drive/ml/c0", "drive/ml/c1"]
    recover()
    assert lab.trash() == ["pending/photos"]


@pytest.mark.parametrize("step", ["aside", "unused aside", "write leases"])
def test_put_back_when_it_came_into_use_meanwhile(lab: Lab, step: str) -> None:
    """What lies aside has not been judged finally, so that it goes back, used or not."""
    killed_at(step, lab)
    aside = [name for name in lab.trash() if name.startswith("pending/")]
    assert aside
    result = eviction.recover(lab.places, lab.location, caches=False)
    assert result.removed == [] and lab.trash() == []
    assert lab.names() == ["ml.c0", "ml.c1", "ml.c2", "ml.held"]


def test_put_back_when_eviction_was_switched_off_meanwhile(lab: Lab) -> None:
    """What was condemned is gone already: it was judged, that is recorded, and it may be half emptied."""
    killed_at("condemned", lab)
    eviction.recover(lab.places, lab.location, caches=False)
    assert lab.trash() == [] and len(lab.names()) == 3
    assert [event["reason"] for event in events.read(lab.places)] == ["Evicted"]


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
            eviction.recover(lab.places, lab.location, caches=True)
            assert lab.trash() == [aside] and content(old)
    eviction.recover(lab.places, lab.location, caches=True)
    assert lab.trash() == [] and name in lab.names()
    assert records.read(copies.record_path(lab.places, name)) is not None, "that is the new copy's"


def test_what_was_condemned_goes_although_the_host_was_renamed(lab: Lab) -> None:
    killed_at("condemned", lab)
    fd = os.open(lab.path, os.O_RDONLY)
    try:
        adoption.take_over(fd, str(lab.path), HOST, "new")
    finally:
        os.close(fd)
    lab.location = replace(lab.location, host="new")
    eviction.recover(lab.places, lab.location, caches=True)
    assert lab.trash() == [] and lab.names() == ["ml.c0", "ml.c1", "ml.c2"]


def test_half_emptied(lab: Lab) -> None:
    for number in range(600):
        (lab.at("ml.held") / f"f{number}").touch()
    killed_at("emptying", lab, number=2)
    assert lab.trash()[0].startswith("condemned/")
    eviction.recover(lab.places, lab.location, caches=True)
    assert lab.trash() == [] and "ml.held" not in lab.names()
