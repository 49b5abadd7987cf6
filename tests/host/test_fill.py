# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fills on real filesystems: with a stand-in for the container engine, and with Podman where the host has it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from copies_lab import EVERYTHING, HOST, NOW, Lab, process

from stowage_core import events, owner, records
from stowage_core.copies import fill_marks, fills
from stowage_core.copies import present as copies
from stowage_core.copies.fills import Fill
from stowage_core.data_location import adoption
from stowage_core.drives import recorded as drive_records
from stowage_core.errors import Refusal, StowageError
from stowage_core.eviction import evict as eviction
from stowage_core.runs import pinning, pins
from stowage_core.runs.mounts import Worker
from stowaged import container, fill
from stowaged.container import Container

TEMPLATE = {"template": {"image": "localhost/pull:1", "command": "/bin/sh", "args": ["-c", "true"]}}
WAITING = "Waiting for drive a to be filled on gpu-01"
MARKER = ".stowage-filled"


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(disk, tmp_path)
    yield made
    for pin in pins.all_pins(made.places):
        pinning.release(made.places, pin.run, pin.number)


class Engine:
    """Runs a function for each try instead of a container: it gets what the container would see at /drive."""

    def __init__(self, *tries: Callable[[Path], int]) -> None:
        self.tries = list(tries)
        self.containers: list[Container] = []
        self.removed: list[str] = []

    def run(self, one: Container, say: Callable[[str], None], tick: Callable[[], None]) -> tuple[int, Sequence[str]]:
        self.containers.append(one)
        assert os.path.ismount(one.source)
        tick()
        return self.tries.pop(0)(Path(one.source)), ("last words",)

    def remove(self, name: str) -> None:
        self.removed.append(name)


def writes(*names: str, status: int = 0) -> Callable[[Path], int]:
    def work(drive: Path) -> int:
        (drive / "data").write_bytes(b"x" * 100_000)
        for name in names:
            (drive / name).touch()
        return status

    return work


def drive_of(lab: Lab, name: str = "ml.a") -> drive_records.Drive:
    return drive_records.find_placed(lab.places, name, lab.location.host)


@contextlib.contextmanager
def at(lab: Lab) -> Iterator[int]:
    fd = os.open(lab.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def look(lab: Lab, name: str = "ml.a") -> Fill:
    with at(lab) as fd:
        return fills.look(lab.places, fd, lab.location, drive_of(lab, name))


def run(lab: Lab, engine: Any, waits_s: Sequence[float] = (), name: str = "ml.a") -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(lab.places.data_location_json)
    records.write(lab.places.data_location_json, lab.location.to_json())
    return fill.run(lab.places, name, engine, waits_s)


def told(lab: Lab) -> list[tuple[str, str]]:
    return [(event["reason"], event["message"]) for event in events.read(lab.places)]


def begun(path: Path) -> bool:
    return fill_marks.XATTR in os.listxattr(path)


# -- A fill that ends well


@pytest.mark.parametrize("marker", [MARKER, ".astralyx-filled"])
@pytest.mark.parametrize("path", ["", "models/llama"])
def test_filled(lab: Lab, marker: str, path: str) -> None:
    lab.declare("ml.a", fill=TEMPLATE, path=path, permissions={"owner_uid": 1000, "dir_mode": "0750"})
    assert look(lab) == Fill(fills.WANTED, WAITING)
    engine = Engine(writes(marker))
    assert run(lab, engine)
    assert look(lab) == Fill(fills.FILLED) and look(lab).usable
    assert (lab.at("ml.a") / path / "data").exists() and not begun(lab.at("ml.a"))
    status = os.stat(lab.at("ml.a") / path)
    assert (status.st_uid, status.st_mode & 0o777) == (1000, 0o750)
    assert pins.all_pins(lab.places) == [] and fills.load_all(lab.places) == []
    assert [reason for reason, _message in told(lab)] == ["FillStarted", "Filled"]
    (one,) = engine.containers
    assert (one.image, one.command, one.args, one.env_file) == ("localhost/pull:1", "/bin/sh", ["-c", "true"], "")
    # Once more is nothing more.
    assert run(lab, Engine())
    assert [reason for reason, _message in told(lab)] == ["FillStarted", "Filled"]


def test_while_it_is_filled_nobody_else_has_it(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE, size_hint_bytes=1_000_000)

    def work(drive: Path) -> int:
        writes(MARKER)(drive)
        assert look(lab) == Fill(fills.FILLING, WAITING), "its last file is there, and it has not ended"
        with pytest.raises(Refusal, match=f"drive ml/a: {WAITING}"):
            take(lab)
        (record,) = fills.load_all(lab.places)
        assert record.at_work and 0 < record.reserved_bytes <= 1_000_000
        (pin,) = pins.all_pins(lab.places)
        assert (pin.run, pin.copy, pin.state, pin.pid) == (fills.unit("ml.a"), "ml.a", pins.LEASED, os.getpid())
        assert {"nosuid", "nodev"} <= set(mount_options(pin.path(lab.places)))
        assert "1: leased" in lab.evict().blocked and lab.names() == ["ml.a"]
        with pytest.raises(StowageError, match="another process fills it"):
            fill.run(lab.places, "ml.a", Engine())
        return 0

    assert run(lab, Engine(work))
    assert take(lab).copy == "ml.a"


def mount_options(path: str) -> list[str]:
    done = subprocess.run(["findmnt", "-no", "OPTIONS", path], check=True, capture_output=True, text=True)
    return done.stdout.strip().split(",")


def take(lab: Lab, read_only: bool = True) -> pins.Pin:
    return pinning.take(lab.places, lab.location, "ml.a", run="r", read_only=read_only, seconds=60)


def work_in(lab: Lab, name: str) -> None:
    """Write a file as a worker does, through a lease that is let go then."""
    pin = take(lab, read_only=False)
    (Path(pin.path(lab.places)) / name).write_text("weeks of a run")
    pinning.release(lab.places, pin.run, pin.number)


def adopt(lab: Lab) -> None:
    with at(lab) as fd:
        for one in adoption.find_adoptions(lab.places, ["ml.a"], HOST, "", fd, []):
            adoption.take_in(one, HOST, fd)


def test_an_evicted_copy_is_filled_again(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE)
    assert run(lab, Engine(writes(MARKER)))
    copies.write_record(lab.places, "ml.a", measured(lab))
    lab.evict()
    assert lab.names() == [] and look(lab).state == fills.WANTED
    assert run(lab, Engine(writes(MARKER))) and look(lab).usable


def measured(lab: Lab) -> copies.CopyRecord:
    return copies.CopyRecord("ml", "a", drive_of(lab).identity, "", 1, 1 << 20, 2, 3, True, 1.0, None)


def test_variables_are_in_a_file_of_root_s_and_gone_afterwards(lab: Lab) -> None:
    lab.declare("ml.a", fill={"template": {"image": "x", "env": {"TOKEN": "very secret"}}})

    def work(drive: Path) -> int:
        path = fills.directory(lab.places) + "/ml.a.env"
        assert Path(path).read_text() == "TOKEN=very secret\n" and os.stat(path).st_mode & 0o777 == 0o600
        return writes(MARKER)(drive)

    engine = Engine(work)
    assert run(lab, engine)
    assert engine.containers[0].secrets == ("very secret",) and "very secret" not in repr(engine.containers[0])
    assert sorted(os.listdir(fills.directory(lab.places))) == ["ml.a.lock"]


# -- One that does not


def symlink(drive: Path) -> int:
    writes()(drive)
    (drive / MARKER).symlink_to("/etc/hostname")
    return 0


def directory(drive: Path) -> int:
    (drive / MARKER).mkdir()
    return 0


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (writes(status=1), "exit status 1: last words"),
        (writes(MARKER, status=1), "exit status 1: last words"),
        (writes(), "its container ended well, and there is no file .stowage-filled"),
        (symlink, "its container ended well, and '.stowage-filled' is no plain file"),
        (directory, "its container ended well, and '.stowage-filled' is no plain file"),
    ],
)
def test_a_failed_fill_is_reported_cleared_and_tried_again(lab: Lab, work: Callable[[Path], int], why: str) -> None:
    lab.declare("ml.a", fill=TEMPLATE, evictable=False)
    seen: list[Fill] = []

    def again(drive: Path) -> int:
        assert os.listdir(drive) == []
        return writes(MARKER)(drive)

    class Watching(Engine):
        def remove(self, name: str) -> None:
            super().remove(name)
            seen.append(look(lab))

    engine = Watching(work, work, again)
    assert run(lab, engine, (0.0, 0.0))
    assert look(lab).usable and lab.trash() == []
    failed = ("FillFailed", f"Fill failed on gpu-01: {why}")
    cleared = ("Cleared", "Copy removed from gpu-01: its fill did not finish")
    assert [one for one in told(lab) if one[0] != "FillStarted"][:4] == [failed, cleared, failed, cleared]
    assert seen[-1].usable and not any(one.usable for one in seen[:-1])


def test_given_up_and_tried_again_later_when_somebody_asks(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.declare("ml.a", fill=TEMPLATE)
    engine = Engine(*[writes(status=7)] * 3)
    assert not run(lab, engine, (0.0, 0.0))
    assert engine.tries == [] and lab.names() == []
    found = look(lab)
    assert found == Fill(fills.FAILED, f"{WAITING}: the last try failed: exit status 7: last words")
    (record,) = fills.load_all(lab.places)
    assert (record.failures, record.given_up, record.reserved_bytes) == (3, True, 0)
    fills.write(lab.places, replace(record, next_try=time.time() - 1))
    assert look(lab) == Fill(fills.WANTED, WAITING)
    assert run(lab, Engine(writes(MARKER)), (0.0,)) and fills.load_all(lab.places) == []


def test_what_no_try_can_mend_is_given_up_at_once(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE, size_hint_bytes=1 << 60)
    assert not run(lab, Engine(), (0.0, 0.0))
    assert "drive a needs 1.2 EB; this disk has" in look(lab).message and lab.names() == []
    lab.declare("ml.b")
    with pytest.raises(Refusal, match="drive ml/b: nothing fills it"):
        run(lab, Engine(), name="ml.b")


def test_a_drive_that_is_deleted_meanwhile_is_not_filled_to_the_end(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE)

    class Ticking(Engine):
        def run(self, one: Container, say: Any, tick: Callable[[], None]) -> tuple[int, Sequence[str]]:
            writes()(Path(one.source))
            lab.declare("ml.a", fill=TEMPLATE, state="absent")
            tick()
            raise AssertionError("it went on")

    assert not run(lab, Ticking(), (0.0, 0.0))
    assert lab.names() == [] and pins.all_pins(lab.places) == []
    assert "is to be deleted" in told(lab)[1][1]


# -- Between tries


def test_between_tries_nothing_is_held_and_no_room_is_taken(
    small_disk: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk("ext4", 64 << 20)
    lab = Lab(disk.path, tmp_path)
    lab.declare("ml.a", fill=TEMPLATE, size_hint_bytes=1_000_000)
    reserved: list[tuple[float, int]] = []

    def pause(until: float) -> None:
        (record,) = fills.load_all(lab.places)
        assert record.at_work and until == record.next_try
        reserved.append((round(until - time.time()), fills.reserved_bytes(lab.places, lab.location)))
        disk.unmount()  # fails when anything of it is held
        if record.failures == 2:
            return  # it is away at the next try
        disk.mount()

    def mounts_again(until: float) -> None:
        if not os.path.ismount(disk.path):
            disk.mount()
        else:
            pause(until)

    monkeypatch.setattr(fill, "_pause", mounts_again)
    assert run(lab, Engine(writes(status=1), writes(status=1), writes(MARKER)), (10.0, 90.0, 270.0))
    assert reserved == [(10, 1_000_000), (90, 0)] and fills.load_all(lab.places) == []
    failed = [message for reason, message in told(lab) if reason == "FillFailed"]
    assert failed[:2] == ["Fill failed on gpu-01: exit status 1: last words"] * 2
    assert failed[2].startswith(f"Fill failed on gpu-01: data location {lab.path}: cannot be opened (no such file")
    assert look(lab).usable


def test_a_try_is_made_in_the_data_location_that_there_is_then(
    lab: Lab, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.declare("ml.a", fill=TEMPLATE)
    (disk / "other").mkdir()
    other = Lab(disk / "other", Path(lab.places.etc[: -len("/etc/stowage")]))
    monkeypatch.setattr(
        fill, "_pause", lambda _until: records.write(lab.places.data_location_json, other.location.to_json())
    )
    assert run(lab, Engine(writes(status=1), writes(MARKER)), (0.0,))
    assert lab.names() == [] and (other.at("ml.a") / MARKER).exists()


# -- What was there before


def test_content_that_no_fill_has_written_is_never_touched(lab: Lab) -> None:
    path = lab.copy("ml.a")
    lab.declare("ml.a", fill=TEMPLATE)
    before = (path / "data" / "file").read_bytes()
    for _time in range(2):
        assert not run(lab, Engine(), (0.0,))
        assert (path / "data" / "file").read_bytes() == before and not begun(path)
        assert look(lab).state == fills.FAILED and "no fill of Stowage's has written" in look(lab).message
    (path / MARKER).touch()
    assert look(lab) == Fill(fills.FILLED)


def test_the_note_of_another_drive_or_place_is_none(lab: Lab) -> None:
    """As after ``rsync -X``, or when a copy in which a fill was cut short is adopted for another drive."""
    path = lab.copy("ml.a")
    lab.declare("ml.a", fill=TEMPLATE)
    for changes in ({"identity": "another"}, {"inode": 1}, {"subvolume": "1 x"}):
        fd = os.open(path, os.O_RDONLY)
        try:
            mark = owner.read_mark(fd)
            assert mark is not None
            fill_marks.begin(fd, replace(mark, **changes))
            assert not fill_marks.has_begun(fd, mark)
        finally:
            os.close(fd)
        assert not run(lab, Engine(), (0.0,))
        assert (path / "data" / "file").exists()


def fails_and_touches_nothing(lab: Lab, message: str, *kept: Path) -> None:
    engine = Engine(writes(status=1))
    for _time in range(2):
        assert not run(lab, engine)
        assert message in look(lab).message and len(engine.tries) == 1, "nothing was run"
        assert all(path.exists() for path in kept) and not begun(lab.at("ml.a")) and lab.trash() == []


@pytest.mark.parametrize("folder", [False, True])
def test_content_beside_the_drive_s_folder_counts(lab: Lab, folder: bool) -> None:
    lab.declare("ml.a", fill=TEMPLATE, path="models/llama", evictable=False)
    path = lab.at("ml.a")
    (path / "models/llama" if folder else path).mkdir(parents=True)
    (path / "precious").write_text("years of work")
    adopt(lab)
    remedy = "make that file in its folder 'models/llama' when the content is whole"
    fails_and_touches_nothing(lab, remedy, path / "precious")


def test_content_on_the_way_to_the_drive_s_folder_counts(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE, path="models/llama", evictable=False)
    (lab.at("ml.a") / "models/llama").mkdir(parents=True)
    (lab.at("ml.a") / "models/other").touch()
    adopt(lab)
    fails_and_touches_nothing(lab, fills.FOREIGN, lab.at("ml.a") / "models/other")


def test_an_orphan_that_is_adopted_for_a_drive_with_a_folder_stays_whole(lab: Lab) -> None:
    lab.copy("ml.a", evictable=False)
    del lab.drives["ml"]["a"]
    lab.declare("ml.a", fill=TEMPLATE, path="model", evictable=False)
    adopt(lab)
    fails_and_touches_nothing(lab, fills.FOREIGN, lab.at("ml.a") / "data/file")


def test_a_file_where_the_drive_s_folder_should_be_is_content(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE, path="model/v1", evictable=False)
    lab.at("ml.a").mkdir()
    (lab.at("ml.a") / "model").write_text("a file")
    adopt(lab)
    fails_and_touches_nothing(lab, fills.FOREIGN, lab.at("ml.a") / "model")


def test_a_file_by_the_copy_s_name_is_refused(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE)
    lab.at("ml.a").write_text("a file")
    assert not run(lab, Engine(), (0.0,))
    assert "is not there as a plain directory" in look(lab).message and lab.at("ml.a").read_text() == "a file"


def test_an_empty_copy_that_was_adopted_is_filled(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE, path="models/llama")
    (lab.at("ml.a") / "models/llama").mkdir(parents=True)
    adopt(lab)
    assert run(lab, Engine(writes(MARKER))) and look(lab).usable


def test_a_fill_does_not_begin_under_a_lease(lab: Lab) -> None:
    """A worker that has emptied the drive goes on to work in it: what it writes is its own."""
    lab.declare("ml.a", fill=TEMPLATE, evictable=False)
    assert run(lab, Engine(writes(MARKER)))
    pin = take(lab, read_only=False)
    mount = Path(pin.path(lab.places))
    for one in mount.iterdir():
        one.unlink()
    fails_and_touches_nothing(lab, "pin r/1 (r) holds it, and a fill begins where nobody is at work; end that run, and")
    (mount / "result").write_text("weeks of a run")
    pinning.release(lab.places, pin.run, pin.number)
    fills.forget(lab.places, "ml.a")
    fails_and_touches_nothing(lab, fills.FOREIGN, lab.at("ml.a") / "result")


def test_a_fill_does_not_begin_where_anybody_is(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE, evictable=False)
    assert run(lab, Engine(writes(MARKER)))
    for one in lab.at("ml.a").iterdir():
        one.unlink()
    with process("os.chdir(copy)\nready()", str(lab.at("ml.a"))):
        fails_and_touches_nothing(lab, "and a fill begins where nobody is at work; end that")
    fills.forget(lab.places, "ml.a")
    assert run(lab, Engine(writes(MARKER))) and look(lab).usable


def test_a_copy_that_a_worker_was_given_is_no_fill_s_leftover(lab: Lab) -> None:
    """The fill is taken out of the drive after one was cut short, and put back when workers have used it."""
    lab.declare("ml.a", fill=TEMPLATE, evictable=False)
    cut_short(lab)
    without_fill(lab)
    assert begun(lab.at("ml.a"))
    work_in(lab, "checkpoint")
    assert not begun(lab.at("ml.a"))
    lab.declare("ml.a", fill=TEMPLATE, evictable=False)
    fails_and_touches_nothing(lab, fills.FOREIGN, lab.at("ml.a") / "checkpoint", lab.at("ml.a") / "part")


def test_what_was_set_aside_and_a_worker_was_given_is_no_fill_s_leftover(lab: Lab) -> None:
    """The same, and the clearing was cut short too."""
    lab.declare("ml.a", fill=TEMPLATE, evictable=False)
    cut_short(lab)
    aside = "ml.a.unfilled-18a1-9f0c11aa"
    os.rename(lab.at("ml.a"), lab.path / ".stowage-trash/pending" / aside)
    without_fill(lab)
    work_in(lab, "checkpoint")
    os.rename(lab.at("ml.a"), lab.path / ".stowage-trash/pending" / aside)
    lab.at("ml.a").mkdir()
    result = eviction.recover(lab.places, lab.location, caches=True)
    assert "was not left by a fill that did not finish" in result.kept["ml.a"]
    assert lab.trash() == [f"pending/{aside}"]


def test_a_worker_that_is_given_the_copy_meanwhile_keeps_it(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE, evictable=False)

    def work(drive: Path) -> int:
        without_fill(lab)
        work_in(lab, "result")
        lab.declare("ml.a", fill=TEMPLATE, evictable=False)
        return writes(status=1)(drive)

    assert not run(lab, Engine(work))
    fills.forget(lab.places, "ml.a")
    fails_and_touches_nothing(lab, fills.FOREIGN, lab.at("ml.a") / "result")


def test_what_is_adopted_is_no_fill_s_leftover(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE, evictable=False)
    cut_short(lab)
    adopt(lab)
    fails_and_touches_nothing(lab, fills.FOREIGN, lab.at("ml.a") / "part")


def test_no_run_is_named_as_a_fill_is() -> None:
    with pytest.raises(Refusal, match="that is the name of what fills a copy; name the run otherwise"):
        Worker.of(fills.unit("ml.a"), "w0")


def without_fill(lab: Lab) -> None:
    del lab.drives["ml"]["a"]["spec"]["fill"]
    value = {"workspace": "ml", "host": HOST, "drives": list(lab.drives["ml"].values())}
    records.write(os.path.join(lab.places.drives_dir, "ml.json"), value)


def cut_short(lab: Lab) -> None:
    """Leave what a fill leaves on a host that loses its power."""
    with filling(lab) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    for pin in pins.all_pins(lab.places):
        pinning.release(lab.places, pin.run, pin.number)
    fills.forget(lab.places, "ml.a")


FILLING = """
from pathlib import Path
from stowage_core.places import Places
from stowaged import fill
fill.say = lambda text: None
class Engine:
    def run(self, container, say, tick):
        (Path(container.source) / "part").write_bytes(b"x" * 200_000)
        for name in sys.argv[3:]:
            (Path(container.source) / name).touch()
        tick()
        ready()
    def remove(self, name):
        pass
fill.run(Places.under(sys.argv[1]), sys.argv[2], Engine())
"""


@contextlib.contextmanager
def filling(lab: Lab, *names: str) -> Iterator[subprocess.Popen[str]]:
    records.write(lab.places.data_location_json, lab.location.to_json())
    with process(FILLING, lab.places.etc[: -len("/etc/stowage")], "ml.a", *names) as child:
        yield child


@pytest.mark.parametrize("names", [(), (MARKER,)])
def test_killed_in_the_middle_it_is_cleared_and_filled_anew(
    lab: Lab, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.declare("ml.a", fill=TEMPLATE, evictable=False)
    with filling(lab, *names) as child:
        assert look(lab) == Fill(fills.FILLING, WAITING)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert look(lab) == Fill(fills.WANTED, WAITING), "although its last file may be there"
    assert (lab.at("ml.a") / "part").exists() and begun(lab.at("ml.a"))
    monkeypatch.setenv("SERVICE_RESULT", "signal")
    monkeypatch.setattr(container, "find", lambda *_choice: Engine())
    fill.end(lab.places, "ml.a")
    assert pins.all_pins(lab.places) == []
    assert look(lab).state == fills.WANTED and fills.load_all(lab.places)[0].failures == 1
    inode = os.stat(lab.at("ml.a")).st_ino, os.stat(lab.at("ml.a")).st_ctime_ns

    def work(drive: Path) -> int:
        assert os.listdir(drive) == []
        return writes(MARKER)(drive)

    assert run(lab, Engine(work), (0.0,))
    assert (os.stat(lab.at("ml.a")).st_ino, os.stat(lab.at("ml.a")).st_ctime_ns) != inode
    assert sorted(os.listdir(lab.at("ml.a"))) == [MARKER, "data"] and lab.trash() == []


def test_killed_too_often_it_is_given_up(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.declare("ml.a", fill=TEMPLATE)
    monkeypatch.setenv("SERVICE_RESULT", "oom-kill")
    monkeypatch.setattr(container, "find", lambda *_choice: Engine())
    for _time in range(3):
        with filling(lab) as child:
            child.send_signal(signal.SIGKILL)
            child.wait()
        fill.end(lab.places, "ml.a")
    assert not run(lab, Engine(), (0.0, 0.0))
    assert look(lab).message == f"{WAITING}: the last try failed: the process that filled it was ended (oom-kill)"


def test_what_was_stopped_is_forgotten(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.declare("ml.a", fill=TEMPLATE)
    monkeypatch.setattr(container, "find", lambda *_choice: Engine())
    with filling(lab) as child:
        with pytest.raises(StowageError, match="another process fills it"):
            fill.end(lab.places, "ml.a")
        child.send_signal(signal.SIGKILL)
        child.wait()
    fill.end(lab.places, "ml.a")
    assert fills.load_all(lab.places) == [] and look(lab) == Fill(fills.WANTED, WAITING)


def test_what_a_fill_has_left_is_not_cleared_while_it_is_used(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE)
    with filling(lab) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    with process("os.chdir(copy)\nready()", str(lab.at("ml.a"))):
        assert not run(lab, Engine())
        assert (lab.at("ml.a") / "part").exists() and lab.trash() == []
        assert "in use: " in look(lab).message
    fills.forget(lab.places, "ml.a")
    assert run(lab, Engine(writes(MARKER)))


# -- Eviction


def test_an_eviction_leaves_a_fill_alone_and_makes_room_for_it(lab: Lab) -> None:
    lab.copy("ml.old", 4 << 20, last_used=1.0)
    lab.copy("ml.new", 4 << 20, last_used=2.0)
    lab.declare("ml.a", fill=TEMPLATE, size_hint_bytes=6 << 20)
    with filling(lab):
        limited = lab.limited(11 << 20)  # 8 are there, 6 are to come
        (record,) = fills.load_all(lab.places)
        assert record.written_bytes > 0
        plan = eviction.current_plan(lab.places, limited, NOW)
        assert [victim.name for victim in plan.victims] == ["ml.old"] and plan.kept["ml.a"].startswith("held by pin")
        lab.evict(11 << 20)
        assert lab.names() == ["ml.a", "ml.new"]
        lab.evict()
        assert lab.names() == ["ml.a"] and (lab.at("ml.a") / "part").exists()


def test_what_a_fill_has_left_goes_with_the_caches_when_nobody_fills_it(lab: Lab) -> None:
    lab.declare("ml.a", fill=TEMPLATE)
    with filling(lab) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    for pin in pins.all_pins(lab.places):
        pinning.release(lab.places, pin.run, pin.number)
    copies.write_record(lab.places, "ml.a", measured(lab))
    assert [one["copy"] for one in lab.evict(EVERYTHING).removed] == ["ml.a"]


# -- With Podman


def podman(*arguments: str) -> str:
    done = subprocess.run(["podman", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image with a shell, made on this host: no registry is needed."""
    missing = [name for name in ("podman", "busybox") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"this machine has no {' and no '.join(missing)}; the lab's hosts have")
    root = tmp_path_factory.mktemp("image")
    (root / "bin").mkdir()
    shutil.copy(str(shutil.which("busybox")), root / "bin/busybox")
    for name in ("sh", "ls", "cat", "touch", "sleep", "id", "ln", "mount", "env"):
        (root / "bin" / name).symlink_to("busybox")
    archive = root.with_suffix(".tar")
    subprocess.run(["tar", "--create", f"--file={archive}", f"--directory={root}", "."], check=True)
    name = "localhost/stowage-test-fill:1"
    podman("import", "--quiet", str(archive), name)
    yield name
    podman("rmi", "--force", name)


def in_podman(lab: Lab, image: str, text: str, waits_s: Sequence[float] = (), **more: Any) -> bool:
    template = {"image": image, "command": "/bin/sh", "args": ["-c", text], **more}
    lab.declare("ml.a", fill={"template": template}, evictable=False)
    assert shutil.which("podman")
    return run(lab, container.find("podman"), waits_s)


def test_podman_fills_a_copy(lab: Lab, image: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = (
        'set -e; ls -a /drive; echo "token $TOKEN"; echo "$TOKEN" >/drive/token;'
        " cat /proc/mounts >/drive/mounts; touch /drive/.stowage-filled"
    )
    token = "\"q\" $x 'y' #z =é"
    assert in_podman(lab, image, text, env={"TOKEN": token})
    path = lab.at("ml.a")
    assert (path / "token").read_text() == token + "\n"
    mounts = {line.split()[1]: line.split()[3].split(",") for line in (path / "mounts").read_text().splitlines()}
    assert {"nosuid", "nodev"} <= set(mounts["/drive"])
    own = ("/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv")
    assert [point for point in mounts if not point.startswith(own)] == ["/", "/drive"]
    shown = capfd.readouterr().out
    assert "token ***" in shown and token not in shown
    assert podman("ps", "--all", "--quiet") == "" and podman("volume", "ls", "--quiet") == ""


def test_podman_s_failures_are_told(lab: Lab, image: str) -> None:
    assert not in_podman(lab, image, "echo x >/drive/x; echo no such model >&2; exit 4")
    assert look(lab).message == f"{WAITING}: the last try failed: exit status 4: no such model"
    assert lab.names() == [] and lab.trash() == []


def test_an_image_that_is_not_there(lab: Lab, image: str) -> None:
    lab.declare("ml.a", fill={"template": {"image": "localhost/none:1"}})
    assert not run(lab, container.find("podman"))
    assert "exit status 125: " in look(lab).message and lab.names() == []


def test_a_set_id_program_in_it_gains_nothing(lab: Lab, image: str) -> None:
    text = (
        "cat /bin/busybox >/drive/id; chmod 4755 /drive/id;"
        " cat /proc/self/status >/drive/status; touch /drive/.stowage-filled"
    ).replace("chmod", "/bin/busybox chmod")
    assert in_podman(lab, image, text)
    assert "NoNewPrivs:\t1" in (lab.at("ml.a") / "status").read_text()


PODMAN = """
from stowage_core.places import Places
from stowaged import container, fill
fill.say = lambda text: None
begin = fill.Filling._fill
def filling(self, *arguments):
    pid = os.fork()
    if not pid:
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.05)
        print("ready", flush=True)
        os._exit(0)
    begin(self, *arguments)
fill.Filling._fill = filling
fill.run(Places.under(sys.argv[1]), "ml.a", container.find("podman"), ())
"""


def test_a_container_whose_filler_is_killed_ends_and_what_it_wrote_goes(lab: Lab, image: str) -> None:
    template = {"image": image, "command": "/bin/sh", "args": ["-c", "echo x >/drive/part; sleep 600"]}
    lab.declare("ml.a", fill={"template": template}, evictable=False)
    records.write(lab.places.data_location_json, lab.location.to_json())
    part = lab.at("ml.a") / "part"
    with process(PODMAN, lab.places.etc[: -len("/etc/stowage")], str(part)) as child:
        lab.evict()
        assert lab.names() == ["ml.a"]
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert podman("ps", "--quiet") != "", "the engine does not end it"
    fill.end(lab.places, "ml.a")
    assert podman("ps", "--all", "--quiet") == "" and pins.all_pins(lab.places) == []
    assert part.exists() and look(lab).state == fills.WANTED
    assert in_podman(lab, image, "[ ! -e /drive/part ] && touch /drive/.stowage-filled")
