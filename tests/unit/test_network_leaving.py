# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Taking all network mounts and exports of a host away."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from network_lab import Host

from stowage_core import own_files
from stowage_core.differences import Differences
from stowage_core.errors import Refusal, StowageError
from stowage_core.facts import networks
from stowage_core.network_mounts import at_boot, leaving, records
from stowage_core.network_mounts.asked import Asked
from stowage_core.network_mounts.exports import Export
from stowage_core.runs import pins
from stowage_core.services.systemd_units import mount_unit

ASKED = Asked("vision", "imagenet", 0, "gpu-09", "192.0.2.19", "/mnt/imagenet", True, "Auto", False)
EXPORT = Export("vision", "coco", 0, "gpu-02", "192.0.2.12", "/mnt/coco", True, "f", "")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def leave(host: Host, check_mode: bool = False) -> Differences:
    differences = Differences(check_mode)
    client, _differences = host.call(check_mode)
    exporting, _differences = host.exporting(check_mode)
    client.differences = exporting.differences = differences
    own = [path for path in leaving.candidates(host.places) if own_files.is_there(path)]
    leaving.leave(client, exporting, own)
    return differences


def export(host: Host, state: str, live: bool = True) -> None:
    host.exports.mkdir(exist_ok=True)
    Path(EXPORT.file).write_bytes(EXPORT.content)
    host.etab.write_text("/srv/theirs\t*(ro)\n" + (f"/mnt/coco\t192.0.2.12({','.join(EXPORT.options)})\n" * live))
    records.write_exports(host.places, [records.of_export(EXPORT, state)])


def left(host: Host) -> list[str]:
    found = [*host.units.rglob("*.mount"), *host.exports.rglob("*.exports")]
    return sorted(path.name for path in found)


def test_everything_goes_as_it_is_predicted_and_what_others_have_stays(host: Host) -> None:
    host.make(ASKED)
    export(host, "Released")
    (host.exports / "stowage-theirs.exports").write_text("/srv *(ro)\n")
    predicted = leave(host, check_mode=True)
    done = leave(host)
    assert (predicted.diff(), predicted.actions) == (done.diff(), done.actions)
    assert done.actions[-2:] == [f"remove {EXPORT.file}", "withdraw /mnt/coco from 192.0.2.12"]
    assert left(host) == ["stowage-theirs.exports"]
    assert (host.etab.read_text(), host.mounted) == ("/srv/theirs\t*(ro)\n", {})
    assert records.load_exports(host.places)[0].state == records.load_mounts(host.places)[0].state == "Released"
    assert not leave(host).changed


def test_nothing_changes_while_a_run_uses_a_mount(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.make(ASKED)
    export(host, "Failed")
    before = left(host)
    pin = SimpleNamespace(workspace="vision", drive="imagenet", source=0, held_by="tune/w0")
    monkeypatch.setattr(pins, "all_pins", lambda _places: [pin])
    with pytest.raises(Refusal) as refused:
        leave(host)
    assert str(refused.value) == (
        "network mount of drive vision/imagenet from gpu-09: tune/w0 uses it; release the run"
    )
    assert (left(host), len(host.mounted)) == (before, 1)


def test_nothing_changes_while_a_process_is_busy_in_a_mount(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.make(ASKED)
    monkeypatch.setattr(leaving, "busy_in", lambda ids: {one: {os.getpid()} for one in ids})
    with pytest.raises(Refusal, match=r"uses /.*/mounts/vision.imagenet-0; end that"):
        leave(host)
    assert host.mounted
    monkeypatch.setattr(leaving, "answering", lambda _paths: set())  # it waits for a server that is down
    leave(host)
    assert not host.mounted


def test_a_mount_that_cannot_be_unmounted_says_so(host: Host) -> None:
    (record,), _differences = host.make(ASKED)
    export(host, "Released")
    host.busy = {mount_unit(record.path)}
    with pytest.raises(StowageError, match="cannot be unmounted: something uses it"):
        leave(host)
    assert Path(EXPORT.file).exists()


def test_what_is_exported_is_refused_with_whom_it_is_for(host: Host) -> None:
    host.make(ASKED)
    for state, check_mode in (("Exported", True), ("Exported", False), ("Failed", False)):
        export(host, state)  # what failed later may be mounted as well
        with pytest.raises(Refusal) as refused:
            leave(host, check_mode)
        assert str(refused.value) == (
            "exports: these machines may have drives of this one mounted: gpu-02 (vision/coco); "
            "release the runs there; of a machine that is gone for good, withdraw them with module nfs_exports"
        )
    assert len(host.mounted) == 1 and Path(EXPORT.file).exists()


def test_an_export_that_the_server_keeps_says_so(host: Host) -> None:
    export(host, "Released")
    host.stubborn = True
    with pytest.raises(StowageError, match=r"/mnt/coco: the server still exports it to 192\.0\.2\.12; see exportfs -v"):
        leave(host)


def test_a_host_without_the_tools_of_nfs(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not leave(host).changed
    export(host, "Failed")
    monkeypatch.setattr(networks, "nfs", lambda: networks.Nfs(dict.fromkeys(networks._TOOLS), ()))
    assert leave(host).actions == [f"remove {EXPORT.file}"]


def test_units_without_a_record_go(host: Host) -> None:
    (record,), _differences = host.make(ASKED)
    os.unlink(records.mounts_path(host.places))
    name = mount_unit(record.path)
    assert leave(host).actions == [
        f"unmount {record.path}",
        f"remove {host.units / name}",
        "systemctl daemon-reload",
        f"systemctl stop {at_boot.SERVICE}",
        f"remove {at_boot.path()}",
        f"remove {at_boot.link()}",
        "systemctl daemon-reload",
    ]
    assert left(host) == [] and not host.mounted


def test_a_unit_that_does_not_say_what_it_is_of_goes_unless_something_is_mounted(host: Host) -> None:
    (record,), _differences = host.make(ASKED)
    os.unlink(records.mounts_path(host.places))
    unit = host.units / mount_unit(record.path)
    unit.write_text(unit.read_text().replace("Description=Stowage: drive", "Description=Stowage: mount of"))
    with pytest.raises(Refusal, match="is mounted, and there is no record of it; systemctl stop "):
        leave(host)
    host.mounted.clear()
    assert leave(host).actions[-1] == f"remove {unit}"
    assert left(host) == []


def test_nothing_changes_while_a_run_is_about_to_use_a_mount(host: Host) -> None:
    host.make(ASKED, run="tune")
    with pytest.raises(Refusal) as refused:
        leave(host)
    assert str(refused.value) == (
        "network mount of drive vision/imagenet from gpu-09: run tune is about to use it; release the run"
    )
    assert host.mounted


def test_an_export_without_a_record_may_be_mounted(host: Host) -> None:
    export(host, "Released")
    os.unlink(records.exports_path(host.places))
    with pytest.raises(Refusal, match=r"may have drives of this one mounted: gpu-02 \(vision/coco\)"):
        leave(host)


def test_a_file_that_does_not_say_what_is_exported(host: Host) -> None:
    export(host, "Released")
    os.unlink(records.exports_path(host.places))
    Path(EXPORT.file).write_text(f"{own_files.HEADER}\n")
    with pytest.raises(Refusal, match="there is no record of it; see that its machine has not mounted it"):
        leave(host)
