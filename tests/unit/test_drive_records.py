# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Merging a declared list of drives with the recorded one: identities, tombstones, orphans, managers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts, records
from stowage_core.data_location import locations as data_locations
from stowage_core.differences import Differences
from stowage_core.drives import host as drives_host
from stowage_core.drives import recorded as drive_records
from stowage_core.drives.declared import check_drives, check_lists
from stowage_core.drives.recorded import Drive, Found, Holdings, merge
from stowage_core.errors import Refusal, StowageError
from stowage_core.places import Places


def placed(name: str, path: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"sources": [{"node_scope": "placed", "path": path}]}}


def scratch(name: str, path: str = "/scratch") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"sources": [{"node_scope": "local-any", "path": path}]}}


def tombstone(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "state": "absent", **more}


class Site:
    """A workspace on one host, with identities that can be told apart: 1, 2, 3, ..."""

    def __init__(self) -> None:
        self.drives: list[Drive] = []
        self.copies: list[Found] = []
        self.unseen: list[StowageError] = []
        self.adopted: dict[str, str] = {}
        numbers = itertools.count(1)
        self._new = lambda: str(next(numbers))

    @property
    def holdings(self) -> Holdings:
        return Holdings(self.copies, (), self.unseen)

    def declare(self, *bodies: dict[str, Any], manager: str = "") -> dict[str, str]:
        self.drives = merge(
            "vision", check_drives(list(bodies)), self.drives, self.holdings, manager, self.adopted, self._new
        )
        return {drive.name: drive.identity for drive in self.drives}

    def hold(self, name: str, identity: str) -> None:
        self.copies.append(Found(f"vision.{name}", f"/data/drives/vision.{name}", identity))

    def orphans(self) -> Sequence[str]:
        return [found.identity for found in self.holdings.orphans(self.drives)]


def test_an_identity_is_kept_while_the_drive_stays_declared() -> None:
    site = Site()
    assert site.declare(placed("a"), placed("b")) == {"a": "1", "b": "2"}
    assert site.declare(placed("b"), placed("c"), placed("a")) == {"a": "1", "b": "2", "c": "3"}


@pytest.mark.parametrize("between", [[], [tombstone("a")]])
def test_a_drive_made_again_is_another_drive(between: list[dict[str, Any]]) -> None:
    site = Site()
    site.declare(placed("a"))
    site.declare(*between)
    assert site.declare(placed("a")) == {"a": "2"}


def test_a_tombstone_keeps_the_identity_and_what_was_known() -> None:
    site = Site()
    site.declare(placed("a", "models"))
    assert site.declare(tombstone("a", force=True)) == {"a": "1"}
    (drive,) = site.drives
    assert (drive.absent, drive.force, drive.placed, drive.path, drive.evictable) == (True, True, True, "models", False)
    assert site.declare(tombstone("a", force=True)) == {"a": "1"}


def test_a_tombstone_means_every_copy_of_its_name() -> None:
    site = Site()
    site.hold("a", "earlier")
    site.hold("a", "in a former data location")
    site.hold("b", "another's")
    assert site.declare(tombstone("a")) == {"a": "1"}
    assert site.orphans() == ["another's"]
    assert site.drives[0].spec is None
    site.hold("a", "of a disk that was away")
    assert site.declare(tombstone("a")) == {"a": "1"}
    assert site.orphans() == ["another's"]


def test_a_tombstone_of_a_drive_means_the_orphans_of_its_name_too() -> None:
    site = Site()
    site.hold("a", "earlier")
    site.declare(placed("a"))
    site.hold("a", "1")
    assert site.orphans() == ["earlier"]
    assert site.declare(tombstone("a")) == {"a": "1"}
    assert site.orphans() == []


def test_a_drive_made_again_has_nothing_of_what_its_tombstone_meant() -> None:
    site = Site()
    site.hold("a", "earlier")
    site.declare(tombstone("a"))
    site.declare(placed("a"))
    assert site.orphans() == ["earlier"]
    drive_of = drive_records.by_copy(site.drives)
    assert drive_of("vision.a", "earlier") is drive_of("vision.a", "1") is None
    assert drive_of("vision.a", "2") is site.drives[0]


def test_a_name_that_leaves_the_list_leaves_orphans() -> None:
    site = Site()
    site.declare(placed("a"), placed("b"))
    site.hold("a", "1")
    site.hold("b", "2")
    assert site.orphans() == []
    site.declare(placed("b"))
    assert site.orphans() == ["1"]
    site.declare(placed("a"), placed("b"))  # another drive
    assert site.orphans() == ["1"]


def test_a_copy_that_was_adopted_before_is_the_next_drive_s() -> None:
    site = Site()
    site.adopted = {"vision.a": "reserved", "nlp.b": "other", "vision.c": "not this one's"}
    assert site.declare(placed("a"), placed("b"), scratch("c")) == {"a": "reserved", "b": "1", "c": "2"}


@pytest.mark.parametrize(
    ("after", "change"),
    [
        (placed("a", "models"), "the folder inside it changes from the whole drive to models"),
        (scratch("a"), "it becomes scratch on each machine"),
    ],
)
def test_what_a_copy_means_cannot_change_under_it(after: dict[str, Any], change: str) -> None:
    site = Site()
    site.declare(placed("a"))
    site.hold("b", "x")
    site.declare(after)
    site = Site()
    site.declare(placed("a"))
    site.hold("a", "1")
    with pytest.raises(Refusal) as refused:
        site.declare(after)
    assert str(refused.value) == (
        f"drive vision/a: {change}, and this host holds a copy of it at /data/drives/vision.a;"
        " delete it first (state: absent), or give the new drive another name"
    )
    site.copies, site.unseen = [], [StowageError("data location /data: away")]
    with pytest.raises(Refusal, match=r"and this host may hold a copy of it \(data location /data: away\)"):
        site.declare(after)


def test_other_drives_change_freely() -> None:
    site = Site()
    site.declare(scratch("a"))
    site.hold("a", "x")
    assert site.declare(scratch("a", "/other")) == {"a": "1"}
    assert site.declare(placed("a")) == {"a": "1"}


def test_drives_of_a_manager_are_a_list_of_their_own() -> None:
    site = Site()
    site.declare(placed("a"))
    assert site.declare(placed("model-llama"), manager="model/llama") == {"a": "1", "model-llama": "2"}
    assert site.drives[1].manager == "model/llama"
    assert site.declare(placed("a"), placed("b")) == {"a": "1", "b": "3", "model-llama": "2"}
    with pytest.raises(Refusal) as refused:
        site.declare(tombstone("model-llama"))
    assert str(refused.value) == (
        "DATAVOLUME_MANAGED: drive model-llama is managed by model/llama; delete model/llama instead"
    )
    with pytest.raises(Refusal, match="the name is managed by model/llama; choose another name"):
        site.declare(placed("model-llama"))
    with pytest.raises(Refusal, match="the name is a drive of workspace vision itself; choose another name"):
        site.declare(placed("a"), manager="model/llama")
    assert site.declare(tombstone("model-llama"), manager="model/llama")["model-llama"] == "2"
    assert site.declare(tombstone("model-llama"), tombstone("x"), manager="model/llama") == {
        "a": "1",
        "b": "3",
        "model-llama": "2",
    }
    assert site.declare(manager="model/llama") == {"a": "1", "b": "3"}


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    site = Site()
    site.declare(placed("a"), tombstone("b"))
    record = drive_records.as_record("vision", "gpu-01", site.drives)
    records.write(drive_records.record_path(places, "vision"), record)
    assert drive_records.load(places, "vision") == site.drives
    assert drive_records.load(places, "nlp") is None
    assert drive_records.load_all(places) == site.drives
    assert drive_records.workspaces(places) == ["vision"]
    assert record["drives"][0]["spec"]["sources"][0]["node_scope"] == "placed"


@pytest.mark.parametrize("value", [{}, {"workspace": "a", "drives": [{}]}, {"workspace": "a", "drives": 7}])
def test_a_record_that_is_none_is_an_error_not_an_empty_list(value: dict[str, Any], tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    records.write(drive_records.record_path(places, "a"), value)
    with pytest.raises(records.RecordError, match="not a list of drives"):
        drive_records.load_all(places)


def declare(
    places: Places, *lists: dict[str, Any], check_mode: bool = False, granted: Sequence[str] = ()
) -> tuple[drives_host.Outcome, Differences]:
    differences = Differences(check_mode)
    checked = check_lists(list(lists))
    host_paths = {"vision": granted} if granted else None
    return drives_host.declare(places, "gpu-01", checked, "", differences, host_paths), differences


def test_several_workspaces_are_declared_at_once(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    lists = [{"name": "vision", "drives": [placed("a"), scratch("b")]}, {"name": "nlp", "drives": [placed("a")]}]
    predicted = declare(places, *lists, check_mode=True, granted=["/scratch"])[1]
    assert drive_records.workspaces(places) == []
    outcome, done = declare(places, *lists, granted=["/scratch"])
    assert predicted.diff() == done.diff()
    assert predicted.actions == done.actions == [f"record the drives of workspace {name}" for name in ("vision", "nlp")]
    assert sorted(done.diff()["after"]) == [
        "nlp/a",
        "vision/a",
        "vision/b",
        "workspace nlp",
        "workspace vision",
        "workspace vision host_paths",
    ]
    assert outcome.names(absent=False) == {"vision": ["a", "b"], "nlp": ["a"]}
    again = declare(places, *lists)[1]
    assert not again.changed
    assert not again.actions
    identities = {(drive.workspace, drive.name): drive.identity for drive in drive_records.load_all(places)}
    assert len(set(identities.values())) == 3
    declare(places, {"name": "vision", "drives": []})
    assert drive_records.load(places, "vision") == []
    assert [drive.identity for drive in drive_records.load(places, "nlp") or []] == [identities["nlp", "a"]]


def test_the_diff_shows_what_was_declared_and_no_identity(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    declare(places, {"name": "vision", "drives": [placed("a")]})
    body = placed("a")
    body["spec"]["evictable"] = True
    differences = declare(places, {"name": "vision", "drives": [body]})[1]
    before, after = (differences.diff()[side]["vision/a"] for side in ("before", "after"))
    assert (before["spec"]["evictable"], after["spec"]["evictable"]) == (False, True)
    assert "identity" not in after
    assert differences.actions == ["record the drives of workspace vision"]


def hold(monkeypatch: pytest.MonkeyPatch, *copies: Found) -> None:
    monkeypatch.setattr(data_locations, "holdings", lambda _locations, _mounts: Holdings(copies))


def test_on_a_host_installed_anew_copies_say_which_drives_they_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places.under(str(tmp_path))
    here = Found("vision.a", "/data/drives/vision.a", "earlier")
    former = Found("vision.a", "/former/drives/vision.a", "in a former data location")
    hold(monkeypatch, here, former, Found("vision.s", "/data/drives/vision.s", "s"), Found("nlp.a", "/data/n", "n"))
    outcome, done = declare(
        places, {"name": "vision", "drives": [placed("a"), placed("b"), scratch("s")]}, granted=["/"]
    )
    known = {drive.name: drive.identity for drive in outcome.drives["vision"]}
    assert known["a"] == "earlier" and known["b"] != known["s"] and "s" not in known.values()
    assert [found.copy_name for found in outcome.orphans] == ["vision.a", "vision.s", "nlp.a"]
    assert "earlier" not in str(done.diff())
    # From now on there is a list, and what is made again is another drive.
    declare(places, {"name": "vision", "drives": []})
    (again,) = declare(places, {"name": "vision", "drives": [placed("a")]})[0].drives["vision"]
    assert again.identity != "earlier"


def test_what_is_said_of_orphans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = Places.under(str(tmp_path))
    declare(places, {"name": "vision", "drives": [placed("a")]})
    hold(monkeypatch, Found("vision.a", "/data/drives/vision.a", "x"), Found("vision.b", "/data/drives/vision.b", "y"))
    assert declare(places, {"name": "vision", "drives": [placed("a")]})[0].warnings == [
        "this host holds 1 copy of drives that are in no list (/data/drives/vision.b), and nothing deletes them;"
        " declare a drive with state: absent to have its copies deleted",
        "this host holds 1 copy of an earlier drive of that name (/data/drives/vision.a), and nothing deletes them;"
        " take them in with adopt of the data location, or declare the drive with state: absent",
    ]


def test_a_host_that_was_renamed_says_what_changed(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    declare(places, {"name": "vision", "drives": []})
    differences = Differences()
    drives_host.declare(places, "gpu-09", {"vision": []}, "", differences)
    assert differences.diff() == {
        "before": {"workspace vision": "declared on gpu-01"},
        "after": {"workspace vision": "declared on gpu-09"},
    }
    assert differences.actions == ["record the drives of workspace vision"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "vision.none"}, "drive vision/none: is in no list of this host; declare it, and roll the host out"),
        ({"name": "nlp.a"}, "drive nlp/a: is in no list of this host"),
        ({"name": "vision.gone"}, r"drive vision/gone: is to be deleted \(state: absent\)"),
        ({"name": "vision.s"}, "drive vision/s: it is scratch on each machine, and has no copies; use the path"),
        ({"host": "gpu-07"}, "drive vision/a: source 0 is not usable from machine gpu-07; add the machine to its"),
        ({"name": "../etc"}, "is not of the form <workspace>.<drive>"),
    ],
)
def test_which_drives_a_host_may_have_a_copy_of(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    places = Places.under(str(tmp_path))
    body = placed("a")
    body["spec"]["sources"][0]["eligible_nodes"] = ["gpu-01"]
    declare(places, {"name": "vision", "drives": [body, scratch("s"), tombstone("gone")]}, granted=["/scratch"])
    assert drive_records.find_placed(places, "vision.a", "gpu-01").name == "a"
    with pytest.raises(Refusal, match=message):
        drive_records.find_placed(places, **{"name": "vision.a", "host": "gpu-01", **changes})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/data/drives/x", r"spec.sources\[0\].path /data/drives/x is inside the data location /data; choose"),
        ("/data", r"spec.sources\[0\].path /data is the data location /data"),
        ("/tiers", r"spec.sources\[0\].path /tiers contains the tier /tiers/kv"),
    ],
)
def test_sources_that_overlap_what_is_stowage_s(path: str, message: str) -> None:
    drives = merge("vision", check_drives([scratch("s", path)]), [], Holdings())
    reserved = {"/data": "the data location", "/tiers/kv": "the tier"}
    with pytest.raises(Refusal, match=f"drive vision/s: {message}"):
        drives_host.check_sources(drives, "gpu-01", reserved, mounts.read())
    tombstones = merge("vision", check_drives([tombstone("s", spec=scratch("s", path)["spec"])]), [], Holdings())
    drives_host.check_sources(tombstones, "gpu-01", reserved, mounts.read())


def test_a_source_may_be_in_the_storage_root_and_in_nothing_that_is_in_it() -> None:
    root = {"/srv/storage": "the storage root"}
    for path, lies in (("/srv/storage/team", ""), ("/srv/storage", "is"), ("/srv", "contains")):
        drives = merge("vision", check_drives([scratch("s", path)]), [], Holdings())
        if not lies:
            drives_host.check_sources(drives, "gpu-01", {}, mounts.read(), root)
            continue
        with pytest.raises(Refusal, match=rf"drive vision/s: spec.sources\[0\].path {path} {lies} the storage root /"):
            drives_host.check_sources(drives, "gpu-01", {}, mounts.read(), root)


def test_a_shared_filesystem_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [
        mounts.Mount(1, 0, "8:1", "/", "/", ("rw",), "ext4", "/dev/sda1", ("rw",)),
        mounts.Mount(2, 1, "0:50", "/", "/lustre", ("rw",), "lustre", "mds@tcp:/fs", ("rw",)),
    ]
    looked_at: list[str] = []
    monkeypatch.setattr(mounts, "_target", looked_at.append)
    drives = merge("vision", check_drives([scratch("a", "/lustre/a"), scratch("b", "/b")]), [], Holdings())
    drives_host.check_sources(drives, "gpu-01", {}, table)
    assert looked_at == ["/b"]
