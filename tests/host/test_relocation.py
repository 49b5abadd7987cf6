# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A location is moved to another disk: killed anywhere, with somebody who writes, one whole copy is in use."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import clear
from killing import killed
from relocation_lab import Lab, contents, fill

from stowage_core import mounts
from stowage_core.differences import Differences
from stowage_core.errors import PartlyFailed, Refusal, StowageError
from stowage_core.relocation import afterwards, aside, old_path, plan, recorded, staging, users
from stowage_core.relocation.comparison import compare, state_of
from stowage_core.relocation.directories import opened_beneath
from stowage_core.relocation.moving import Moving
from stowage_core.relocation.work import BACK, STEPS, Tools
from stowage_core.runs import stamps
from stowage_core.runs.shape import RunName
from stowage_core.services.systemd_units import mount_unit
from stowage_core.syscalls import enter_mount_namespace

FORWARD = STEPS[: STEPS.index("finished") + 1]
SIZE = 320 << 20


@pytest.fixture(autouse=True, scope="module")
def _shared_mounts() -> Iterator[None]:
    """Have the mounts of this process's namespace be shared, as systemd has those of a host."""
    lines = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if line.split()[4] == "/"]
    if " shared:" in lines[0].partition(" - ")[0]:
        yield
        return
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    yield
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


@pytest.fixture
def lab(small_disk: Callable[..., Any], tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, small_disk("ext4", 128 << 20).path, small_disk("xfs", SIZE).path)
    fill(made.path)
    yield made
    clear(tmp_path)  # an old disk that was not retired


def beneath(lab: Lab) -> dict[str, Any]:
    """What is left at the old path, beneath what is mounted there."""
    one = recorded.load(lab.places, "runs")
    assert one is not None
    with opened_beneath(one, mounts.read()) as fd:
        return {name: os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode for name in os.listdir(fd)}


def test_moved_with_everything_that_a_filesystem_can_hold(lab: Lab) -> None:
    before = contents(lab.path)
    steps: list[str] = []
    lab.move(steps.append)
    assert steps == list(FORWARD)
    assert contents(lab.to) == before and contents(lab.path) == before, "by both names"
    assert os.stat(lab.to / "ann/e/r/sparse").st_blocks * 512 < 1 << 20
    assert os.path.samefile(lab.path, lab.to)
    assert lab.stage == "finished" and not lab.held
    assert f"STOWAGE_RUNS_ROOT={lab.to}\n" in Path(lab.places.environment).read_text()
    one = recorded.load(lab.places, "runs")
    assert one is not None
    looked = lab.moving().references(one)
    assert looked.named == [f"the link {lab.to}/ann/e/r/latest -> {lab.path}/ann/e/r/work/f1"] and not looked.unseen
    assert os.stat(one.backup).st_mode & 0o777 == 0o600
    assert lab.told == [
        "daemon-reload",
        f"enable -- {mount_unit(str(lab.path))}",
    ]
    (aside, mode) = beneath(lab).popitem()
    assert aside.startswith(".stowage-moved-") and mode & 0o777 == 0o700
    assert lab.path / "ann/e/r/latest" and (lab.path / "ann/e/r/latest").resolve(), "a stored absolute path works"


@pytest.mark.parametrize("step", FORWARD)
def test_killed_at_each_stage_with_somebody_who_writes(lab: Lab, step: str) -> None:
    before = contents(lab.path)
    with lab.writer() as told:
        killed(step, lab.move)
        assert contents(lab.path) == before, "one whole copy is in use"
        lab.move()
        written = told.read_bytes()
    assert lab.stage == "finished" and not lab.held
    assert contents(lab.path) == before == contents(lab.to)
    assert (lab.to / "ann/e/r/log").read_bytes().startswith(written), "nothing that was written is lost"


def boot(lab: Lab, late: bool = False) -> None:
    """Have mounted at the old path what a boot has mounted there: nothing, but for what a unit mounts.

    :param late: whether the new disk comes too late for that unit, which fails
    """
    while is_mounted(lab.path):
        subprocess.run(["umount", lab.path], check=True)
    if list(lab.units.iterdir()) and not late:
        subprocess.run(["mount", "--bind", lab.to, lab.path], check=True)


def is_mounted(path: Path) -> bool:
    """Return what the mount table says: ``os.path.ismount`` sees no directory that is mounted over itself."""
    return any(mount.point == str(path) for mount in mounts.read())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("step", [one for one in FORWARD if one not in ("finished",)])
def test_as_after_a_boot(lab: Lab, step: str, late: bool) -> None:
    before = contents(lab.path)
    killed(step, lab.move)
    boot(lab, late)
    assert not is_mounted(lab.path) or os.path.samefile(lab.path, lab.to)
    if late and lab.stage == "switched":
        with pytest.raises(Refusal, match="is to be mounted at .* and is not"):
            lab.move()
        boot(lab)
    assert contents(lab.path) == before
    lab.move()
    assert contents(lab.path) == before == contents(lab.to) and lab.stage == "finished"


@pytest.mark.parametrize("second", ["held", "covered", "closed", "copied", "unpacked", "compared"])
def test_a_boot_never_switches_to_half_a_copy(lab: Lab, second: str) -> None:
    """Killed with the unit there, the new disk is late once, and the copy is gone on with: the unit goes first."""
    before = contents(lab.path)
    killed("kept", lab.move)
    boot(lab, late=True)
    (lab.path / "ann/e/r/work/f1").write_text("so that it is copied again")
    now = contents(lab.path)
    killed(second, lab.move)
    if second != "held":
        assert not list(lab.units.iterdir())
        boot(lab)
    assert contents(lab.path) == now != before
    lab.move()
    assert contents(lab.path) == now == contents(lab.to) and lab.stage == "finished"


def test_a_boot_never_switches_to_what_is_to_be_copied_again(lab: Lab) -> None:
    killed("kept", lab.move)
    with opened_beneath(lab.moving().recorded(), mounts.read()) as fd:
        _write(fd, "ann/e/r/work/f5", b"by a host that does not follow")
    with pytest.raises(Refusal, match="was changed since it was copied; have it copied again"):
        lab.moving().switch()
    assert lab.stage == "closed" and not list(lab.units.iterdir())
    boot(lab)
    lab.move()
    assert (lab.to / "ann/e/r/work/f5").read_bytes().startswith(b"by a host")


def test_the_teams_of_runs_stay_known_when_a_switch_is_cut_short(lab: Lab) -> None:
    run = RunName("ann", "e", "r")

    def stamp() -> stamps.Stamp:
        fd = os.open(lab.path / "ann/e/r", os.O_RDONLY)
        try:
            return stamps.Stamp.of(fd, "vision", 1.0)
        finally:
            os.close(fd)

    stamps.put(lab.places, run, stamp())
    killed("kept", lab.move)
    assert stamps.stamp_of(lab.places, run) != stamp()
    boot(lab, late=True)
    killed("covered", lab.move)
    assert stamps.stamp_of(lab.places, run) == stamp()
    lab.move()
    assert stamps.stamp_of(lab.places, run) == stamp()


def mounted_too_early(lab: Lab, step: str) -> None:
    """Have the new directory at the old path by a unit that an interrupted move has left, as if after a boot."""
    killed(step, lab.move)
    for unit in lab.moving()._units(lab.moving().recorded()):
        unit.write(str(lab.units), lab.systemctl)
    boot(lab)


@pytest.mark.parametrize("step", ["copied", "unpacked", "compared"])
@pytest.mark.parametrize("by", ["undo", "give_up"])
def test_what_a_unit_of_the_move_has_mounted_too_early_is_taken_away(lab: Lab, step: str, by: str) -> None:
    before = contents(lab.path)
    mounted_too_early(lab, step)
    (lab.path / "state.db").write_text("by somebody who took it for the runs")
    moving = lab.moving()
    with pytest.raises(Refusal, match="give the move up"):
        lab.move()
    moving.undo() if by == "undo" else moving.give_up()
    assert not is_mounted(lab.path) and not list(lab.units.iterdir())
    moving.give_up()
    assert lab.stage == "given up" and not lab.held and contents(lab.path) == before
    with pytest.raises(PartlyFailed, match="was changed by somebody since it was copied.*it is given up") as refused:
        lab.move()
    what = "state.db in it is not of the copy" if step == "copied" else "at last state.db"
    assert f"since it was copied: {what}; look at both" in str(refused.value)
    assert (lab.to / "state.db").exists(), "nowhere else, and not deleted"
    (lab.to / "state.db").unlink()
    lab.move()
    assert contents(lab.to) == before


def test_what_somebody_else_has_mounted_stays(lab: Lab) -> None:
    killed("copied", lab.move)
    subprocess.run(["mount", "--bind", lab.to, lab.path], check=True)
    with pytest.raises(Refusal, match=f"which nobody has recorded; unmount {lab.path}"):
        lab.moving().give_up()
    subprocess.run(["umount", lab.path], check=True)
    lab.moving().give_up()


def killed_at_rename(lab: Lab, number: int) -> None:
    """Kill a move when it has given the copy, or taken back from it, so many names."""

    def work(kill: Callable[[str], None]) -> None:
        rename, left = staging.rename_noreplace, iter(range(number - 1, -1, -1))

        def renamed(*words: Any) -> None:
            rename(*words)
            if next(left) == 0:
                kill("renamed")

        staging.rename_noreplace = renamed
        lab.move()

    killed("renamed", work)


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("second", [1, 3, 4, 5])
def test_killed_while_an_earlier_copy_is_taken_back(lab: Lab, first: int, second: int) -> None:
    """Four names are taken back, and the fifth is on its way out again."""
    for name in "abc":
        (lab.path / name).write_text(name)
    before = contents(lab.path)
    killed_at_rename(lab, first)  # on its way to its place
    boot(lab)
    killed("compared", lab.move)
    boot(lab)
    killed_at_rename(lab, second)
    assert contents(lab.path) == before
    lab.move()
    assert contents(lab.path) == before == contents(lab.to)


@pytest.mark.parametrize("step", [None, *BACK[:4]])
def test_switched_back(lab: Lab, step: str | None) -> None:
    before = contents(lab.path)
    moving = lab.until_switched()
    lab.lay_out(**moving.recorded().after)
    (lab.path / "by a hook").touch()
    still_open = open(lab.path / "by a hook")  # noqa: SIM115
    if step is not None:
        killed(step, lambda kill: lab.moving(kill).undo())
    lab.moving().undo()
    assert lab.held, "until the settings are those of before"
    assert still_open.read() == ""
    still_open.close()
    assert contents(lab.path) == before and not is_mounted(lab.path)
    lab.lay_out(**moving.recorded().before)
    lab.moving().give_up()
    assert lab.stage == "undone" and not lab.held and not list(lab.units.iterdir())
    (lab.path / "again").touch()
    with pytest.raises(Refusal, match="is not empty: it holds the copy of the move that was undone"):
        lab.planned()


def test_switched_back_although_the_switch_is_not_recorded(lab: Lab) -> None:
    before = contents(lab.path)
    killed("bound", lab.move)
    with pytest.raises(Refusal, match="which is in use; undo that first"):
        lab.moving().give_up()
    lab.moving().undo()
    lab.moving().give_up()
    assert lab.stage == "undone" and not lab.held
    assert contents(lab.path) == before and not is_mounted(lab.path) and not list(lab.units.iterdir())


@pytest.mark.parametrize("step", FORWARD[: FORWARD.index("bound")])
def test_given_up_after_it_was_killed(lab: Lab, step: str) -> None:
    before = contents(lab.path)
    killed(step, lab.move)
    lab.moving().give_up()
    assert lab.stage == "given up" and not lab.held
    assert contents(lab.path) == before and not is_mounted(lab.path) and not list(lab.units.iterdir())
    (lab.path / "meanwhile").write_text("and the location is in use")
    (lab.path / "ann/e/r/work/f1").unlink()
    now = contents(lab.path)
    lab.move()
    assert contents(lab.to) == now


@pytest.mark.parametrize("booted", [False, True])
@pytest.mark.parametrize("step", ["opened", "lifted", "given up"])
@pytest.mark.parametrize("since", ["copied", "kept", None])
def test_killed_while_it_is_given_up(lab: Lab, since: str | None, step: str, booted: bool) -> None:
    before = contents(lab.path)
    if since is None:
        lab.until_switched().undo()
    else:
        killed(since, lab.move)
    if (since, step) != (None, "given up"):  # which is recorded as undone before
        killed(step, lambda kill: lab.moving(kill).give_up())
    if booted:
        boot(lab)
    assert contents(lab.path) == before and not is_mounted(lab.path)
    lab.moving().give_up()
    assert lab.stage == ("undone" if since is None else "given up") and not lab.held
    assert contents(lab.path) == before and not list(lab.units.iterdir())
    (lab.path / "goes on").touch()


@pytest.mark.parametrize("step", ["copied", "unpacked", "compared", "kept", None])
def test_no_layout_begins_with_half_a_copy(lab: Lab, step: str | None) -> None:
    """Also not with a whole one, which is of before."""
    if step is None:
        moving = lab.until_switched()
        moving.undo()
    else:
        killed(step, lab.move)
    lab.moving().give_up()
    one = lab.moving().recorded()
    with pytest.raises(Refusal, match=f"{lab.to} holds the copy of a move from {lab.path} that was {one.stage}"):
        lab.lay_out(**one.after)
    assert not lab.lay_out().warnings
    if step is None:
        shutil.rmtree(lab.to)
        lab.to.mkdir()
    else:
        lab.move()
        assert lab.stage == "finished"
        return
    assert any("its files stay there" in warning for warning in lab.lay_out(**one.after).warnings)
    (lab.to / "goes on").touch()
    lab.lay_out(**one.after)


def test_given_up_and_begun_with_another_directory_of_the_same_name(lab: Lab) -> None:
    before = contents(lab.path)
    killed("copied", lab.move)
    lab.moving().give_up()
    os.rename(lab.to, f"{lab.to}.half")
    lab.to.mkdir()
    (lab.to / "mine").touch()
    with pytest.raises(Refusal, match="is not empty"):
        lab.planned()
    (lab.to / "mine").unlink()
    lab.move()
    assert contents(lab.to) == before


def test_somebody_who_does_not_end(lab: Lab) -> None:
    with open(lab.path / "ann/e/r/log", "ab") as log, pytest.raises(PartlyFailed) as failed:
        lab.until_switched(wait_s=0)
    assert log.name in str(failed.value) or "in use after 0 s" in str(failed.value)
    assert "it is given up: " in str(failed.value) and "jobs are not held" in str(failed.value)
    assert lab.stage == "given up" and not lab.held and not is_mounted(lab.path)
    lab.move()


def test_another_way_to_write_keeps_it_from_being_closed(lab: Lab, tmp_path: Path) -> None:
    """As a container has that was given the directory above."""
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["mount", "--bind", "--make-private", lab.root, other], check=True)
    try:
        with pytest.raises(PartlyFailed, match=f"in use after 0 s: .*{other}/runs"):
            lab.until_switched(wait_s=0)
    finally:
        subprocess.run(["umount", other], check=True)


def test_what_is_changed_although_it_was_closed_is_not_switched(lab: Lab) -> None:
    moving = lab.moving()
    moving.close(lab.planned(), 60)
    moving.copy()
    subprocess.run(["umount", lab.path], check=True)
    (lab.path / "late").touch()
    with pytest.raises(Refusal, match="its copy is not compared with it"):
        moving.switch()
    lab.move()
    assert (lab.to / "late").exists()


def test_a_copy_that_somebody_changed_is_not_copied_over(lab: Lab) -> None:
    moving = lab.moving()
    moving.close(lab.planned(), 60)
    moving.copy()
    (lab.to / "new").write_text("by somebody who was too early")
    with pytest.raises(Refusal, match="was changed by somebody since it was copied"):
        moving.switch()
    moving.give_up()
    with pytest.raises(PartlyFailed, match="was changed by somebody since it was copied"):
        lab.move()
    assert (lab.to / "new").exists()


def test_nobody_reaches_half_a_copy(lab: Lab) -> None:
    """And so nothing of anybody's is among what the copying deletes."""
    killed("copied", lab.move)
    assert os.stat(lab.to).st_mode & 0o777 == 0o700 and os.stat(lab.to).st_uid == 0
    assert [name.partition("-copy-")[0] for name in os.listdir(lab.to)] == [".stowage"]
    os.chmod(lab.to, 0o777)
    (lab.to / "mine").touch()
    with pytest.raises(PartlyFailed, match="was changed by somebody"):
        lab.moving().copy()
    assert (lab.to / "mine").exists()
    (lab.to / "mine").unlink()
    subprocess.run(["rm", "-r", *lab.to.iterdir()], check=True)
    before = contents(lab.path)
    lab.move()
    assert contents(lab.to) == before


def test_what_came_into_the_new_directory_after_it_was_planned(lab: Lab) -> None:
    moving = lab.moving()
    moving.close(lab.planned(), 60)
    (lab.to / "mine").touch()
    with pytest.raises(
        PartlyFailed, match="is not empty: mine came meanwhile; name an empty directory; it is given up"
    ):
        moving.copy()
    assert (lab.to / "mine").exists() and lab.stage == "given up"


def test_what_changed_after_it_was_compared_is_copied_again(lab: Lab) -> None:
    """Also when no time of the future hides it."""
    moving = lab.moving()
    moving.close(lab.planned(), 60)
    moving.copy()
    with opened_beneath(moving.recorded(), mounts.read()) as fd:
        _write(fd, "ann/e/r/work/f5", b"by a host that does not follow")
    with pytest.raises(Refusal, match="was changed since it was copied; have it copied again"):
        moving.switch()
    moving.copy()
    moving.switch()
    assert (lab.to / "ann/e/r/work/f5").read_bytes().startswith(b"by a host")


def _write(fd: int, name: str, data: bytes) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644, dir_fd=fd)
    os.write(file, data)
    os.close(file)


def test_a_time_in_the_future_hides_no_change(lab: Lab, small_disk: Callable[..., Any]) -> None:
    disk = small_disk("ext4")
    inside = disk.path / "inside"
    inside.mkdir()
    (inside / "a").write_text("a")
    (inside / "b").write_text("b")
    disk.unmount()
    command = ["debugfs", "-w", "-R", "set_inode_field inside/a ctime 20380101000000", disk.device]
    subprocess.run(command, check=True, capture_output=True)
    disk.mount()
    fd = os.open(disk.path, os.O_RDONLY)
    try:
        before = state_of(fd)
        assert os.stat(inside / "a").st_ctime > time.time() and state_of(fd) == before
        (inside / "b").write_text("c")
        assert state_of(fd).entries == before.entries and state_of(fd) != before
    finally:
        os.close(fd)


@pytest.mark.parametrize("step", ["setting aside", "set aside"])
@pytest.mark.parametrize("name", ["ann/e/r/new", "new"])
def test_what_comes_while_it_is_set_aside_is_not_deleted(lab: Lab, step: str, name: str) -> None:
    before = contents(lab.path)
    killed(step, lab.move)
    one = recorded.load(lab.places, "runs")
    assert one is not None
    where = f".stowage-moved-{one.identity}/" if step == "set aside" else ""
    with opened_beneath(one, mounts.read()) as fd:
        _write(fd, where + name, b"nowhere else")
    with pytest.raises(Refusal, match="was changed since it was copied, beneath what is mounted there now"):
        lab.moving().finish()
    assert lab.held
    lab.moving().undo()
    lab.lay_out(**one.before)
    lab.moving().give_up()
    assert (lab.path / name).read_text() == "nowhere else" and not lab.held
    (lab.path / name).unlink()
    assert contents(lab.path).keys() == before.keys()


@pytest.mark.parametrize("name", ["moved", "copy"])
def test_names_of_a_worker_are_content(lab: Lab, name: str) -> None:
    """Whatever somebody makes at the top of the location: also what the move was to be called."""
    (lab.path / ".stowage-moved-mine").mkdir()

    def make(step: str) -> None:
        if step == "held":
            (lab.path / f".stowage-{name}-{lab.moving().recorded().identity}").write_text("mine")

    moving = lab.until_switched(make)
    before = inside(lab.path)
    assert len([one for one in before if one.startswith(".stowage-")]) == 2
    lab.lay_out(**moving.recorded().after)
    killed("set aside", lambda kill: lab.moving(kill).finish())
    lab.moving().undo()
    lab.lay_out(**moving.recorded().before)
    lab.moving().give_up()
    assert lab.stage == "undone" and not lab.held and inside(lab.path) == before
    shutil.rmtree(lab.to)
    lab.to.mkdir()
    lab.move()
    lab.moving().retire(str(lab.path))
    assert inside(lab.to) == before and beneath(lab) == {}


def inside(path: Path) -> dict[str, Any]:
    """Return what is in a tree, without the directory itself, whose time changes with each name in it."""
    return {name: one for name, one in contents(path).items() if name != "."}


def test_a_name_that_a_copy_needs_is_refused(lab: Lab) -> None:
    killed("copied", lab.move)
    lab.moving().give_up()
    mine = lab.path / f".stowage-copy-{lab.moving().recorded().identity}"
    mine.mkdir()
    with pytest.raises(PartlyFailed, match=f"{mine.name} in {lab.path} has a name that the move needs; move it away"):
        lab.move()
    mine.rmdir()
    lab.move()


def test_an_empty_location_goes_back_when_it_was_only_closed(lab: Lab) -> None:
    shutil.rmtree(lab.path / "ann")
    moving = lab.until_switched()
    lab.lay_out(**moving.recorded().after)

    def finish(kill: Callable[[str], None]) -> None:
        aside.os = SimpleNamespace(**{**vars(os), "fchmod": lambda *words: (os.fchmod(*words), kill("closed"))})
        lab.moving().finish()

    killed("closed", finish)
    lab.moving().undo()
    assert os.stat(lab.path).st_mode & 0o7777 == 0o2775
    lab.lay_out(**moving.recorded().before)
    lab.moving().give_up()
    assert lab.stage == "undone" and not lab.held


def test_what_cannot_be_set_aside_is_put_back(lab: Lab) -> None:
    before = contents(lab.path)
    (lab.path / "top").write_text("x")
    subprocess.run(["chattr", "+i", lab.path / "top"], check=True)
    with pytest.raises(Refusal, match=r"top in it is immutable or append-only \(lsattr\), which is not copied"):
        lab.planned()
    subprocess.run(["chattr", "-i", lab.path / "top"], check=True)
    moving = lab.until_switched()
    lab.lay_out(**moving.recorded().after)

    def protect(step: str) -> None:
        if step == "setting aside":
            with opened_beneath(moving.recorded(), mounts.read()) as fd:
                subprocess.run(["chattr", "+i", f"/proc/self/fd/{fd}/top"], check=True, pass_fds=[fd])

    with pytest.raises(StowageError, match=r"top in the old directory cannot be moved: .*chattr -ia"):
        lab.moving(protect).finish()
    lab.moving().undo()
    assert os.stat(lab.path).st_mode & 0o7777 == 0o2775
    lab.lay_out(**moving.recorded().before)
    lab.moving().give_up()
    subprocess.run(["chattr", "-i", lab.path / "top"], check=True)
    (lab.path / "top").unlink()
    assert not lab.held and contents(lab.path).keys() == before.keys()
    assert contents(lab.path)["ann/e/r/work/f3"] == before["ann/e/r/work/f3"]


def test_a_move_that_was_given_up_is_begun_anew(lab: Lab) -> None:
    moving = lab.moving()
    moving.close(lab.planned(), 60)
    moving.give_up()
    one = moving.recorded()
    (lab.to.parent / "state").mkdir()
    other = lab.moving(location="state")
    other.close(lab.planned("state", lab.to.parent / "state"), 60)
    with pytest.raises(Refusal, match="is given up; begin one, with the new directory"):
        moving.close(one, 60)
    with pytest.raises(Refusal, match="the move of state to .* is not finished"):
        lab.planned()
    other.give_up()


def test_caches_can_be_left_behind(lab: Lab, tmp_path: Path) -> None:
    to = lab.to.parent / "cache"
    to.mkdir()
    (lab.root / "cache/hf/hub/model").write_text("weights")
    (lab.root / "cache/a/b").mkdir(parents=True)
    moving = lab.moving(location="cache")
    moving.close(lab.planned("cache", to, copy=False), 60)
    moving.copy()
    moving.switch()
    lab.lay_out(**moving.recorded().after)
    moving.finish()
    assert not (lab.root / "cache/hf/hub/model").exists()
    assert (to / "hf/hub").is_dir(), "the layout has made its defaults anew"


def at_a_mount_point(lab: Lab, disk: Path) -> dict[str, Any]:
    """Have the runs be all of a disk."""
    lab.overrides["runs"] = str(disk)
    lab.path = disk
    lab.lay_out()
    if (disk / "lost+found").exists():
        os.rmdir(disk / "lost+found")
    fill(disk)
    return contents(disk)


def booted(lab: Lab, disk: Any) -> None:
    """Have mounted what a boot mounts."""
    at = Path(lab.places.relocations_dir) / "disks/runs"
    for point in (lab.path, at):
        while is_mounted(point):
            subprocess.run(["umount", point], check=True)
    if list(lab.units.iterdir()):
        subprocess.run(["mount", disk.device, at], check=True)
        subprocess.run(["mount", "--bind", lab.to, lab.path], check=True)
    else:
        disk.mount()


@pytest.mark.parametrize("step", [None, "covered", "copied", "kept", "bound", "set aside"])
@pytest.mark.parametrize("boot", [False, True])
def test_a_location_that_is_all_of_a_disk(
    lab: Lab, small_disk: Callable[..., Any], step: str | None, boot: bool
) -> None:
    disk = small_disk("ext4", 128 << 20)
    before = at_a_mount_point(lab, disk.path)
    at = Path(lab.places.relocations_dir) / "disks/runs"
    if step is not None:
        killed(step, lab.move)
        assert contents(lab.path) == before
    if boot:
        booted(lab, disk)
        assert contents(lab.path) == before
    lab.move()
    assert contents(lab.path) == before == contents(lab.to)
    assert at.stat().st_mode & 0o777 == 0 and at.parent.stat().st_mode & 0o777 == 0o700
    assert len(list(lab.units.iterdir())) == 2
    lab.moving().retire(str(lab.path))
    assert not at.exists() and len(list(lab.units.iterdir())) == 1
    assert contents(lab.path) == before == contents(lab.to)
    (lab.to / "ann/e/r/latest").unlink()
    lab.moving().forget()
    assert lab.stage == "forgotten" and not list(lab.units.iterdir())


@pytest.mark.parametrize("again", [False, True])
def test_a_disk_after_a_boot_for_which_the_new_one_came_too_late(
    lab: Lab, small_disk: Callable[..., Any], again: bool
) -> None:
    """Nothing is mounted at the old path: the unit that failed has taken the place of the disk's own."""
    disk = small_disk("ext4", 128 << 20)
    before = at_a_mount_point(lab, disk.path)
    killed("kept", lab.move)
    booted(lab, disk)
    subprocess.run(["umount", disk.path], check=True)
    if again:
        with pytest.raises(PartlyFailed, match="is not the directory that is moved.* it is given up"):
            lab.move()
    else:
        lab.moving().undo()
        lab.moving().give_up()
    assert contents(lab.path) == before and not lab.held and not list(lab.units.iterdir())
    (lab.path / "goes on").touch()
    lab.move()
    assert lab.stage == "finished" and (lab.to / "goes on").exists()


def test_a_disk_is_switched_back(lab: Lab, small_disk: Callable[..., Any]) -> None:
    disk = small_disk("xfs")
    before = at_a_mount_point(lab, disk.path)
    lab.until_switched()
    lab.moving().undo()
    lab.moving().give_up()
    assert contents(lab.path) == before and not list(lab.units.iterdir())
    assert [mount.point for mount in mounts.read() if mount.fstype == "xfs"].count(str(disk.path)) == 1
    (lab.path / "goes on").touch()


def test_what_mkfs_has_made_neither_moves_nor_goes(lab: Lab, small_disk: Callable[..., Any]) -> None:
    old, new = small_disk("ext4", 128 << 20), small_disk("ext4", 128 << 20)
    lab.overrides["runs"] = str(old.path)
    lab.path, lab.to = old.path, new.path
    lab.lay_out()
    fill(old.path)
    made = os.stat(old.path / "lost+found").st_ino
    before = contents(old.path)
    found = old.path / "lost+found/#12"
    found.touch()
    with pytest.raises(Refusal, match=r"lost\+found is not empty: fsck has put something there"):
        lab.planned()
    found.unlink()
    lab.move()
    assert contents(new.path).keys() == before.keys() and os.stat(new.path / "lost+found").st_ino == made
    lab.moving().retire(str(old.path))
    at = lab.places.relocations_dir
    assert lab.stage == "retired" and not os.path.exists(f"{at}/disks/runs")
    old.mount(at=Path(at))
    assert os.listdir(at) == ["lost+found"]
    subprocess.run(["umount", at], check=True)
    subprocess.run(["e2fsck", "-fn", old.device], check=True, capture_output=True)


@pytest.mark.parametrize("step", [None, "undoing", "not kept", "switched back"])
def test_a_disk_is_switched_back_after_a_boot(lab: Lab, small_disk: Callable[..., Any], step: str | None) -> None:
    disk = small_disk("ext4", 128 << 20)
    before = at_a_mount_point(lab, disk.path)
    lab.until_switched()
    booted(lab, disk)
    if step is not None:
        killed(step, lambda kill: lab.moving(kill).undo())
    lab.moving().undo()
    assert contents(lab.path) == before and lab.held
    lab.moving().give_up()
    assert contents(lab.path) == before and not lab.held and lab.stage == "undone"
    assert [mount.point for mount in mounts.read() if mount.source == disk.device] == [str(disk.path)]
    (lab.path / "goes on").touch()


def test_a_disk_that_is_gone_is_not_switched_back_to(lab: Lab, small_disk: Callable[..., Any]) -> None:
    disk = small_disk("ext4", 128 << 20)
    at_a_mount_point(lab, disk.path)
    lab.until_switched()
    booted(lab, disk)
    at = Path(lab.places.relocations_dir) / "disks/runs"
    subprocess.run(["umount", at], check=True)
    with pytest.raises(StowageError, match="is not the directory that is moved"):
        lab.moving().undo()
    assert lab.stage == "switched" and lab.held and os.path.samefile(lab.path, lab.to)
    subprocess.run(["mount", disk.device, at], check=True)
    killed("switched back", lambda kill: lab.moving(kill).undo())
    subprocess.run(["umount", lab.path], check=True)
    for work in (lab.moving().undo, lab.moving().give_up):
        with pytest.raises(StowageError, match="is not the directory that is moved|is mounted neither there nor at"):
            work()
    assert lab.stage == "switched" and lab.held


def test_a_copying_process_that_is_left_over_is_waited_for(lab: Lab) -> None:
    """Else it would go on in what is compared already."""
    slow = ["sh", "-c", "sleep 3; touch /proc/self/fd/$1/late", "sh"]

    def start(words: Any, pass_fds: Any = ()) -> tuple[int, str, str]:
        if words[0] == "systemctl":
            return lab.run(words)
        with subprocess.Popen([*slow, str(pass_fds[1])], pass_fds=pass_fds):
            os.kill(os.getpid(), signal.SIGKILL)
        return 0, "", ""

    moving = lab.moving()
    moving.close(lab.planned(), 60)
    pid = os.fork()
    if pid == 0:
        tools = Tools(start, lab.systemctl, "rsync", str(lab.units))
        Moving(lab.places, "runs", tools, Differences()).copy()
    os.waitpid(pid, 0)
    before = contents(lab.path)
    lab.move()
    assert contents(lab.to) == before


# -- Retiring


def test_retired_and_forgotten(lab: Lab) -> None:
    before = contents(lab.path)
    lab.move()
    moving = lab.moving()
    with pytest.raises(Refusal, match=f"give the old path again, {lab.path}"):
        moving.retire("runs")
    with pytest.raises(Refusal, match="retire the old content first"):
        moving.forget()
    moving.retire(str(lab.path))
    assert beneath(lab) == {} and lab.stage == "retired"
    assert contents(lab.path) == before == contents(lab.to)
    with pytest.raises(Refusal, match=r"is still named by the link .*latest -> "):
        moving.forget()
    (lab.to / "ann/e/r/latest").unlink()
    with (lab.path / "ann/e/r/log").open(), pytest.raises(Refusal, match="something open by the old path"):
        moving.forget()
    assert moving.recorded().doing == ""
    state = lab.root / "state"
    (state / "last-run").symlink_to(lab.path / "ann/e/r")
    (state / "job.json").write_text(f'{{"ckpt": "{lab.path}/ann/e/r/work/f1"}}')
    with pytest.raises(Refusal, match="is still named by ") as refused:
        moving.forget()
    # In whichever order the directory has them.
    assert f"{state}/job.json:1: " in str(refused.value) and f"the link {state}/last-run -> " in str(refused.value)
    (state / "last-run").unlink()
    (state / "job.json").unlink()
    backup = moving.recorded().backup
    assert os.path.exists(backup)
    moving.forget()
    assert not os.path.exists(backup)
    assert not lab.path.exists() and lab.stage == "forgotten" and not list(lab.units.iterdir())
    moving.forget()
    with pytest.raises(Refusal, match="put this into host_storage_overrides: runs: "):
        lab.lay_out()
    assert not lab.path.exists()


@pytest.mark.parametrize("step", ["retiring", "deleting", "deleted", "retired"])
def test_killed_while_it_is_deleted(lab: Lab, step: str) -> None:
    before = contents(lab.path)
    lab.move()
    killed(step, lambda kill: lab.moving(kill).retire(str(lab.path)))
    assert contents(lab.path) == before
    lab.moving().retire(str(lab.path))
    assert beneath(lab) == {} and contents(lab.path) == before == contents(lab.to)


@pytest.mark.parametrize("booted", [False, True])
@pytest.mark.parametrize("step", ["forgetting", "uncovered", "not kept", "forgotten"])
def test_killed_while_it_is_forgotten(lab: Lab, step: str, booted: bool) -> None:
    lab.move()
    lab.moving().retire(str(lab.path))
    (lab.to / "ann/e/r/latest").unlink()
    before = contents(lab.to)
    killed(step, lambda kill: lab.moving(kill).forget())
    if booted:
        boot(lab)
    moving = lab.moving()
    moving.check(moving.recorded())
    moving.retire(str(lab.path))
    moving.forget()
    assert lab.stage == "forgotten" and not lab.path.exists() and not list(lab.units.iterdir())
    assert contents(lab.to) == before and not is_mounted(lab.path)


def refuse_to_delete(lab: Lab, rule: str) -> None:
    with pytest.raises(StowageError, match=rule):
        lab.moving().retire(str(lab.path))


def test_nothing_is_deleted_when_anything_is_not_as_it_was(lab: Lab, tmp_path: Path) -> None:
    lab.move()
    one = recorded.load(lab.places, "runs")
    assert one is not None
    with opened_beneath(one, mounts.read()) as fd:
        (aside,) = os.listdir(fd)
        os.chdir(f"/proc/self/fd/{fd}")
        try:
            held = os.open(f"{aside}/ann/e/r/log", os.O_RDONLY)
            new = os.open(f"{aside}/ann/new", os.O_CREAT | os.O_WRONLY)
        finally:
            os.chdir("/")
        os.close(new)
        refuse_to_delete(lab, "was changed since it was set aside")
        os.unlink(f"/proc/self/fd/{fd}/{aside}/ann/new")
    recorded.save(lab.places, replace(one, aside=_state(lab)))
    refuse_to_delete(lab, "is in use: .*")
    os.close(held)
    subprocess.run(["umount", lab.path], check=True)
    refuse_to_delete(lab, f"{lab.to} is to be mounted at {lab.path} and is not")
    subprocess.run(["mount", "--bind", lab.to, lab.path], check=True)
    os.rename(lab.to, f"{lab.to}.away")
    lab.to.mkdir()
    refuse_to_delete(lab, "is to be mounted|is not the directory that it is moved to")
    lab.to.rmdir()
    os.rename(f"{lab.to}.away", lab.to)
    lab.moving().retire(str(lab.path))


def _state(lab: Lab) -> Any:
    one = recorded.load(lab.places, "runs")
    assert one is not None
    with opened_beneath(one, mounts.read()) as fd:
        return state_of(fd)


def test_nothing_is_deleted_when_the_new_directory_is_empty(lab: Lab) -> None:
    lab.move()
    for name in os.listdir(lab.to):
        subprocess.run(["rm", "-r", lab.to / name], check=True)
    refuse_to_delete(lab, r"is empty, and 5\d files with .* MB, which were in .*/runs, would be deleted")
    (lab.to / "one").write_text("a result")
    told = Differences(check_mode=True)
    Moving(lab.places, "runs", lab.moving()._tools, told).retire(str(lab.path))
    assert told.actions[0].startswith("delete 5") and told.actions[0].endswith(f"; {lab.to} holds 1 files with 8 B")


def test_the_deletion_ends_when_the_new_directory_goes(lab: Lab) -> None:
    lab.move()

    def step(now: str) -> None:
        if now == "retiring":
            subprocess.run(["umount", lab.path], check=True)

    with pytest.raises(StowageError, match="nothing more is deleted"):
        lab.moving(step).retire(str(lab.path))


# -- What is refused


def test_refused_before_anything_is_changed(lab: Lab, small_disk: Callable[..., Any], tmp_path: Path) -> None:
    disk = lab.to.parent

    def refused(rule: str, location: str = "runs", to: Path = lab.to, **more: Any) -> None:
        with pytest.raises(Refusal, match=rule):
            lab.planned(location, to, **more)

    refused("there is no location 'run'; did you mean runs", "run")
    refused("does not exist", to=disk / "missing")
    refused("only caches may be left behind", copy=False)
    (lab.to / "x").touch()
    refused("is not empty")
    (lab.to / "x").unlink()
    inside = lab.path / "ann"
    refused("is inside .*, where runs is", to=inside)
    refused("is the same|is inside|contains|is .*, where", to=lab.root / "state")
    small = small_disk("ext4", 16 << 20)
    (small.path / "runs").mkdir()
    with open(lab.path / "large", "wb") as file:
        file.write(b"x" * (20 << 20))
    refused("are to be copied; name a directory on a larger", to=small.path / "runs")
    (lab.path / "mnt").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", lab.path / "mnt"], check=True)
    refused("something is mounted inside it")
    subprocess.run(["umount", lab.path / "mnt"], check=True)
    assert lab.stage == "" and not lab.held


def deep(top: Path, length: int, last: str, longest: int = 255) -> None:
    """Make a file, or without a name a directory, whose path from the top has so many bytes."""
    fd = os.open(top, os.O_RDONLY)
    left = length - len(last) - bool(last)
    while left > 0:
        # None but the last may leave room for no more than a slash.
        name = "d" * (left if left <= longest else min(longest, max(1, left - 2)))
        os.mkdir(name, dir_fd=fd)
        inner = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd, left = inner, left - len(name) - 1
    if last:
        os.close(os.open(last, os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.setxattr(fd, "user.note", b"x")
    os.close(fd)


@pytest.mark.parametrize("last", ["", "f", "f" * 250])
def test_a_path_that_rsync_does_not_take_is_refused_before_jobs_are_held(lab: Lab, last: str) -> None:
    deep(lab.path / "ann", 4000 - len("ann/"), last)
    lab.planned()
    (lab.path / "bob").mkdir()
    deep(lab.path / "bob", 4001 - len("bob/"), last)
    with pytest.raises(Refusal, match="bob/ddd.*d.* in it has a path of more than 4000 bytes"):
        lab.planned()
    shutil.rmtree(lab.path / "bob")

    def make(step: str) -> None:
        if step == "unused" and not (lab.path / "bob").exists():
            (lab.path / "bob").mkdir()
            deep(lab.path / "bob", 5000, last)

    steps: list[str] = []
    with pytest.raises(PartlyFailed, match="has a path of more than 4000 bytes; .* it is given up"):
        lab.until_switched(lambda step: (make(step), steps.append(step)))
    assert "copied" not in steps and not lab.held
    shutil.rmtree(lab.path / "bob")
    lab.move()
    assert lab.stage == "finished"


def test_directories_that_are_too_deep_for_rsync_are_refused(lab: Lab) -> None:
    deep(lab.path, 2 * 1000, "f", 1)
    lab.move()
    lab.moving().retire(str(lab.path))
    (lab.to / "ann/e/r/latest").unlink()
    lab.moving().forget()
    subprocess.run(["rm", "-r", lab.to / "d"], check=True)  # deeper than shutil goes
    deep(lab.to, 2 * 1001 - 1, "", 1)
    (lab.to.parent / "again").mkdir()
    with pytest.raises(Refusal, match="d/d.* in it is more than 1000 directories deep; mend that first"):
        lab.planned(to=lab.to.parent / "again")


# -- The comparison


def copied(lab: Lab) -> None:
    subprocess.run(["rsync", "-aHAXXS", "--modify-window=-1", f"{lab.path}/", f"{lab.to}/"], check=True)


def changed_in_place(path: Path) -> None:
    """Change a byte, and have size and time stay."""
    status = os.stat(path)
    with open(path, "r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda to: changed_in_place(to / "work/f9"), "work/f9: has another content in the copy"),
        (lambda to: (to / "work/f9").unlink(), "f9: is missing in the copy"),
        (lambda to: (to / "more").touch(), "more: is in the copy only"),
        (lambda to: os.chmod(to / "work/f9", 0o600), "work/f9: mode 0644 is 0600 in the copy"),
        (lambda to: os.chown(to / "work/f9", 7, 7), "work/f9: owner 0:0 is 7:7 in the copy"),
        (lambda to: os.utime(to / "work/f9"), "work/f9: its time differs in the copy"),
        (
            lambda to: os.removexattr(to / "work/f4", "user.note"),
            "f4: extended attribute user.note differs in the copy",
        ),
        (
            lambda to: os.removexattr(to / "work/f5", "system.posix_acl_access"),
            "f5: extended attribute system.posix_acl_access differs in the copy",
        ),
        (lambda to: os.truncate(to / "work/f9", 1), "f9: size 8793 is 1 in the copy"),
        (
            lambda to: subprocess.run(["cp", "-p", "--remove-destination", to / "work/f7", to / "hard"], check=True),
            "is not one file with the same names in the copy",
        ),
        (
            lambda to: ((to / "relative").unlink(), (to / "relative").symlink_to("work/f3")),
            "relative: is a link to something else in the copy",
        ),
        (lambda to: ((to / "fifo").unlink(), (to / "fifo").touch()), "fifo: is of another type in the copy"),
    ],
)
def test_every_difference_is_seen(lab: Lab, change: Callable[[Path], object], told: str) -> None:
    copied(lab)
    fds = [os.open(path, os.O_RDONLY) for path in (lab.path, lab.to)]
    try:
        assert compare(*fds).differences == []
        change(lab.to / "ann/e/r")
        found = compare(*fds)
    finally:
        for fd in fds:
            os.close(fd)
    assert any(told in text for text in found.differences), found.differences


# -- Hosts that share the location


class Other:
    """Another host with the same disks: its mounts are its own."""

    def __init__(self, home: Path, first: Lab) -> None:
        self._process = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sleep", "600"])
        while os.readlink(f"/proc/{self._process.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            time.sleep(0.01)
        home.mkdir()
        self.lab = Lab(home, first.root.parent, first.to.parent, again=True)

    def do(self, work: Callable[[], object]) -> None:
        """Do something there."""
        pid = os.fork()
        if pid == 0:
            try:
                fd = os.open(f"/proc/{self._process.pid}/ns/mnt", os.O_RDONLY)
                enter_mount_namespace(fd)
                os.close(fd)
                work()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def other(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Other]:
    for module in (plan, users, afterwards, old_path):
        monkeypatch.setattr(module, "is_shared", lambda _fstype: True)
    monkeypatch.setattr(old_path.OldPath, "writable_ways", lambda _self, _table: [])  # as of another machine
    made = Other(tmp_path / "other", lab)
    yield made
    made.close()


def switch_together(lab: Lab, other: Other, first: Moving, second: Moving) -> None:
    first.close(lab.planned(together=True), 60)
    other.do(lambda: second.close(other.lab.planned(together=True, here=False), 60))
    first.copy()
    other.do(second.copy)
    first.switch()
    other.do(second.switch)


@pytest.mark.parametrize("undone", [False, True])
def test_hosts_that_share_a_location_switch_together(lab: Lab, other: Other, undone: bool) -> None:
    before = contents(lab.path)
    with pytest.raises(Refusal, match="for all hosts of its runs group"):
        lab.planned()
    first, second = lab.moving(), other.lab.moving()
    first.close(lab.planned(together=True), 60)
    other.do(lambda: second.close(other.lab.planned(together=True, here=False), 60))
    first.copy()
    other.do(second.copy)
    assert contents(lab.path) == before
    other.do(lambda: expect(contents(lab.path) == before))
    first.switch()
    other.do(second.switch)
    (lab.path / "by the first").touch()
    other.do(lambda: expect((lab.path / "by the first").exists() and os.path.samefile(lab.path, lab.to)))
    if undone:
        first.undo()
        other.do(second.undo)
        first.give_up()
        other.do(second.give_up)
        assert contents(lab.path) == before and not lab.held and not other.lab.held
        other.do(lambda: expect(contents(lab.path) == before and not is_mounted(lab.path)))
        return
    lab.lay_out(**first.recorded().after)
    other.do(lambda: other.lab.lay_out(**first.recorded().after))
    first.finish()
    other.do(second.finish)
    assert lab.stage == other.lab.stage == "finished"
    other.do(lambda: expect((lab.path / "by the first").exists()))
    first.retire(str(lab.path))
    other.do(lambda: second.retire(str(lab.path)))
    assert [name.partition("-moved-")[0] for name in beneath(lab)] == [".stowage"], "the sign for others"
    assert (lab.to / "by the first").exists()
    (lab.to / "ann/e/r/latest").unlink()
    other.do(second.forget)
    first.forget()
    assert not lab.path.exists()


def test_a_host_does_not_go_back_to_what_another_has_set_aside(lab: Lab, other: Other) -> None:
    first, second = lab.moving(), other.lab.moving()
    switch_together(lab, other, first, second)
    lab.lay_out(**first.recorded().after)
    first.finish()

    def refused() -> None:
        with pytest.raises(Refusal, match="is set aside, or deleted, by a host that shares it"):
            second.undo()
        assert os.path.samefile(lab.path, lab.to)

    other.do(refused)
    assert other.lab.stage == "switched" and other.lab.held
    first.retire(str(lab.path))
    other.do(refused)


def test_a_host_that_shares_it_waits_for_what_is_set_aside_in_part(lab: Lab, other: Other) -> None:
    for name in "abc":
        (lab.path / name).write_text(name)
    before = inside(lab.path)
    first, second = lab.moving(), other.lab.moving()
    switch_together(lab, other, first, second)
    lab.lay_out(**first.recorded().after)

    def finish(kill: Callable[[str], None]) -> None:
        rename = aside.rename_noreplace
        aside.rename_noreplace = lambda *words: (rename(*words), kill("renamed"))
        lab.moving().finish()

    killed("renamed", finish)

    def refused() -> None:
        with pytest.raises(Refusal, match="a part of what was in .* is set aside by a host that shares it"):
            second.give_up()

    other.do(second.undo)
    other.do(refused)
    assert other.lab.held
    first.undo()
    other.do(second.give_up)
    first.give_up()
    assert inside(lab.path) == before and not lab.held and not other.lab.held


def test_a_worker_who_shares_it_cannot_pretend_that_it_is_set_aside(lab: Lab, other: Other) -> None:
    first, second = lab.moving(), other.lab.moving()
    (lab.path / ".stowage-moved-mine").mkdir(mode=0o700)
    os.chown(lab.path / ".stowage-moved-mine", 1234, 1234)
    shutil.rmtree(lab.path / "ann")
    os.chmod(lab.path, 0)
    switch_together(lab, other, first, second)
    other.do(second.undo)
    other.do(second.give_up)
    first.undo()
    first.give_up()
    assert not lab.held and not other.lab.held


def expect(true: bool) -> None:
    assert true
