# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is taken on a host, and keeping apart from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stowage_core import claims, records
from stowage_core.drives import recorded as drive_records
from stowage_core.errors import Refusal
from stowage_core.mounts import FilesystemId, Mount
from stowage_core.places import Places

TABLE = [
    Mount(1, 0, "8:1", "/", "/", ("rw",), "ext4", "/dev/vda1", ("rw",)),
    Mount(2, 1, "0:9", "/", "/lustre", ("rw",), "lustre", "10.0.0.1@o2ib:/lustre", ("rw",)),
]


@pytest.mark.parametrize(
    ("taken", "message"),
    [
        ({"/srv/runs": "the storage layout's runs"}, "it is inside the storage layout's runs /srv/runs"),
        ({"/srv/runs/x/y": "the tier"}, "it contains the tier /srv/runs/x/y"),
        ({"/srv/runs/x": "the volume root"}, "it is the volume root /srv/runs/x"),
    ],
)
def test_what_overlaps_is_refused(taken: dict[str, str], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        claims.check_apart("path /srv/runs/x", "/srv/runs/x", {"/srv/other": "the tier", **taken}, TABLE, "move")
    assert str(refused.value) == f"path /srv/runs/x: {message}; move"


def test_what_lies_apart_is_not() -> None:
    taken = {"/srv/runs": "the tier", "/srv/x2": "the tier"}
    claims.check_apart("path", "/srv/x", taken, TABLE, "")
    claims.check_apart("path", "/srv", taken, TABLE, "", but=("contains",))


def test_links_are_resolved_but_on_shared_filesystems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "real")
    taken = {str(tmp_path / "alias"): "the tier"}
    assert claims.overlapping(str(tmp_path / "real/x"), taken, TABLE) == ("is inside", "the tier", f"{tmp_path}/alias")
    (tmp_path / "scratch").symlink_to("/lustre")
    taken = {f"{tmp_path}/scratch/runs": "the runs"}
    readlink = os.readlink

    def read(path: str) -> str:
        assert not path.startswith("/lustre"), f"{path} was looked at"
        return readlink(path)

    monkeypatch.setattr(os, "readlink", read)
    assert claims.overlapping("/lustre/data", {"/lustre": "source 0"}, TABLE) == ("is inside", "source 0", "/lustre")
    assert claims.overlapping("/lustre/runs/a", taken, TABLE) == ("is inside", "the runs", f"{tmp_path}/scratch/runs")


def test_what_is_taken(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    records.write(
        places.layout_json, {"locations": {"runs": {"path": "/srv/stowage/runs"}}, "volume_root": "/srv/volumes"}
    )
    assert claims.of_layout(places) == {
        "/srv/stowage/runs": "the storage layout's runs",
        "/srv/volumes": "the volume root",
    }
    sources = [
        {"node_scope": "", "node": "gpu-01", "path": "/srv/here", "eligible_nodes": []},
        {"node_scope": "", "node": "gpu-02", "path": "/srv/there", "eligible_nodes": []},
        {"node_scope": "local-any", "node": "", "path": "/scratch", "eligible_nodes": ["gpu-01"]},
        {"node_scope": "local-any", "node": "", "path": "/scratch-of-others", "eligible_nodes": ["gpu-02"]},
    ]
    drive = drive_records.Drive("vision", {"name": "a", "labels": {}}, {"sources": sources, "evictable": False}, "i")
    records.write(drive_records.record_path(places, "vision"), drive_records.as_record("vision", "gpu-01", [drive]))
    assert claims.of_drives(places, "gpu-01") == {
        "/srv/here": "source 0 of drive vision/a,",
        "/scratch": "source 2 of drive vision/a,",
    }
    filesystem = FilesystemId("ext4", "u", "/dev/vda1").to_json()
    location = {"path": "/mine", "host": "gpu-01", "filesystem": filesystem, "identity": "d"}
    records.write(places.data_location_json, {**location, "max_bytes": 0})
    records.write(places.former_locations_json, {"locations": [{**location, "path": "/former", "left": 1.0}]})
    assert claims.of_stowage(places, {"/tier": {"kind": "tier"}, "/mine": {"kind": "data-location"}}) == {
        places.etc: "Stowage's own directory",
        places.var: "Stowage's own directory",
        places.run: "Stowage's own directory",
        "/tier": "the tier",
        "/mine": "the data location",
        "/former": "the former data location",
    }


def test_nothing_is_taken_but_by_stowage_itself(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    assert not claims.of_layout(places) and not claims.of_drives(places, "gpu-01")
    assert set(claims.of_stowage(places, {})) == {places.etc, places.var, places.run}
