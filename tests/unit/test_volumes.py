# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes as they are declared and recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stowage_core import records
from stowage_core.claims import of_layout
from stowage_core.errors import Refusal
from stowage_core.mounts import FilesystemId
from stowage_core.places import Places
from stowage_core.volumes import recorded
from stowage_core.volumes.change import volume_root
from stowage_core.volumes.declared import Grant, check_volumes
from stowage_core.volumes.recorded import Volume

ROOT = "/srv/volumes"
ANN = {"users": ["ann"]}


def check(*values: dict[str, Any]) -> Any:
    return check_volumes(values, ROOT)


def test_what_is_left_out() -> None:
    models, patients = check({"name": "patients", "path": "/srv/volumes//hospital/"}, {"name": "models"})
    assert (models.name, models.path) == ("models", "/srv/volumes/models")
    assert (models.require_mount, models.grants) == (None, ())
    assert patients.path == "/srv/volumes/hospital"


def test_grants_are_kept_in_order_and_their_names_sorted() -> None:
    grants = [
        {"sub_path": "b/", "users": ["bob", "ann", "bob"], "teams": None},
        {"sub_path": None, "teams": ["t"], "runs": ["ann/tune/1"]},
    ]
    (one,) = check({"name": "models", "grants": grants})
    assert one.grants == (Grant("b", users=("ann", "bob")), Grant("", teams=("t",), runs=("ann/tune/1",)))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([{"name": "Models"}], "volume: 'Models' is not a name"),
        ([{"name": "a.b"}], "volume: 'a.b' is not a name"),
        ([{"name": "a"}, {"name": "a"}], "volume a: is in the list twice; name one otherwise, or put their"),
        (
            [{"name": "a", "path": "/srv/volumes/x"}, {"name": "b", "path": "/srv/volumes/x/y"}],
            "volume a: its path /srv/volumes/x contains /srv/volumes/x/y of volume b; register the outer one alone",
        ),
        (
            [{"name": "a", "path": "/srv/volumes/x"}, {"name": "b", "path": "/srv/volumes/x/"}],
            "volume a: its path /srv/volumes/x is /srv/volumes/x of volume b; ",
        ),
        ([{"name": "a", "path": "/srv/volumes"}], "volume a: path: /srv/volumes is not below the volume root"),
        ([{"name": "a", "path": "/srv/volumes2/x"}], "volume a: path: /srv/volumes2/x is not below the volume root"),
        ([{"name": "a", "path": "/srv/volumes/../etc"}], "volume a: path: '/srv/volumes/../etc' may not"),
        ([{"name": "a", "path": "x"}], "volume a: path: 'x' must be absolute"),
        ([{"name": "a", "grants": [{}]}], "volume a: grants[0]: is for nobody; name users, teams or runs, or take it"),
        ([{"name": "a", "grants": [{**ANN, "sub_path": "/x"}]}], "volume a: grants[0]: sub_path: '/x' must be"),
        ([{"name": "a", "grants": [ANN, {**ANN, "sub_path": "../x"}]}], "volume a: grants[1]: sub_path: '../x'"),
        ([{"name": "a", "grants": [{"users": [""]}]}], "volume a: grants[0]: users: must not be empty"),
        ([{"name": "a", "grants": [{"users": ["a/b"]}]}], "volume a: grants[0]: users: 'a/b' may not contain a slash"),
        ([{"name": "a", "grants": [{"teams": ["."]}]}], "volume a: grants[0]: teams: '.' may not begin with a dot"),
        ([{"name": "a", "grants": [{"runs": ["ann/1"]}]}], "volume a: grants[0]: runs: run 'ann/1': is not user/exp"),
        ([{"name": "a", "grants": [{"runs": ["ann/../1"]}]}], "volume a: grants[0]: runs: experiment: '..' may not"),
    ],
)
def test_what_is_refused(values: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(Refusal) as refusal:
        check(*values)
    assert str(refusal.value).startswith(text)


NFS = FilesystemId("nfs4", None, "nas-1:/models")
MODELS = Volume("models", "/srv/volumes/models", True, "/srv/volumes/models", NFS, (Grant("x", users=("ann",)),))


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    assert recorded.load(places) == {}
    records.write(places.volumes_json, recorded.as_record([MODELS]))
    assert recorded.load(places) == {"models": MODELS}
    assert of_layout(places) == {"/srv/volumes/models": "the volume models"}


@pytest.mark.parametrize(
    "damage",
    [
        {"volumes": 1},
        {"volumes": [1]},
        {"volume": []},
        {"volumes": [{**MODELS.to_json(), "path": 1}]},
        {"volumes": [{**MODELS.to_json(), "more": 1}]},
        {"volumes": [{**MODELS.to_json(), "grants": [{"sub_path": "x", "users": [1], "teams": [], "runs": []}]}]},
        {"volumes": [{**MODELS.to_json(), "grants": [{"users": ["ann"]}]}]},
        {"volumes": [{**MODELS.to_json(), "filesystem": {}}]},
    ],
)
def test_a_damaged_record_is_no_empty_one(tmp_path: Path, damage: dict[str, Any]) -> None:
    places = Places.under(str(tmp_path))
    Path(places.etc).mkdir(parents=True)
    Path(places.volumes_json).write_text(json.dumps(damage))
    with pytest.raises(records.RecordError, match="not a list of volumes"):
        recorded.load(places)


def test_the_volume_root_is_the_layout_s(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    for given, text in (
        (None, "volumes: this host has no volume root, where external volumes are; give its storage layout one"),
        ("/srv/v", "volume_root: /srv/v is not the volume root of this host's storage layout, which has none; make"),
    ):
        with pytest.raises(Refusal) as refusal:
            volume_root(places, given)
        assert str(refusal.value).startswith(text)
    # In check mode the layout may be about to get it.
    assert volume_root(places, "/srv/v", check_mode=True) == "/srv/v"
    layout = {"root": "/srv/s", "volume_root": ROOT, "environment_prefix": "S_", "locations": {}}
    records.write(places.layout_json, layout)
    assert volume_root(places, None) == volume_root(places, ROOT) == ROOT
    with pytest.raises(Refusal, match="which has /srv/volumes"):
        volume_root(places, "/srv/other")
