# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exports made and withdrawn on a host whose server is stood in for."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from network_lab import Host

from stowage_core.differences import Differences
from stowage_core.errors import Refusal
from stowage_core.network_mounts import exporting, records
from stowage_core.network_mounts.exporting import Asked, Key
from stowage_core.network_mounts.exports import Export
from stowage_core.network_mounts.records import ExportRecord
from stowage_core.network_mounts.server import Server

EXPORT = Export("vision", "coco", 0, "gpu-02", "192.0.2.12", "/mnt/coco", True, "f", "")
ASKED = Asked("vision", "coco", 0, "gpu-02", "192.0.2.12", True, False)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(exporting, "check_tools", lambda: None)
    monkeypatch.setattr(Server, "start", lambda _self: None)
    made = Host(tmp_path, monkeypatch)
    made.etab.write_text("/srv/theirs\t*(ro)\n")
    return made


def export(
    host: Host, monkeypatch: pytest.MonkeyPatch, refusal: str = "", check_mode: bool = False, **wanted: Any
) -> tuple[ExportRecord, Differences]:
    """*wanted*: what is asked for otherwise than in EXPORT."""
    one = replace(EXPORT, **wanted)

    def looked_at(_self: object, _one: Asked) -> Export:
        if refusal:
            raise Refusal("drive vision/coco", refusal)
        return one

    monkeypatch.setattr(exporting.Exporting, "_looked_at", looked_at)
    made, differences = host.exporting(check_mode)
    (record,), _no_rdma = made.export([replace(ASKED, workspace=one.workspace, read_only=one.read_only)])
    return record, differences


def withdraw(host: Host, serial: str = "", key: Key = EXPORT.key) -> tuple[list[ExportRecord], Differences]:
    made, differences = host.exporting()
    return made.withdraw({key: serial}), differences


def recorded(host: Host) -> list[ExportRecord]:
    return records.load_exports(host.places)


def renewed(one: ExportRecord, other: ExportRecord) -> ExportRecord:
    """Return *one* with the serial of *other*: nothing else may differ."""
    return replace(one, serial=other.serial, renewed=other.renewed)


def test_an_export_is_made_once_and_withdrawn_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    record, differences = export(host, monkeypatch)
    assert (record.state, differences.changed) == ("Exported", True)
    assert Path(EXPORT.file).read_bytes() == EXPORT.content and "/mnt/coco\t192.0.2.12(ro," in host.etab.read_text()
    again, differences = export(host, monkeypatch)
    assert (renewed(again, record), differences.changed) == (record, False)
    (released,), _differences = withdraw(host)
    assert released.state == "Released" and released.time >= record.time
    assert (not Path(EXPORT.file).exists(), host.etab.read_text()) == (True, "/srv/theirs\t*(ro)\n")
    again_released, differences = withdraw(host)
    assert (again_released, differences.changed) == ([released], False)


def test_a_withdrawal_that_was_only_recorded_is_finished(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    record, _differences = export(host, monkeypatch)
    records.write_exports(host.places, [replace(record, state="Released")])
    assert withdraw(host)[1].changed
    assert (Path(EXPORT.file).exists(), host.etab.read_text()) == (False, "/srv/theirs\t*(ro)\n")


def test_what_is_exported_stays_so_when_it_is_refused_later(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    export(host, monkeypatch)
    before = host.etab.read_text()
    refused, differences = export(host, monkeypatch, "its disk is away")
    assert (refused.state, refused.reason) == ("Failed", "drive vision/coco: its disk is away")
    assert not differences.changed and host.etab.read_text() == before and Path(EXPORT.file).exists()
    assert [one.state for one in records.load_exports(host.places)] == ["Exported"]


def test_what_is_exported_stays_recorded_so_when_the_server_does_not_take_it_otherwise(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _differences = export(host, monkeypatch)
    host.stubborn = True
    failed, _differences = export(host, monkeypatch, read_only=False)
    assert (failed.state, "does not have it as rw" in failed.reason) == ("Failed", True)
    (kept,) = recorded(host)
    assert (renewed(kept, record), kept.serial) == (record, failed.serial)


def test_what_failed_half_way_is_not_forgotten_when_it_is_refused_later(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.stubborn = True
    failed, _differences = export(host, monkeypatch)
    assert failed.state == "Failed" and Path(EXPORT.file).exists()
    refused, _differences = export(host, monkeypatch, "its disk is away")
    assert (refused.path, refused.state) == ("/mnt/coco", "Failed") and Path(EXPORT.file).exists()
    host.stubborn = False
    assert withdraw(host)[0][0].state == "Released" and not Path(EXPORT.file).exists()


def test_what_is_refused_from_the_first_is_recorded_with_why(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, differences = export(host, monkeypatch, "its disk is away")
    assert (refused.path, refused.is_over, differences.changed) == ("", True, False)
    assert export(host, monkeypatch, "its disk is away")[0] == refused == records.load_exports(host.places)[0]
    assert withdraw(host)[0][0].state == "Released"


# -- Nothing is withdrawn by whoever exports


@pytest.mark.parametrize(
    ("wanted", "where"),
    [({"address": "192.0.2.13"}, "to 192.0.2.12"), ({"path": "/mnt/new", "fsid": "g"}, "as /mnt/coco")],
)
def test_what_is_exported_otherwise_stays_so(
    host: Host, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str], where: str
) -> None:
    record, _differences = export(host, monkeypatch)
    before = host.etab.read_text()
    other, differences = export(host, monkeypatch, **wanted)
    reason = f"drive vision/coco source 0 to gpu-02: it is exported {where} still; release its runs on gpu-02 first"
    assert renewed(other, record) == replace(record, reason=reason) and other.serial != record.serial
    assert not differences.changed and host.etab.read_text() == before
    assert Path(EXPORT.file).read_bytes() == EXPORT.content
    assert recorded(host) == [replace(other, reason="")]
    assert withdraw(host, other.serial)[0][0].state == "Released"
    made, _differences = export(host, monkeypatch, **wanted)
    assert (made.state, made.reason) == ("Exported", "") and "/mnt/coco\t192.0.2.12(" not in host.etab.read_text()


def test_what_was_withdrawn_in_the_records_only_stays_until_it_is_withdrawn(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _differences = export(host, monkeypatch)
    records.write_exports(host.places, [replace(record, state="Released")])
    before = host.etab.read_text()
    other, differences = export(host, monkeypatch, address="192.0.2.13")
    assert (other.state, other.address, differences.changed) == ("Failed", "192.0.2.12", False)
    assert "it is exported to 192.0.2.12 still; release its runs on gpu-02 first" in other.reason
    assert host.etab.read_text() == before and recorded(host) == [other]
    assert export(host, monkeypatch, "its disk is away")[0].path == "/mnt/coco"
    withdraw(host)
    assert host.etab.read_text() == "/srv/theirs\t*(ro)\n"


# -- Withdrawing what its client has asked for once more


def test_what_was_exported_anew_is_not_withdrawn_by_an_earlier_release(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _differences = export(host, monkeypatch)
    again, differences = export(host, monkeypatch)
    assert again.serial != record.serial and again.renewed >= record.renewed and not differences.changed
    before = host.etab.read_text()
    (kept,), differences = withdraw(host, record.serial)
    assert kept == replace(again, reason="it was exported anew in between")
    assert not differences.changed and host.etab.read_text() == before and recorded(host) == [again]
    (released,), _differences = withdraw(host, again.serial)
    assert (released.state, host.etab.read_text()) == ("Released", "/srv/theirs\t*(ro)\n")


@pytest.mark.parametrize(("age", "state"), [(3590, "Exported"), (3610, "Released"), (-3610, "Released")])
def test_what_nobody_came_to_mount_is_withdrawn_after_an_hour(
    host: Host, monkeypatch: pytest.MonkeyPatch, age: float, state: str
) -> None:
    record, _differences = export(host, monkeypatch)
    records.write_exports(host.places, [replace(record, renewed=record.renewed - age)])
    assert withdraw(host, "another")[0][0].state == state


def test_without_a_serial_whatever_there_is_is_withdrawn(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    export(host, monkeypatch)
    assert withdraw(host)[0][0].state == "Released"


def test_nothing_is_renewed_in_check_mode(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    record, _differences = export(host, monkeypatch)
    assert not export(host, monkeypatch, check_mode=True)[1].changed
    assert recorded(host) == [record]


# -- Somebody else's exports


@pytest.mark.parametrize("options", ["rw,no_root_squash", "ro,fsid=0"])
def test_what_somebody_else_exports_is_refused(host: Host, monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    theirs = f"/mnt/coco\t192.0.2.12({options})\n"
    host.etab.write_text(theirs)
    refused, differences = export(host, monkeypatch)
    assert (refused.state, refused.path, differences.changed) == ("Failed", "", False)
    assert refused.reason == (
        "drive vision/coco source 0 to gpu-02: somebody else exports /mnt/coco to 192.0.2.12; "
        "withdraw that (exportfs -u 192.0.2.12:/mnt/coco), and take it out of /etc/exports"
    )
    assert withdraw(host)[0][0].state == "Released" and host.etab.read_text() == theirs


def test_what_somebody_else_has_exported_in_place_of_ours_stays(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    export(host, monkeypatch)
    theirs = "/mnt/coco\t192.0.2.12(rw,no_root_squash)\n"
    host.etab.write_text(theirs)
    (released,), differences = withdraw(host)
    assert (released.state, differences.actions) == ("Released", [f"remove {EXPORT.file}"])
    assert host.etab.read_text() == theirs


def test_an_export_that_only_its_file_remembers_is_ours(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    export(host, monkeypatch)
    os.unlink(records.exports_path(host.places))
    again, differences = export(host, monkeypatch)
    assert (again.state, differences.changed) == ("Exported", False)


# -- Lost records


def test_what_is_not_recorded_any_more_is_withdrawn_by_its_file(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    export(host, monkeypatch)
    os.unlink(records.exports_path(host.places))
    (released,), differences = withdraw(host, "any")
    assert (released.state, released.path) == ("Released", "/mnt/coco")
    assert differences.actions == [f"remove {EXPORT.file}", "withdraw /mnt/coco from 192.0.2.12"]
    assert (Path(EXPORT.file).exists(), host.etab.read_text()) == (False, "/srv/theirs\t*(ro)\n")
    assert recorded(host) == [released]


def test_an_export_that_two_drives_share_goes_with_the_last_also_without_records(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(host, monkeypatch)
    export(host, monkeypatch, workspace="audio")
    os.unlink(records.exports_path(host.places))
    withdraw(host, key=("audio", *EXPORT.key[1:]))
    assert "/mnt/coco\t192.0.2.12(" in host.etab.read_text() and Path(EXPORT.file).read_bytes() == EXPORT.content
    withdraw(host)
    assert host.etab.read_text() == "/srv/theirs\t*(ro)\n" and list(host.exports.iterdir()) == []


def test_what_nobody_knows_is_withdrawn_and_its_empty_file_goes(host: Host) -> None:
    (released,), differences = withdraw(host)
    assert (released.state, released.path, differences.changed, recorded(host)) == ("Released", "", False, [])
    host.exports.mkdir()
    Path(EXPORT.file).write_bytes(EXPORT.content.rpartition(b"/mnt")[0])
    assert withdraw(host)[1].actions == [f"remove {EXPORT.file}"]
    Path(EXPORT.file).write_text("# theirs\n")
    (failed,), _differences = withdraw(host)
    assert failed.state == "Failed" and "was not written by Stowage" in failed.reason
