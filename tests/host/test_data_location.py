# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data location on real filesystems: marks, disks that are away or replaced, hosts that are renamed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts, records
from stowage_core.data_location import adoption
from stowage_core.data_location import change as data_location_change
from stowage_core.data_location import former as former_locations
from stowage_core.data_location import locations as data_locations
from stowage_core.data_location.change import SYSTEM_DISK_WARNING, Choice, Outcome
from stowage_core.data_location.locations import NotThere
from stowage_core.data_location.place import SHARED_RULE, check_place
from stowage_core.differences import Differences
from stowage_core.drives import host as drives_host
from stowage_core.drives import recorded as drive_records
from stowage_core.drives.declared import check_lists
from stowage_core.errors import Refusal, StowageError
from stowage_core.owner import XATTR, Registry, claim, read_mark
from stowage_core.places import Places
from stowage_core.runs import pinning, pins
from stowage_core.services import systemd_units
from stowage_core.services.lasting_mounts import LastingMounts

GIB = 1 << 30


class Host:
    """A host with places of its own. Every operation goes through the cycle: predict, do, repeat, predict again."""

    def __init__(self, places: Places, name: str = "gpu-01") -> None:
        self.places = places
        self.name = name
        self.actions: list[str] = []

    def choose(self, path: Path | str, **choice: Any) -> Outcome:
        wanted = Choice(**{"path": str(path), "max_bytes": 0, "host": self.name, **choice})
        return self._cycle(lambda differences: data_location_change.choose(self.places, wanted, differences))

    def clear(self, *forget: str) -> Outcome:
        return self._cycle(lambda differences: data_location_change.clear(self.places, self.name, forget, differences))

    def declare(self, *drives: dict[str, Any], workspace: str = "vision", manager: str = "") -> drives_host.Outcome:
        lists = check_lists([{"name": workspace, "drives": list(drives)}])
        granted = {workspace: ["/"]}

        def declared(differences: Differences) -> drives_host.Outcome:
            return drives_host.declare(self.places, self.name, lists, manager, differences, granted)

        return self._cycle(declared)

    def _cycle(self, operation: Callable[[Differences], Any]) -> Any:
        runs = []
        for check_mode in (True, False, False, True):
            differences = Differences(check_mode)
            runs.append((operation(differences), differences))
        (_outcome, predicted), (outcome, done), (again, repeated), (_again, last) = runs
        assert predicted.diff() == done.diff()
        assert predicted.actions == done.actions
        assert not repeated.changed, repeated.diff()
        assert not repeated.actions
        assert not last.changed
        assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", str(done.diff()))  # no identity
        self.actions = done.actions
        return outcome

    @property
    def location(self) -> data_locations.DataLocation:
        found = data_locations.load(self.places)
        assert found is not None
        return found

    def identity(self, drive: str, workspace: str = "vision") -> str:
        return {one.name: one.identity for one in drive_records.load(self.places, workspace) or []}[drive]

    def make_copy(self, drive: str, workspace: str = "vision", identity: str = "") -> Path:
        """Make a copy as preparing a drive does."""
        path = Path(self.location.path, "drives", f"{workspace}.{drive}")
        path.mkdir()
        (path / "data").write_text("weights")
        mark(path, "copy", path.name, identity or self.identity(drive, workspace), self.name)
        return path


def mark(path: Path, kind: str, name: str, identity: str, host: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    claim(fd, kind, name, identity, host)
    os.close(fd)


def mark_of(path: Path) -> Any:
    fd = os.open(path, os.O_RDONLY)
    found = read_mark(fd)
    os.close(fd)
    return found


def placed(name: str, path: str = "", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"sources": [{"node_scope": "placed", "path": path}], **spec}}


def tombstone(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "state": "absent"}


def new_host(path: Path, name: str = "gpu-01") -> Host:
    places = Places.under(str(path))
    records.write(places.claims_json, {"claims": {}})  # not lost: otherwise all disks are searched for marks
    return Host(places, name)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return new_host(tmp_path)


def files_below(path: Path) -> dict[str, str]:
    return {str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()}


# -- Choosing


def test_the_folder_is_created_marked_and_root_alone_s(host: Host, disk: Path, fstype: str) -> None:
    outcome = host.choose(disk / "stowage", max_bytes=5 * GIB)
    path = disk / "stowage"
    found = mark_of(path)
    assert (found.kind, found.name, found.host) == ("data-location", str(path), "gpu-01")
    assert (path.stat().st_uid, path.stat().st_mode & 0o7777) == (0, 0o755)
    for part in ("drives", ".stowage", ".stowage/locks", ".stowage-trash/pending", ".stowage-trash/condemned"):
        assert ((path / part).stat().st_uid, (path / part).stat().st_mode & 0o7777) == (0, 0o700)
    record = records.read(host.places.data_location_json)
    assert record == {
        "path": str(path),
        "max_bytes": 5 * GIB,
        "host": "gpu-01",
        "filesystem": {"fstype": fstype, "uuid": found.filesystem_uuid, "source": record["filesystem"]["source"]},
        "identity": found.identity,
    }
    mount = mounts.of_path(str(path), mounts.read())
    assert Registry(host.places).all() == {
        str(path): {
            "kind": "data-location",
            "name": str(path),
            "identity": found.identity,
            "host": "gpu-01",
            "filesystem": found.filesystem_uuid,
            "mounted": [mount.point, mount.root],
        }
    }
    assert outcome.location == host.location
    assert host.actions[0] == f"make directory {path}"


def test_another_limit_changes_the_record_only(host: Host, disk: Path) -> None:
    before = host.choose(disk / "stowage").location
    host.choose(disk / "stowage", max_bytes=GIB)
    assert host.location == replace(before, max_bytes=GIB)
    assert host.actions == [f"write {host.places.data_location_json}"]


def test_symlinks_are_resolved(host: Host, disk: Path) -> None:
    (disk / "link").symlink_to(disk)
    assert host.choose(disk / "link/stowage").location.path == f"{disk}/stowage"


def test_a_folder_with_other_things_in_it_is_accepted(host: Host, disk: Path) -> None:
    (disk / "stowage").mkdir()
    (disk / "stowage/README").write_text("mine")
    host.choose(disk / "stowage")
    assert files_below(disk / "stowage") == {"README": "mine"}


def test_the_missing_parent_is_predicted_in_check_mode_and_refused_in_a_run(host: Host, disk: Path) -> None:
    choice = Choice(str(disk / "a/b/stowage"), 0, "gpu-01")
    outcome = data_location_change.choose(host.places, choice, Differences(check_mode=True))
    assert outcome.warnings[0] == f"path {disk}/a/b/stowage: {disk}/a/b does not exist; taken to be made before a run"
    with pytest.raises(Refusal, match="/a does not exist, and only the last folder is created; mount the disk that"):
        data_location_change.choose(host.places, choice, Differences())
    assert not (disk / "a").exists()


@pytest.mark.parametrize(
    ("uid", "mode", "message"),
    [
        (1000, 0o755, "belongs to user 1000, who could put another folder in its place; chown root"),
        (
            0,
            0o775,
            r"can be written by others than root \(mode 0775\), who could put another folder in its place; chmod",
        ),
        (0, 0o757, r"can be written by others than root \(mode 0757\)"),
        (0, 0o1777, r"can be written by others than root \(mode 1777\)"),
    ],
)
def test_what_others_could_swap_is_refused(host: Host, disk: Path, uid: int, mode: int, message: str) -> None:
    (disk / "theirs").mkdir()
    os.chown(disk / "theirs", uid, 0)
    (disk / "theirs").chmod(mode)
    with pytest.raises(Refusal, match=message):
        host.choose(disk / "theirs")
    if not mode & 0o1000:
        with pytest.raises(Refusal, match=message):
            host.choose(disk / "theirs/stowage")


def test_the_system_disk_is_allowed_with_a_warning(host: Host) -> None:
    system = Path("/var/lib/stowage-data-of-a-test")
    try:
        assert SYSTEM_DISK_WARNING in host.choose(system).warnings
        assert SYSTEM_DISK_WARNING == (
            "this is the system disk: drive copies share its space with the operating system"
        )
    finally:
        shutil.rmtree(system)


def test_a_filesystem_in_memory_is_refused(host: Host, disk: Path) -> None:
    (disk / "memory").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", disk / "memory"], check=True)
    with pytest.raises(Refusal, match="memory is tmpfs, which no disk keeps; choose a folder on a local disk"):
        host.choose(disk / "memory/stowage")


def test_a_read_only_filesystem_is_refused(host: Host, small_disk: Any) -> None:
    new = small_disk("ext4", options="ro")
    with pytest.raises(Refusal, match=r"the filesystem at .* is read-only; choose a folder on another disk"):
        host.choose(new.path / "stowage")


def test_overlaps_are_refused(host: Host, disk: Path) -> None:
    records.write(
        host.places.layout_json, {"locations": {"cache": {"path": f"{disk}/cache"}}, "volume_root": f"{disk}/volumes"}
    )
    (disk / "tier").mkdir()
    (disk / "cache").mkdir()
    (disk / "alias").symlink_to(disk / "cache")
    mark(disk / "tier", "tier", "kv", "t", "gpu-01")
    Registry(host.places).add(f"{disk}/tier", mark_of(disk / "tier"))
    host.declare({"metadata": {"name": "own"}, "spec": {"sources": [{"node": "gpu-01", "path": f"{disk}/set"}]}})
    for path, message in (
        ("cache/x", "it is inside the storage layout's cache"),
        ("alias/x", "it is inside the storage layout's cache"),
        ("volumes", "it is the volume root"),
        ("tier/x", "it is inside the tier"),
        ("tier", "it is the tier"),
        ("cache", "it is the storage layout's cache"),
        ("set", "it is source 0 of drive vision/own,"),
    ):
        with pytest.raises(Refusal, match=message):
            host.choose(disk / path)
    for path in (host.places.etc, f"{host.places.var}/x"):
        with pytest.raises(Refusal, match="Stowage's own"):
            host.choose(path)


# -- Disks that are away, replaced or copied


def test_an_unmounted_disk_is_not_taken_for_an_empty_location(host: Host, small_disk: Any) -> None:
    new = small_disk("ext4")
    host.choose(new.path / "stowage")
    identity = host.location.identity
    new.unmount()
    with pytest.raises(NotThere) as missing:
        data_locations.open_verified(host.location)
    assert missing.value.reason == "missing"
    (new.path / "stowage").mkdir()  # below the mount point: what a program does that does not look
    with pytest.raises(NotThere) as other:
        data_locations.open_verified(host.location)
    assert other.value.reason == "filesystem"
    with pytest.raises(NotThere, match=f"is not mounted here, but .*; bring its disk back.*forget: {identity}"):
        host.choose(new.path / "stowage")
    with pytest.raises(Refusal, match="may hold copies that cannot be seen"):
        host.clear()
    (new.path / "stowage").rmdir()
    new.mount()
    os.close(data_locations.open_verified(host.location))
    host.choose(new.path / "stowage")


def test_another_filesystem_in_its_place_is_refused_until_the_old_one_is_given_up(host: Host, small_disk: Any) -> None:
    old, new = small_disk("ext4"), small_disk("xfs")
    host.choose(old.path / "stowage")
    before = host.location
    old.unmount()
    subprocess.run(["mount", new.device, old.path], check=True)
    (old.path / "stowage").mkdir()
    with pytest.raises(NotThere, match=r"its filesystem \(ext4 .*\) is not mounted here, but xfs .* is"):
        host.choose(old.path / "stowage")
    after = host.choose(old.path / "stowage", forget=[before.identity]).location
    assert after.identity != before.identity
    assert after.filesystem.fstype == "xfs"


def test_a_disk_that_is_gone_for_good_can_be_given_up_and_cleared(host: Host, small_disk: Any) -> None:
    gone = small_disk("ext4")
    host.choose(gone.path / "stowage")
    identity = host.location.identity
    gone.unmount()
    host.clear(identity)
    assert data_locations.load(host.places) is None
    assert Registry(host.places).all() == {}


def test_what_is_there_is_not_forgotten(host: Host, disk: Path) -> None:
    """Left in an inventory, it would be given up while its disk is away, and another one begun in its place."""
    host.choose(disk / "stowage")
    before = host.location
    with pytest.raises(Refusal) as refused:
        host.choose(disk / "stowage", forget=[before.identity])
    assert str(refused.value) == (
        f"forget: {before.identity}: the data location {disk}/stowage is there, and would be given up when its disk is"
        " away next; take it off the list"
    )
    with pytest.raises(Refusal, match="take it off the list"):
        host.clear(before.identity)
    assert host.location == before
    host.choose(disk / "other")
    assert host.choose(disk / "stowage", forget=[before.identity]).location, "it was empty, and is a new one"


@pytest.mark.parametrize("unit", [True, False])
def test_no_first_choice_where_a_disk_is_away(
    host: Host, small_disk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: bool
) -> None:
    new = small_disk("ext4")
    name = systemd_units.mount_unit(str(new.path))
    if unit:
        (tmp_path / name).write_text("[Mount]\n")
        monkeypatch.setattr(LastingMounts, "read", lambda: LastingMounts(b"", (str(tmp_path),)))
        message = (
            f"path {new.path}/stowage: {new.path} is to be mounted by {name} and is not; mount it (systemctl start"
        )
    else:
        monkeypatch.setattr(LastingMounts, "read", lambda: LastingMounts(f"x {new.path} ext4\n".encode(), ()))
        message = f"path {new.path}/stowage: {new.path} is in /etc/fstab and is not mounted; mount it; when its disk"
    new.unmount()
    for check_mode in (True, False):
        with pytest.raises(Refusal) as refused:
            choice = Choice(f"{new.path}/stowage", 0, host.name)
            data_location_change.choose(host.places, choice, Differences(check_mode))
        assert str(refused.value).startswith(message)
        assert os.listdir(new.path) == []
    new.mount()
    host.choose(new.path / "stowage")


# -- Changes while others make copies


def taking(host: Host, run: str) -> tuple[threading.Thread, list[Any]]:
    """Take a lease of the drive ``vision.hf-cache`` at the same time."""
    found: list[Any] = []
    location = host.location

    def take() -> None:
        try:
            more = {"run": run, "read_only": False, "seconds": 60}
            found.append(pinning.take(host.places, location, "vision.hf-cache", **more))
        except StowageError as error:
            found.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(0.5)
    return thread, found


@pytest.mark.parametrize("cleared", [True, False])
def test_no_copy_is_made_in_a_data_location_that_is_given_up(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch, cleared: bool
) -> None:
    host.choose(disk / "stowage")
    host.declare(placed("hf-cache"))
    begun: list[tuple[threading.Thread, list[Any]]] = []
    module = data_location_change if cleared else former_locations
    real = module.is_being_emptied

    def looked(*arguments: Any) -> bool:
        """It was just found that there is no copy."""
        begun.append(taking(host, f"run-{len(begun)}"))
        assert begun[-1][0].is_alive(), "it waits"
        return real(*arguments)

    monkeypatch.setattr(module, "is_being_emptied", looked)
    if cleared:
        data_location_change.clear(host.places, host.name, [], Differences())
    else:
        data_location_change.choose(host.places, Choice(f"{disk}/other", 0, host.name), Differences())
    assert len(begun) == 1
    thread, found = begun[0]
    thread.join()
    assert str(found[0]) == f"data location {disk}/stowage: it is not this host's any more; try again"
    assert os.listdir(disk / "stowage") == [] and pins.all_names(host.places) == []
    assert data_locations.load_former(host.places) == []


def test_a_lease_that_is_being_taken_is_waited_for(host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host.choose(disk / "stowage")
    host.declare(placed("hf-cache"))
    location = host.location
    real, refused = pinning._reserve, []

    def clear() -> None:
        try:
            data_location_change.clear(host.places, host.name, [], Differences())
        except Refusal as error:
            refused.append(str(error))

    clearing = threading.Thread(target=clear)

    def reserve(*arguments: Any) -> pins.Pin:
        clearing.start()
        clearing.join(0.5)
        assert clearing.is_alive()
        return real(*arguments)

    monkeypatch.setattr(pinning, "_reserve", reserve)
    pin = pinning.take(host.places, location, "vision.hf-cache", run="run", read_only=False, seconds=60)
    clearing.join()
    assert refused == [
        f"data location: host gpu-01 holds 1 copy (1 below {disk}/stowage); delete their drives (state: absent) and"
        " wait until the copies are gone"
    ]
    pinning.release(host.places, pin.run, pin.number)


@pytest.mark.parametrize("part", ["drives", ".stowage-trash/pending", ".stowage-trash/condemned"])
def test_what_is_there_unexpectedly_keeps_a_data_location(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    host.choose(disk / "stowage")
    before = host.location
    stray = disk / "stowage" / part / "stray"
    real = data_location_change.give_up

    def give_up(*arguments: Any) -> None:
        stray.mkdir()
        real(*arguments)

    monkeypatch.setattr(data_location_change, "give_up", give_up)
    with pytest.raises(Refusal) as refused:
        data_location_change.clear(host.places, host.name, [], Differences())
    there = f"there is something in {disk}/stowage/{part} now ('stray')"
    assert str(refused.value) == f"data location {disk}/stowage: {there}; run again"
    assert stray.is_dir() and host.location == before and mark_of(disk / "stowage").identity == before.identity
    os.close(data_locations.open_verified(before))
    stray.rmdir()
    host.choose(disk / "stowage")
    assert host.actions == [], "all of it is there"


def test_a_copied_folder_is_not_the_original(host: Host, disk: Path) -> None:
    host.choose(disk / "stowage")
    value = os.getxattr(disk / "stowage", XATTR)
    (disk / "stowage").rename(disk / "aside")
    (disk / "stowage").mkdir()
    with pytest.raises(NotThere) as without:
        data_locations.open_verified(host.location)
    assert without.value.reason == "mark"
    os.setxattr(disk / "stowage", XATTR, value)
    with pytest.raises(NotThere) as copied:
        data_locations.open_verified(host.location)
    assert copied.value.reason == "inode"


def test_the_record_is_made_again_from_the_mark_after_a_reinstall(host: Host, disk: Path, tmp_path: Path) -> None:
    before = host.choose(disk / "stowage").location
    host.declare(placed("hf-cache"))
    host.make_copy("hf-cache")
    fresh = new_host(tmp_path / "reinstalled")
    outcome = fresh.choose(disk / "stowage")
    assert outcome.location == before
    assert [found.copy_name for found in outcome.holdings.copies] == ["vision.hf-cache"]


def test_claims_are_found_again_by_their_marks_after_a_reinstall(host: Host, disk: Path, tmp_path: Path) -> None:
    host.name = "gpu-reinstalled"
    host.choose(disk / "one")
    host.declare(placed("hf-cache"))
    copy = host.make_copy("hf-cache")
    identity = host.location.identity
    host.choose(disk / "two")
    for name, owner in (("tier", host.name), ("other", "gpu-07")):
        (disk / name).mkdir()
        mark(disk / name, "tier", name, "t", owner)
    (disk / "bound").mkdir()
    subprocess.run(["mount", "--bind", copy, disk / "bound"], check=True)
    fresh = Host(Places.under(str(tmp_path / "reinstalled")), host.name)
    with pytest.raises(Refusal, match="it is inside the tier"):
        fresh.choose(disk / "tier/x")
    outcome = fresh.choose(disk / "two")
    assert [(location.path, location.identity) for location in outcome.former] == [(f"{disk}/one", identity)]
    ours = {path: entry["kind"] for path, entry in Registry(fresh.places).all().items() if path.startswith(str(disk))}
    assert ours == {
        f"{disk}/one": "data-location",
        f"{disk}/two": "data-location",
        f"{disk}/tier": "tier",
    }
    # Another host's, whose disk is here, is not this host's claim; nothing may be laid into it while it is there.
    with pytest.raises(Refusal, match=f"it is inside the tier {disk}/other of host gpu-07; choose a folder apart"):
        fresh.choose(disk / "other/x")
    for path in ("other", "other/x"):
        with pytest.raises(Refusal, match=f"path {disk}/{path} is, or is inside, the tier {disk}/other of host gpu-07"):
            fresh.declare(
                {"metadata": {"name": "own"}, "spec": {"sources": [{"node": host.name, "path": f"{disk}/{path}"}]}}
            )
    assert [orphan.path for orphan in fresh.declare(placed("other")).orphans] == [str(copy)]


def test_a_clone_of_the_disk_is_refused(host: Host, small_disk: Any) -> None:
    original = small_disk("ext4")
    host.choose(original.path / "stowage")
    original.unmount()
    clone = small_disk("ext4")
    clone.unmount()
    shutil.copyfile(original.image, clone.image)
    original.mount()
    clone.mount()
    with pytest.raises(Refusal, match="it is a clone of the data location .*, which is there too; unmount one of them"):
        host.choose(clone.path / "stowage")


def test_a_disk_mounted_elsewhere_is_the_same_location(host: Host, small_disk: Any) -> None:
    new = small_disk("ext4")
    before = host.choose(new.path / "stowage").location
    new.unmount()
    other = new.path.parent / "elsewhere"
    other.mkdir()
    subprocess.run(["mount", new.device, other], check=True)
    outcome = host.choose(other / "stowage")
    assert outcome.location.identity == before.identity
    assert not outcome.former
    assert list(Registry(host.places).all()) == [f"{other}/stowage"]


def test_a_disk_of_another_host_is_taken_over_only_when_asked(host: Host, disk: Path, tmp_path: Path) -> None:
    old = new_host(tmp_path / "old", "gpu-07")
    old.choose(disk / "stowage")
    old.declare(placed("hf-cache"))
    copy = old.make_copy("hf-cache")
    with pytest.raises(Refusal, match="it is the data location of host gpu-07, .*take it over with adopt_from: gpu-07"):
        host.choose(disk / "stowage")
    host.declare(placed("hf-cache"))
    with pytest.raises(Refusal, match="it is not the data location of host gpu-07, which adopt_from is to take over"):
        host.choose(disk / "empty", adopt_from="gpu-07")  # such as a mount point whose disk is away
    assert "adopt_from" not in str(host.choose(disk / "stowage", adopt_from="gpu-07").warnings)
    left = "nothing here is host gpu-07's any more, and another disk of its might be taken over; take it out"
    assert f"adopt_from: {left}" in host.choose(disk / "stowage", adopt_from="gpu-07").warnings
    assert mark_of(disk / "stowage").host == mark_of(copy).host == "gpu-01"
    assert [found.path for found in host.declare(placed("hf-cache")).orphans] == [str(copy)]
    host.choose(disk / "stowage", adopt_from="gpu-07", adopt=["vision.hf-cache"])
    assert mark_of(copy).identity == host.identity("hf-cache")
    assert not host.declare(placed("hf-cache")).orphans
    assert files_below(copy) == {"data": "weights"}


def test_a_renamed_host_keeps_its_copies(host: Host, disk: Path) -> None:
    host.choose(disk / "stowage")
    host.declare(placed("hf-cache"))
    host.make_copy("hf-cache")
    host.name = "gpu-09"
    with pytest.raises(
        Refusal, match="chosen when this host was gpu-01, and this host is gpu-09 now; .*adopt_from: gpu-01"
    ):
        host.choose(disk / "stowage")
    with pytest.raises(Refusal, match="take it over where it is first"):
        host.choose(disk / "other", adopt_from="gpu-01")
    host.choose(disk / "stowage", adopt_from="gpu-01")
    assert not host.declare(placed("hf-cache")).orphans
    os.close(data_locations.open_verified(host.location))


def test_taking_over_that_was_cut_short_goes_on(host: Host, disk: Path) -> None:
    host.choose(disk / "stowage")
    fd = os.open(disk / "stowage", os.O_RDONLY)
    adoption.take_over(fd, str(disk / "stowage"), "gpu-01", "gpu-09")
    os.close(fd)
    host.name = "gpu-09"
    host.choose(disk / "stowage", adopt_from="gpu-01")
    os.close(data_locations.open_verified(host.location))


# -- Change and clear


def test_a_change_leaves_copies_where_they_are(host: Host, disk: Path) -> None:
    host.choose(disk / "one")
    host.declare(placed("hf-cache"))
    copy = host.make_copy("hf-cache")
    identity = host.location.identity
    outcome = host.choose(disk / "two")
    assert f"the former data location {disk}/one keeps 1 copy: they are neither moved nor deleted" in outcome.warnings
    assert [location.identity for location in outcome.former] == [identity]
    assert files_below(copy) == {"data": "weights"}
    with pytest.raises(
        Refusal, match=r"host gpu-01 holds 1 copy \(1 below .*/one\); delete their drives \(state: absent\)"
    ):
        host.clear()
    with pytest.raises(Refusal, match="is inside this host's data location"):
        host.choose(disk / "one/inside")
    back = host.choose(disk / "one")
    assert back.location.identity == identity
    assert not back.former  # the second one held nothing, and was given up
    assert mark_of(disk / "two") is None
    assert list((disk / "two").iterdir()) == []


def test_a_former_location_is_forgotten_once_it_is_empty(host: Host, disk: Path) -> None:
    host.choose(disk / "one")
    host.declare(placed("hf-cache"))
    copy = host.make_copy("hf-cache")
    host.choose(disk / "two")
    shutil.rmtree(copy)
    assert not host.choose(disk / "two").former
    assert host.actions[0] == f"give up {disk}/one, and leave the folder"
    host.clear()


@pytest.mark.parametrize("part", ["drives", ".stowage-trash/pending"])
def test_clearing_is_refused_while_there_is_any_copy(host: Host, disk: Path, part: str) -> None:
    host.choose(disk / "stowage")
    host.declare(placed("hf-cache"))
    copy = host.make_copy("hf-cache")
    copy.rename(disk / "stowage" / part / copy.name)
    with pytest.raises(Refusal, match="holds 1 copy"):
        host.clear()
    os.removexattr(disk / "stowage" / part / copy.name, XATTR)
    with pytest.raises(Refusal, match=r"what has no mark may be a copy \(1 below .*\); look at it"):
        host.clear()


def test_clearing_waits_for_what_is_still_being_emptied(host: Host, disk: Path) -> None:
    host.choose(disk / "stowage")
    (disk / "stowage/.stowage-trash/condemned/ml.old.full-1").mkdir()
    with pytest.raises(Refusal, match="is still being emptied by stowaged; clear it when that is done"):
        host.clear()
    assert mark_of(disk / "stowage") is not None


def test_clearing_leaves_the_folder_and_what_is_not_ours(host: Host, disk: Path) -> None:
    host.choose(disk / "stowage")
    (disk / "stowage/notes").write_text("mine")
    assert host.clear().location is None
    assert [entry.name for entry in (disk / "stowage").iterdir()] == ["notes"]
    assert mark_of(disk / "stowage") is None
    assert Registry(host.places).all() == {}
    host.clear()
    host.choose(disk / "stowage")


# -- Adopting


def test_directories_are_taken_in_only_by_name(host: Host, disk: Path) -> None:
    for name in ("vision.imagenet", "vision.other", "nlp.imagenet"):
        (disk / "stowage/drives" / name).mkdir(parents=True)
        (disk / "stowage/drives" / name / "data").write_text(name)
    with pytest.raises(Refusal, match="its folder drives holds something, .*with adopt"):
        host.choose(disk / "stowage")
    adopt = ["vision.imagenet", "nlp.imagenet", "vision.typo"]
    outcome = host.choose(disk / "stowage", adopt=adopt)
    assert "adopt: there is no directory vision.typo in drives; take it off the list" in outcome.warnings
    assert f"{disk}/stowage/drives/vision.other has no mark of this host's copies; it is left alone" in outcome.warnings
    assert mark_of(disk / "stowage/drives/vision.other") is None
    assert (disk / "stowage/.stowage/locks/vision.imagenet").exists()
    declared = host.declare(placed("imagenet"))  # the drive that is declared next has it
    assert host.identity("imagenet") == mark_of(disk / "stowage/drives/vision.imagenet").identity
    assert [orphan.copy_name for orphan in declared.orphans] == ["nlp.imagenet"]
    host.choose(disk / "stowage", adopt=adopt)
    assert len(files_below(disk / "stowage/drives")) == 3


def test_an_adopted_identity_is_used_once(host: Host, disk: Path) -> None:
    (disk / "stowage/drives/vision.imagenet").mkdir(parents=True)
    host.choose(disk / "stowage", adopt=["vision.imagenet"])
    host.declare(placed("imagenet"))
    first = host.identity("imagenet")
    host.declare()
    host.declare(placed("imagenet"))
    assert host.identity("imagenet") != first


def test_a_copy_with_another_owner_or_kind_is_not_taken_in(host: Host, disk: Path) -> None:
    host.choose(disk / "stowage")
    theirs = disk / "stowage/drives/vision.theirs"
    theirs.mkdir()
    mark(theirs, "copy", theirs.name, "x", "gpu-07")
    with pytest.raises(Refusal, match="it is marked as a copy of host gpu-07; .*adopt_from: gpu-07"):
        host.choose(disk / "stowage", adopt=["vision.theirs"])
    (disk / "stowage/drives/vision.link").symlink_to("/etc")
    with pytest.raises(Refusal, match="it is not a directory on the data location's disk"):
        host.choose(disk / "stowage", adopt=["vision.link"])
    host.declare({"metadata": {"name": "one"}, "spec": {"sources": [{"node": "gpu-01", "path": "/srv/x"}]}})
    (disk / "stowage/drives/vision.one").mkdir()
    with pytest.raises(Refusal, match="its drive is not kept on data locations; take it off the list"):
        host.choose(disk / "stowage", adopt=["vision.one"])


# -- Drives with copies


def test_a_drive_made_again_is_another_drive(host: Host, disk: Path) -> None:
    host.choose(disk / "stowage")
    host.declare(placed("hf-cache"))
    first = host.identity("hf-cache")
    copy = host.make_copy("hf-cache")
    host.declare(placed("hf-cache", evictable=True))
    assert host.identity("hf-cache") == first
    left = host.declare()
    assert [(orphan.copy_name, orphan.path) for orphan in left.orphans] == [("vision.hf-cache", str(copy))]
    assert "holds 1 copy of drives that are in no list" in left.warnings[0]
    again = host.declare(placed("hf-cache"))
    assert host.identity("hf-cache") != first
    assert [orphan.path for orphan in again.orphans] == [str(copy)]
    assert files_below(copy) == {"data": "weights"}
    gone = host.declare(tombstone("hf-cache"))  # means the copy that is here, too
    assert gone.deleting() == {"vision": ["hf-cache"]}
    assert not gone.orphans
    host.declare(placed("hf-cache"))
    assert host.identity("hf-cache") != first


def test_what_a_copy_means_is_not_changed_under_it(host: Host, disk: Path, small_disk: Any) -> None:
    new = small_disk("ext4")
    host.choose(new.path / "stowage")
    host.declare(placed("hf-cache"))
    other = {"metadata": {"name": "hf-cache"}, "spec": {"sources": [{"node_scope": "local-any", "path": "/scratch"}]}}
    host.declare(placed("hf-cache", "models"))  # there is no copy yet
    host.make_copy("hf-cache")
    for changed, message in (
        (placed("hf-cache", "other"), "the folder inside it changes from models to other, and this host holds a copy"),
        (placed("hf-cache"), "the folder inside it changes from models to the whole drive"),
        (other, r"it becomes scratch on each machine, and this host holds a copy of it at .*; delete it first"),
    ):
        with pytest.raises(Refusal, match=message):
            host.declare(changed)
    new.unmount()
    with pytest.raises(Refusal, match="may hold a copy of it"):
        host.declare(other)
    assert "copies there are unknown" in host.declare(placed("hf-cache", "models")).warnings[0]


def test_two_workspaces_may_use_one_name(host: Host, disk: Path) -> None:
    host.choose(disk / "stowage")
    for workspace in ("vision", "nlp"):
        host.declare(placed("cache"), workspace=workspace)
        host.make_copy("cache", workspace)
    assert host.identity("cache", "vision") != host.identity("cache", "nlp")
    assert [orphan.copy_name for orphan in host.declare(workspace="nlp").orphans] == ["nlp.cache"]


def test_sources_lie_apart_from_copies(host: Host, disk: Path) -> None:
    host.choose(disk / "one")
    host.declare(placed("hf-cache"))
    host.make_copy("hf-cache")
    host.choose(disk / "two")
    (disk / "alias").symlink_to(disk / "two/drives")
    for source, message in (
        ({"node": "gpu-01", "path": f"{disk}/two/drives"}, r"sources\[0\].path .* is inside the data location .*/two"),
        ({"node": "gpu-01", "path": f"{disk}/alias"}, "is inside the data location"),
        ({"node_scope": "local-any", "path": str(disk)}, "contains the"),
        ({"node_scope": "shared", "path": f"{disk}/one"}, "is the former data location"),
        ({"node_scope": "shared", "path": host.places.etc}, "is Stowage's own directory"),
    ):
        with pytest.raises(Refusal, match=message):
            host.declare({"metadata": {"name": "own"}, "spec": {"sources": [source]}}, placed("hf-cache"))
    elsewhere = {"node": "gpu-02", "path": f"{disk}/two"}
    host.declare({"metadata": {"name": "own"}, "spec": {"sources": [elsewhere]}}, placed("hf-cache"))


def test_a_shared_filesystem_is_refused() -> None:
    table = [
        mounts.Mount(1, 0, "8:1", "/", "/", ("rw",), "ext4", "/dev/sda1", ("rw",)),
        mounts.Mount(2, 1, "0:50", "/", "/lustre", ("rw",), "lustre", "mds@tcp:/fs", ("rw",)),
    ]
    with pytest.raises(StowageError, match=SHARED_RULE):
        check_place("/lustre/stowage", "gpu-01", table, LastingMounts(b"", ()))
