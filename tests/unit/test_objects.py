# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading all objects of a host, and saying what cannot be read instead of failing."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stowage_core import events, records
from stowage_core.data_location import locations as data_locations
from stowage_core.drives import recorded as drive_records
from stowage_core.facts import objects
from stowage_core.facts.objects import Objects
from stowage_core.mounts import Mount, parse
from stowage_core.network_mounts.records import exports_path, mounts_path
from stowage_core.owner import Mark
from stowage_core.places import Places
from stowage_core.runs import holders
from stowage_core.runs.pins import Pin, Use

MOUNTS = parse(
    b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
    b"2 1 259:0 / /mnt/nvme0 rw - xfs /dev/nvme0n1 rw\n"
    b"3 1 0:50 / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw\n"
)
LOCATION = {
    "path": "/mnt/nvme0/stowage",
    "max_bytes": 500,
    "host": "gpu-01",
    "identity": "id-1",
    "filesystem": {"fstype": "xfs", "uuid": "u-1", "source": "/dev/nvme0n1"},
}


class Host:
    """The records of a host below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.places = Places.under(str(root))

    def put(self, path: str, value: Mapping[str, Any]) -> None:
        records.write(path, value)

    def read(self, mounts: list[Mount] = MOUNTS) -> tuple[dict[str, Any], list[str]]:
        found = Objects(self.places, mounts, units=[str(self.root / "stowaged.service")])
        return found.read(), found.problems


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that passes for the host's data location; marks of owners need root (tests/host)."""
    folder = tmp_path / "folder"
    for part in ("drives", ".stowage-trash/pending"):
        (folder / part).mkdir(parents=True)

    def read_mark(fd: int) -> Mark | None:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))
        copy = ".".join(name.split(".")[:2])  # aside it has a longer name
        return Mark("copy", copy, "c-1", "gpu-01", None, 1, 1.0) if name.startswith("ml.") else None

    monkeypatch.setattr(data_locations, "open_verified", lambda location, mounts: os.open(folder, os.O_RDONLY))
    monkeypatch.setattr(data_locations, "read_mark", read_mark)
    return folder


def _copy(workspace: str, drive: str, **fields: Any) -> dict[str, Any]:
    return {"workspace": workspace, "drive": drive, "identity": "c-1", "path": "", "complete": True, **fields}


def test_a_bare_host(host: Host) -> None:
    report, problems = host.read()
    assert report == {
        "layout": None,
        "data_location": None,
        "former_data_locations": [],
        "drives": {},
        "copies": {},
        "fills": {},
        "accounts": None,
        "network_mounts": [],
        "network_exports": [],
        "tiers": [],
        "volumes": [],
        "relocations": [],
        "leases": [],
        "eviction": None,
        "events": [],
        "gate": {
            "open": False,
            "holds": [
                {
                    "reason": "stale",
                    "text": "the daemon has not judged since this host was started: systemctl status stowaged",
                    "user": "",
                    "team": "",
                }
            ],
            "unknown": [],
            "judged": None,
            "stale": True,
            "watermark_pct": None,
        },
        "daemon": {"installed": False, "running": False, "last_cycle_age_s": None},
    }
    assert problems == []


def test_the_data_location_and_its_copies(host: Host, folder: Path) -> None:
    host.put(host.places.data_location_json, LOCATION)
    for name in ("ml.a", "ml.b"):
        (folder / "drives" / name).mkdir()
        workspace, drive = name.split(".")
        host.put(f"{host.places.copies_dir}/{name}.json", _copy(workspace, drive, bytes=100, allocated=4096, files=3))
    (folder / "drives" / "file").touch()
    host.put(f"{host.places.copies_dir}/ml.gone.json", _copy("ml", "gone", bytes=7, allocated=4096))
    report, problems = host.read()
    location = report["data_location"]
    assert (location["path"], location["max_bytes"], location["available"]) == ("/mnt/nvme0/stowage", 500, True)
    assert location["free_bytes"] > 0 and location["used_bytes"] == 8192
    assert {name: copy["present"] for name, copy in report["copies"].items()} == {
        "ml.a": True,
        "ml.b": True,
        "ml.gone": False,
    }
    assert (report["copies"]["ml.a"]["bytes"], report["copies"]["ml.a"]["last_used"]) == (100, None)
    assert problems == []


def test_only_copies_are_copies(host: Host, folder: Path) -> None:
    host.put(host.places.data_location_json, LOCATION)
    for name in ("drives/ml.a", "drives/backup of bob", "drives/lost+found", ".stowage-trash/pending/ml.b.full-1-2"):
        (folder / name).mkdir()
    (folder / "drives" / "ml.file").touch()
    for drive in ("a", "b"):
        host.put(f"{host.places.copies_dir}/ml.{drive}.json", _copy("ml", drive, bytes=100, allocated=4096))
    report, problems = host.read()
    assert {name: (copy["present"], copy["aside"]) for name, copy in report["copies"].items()} == {
        "ml.a": (True, False),
        "ml.b": (False, True),
    }
    location = report["data_location"]
    drives = "/mnt/nvme0/stowage/drives"
    assert location["strangers"] == [f"{drives}/backup of bob", f"{drives}/lost+found", f"{drives}/ml.file"]
    assert location["used_bytes"] == 8192  # what is aside takes its room still
    assert problems == []


def test_figures_of_an_earlier_copy_are_not_those_of_a_later_one(host: Host, folder: Path) -> None:
    host.put(host.places.data_location_json, LOCATION)
    (folder / "drives" / "ml.a").mkdir()
    earlier = {**_copy("ml", "a", bytes=100, allocated=4096, last_used=5.0), "identity": "earlier"}
    host.put(f"{host.places.copies_dir}/ml.a.json", earlier)
    (copy,) = host.read()[0]["copies"].values()
    assert (copy["identity"], copy["bytes"], copy["last_used"], copy["drive"]) == ("c-1", None, None, "a")


def test_a_copy_that_has_not_been_measured_is_unknown_not_zero(host: Host, folder: Path) -> None:
    host.put(host.places.data_location_json, LOCATION)
    (folder / "drives" / "ml.new").mkdir()
    report, _problems = host.read()
    assert report["copies"]["ml.new"]["bytes"] is None
    assert report["copies"]["ml.new"]["workspace"] == "ml"
    assert report["data_location"]["used_bytes"] is None


def test_a_data_location_that_is_not_mounted(host: Host) -> None:
    host.put(host.places.data_location_json, LOCATION)
    host.put(f"{host.places.copies_dir}/ml.a.json", _copy("ml", "a", bytes=100, allocated=4096))
    report, problems = host.read()
    assert report["data_location"]["available"] is False
    assert report["data_location"]["free_bytes"] is None
    assert report["copies"]["ml.a"]["present"] is None and report["copies"]["ml.a"]["bytes"] == 100
    assert len(problems) == 1 and problems[0].startswith("data location /mnt/nvme0/stowage: ")


def test_a_shared_filesystem_in_its_place_is_not_asked(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_locations, "open_verified", lambda location, mounts: pytest.fail("it was opened"))
    host.put(host.places.data_location_json, {**LOCATION, "path": "/lustre/stowage"})
    report, problems = host.read()
    assert report["data_location"]["available"] is False
    assert problems == ["data location /lustre/stowage: a shared filesystem (lustre) is there now"]


def test_the_layout_with_what_the_daemon_knows(host: Host) -> None:
    host.put(
        host.places.layout_json,
        {
            "root": "/srv/stowage",
            "volume_root": None,
            "protected_paths": ["/var/lib/postgresql"],
            "environment_prefix": "STOWAGE_",
            "locations": {
                "runs": {
                    "path": "/mnt/nvme0/runs",
                    "override": True,
                    "require_mount": True,
                    "mount_point": "/mnt/nvme0",
                },
                "cache": {"path": "/mnt/x/c", "override": True, "require_mount": True, "mount_point": "/mnt/x"},
                "state": {"path": "/srv/stowage/state", "override": False, "require_mount": False},
            },
        },
    )
    known = {"location": "runs", "path": "/mnt/nvme0/runs", "bytes": 9, "files": 2, "complete": True, "measured": 5.0}
    host.put(f"{host.places.state_dir}/locations.json", {"locations": [known]})
    report, problems = host.read()
    assert report["layout"]["protected_paths"] == ["/var/lib/postgresql"]
    locations = report["layout"]["locations"]
    assert {name: (one["mount"], one["mounted"], one["bytes"]) for name, one in locations.items()} == {
        "runs": ("/mnt/nvme0", True, 9),
        "cache": ("/", False, None),
        "state": ("/", None, None),
    }
    assert problems == []


def test_the_mount_of_a_location_over_a_link_is_where_it_leads(host: Host) -> None:
    (host.root / "scratch").symlink_to("/lustre")
    location = {"path": f"{host.root}/scratch/runs", "override": False, "require_mount": False}
    host.put(host.places.layout_json, {"locations": {"runs": location}})
    report, _problems = host.read()
    assert report["layout"]["locations"]["runs"]["mount"] == "/lustre"


def test_drives_with_their_sources(host: Host) -> None:
    spec = {
        "sources": [{"node_scope": "", "node": "gpu-01", "path": "/data/imagenet"}],
        "evictable": False,
        "size_hint_bytes": 0,
    }
    drive = {"metadata": {"name": "imagenet"}, "spec": spec, "identity": "d-1", "state": "present", "force": False}
    gone = {"metadata": {"name": "old"}, "spec": None, "identity": "d-2", "state": "absent", "force": False}
    host.put(f"{host.places.drives_dir}/ml.json", {"workspace": "ml", "host": "gpu-01", "drives": [drive, gone]})
    known = {"workspace": "ml", "drive": "imagenet", "source": 0, "available": True, "answers": True, "bytes": 12}
    host.put(f"{host.places.state_dir}/drives.json", {"drives": [known]})
    report, problems = host.read()
    one, two = report["drives"]["ml"]
    assert (one["name"], one["sources"][0]["path"], one["sources"][0]["bytes"]) == ("imagenet", "/data/imagenet", 12)
    assert (two["state"], two["sources"], two["size_hint_bytes"]) == ("absent", [], 0)
    assert problems == []


def _drive(name: str) -> dict[str, Any]:
    spec = {"sources": [{"node_scope": "placed", "path": ""}], "evictable": False}
    return {"metadata": {"name": name}, "spec": spec, "identity": "id", "state": "present", "force": False}


def test_network_mounts_and_exports(host: Host) -> None:
    same: dict[str, Any] = {"workspace": "ml", "drive": "imagenet", "reason": "", "time": 5.0, "read_only": True}
    mount = {
        **same,
        "source": 0,
        "node": "gpu-02",
        "state": "Bound",
        "path": "/var/lib/stowage/datavolumes/mounts/ml.imagenet-0",
        "server_address": "10.0.0.2",
        "export": "/srv/imagenet",
        "transport": "Auto",
        "proto": "rdma",
        "message": "",
    }
    host.put(mounts_path(host.places), {"mounts": [mount, {**mount, "source": 1, "state": "Pending"}]})
    known = {"workspace": "ml", "drive": "imagenet", "source": 0, "answers": True, "available": False}
    host.put(f"{host.places.state_dir}/network_mounts.json", {"mounts": [known], "error": ""})
    export = {
        **same,
        "source": 0,
        "client": "gpu-03",
        "address": "10.0.0.3",
        "path": "/srv/other",
        "fsid": "f-1",
        "mount_point": "",
        "state": "Exported",
        "serial": "s-1",
        "renewed": 5.0,
    }
    host.put(exports_path(host.places), {"exports": [export]})
    report, problems = host.read()
    one, two = report["network_mounts"]
    told = {key: value for key, value in mount.items() if key not in ("server_address", "export", "transport")}
    assert one == {**told, "answers": True, "available": False}
    assert (two["state"], two["answers"], two["available"]) == ("Pending", None, None)
    (shared,) = report["network_exports"]
    told = {key: value for key, value in export.items() if key not in ("address", "mount_point")}
    assert shared == {**told, "client_address": "10.0.0.3"} and problems == []
    host.put(mounts_path(host.places), {})
    report, problems = host.read()
    assert report["network_mounts"] == [] and len(report["network_exports"]) == 1
    assert len(problems) == 1 and "network_mounts.json" in problems[0]


def _pin(number: int, use: Use, state: str, deadline: float, boot_id: str, worker: str = "w0", pid: int = 0) -> Pin:
    more = {"state": state, "deadline": deadline, "boot_id": boot_id, "created": 5.0, "pid": pid}
    return records.typed(Pin, {"run": "r1", "number": number, "worker": worker, **use._asdict(), **more})


def test_volumes(host: Host) -> None:
    filesystem = {"fstype": "nfs4", "uuid": None, "source": "nas-1:/models"}
    volume = {"require_mount": True, "mount_point": "/srv/v", "filesystem": filesystem}
    grant = {"sub_path": "", "users": ["ann"], "teams": [], "runs": []}
    declared = [
        {"name": "data", "path": "/srv/v/data", **volume, "grants": []},
        {"name": "models", "path": "/srv/v/models", **volume, "grants": [grant, grant]},
    ]
    host.put(host.places.volumes_json, {"volumes": declared})
    host.put(f"{host.places.state_dir}/volumes.json", {"volumes": [{"volume": "models", "available": False}]})
    use = Use("", "", 0, "/srv/v/models", "", "ReadOnly", "/volumes/models", "models", "ann/e/1")
    live = _pin(1, use, "reserved", holders.boot_time() + 60, holders.boot_id())
    host.put(live.record_path(host.places), live.to_json())
    report, problems = host.read()
    assert problems == [] and report["volumes"] == [
        {"name": "data", "path": "/srv/v/data", "available": None, "grants": 0, "used_by": []},
        {"name": "models", "path": "/srv/v/models", "available": False, "grants": 2, "used_by": ["r1/w0"]},
    ]
    (lease,) = report["leases"]
    assert (lease["volume"], lease["run_of"], lease["copy"]) == ("models", "ann/e/1", "")


def test_leases_and_the_daemon(host: Host) -> None:
    use = Use("ml", "a", 0, "", "", "ReadOnly", "/data")
    live = _pin(1, use, "reserved", holders.boot_time() + 60, holders.boot_id())
    ended = _pin(2, use._replace(source_path="/scratch"), "leased", 9.0, "an earlier boot", worker="w1", pid=5)
    for pin in (live, ended):
        host.put(pin.record_path(host.places), pin.to_json())
    host.put(f"{host.places.pins_dir}/r2/1.json", {"run": "r2"})
    drives = [_drive("a"), _drive("b")]
    host.put(drive_records.record_path(host.places, "ml"), {"workspace": "ml", "host": "gpu-01", "drives": drives})
    host.put(f"{host.places.state_dir}/cycle.json", {"time": time.time() - 7, "cycle_s": 10})
    (host.root / "stowaged.service").touch()
    Path(host.places.daemon_lock).touch()
    assert host.read()[0]["daemon"]["running"] is False
    with open(host.places.daemon_lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        report, problems = host.read()
        host.put(f"{host.places.state_dir}/cycle.json", {"time": time.time() - 40, "cycle_s": 10})
        assert host.read()[0]["daemon"]["running"] is False, "three cycles did not come"
    one, two = report["leases"]
    assert 0 < one.pop("left_s") <= 60 and two["left_s"] == 0, "in no clock's time"
    duration = {"state": "reserved", "created": 5.0, "ended": ""}
    where = {"path": live.path(host.places), "copy": "ml.a"}
    assert one == {"run": "r1", "number": 1, "worker": "w0", **use._asdict(), **duration, **where}
    assert (two["copy"], two["ended"]) == ("", "the host was restarted since it was taken")
    assert [drive["used_by"] for drive in report["drives"]["ml"]] == [["r1/w0"], []]
    assert len(problems) == 1 and problems[0].startswith("pin r2/1: its record cannot be used")
    assert report["daemon"]["installed"] is True and report["daemon"]["running"] is True
    assert 7 <= report["daemon"]["last_cycle_age_s"] < 60


def test_the_last_events(host: Host) -> None:
    for number in range(25):
        events.record(host.places, object="drive/ml/a", reason="Evicted", message=f"copy {number}\x1b[0m", copy="ml.a")
    found = host.read()[0]["events"]
    assert [one["message"] for one in found] == [f"copy {number}\\x1b[0m" for number in range(5, 25)]
    assert set(found[0]) == {"time", "object", "reason", "message"} and found[0]["time"] > 0


def test_events_that_cannot_be_read_are_not_known(host: Host) -> None:
    os.makedirs(host.places.events)
    report, problems = host.read()
    assert report["events"] is None
    assert problems == [f"{host.places.events}: Is a directory"]


@pytest.mark.parametrize(
    "name",
    [
        "layout_json",
        "data_location_json",
        "former_locations_json",
        "drives_dir",
        "copies_dir",
        "state_dir",
        "volumes_json",
    ],
)
def test_a_damaged_record_is_a_problem_to_tell(host: Host, name: str) -> None:
    path = getattr(host.places, name)
    if name.endswith("_dir"):
        path += {"drives_dir": "/ml.json", "copies_dir": "/ml.a.json", "state_dir": "/cycle.json"}[name]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(path).write_text("{")
    report, problems = host.read()
    assert len(problems) == 1 and problems[0].startswith(f"{path}: not valid JSON")
    json.dumps(report)


@pytest.mark.parametrize("name", ["tiers_json", "tiers_found_json", "claims_json"])
def test_tiers_of_a_damaged_record_are_not_known_rather_than_none(host: Host, name: str) -> None:
    path = Path(getattr(host.places, name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{")
    report, problems = host.read()
    assert report["tiers"] is None
    assert len(problems) == 1 and problems[0].startswith(f"{path}: not valid JSON")


def test_a_directory_that_may_not_be_read_is_a_problem(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(places: Places) -> None:
        raise PermissionError(13, "Permission denied", "/etc/stowage/drives")

    monkeypatch.setattr(objects.drive_records, "workspaces", refuse)
    assert host.read()[1] == ["/etc/stowage/drives: Permission denied"]


def test_what_is_in_the_way_of_a_data_location(host: Host) -> None:
    host.put(
        host.places.layout_json, {"locations": {"hf_hub_cache": {"path": "/mnt/nvme1"}}, "volume_root": "/volumes"}
    )
    source = {"node_scope": "", "node": "gpu-01", "path": "/mnt/data/imagenet", "eligible_nodes": []}
    drive = drive_records.Drive("ml", {"name": "imagenet"}, {"sources": [source], "evictable": False}, "i-1")
    host.put(drive_records.record_path(host.places, "ml"), dict(drive_records.as_record("ml", "gpu-01", [drive])))
    host.put(host.places.claims_json, {"claims": {"/mnt/tier/kv": {"kind": "tier", "name": "kv", "identity": "t"}}})
    host.put(host.places.data_location_json, LOCATION)
    objects = Objects(host.places, MOUNTS)
    assert {
        folder: objects.in_the_way(folder)
        for folder in (
            "/mnt/nvme1/stowage",
            "/volumes/stowage",
            "/mnt/data",
            "/mnt/tier",
            "/mnt/nvme0/stowage",
            "/mnt/nvme0",
            "/mnt/free/stowage",
        )
    } == {
        "/mnt/nvme1/stowage": "hf_hub_cache",
        "/volumes/stowage": "the volume root",
        "/mnt/data": "source 0 of drive ml/imagenet",
        "/mnt/tier": "the tier kv",
        "/mnt/nvme0/stowage": None,  # the data location, which may be chosen again
        "/mnt/nvme0": "the data location",
        "/mnt/free/stowage": None,
    }
    assert not objects.problems
