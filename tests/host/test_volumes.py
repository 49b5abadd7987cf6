# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes on real filesystems: given read-only to the runs that are granted them, and never touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from copies_lab import HOST, process
from daemon_lab import hung_mount, wait_for
from runs_lab import drive, make, refs
from volumes_lab import ANN, BOB, VolumeLab, grant, volume

from stowage_core import events, mounts, records
from stowage_core.claims import of_layout
from stowage_core.differences import Differences
from stowage_core.drives import host as drives_host
from stowage_core.drives.declared import check_drives
from stowage_core.errors import Refusal, StowageError
from stowage_core.layout import change as layout_change
from stowage_core.layout.change import Request
from stowage_core.layout.found import MountRule
from stowage_core.layout.overrides import for_all
from stowage_core.layout.rules import resolve
from stowage_core.owner import claim
from stowage_core.runs import location, pinning, pins, stamps
from stowage_core.runs import mounts as run_mounts
from stowage_core.runs.mounts import Worker
from stowage_core.runs.shape import RunName
from stowage_core.services.lasting_mounts import LastingMounts
from stowage_core.services.systemd_units import Systemctl
from stowage_core.volumes import recorded, stamped
from stowage_core.volumes.entitled import Whose
from stowaged import command


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Iterator[VolumeLab]:
    made = VolumeLab(disk, tmp_path)
    yield made
    made.close()


def models(lab: VolumeLab) -> dict[str, Any]:
    """A volume of which ``llama`` is team vision's and ``qwen`` bob's; its contents are user 1000's."""
    for name in ("llama/7b", "qwen"):
        make(lab.root / "models" / name)
    for path in (lab.root / "models").rglob("*"):
        os.chown(path, 1000, 1000)
    return volume("models", grant("llama", teams=["vision"]), grant("qwen", users=["bob"]))


def state_of(directory: Path) -> list[tuple[Any, ...]]:
    found = []
    for path in [directory, *sorted(directory.rglob("*"))]:
        one = path.lstat()
        found.append((str(path), one.st_ino, one.st_uid, one.st_gid, one.st_mode, one.st_mtime_ns, one.st_ctime_ns))
    return found


def refused(lab: VolumeLab, run_of: str, names: list[str] | None = None, **more: Any) -> str:
    """Return why it is refused, the same whether it is predicted or done; nothing is mounted then."""
    before = lab.pinned()
    texts = []
    for check_mode in (True, False):
        with pytest.raises(StowageError) as error:
            lab.give(run_of, names, differences=Differences(check_mode), **more)
        texts.append(str(error.value))
    assert texts[0] == texts[1] and lab.pinned() == before
    return texts[0]


# -- Given to a run


def test_a_run_has_what_it_is_granted_read_only_and_nothing_is_touched(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    shutil.copy("/usr/bin/id", lab.root / "models/llama/id")
    (lab.root / "models/llama/id").chmod(0o4755)
    before = state_of(lab.root)
    predicted, done, again = Differences(True), Differences(), Differences()
    foretold, _given = lab.give(ANN, differences=predicted)
    assert lab.pinned() == []
    found, have = lab.give(ANN, differences=done)
    assert (predicted.diff(), predicted.actions) == (done.diff(), done.actions) and foretold == found
    assert done.actions == ["mount volume models/llama at /volumes/models/llama, ReadOnly"]
    source = f"{lab.places.pins_dir}/r1/1"
    target = "/volumes/models/llama"
    one = {
        "source": source,
        "target": target,
        "read_only": True,
        "volume": "models",
        "sub_path": "llama",
        "run_of": ANN,
    }
    assert found.mounts == [one] and have.left_out == []
    (mount,) = [mount for mount in mounts.read() if mount.point == source]
    assert mount.read_only and {"nosuid", "nodev", "ro"} <= set(mount.options)
    assert sorted(os.listdir(source)) == ["7b", "id"]
    with pytest.raises(OSError, match="Read-only"):
        (Path(source) / "new").touch()
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", f"{source}/id", "-u"]
    assert subprocess.run(nobody, check=True, capture_output=True).stdout == b"65534\n"
    assert lab.give(ANN, differences=again)[0] == found and not again.changed and again.actions == []
    assert pins.users_of_volumes(pins.all_pins(lab.places)) == {"models": ["r1/w0"]}
    assert lab.release().actions == [f"unmount volume models/llama at {target}"]
    assert lab.pinned() == [] and os.listdir(lab.places.pins_dir) == []
    assert state_of(lab.root) == before


def test_nobody_but_the_owner_of_the_run_reaches_what_it_is_given(lab: VolumeLab) -> None:
    """The material is behind directories of root's; what is mounted of it elsewhere has left these behind."""
    lab.root.chmod(0o700)
    lab.declare(models(lab))
    (lab.root / "models/llama").chmod(0o755)
    os.chown(lab.runs / ANN, 1000, 1000)
    found, _given = lab.give(ANN)
    (one,) = found.mounts
    assert [enters(one["source"], uid) for uid in (0, 1000, 65534)] == [True, True, False]
    # A run of root's is reached by root; so is one with another's volumes beside its own.
    lab.release()
    found, _given = lab.give(BOB)
    (one,) = found.mounts
    assert [enters(one["source"], uid) for uid in (0, 1000, 65534)] == [True, False, False]
    lab.give(ANN, worker="w1")
    assert not enters(one["source"], 1000)


def test_a_job_of_slurm_reaches_its_drive_as_its_user_and_nobody_else_does(
    lab: VolumeLab, capsys: pytest.CaptureFixture[str]
) -> None:
    make(lab.sources / "data")
    lab.have(drive("data", lab.sources / "data"))
    take = ["lease", "take", "ml/data", "--read-only", "--run"]
    assert command.main([*take, "slurm-1", "--user", "1000"], lab.places) == 0
    assert command.main([*take, "slurm-2"], lab.places) == 0
    own, open_to_all = capsys.readouterr().out.split()
    assert own == f"{lab.places.pins_dir}/slurm-1/1"
    assert [enters(own, uid) for uid in (0, 1000, 65534)] == [True, True, False]
    assert [enters(open_to_all, uid) for uid in (0, 1000, 65534)] == [True, True, True]
    assert command.main([*take, "slurm-3", "--user", "no such user"], lab.places) != 0
    assert "there is no user no such user on this host" in capsys.readouterr().err


def enters(path: str, uid: int) -> bool:
    """Return whether a user reaches what is mounted at *path* from the directory of all pins."""
    fd = os.open(os.path.dirname(os.path.dirname(path)), os.O_RDONLY | os.O_DIRECTORY)
    code = f"""
import os, sys
os.setgroups([]), os.setresgid({uid}, {uid}, {uid}), os.setresuid({uid}, {uid}, {uid})
try:
    os.listdir(os.open({os.path.join(*path.split("/")[-2:])!r}, os.O_RDONLY | os.O_DIRECTORY, dir_fd={fd}))
except PermissionError:
    sys.exit(7)
"""
    try:
        status = subprocess.run([sys.executable, "-c", code], check=False, pass_fds=[fd]).returncode
    finally:
        os.close(fd)
    assert status in (0, 7)
    return status == 0


def test_nothing_is_granted_by_what_is_asked_for(lab: VolumeLab) -> None:
    make(lab.root / "shared")
    lab.declare(models(lab), volume("shared"))
    assert [one["target"] for one in lab.give(BOB)[0].mounts] == ["/volumes/models/qwen"]
    lab.make_run("eve/tune/1")
    assert lab.give("eve/tune/1")[0].mounts == [] and lab.pinned() == []
    nothing = "nothing of it is granted to run eve/tune/1 of user eve, no team; grant it in the list of volumes"
    nothing += " (host_volumes)"
    assert refused(lab, "eve/tune/1", ["models", "shared", "modles"]).split("\n") == [
        f"volume models: {nothing}",
        f"volume shared: {nothing}",
        "volume modles: does not exist on this host; did you mean models?",
    ]
    assert refused(lab, "ann/tune/2").startswith(f"run ann/tune/2: it has no directory below {lab.runs} (No such file")
    assert refused(lab, "../tune/1").startswith("user: '..' may not begin with a dot")


def test_the_team_is_the_stamped_directory_s(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    (lab.runs / ANN).rename(lab.runs / "ann/tune/away")
    (lab.runs / ANN).mkdir()
    assert lab.give(ANN)[0].mounts == [], "another directory of that name has no stamp"
    (lab.runs / ANN).rmdir()
    (lab.runs / ANN).symlink_to("away")
    assert "it has no directory below" in refused(lab, ANN)
    (lab.runs / ANN).unlink()
    (lab.runs / "ann/tune/away").rename(lab.runs / ANN)
    assert len(lab.give(ANN)[0].mounts) == 1
    other = Path(stamps.record_path(lab.places, RunName.parsed("ann/tune/0")))
    other.write_text("{")
    assert len(lab.give(ANN)[0].mounts) == 1, "what another run is stamped with is no matter of this one's"
    other.rename(stamps.record_path(lab.places, RunName.parsed(ANN)))
    assert "not valid JSON" in refused(lab, ANN), "which team it is of is not known"


def test_directories_above_a_run_are_root_s(lab: VolumeLab) -> None:
    """Else whoever else has them could put a run of his own there."""
    lab.declare(models(lab))
    os.chown(lab.runs / "ann", 1000, 1000)
    assert f"{lab.runs}/ann: belongs to " in refused(lab, ANN)
    os.chown(lab.runs / "ann", 0, 0)
    os.chown(lab.runs, 1000, 1000)
    assert f"{lab.runs}: belongs to " in refused(lab, ANN)
    os.chown(lab.runs, 0, 0)
    (lab.runs / "ann/tune").chmod(0o777)
    assert f"{lab.runs}/ann/tune: others than root can write to it" in refused(lab, ANN)


def test_a_host_that_does_not_measure_the_runs_is_told_the_team(
    lab: VolumeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.declare(models(lab))
    lab.make_run("eve/tune/1")
    with pytest.raises(Refusal, match="volumes_team: vision is not what run eve/tune/1 is stamped with here, which is"):
        stamped.whose(lab.places, "eve/tune/1", "vision")
    # The disk's type passes for a shared one.
    monkeypatch.setattr(location.mount_table, "is_shared", lambda fstype: fstype in ("ext4", "xfs", "btrfs"))
    unknown = "run eve/tune/1: its team is not known on this host, for another one measures its runs; what is granted"
    whose, why = stamped.whose(lab.places, "eve/tune/1")
    assert whose.team == "" and why.startswith(unknown)
    assert stamped.whose(lab.places, "eve/tune/1", "vision") == (Whose("eve/tune/1", "eve", "vision"), "")
    with pytest.raises(Refusal, match="speech is not what run ann/tune/1 is stamped with here, which is vision"):
        stamped.whose(lab.places, ANN, "speech")
    records.write(lab.places.daemon_json, {"measure_shared": True})
    with pytest.raises(Refusal, match="which is no team; leave it out on a host that has the stamps"):
        stamped.whose(lab.places, "eve/tune/1", "vision")


def test_the_outer_one_of_grants_in_each_other(lab: VolumeLab) -> None:
    models(lab)
    lab.declare(volume("models", grant("llama/7b", users=["ann"]), grant(teams=["vision"])))
    (one,) = lab.give(ANN)[0].mounts
    assert (one["target"], one["sub_path"]) == ("/volumes/models", "")
    assert sorted(os.listdir(one["source"])) == ["llama", "qwen"]


def test_drives_and_volumes_of_one_worker(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    make(lab.sources / "data")
    lab.have(drive("data", lab.sources / "data"))
    found, _given = lab.give(ANN, refs=refs("data"))
    assert [one["target"] for one in found.mounts] == ["/data", "/volumes/models/llama"] and len(lab.pinned()) == 2
    assert pins.used_by(pins.all_pins(lab.places)) == {("ml", "data"): ["r1/w0"]}
    clash = {"name": "data", "mount_path": "/volumes/models"}
    text = "drive data: its mount_path /volumes/models overlaps /volumes/models/llama, where volume models is to be"
    assert refused(lab, ANN, refs=[clash]).startswith(text)
    # What is not asked for any more is released, whatever it is.
    done = Differences()
    lab.prepare(refs("data"), differences=done)
    assert done.actions == ["unmount volume models/llama at /volumes/models/llama"]
    lab.give(ANN, refs=refs("data"))
    lab.give(ANN)
    assert [pin.volume for pin in pins.all_pins(lab.places)] == ["models"]


def test_two_runs_of_one_name_do_not_take_from_each_other(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    lab.give(ANN)
    text = f"worker w0 of run r1: it has volumes of run {ANN} already; name it otherwise, or release that one first"
    assert refused(lab, BOB) == text
    assert len(lab.give(BOB, worker="w1")[0].mounts) == 1


def test_a_worker_has_all_that_was_asked_for_or_nothing(lab: VolumeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    make(lab.root / "data")
    lab.declare(models(lab), volume("data", grant(users=["ann"])))
    real, calls = pinning.bind_mount, []

    def failing(fd: int, target: str, read_only: bool) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(12, "Cannot allocate memory", target)
        real(fd, target, read_only)

    monkeypatch.setattr(pinning, "bind_mount", failing)
    with pytest.raises(StowageError, match="what was mounted before that was taken back: volume data at /volumes/data"):
        lab.give(ANN)
    assert lab.pinned() == []


def test_the_lease_of_a_volume_is_one_like_others(lab: VolumeLab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.declare(models(lab))
    found, _given = lab.give(ANN)
    with process("os.chdir(copy); ready()", found.mounts[0]["source"]) as worker:
        run_mounts.confirm(lab.places, Worker.of("r1", "w0"), "", worker.pid, Differences())
        with pytest.raises(Refusal, match="volume models/llama at /volumes/models/llama is still used by process"):
            lab.release()
        assert command.main(["lease", "list"], lab.places) == 0
        assert "volume models/llama" in capsys.readouterr().out
    assert command.main(["lease", "expire"], lab.places) == 0
    assert "released, its process has ended" in capsys.readouterr().out
    assert lab.pinned() == []


def test_a_reservation_that_nobody_confirms_lapses(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    lab.give(ANN, seconds=0.2)
    time.sleep(0.3)
    assert pinning.release_ended(lab.places, "r1", 1) == "its reservation has ended" and lab.pinned() == []


# -- Where paths lead


def test_no_symlink_in_a_volume_is_followed(lab: VolumeLab) -> None:
    secret = make(lab.root.parent / "secret")
    lab.declare(models(lab))
    for link in (lab.root / "models/llama", lab.root / "models"):
        away = link.with_name("away")
        link.rename(away)
        link.symlink_to(secret)
        os.chown(link, 1000, 1000, follow_symlinks=False)
        assert "models" in refused(lab, ANN, ["models"])
        found, have = lab.give(ANN)
        assert found.mounts == [] and len(have.left_out) == 1
        link.unlink()
        away.rename(link)
    assert len(lab.give(ANN)[0].mounts) == 1


def test_a_symlink_swapped_in_meanwhile_mounts_nothing_outside(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    code = """
place = copy
os.setuid(0)
print("ready", flush=True)
end = time.monotonic() + 600
while time.monotonic() < end:
    os.rename(place, place + ".away")
    os.symlink("/etc", place)
    os.unlink(place)
    os.rename(place + ".away", place)
"""
    etc, got, not_got = os.stat("/etc"), 0, 0
    with process(code, str(lab.root / "models/llama")):
        end = time.monotonic() + 60
        while min(got, not_got) < 4 and time.monotonic() < end:
            try:
                found, _given = lab.give(ANN, ["models"])
            except StowageError:
                not_got += 1
                continue
            got += 1
            (one,) = found.mounts
            assert not os.path.samestat(os.stat(one["source"]), etc) and os.listdir(one["source"]) == ["7b"]
            lab.release()
    assert min(got, not_got) == 4, (got, not_got)
    assert lab.pinned() == []


def test_root_s_own_link_may_lead_out_of_the_volume_root(lab: VolumeLab) -> None:
    elsewhere = make(lab.root.parent / "elsewhere/models")
    (lab.root / "models").symlink_to(elsewhere)
    lab.declare(volume("models", grant(users=["ann"])))
    (one,) = lab.give(ANN)[0].mounts
    assert os.listdir(one["source"]) == ["file"]
    os.chown(lab.root / "models", 1000, 1000, follow_symlinks=False)
    assert "which others than root could have put there" in refused(lab, ANN, ["models"])


def test_what_is_mounted_below_would_not_be_seen(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    subprocess.run(["mount", "-t", "tmpfs", "none", lab.root / "models/llama/7b"], check=True)
    try:
        assert "is mounted in it, and a worker would see an empty directory there" in refused(lab, ANN, ["models"])
        assert len(lab.give(BOB)[0].mounts) == 1
    finally:
        subprocess.run(["umount", lab.root / "models/llama/7b"], check=True)


# -- A volume that is not there


def test_what_is_to_be_mounted_above_a_volume_and_is_not(lab: VolumeLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what lies under the mount, as on a disk of the system: without the mount nobody proves what is there."""
    make(lab.root / "far/models")
    wanted = volume("models", grant(users=["ann"]), path=f"{lab.root}/far/models", require_mount=False)
    lab.declare(wanted)
    assert len(lab.give(ANN)[0].mounts) == 1
    lab.release()
    fstab = f"/dev/far {lab.root}/far ext4 defaults 0 0\n".encode()
    monkeypatch.setattr(LastingMounts, "read", lambda: LastingMounts(fstab, ()))
    why = f"volume models: {lab.root}/far is in /etc/fstab and is not mounted"
    assert refused(lab, ANN, ["models"]).startswith(why)
    assert [one.startswith(why) for one in lab.given(ANN).left_out] == [True]
    assert lab.declare(wanted).warnings[0].startswith(why)
    lab.declare()
    with pytest.raises(Refusal, match="is in /etc/fstab and is not mounted"):
        lab.declare(wanted)


@pytest.fixture
def mounted(lab: VolumeLab, small_disk: Callable[..., Any], fstype: str) -> Iterator[Any]:
    """A volume ``far`` of ann's on a disk of its own."""
    other = small_disk(fstype)
    (lab.root / "far").mkdir()
    other.mount(at=lab.root / "far")
    (lab.root / "far/file").write_text("x")
    lab.declare(models(lab), volume("far", grant(users=["ann"])))
    yield other
    lab.close()
    if os.path.ismount(lab.root / "far"):
        subprocess.run(["umount", lab.root / "far"], check=True)


def test_a_volume_whose_disk_is_away_is_no_empty_one(lab: VolumeLab, mounted: Any) -> None:
    assert [one["target"] for one in lab.give(ANN)[0].mounts] == ["/volumes/far", "/volumes/models/llama"]
    lab.release()
    subprocess.run(["umount", lab.root / "far"], check=True)
    why = f"volume far: {lab.root}/far was on the mount at {lab.root}/far, and nothing is mounted there; mount its disk"
    assert refused(lab, ANN, ["far", "models"]) == why
    found, have = lab.give(ANN)
    assert have.left_out == [why] and [one["volume"] for one in found.mounts] == ["models"]
    # A rollout leaves it as it is, and tells; its grants can still be taken away.
    steady = Differences()
    told = lab.declare(models_again(), volume("far", grant(users=["ann"])), differences=steady)
    assert not steady.changed and told.warnings == [f"{why}; until then runs are not given it"]
    lab.declare(models_again(), volume("far", grant(users=["bob"])))
    assert lab.given(ANN).left_out == [] and recorded.load(lab.places)["far"].mount_point == f"{lab.root}/far"
    mounted.mount(at=lab.root / "far")
    assert [one["volume"] for one in lab.give(BOB, run="r2")[0].mounts] == ["far", "models"]


def models_again() -> dict[str, Any]:
    return volume("models", grant("llama", teams=["vision"]), grant("qwen", users=["bob"]))


def test_a_worker_keeps_what_it_has_of_a_volume_whose_disk_went(lab: VolumeLab, mounted: Any) -> None:
    lab.give(ANN)
    subprocess.run(["umount", "--lazy", lab.root / "far"], check=True)
    done = Differences()
    found, have = lab.give(ANN, differences=done)
    assert not done.changed and len(have.left_out) == 1 and len(lab.pinned()) == 2
    assert [one["volume"] for one in found.mounts] == ["models"]


def test_another_disk_in_its_place_is_another_volume(
    lab: VolumeLab, mounted: Any, small_disk: Callable[..., Any], fstype: str
) -> None:
    subprocess.run(["umount", lab.root / "far"], check=True)
    other = small_disk(fstype)
    other.mount(at=lab.root / "far")
    assert "and is now on" in refused(lab, ANN, ["far"])
    wanted = (models_again(), volume("far", grant(users=["ann"])))
    assert len(lab.declare(*wanted).warnings) == 1
    accepted = Differences()
    assert lab.declare(*wanted, differences=accepted, accept_new_filesystem=True).warnings == []
    assert list(accepted.diff()["after"]) == ["volume far"] and len(lab.give(ANN)[0].mounts) == 2


def test_a_server_that_does_not_answer_holds_up_nobody_for_long(
    lab: VolumeLab, monkeypatch: pytest.MonkeyPatch, fstype: str
) -> None:
    if fstype != "ext4":
        return  # it has nothing to do with the disk
    monkeypatch.setattr("stowage_core.answers._PATIENCE", 1.0)
    (lab.root / "far").mkdir()
    wanted = (models(lab), volume("far", grant(users=["ann"]), require_mount=False))
    lab.declare(*wanted)
    with hung_mount(lab.root / "far"):
        begin = time.monotonic()
        found, have = lab.give(ANN)
        assert [one["volume"] for one in found.mounts] == ["models"]
        assert have.left_out == ["volume far: it does not answer"]
        assert "does not answer within" in refused(lab, ANN, ["far"])
        assert len(lab.declare(*wanted).warnings) == 1
        assert time.monotonic() - begin < 10
        with pytest.raises(Refusal, match="volume new: the filesystem at .* does not answer; see to its server"):
            lab.declare(*wanted[:1], volume("new", path=f"{lab.root}/far"))


# -- Declaring


def test_declaring_is_predicted_and_settles(lab: VolumeLab) -> None:
    wanted = models(lab)
    runs = [Differences(check_mode) for check_mode in (True, False, False)]
    for differences in runs:
        outcome = lab.declare(wanted, differences=differences)
    predicted, done, again = runs
    assert (predicted.diff(), predicted.actions) == (done.diff(), done.actions)
    assert done.actions == [f"write {lab.places.volumes_json}"] and not again.changed and again.actions == []
    (one,) = outcome.volumes
    assert one.require_mount and one.mount_point == mounts.of_path(str(lab.root), mounts.read()).point
    gone = Differences()
    lab.declare(differences=gone)
    assert gone.diff()["after"] == {"volume models": None} and recorded.load(lab.places) == {}


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("none", "is not there, and a volume is never made; mount its disk, or correct the path"),
        ("file", "is not a directory; name a directory"),
        ("theirs", "which others than root could have put there"),
        ("to-runs", "it is inside the storage layout's runs {disk}/runs; register material that is apart from it"),
        ("to-storage", "it is inside the storage root {disk}/storage"),
        ("to-location", "it is inside the data location {disk}/stowage"),
        ("to-source", "it is inside source 0 of drive ml/data, {disk}/sources/data"),
        ("to-tier", "it is, or is inside, the tier {disk}/tier of host gpu-01"),
        ("to-etc", "it is Stowage's own directory"),
    ],
)
def test_what_is_refused(lab: VolumeLab, disk: Path, place: str, text: str) -> None:
    make(disk / "storage/x")
    make(lab.sources / "data/x")
    make(disk / "tier/x")
    (lab.path / "x").mkdir()
    (lab.runs / "x").mkdir()
    lab.have(drive("data", lab.sources / "data"))
    fd = os.open(disk / "tier", os.O_RDONLY)
    claim(fd, "tier", "chat/0", "1", "gpu-01")
    os.close(fd)
    (lab.root / "file").touch()
    (lab.root / "theirs").symlink_to(disk)
    os.chown(lab.root / "theirs", 1000, 1000, follow_symlinks=False)
    links = {
        "to-runs": lab.runs / "x",
        "to-storage": disk / "storage/x",
        "to-location": lab.path / "x",
        "to-source": lab.sources / "data/x",
        "to-tier": disk / "tier/x",
        "to-etc": lab.places.etc,
    }
    for name, target in links.items():
        (lab.root / name).symlink_to(target)
    for check_mode in (True, False):
        with pytest.raises(Refusal) as refusal:
            lab.declare(volume("wrong", path=f"{lab.root}/{place}"), differences=Differences(check_mode))
        assert text.format(disk=disk) in str(refusal.value)
    assert not os.path.exists(lab.places.volumes_json)


def test_two_names_of_one_directory(lab: VolumeLab) -> None:
    make(lab.root / "models")
    (lab.root / "alias").symlink_to("models")
    with pytest.raises(Refusal, match="volume alias: its path .*/alias is .*/models of volume models"):
        lab.declare(volume("models"), volume("alias"))
    make(lab.root / "models/llama")
    (lab.root / "bound").mkdir()
    subprocess.run(["mount", "--bind", lab.root / "models/llama", lab.root / "bound"], check=True)
    try:
        with pytest.raises(Refusal, match="volume bound: its path .*/bound is inside .*/models of volume models"):
            lab.declare(volume("models"), volume("bound"))
    finally:
        subprocess.run(["umount", lab.root / "bound"], check=True)


def declare_drives(lab: VolumeLab, *paths: Path | str, granted: Path | None = None) -> None:
    """Declare a drive for each path, as the module does."""
    lists = {"vision": check_drives([drive(f"d{number}", path) for number, path in enumerate(paths)])}
    drives_host.declare(lab.places, HOST, lists, "", Differences(), {"vision": [str(granted or lab.root.parent)]})


TAKEN = [
    ("volumes/models/llama", "is inside the volume root"),
    ("volumes/other", "is inside the volume root"),
    ("volumes", "is the volume root"),
    ("elsewhere/far", "is the volume far"),
    ("elsewhere/far/x", "is inside the volume far"),
    ("elsewhere", "contains the volume far"),
    ("runs", "is the storage layout's runs"),
    ("runs/bob/tune/1", "is inside the storage layout's runs"),
    ("storage", "is the storage root"),
    ("secret/keys", "is the protected path"),
    ("secret/keys/x", "is inside the protected path"),
    ("secret", "contains the protected path"),
]


@pytest.mark.parametrize(("path", "text"), TAKEN)
def test_no_drive_goes_round_volumes_runs_and_protected_paths(lab: VolumeLab, path: str, text: str) -> None:
    """A drive is whoever's has its workspace, so its source may show none of what is granted or kept for others."""
    disk = lab.root.parent
    for one in ("volumes/other", "secret/keys/x", "storage/team", "elsewhere/far/x"):
        make(disk / one)
    (lab.root / "far").symlink_to(disk / "elsewhere/far")
    lab.declare(models(lab), volume("far"))
    lab.protect(disk / "secret/keys")
    declare_drives(lab, disk / "storage/team")  # beside the locations there is room
    for leads in (disk / path, disk / "link", disk / "bound"):
        if leads.name == "link":
            leads.symlink_to(disk / path)
        elif leads.name == "bound":
            leads.mkdir()
            subprocess.run(["mount", "--bind", disk / path, leads], check=True)
        try:
            with pytest.raises(Refusal, match=rf"drive vision/d0: spec.sources\[0\].path {leads} {text} "):
                declare_drives(lab, leads)
            # Also when that was another's only after the drive was declared.
            lab.have(drive("data", leads), host_paths=[disk])
            for check_mode in (True, False):
                with pytest.raises(StowageError, match=rf"drive data: it {text} "):
                    lab.prepare(refs("data"), differences=Differences(check_mode))
            assert lab.pinned() == []
        finally:
            if leads.name == "bound":
                subprocess.run(["umount", leads], check=True)


def test_what_is_a_drive_s_is_no_volume(lab: VolumeLab) -> None:
    wanted = models(lab)
    for source in (lab.root / "models", lab.root / "models/llama", lab.root):
        lab.have(drive("data", source), host_paths=[lab.root])
        with pytest.raises(Refusal, match=r"volume models: path .*: it (is|is inside|contains) source 0 of drive ml"):
            lab.declare(wanted)


def test_a_layout_keeps_apart_from_the_sources_of_drives(lab: VolumeLab) -> None:
    lab.have(drive("data", lab.sources / "data"))
    disk = lab.sources.parent
    for root, lies in ((lab.sources / "data/root", "is inside"), (lab.sources / "data", "is")):
        with pytest.raises(Refusal, match=rf"root: .* {lies} source 0 of drive ml/data, {disk}/sources/data; choose"):
            lay_out(lab, root)
    make(lab.sources / "data/state")
    with pytest.raises(Refusal, match=r"state: .*/sources is|state: .*/sources contains source 0 of drive ml/data,"):
        lay_out(lab, disk / "around", state=str(lab.sources))
    lay_out(lab, disk / "sources")  # the root holds nothing itself


def lay_out(lab: VolumeLab, root: Path, **overrides: str) -> None:
    rules = for_all(resolve(str(root), overrides), MountRule(), dict.fromkeys(overrides, MountRule()))
    request = Request(environment_file=lab.places.environment)
    systemctl = Systemctl("systemctl", lambda _words: (0, "", ""))
    layout_change.lay_out(lab.places, resolve(str(root), overrides), rules, request, systemctl, Differences(True))


def test_what_is_protected_is_given_to_no_run(lab: VolumeLab) -> None:
    wanted = models(lab)
    keys = make(lab.root / "models/llama/keys")
    for protected, lies in ((keys, "contains"), (lab.root / "models", "is"), (lab.root, "is inside")):
        lab.protect(protected)
        with pytest.raises(Refusal, match=rf"volume models: path .*/models: it {lies} the protected path {protected};"):
            lab.declare(wanted)
    # What was declared before is not given either, and the folders beside it are.
    lab.protect()
    lab.declare(wanted)
    lab.protect(keys)
    assert refused(lab, ANN, ["models"]) == (
        f"volume models: it contains the protected path {keys}; grant the folders beside it, or take it out of the"
        " protected paths"
    )
    assert [one["target"] for one in lab.give(BOB, ["models"])[0].mounts] == ["/volumes/models/qwen"]
    (folder,) = lab.given(ANN).folders or [None]
    assert folder is None or folder.volume.name != "models"


def test_others_keep_apart_from_a_volume(lab: VolumeLab) -> None:
    elsewhere = make(lab.root.parent / "elsewhere")
    (lab.root / "models").symlink_to(elsewhere)
    lab.declare(volume("models"))
    assert of_layout(lab.places)[f"{lab.root}/models"] == "the volume models"


# -- Grants and volumes that are taken away


def test_a_grant_that_is_taken_away_is_gone_for_new_workers(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    lab.give(ANN)
    told = lab.declare(volume("models", grant("qwen", users=["bob"])))
    assert told.warnings == [
        f"volume models: folder llama of it is not granted to run {ANN} any more; pin r1/1 of r1/w0 keeps that until it"
        " ends or is released"
    ]
    assert len(lab.pinned()) == 1
    assert lab.given(ANN).folders == [] and lab.given(BOB).folders != []
    # A wider grant holds the narrower one.
    assert lab.declare(volume("models", grant(users=["ann"]))).warnings == []


def test_a_volume_that_workers_have_is_not_taken_off(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    make(lab.root / "elsewhere")
    lab.give(ANN)
    elsewhere = volume("models", path=f"{lab.root}/elsewhere")
    for left, why in (((), "is not in the list any more"), ((elsewhere,), "is on another path now")):
        with pytest.raises(Refusal) as refusal:
            lab.declare(*left)
        assert why in str(refusal.value) and "pin r1/1 of r1/w0" in str(refusal.value)
    lab.release()
    lab.declare()
    assert recorded.load(lab.places) == {}


def test_a_volume_that_is_put_elsewhere_meanwhile_is_seen(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    make(lab.root / "elsewhere/llama")
    (folder,) = lab.given(ANN).folders
    lab.declare(volume("models", grant("llama", teams=["vision"]), path=f"{lab.root}/elsewhere"))
    with pytest.raises(Refusal, match="volume models: it is not granted to run ann/tune/1 of user ann, team vision"):
        folder.take("r1", "w0", 60)
    assert lab.pinned() == []


def test_a_grant_that_goes_meanwhile_is_seen(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    (folder,) = lab.given(ANN).folders
    lab.declare(volume("models"))
    with pytest.raises(Refusal, match="it is not granted to run ann/tune/1 of user ann, team vision any more"):
        folder.take("r1", "w0", 60)
    assert lab.pinned() == []


def test_pins_that_cannot_be_read_keep_volumes_and_not_grants(lab: VolumeLab) -> None:
    lab.declare(models(lab))
    records.write(f"{lab.places.pins_dir}/r9/1.json", {"run": "r9"})
    try:
        with pytest.raises(StowageError, match="pin r9/1: its record cannot be used"):
            lab.declare()
        assert len(lab.declare(volume("models")).warnings) == 1
    finally:
        os.unlink(f"{lab.places.pins_dir}/r9/1.json")


# -- The daemon


def test_the_daemon_asks_after_volumes_and_lets_ended_leases_go(
    lab: VolumeLab, mounted: Any, start: Callable[..., Any], fstype: str
) -> None:
    daemon = start(lab)
    assert daemon.places == lab.places
    daemon.start()

    def volumes() -> dict[str, bool]:
        section = records.read(f"{lab.places.state_dir}/volumes.json") or {"volumes": []}
        return {one["volume"]: one["available"] for one in section["volumes"]}

    wait_for(lambda: volumes() == {"far": True, "models": True})
    lab.give(ANN, seconds=1)
    wait_for(lambda: "r1/1" in str(records.read(os.path.join(lab.places.run, "ended"))))
    assert command.main(["lease", "expire"], lab.places) == 0
    assert lab.pinned() == []
    subprocess.run(["umount", lab.root / "far"], check=True)
    wait_for(lambda: volumes() == {"far": False, "models": True})
    wait_for(lambda: any(one["reason"] == "VolumeMissing" for one in events.read(lab.places)))
    filesystems = (records.read(f"{lab.places.state_dir}/filesystems.json") or {})["filesystems"]
    assert not any("volume" in name for one in filesystems for name in one["objects"])
    assert not [name for name in os.listdir(lab.places.locations_dir) if name.startswith("volume")]
