# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directories of runs on real filesystems: made as a whole, numbered, stamped, and removed only unused."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from conftest import SmallDisk
from copies_lab import process
from daemon_lab import hung_mount
from killing import killed

from stowage_core import events, mounts, owner, records, syscalls
from stowage_core.differences import Differences
from stowage_core.drives.declared import check_drives
from stowage_core.errors import StowageError
from stowage_core.layout.directories import Ownership
from stowage_core.locks import runs_lock, try_aside_lock
from stowage_core.places import Places
from stowage_core.runs import location, pinning, pins, removal, run_directories, stamps, trash
from stowage_core.runs.pins import Use
from stowage_core.runs.removal import STEPS
from stowage_core.runs.run_directories import Outcome, Request
from stowage_core.runs.shape import RunName
from stowage_core.services import lasting_mounts
from stowage_core.syscalls import birth_time

UID, GID = 4711, 4712
OWNER = Ownership("4711", "4712", 0o750, UID, GID)
RUN = RunName("ann", "sft", "r1")


class Lab:
    """A host with a layout whose runs are in a directory of *disk*."""

    def __init__(self, disk: Path, home: Path) -> None:
        self.places = Places.under(str(home))
        self.runs = disk / "runs"
        self.runs.mkdir()
        self.runs.chmod(0o755)
        self.record()

    def record(self, **changes: Any) -> None:
        fd = os.open(self.runs, os.O_RDONLY)
        try:
            filesystem = mounts.identify(fd, mounts.read()).to_json()
            mount = mounts.of_fd(fd, mounts.read())
        finally:
            os.close(fd)
        one = {"path": str(self.runs), "override": True, "require_mount": False}
        one.update(mount_point=mount.point, filesystem=filesystem, **changes)
        layout = {
            "root": "/srv/none",
            "volume_root": None,
            "environment_prefix": "STOWAGE_",
            "locations": {"runs": one},
        }
        records.write(self.places.layout_json, layout)

    def at(self, *names: str) -> Path:
        return self.runs.joinpath(*names)

    @property
    def path(self) -> Path:
        return self.at(*RUN)

    def make(
        self,
        attempt: str | int | None = None,
        run: RunName = RUN,
        differences: Differences | None = None,
        **more: Any,
    ) -> Outcome:
        wanted = {"team": "vision", "ownership": OWNER, **more}
        return run_directories.make(self.places, Request(run, attempt=attempt, **wanted), differences or Differences())

    def remove(self, run: RunName = RUN, differences: Differences | None = None, **more: Any) -> list[str]:
        found = Differences() if differences is None else differences
        return removal.remove(self.places, run, found, **{"patience_s": 0, **more})

    def fill(self, files: int = 3) -> None:
        for number in range(files):
            file = self.at(*RUN, "work", f"f{number}")
            file.write_bytes(b"x" * 100)
            os.chown(file, UID, GID)

    def trash(self) -> list[str]:
        trash = self.at(".stowage-trash")
        return sorted(f"{part}/{name}" for part in os.listdir(trash) for name in os.listdir(trash / part))

    def stamped(self) -> dict[str, str]:
        return {name: stamp.team for name, stamp in stamps.load_all(self.places).items()}


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Lab:
    return Lab(disk, tmp_path)


def owned(path: Path) -> tuple[int, int, int]:
    status = os.lstat(path)
    assert stat.S_ISDIR(status.st_mode)
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def identity(path: Path) -> tuple[int, int | None]:
    """Return what tells a directory from another one: ext4 gives the number of an inode again at once."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.fstat(fd).st_ino, birth_time(fd)
    finally:
        os.close(fd)


def refused(work: Callable[[], object]) -> str:
    with pytest.raises(StowageError) as error:
        work()
    return str(error.value)


# -- Making


def test_a_run_with_its_first_attempt(lab: Lab) -> None:
    differences = Differences()
    made = lab.make("next", differences=differences)
    for names in (RUN[:1], RUN[:2]):
        assert owned(lab.at(*names)) == (0, 0, 0o755)
    for below in ("", "work", "attempts", "attempts/1", "attempts/1/out", "attempts/1/logs"):
        assert owned(lab.path / below) == (UID, GID, 0o750)
    assert made.to_json() == {
        "run": "ann/sft/r1",
        "team": "vision",
        "path": str(lab.path),
        "work": f"{lab.path}/work",
        "attempt": 1,
        "out": f"{lab.path}/attempts/1/out",
        "logs": f"{lab.path}/attempts/1/logs",
    }
    assert lab.stamped() == {"ann/sft/r1": "vision"}
    assert differences.actions == [
        f"make directory {path}" for path in (lab.at("ann"), lab.at("ann", "sft"), lab.path, lab.path / "attempts/1")
    ]
    assert owned(lab.at(".stowage-trash")) == (0, 0, 0o700)
    assert sorted(os.listdir(lab.at(*RUN[:2]))) == ["r1"], "nothing half made is left"


@pytest.mark.parametrize("attempt", [None, "next", 1, 5])
def test_a_run_does_what_was_predicted(lab: Lab, attempt: str | int | None) -> None:
    predicted, done, again = Differences(check_mode=True), Differences(), Differences()
    foretold = lab.make(attempt, differences=predicted)
    assert os.listdir(lab.runs) == []
    assert lab.make(attempt, differences=done).to_json() == foretold.to_json()
    assert predicted.diff() == done.diff() and predicted.actions == done.actions and done.changed
    foretold = lab.make(attempt, differences=(predicted := Differences(check_mode=True)))
    assert lab.make(attempt, differences=again).to_json() == foretold.to_json()
    assert predicted.diff() == again.diff() and predicted.actions == again.actions
    assert again.changed == (attempt == "next"), "the next attempt is another one each time, a number is the same"


def test_attempts_are_numbered_on(lab: Lab) -> None:
    assert [lab.make(attempt).attempt for attempt in ("next", 7, "next", 7, None, "next")] == [1, 7, 8, 7, None, 9]
    (lab.path / "attempts" / "30").touch()
    (lab.path / "attempts" / "notes").mkdir()
    assert lab.make("next").attempt == 31, "whatever has a number has taken it"
    message = refused(lambda: lab.make(30))
    assert message.startswith(
        f"{lab.path}/attempts/30: something else than a directory of this filesystem is in the way"
    )


def _numbers(lab: Lab, count: int, told: Any) -> None:
    told.put([lab.make("next").attempt for _number in range(count)])


def test_attempts_that_are_made_at_once_differ(lab: Lab) -> None:
    context = get_context("fork")
    told = context.Queue()
    makers = [context.Process(target=_numbers, args=(lab, 5, told)) for _number in range(4)]
    for maker in makers:
        maker.start()
    numbers = [number for _maker in makers for number in told.get(timeout=60)]
    for maker in makers:
        maker.join()
    assert sorted(numbers) == list(range(1, 21))
    assert lab.stamped() == {"ann/sft/r1": "vision"}


@pytest.mark.parametrize("on_nfs", [False, True])
def test_the_owner_may_be_faster(lab: Lab, monkeypatch: pytest.MonkeyPatch, on_nfs: bool) -> None:
    lab.make()
    rename = run_directories.rename_directory

    def meanwhile(parent: int, before: bytes, other: int, after: bytes) -> None:
        with suppress(FileExistsError):
            (lab.path / "attempts" / "1").mkdir()
            (lab.path / "attempts" / "1" / "file").touch()
        rename(parent, before, other, after)

    monkeypatch.setattr(run_directories, "rename_directory", meanwhile)
    if on_nfs:
        monkeypatch.setattr(syscalls, "rename_noreplace", unknown_renaming)
    differences = Differences()
    assert lab.make("next", differences=differences).attempt == 2
    assert sorted(os.listdir(lab.path / "attempts")) == ["1", "2"] and len(differences.actions) == 1


def test_what_is_missing_in_a_run_is_made_and_the_rest_left(lab: Lab) -> None:
    lab.make("next")
    (lab.path / "work").rmdir()
    (lab.path / "attempts" / "1" / "logs").rmdir()
    (lab.path / "attempts" / "1").chmod(0o700)
    differences = Differences()
    lab.make(1, differences=differences)
    assert differences.actions == [f"make directory {lab.path}/work", f"make directory {lab.path}/attempts/1/logs"]
    assert owned(lab.path / "attempts" / "1") == (UID, GID, 0o700), "what is below a run is its owner's matter"


def unknown_renaming(*_names: object) -> None:
    raise OSError(22, "Invalid argument")


def test_no_renaming_that_keeps_what_is_there_as_on_nfs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "rename_noreplace", unknown_renaming)
    assert [lab.make("next").attempt for _number in range(2)] == [1, 2]
    assert owned(lab.path / "attempts" / "2" / "out") == (UID, GID, 0o750)


# -- Taking in


def test_a_run_that_was_made_by_other_means(lab: Lab) -> None:
    lab.path.mkdir(parents=True)
    os.chown(lab.path, UID, 0)
    (lab.path / "checkpoint").write_bytes(b"x")
    differences = Differences()
    lab.make(differences=differences)
    assert differences.actions[-1] == f"stamp {lab.path} with team vision", "when all else is done"
    assert lab.stamped() == {"ann/sft/r1": "vision"} and (lab.path / "checkpoint").exists()
    assert owned(lab.path) == (UID, GID, 0o750) and owned(lab.path / "work") == (UID, GID, 0o750)
    lab.make(differences=(again := Differences()))
    assert not again.changed


def test_a_directory_that_was_made_again_is_another_run(lab: Lab) -> None:
    lab.make(team="speech")
    subprocess.run(["rm", "-rf", lab.path], check=True)
    time.sleep(0.02)
    lab.path.mkdir()
    os.chown(lab.path, UID, GID)
    lab.make()
    assert lab.stamped() == {"ann/sft/r1": "vision"}


# -- Refused


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda lab: os.chown(lab.path, 4713, GID), "{run}: belongs to 4713, and not to 4711; give its owner, or"),
        (lambda lab: os.chown(lab.path / "work", 0, 0), "{run}/work: belongs to root, and not to 4711"),
        (lambda lab: os.chown(lab.at("ann"), UID, 0), "{runs}/ann: belongs to 4711, who could put another directory"),
        (lambda lab: lab.at("ann", "sft").chmod(0o775), "{runs}/ann/sft: others than root can write to it (mode 0775)"),
        (lambda lab: os.chown(lab.runs, UID, 0), "{runs}: belongs to 4711, who could put another directory"),
        (lambda lab: lab.runs.chmod(0o2775), "{runs}: others than root can write to it (mode 2775)"),
        (lambda lab: os.chown(lab.runs.parent, UID, 0), "{disk}: belongs to 4711, who could put another directory"),
        (lambda lab: lab.runs.parent.chmod(0o775), "{disk}: others than root can write to it (mode 0775)"),
        (lambda lab: swap(lab.path / "attempts"), "{run}/attempts: something else than a directory of this filesystem"),
        (lambda lab: swap(lab.at("ann", "sft")), "{runs}/ann/sft: something else than a directory of this filesystem"),
        (lambda lab: lab.at(".stowage-trash").chmod(0o755), "{runs}/.stowage-trash: must be root's alone (0700)"),
    ],
)
def test_what_is_not_as_it_must_be(lab: Lab, spoil: Callable[[Lab], object], message: str) -> None:
    lab.make()
    spoil(lab)
    wanted = message.format(run=lab.path, runs=lab.runs, disk=lab.runs.parent)
    for attempt in (None, "next"):
        found = refused(lambda attempt=attempt: lab.make(attempt))
        assert found.startswith(wanted), found


@pytest.mark.parametrize("above", [0, 1, 2])
def test_nothing_is_removed_that_others_could_have_put_there(lab: Lab, above: int) -> None:
    lab.make()
    path = lab.at(*RUN[:above])
    os.chown(path, UID, GID)
    assert refused(lab.remove).startswith(f"{path}: belongs to 4711, who could put another directory in a run's place")
    os.chown(path, 0, 0)
    lab.remove()


def test_a_sticky_directory_above_keeps_what_is_roots(lab: Lab) -> None:
    lab.runs.parent.chmod(0o1777)
    lab.make()
    assert lab.path.exists()


def test_where_root_is_not_root(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a server that squashes root: what is made would be somebody else's until it has its owner."""
    opened = run_directories.open_beneath

    def squashed(parent: int, name: bytes, *more: Any) -> int:
        fd = opened(parent, name, *more)
        if name.startswith(b".stowage-new-"):
            os.fchown(fd, 65534, 65534)
        return fd

    monkeypatch.setattr(run_directories, "open_beneath", squashed)
    assert f"{lab.runs}: what root makes in it is not root's" in refused(lab.make)
    assert os.listdir(lab.runs) == [".stowage-trash"] and lab.stamped() == {}


def swap(path: Path) -> None:
    """Let a symbolic link to what was there be in its place."""
    path.rename(path.with_name("away"))
    path.symlink_to("away")


def test_a_stamp_never_changes(lab: Lab) -> None:
    lab.make()
    message = (
        "run ann/sft/r1: is stamped with team vision, and a stamp never changes by itself; give team: vision, or set"
    )
    assert refused(lambda: lab.make(team="speech")).startswith(message)
    assert lab.stamped() == {"ann/sft/r1": "vision"}


def test_a_wrong_team_is_corrected_on_demand(lab: Lab) -> None:
    lab.make()
    for differences in (predicted := Differences(check_mode=True), done := Differences(), again := Differences()):
        lab.make(team="speech", accept_new_team=True, differences=differences)
    assert (
        predicted.diff()
        == done.diff()
        == {"before": {f"team of run {RUN}": "vision"}, "after": {f"team of run {RUN}": "speech"}}
    )
    assert predicted.actions == done.actions == [f"stamp {lab.path} with team speech"] and not again.changed
    assert lab.stamped() == {"ann/sft/r1": "speech"}
    assert [(event["object"], event["reason"]) for event in events.read(lab.places)] == [
        ("run/ann/sft/r1", "RunTeamChanged")
    ]


@pytest.mark.parametrize("attempt", [None, 1])
def test_what_is_refused_is_not_stamped_before(lab: Lab, attempt: int | None) -> None:
    """Else the right team could not be given to the next call."""
    there = lab.path / ("work" if attempt is None else "attempts/1/out")
    there.mkdir(parents=True)
    for path in (lab.path, lab.path / "attempts", lab.path / "attempts" / "1"):
        if path.exists():
            os.chown(path, UID, GID)
    before = owned(lab.path)
    assert f"{there}: belongs to root" in refused(lambda: lab.make(attempt, team="wrong"))
    assert lab.stamped() == {} and owned(lab.path) == before and lab.path.joinpath("work").exists() == (attempt is None)


def test_a_damaged_record_of_stamps(lab: Lab) -> None:
    records.write(stamps.record_path(lab.places, RUN), {})
    assert "not the stamp of a run" in refused(lab.make)
    assert not lab.path.exists()


def test_no_layout(lab: Lab) -> None:
    os.unlink(lab.places.layout_json)
    assert refused(lab.make) == "runs: this host has no storage layout; roll the host out with host_storage_root first"


def test_the_disk_is_missing(small_disk: Callable[..., SmallDisk], tmp_path: Path) -> None:
    one = small_disk("ext4")
    lab = Lab(one.path, tmp_path)
    lab.make()
    one.unmount()
    assert refused(lab.make) == f"{lab.runs}: does not exist; mount its disk or roll the layout out again"
    lab.runs.mkdir()
    assert "another one is in its place; mount its disk" in refused(lab.make)
    assert os.listdir(lab.runs) == []
    lab.runs.rmdir()


def test_a_mount_that_the_host_is_to_have(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fstab = tmp_path / "fstab"
    fstab.write_text(f"LABEL=x {lab.runs} ext4 defaults 0 0\n")
    monkeypatch.setattr(lasting_mounts, "FSTAB", str(fstab))
    assert refused(lab.make) == f"{lab.runs}: {lab.runs} is in {fstab} and is not mounted; mount it"


def test_a_shared_filesystem_that_another_host_measures(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location.mount_table, "is_shared", lambda _fstype: True)
    message = refused(lab.make)
    assert "which other hosts see too, and teams are stamped on the host that measures it" in message
    assert "measure_shared (daemon_shared_measured_by)" in message
    records.write(lab.places.daemon_json, {"measure_shared": True})
    lab.make("next")
    assert lab.stamped() == {"ann/sft/r1": "vision"} and not lab.at(".stowage-trash").exists()
    assert "no host sees whether another one uses it; remove it yourself" in refused(lab.remove)
    subprocess.run(["rm", "-r", lab.path], check=True)
    lab.remove(differences=(differences := Differences()))
    assert lab.stamped() == {} and differences.changed


# -- Removing


def test_a_whole_run_goes(lab: Lab) -> None:
    lab.make("next")
    lab.fill()
    predicted, done, again = Differences(check_mode=True), Differences(), Differences()
    for differences in (predicted, done, again):
        assert lab.remove(differences=differences) == []
        assert lab.path.exists() == (differences is predicted)
    assert predicted.diff() == done.diff() and predicted.actions == done.actions == [f"remove {lab.path}"]
    assert not again.changed
    assert lab.stamped() == {} and lab.trash() == [] and os.listdir(lab.at("ann")) == ["sft"]
    assert [(event["object"], event["reason"]) for event in events.read(lab.places)] == [
        ("run/ann/sft/r1", "RunRemoved")
    ]


def test_what_stowage_has_not_made_stays(lab: Lab) -> None:
    lab.path.mkdir(parents=True)
    assert "has no stamp: it was not made by Stowage; take it in first" in refused(lab.remove)
    os.chown(lab.path, UID, GID)
    lab.make()
    lab.path.rename(lab.at("ann", "sft", "moved"))
    lab.path.mkdir()
    assert "is another one than was stamped" in refused(lab.remove)
    assert lab.path.exists()


def test_the_stamp_of_what_is_gone_goes(lab: Lab) -> None:
    lab.make()
    subprocess.run(["rm", "-r", lab.path], check=True)
    predicted, done = Differences(check_mode=True), Differences()
    for differences in (predicted, done):
        lab.remove(differences=differences)
    assert done.actions == predicted.actions == ["forget the stamp of ann/sft/r1"] and lab.stamped() == {}


@pytest.mark.parametrize("check_mode", [True, False])
@pytest.mark.parametrize(
    ("code", "evidence"),
    [
        ("os.chdir(copy + '/attempts'); ready()", "working directory"),
        ("kept = open(copy + '/work/f0'); ready()", "f0"),
        ("own_namespace(); mount(copy, '/mnt', '', 4096); ready()", "mounted at /mnt"),
    ],
)
def test_a_run_in_use_stays(lab: Lab, code: str, evidence: str, check_mode: bool) -> None:
    lab.make("next")
    lab.fill()
    inode = os.stat(lab.path).st_ino
    with process(code, str(lab.path)):
        message = refused(lambda: lab.remove(differences=Differences(check_mode)))
        assert message.startswith(f"{lab.path}: is in use: ") and "; end what uses it, then remove it again" in message
        assert evidence in message, message
    assert os.stat(lab.path).st_ino == inode and lab.stamped() and lab.trash() == []
    lab.remove()
    assert not lab.path.exists()


NUMBERED = """
same_disk = copy.split("/ann/")[0] + "/bob/42"
os.makedirs(same_disk)
kept = open(same_disk + "/removed", "x")
os.unlink(same_disk + "/removed")
own_namespace()
mount("none", "/media", "tmpfs", 0)
for name in ("snapshots/42/fs", "snapshots/43/fs", "snapshots/43/work", "at"):
    os.makedirs("/media/" + name)
os.chdir("/media/snapshots")
mount("overlay", "/media/at", "overlay", 0, "lowerdir=%s,upperdir=/media/snapshots/43/fs,workdir=43/work")
os.chdir("/")
ready()
"""


@pytest.mark.parametrize("lower", ["/media/snapshots/42/fs", "42/fs"])
def test_a_run_is_no_layer_that_has_its_number(lab: Lab, lower: str) -> None:
    """containerd numbers its snapshots, too."""
    run = RUN._replace(run_id="42")
    lab.make(run=run)
    with process(NUMBERED % lower, str(lab.at(*run))):
        lab.remove(run)
    assert not lab.at(*run).exists()


def test_a_run_that_is_an_overlay_s_layer_stays(lab: Lab) -> None:
    run = RUN._replace(run_id="42")
    lab.make(run=run)
    code = """
own_namespace()
mount("none", "/media", "tmpfs", 0)
os.mkdir("/media/other")
os.mkdir("/media/at")
os.chdir(os.path.dirname(copy))
mount("overlay", "/media/at", "overlay", 1, "lowerdir=42/work:/media/other")
os.chdir("/")
ready()
"""
    with process(code, str(lab.at(*run))):
        assert "has the layer 42/work" in refused(lambda: lab.remove(run))
    lab.remove(run)


@pytest.mark.parametrize(
    ("worker_of", "run_of", "is_held"),
    [("r1", "", True), ("finetune", "ann/sft/r1", True), ("r1", "bob/sft/r1", False), ("finetune", "", False)],
)
def test_a_run_whose_drives_are_pinned_stays(lab: Lab, worker_of: str, run_of: str, is_held: bool) -> None:
    lab.make()
    source = lab.at("drive")
    source.mkdir()
    use = Use("ml", "d", 0, str(source), "", pins.READ_ONLY, volume="v" if run_of else "", run_of=run_of)
    fd = os.open(source, os.O_RDONLY)
    try:
        pin = pinning.hold(lab.places, use, fd, run=worker_of, worker="w0", seconds=60)
    finally:
        os.close(fd)
    try:
        if is_held:
            assert refused(lab.remove).startswith(f"{lab.path}: is in use: pin {worker_of}/1 is held")
            records.write(pin.record_path(lab.places), {})
            assert "its record cannot be used" in refused(lab.remove)
        else:
            lab.remove()
    finally:
        pinning.release(lab.places, worker_of, 1)
    lab.remove()
    assert not lab.path.exists()


@pytest.mark.parametrize("below", ["", "work/deep"])
def test_what_is_claimed_for_something_else_stays(lab: Lab, below: str) -> None:
    lab.make()
    place = lab.path / below
    place.mkdir(exist_ok=True)
    fd = os.open(place, os.O_RDONLY)
    try:
        mark = owner.claim(fd, "tier", "chat/0", "1", "gpu-01")
        assert "bears an owner mark" in refused(lab.remove)
        owner.release(fd, mark)
    finally:
        os.close(fd)
    lab.remove()
    assert not lab.path.exists()


def test_the_source_of_a_drive_stays(lab: Lab) -> None:
    lab.make()
    sources = [{"node_scope": "local-any", "path": f"{lab.path}/work", "mount_path": "/d", "mode": "ReadWrite"}]
    (entry,) = check_drives([{"metadata": {"name": "d"}, "spec": {"sources": sources}}])
    path = os.path.join(lab.places.drives_dir, "ml.json")
    records.write(path, {"workspace": "ml", "host": "gpu-01", "drives": [{**entry, "identity": "1"}]})
    assert "in use: drive ml/d has its source in it" in refused(lab.remove)
    records.remove(path)
    lab.remove()
    assert not lab.path.exists()


def test_a_dead_server_behind_the_source_of_a_drive_holds_up_no_removal(lab: Lab, tmp_path: Path) -> None:
    lab.make()
    dead = tmp_path / "dead"
    dead.mkdir()
    (tmp_path / "scratch").symlink_to(dead)
    sources = [{"node_scope": "local-any", "path": f"{tmp_path}/scratch/d", "mount_path": "/d", "mode": "ReadWrite"}]
    (entry,) = check_drives([{"metadata": {"name": "d"}, "spec": {"sources": sources}}])
    path = os.path.join(lab.places.drives_dir, "ml.json")
    records.write(path, {"workspace": "ml", "host": "gpu-01", "drives": [{**entry, "identity": "1"}]})
    with hung_mount(dead, "server:/scratch"):
        removing = get_context("fork").Process(target=lambda: lab.remove(look=sees_nothing))
        removing.start()
        removing.join(20)
        removing.kill()
        removing.join()
    assert removing.exitcode == 0 and not lab.path.exists()


@pytest.fixture
def alias(lab: Lab, request: pytest.FixtureRequest) -> str:
    """Another way to the run."""
    other = lab.runs.parent / "other"
    if request.param == "link":
        other.symlink_to(lab.path)
        return str(other)
    other.mkdir()
    if request.param == "mount of a part":
        lab.path.mkdir(parents=True)
        os.chown(lab.path, UID, GID)
    shown = lab.path if request.param == "mount of a part" else lab.runs
    subprocess.run(["mount", "--bind", shown, other], check=True)  # as a moved location leaves it
    return str(other) if shown == lab.path else f"{other}/{RUN}"


@pytest.mark.parametrize("alias", ["link", "mount of runs", "mount of a part"], indirect=True)
@pytest.mark.parametrize("held", ["drive", "pin"])
def test_what_is_kept_for_others_is_known_by_any_name(lab: Lab, alias: str, held: str) -> None:
    lab.make()
    path = f"{alias}/work"
    if held == "drive":
        sources = [{"node_scope": "local-any", "path": path, "mount_path": "/d", "mode": "ReadWrite"}]
        (entry,) = check_drives([{"metadata": {"name": "d"}, "spec": {"sources": sources}}])
        record = os.path.join(lab.places.drives_dir, "ml.json")
        records.write(record, {"workspace": "ml", "host": "gpu-01", "drives": [{**entry, "identity": "1"}]})
        assert "in use: drive ml/d has its source in it" in refused(lambda: lab.remove(look=sees_nothing))
        return
    aside = lab.at("aside")
    aside.mkdir()
    fd = os.open(aside, os.O_RDONLY)
    try:
        pinning.hold(lab.places, Use("ml", "d", 0, path, "", pins.READ_ONLY), fd, run="tune", worker="w0", seconds=60)
    finally:
        os.close(fd)
    try:
        assert "in use: pin tune/1 is held" in refused(lambda: lab.remove(look=sees_nothing))
    finally:
        pinning.release(lab.places, "tune", 1)
    assert lab.path.exists()


def test_others_make_runs_while_one_is_judged(lab: Lab) -> None:
    """However many files it has: of one user's removal nobody else is to notice anything."""
    lab.make()
    lab.fill()
    before = identity(lab.path)
    done: list[str] = []

    def step(now: str) -> None:
        if now in ("unused", "aside", "unused aside", "write leases", "emptying"):
            with runs_lock(lab.places, timeout=0):
                pass
            lab.make("next", run=RunName("bob", "sft", f"r{len(done)}"))
            done.append(now)
            assert len(lab.trash()) == (now != "unused"), "nobody puts it back meanwhile"
            if now == "aside":
                with try_aside_lock(lab.places, trash.key_of(RUN)) as free:
                    assert not free

    lab.remove(step=step)
    assert done[:4] == ["unused", "aside", "unused aside", "write leases"] and "emptying" in done
    assert list(lab.stamped()) == [f"bob/sft/r{number}" for number in range(len(done))] and lab.trash() == []
    lab.make()
    assert identity(lab.path) != before


def test_what_another_call_empties_is_left_to_it(lab: Lab) -> None:
    lab.make()
    lab.fill()
    looked: list[str] = []

    def step(now: str) -> None:
        if now == "emptying" and not looked:
            looked.append(now)
            differences = Differences()
            assert lab.remove(differences=differences) == [] and not differences.changed
            assert len(lab.trash()) == 1 and lab.stamped() == {"ann/sft/r1": "vision"}, "the stamp goes last"

    lab.remove(step=step)
    assert looked and lab.trash() == [] and lab.stamped() == {}


@pytest.mark.parametrize("when", ["aside", "unused aside"])
def test_what_comes_into_use_meanwhile_is_put_back(lab: Lab, when: str) -> None:
    lab.make()
    lab.fill()
    held: list[int] = []
    work = os.open(lab.path / "work", os.O_RDONLY)

    def step(now: str) -> None:
        if now == when and not held:
            held.append(os.open("f1", os.O_RDONLY, dir_fd=work))

    try:
        message = refused(lambda: lab.remove(step=step, look=sees_nothing))
    finally:
        for fd in (work, *held):
            os.close(fd)
    assert "is in use: " in message
    assert sorted(os.listdir(lab.path / "work")) == ["f0", "f1", "f2"] and lab.trash() == [] and lab.stamped()


def sees_nothing(subjects: Any, *_more: Any, **_named: Any) -> dict[str, list[str]]:
    """A look to which the write leases have to make up for everything."""
    return {subject.name: [] for subject in subjects}


def test_it_waits_for_a_short_use(lab: Lab) -> None:
    lab.make()
    looks: list[int] = []

    def look(subjects: Any, *_more: Any, **_named: Any) -> dict[str, list[str]]:
        looks.append(1)
        return {subject.name: ["stowaged measures it"] if len(looks) < 3 else [] for subject in subjects}

    aside(lab)
    lab.remove(look=look, patience_s=20, differences=(predicted := Differences(check_mode=True)))
    assert predicted.actions == [f"put back {lab.path}", f"remove {lab.path}"] and len(looks) == 3
    looks.clear()
    lab.remove(look=look, patience_s=20, differences=(done := Differences()))
    assert not lab.path.exists() and len(looks) == 4 and done.actions == predicted.actions


def test_what_cannot_be_deleted_is_told_and_goes_later(lab: Lab) -> None:
    lab.make()
    lab.fill()
    lasting = lab.path / "work" / "f1"
    subprocess.run(["chattr", "+i", lasting], check=True)
    try:
        message = refused(lab.remove)
        assert "what is left of the run is there: see to it, then remove it again" in message
        assert not lab.path.exists() and lab.stamped(), "never half emptied by its name; the stamp goes last"
        lab.make()
        lab.make(run=RUN._replace(run_id="r2"))
        warnings = lab.remove(RUN._replace(run_id="r2"))
        assert len(warnings) == 1 and "/condemned/" in warnings[0]
    finally:
        for found in lab.runs.glob("**/f1"):
            subprocess.run(["chattr", "-i", found], check=True)
    lab.remove(RUN._replace(run_id="r3"))
    assert lab.trash() == [] and lab.stamped() == {"ann/sft/r1": "vision"}, "that of the new run"


def damage(lab: Lab, run: RunName) -> None:
    Path(stamps.record_path(lab.places, run)).write_text("{")


def test_damaged_stamps_of_others_hold_nothing_up(lab: Lab) -> None:
    bob = RunName("bob", "sft", "r1")
    lab.make()
    lab.make(run=bob)
    damage(lab, RUN)
    differences = Differences()
    assert lab.remove(run=bob, differences=differences) == []
    assert differences.actions == [f"remove {lab.at(*bob)}"] and lab.trash() == []
    assert stamps.stamp_of(lab.places, bob) is None
    lab.make(run=bob)
    assert lab.make(run=bob).warnings == []


def test_what_is_condemned_goes_whosever_it_was(lab: Lab) -> None:
    lab.make()
    lab.fill()
    aside(lab, "condemned")
    damage(lab, RUN)
    (warning,) = lab.remove(RunName("bob", "sft", "r1"))
    assert "/condemned/" in warning and "the stamp of that run may stay: " in warning and "not valid JSON" in warning
    assert lab.trash() == []


def test_a_stamp_that_is_damaged_while_its_run_is_removed(lab: Lab) -> None:
    lab.make()
    differences = Differences()

    def step(now: str) -> None:
        if now == "condemned":
            damage(lab, RUN)

    assert "not valid JSON" in refused(lambda: lab.remove(differences=differences, step=step))
    assert differences.actions == [f"remove {lab.path}"] and lab.trash() == []
    assert "not valid JSON" in refused(lab.make), "it is not written over"


def test_an_action_is_told_when_it_is_done(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.make()
    subprocess.run(["rm", "-r", lab.path], check=True)

    def fails(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(removal.stamps, "remove", fails)
    differences = Differences()
    with pytest.raises(OSError):
        lab.remove(differences=differences)
    assert differences.actions == [] and not differences.changed


def test_a_full_disk(small_disk: Callable[..., SmallDisk], tmp_path: Path) -> None:
    lab = Lab(small_disk("ext4").path, tmp_path)
    lab.make()
    with suppress(OSError), open(lab.path / "work" / "large", "wb") as stream:
        while True:
            stream.write(b"x" * (1 << 16))
    lab.remove()
    assert not lab.path.exists() and lab.trash() == []


# -- Killed


@pytest.mark.parametrize("step", [one for one in STEPS if one != "put back"])
@pytest.mark.parametrize("then", ["make", "remove", "remove another"])
def test_killed_while_it_is_removed(lab: Lab, step: str, then: str) -> None:
    lab.make("next")
    lab.fill(600)
    before = identity(lab.path)
    killed(step, lambda kill: lab.remove(step=kill))
    judged = step not in ("unused", "aside", "unused aside", "write leases")
    if then == "make":
        lab.make()
        assert (identity(lab.path) == before) == (not judged)
        assert len(os.listdir(lab.path / "work")) == (0 if judged else 600), "whole, or another one"
        assert lab.stamped() == {"ann/sft/r1": "vision"}
    elif then == "remove another":
        lab.remove(RUN._replace(run_id="r2"))
        assert lab.trash() == []
        assert lab.path.exists() == (not judged) and (judged or len(os.listdir(lab.path / "work")) == 600)
    lab.remove()
    assert not lab.path.exists() and lab.stamped() == {} and lab.trash() == []


def aside(lab: Lab, step: str = "aside", run: RunName = RUN) -> None:
    """Leave a run as a removal does that is killed."""
    killed(step, lambda kill: lab.remove(run, step=kill))


@pytest.mark.parametrize("step", ["aside", "condemned", "emptied"])
@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("work", ["make", "make another", "remove", "remove another"])
def test_what_lies_aside_is_predicted(lab: Lab, step: str, gone: int, work: str) -> None:
    lab.make("next")
    aside(lab, step)
    for number in range(gone):
        lab.at(*RUN[: 2 - number]).rmdir()
    run = RUN if "another" not in work else RunName("bob", "sft", "r2")
    results = []
    for differences in (Differences(check_mode=True), Differences()):
        before = sorted(lab.runs.rglob("*"))
        made = lab.make("next", run, differences).to_json() if "make" in work else lab.remove(run, differences)
        results.append((made, differences.changed, differences.diff(), sorted(differences.actions)))
        assert not differences.check_mode or sorted(lab.runs.rglob("*")) == before
    assert results[0] == results[1]
    if step == "aside":
        assert f"put back {lab.path}" in results[0][3]
        assert work == "remove" or (lab.path / "attempts" / "1" / "out").is_dir()
        assert work != "make" or results[0][0]["attempt"] == 2
        assert work == "remove" or owned(lab.at("ann")) == owned(lab.at("ann", "sft")) == (0, 0, 0o755)


@pytest.mark.parametrize("check_mode", [True, False])
def test_no_run_takes_the_place_of_one_that_lies_aside(lab: Lab, check_mode: bool) -> None:
    lab.make()
    aside(lab)
    Path(stamps.record_path(lab.places, RUN)).unlink()
    message = refused(lambda: lab.make(differences=Differences(check_mode)))
    assert message.startswith(f"run {RUN}: lies aside, where a removal that was killed has left it: {lab.runs}/")
    assert "is of no run that is stamped" in message and not lab.path.exists()
    assert len(lab.make(run=RUN._replace(run_id="r2")).warnings) == 1


def test_a_power_failure_after_a_removal(small_disk: Callable[..., SmallDisk], tmp_path: Path) -> None:
    """A run that comes back has its stamp still: what the disk has at any step is copied, as it would be found then."""
    one = small_disk("ext4")
    lab = Lab(one.path, tmp_path)
    lab.make()
    lab.fill()
    os.sync()
    kept: dict[str, tuple[Path, dict[str, str]]] = {}

    def step(now: str) -> None:
        image = kept[now] = (tmp_path / f"{len(kept)}.image", lab.stamped())
        shutil.copyfile(one.image, image[0])

    lab.remove(step=step)
    step("after")
    one.unmount()
    for now, (image, stamped) in kept.items():
        subprocess.run(["mount", "-o", "loop", image, one.path], check=True)
        try:
            trashed, is_there = lab.trash(), lab.path.exists()
            assert stamped or not (is_there or trashed), f"{now}: it is back, and nobody knows its team"
            assert not is_there or len(os.listdir(lab.path / "work")) == 3, f"{now}: whole, if it has its name"
        finally:
            subprocess.run(["umount", one.path], check=True)
    assert {"aside", "unstamped", "after"} <= set(kept)


@pytest.mark.parametrize("step", ["mkdir", "stamp", "give", "rename"])
def test_killed_while_it_is_made(lab: Lab, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.make(run=RUN._replace(run_id="r0"))

    def work(kill: Callable[[str], None]) -> None:
        def before(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def killing(*arguments: Any, **named: Any) -> Any:
                kill(name)
                return function(*arguments, **named)

            return killing

        monkeypatch.setattr(run_directories.stamps, "put", before("stamp", stamps.put))
        monkeypatch.setattr(run_directories, "rename_directory", before("rename", run_directories.rename_directory))
        monkeypatch.setattr(run_directories, "_give", before("give", run_directories._give))
        monkeypatch.setattr(run_directories.selinux, "label", before("mkdir", lambda _fd: False))
        lab.make("next")

    killed(step, work)
    assert not lab.path.exists(), "nobody finds what is not whole"
    assert len(os.listdir(lab.at(*RUN[:2]))) == 2
    assert lab.make("next").attempt == 1
    assert sorted(os.listdir(lab.at(*RUN[:2]))) == ["r0", "r1"]
    assert owned(lab.path / "attempts" / "1" / "out") == (UID, GID, 0o750)
    assert lab.stamped()["ann/sft/r1"] == "vision"
