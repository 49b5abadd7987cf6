# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules for a data location, named by their messages, and what is recorded of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts, records
from stowage_core.data_location import locations as data_locations
from stowage_core.data_location.adoption import adopt_names
from stowage_core.data_location.locations import DataLocation, NotThere, check_reported
from stowage_core.data_location.place import check_components, check_place
from stowage_core.errors import Refusal, StowageError
from stowage_core.mounts import FilesystemId, Mount
from stowage_core.places import Places
from stowage_core.services.lasting_mounts import LastingMounts


def mount(number: int, point: str, fstype: str, options: tuple[str, ...] = ("rw",)) -> Mount:
    return Mount(number, 1, f"8:{number}", "/", point, options, fstype, f"/dev/sd{number}", ("rw",))


MOUNTS = [
    mount(1, "/", "ext4"),
    mount(2, "/mnt/nvme0", "xfs"),
    mount(3, "/mnt/read-only", "ext4", ("ro", "relatime")),
    mount(4, "/lustre", "lustre"),
    mount(5, "/nfs", "nfs4"),
    mount(6, "/weka", "wekafs"),
    mount(7, "/fuse", "fuse.juicefs"),
    mount(8, "/run", "tmpfs"),
    mount(9, "/lib/live", "overlay"),
    mount(10, "/nfs/local", "btrfs"),
]
NONE = LastingMounts(b"", ())
SHARED = "a data location must be on this machine's own disk — to use shared storage, make a shared drive instead"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/lustre/stowage", f"path /lustre/stowage: {SHARED}"),
        ("/nfs/stowage", f"path /nfs/stowage: {SHARED}"),
        ("/weka/stowage", f"path /weka/stowage: {SHARED}"),
        ("/fuse/stowage", f"path /fuse/stowage: {SHARED}"),
        ("/run/stowage", "path /run/stowage: /run is tmpfs, which no disk keeps; choose a folder on a local disk"),
        ("/lib/live/x", "path /lib/live/x: /lib/live is overlay, which no disk keeps; choose a folder on a local disk"),
        (
            "/mnt/read-only/x",
            "path /mnt/read-only/x: the filesystem at /mnt/read-only is read-only; choose a folder on another disk",
        ),
        (
            "/mnt/nvme1/stowage",
            "path /mnt/nvme1/stowage: /mnt/nvme1 is in /etc/fstab and is not mounted; mount it; when its disk is gone"
            " for good, take that out",
        ),
    ],
)
def test_places_that_are_refused(path: str, message: str) -> None:
    with pytest.raises(Refusal) as refused:
        check_place(path, "gpu-01", MOUNTS, LastingMounts(b"UUID=1 /mnt/nvme1 xfs defaults,nofail 0 2\n", ()))
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("path", "number"), [("/mnt/nvme0/stowage", 2), ("/mnt/nvme0", 2), ("/var/lib/x", 1), ("/nfs/local/stowage", 10)]
)
def test_places_that_are_accepted(path: str, number: int) -> None:
    assert check_place(path, "gpu-01", MOUNTS, NONE).id == number


@pytest.mark.parametrize(
    "mounts", [[], [mount(1, "/", "overlay"), mount(2, "/nfs", "nfs4"), mount(3, "/run", "tmpfs")]]
)
def test_a_machine_that_has_not_reported_its_disks(mounts: list[Mount]) -> None:
    message = "machine gpu-01 has not reported its disks yet; wait until it is up, then choose again"
    with pytest.raises(Refusal) as refused:
        check_place("/mnt/nvme0/stowage", "gpu-01", mounts, NONE)
    assert str(refused.value) == message
    with pytest.raises(Refusal) as without_facts:
        check_reported("gpu-01", [])
    assert str(without_facts.value) == message


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([], []),
        (["vision.a", {"workspace": "nlp", "drive": "b"}, "vision.a"], ["vision.a", "nlp.b"]),
    ],
)
def test_what_to_adopt(values: list[Any], names: list[str]) -> None:
    assert adopt_names(values) == names


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("imagenet", "adopt[0]: 'imagenet' is not of the form <workspace>.<drive>; each has only lowercase letters"),
        ("../x.y", "adopt[0]: '../x.y' is not of the form"),
        (7, "adopt[0]: 7 is not of the form"),
        ({"workspace": "a"}, "adopt[0]: must be a dictionary of workspace and drive; or a name, <workspace>.<drive>"),
        ({"workspace": "a", "drive": "b.c"}, "adopt[0].drive: 'b.c' is not a name; only lowercase letters"),
    ],
)
def test_what_cannot_be_adopted(value: Any, message: str) -> None:
    with pytest.raises(Refusal) as refused:
        adopt_names([value])
    assert str(refused.value).startswith(message)


LOCATION = DataLocation("/mnt/nvme0/stowage", 500, "gpu-01", FilesystemId("xfs", "u", "/dev/sdb"), "identity")


def test_the_record_holds_what_is_needed_to_know_it_again(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    assert data_locations.load(places) is None
    assert data_locations.load_former(places) == []
    records.write(places.data_location_json, LOCATION.to_json())
    assert data_locations.load(places) == LOCATION
    former = DataLocation("/old", 0, "gpu-01", LOCATION.filesystem, "other", 12.5)
    records.write(places.former_locations_json, {"locations": [former.to_json()]})
    assert data_locations.load_former(places) == [former]
    assert former.to_json()["left"] == 12.5


@pytest.mark.parametrize("value", [{}, {"path": "/x"}, {**LOCATION.to_json(), "filesystem": 7}])
def test_a_record_that_is_none_is_an_error_not_an_absence(value: dict[str, Any], tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    records.write(places.data_location_json, value)
    with pytest.raises(records.RecordError, match="not a data location"):
        data_locations.load(places)


def test_what_is_not_there_is_not_opened(tmp_path: Path) -> None:
    def at(path: Path) -> DataLocation:
        return DataLocation(str(path), 0, "gpu-01", LOCATION.filesystem, "identity")

    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    before = len(os.listdir("/proc/self/fd"))
    for name, reason in (("missing", "missing"), ("file", "missing"), ("link", "missing"), ("folder", "filesystem")):
        with pytest.raises(NotThere) as refused:
            data_locations.open_verified(at(tmp_path / name))
        assert (refused.value.reason, refused.value.path) == (reason, f"{tmp_path}/{name}")
        assert str(refused.value).endswith(
            "; bring its disk back, or, if it is gone for good, give it up with forget: identity"
        )
    assert len(os.listdir("/proc/self/fd")) == before
    holdings = data_locations.holdings([at(tmp_path / "missing")], MOUNTS)
    assert (holdings.copies, holdings.strangers, len(holdings.unseen)) == ([], [], 1)


def test_a_table_of_another_time_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = DataLocation(str(tmp_path), 0, "gpu-01", LOCATION.filesystem, "identity")
    with pytest.raises(NotThere, match="its filesystem .* is not mounted here"):  # as it is mounted now
        data_locations.open_verified(location, [])
    monkeypatch.setattr(mounts, "read", list)
    with pytest.raises(NotThere, match="cannot be verified"):
        data_locations.open_verified(location, [])


def test_components_that_others_could_replace_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StowageError):
        check_components(f"{tmp_path}/file/stowage")
    with pytest.raises(Refusal):
        check_components(f"{tmp_path}/missing/stowage")
