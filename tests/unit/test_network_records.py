# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stowage_core import records
from stowage_core.network_mounts.records import (
    ExportRecord,
    MountRecord,
    exports_path,
    load_exports,
    load_mounts,
    mounts_path,
    write_exports,
    write_mounts,
)
from stowage_core.places import Places

MOUNT: dict[str, Any] = {
    "workspace": "ml",
    "drive": "imagenet",
    "source": 0,
    "node": "gpu-01",
    "state": "Bound",
    "reason": "",
    "time": 1000.5,
    "path": "/var/lib/stowage/datavolumes/mounts/ml.imagenet-0",
    "server_address": "10.0.0.1",
    "export": "/srv/imagenet",
    "transport": "Auto",
    "proto": "rdma",
    "read_only": True,
    "message": "",
}
EXPORT: dict[str, Any] = {
    "workspace": "ml",
    "drive": "imagenet",
    "source": 0,
    "client": "gpu-02",
    "address": "10.0.0.2",
    "path": "/srv/imagenet",
    "read_only": True,
    "fsid": "0b6f7f3e-7d0e-4a55-a70c-2f3b9b1a9d8e",
    "mount_point": "/srv",
    "state": "Exported",
    "reason": "",
    "time": 1000,
}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path))


def test_there_are_none(places: Places) -> None:
    assert load_mounts(places) == [] and load_exports(places) == []


def test_both_are_read(places: Places) -> None:
    records.write(mounts_path(places), {"mounts": [MOUNT, {**MOUNT, "source": 1, "state": "Pending", "proto": ""}]})
    records.write(exports_path(places), {"exports": [EXPORT]})
    found = load_mounts(places)
    assert found[0] == MountRecord(**MOUNT) and found[1].key == ("ml", "imagenet", 1)
    assert load_exports(places) == [ExportRecord(**EXPORT)]


@pytest.mark.parametrize(
    ("address", "device"),
    [("10.0.0.1", "10.0.0.1:/srv/a"), ("gpu-01", "gpu-01:/srv/a"), ("fd00::1", "[fd00::1]:/srv/a")],
)
def test_what_is_mounted(address: str, device: str) -> None:
    assert MountRecord(**{**MOUNT, "server_address": address, "export": "/srv/a"}).device == device


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"mounts": None},
        {"mounts": "none"},
        {"mounts": [{}]},
        {"mounts": [[]]},
        {"mounts": [{**MOUNT, "state": "bound"}]},
        {"mounts": [{**MOUNT, "source": "0"}]},
        {"mounts": [{**MOUNT, "read_only": 1}]},
        {"mounts": [{**MOUNT, "other": 1}]},
    ],
)
def test_what_cannot_be_read(places: Places, content: dict[str, Any]) -> None:
    records.write(mounts_path(places), content)
    with pytest.raises(records.RecordError, match=mounts_path(places)):
        load_mounts(places)


def test_an_export_in_a_state_that_only_mounts_have(places: Places) -> None:
    records.write(exports_path(places), {"exports": [{**EXPORT, "state": "Bound"}]})
    with pytest.raises(records.RecordError, match="a state that there is not"):
        load_exports(places)


def test_of_what_is_over_the_newest_is_kept(places: Places) -> None:
    over = {**MOUNT, "state": "Released", "reason": "its export is withdrawn"}
    found = [MountRecord(**{**over, "source": number, "time": 1000.0 + number}) for number in range(150)]
    found += [
        MountRecord(**{**MOUNT, "drive": name, "state": name.title(), "time": 1.0}) for name in ("bound", "failed")
    ]
    found += [MountRecord(**{**MOUNT, "drive": "released", "state": "Released", "time": 1.0})]
    write_mounts(places, found)
    kept = load_mounts(places)
    assert {one.drive for one in kept if one.time == 1.0} == {"bound", "failed", "released"}
    assert [one.source for one in kept if one.time > 1.0] == list(range(50, 150))


@pytest.mark.parametrize(
    ("state", "path", "is_over"),
    [("Released", "/srv/a", True), ("Failed", "", True), ("Failed", "/srv/a", False), ("Exported", "/srv/a", False)],
)
def test_exports_that_are_over(places: Places, state: str, path: str, is_over: bool) -> None:
    one = {**EXPORT, "state": state, "path": path}
    write_exports(places, [ExportRecord(**{**one, "source": number}) for number in range(101)])
    assert len(load_exports(places)) == (100 if is_over else 101)
