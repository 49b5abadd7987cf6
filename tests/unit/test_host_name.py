# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host is not taken for another one: what is recorded on it says its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stowage_core import host_name, records
from stowage_core.data_location.locations import DataLocation
from stowage_core.differences import Differences
from stowage_core.drives import host as drives_host
from stowage_core.drives.declared import check_lists
from stowage_core.errors import Refusal
from stowage_core.mounts import FilesystemId
from stowage_core.places import Places


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path))


def chosen(places: Places, host: str) -> None:
    location = DataLocation("/data", 0, host, FilesystemId("ext4", "u", "/dev/sda"), "1")
    records.write(places.data_location_json, location.to_json())


def declared(places: Places, host: str) -> None:
    path = os.path.join(places.drives_dir, "ml.json")
    records.write(path, {"workspace": "ml", "host": host, "drives": []})


def declare(places: Places, host: str, *names: str, check_mode: bool = False) -> Differences:
    differences = Differences(check_mode)
    fill = {"template": {"image": "docker.io/library/busybox", "command": "true", "env": {"TOKEN": "secret"}}}
    spec = {"sources": [{"node_scope": "placed"}], "fill": fill}
    drive = {"metadata": {"name": "hf-cache"}, "spec": spec}
    lists = check_lists([{"name": name, "drives": [drive]} for name in names])
    drives_host.declare(places, host, lists, "", differences)
    return differences


def refused(places: Places, host: str, formerly: str = "") -> str:
    with pytest.raises(Refusal) as error:
        host_name.check(places, host, formerly)
    return str(error.value)


def test_a_host_that_knows_nothing_may_have_any_name_but_none(places: Places) -> None:
    host_name.check(places, "gpu-01")
    host_name.check_declared(places, "ml", "gpu-01")
    for blank in ("", "  "):
        assert refused(places, blank) == "host_name: is blank; give the host's name in the inventory"


def test_another_name_than_that_of_the_data_location_is_refused(places: Places) -> None:
    chosen(places, "gpu-01")
    host_name.check(places, "gpu-01")
    host_name.check(places, "gpu-02", "gpu-01")
    text = (
        "data location /data: it was chosen when this host was gpu-01, and this host is gpu-02 now; correct host_name;"
        " if the host was renamed, take it over with adopt_from: gpu-01"
    )
    assert refused(places, "gpu-02") == refused(places, "gpu-02", "gpu-03") == text


def test_another_name_than_that_of_the_lists_is_refused(places: Places) -> None:
    declared(places, "gpu-01")
    host_name.check(places, "gpu-01")
    host_name.check(places, "gpu-02", "gpu-01")
    text = (
        "workspace ml: its drives were declared when this host was gpu-01, and this host is gpu-02 now; correct"
        " host_name; if the host was renamed, take it over with adopt_from: gpu-01"
    )
    assert refused(places, "gpu-02") == text
    with pytest.raises(Refusal) as error:
        host_name.check_declared(places, "ml", "gpu-02")
    assert str(error.value) == text


def test_a_data_location_that_was_taken_over_says_that_the_host_was_renamed(places: Places) -> None:
    declared(places, "gpu-01")
    chosen(places, "gpu-02")
    host_name.check(places, "gpu-02")
    assert "data location /data" in refused(places, "gpu-01")


@pytest.mark.parametrize("listed", [["ml"], []])
def test_a_renamed_host_has_its_new_name_in_every_list(places: Places, listed: list[str]) -> None:
    """Also in those of workspaces that are not declared any more: else they would refuse it for ever."""
    declare(places, "gpu-01", "gone", "ml")
    gone = Path(places.drives_dir, "gone.json")
    before = records.read(str(gone))
    host_name.check(places, "gpu-02", "gpu-01")
    predicted = declare(places, "gpu-02", *listed, check_mode=True)
    assert records.read(str(gone)) == before
    done = declare(places, "gpu-02", *listed)
    assert predicted.changed and predicted.actions == done.actions and predicted.diff() == done.diff()
    assert "record that workspace gone is on gpu-02" in done.actions
    assert records.read(str(gone)) == {**(before or {}), "host": "gpu-02"}
    assert gone.stat().st_mode & 0o777 == 0o600, "what a fill has in its environment may be secret"
    again = declare(places, "gpu-02", *listed)
    assert not again.changed and not again.actions
    host_name.check(places, "gpu-02")
    host_name.check_declared(places, "gone", "gpu-02")
