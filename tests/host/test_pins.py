# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pins on real mounts."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import syslog
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from copies_lab import Lab, process

from stowage_core import events, locks, mounts, records
from stowage_core.copies import present as copies
from stowage_core.errors import Refusal, StowageError
from stowage_core.records import RecordError
from stowage_core.runs import holders, pinning, pins
from stowaged import command


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Iterator[Lab]:
    made = Lab(disk, tmp_path)
    made.copy("ml.a")
    yield made
    for pin in pins.all_pins(made.places):
        pinning.release(made.places, pin.run, pin.number)


def take(lab: Lab, **changes: Any) -> pins.Pin:
    values = {
        "sub_path": "",
        "run": "run-1",
        "worker": "w0",
        "read_only": False,
        "seconds": 60,
        **changes,
    }
    return pinning.take(lab.places, lab.location, values.pop("copy", "ml.a"), **values)


def mount_of(lab: Lab, pin: pins.Pin) -> mounts.Mount:
    (found,) = [mount for mount in mounts.read() if mount.point == pin.path(lab.places)]
    return found


def test_a_pin_is_a_mount_without_set_id_and_devices(lab: Lab) -> None:
    pin = take(lab)
    assert {"nosuid", "nodev"} <= set(mount_of(lab, pin).options) and not mount_of(lab, pin).read_only
    (Path(pin.path(lab.places)) / "new").touch()
    assert (lab.at("ml.a") / "new").exists()
    assert os.stat(lab.places.pins_dir).st_mode & 0o777 == 0o711
    assert os.stat(pin.record_path(lab.places)).st_mode & 0o777 == 0o600


def enters(path: str, uid: int) -> bool:
    """Return whether a user can list what is mounted at *path*, the directories above the host's own apart."""
    code = f"""
import os, sys
fd = os.open({os.path.dirname(os.path.dirname(path))!r}, os.O_RDONLY | os.O_DIRECTORY)
os.setgroups([]), os.setresgid({uid}, {uid}, {uid}), os.setresuid({uid}, {uid}, {uid})
try:
    os.close(os.open({os.path.join(*path.split("/")[-2:])!r}, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd))
except PermissionError:
    sys.exit(7)
"""
    status = subprocess.run([sys.executable, "-c", code], check=False).returncode
    assert status in (0, 7)
    return status == 0


def test_whoever_alone_is_to_reach_a_mount_does_and_cannot_let_others_in(lab: Lab) -> None:
    """A mount of what everybody may read has lost the protection of the directories above that."""
    lab.at("ml.a").chmod(0o755)
    first = take(lab)
    path = first.path(lab.places)
    directory = os.path.dirname(path)
    assert [enters(path, uid) for uid in (0, 1000, 65534)] == [True, True, True]
    assert take(lab, reader=1000).number == first.number
    assert [enters(path, uid) for uid in (0, 1000, 65534)] == [True, True, False]
    status = os.stat(directory)
    assert status.st_uid == 0 and status.st_mode & 0o007 == 0
    # Of two users neither is let in where the other's mounts are.
    take(lab, worker="w1", reader=65534)
    assert [enters(path, uid) for uid in (0, 1000, 65534)] == [True, False, False]
    pinning.release(lab.places, "run-1", 2)
    take(lab, reader=0)
    assert [enters(path, uid) for uid in (0, 1000, 65534)] == [True, False, False]
    # Others' runs are not concerned.
    assert enters(take(lab, run="run-2").path(lab.places), 65534)


def test_nobody_enters_before_it_is_said_who_may(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def mounting(fd: int, target: str, read_only: bool) -> None:
        seen.append(os.stat(os.path.dirname(target)).st_mode & 0o007)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pinning, "bind_mount", mounting)
    with pytest.raises(OSError, match="Input/output error"):
        take(lab, reader=0)
    assert seen == [0]


def test_a_namespace_that_mounts_reach_sees_the_pin_the_same_way(disk: Path, tmp_path: Path) -> None:
    """As under systemd, whose / is shared: services with a namespace of their own, and containers, get every mount."""
    (tmp_path / "run").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "run"], check=True)
    subprocess.run(["mount", "--make-shared", tmp_path / "run"], check=True)
    try:
        lab = Lab(disk, tmp_path)
        program = lab.copy("ml.a") / "data" / "id"
        shutil.copy("/usr/bin/id", program)
        program.chmod(0o4755)
        code = 'unshare(0x20000)\nmount("none", "/", "", 16384 | 0x80000)\nready()'  # MS_REC | MS_SLAVE
        with process(code) as service:
            pin = take(lab, read_only=True)
            path = pin.path(lab.places)
            (there,) = [mount for mount in mounts.read(service.pid) if mount.point == path]
            assert {"ro", "nosuid", "nodev"} <= set(there.options)
            into = ["nsenter", "--target", str(service.pid), "--mount"]
            done = subprocess.run([*into, "touch", f"{path}/data/file"], check=False, capture_output=True, text=True)
            assert "Read-only file system" in done.stderr
            nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
            for where in ([], into):
                done = subprocess.run([*where, *nobody, f"{path}/data/id", "-u"], check=True, capture_output=True)
                assert done.stdout == b"65534\n"
            pinning.release(lab.places, pin.run, pin.number)
            assert path not in [mount.point for mount in mounts.read(service.pid)]
    finally:
        subprocess.run(["umount", tmp_path / "run"], check=True)


def test_read_only_and_a_folder_inside(lab: Lab) -> None:
    pin = take(lab, read_only=True, sub_path="data")
    assert os.listdir(pin.path(lab.places)) == ["file"]
    with pytest.raises(OSError, match="Read-only"):
        (Path(pin.path(lab.places)) / "new").touch()


def test_the_same_again_is_the_same_pin(lab: Lab) -> None:
    first = take(lab)
    again = take(lab, seconds=120)
    assert again.number == first.number and again.deadline >= first.deadline + 60
    assert take(lab, worker="w1").number == 2
    assert take(lab, read_only=True).number == 3
    assert [pin.number for pin in pins.all_pins(lab.places)] == [1, 2, 3]
    assert len([mount for mount in mounts.read() if lab.places.pins_dir in mount.point]) == 3


def test_a_pin_whose_mount_is_gone_is_mounted_again(lab: Lab) -> None:
    pin = take(lab)
    subprocess.run(["umount", pin.path(lab.places)], check=True)
    assert take(lab).number == pin.number
    mount_of(lab, pin)


def test_it_follows_a_rename_and_no_symlink(lab: Lab) -> None:
    pin = take(lab, sub_path="data")
    (lab.at("ml.a") / "data").rename(lab.at("ml.a") / "moved")
    (lab.at("ml.a") / "data").symlink_to("/etc")
    assert os.listdir(pin.path(lab.places)) == ["file"]
    with pytest.raises(Refusal, match="not there as a plain directory"):
        take(lab, sub_path="data", run="run-2")
    with pytest.raises(Refusal, match="not there as a plain directory"):
        take(lab, sub_path="../ml.a", run="run-2")
    assert not os.path.exists(os.path.join(lab.places.pins_dir, "run-2"))


@pytest.mark.parametrize("run", ["", ".", "..", "a/b", "x" * 256, "a\nb"])
def test_names_of_runs_are_checked(lab: Lab, run: str) -> None:
    with pytest.raises(Refusal, match="a run's name"):
        take(lab, run=run)
    with pytest.raises(Refusal, match="a run's name"):
        pinning.release(lab.places, run, 1)


@pytest.mark.parametrize("name", ["../../../made", "ml.a/../../made", "ml.a\0x", "ml", ""])
def test_names_of_copies_are_checked_before_anything_is_made(lab: Lab, name: str) -> None:
    before = sorted(os.walk(lab.path.parent))
    with pytest.raises(Refusal, match="not of the form <workspace>.<drive>"):
        take(lab, copy=name)
    assert sorted(os.walk(lab.path.parent)) == before


def test_what_is_no_copy_of_this_host(lab: Lab) -> None:
    (lab.path / "drives" / "ml.foreign").mkdir()
    (lab.path / "drives" / "ml.foreign" / "file").touch()
    with pytest.raises(Refusal, match="drive ml/foreign: is in no list of this host; declare it"):
        take(lab, copy="ml.foreign")
    lab.declare("ml.foreign")
    with pytest.raises(Refusal, match="is not this host's copy; adopt it, or move it away"):
        take(lab, copy="ml.foreign")
    assert pins.all_pins(lab.places) == []
    assert not (lab.path / ".stowage" / "locks" / "ml.none").exists()


def test_an_orphan_is_not_the_copy_of_a_drive_made_again(lab: Lab) -> None:
    del lab.drives["ml"]["a"]
    lab.declare("ml.a")
    with pytest.raises(Refusal) as refused:
        take(lab)
    assert str(refused.value) == (
        f"drive ml/a: {lab.at('ml.a')} is an orphan, the copy of an earlier drive of that name;"
        " take it in with adopt: [ml.a] of the data location, or delete it with a tombstone (state: absent)"
    )
    assert pins.all_pins(lab.places) == []
    assert not os.path.exists(lab.places.pins_dir)


def test_a_deleted_drive_is_not_leased(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is deleted while the lock is waited for."""
    real = copies.take_lock

    def deleted(fd: int, name: str) -> int:
        lab.declare(name, state="absent")
        return real(fd, name)

    monkeypatch.setattr(copies, "take_lock", deleted)
    lab.declare("ml.new")
    for name in ("ml.a", "ml.new"):
        for _number in range(2):
            with pytest.raises(Refusal, match=r"is to be deleted \(state: absent\)"):
                take(lab, copy=name)
    assert lab.names() == ["ml.a"]
    assert pins.all_pins(lab.places) == []


def test_a_copy_is_made_when_it_is_first_leased(lab: Lab) -> None:
    permissions = {"owner_uid": 1000, "owner_gid": 1001, "dir_mode": "2770"}
    identity = lab.declare("ml.new", path="models/llama", permissions=permissions)
    pin = take(lab, copy="ml.new")
    seen = os.stat(pin.path(lab.places))
    assert (seen.st_uid, seen.st_gid, oct(seen.st_mode & 0o7777)) == (1000, 1001, "0o2770")
    assert os.path.samestat(seen, os.stat(lab.at("ml.new") / "models" / "llama"))
    assert pin.sub_path == "models/llama"
    fd = os.open(lab.path, os.O_RDONLY)
    assert [(copy.name, copy.identity) for copy in copies.present(fd, lab.location)][-1] == ("ml.new", identity)
    os.close(fd)
    record = copies.load_record(lab.places, "ml.new")
    assert record is not None and (record.identity, record.path) == (identity, "models/llama")
    assert take(lab, copy="ml.new").number == pin.number
    lab.declare("ml.plain")
    state = os.stat(take(lab, copy="ml.plain").path(lab.places))
    assert (state.st_uid, state.st_gid, oct(state.st_mode & 0o7777)) == (0, 0, "0o755")


def test_a_folder_inside_is_inside_the_drive_s_own(lab: Lab) -> None:
    lab.declare("ml.new", path="models")
    take(lab, copy="ml.new")
    (lab.at("ml.new") / "models" / "llama").mkdir()
    (lab.at("ml.new") / "beside").mkdir()
    pin = take(lab, copy="ml.new", sub_path="llama")
    assert pin.sub_path == "models/llama"
    assert os.path.samestat(os.stat(pin.path(lab.places)), os.stat(lab.at("ml.new") / "models" / "llama"))
    for outside in ("../beside", "/etc"):
        with pytest.raises(Refusal, match="drive ml/new: the folder .* in it is not there as a plain directory"):
            take(lab, copy="ml.new", sub_path=outside)


def put_aside(lab: Lab, entry: str, name: str = "ml.a") -> Path:
    """Leave a copy as an eviction does that is killed."""
    path = lab.path / ".stowage-trash" / "pending" / entry
    os.rename(lab.at(name), path)
    return path


def test_what_a_killed_eviction_left_aside_is_put_back_first(lab: Lab) -> None:
    whole = os.stat(lab.at("ml.a")).st_ino
    put_aside(lab, "ml.a.full-1-2")
    pin = take(lab)
    assert lab.trash() == [] and os.stat(lab.at("ml.a")).st_ino == whole
    assert (Path(pin.path(lab.places)) / "data" / "file").exists()


def test_what_is_aside_of_another_drive_or_of_a_name_that_is_taken_stays_there(lab: Lab) -> None:
    put_aside(lab, "ml.a.full-1-2")
    del lab.drives["ml"]["a"]
    lab.declare("ml.a")  # another drive of that name
    pin = take(lab)
    assert lab.trash() == ["pending/ml.a.full-1-2"] and os.listdir(pin.path(lab.places)) == []
    lab.copy("ml.b")
    put_aside(lab, "ml.b.full-1-2", "ml.b")
    (lab.path / ".stowage-trash" / "pending" / "ml.b.full-1-1").mkdir()  # nobody's
    lab.at("ml.b").mkdir()
    pin = take(lab, copy="ml.b")
    assert len(lab.trash()) == 3 and os.listdir(pin.path(lab.places)) == []


def test_a_new_copy_is_not_evicted_before_it_is_pinned(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real, kept = pinning._reserve, []

    def evicting(*arguments: Any) -> pins.Pin:
        kept.append(lab.evict().kept)
        return real(*arguments)

    monkeypatch.setattr(pinning, "_reserve", evicting)
    measured = copies.CopyRecord("ml", "new", lab.declare("ml.new"), "", 9, 9, 0, 1)
    copies.write_record(lab.places, "ml.new", measured)
    pin = take(lab, copy="ml.new")
    assert kept[0]["ml.new"] == "its lock is held by another process"
    assert lab.evict().kept.get("ml.new") is None, "no candidate"
    assert "ml.new" in lab.names()
    assert os.path.samestat(os.stat(pin.path(lab.places)), os.stat(lab.at("ml.new")))


def test_release(lab: Lab) -> None:
    pin = take(lab)
    with process("os.chdir(copy); ready()", pin.path(lab.places)):
        with pytest.raises(Refusal, match="something still uses it, so it stays"):
            pinning.release(lab.places, pin.run, pin.number)
        assert pins.all_pins(lab.places) == [pin]
        mount_of(lab, pin)
    assert pinning.release(lab.places, pin.run, pin.number)
    assert not pinning.release(lab.places, pin.run, pin.number)
    assert os.listdir(lab.places.pins_dir) == []
    assert (lab.at("ml.a") / "data" / "file").exists()


def test_it_is_said_who_uses_it(lab: Lab) -> None:
    pin = take(lab)
    with process("os.chdir(copy); ready()", pin.path(lab.places)) as worker:
        with pytest.raises(Refusal) as refused:
            pinning.release(lab.places, pin.run, pin.number)
        assert f"so it stays (process {worker.pid} (" in str(refused.value)
    code = "fd = os.open(copy + '/data/file', os.O_RDONLY); ready()"
    with process(code, pin.path(lab.places)) as worker, pytest.raises(Refusal, match=f"process {worker.pid} "):
        pinning.release(lab.places, pin.run, pin.number)


def test_release_never_deletes_what_lies_under_a_missing_mount(lab: Lab) -> None:
    pin = take(lab)
    subprocess.run(["umount", pin.path(lab.places)], check=True)
    stray = Path(pin.path(lab.places)) / "results"
    stray.touch()
    with pytest.raises(OSError, match="not empty"):
        pinning.release(lab.places, pin.run, pin.number)
    stray.unlink()


def test_a_reservation_becomes_a_lease(lab: Lab) -> None:
    pin = take(lab)
    assert pins.stale(pin) == "" and pins.stale(pin, pin.deadline + 1) == "its reservation has ended"
    with process("ready()") as worker:
        leased = pinning.confirm(lab.places, pin.run, pin.number, pid=worker.pid)
        assert leased.state == "leased" and pins.stale(leased, pin.deadline + 1) == ""
        assert pins.all_pins(lab.places) == [leased]
    assert pins.stale(leased) == "its process has ended"
    with pytest.raises(Refusal, match="no process"):
        pinning.confirm(lab.places, pin.run, pin.number, pid=worker.pid)
    with pytest.raises(Refusal, match="no cgroup"):
        pinning.confirm(lab.places, pin.run, pin.number, cgroup="/no/such")
    with pytest.raises(Refusal, match="name one of the two"):
        pinning.confirm(lab.places, pin.run, pin.number)
    with pytest.raises(Refusal, match="no such pin"):
        pinning.confirm(lab.places, pin.run, 9, pid=os.getpid())


def test_taken_again_after_its_process_has_ended(lab: Lab) -> None:
    take(lab)
    child = subprocess.Popen(["sleep", "600"])
    pinning.confirm(lab.places, "run-1", 1, pid=child.pid)
    child.kill()
    child.wait()
    again = take(lab)
    assert (again.number, again.state, again.pid) == (1, pins.RESERVED, 0) and not pins.stale(again)
    assert pinning.release_ended(lab.places, "run-1", 1) == ""
    assert mount_of(lab, again)


def test_a_reservation_is_not_of_the_wall_clock(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    pin = take(lab, seconds=3600)
    monkeypatch.setattr(time, "time", lambda: real() + 7200)
    assert pinning.release_ended(lab.places, pin.run, pin.number) == "" and mount_of(lab, pin)
    monkeypatch.setattr(time, "time", lambda: real() + 365 * 86400)
    pin = take(lab, seconds=60)
    monkeypatch.setattr(time, "time", real)
    assert pins.stale(pin, holders.boot_time() + 61) == "its reservation has ended"


def test_taken_again_while_its_process_is_there(lab: Lab) -> None:
    """What is promised then is kept, although the process ends before."""
    pin = take(lab)
    with process("ready()") as worker:
        leased = pinning.confirm(lab.places, pin.run, pin.number, pid=worker.pid)
        again = take(lab, seconds=3600)
        assert (again.state, again.pid, leased.left_s) == (pins.LEASED, worker.pid, 0)
    assert pinning.release_ended(lab.places, pin.run, pin.number) == "" and mount_of(lab, pin)
    over = holders.boot_time() + 3601
    assert pins.stale(again, over) == "its process has ended"
    assert take(lab).state == pins.RESERVED, "nothing holds it any more but that"


def test_taken_again_after_a_restart_of_the_host(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as before:
        before.setattr(pinning, "boot_id", lambda: "an earlier boot")
        take(lab)
    assert not pins.stale(take(lab))


def test_what_was_taken_again_is_not_let_go_by_an_older_judgement(lab: Lab) -> None:
    (stale,) = [pin for pin in [take(lab, seconds=-1)] if pins.stale(pin)]
    again = take(lab)
    assert pinning.release_ended(lab.places, stale.run, stale.number) == ""
    assert mount_of(lab, again)
    assert "reservation has ended" in pinning.release_ended(lab.places, take(lab, seconds=-1).run, 1)
    assert pins.all_names(lab.places) == []


def test_taking_and_letting_go_wait_for_each_other(lab: Lab) -> None:
    pin = take(lab, seconds=-1)
    with locks.run_lock(lab.places, "run-1"):
        letting_go = threading.Thread(target=pinning.release_ended, args=(lab.places, "run-1", 1))
        letting_go.start()
        letting_go.join(0.3)
        assert letting_go.is_alive() and mount_of(lab, pin)
    letting_go.join()
    assert pins.all_names(lab.places) == []


def test_a_cgroup_without_processes_holds_nothing_yet(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "CGROUPS", str(tmp_path))
    (tmp_path / "job").mkdir()
    events = tmp_path / "job" / "cgroup.events"
    events.write_text("populated 0\nfrozen 0\n")
    take(lab)
    with pytest.raises(Refusal, match="has no processes yet"):
        pinning.confirm(lab.places, "run-1", 1, cgroup=f"{tmp_path}/job")
    events.write_text("populated 1\nfrozen 0\n")
    leased = pinning.confirm(lab.places, "run-1", 1, cgroup=f"{tmp_path}/job")
    assert not pins.stale(leased)
    (tmp_path / "job").rename(tmp_path / "before")
    shutil.copytree(tmp_path / "before", tmp_path / "job")
    assert pins.stale(leased) == "its cgroup is not there any more", "another has its path"


@pytest.mark.parametrize("text", ["", "[]", '{"run": "run-1"}'])
def test_a_pin_whose_record_is_damaged_can_be_let_go(lab: Lab, text: str) -> None:
    pin = take(lab)
    Path(pin.record_path(lab.places)).write_text(text)
    with pytest.raises(RecordError, match="stowage lease release 'run-1' 1"):
        pinning.release_ended(lab.places, "run-1", 1)
    with process("os.chdir(copy); ready()", pin.path(lab.places)), pytest.raises(Refusal, match="still uses"):
        pinning.release(lab.places, "run-1", 1)
    assert pinning.release(lab.places, "run-1", 1) is True
    assert not os.path.lexists(pin.path(lab.places)) and pins.all_names(lab.places) == []
    assert pinning.release(lab.places, "run-1", 1) is False
    assert lab.at("ml.a").exists()


def test_taking_records_the_use(lab: Lab) -> None:
    take(lab)
    record = copies.load_record(lab.places, "ml.a")
    assert record is not None and record.last_used is not None and time.time() - record.last_used < 60
    assert (record.files, record.inodes) == (1, 3), "figures stay"


def test_nothing_is_pinned_in_a_location_that_is_not_there(lab: Lab) -> None:
    os.removexattr(lab.path, "trusted.stowage.owner")
    with pytest.raises(StowageError, match="no owner mark"):
        take(lab)
    assert pins.all_pins(lab.places) == []


# -- The host's mount namespace


def test_a_lease_is_not_taken_in_another_mount_namespace(lab: Lab) -> None:
    """Nobody else would have the mount: a worker would write into an empty directory."""
    code = f"""
own_namespace()
sys.path[:0] = {sys.path!r}
from stowage_core.data_location import locations as data_locations
from stowage_core.errors import Refusal
from stowage_core.places import Places
from stowage_core.runs import pinning, pins
places = Places({lab.places.etc!r}, {lab.places.var!r}, {lab.places.run!r})
try:
    pinning.take(places, data_locations.load(places), "ml.a", run="r", read_only=False, seconds=60)
except Refusal as error:
    open({lab.places.var!r} + "/refused", "w").write(str(error))
ready()
"""
    with process(code) as service:
        text = Path(lab.places.var, "refused").read_text()
        assert text.startswith("pin r/1: this process has a mount namespace of its own, ")
        assert text.endswith("; run it in the host's: nsenter --target 1 --mount COMMAND")
        assert not [mount for mount in mounts.read(service.pid) if mount.point.startswith(lab.places.pins_dir)]
    assert pins.all_names(lab.places) == [] and os.listdir(lab.places.pins_dir) == []


def test_a_lease_is_not_let_go_in_another_mount_namespace(lab: Lab) -> None:
    pin = take(lab)
    code = f"""
own_namespace()
sys.path[:0] = {sys.path!r}
from stowage_core.runs import pinning, pins
from stowage_core.errors import Refusal
from stowage_core.places import Places
try:
    pinning.release(Places({lab.places.etc!r}, {lab.places.var!r}, {lab.places.run!r}), "run-1", 1)
except Refusal as error:
    ready()
"""
    with process(code):
        assert mount_of(lab, pin)
    assert pins.all_pins(lab.places) == [pin]


def test_a_mount_that_another_namespace_has_is_not_taken_from_it(lab: Lab) -> None:
    pin = take(lab)
    path = pin.path(lab.places)
    with process("own_namespace(); os.chdir(copy); ready()", path) as worker:
        assert pinning.release(lab.places, pin.run, pin.number)
        assert [mount.point for mount in mounts.read(worker.pid) if mount.point == path] == [path]
        assert pins.all_names(lab.places) == [] and os.listdir(path) == []
        assert take(lab).number == 2, "its mount point is no other lease's"


# -- What is only observed


@pytest.fixture
def full(lab: Lab) -> Iterator[Callable[[], None]]:
    """Fill the disk of what is observed; the records of copies are not there any more."""
    var = Path(lab.places.var)
    shutil.rmtree(var)
    var.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", var], check=True)

    def fill() -> None:
        with contextlib.suppress(OSError), open(var / "ballast", "wb", buffering=0) as ballast:
            while True:
                ballast.write(b"x" * 4096)

    yield fill
    subprocess.run(["umount", var], check=True)


def test_a_full_disk_of_what_is_observed_holds_no_lease_up(
    lab: Lab, full: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(syslog, "syslog", lambda _priority, text: logged.append(text))
    full()
    pin = take(lab)
    assert mount_of(lab, pin) and pins.all_pins(lab.places) == [pin]
    assert len(logged) == 1
    assert logged[0] == (
        "drive/ml/a: its use at this time could not be recorded, so that it may seem unused for longer:"
        f" {lab.places.copies_dir}/ml.a.json: No space left on device"
    )
    assert pinning.release(lab.places, pin.run, pin.number) and pins.all_pins(lab.places) == []


def test_what_cannot_be_recorded_is_an_event_where_that_can_be_written(lab: Lab) -> None:
    os.rename(lab.places.copies_dir, lab.places.copies_dir + ".away")
    Path(lab.places.copies_dir).touch()
    pinning.release(lab.places, "run-1", take(lab).number)
    taken, released = events.read(lab.places)
    assert (taken["object"], taken["reason"]) == ("drive/ml/a", "UseNotRecorded")
    assert "Not a directory" in taken["message"] and "Not a directory" in released["message"]


def test_a_pin_whose_record_cannot_be_written_leaves_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    real = records.write

    def write(path: str, *arguments: Any) -> bool:
        if "/pins/" in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return real(path, *arguments)

    monkeypatch.setattr(records, "write", write)
    with pytest.raises(OSError, match="No space left"):
        take(lab)
    assert os.listdir(lab.places.pins_dir) == []


def test_letting_go_goes_on_with_the_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        take(lab, run=f"run-{number}", seconds=-1)
    real = pinning.unmount

    def unmount(path: str) -> None:
        if "/run-1/" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        real(path)

    with monkeypatch.context() as failing:
        failing.setattr(pinning, "unmount", unmount)
        assert command.main(["lease", "expire"], lab.places) == command.FAILED
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "pin run-0/1: released, its reservation has ended",
        f"pin run-1/1: it stays: {lab.places.pins_dir}/run-1/1: Input/output error",
        "pin run-2/1: released, its reservation has ended",
    ]
    assert pins.all_names(lab.places) == [("run-1", 1)]


# -- Copies


def create(lab: Lab, name: str, identity: str, path: str = "", **more: int) -> os.stat_result:
    """Return the state of the folder that workers see."""
    fd = os.open(lab.path, os.O_RDONLY)
    try:
        with copies.locked(fd, name), copies.prepared(fd, lab.location, name, identity, path, **more) as folder:
            return os.fstat(folder)
    finally:
        os.close(fd)


def test_a_copy_is_made_with_its_folder(lab: Lab) -> None:
    before = os.umask(0o077)
    try:
        assert create(lab, "ml.new", "id", "models/llama", uid=1000, gid=1001, mode=0o2770)
    finally:
        os.umask(before)
    states = [os.stat(lab.at("ml.new") / path) for path in (".", "models", "models/llama")]
    assert [oct(state.st_mode & 0o7777) for state in states] == ["0o755", "0o755", "0o2770"]
    assert [(state.st_uid, state.st_gid) for state in states] == [(0, 0), (0, 0), (1000, 1001)]
    assert os.path.samestat(create(lab, "ml.new", "id", "models/llama", uid=5), states[2])
    assert os.stat(lab.at("ml.new") / "models" / "llama").st_uid == 1000
    assert (lab.path / ".stowage" / "locks" / "ml.new").exists()
    fd = os.open(lab.path, os.O_RDONLY)
    assert [(copy.name, copy.identity) for copy in copies.present(fd, lab.location)][-1] == ("ml.new", "id")
    os.close(fd)


def test_a_copy_is_not_made_over_anything_else(lab: Lab) -> None:
    with pytest.raises(Refusal, match="earlier drive"):
        create(lab, "ml.a", "another")
    (lab.path / "drives" / "ml.foreign").mkdir()
    (lab.path / "drives" / "ml.foreign" / "file").touch()
    with pytest.raises(Refusal, match="not this host's copy"):
        create(lab, "ml.foreign", "id")
    (lab.path / "drives" / "ml.link").symlink_to("/etc")
    with pytest.raises(Refusal, match="copy ml.link: it is not there as a plain directory"):
        create(lab, "ml.link", "id")
    (lab.path / "drives" / "ml.cut-short").mkdir()
    create(lab, "ml.cut-short", "id")
    (lab.at("ml.cut-short") / "link").symlink_to("/etc")
    with pytest.raises(Refusal, match="or the folder 'link/stowage' in it, is not there as a plain directory"):
        create(lab, "ml.cut-short", "id", "link/stowage")
