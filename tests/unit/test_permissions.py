# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which owner and mode sources are to have, and which of them a host has to look after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts
from stowage_core.differences import Differences
from stowage_core.drives import permissions
from stowage_core.drives import sources as drive_sources
from stowage_core.drives.declared import check_drives
from stowage_core.drives.permissions import Missing, Permissions
from stowage_core.drives.recorded import Drive, Holdings, merge
from stowage_core.errors import Refusal


def drive(name: str, source: dict[str, Any], **declared: Any) -> Drive:
    spec = {"sources": [source], "permissions": declared}
    (made,) = merge("vision", check_drives([{"metadata": {"name": name}, "spec": spec}]), [], Holdings())
    return made


def scratch(path: Path | str) -> dict[str, Any]:
    return {"node_scope": "local-any", "path": str(path)}


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, Permissions()),
        ({"create": True}, Permissions(create=True)),
        (
            {"owner_uid": 0, "owner_gid": 7, "dir_mode": "2770", "apply": True, "recursive": True},
            Permissions(False, 0, 7, 0o2770, True, True),
        ),
    ],
)
def test_what_a_spec_says(declared: dict[str, Any], expected: Permissions) -> None:
    assert Permissions.of(drive("d", scratch("/s"), **declared).spec or {}) == expected


def test_what_is_made_is_root_s_unless_it_is_said() -> None:
    assert Permissions().of_new.shown() == {"owner_uid": "0", "owner_gid": "0", "dir_mode": "0755"}
    new = Permissions(uid=1000, mode=0o2770).of_new.shown()
    assert new == {"owner_uid": "1000", "owner_gid": "0", "dir_mode": "2770"}


def test_only_what_is_declared_is_compared(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    status = tmp_path.stat()
    assert Permissions(mode=0o700).shown(status) == {"dir_mode": "0750"}
    assert Permissions(mode=0o700).mode_differs(status)
    assert not Permissions(mode=0o750, uid=status.st_uid, gid=status.st_gid).owner_differs(status)
    assert Permissions(uid=status.st_uid + 1).owner_differs(status)


def plan(*drives: Drive, granted: Path | str, host: str = "gpu-01") -> list[drive_sources.Source]:
    return drive_sources.plan(drives, host, {"vision": [str(granted)]}, mounts.read())


def test_which_sources_a_host_looks_after(tmp_path: Path) -> None:
    for name in ("one", "shared", "scratch"):
        (tmp_path / name).mkdir()
    found = [
        drive("one", {"node": "gpu-01", "path": f"{tmp_path}/one"}, apply=True, dir_mode="0700"),
        drive("shared", {"node_scope": "shared", "node": "gpu-02", "path": f"{tmp_path}/shared"}, apply=True),
        drive("scratch", scratch(tmp_path / "scratch"), apply=True),
        drive("left", scratch(tmp_path / "scratch"), dir_mode="0700"),
        drive("placed", {"node_scope": "placed"}, create=True, apply=True),
    ]
    assert [one.drive.name for one in plan(*found, granted=tmp_path)] == ["one", "scratch"]
    assert [one.drive.name for one in plan(*found, granted=tmp_path, host="gpu-02")] == ["shared", "scratch"]


def test_a_mode_is_predicted_and_set(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    found = drive("d", scratch(tmp_path / "s"), apply=True, dir_mode="2750")
    for predict in (True, False):
        differences = Differences(predict)
        drive_sources.make_true(plan(found, granted=tmp_path), differences)
        assert differences.diff() == {
            "before": {f"vision/d {tmp_path}/s": {"dir_mode": "0700"}},
            "after": {f"vision/d {tmp_path}/s": {"dir_mode": "2750"}},
        }
        assert differences.actions == [f"set owner and mode of {tmp_path}/s"]
    assert (tmp_path / "s").stat().st_mode & 0o7777 == 0o2750
    differences = Differences()
    drive_sources.make_true(plan(found, granted=tmp_path), differences)
    assert not differences.changed and not differences.actions


def test_recursive_is_told_by_number(tmp_path: Path) -> None:
    (tmp_path / "s/a/b").mkdir(parents=True)
    for path in (tmp_path / "s", tmp_path / "s/a"):
        path.chmod(0o755)
    (tmp_path / "s/a/b").chmod(0o700)
    found = drive("d", scratch(tmp_path / "s"), apply=True, dir_mode="0755", recursive=True)
    differences = Differences()
    drive_sources.make_true(plan(found, granted=tmp_path), differences)
    assert differences.diff()["before"] == {
        f"vision/d {tmp_path}/s": {"dir_mode": "0755", "below": "1 with another owner or mode"}
    }
    assert differences.actions == [f"set owner and mode of {tmp_path}/s and of 1 below it"]
    assert (tmp_path / "s/a/b").stat().st_mode & 0o7777 == 0o755


def test_what_is_missing_is_made_only_when_that_is_declared(tmp_path: Path) -> None:
    assert plan(drive("d", scratch(tmp_path / "s"), apply=True), granted=tmp_path) == []
    (source,) = plan(drive("d", scratch(tmp_path / "s/t"), create=True), granted=tmp_path)
    assert source.compared() == ({"owner_uid": "0", "owner_gid": "0", "dir_mode": "0755"}, None)
    assert os.listdir(tmp_path) == []


def test_what_is_above_a_grant_is_not_made(tmp_path: Path) -> None:
    path = f"{tmp_path}/disk/team/scratch"
    with pytest.raises(Missing) as refused:
        plan(drive("d", scratch(path), create=True), granted=f"{tmp_path}/disk/team")
    assert str(refused.value) == (
        f"drive vision/d: its source {path} is not there: there is no {tmp_path}/disk, which is above what is granted;"
        " mount its disk, or make it"
    )
    (tmp_path / "disk").mkdir()
    assert len(plan(drive("d", scratch(path), create=True), granted=f"{tmp_path}/disk/team")) == 1


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refusal, match=r"drive vision/d: .*/file is not a directory; name a directory"):
        plan(drive("d", scratch(tmp_path / "file"), create=True), granted=tmp_path)


@pytest.mark.parametrize(
    ("around", "inner", "verb"),
    [
        ({"owner_uid": 1, "recursive": True}, ("s/below", {"owner_uid": 2}), "is inside"),
        ({"owner_uid": 1}, ("s", {"owner_uid": 2}), "is"),
    ],
)
def test_two_drives_do_not_undo_each_other(
    around: dict[str, Any], inner: tuple[str, dict[str, Any]], verb: str, tmp_path: Path
) -> None:
    (tmp_path / "s/below").mkdir(parents=True)
    path, declared = inner
    one = drive("one", scratch(tmp_path / "s"), apply=True, **around)
    other = drive("other", scratch(tmp_path / path), apply=True, **declared)
    with pytest.raises(Refusal) as refused:
        plan(other, one, granted=tmp_path)
    assert str(refused.value) == (
        f"drive vision/other: its source {tmp_path}/{path} {verb} {tmp_path}/s, the source of drive vision/one,"
        " and they are to have another owner or mode; declare the same spec.permissions for both, or take apply out of"
        " one"
    )
    same = drive("other", scratch(tmp_path / path), apply=True, **{**around, "recursive": False})
    assert len(plan(same, one, granted=tmp_path)) == 2


def test_a_source_that_leads_outside_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises(Refusal, match="HOST_ACCESS_FORBIDDEN"):
        plan(drive("d", scratch(tmp_path / "s"), apply=True), granted=tmp_path / "other")
    with pytest.raises(Refusal, match="HOST_ACCESS_FORBIDDEN"):
        permissions.check_source(drive("d", scratch(tmp_path / "t")), str(tmp_path / "t"), ["/other"], None)
