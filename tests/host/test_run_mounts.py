# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The drives of workers on real filesystems: mounted all or none, seen as asked, and gone afterwards."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from copies_lab import HOST, process
from runs_lab import RunLab, drive, make, refs

from stowage_core import mounts, owner, records
from stowage_core.copies import present as copies
from stowage_core.data_location import locations as data_locations
from stowage_core.differences import Differences
from stowage_core.errors import Refusal, StowageError
from stowage_core.network_mounts.records import MountRecord, write_mounts
from stowage_core.runs import drives as worker_drives
from stowage_core.runs import holders, pinning, pins
from stowage_core.runs import mounts as run_mounts
from stowage_core.runs.mounts import Preparation, Worker
from stowage_core.services import lasting_mounts
from stowaged import command

NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Iterator[RunLab]:
    made = RunLab(disk, tmp_path)
    yield made
    made.close()


def all_kinds(lab: RunLab) -> list[dict[str, Any]]:
    make(lab.sources / "imagenet")
    permissions = {"owner_uid": 1000, "owner_gid": 1001, "dir_mode": "2770"}
    lab.have(
        drive("cache", scope="placed", evictable=True, permissions=permissions),
        drive("scratch", lab.sources / "scratch", scope="local-any", permissions=permissions),
        drive("imagenet", lab.sources / "imagenet", mode="ReadOnly"),
    )
    return refs("cache", "scratch", "imagenet")


def refused(lab: RunLab, wanted: Any, **more: Any) -> str:
    """Return why it is refused, the same whether it is predicted or done; nothing is mounted then."""
    before = lab.pinned()
    texts = []
    for check_mode in (True, False):
        with pytest.raises(StowageError) as error:
            lab.prepare(wanted, differences=Differences(check_mode), **more)
        texts.append(str(error.value))
    assert texts[0] == texts[1] and lab.pinned() == before
    return texts[0]


# -- Owner and mode


def test_an_owner_that_is_given_back_is_told(lab: RunLab) -> None:
    source = make(lab.sources / "s")
    make(source / "d")
    permissions = {"owner_uid": 1000, "owner_gid": 1001, "dir_mode": "0750", "apply": True, "recursive": True}
    lab.have(
        drive("s", source, permissions=permissions),
        drive("cache", scope="placed", evictable=True, permissions=permissions),
    )
    wanted = [*refs("s", "cache"), {"name": "s", "mount_path": "/again"}]
    lab.prepare(wanted)
    steady = Differences()
    lab.prepare(wanted, differences=steady)
    assert not steady.changed and steady.actions == []

    os.chown(source / "d", 5, 5)
    os.chown(source, 5, 5)
    copy = lab.at("ml.cache")
    os.chmod(copy, 0o700)
    runs = []
    for check_mode in (True, False, False):
        differences = Differences(check_mode)
        lab.prepare(wanted, differences=differences)
        runs.append((differences.diff(), differences.actions))
        assert (os.stat(source / "d").st_uid == 5) == check_mode
    assert runs[0] == runs[1] and runs[2] == ({"before": {}, "after": {}}, [])
    assert runs[0] == (
        {
            "before": {
                f"ml/s {source}": {
                    "owner_uid": "5",
                    "owner_gid": "5",
                    "dir_mode": "0750",
                    "below": "1 with another owner or mode",
                },
                "ml/cache ml.cache": {"owner_uid": "1000", "owner_gid": "1001", "dir_mode": "0700"},
            },
            "after": {
                f"ml/s {source}": {
                    "owner_uid": "1000",
                    "owner_gid": "1001",
                    "dir_mode": "0750",
                    "below": "the same",
                },
                "ml/cache ml.cache": {"owner_uid": "1000", "owner_gid": "1001", "dir_mode": "0750"},
            },
        },
        [f"set owner and mode of {source} and of 1 below it", "set owner and mode of ml.cache"],
    )


def test_another_host_s_disk_below_is_not_given_away(lab: RunLab) -> None:
    source = make(lab.sources / "s")
    secret = make(source / "moved")
    fd = os.open(secret, os.O_RDONLY)
    owner.claim(fd, "data-location", "/data", "1", "gpu-02")
    os.close(fd)
    lab.have(drive("s", source, permissions={"owner_uid": 1000, "apply": True, "recursive": True}))
    assert refused(lab, refs("s")) == (
        f"drive ml/s: all that is below its source {source} is to have an owner and a mode, and {secret} bears the"
        " owner mark of data-location /data of host gpu-02; choose a directory apart from it, or take recursive out"
    )
    assert os.stat(secret / "file").st_uid == 0


# -- Each kind


def test_every_kind_is_prepared_and_released(lab: RunLab) -> None:
    wanted = all_kinds(lab)
    predicted, done = Differences(True), Differences()
    foretold = lab.prepare(wanted, differences=predicted)
    assert lab.pinned() == [] and lab.names() == [] and not (lab.sources / "scratch").exists()
    found = lab.prepare(wanted, differences=done)
    assert (predicted.diff(), predicted.actions) == (done.diff(), done.actions)
    assert done.actions == [
        "make the copy ml.cache",
        "mount drive cache at /cache, ReadWrite",
        f"make the directory {lab.sources}/scratch",
        "mount drive scratch at /scratch, ReadWrite",
        "mount drive imagenet at /imagenet, ReadOnly",
    ]
    assert found == foretold and found.waiting == []
    pinned = f"{lab.places.pins_dir}/r1"
    assert list(found.mounts) == [
        {"source": f"{pinned}/1", "target": "/cache", "read_only": False, "drive": "cache", "source_index": 0},
        {"source": f"{pinned}/2", "target": "/scratch", "read_only": False, "drive": "scratch", "source_index": 0},
        {"source": f"{pinned}/3", "target": "/imagenet", "read_only": True, "drive": "imagenet", "source_index": 0},
    ]
    for number in "12":
        status = os.stat(f"{pinned}/{number}")
        assert (status.st_uid, status.st_gid, oct(status.st_mode & 0o7777)) == (1000, 1001, "0o2770")
    for mount in mounts.read():
        if mount.point.startswith(pinned):
            assert {"nosuid", "nodev"} <= set(mount.options)
            assert mount.read_only == mount.point.endswith("/3")
    assert (Path(pinned) / "3" / "file").read_text() == "x"
    with pytest.raises(OSError, match="Read-only"):
        (Path(pinned) / "3" / "new").touch()
    assert pins.used_by(pins.all_pins(lab.places)) == {
        ("ml", name): ["r1/w0"] for name in ("cache", "imagenet", "scratch")
    }
    again = Differences()
    assert lab.prepare(wanted, differences=again) == found and not again.changed and again.actions == []

    released = lab.release()
    assert released.actions == ["unmount drive cache at /cache", "unmount drive scratch at /scratch"] + [
        "unmount drive imagenet at /imagenet"
    ]
    assert lab.pinned() == [] and os.listdir(lab.places.pins_dir) == []
    assert not lab.release().changed
    assert lab.names() == ["ml.cache"] and (lab.sources / "scratch").is_dir(), "nothing is deleted"


def test_workers_and_runs_have_their_own(lab: RunLab) -> None:
    lab.have(drive("scratch", lab.sources / "scratch", scope="local-any"))
    for run, worker in (("r1", "w0"), ("r1", "w1"), ("r2", "w0")):
        lab.prepare(refs("scratch"), worker, run)
    assert len(lab.pinned()) == 3
    lab.release("w1")
    assert [pin.held_by for pin in pins.all_pins(lab.places)] == ["r1/w0", "r2/w0"]
    lab.release()
    assert [pin.held_by for pin in pins.all_pins(lab.places)] == ["r2/w0"]


def test_a_drive_may_be_had_twice(lab: RunLab) -> None:
    make(lab.sources / "data" / "one")
    lab.have(drive("data", lab.sources / "data"))
    found = lab.prepare(
        [{"name": "data"}, {"name": "data", "mount_path": "/one", "sub_path": "one", "mode": "ReadOnly"}]
    )
    assert [(one["target"], one["read_only"]) for one in found.mounts] == [("/data", False), ("/one", True)]
    assert os.listdir(found.mounts[1]["source"]) == ["file"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (None, "drive data does not exist"),
        ({"eligible_nodes": ["gpu-07"]}, f"drive data: source 0 is not usable from machine {HOST}"),
        (
            {"node": "gpu-02", "transport": "Local"},
            "drive data: source 0 is local to machine gpu-02 and its transport is Local",
        ),
        ({}, "drive ml/data: its source {sources}/data is not there; make it, or have it made with"),
        ({"scope": "shared"}, "drive data: {sources}/data is not on a shared filesystem mounted here"),
    ],
)
def test_what_a_host_refuses(lab: RunLab, body: dict[str, Any] | None, text: str) -> None:
    lab.have(drive("fine", lab.sources / "fine", scope="local-any"))
    if body is not None:
        lab.have(drive("data", lab.sources / "data", **body))
    assert refused(lab, refs("fine", "data")).startswith(text.format(sources=lab.sources))
    assert not (lab.sources / "fine").exists()


def test_every_drive_is_looked_at_before_any_is_mounted(lab: RunLab) -> None:
    os.unlink(lab.places.data_location_json)
    lab.have(
        drive("a", lab.sources / "a"), drive("cache", scope="placed"), drive("b", lab.sources / "b", scope="shared")
    )
    lines = refused(lab, refs("a", "cache", "b")).split("\n")
    assert [line.split(";")[0] for line in lines] == [
        f"drive ml/a: its source {lab.sources}/a is not there",
        f"Choose where to keep data on {HOST}",
        f"drive b: {lab.sources}/b is not on a shared filesystem mounted here",
    ]


def test_a_shared_filesystem_that_is_mounted_here(lab: RunLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel that tests has one for sure: the disk's type passes for it."""
    monkeypatch.setattr(worker_drives, "is_shared", lambda fstype: fstype in ("ext4", "xfs", "btrfs"))
    make(lab.sources / "ckpt")
    lab.have(drive("ckpt", lab.sources / "ckpt", scope="shared"))
    (one,) = lab.prepare(refs("ckpt")).mounts
    assert os.listdir(one["source"]) == ["file"]


def test_a_drive_on_another_machine_is_waited_for(lab: RunLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.have(drive("near", lab.sources / "near", scope="local-any"), drive("imagenet", "/mnt/data", node="gpu-02"))
    found = lab.prepare(refs("near", "imagenet"))
    assert found.mounts == [] and found.waiting == ["waiting for imagenet to be mounted from gpu-02 (Pending)"]
    assert len(lab.pinned()) == 1, "what is there is kept meanwhile"
    there = make(lab.sources / "mounted")
    one = MountRecord(
        "ml", "imagenet", 0, "gpu-02", "Exported", "", 0.0, str(there), "192.0.2.12", "/mnt/data", "Auto", "", False
    )
    write_mounts(lab.places, [one])
    assert lab.prepare(refs("near", "imagenet")).waiting == [
        "waiting for imagenet to be mounted from gpu-02 (Exported)"
    ]
    write_mounts(lab.places, [replace(one, state="Failed", reason="access denied by server")])
    assert lab.prepare(refs("near", "imagenet")).waiting == [
        "waiting for imagenet to be mounted from gpu-02 (Failed): access denied by server"
    ]
    write_mounts(lab.places, [replace(one, state="Bound")])
    assert "should be its network mount, and nothing is mounted there" in refused(lab, refs("near", "imagenet"))
    subprocess.run(["mount", "--bind", str(there), str(there)], check=True)
    try:
        assert "should be 192.0.2.12:/mnt/data, and /dev/" in refused(lab, refs("near", "imagenet"))
        (source,) = [mount.source for mount in mounts.read() if mount.point == str(there)]
        monkeypatch.setattr(MountRecord, "device", source)
        again = lab.prepare(refs("near", "imagenet"))
        assert again.waiting == [] and os.listdir(again.mounts[1]["source"]) == ["file"]
        write_mounts(lab.places, [replace(one, state="Bound", read_only=True)])
        (wait,) = lab.prepare([*refs("near"), {"name": "imagenet", "mode": "ReadWrite"}]).waiting
        assert wait == "waiting for imagenet to be mounted from gpu-02 (Bound): it is mounted read-only"
    finally:
        subprocess.run(["umount", "--recursive", str(there)], check=True)


def test_a_copy_is_not_handed_out_before_it_is_filled(lab: RunLab) -> None:
    lab.have(drive("model", scope="placed", fill={"template": {"image": "registry/fill:1"}}))
    for check_mode in (True, False):
        differences = Differences(check_mode)
        found = lab.prepare(refs("model"), differences=differences)
        assert found.mounts == [] and found.waiting == [f"Waiting for drive model to be filled on {HOST}"]
        assert differences.actions == ["start stowage-fill@ml.model.service"]
    assert lab.started == ["stowage-fill@ml.model.service"] and lab.pinned() == []
    fd = data_locations.open_verified(lab.location)
    identity = lab.drives["ml"]["model"]["identity"]
    with copies.locked(fd, "ml.model"), copies.prepared(fd, lab.location, "ml.model", identity):
        pass
    os.close(fd)
    (lab.at("ml.model") / ".stowage-filled").touch()
    assert len(lab.prepare(refs("model")).mounts) == 1


# -- Where paths lead


def test_a_set_id_program_does_nothing(lab: RunLab) -> None:
    wanted = all_kinds(lab)
    lab.drives["ml"]["cache"]["spec"]["permissions"] = {"create": False}
    lab.drives["ml"]["scratch"]["spec"]["permissions"] = {"create": False}
    lab.have()
    found = lab.prepare(wanted)
    for place in (lab.at("ml.cache"), lab.sources / "scratch", lab.sources / "imagenet"):
        shutil.copy("/usr/bin/id", place / "id")
        (place / "id").chmod(0o4755)
    for one in found.mounts:
        done = subprocess.run([*NOBODY, f"{one['source']}/id", "-u"], check=True, capture_output=True)
        assert done.stdout == b"65534\n", one


@pytest.mark.parametrize("where", ["last", "above"])
def test_scratch_is_made_through_no_symlink(lab: RunLab, where: str) -> None:
    elsewhere = make(lab.sources / "elsewhere")
    path = lab.sources / "scratch" / ("" if where == "last" else "below")
    (lab.sources / "scratch").symlink_to(elsewhere)
    lab.have(drive("scratch", path, scope="local-any"))
    text = refused(lab, refs("scratch"))
    assert text.startswith(f"drive scratch: {path} leads through the symbolic link {lab.sources}/scratch; name the dir")
    assert sorted(os.listdir(elsewhere)) == ["file"]


def test_a_source_is_reached_through_root_s_own_symlinks_only(lab: RunLab) -> None:
    make(lab.sources / "real" / "imagenet")
    (lab.sources / "data").symlink_to("real")
    (lab.sources / "round").symlink_to("round")
    lab.have(drive("data", lab.sources / "data" / "imagenet"), drive("round", lab.sources / "round" / "x"))
    (one,) = lab.prepare(refs("data")).mounts
    assert os.listdir(one["source"]) == ["file"]
    lab.release()
    assert "too many levels of symbolic links" in refused(lab, refs("round"))
    os.chown(lab.sources / "data", 1000, 1000, follow_symlinks=False)
    assert "which others than root could have put there" in refused(lab, refs("data"))
    os.chown(lab.sources / "data", 0, 0, follow_symlinks=False)
    os.chmod(lab.sources, 0o777)
    assert "which others than root could have put there" in refused(lab, refs("data"))


def test_what_was_not_granted_or_is_stowage_s_own_is_not_mounted(lab: RunLab) -> None:
    lab.copy("ml.secret")
    (lab.sources / "out").symlink_to("/etc")
    (lab.sources / "copies").symlink_to(lab.path / "drives")
    lab.have(drive("out", lab.sources / "out"), drive("copies", lab.sources / "copies"), host_paths=[lab.sources])
    assert "HOST_ACCESS_FORBIDDEN" in refused(lab, refs("out"))
    assert "HOST_ACCESS_FORBIDDEN" in refused(lab, refs("copies"))
    lab.have(host_paths=[lab.sources, lab.path.parent])
    assert f"it is inside the data location {lab.path}; choose a directory apart" in refused(lab, refs("copies"))


def test_nothing_is_made_where_a_disk_is_away(lab: RunLab, monkeypatch: pytest.MonkeyPatch) -> None:
    fstab = lab.places.etc + "/fstab"
    Path(fstab).write_text(f"/dev/sdz1 {lab.sources}/nvme9 xfs defaults 0 2\n")
    monkeypatch.setattr(lasting_mounts, "FSTAB", fstab)
    (lab.sources / "nvme9").mkdir()
    lab.have(drive("scratch", lab.sources / "nvme9" / "scratch", scope="local-any"))
    text = refused(lab, refs("scratch"))
    away = (
        f"{lab.sources}/nvme9 is in {fstab} and is not mounted; mount it; when its disk is gone for good, take that out"
    )
    assert text == f"drive scratch: {away}"
    (lab.sources / "nvme9" / "data").mkdir()  # what is there already is only what was left underneath
    lab.have(drive("data", lab.sources / "nvme9" / "data"))
    assert refused(lab, refs("data")) == f"drive data: {away}"
    (lab.sources / "nvme9" / "data").rmdir()
    lab.have(drive("scratch", lab.sources / "a" / "scratch", scope="local-any"), host_paths=[lab.sources / "a" / "b"])
    assert "HOST_ACCESS_FORBIDDEN" in refused(lab, refs("scratch"))
    lab.have(
        drive("scratch", lab.sources / "a" / "b" / "scratch", scope="local-any"),
        host_paths=[lab.sources / "a" / "b"],
    )
    assert f"there is no {lab.sources}/a, which is above what is granted" in refused(lab, refs("scratch"))
    assert os.listdir(lab.sources) == ["nvme9"]


def test_a_mount_below_a_source_would_not_be_seen(lab: RunLab) -> None:
    make(lab.sources / "data" / "below")
    lab.have(drive("data", lab.sources / "data"))
    subprocess.run(["mount", "-t", "tmpfs", "none", lab.sources / "data" / "below"], check=True)
    assert f"{lab.sources}/data/below is mounted below" in refused(lab, refs("data"))


def test_what_is_mounted_below_meanwhile_is_seen(lab: RunLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a large source gets its owner."""
    make(lab.sources / "data" / "below")
    lab.have(drive("data", lab.sources / "data", permissions={"owner_uid": 1000, "apply": True}))
    real = worker_drives.permissions.apply_declared

    def slowly(*arguments: Any, predict: bool = False) -> Any:
        if not predict:
            subprocess.run(["mount", "-t", "tmpfs", "none", lab.sources / "data" / "below"], check=True)
        return real(*arguments, predict=predict)

    monkeypatch.setattr(worker_drives.permissions, "apply_declared", slowly)
    with pytest.raises(StowageError, match="/data/below is mounted below"):
        lab.prepare(refs("data"))
    assert lab.pinned() == []


def test_scratch_that_another_worker_makes_meanwhile_is_had(lab: RunLab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.have(drive("scratch", lab.sources / "scratch", scope="local-any"))
    real = worker_drives.permissions._chain

    def beaten(*arguments: Any) -> int:
        make(lab.sources / "scratch")
        return real(*arguments)

    monkeypatch.setattr(worker_drives.permissions, "_chain", beaten)
    (one,) = lab.prepare(refs("scratch")).mounts
    assert os.listdir(one["source"]) == ["file"] and os.listdir(lab.sources) == ["scratch"]


def test_the_mount_table_and_the_units_are_read_once_for_a_worker(lab: RunLab, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"d{number}" for number in range(5)]
    for name in names[:3]:
        make(lab.sources / name)
    lab.have(*(drive(name, lab.sources / name, scope="local-any") for name in names))
    read: list[str] = []

    def counting(real: Any, what: str) -> Any:
        return lambda *arguments: (read.append(what), real(*arguments))[1]

    monkeypatch.setattr(worker_drives.mount_table, "read", counting(mounts.read, "table"))
    looked_for = lasting_mounts.LastingMounts._looked_for
    monkeypatch.setattr(lasting_mounts.LastingMounts, "_looked_for", counting(looked_for, "unit"))
    lab.prepare(refs(*names), differences=Differences(True))
    above = len(lab.sources.parts) - 1
    assert (read.count("table"), read.count("unit")) == (1, 2 * (above + len(names)))


def test_a_disk_that_looking_mounts_is_seen(lab: RunLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an automount does."""
    make(lab.sources / "data")
    lab.have(drive("data", lab.sources / "data"))
    answers = worker_drives.check_answers

    def looking(named: Any) -> None:
        if not os.path.ismount(lab.sources / "data"):
            subprocess.run(["mount", "-t", "tmpfs", "none", lab.sources / "data"], check=True)
            (lab.sources / "data" / "on the disk").touch()
        answers(named)

    monkeypatch.setattr(worker_drives, "check_answers", looking)
    (one,) = lab.prepare(refs("data")).mounts
    assert os.listdir(one["source"]) == ["on the disk"]


def test_a_symlink_put_into_the_way_meanwhile_mounts_nothing_outside(lab: RunLab) -> None:
    """Somebody changes a folder and a source for symlinks to /etc and back, as fast as possible."""
    data = lab.sources / "data"
    make(data / "folder")
    make(lab.sources / "other" / "imagenet")
    lab.have(drive("data", data), drive("imagenet", lab.sources / "other" / "imagenet"), drive("cache", scope="placed"))
    lab.prepare(refs("cache"), run="first")
    make(lab.at("ml.cache") / "folder")
    os.chown(lab.sources / "other", 1000, 1000)
    code = """
places = sys.argv[1:]
os.setuid(0)
def swap(place):
    try:
        os.rename(place, place + ".away")
        os.symlink("/etc", place)
        os.unlink(place)
    finally:
        os.rename(place + ".away", place)
print("ready", flush=True)
end = time.monotonic() + 600
while time.monotonic() < end:
    for place in places:
        swap(place)
"""
    swapped = [data / "folder", lab.at("ml.cache") / "folder", lab.sources / "other" / "imagenet"]
    wanted = [
        {"name": "data", "sub_path": "folder"},
        {"name": "cache", "sub_path": "folder"},
        {"name": "imagenet"},
    ]
    etc, got, not_got = os.stat("/etc"), 0, 0
    with process(code, *map(str, swapped)):
        began = time.monotonic()
        while (spent := time.monotonic() - began) < 4 or (min(got, not_got) < 6 and spent < 60):
            for one in wanted:
                try:
                    found = lab.prepare([one])
                except StowageError:
                    not_got += 1
                    continue
                got += 1
                for mount in found.mounts:
                    assert not os.path.samestat(os.stat(mount["source"]), etc)
                    assert os.listdir(mount["source"]) == ["file"]
                lab.release()
    assert min(got, not_got) >= 6, (got, not_got)
    assert lab.pinned() == [f"{lab.places.pins_dir}/first/1"]


# -- Half way


def test_what_was_mounted_is_taken_back_when_another_drive_fails(lab: RunLab, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = all_kinds(lab)
    lab.prepare(refs("cache"))
    real, calls = pinning.bind_mount, []

    def failing(fd: int, target: str, read_only: bool) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(12, "Cannot allocate memory", target)
        real(fd, target, read_only)

    monkeypatch.setattr(pinning, "bind_mount", failing)
    differences = Differences()
    with pytest.raises(StowageError) as error:
        lab.prepare(wanted, differences=differences)
    text = "Cannot allocate memory; what was mounted before that was taken back: drive scratch at /scratch"
    assert str(error.value).endswith(text)
    assert differences.actions[-1] == "unmount drive scratch at /scratch again"
    assert lab.pinned() == [f"{lab.places.pins_dir}/r1/1"], "what it had before stays"
    monkeypatch.undo()
    assert len(lab.prepare(wanted).mounts) == 3


def test_a_changed_set_of_drives(lab: RunLab) -> None:
    wanted = all_kinds(lab)
    lab.prepare(wanted)
    changed = [wanted[0], {**wanted[2], "mount_path": "/elsewhere"}]
    predicted, done = Differences(True), Differences()
    lab.prepare(changed, differences=predicted)
    found = lab.prepare(changed, differences=done)
    assert (predicted.diff(), predicted.actions) == (done.diff(), done.actions)
    assert done.actions == [
        "mount drive imagenet at /elsewhere, ReadOnly",
        "unmount drive scratch at /scratch",
        "unmount drive imagenet at /imagenet",
    ]
    assert [one["target"] for one in found.mounts] == ["/cache", "/elsewhere"] and len(lab.pinned()) == 2
    with process("os.chdir(copy); ready()", found.mounts[1]["source"]) as worker:
        text = refused(lab, refs("cache"))
        assert text.startswith(
            "worker w0 of run r1: drive imagenet at /elsewhere is not asked for any more and is still used by"
            f" process {worker.pid} ("
        )
    assert len(lab.prepare([]).mounts) == 0 and lab.pinned() == []


# -- How long


def test_a_reservation_becomes_a_lease_and_ends_with_its_process(lab: RunLab) -> None:
    wanted = all_kinds(lab)
    found = lab.prepare(wanted)
    worker = Worker.of("r1", "w0")
    child = subprocess.Popen(["sleep", "600"])
    try:
        for expected in (3, 0):
            differences = Differences()
            run_mounts.confirm(lab.places, worker, "", child.pid, differences)
            assert len(differences.actions) == expected and differences.changed == bool(expected)
        assert [pin.state for pin in pins.all_pins(lab.places)] == ["leased"] * 3
        assert lab.prepare(wanted) == found
        assert [pin.state for pin in pins.all_pins(lab.places)] == ["leased"] * 3
        assert all(0 < pin.left_s <= 60 for pin in pins.all_pins(lab.places)), "what was promised anew"
        differences = Differences()
        run_mounts.confirm(lab.places, worker, "", child.pid, differences)
        assert not differences.changed and not any(pin.left_s for pin in pins.all_pins(lab.places))
        with pytest.raises(Refusal) as error:
            lab.release()
        assert f"drive cache at /cache is still used by process {child.pid} (sleep), drive scratch" in str(error.value)
        assert len(lab.pinned()) == 3
        assert "is not asked for any more and is still used by" in refused(lab, refs("cache"))
    finally:
        child.kill()
        child.wait()
    assert {pins.stale(pin) for pin in pins.all_pins(lab.places)} == {"its process has ended"}
    assert pins.used_by(pins.all_pins(lab.places)) == {}
    for run, number in pins.all_names(lab.places):
        assert pinning.release_ended(lab.places, run, number) == "its process has ended"
    assert lab.pinned() == [] and os.listdir(lab.places.pins_dir) == []
    with pytest.raises(Refusal, match="worker w0 of run r1: has no drives on this host"):
        run_mounts.confirm(lab.places, worker, "", os.getpid(), Differences())


def test_prepared_again_while_its_process_is_there(lab: RunLab) -> None:
    wanted = all_kinds(lab)
    lab.prepare(wanted)
    with process("ready()") as worker:
        run_mounts.confirm(lab.places, Worker.of("r1", "w0"), "", worker.pid, Differences())
        lab.prepare(wanted, seconds=3600)
    for run, number in pins.all_names(lab.places):
        assert pinning.release_ended(lab.places, run, number) == "", "an hour was promised"
    assert len(lab.pinned()) == 3
    lab.release()
    assert lab.pinned() == [], "what only a reservation keeps can be let go"


def test_a_namesake_of_another_workspace_takes_nothing(lab: RunLab) -> None:
    lab.prepare(all_kinds(lab))
    records.write(os.path.join(lab.places.drives_dir, "bio.json"), {"workspace": "bio", "host": HOST, "drives": []})
    namesake = Preparation.of(lab.places, HOST, "bio", Worker.of("r1", "w0"), [], print)
    for check_mode in (True, False):
        with pytest.raises(Refusal, match="^worker w0 of run r1: it has drives of workspace ml already; "):
            namesake.run(60, Differences(check_mode))
    assert len(lab.pinned()) == 3
    lab.prepare(refs("scratch"), "w1", seconds=-1)
    lapsed = Preparation.of(lab.places, HOST, "bio", Worker.of("r1", "w1"), [], print)
    lapsed.run(60, Differences())
    assert len(lab.pinned()) == 3, "what has lapsed is nobody's"


def test_a_reservation_lapses(lab: RunLab) -> None:
    wanted = all_kinds(lab)
    lab.prepare(wanted, seconds=-1)
    assert {pins.stale(pin) for pin in pins.all_pins(lab.places)} == {"its reservation has ended"}
    differences = Differences()
    lab.prepare(wanted, differences=differences)
    assert differences.changed and not any(map(pins.stale, pins.all_pins(lab.places)))


def test_a_cgroup_holds_all_workers(lab: RunLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders, "CGROUPS", str(tmp_path / "cgroups"))
    group = tmp_path / "cgroups" / "job_7"
    (group / "step_0").mkdir(parents=True)
    (group / "cgroup.events").write_text("populated 1\n")
    (group / "step_0" / "cgroup.procs").write_text(f"{os.getpid()}\n")
    wanted = all_kinds(lab)
    lab.prepare(wanted)
    lab.prepare(wanted, "w1")
    run_mounts.confirm(lab.places, Worker.of("r1", ""), "/job_7", 0, Differences())
    with pytest.raises(Refusal, match=rf"is still used by process {os.getpid()} \(.*\) of cgroup {group}"):
        lab.release()
    (group / "cgroup.events").write_text("populated 0\n")
    assert len(lab.release().actions) == 6 and lab.pinned() == []


def test_release_waits(lab: RunLab) -> None:
    found = lab.prepare(all_kinds(lab))
    with process("os.chdir(copy); ready()", found.mounts[0]["source"]) as worker:
        with pytest.raises(Refusal, match=f"is still used by process {worker.pid} "):
            lab.release(timeout_s=0.2)
        assert len(lab.pinned()) == 3
        ending = threading.Timer(1, worker.kill)
        ending.start()
        lab.release(timeout_s=30)
        ending.join()
    assert lab.pinned() == []


def test_a_lease_whose_holder_goes_on_is_let_go_by_force(lab: RunLab) -> None:
    found = lab.prepare(all_kinds(lab))
    lab.prepare(refs("cache"), "w1")
    with process("ready()") as holder:
        for worker in ("w0", "w1"):
            run_mounts.confirm(lab.places, Worker.of("r1", worker), "", holder.pid, Differences())
        with process("os.chdir(copy); ready()", found.mounts[0]["source"]) as user:
            with pytest.raises(Refusal) as error:
                lab.release("w0", force=True)
            who = holders.described(user.pid)
            assert str(error.value) == (
                f"worker w0 of run r1: drive cache at /cache is still used by {who}; end that first"
            )
            assert len(lab.pinned()) == 4, "the kernel has the last word"
        with pytest.raises(Refusal, match=f"is still used by process {holder.pid}"):
            lab.release("w0")
        predicted = Differences(True)
        run_mounts.release(lab.places, Worker.of("r1", "w0"), predicted, force=True)
        done = lab.release("w0", force=True)
        despite = f", although it is held by {holders.described(holder.pid)}"
        assert done.actions[0] == f"unmount drive cache at /cache{despite}" and len(done.actions) == 3
        assert (predicted.diff(), predicted.actions) == (done.diff(), done.actions)
        assert [pin.held_by for pin in pins.all_pins(lab.places)] == ["r1/w1"], "the others have their drives"


def test_a_damaged_record_goes_with_its_run(lab: RunLab) -> None:
    lab.prepare(all_kinds(lab))
    Path(lab.places.pins_dir, "r1", "2.json").write_text("{")
    with pytest.raises(records.RecordError, match="pin r1/2: its record cannot be used"):
        lab.release("w0")
    lab.release()
    assert lab.pinned() == []


def test_the_command(lab: RunLab, capsys: pytest.CaptureFixture[str]) -> None:
    """As a prolog and an epilog use it."""
    all_kinds(lab)

    def stowage(*arguments: str) -> tuple[int, str]:
        code = command.main(["lease", *arguments], lab.places)
        said = capsys.readouterr()
        return code, (said.out + said.err).strip()

    for number, name in enumerate(("cache", "scratch", "imagenet"), 1):
        taken = stowage("take", f"ml/{name}", "--run", "slurm-7", "--read-only", "--seconds", "600")
        assert taken == (0, f"{lab.places.pins_dir}/slurm-7/{number}")
    assert stowage("take", "ml/scratch", "--run", "slurm-7", "--source", "1")[1].endswith("there are 1, from 0")
    child = subprocess.Popen(["sleep", "600"])
    try:
        assert stowage("list")[1].count("9 min left to confirm it") == 3
        assert stowage("confirm", "slurm-7", "--pid", str(child.pid)) == (0, "")
        refused_by = f"drive cache is still used by process {child.pid} (sleep)"
        assert refused_by in stowage("release", "slurm-7", "--wait", "0.1")[1]
        assert refused_by in stowage("release", "slurm-7", "1")[1]
        assert stowage("release", "slurm-7", "9")[1].endswith(
            "lease slurm-7/9: there is no such lease; there is slurm-7/1, slurm-7/2, slurm-7/3"
        )
        listed = stowage("list")[1].split("\n")
        assert len(listed) == 4 and "ml/imagenet" in listed[3] and "held" in listed[3]
        assert stowage("release", "slurm-7", "3", "--force") == (0, "") and len(lab.pinned()) == 2
    finally:
        child.kill()
        child.wait()
    assert stowage("release", "slurm-7") == (0, "")
    assert lab.pinned() == [] and stowage("list") == (0, "no leases")


# -- All at once

ROUNDS = """
import itertools, random, time
from pathlib import Path
from runs_lab import RunLab, refs
from stowage_core import eviction
from stowage_core.errors import StowageError
lab = pickle.loads(bytes.fromhex(sys.argv[1]))
number, rounds = int(sys.argv[2]), int(sys.argv[3])
chosen = random.Random(number)
for each in itertools.count():
    if each >= rounds and os.path.exists(sys.argv[4]):
        break
    run, worker = f"run-{number % 3}", f"w{number}"
    name = f"c{chosen.randrange(8)}"
    while True:
        try:
            found = lab.prepare(refs(name, "scratch"), worker, run)
            break
        except StowageError as error:
            # As whoever starts it would do: its copy may just have been evicted, between the look and the mount.
            print("again", error, flush=True)
    (at,) = [Path(one["source"]) for one in found.mounts if one["drive"] == name]
    content, mark = at / "content", at / f"{number}-{each}"
    if not content.exists():
        content.write_bytes(bytes(65536))  # a copy that takes nothing does not go
    mark.write_text("here")
    time.sleep(chosen.random() * 0.02)
    assert mark.read_text() == "here", "the copy in use was lost"
    assert os.path.samestat(os.stat(at), os.stat(lab.at("ml." + name))), "the copy in use was moved"
    mark.unlink()
    lab.release(worker, run)
    print("done", flush=True)
"""


def measured(lab: RunLab, name: str) -> None:
    """Record a copy as large enough to be evicted."""
    identity = lab.drives["ml"][name]["identity"]
    copies.write_record(lab.places, f"ml.{name}", copies.CopyRecord("ml", name, identity, "", 9, 9, 1, 2))


def test_many_at_once_lose_no_copy_in_use_and_leave_no_pin(lab: RunLab) -> None:
    """Two hundred rounds and more by eight processes over eight copies, while every copy that may go is evicted.

    They go on until some were: a slow machine changes how long it takes, and not what is shown.
    """
    cached = [drive(f"c{number}", scope="placed", evictable=True) for number in range(8)]
    lab.have(*cached, drive("scratch", lab.sources / "scratch", scope="local-any"))
    for number in range(8):
        measured(lab, f"c{number}")
    code = "import os, pickle, sys\n" + ROUNDS
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{os.environ['PYTHONPATH']}"}
    given, enough = pickle.dumps(lab).hex(), f"{lab.places.var}/enough"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, given, str(number), "25", enough],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(8)
    ]
    removed, end = 0, time.monotonic() + 150
    try:
        while any(worker.poll() is None for worker in workers) and time.monotonic() < end:
            for number in range(8):
                record = copies.load_record(lab.places, f"ml.c{number}")
                if record is None or record.allocated is None:
                    measured(lab, f"c{number}")
            removed += len(lab.evict().removed)
            if removed >= 10:
                Path(enough).touch()
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
    outputs = [worker.communicate(timeout=60)[0].split("\n") for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 8
    lines = [line for output in outputs for line in output if line]
    done, again = lines.count("done"), [line for line in lines if line != "done"]
    print(f"{done} rounds, {removed} copies removed, prepared again: {again}")
    assert done >= 200 and len(again) <= done / 10 and removed >= 10
    assert lab.pinned() == [] and os.listdir(lab.places.pins_dir) == []
    assert lab.trash() == []
