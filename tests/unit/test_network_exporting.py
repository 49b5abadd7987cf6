# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exports made and withdrawn on a host whose server is stood in for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from network_lab import Host

from stowage_core.differences import Differences
from stowage_core.errors import Refusal
from stowage_core.network_mounts import exporting, records
from stowage_core.network_mounts.exporting import Asked
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


def export(host: Host, monkeypatch: pytest.MonkeyPatch, refusal: str = "") -> tuple[ExportRecord, Differences]:
    def looked_at(_self: object, _one: Asked) -> Export:
        if refusal:
            raise Refusal("drive vision/coco", refusal)
        return EXPORT

    monkeypatch.setattr(exporting.Exporting, "_looked_at", looked_at)
    made, differences = host.exporting()
    (record,), _no_rdma = made.export([ASKED])
    return record, differences


def withdraw(host: Host) -> tuple[list[ExportRecord], Differences]:
    made, differences = host.exporting()
    return made.withdraw([EXPORT.key]), differences


def test_an_export_is_made_once_and_withdrawn_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    record, differences = export(host, monkeypatch)
    assert (record.state, differences.changed) == ("Exported", True)
    assert Path(EXPORT.file).read_bytes() == EXPORT.content and "/mnt/coco\t192.0.2.12(ro," in host.etab.read_text()
    again, differences = export(host, monkeypatch)
    assert (again, differences.changed) == (record, False)
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


def test_what_failed_half_way_is_not_forgotten_when_it_is_refused_later(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.stubborn = True
    failed, _differences = export(host, monkeypatch)
    assert failed.state == "Failed" and Path(EXPORT.file).exists()
    refused, _differences = export(host, monkeypatch, "its disk is away")
    assert (refused.path, refused.state) == ("/mnt/coco", "Failed") and not Path(EXPORT.file).exists()


def test_what_is_refused_from_the_first_is_recorded_with_why(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    refused, differences = export(host, monkeypatch, "its disk is away")
    assert (refused.path, refused.is_over, differences.changed) == ("", True, False)
    assert export(host, monkeypatch, "its disk is away")[0] == refused == records.load_exports(host.places)[0]
    assert withdraw(host)[0][0].state == "Released"
