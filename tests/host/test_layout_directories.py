# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the paths of a layout lead, who may use them, and how directories are made, on real filesystems."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts
from stowage_core.accounts import User
from stowage_core.answers import check_answers
from stowage_core.errors import Refusal
from stowage_core.layout.access import Need, check_access, check_users, check_will_have_access
from stowage_core.layout.directories import Ownership, Wanted, directories, make, ownership
from stowage_core.layout.found import MountRule, Place, check_same_filesystem, find, find_all
from stowage_core.layout.rules import resolve

NOBODY = User("nobody", 65534, (65534,))
OURS = Ownership("root", "root", 0o755, 0, 0)


def found(path: Path, name: str = "runs") -> Place:
    return find(str(path), name, mounts.read())


def test_find_follows_links_and_tells_what_exists(disk: Path) -> None:
    (disk / "real").mkdir()
    (disk / "relative").symlink_to("./real/../real")
    (disk / "absolute").symlink_to(disk / "relative")
    place = found(disk / "absolute" / "new" / "deeper")
    assert (place.real, place.existing) == (f"{disk}/real/new/deeper", f"{disk}/real")
    assert not place.exists and found(disk / "absolute").exists
    assert place.mount == mounts.of_path(str(disk), mounts.read())


def test_find_refuses_what_is_no_directory(disk: Path) -> None:
    (disk / "file").touch()
    (disk / "loop").symlink_to("loop")
    for name, rule in (("file", "is not a directory"), ("file/deeper", "is not a directory"), ("loop", "too many")):
        with pytest.raises(Refusal, match=rule):
            found(disk / name)


@pytest.mark.parametrize("name", ["there", "missing"])
def test_find_refuses_what_everybody_may_replace(disk: Path, name: str) -> None:
    (disk / "open" / "there").mkdir(parents=True)
    (disk / "open").chmod(0o777)
    with pytest.raises(Refusal) as refusal:
        found(disk / "open" / name)
    assert str(refusal.value) == (
        f"runs: everybody may write to {disk}/open, and so replace {name} in it; "
        f"take that away (chmod o-w {disk}/open) or choose another directory"
    )
    (disk / "open").chmod(0o1777)
    found(disk / "open" / name)


def test_a_link_in_place_of_a_default_is_refused(disk: Path) -> None:
    (disk / "root").mkdir()
    (disk / "elsewhere").mkdir()
    (disk / "root" / "runs").symlink_to(disk / "elsewhere")
    with pytest.raises(Refusal, match="through a symbolic link; name that directory as its override"):
        find_all(resolve(str(disk / "root"), {}), mounts.read())


def test_an_alias_of_another_location_is_refused(disk: Path) -> None:
    (disk / "a").mkdir()
    (disk / "b").symlink_to("a")
    layout = resolve(str(disk / "root"), {"runs": str(disk / "a"), "state": str(disk / "b")})
    with pytest.raises(Refusal, match=f"runs: {disk}/a is the same directory as state, {disk}/b "):
        find_all(layout, mounts.read())


def test_an_override_must_exist_and_is_not_ours_to_make(disk: Path) -> None:
    layout = resolve(str(disk / "root"), {"cache": str(disk / "cache")})
    with pytest.raises(Refusal, match=f"cache: {disk}/cache does not exist, and an explicit path is never made"):
        find_all(layout, mounts.read())
    (disk / "cache").mkdir()
    plan = [one.path for one in directories(layout, find_all(layout, mounts.read()), Wanted())]
    assert str(disk / "cache") not in plan
    assert plan[0] == str(disk / "root")
    assert f"{disk}/cache/hf" in plan and f"{disk}/cache/hf/hub" in plan and f"{disk}/root/runs" in plan


def test_directories_above_the_root_are_made_roots(disk: Path) -> None:
    layout = resolve(str(disk / "new" / "root"), {})
    wanted = Wanted("nobody", "nogroup", 0o2775, 65534, 65534)
    plan = directories(layout, find_all(layout, mounts.read()), wanted)
    assert (plan[0].path, plan[0].wanted) == (f"{disk}/new", OURS)
    for one in plan:
        assert one.present is None and one.differs
        make(one.path, one.wanted)
        assert ownership(one.path) == one.wanted
    assert not any(one.differs for one in directories(layout, find_all(layout, mounts.read()), wanted))
    status = (disk / "new" / "root" / "cache" / "hf" / "hub").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o2775, 65534, 65534)


def test_nobody_but_root_can_replace_what_is_above_a_location(disk: Path) -> None:
    """A link in place of ``cache/hf/hub`` would be followed by whoever mounts that for a job."""
    (disk / "root/cache/hf").mkdir(parents=True)
    for there in (disk / "root/cache", disk / "root/cache/hf"):
        os.chown(there, 65534, 65534)
        there.chmod(0o2775)
    layout = resolve(str(disk / "root"), {})
    wanted = Wanted("nobody", "nogroup", 0o2775, 65534, 65534)
    for one in directories(layout, find_all(layout, mounts.read()), wanted):
        make(one.path, one.wanted)
    assert not any(one.differs for one in directories(layout, find_all(layout, mounts.read()), wanted))
    for path in layout.locations.values():
        above = Path(path).parent
        while above != disk:
            status = above.stat()
            assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o755), above
            above = above.parent
    user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    for move in (f"mv {disk}/root/cache/hf/hub {disk}/root/cache/hf/away", f"mv {disk}/root/cache/hf {disk}/root/away"):
        assert subprocess.run([*user, *move.split()], check=False, capture_output=True).returncode != 0
    shared = [layout.locations[name] for name in ("hf_hub_cache", "packages", "state", "dataset_cache")]
    assert {Path(path).stat().st_uid for path in shared} == {65534}
    assert {(disk / "root" / name).stat().st_uid for name in ("runs", "cache")} == {0}


def test_what_exists_keeps_what_is_not_asked_for(disk: Path) -> None:
    layout = resolve(str(disk / "root"), {})
    (disk / "root" / "state").mkdir(parents=True)
    os.chown(disk / "root" / "state", 65534, 65534)
    (disk / "root" / "state").chmod(0o750)
    plan = {one.path: one for one in directories(layout, find_all(layout, mounts.read()), Wanted(mode=0o770))}
    assert f"{disk}/root" not in plan
    state, packages = plan[f"{disk}/root/state"], plan[f"{disk}/root/packages"]
    assert (state.wanted.uid, state.wanted.gid, state.wanted.mode) == (65534, 65534, 0o770)
    assert packages.wanted == Ownership("root", "root", 0o770, 0, 0)
    unasked = {one.path: one for one in directories(layout, find_all(layout, mounts.read()), Wanted())}
    assert not unasked[f"{disk}/root/state"].differs and unasked[f"{disk}/root/packages"].differs


def test_make_changes_an_existing_directory_and_nothing_in_it(disk: Path) -> None:
    (disk / "there" / "below").mkdir(parents=True)
    make(str(disk / "there"), Ownership("nobody", "nogroup", 0o700, 65534, 65534))
    assert (disk / "there").stat().st_uid == 65534
    assert (disk / "there" / "below").stat().st_uid == 0


def test_make_does_not_follow_a_link(disk: Path) -> None:
    (disk / "victim").mkdir()
    (disk / "link").symlink_to("victim")
    for path in (disk / "link", disk / "link" / "below"):
        with pytest.raises(OSError):
            make(str(path), Ownership("nobody", "nogroup", 0o777, 65534, 65534))
    assert (disk / "victim").stat().st_uid == 0 and not list((disk / "victim").iterdir())


def test_an_empty_directory_is_no_mount(small_disk: Callable[..., Any], fstype: str) -> None:
    disk = small_disk(fstype)
    (disk.path / "runs").mkdir()
    rule = MountRule.of("runs", True, str(disk.path))
    mounted = found(disk.path / "runs")
    rule.check("runs", mounted)
    former = {
        "path": mounted.path,
        "mount_point": mounted.mount.point,
        "filesystem": mounted.filesystem.to_json(),
    }
    check_same_filesystem("runs", mounted, former)
    disk.unmount()
    (disk.path / "runs").mkdir()
    empty = found(disk.path / "runs")
    with pytest.raises(Refusal, match=f"runs: {disk.path}/runs is on the mount at .*, and not at {disk.path}"):
        rule.check("runs", empty)
    with pytest.raises(Refusal, match=f"was on {fstype} .* mounted at {disk.path}, and is now on "):
        check_same_filesystem("runs", empty, former)


def test_the_root_filesystem_is_no_mount_of_its_own() -> None:
    place = found(Path("/"))
    with pytest.raises(Refusal, match="is on the root filesystem, nothing is mounted there; mount its disk"):
        MountRule.of("runs", True, None).check("runs", place)
    MountRule().check("runs", place)


class TestAccess:
    """Everything here is asked as another user, through directories that let that user pass."""

    @pytest.fixture
    def place(self, small_disk: Callable[..., Any]) -> Iterator[Path]:
        disk = small_disk("ext4")
        disk.unmount()
        disk.path = Path("/run/stowage-test-access")
        disk.path.mkdir(mode=0o755)
        disk.mount()
        disk.path.chmod(0o755)
        yield disk.path
        disk.unmount()
        disk.path.rmdir()

    def refused(self, path: Path, permissions: int = 7) -> str:
        with pytest.raises(Refusal) as refusal:
            check_access([NOBODY], [Need("runs", str(path), permissions)])
        return str(refusal.value)

    def test_allowed(self, place: Path) -> None:
        (place / "runs").mkdir()
        os.chown(place / "runs", 65534, 65534)
        check_access([NOBODY, User("root", 0, (0,))], [Need("runs", str(place / "runs"))])

    def test_the_missing_permission_is_named(self, place: Path) -> None:
        (place / "runs").mkdir(mode=0o750)
        assert self.refused(place / "runs") == (
            f"runs: user nobody cannot use {place}/runs: may not read or write or enter (mode 0750, owner root:root); "
            "give the user permission to read, write and enter it, by owner, group or access list"
        )
        (place / "runs").chmod(0o755)
        assert "may not write (mode 0755, owner root:root)" in self.refused(place / "runs")
        check_access([NOBODY], [Need("volume_root", str(place / "runs"), os.R_OK | os.X_OK)])

    def test_runs_are_found_and_not_made(self, place: Path) -> None:
        """Whoever may write to the runs location may put his own directory in the place of a user's."""
        layout = resolve(str(place / "root"), {})
        wanted = Wanted("nobody", "nogroup", 0o2775, 65534, 65534)
        check_users([NOBODY], find_all(layout, mounts.read()), wanted)
        for one in directories(layout, find_all(layout, mounts.read()), wanted):
            make(one.path, one.wanted)
        check_users([NOBODY], find_all(layout, mounts.read()), wanted)
        assert ownership(f"{place}/root/runs") == OURS
        (place / "root" / "runs").chmod(0o750)
        with pytest.raises(Refusal, match=r"may not read or enter .*; give the user permission to read and enter it"):
            check_users([NOBODY], find_all(layout, mounts.read()), wanted)

    def test_the_component_that_bars_the_way_is_named(self, place: Path) -> None:
        (place / "closed" / "runs").mkdir(parents=True)
        (place / "closed" / "runs").chmod(0o777)
        (place / "closed").chmod(0o700)
        assert self.refused(place / "closed" / "runs") == (
            f"runs: user nobody cannot use {place}/closed/runs: may not pass through {place}/closed "
            f"(mode 0700, owner root:root); let the user enter {place}/closed"
        )

    def test_groups_count(self, place: Path) -> None:
        (place / "runs").mkdir()
        (place / "runs").chmod(0o770)
        os.chown(place / "runs", 0, 4711)
        check_access([User("nobody", 65534, (65534, 4711))], [Need("runs", str(place / "runs"))])
        assert "may not" in self.refused(place / "runs")

    def test_a_read_only_filesystem(self, place: Path) -> None:
        (place / "runs").mkdir()
        (place / "runs").chmod(0o777)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        assert "its filesystem is mounted read-only; mount it for writing" in self.refused(place / "runs")

    def test_what_will_be_made_is_foretold(self, place: Path) -> None:
        missing = found(place / "runs")
        wanted = Ownership("root", "root", 0o750, 0, 0)
        with pytest.raises(Refusal, match=r"could not use .*: may not read or write or enter \(mode 0750"):
            check_will_have_access([NOBODY], "state", missing, wanted)
        check_will_have_access([User("root", 0, (0,))], "state", missing, wanted)
        check_will_have_access([NOBODY], "state", missing, Ownership("nobody", "x", 0o700, 65534, 0))
        check_will_have_access([NOBODY], "state", missing, Ownership("root", "x", 0o770, 0, 65534))
        with pytest.raises(Refusal, match=r"could not use .*: may not write \(mode 0755"):
            check_will_have_access([NOBODY], "state", missing, OURS)
        for name in ("runs", "cache"):  # where directories of others are, nobody changes anything
            check_will_have_access([NOBODY], name, missing, OURS)


def test_a_missing_path_is_an_answer(disk: Path) -> None:
    check_answers([("runs", str(disk)), ("cache", str(disk / "missing"))])
