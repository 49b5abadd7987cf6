# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Host paths: what is granted, and what a drive may not name on the hosts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts, records
from stowage_core.drives import grants
from stowage_core.drives import recorded as drive_records
from stowage_core.drives.declared import Problems, check_drives
from stowage_core.drives.recorded import Drive, Holdings, merge
from stowage_core.errors import Refusal
from stowage_core.places import Places


def drives(*sources: dict[str, Any], state: str = "present") -> list[Drive]:
    entries = [
        {"metadata": {"name": f"d{number}"}, "spec": {"sources": [source]}, "state": state}
        for number, source in enumerate(sources)
    ]
    return merge("vision", check_drives(entries), [], Holdings())


def scratch(path: str) -> dict[str, Any]:
    return {"node_scope": "local-any", "path": path}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, {"vision": [], "nlp": []}),
        ({"vision": ["/srv/b/", "/srv//a", "/srv/b"]}, {"vision": ["/srv/a", "/srv/b"], "nlp": []}),
    ],
)
def test_what_is_granted(value: dict[str, Any], expected: dict[str, list[str]]) -> None:
    assert grants.check_host_paths(value, ["vision", "nlp"]) == expected


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        ([], ["host_paths: must be a dictionary, with a list of paths for each workspace"]),
        (
            {"visoin": ["/srv"], "vision": ["srv", "/"], "nlp": "/srv", "x y": [], "else": []},
            [
                "host_paths.visoin: no drives are declared for this workspace; did you mean vision?",
                "host_paths.vision[0]: 'srv' must be absolute; begin it with /",
                "host_paths.vision[1]: must not be the root directory; name a directory below it",
                "host_paths.nlp: must be a list of paths",
                "host_paths.x y: 'x y' is not a name; only lowercase letters, digits and hyphens, no dot,"
                " a letter or digit at both ends, at most 63 characters",
                "host_paths.else: no drives are declared for this workspace; take it out",
            ],
        ),
    ],
)
def test_grants_that_are_wrong(value: Any, problems: list[str]) -> None:
    with pytest.raises(Problems) as refused:
        grants.check_host_paths(value, ["vision", "nlp"])
    assert refused.value.problems == problems


FORBIDDEN = (
    'HOST_ACCESS_FORBIDDEN: spec.sources[].path "{0}": this namespace may not use that path on the machines;'
    " drive vision/{1}: grant it in host_paths of workspace vision, or choose another path"
)


def test_nothing_unless_granted() -> None:
    home = drives({"node": "gpu-01", "path": "/home"})
    with pytest.raises(Problems) as refused:
        grants.check_written(home, {})
    assert str(refused.value) == FORBIDDEN.format("/home", "d0")


def test_every_kind_that_names_a_path_is_checked_at_once() -> None:
    found = drives(
        scratch("/srv/a"),
        scratch("/srv"),
        scratch("/srv/apart"),
        {"node_scope": "shared", "path": "/lustre"},
        {"node": "gpu-09", "path": "/srv/a/x"},
        {"node": "gpu-09", "path": "/srv/b"},
        {"node_scope": "placed", "path": "srv"},
    )
    with pytest.raises(Problems) as refused:
        grants.check_written(found, {"vision": ["/srv/a"], "nlp": ["/"]})
    outside = [("/srv", "d1"), ("/srv/apart", "d2"), ("/lustre", "d3"), ("/srv/b", "d5")]
    assert refused.value.problems == [FORBIDDEN.format(*one) for one in outside]
    grants.check_written(found, {"vision": ["/srv", "/lustre"]})


def test_a_tombstone_names_nothing() -> None:
    grants.check_written(drives(scratch("/srv/a"), state="absent"), {})


def test_where_a_path_leads_counts_too() -> None:
    (drive,) = drives(scratch("/srv/a"))
    grants.check_place(drive, "/srv/a", ["/srv/a"], "/srv/a")
    with pytest.raises(Refusal) as refused:
        grants.check_place(drive, "/srv/a", ["/srv/a"], "/etc")
    assert str(refused.value) == (
        'HOST_ACCESS_FORBIDDEN: spec.sources[].path "/srv/a": this namespace may not use that path on the machines;'
        " drive vision/d0: it leads to '/etc': grant it in host_paths of workspace vision, or choose another path"
    )
    grants.check_place(drive, "/srv/a", ["/srv/a", "/mnt"], "/mnt/x")
    with pytest.raises(Refusal, match="HOST_ACCESS_FORBIDDEN"):
        grants.check_place(drive, "/srv/a", ["/mnt"], "/mnt/x")  # as it is written, too


def test_the_grant_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real" / "a").mkdir(parents=True)
    (tmp_path / "granted").symlink_to("real")
    path = f"{tmp_path}/granted/a"
    (drive,) = drives(scratch(path))
    grants.check_place(drive, path, [f"{tmp_path}/granted"], f"{tmp_path}/real/a")
    with pytest.raises(Refusal, match="it leads to"):
        grants.check_place(drive, path, [f"{tmp_path}/granted"], f"{tmp_path}/apart")


def test_what_is_not_there_yet_is_resolved_as_far_as_it_is(tmp_path: Path) -> None:
    (drive,) = drives(scratch(f"{tmp_path}/new/scratch"))
    grants.check_leads(drive, f"{tmp_path}/new/scratch", [str(tmp_path)], mounts.read())


def test_a_shared_filesystem_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = [
        mounts.Mount(1, 0, "8:1", "/", "/", ("rw",), "ext4", "/dev/sda1", ("rw",)),
        mounts.Mount(2, 1, "0:50", "/", "/lustre", ("rw",), "lustre", "mds@tcp:/fs", ("rw",)),
    ]
    monkeypatch.setattr(grants.host_paths, "opened", lambda *_: pytest.fail("it was looked at"))
    (drive,) = drives(scratch("/lustre/a"))
    grants.check_leads(drive, "/lustre/a", ["/lustre"], table)
    (tmp_path / "link").symlink_to("/lustre/b")
    path = f"{tmp_path}/link"
    grants.check_leads(drive, path, [path], table)
    grants.check_leads(drive, path, [str(tmp_path), "/lustre"], table)
    with pytest.raises(Refusal, match="it leads to '/lustre/b'"):
        grants.check_leads(drive, path, [str(tmp_path), "/lustre/a"], table)


def test_a_dead_grant_is_not_looked_at_for_another_source(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    monkeypatch.setattr(grants, "resolve", lambda path: looked_at.append(path) or path)
    (drive,) = drives(scratch("/srv/a"))
    grants.check_place(drive, "/srv/a", ["/dead", "/srv"], "/srv/a")
    assert looked_at == ["/srv"]


def test_an_open_directory_is_checked_against_what_the_host_was_told(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path / "host"))
    for name in ("granted", "apart"):
        (tmp_path / name).mkdir()
    (drive,) = drives(scratch(f"{tmp_path}/granted"))
    path = drive_records.record_path(places, "vision")
    records.write(path, drive_records.as_record("vision", "gpu-01", [drive], [f"{tmp_path}/granted"]))
    assert grants.load(places, "vision") == [f"{tmp_path}/granted"]
    fd = os.open(tmp_path / "granted", os.O_PATH)
    grants.check(places, drive, 0, fd)
    os.rename(tmp_path / "granted", tmp_path / "away")
    with pytest.raises(Refusal, match=f"it leads to '{tmp_path}/away'"):
        grants.check(places, drive, 0, fd)
    os.close(fd)
    records.write(path, drive_records.as_record("vision", "gpu-01", [drive]))
    assert "host_paths" not in (records.read(path) or {})
    fd = os.open(tmp_path / "away", os.O_PATH)
    with pytest.raises(Refusal, match="HOST_ACCESS_FORBIDDEN"):
        grants.check(places, drive, 0, fd)
    os.close(fd)
    records.write(path, {"workspace": "vision", "drives": [], "host_paths": "/"})
    with pytest.raises(records.RecordError, match="host_paths is not a list of paths; roll the host out again"):
        grants.load(places, "vision")
