# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon asks after volumes, and neither measures them nor counts their filesystems among this host's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from stowage_core import events, records
from stowage_core.mounts import FilesystemId, parse
from stowage_core.places import Places
from stowage_core.volumes import recorded
from stowage_core.volumes.declared import Grant
from stowage_core.volumes.recorded import Volume
from stowaged import declared, metrics, status
from stowaged.children import Children
from stowaged.declared import Target
from stowaged.engines import Engines
from stowaged.figures import Figures
from stowaged.hung import Hung
from stowaged.last_measured import record_path
from stowaged.loop import Loop
from stowaged.sections import Sections
from stowaged.settings import Settings
from stowaged.volumes import Volumes

NFS = FilesystemId("nfs4", None, "nas-1:/models")
GRANTS = (Grant("", users=("ann",)),)
MODELS = Volume("models", "/srv/volumes/models", True, "/srv/volumes/models", NFS, GRANTS)
RUNS = Volume("runs", "/srv/volumes/runs", False, "/", FilesystemId("ext4", "u-1", "/dev/sda1"), ())
TARGETS = (
    Target("volume/models", MODELS.path, NFS, MODELS.path),
    Target("volume/runs", RUNS.path),
)
GONE = {"available": False, "reason": "/srv/volumes/models: nothing is mounted at /srv/volumes/models; mount its disk"}
THERE = {"available": True, "reason": ""}


def test_volumes_are_declared_and_read_again_when_they_change(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    before = declared.stamp(places)
    records.write(places.volumes_json, recorded.as_record([MODELS, RUNS]))
    assert declared.stamp(places) != before
    found = declared.load(places, "gpu-01")
    assert found.volumes == found.asked == TARGETS and found.measured == ()


def test_a_volume_is_not_taken_for_the_location_of_its_name(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    assert record_path(places, "volume/runs") != record_path(places, "location/runs")


def test_volumes_are_never_measured(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    with contextlib.closing(Loop()) as loop:
        children = Children(loop)
        hung = Hung(children)
        engines = Engines(places, children, hung, _Writer(), print)  # type: ignore[arg-type]
        figures = Figures(places, children, engines, hung, print, lambda: None)
        figures.declare(declared.Declared(volumes=TARGETS), {})
        filesystem = {"id": "0:50", "mountpoint": MODELS.path, "device": "nas-1:/models", "fstype": "nfs4"}
        figures.answered({one.object: {"object": one.object, **THERE, "filesystem": filesystem} for one in TARGETS})
        table = parse(b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
        figures.measure_when_due(table, Settings())
        assert not children.running("measure/8:1")
        sections = Sections(places, print)
        figures.publish(sections)
        assert sections.last("filesystems") == {"filesystems": []}
        assert sections.last("locations") == {"locations": []}


class _Writer:
    """Writes at once."""

    def do(self, writing: Callable[[], str]) -> None:
        assert writing() == ""


def test_an_event_when_a_volume_goes_and_when_it_is_there_again(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))

    def started() -> Volumes:
        writer: Any = _Writer()
        return Volumes(places, Sections(places, print), writer)

    def told() -> list[tuple[str, str]]:
        return [(one["object"], one["reason"]) for one in events.read(places)]

    volumes = started()
    for _cycle in range(2):
        volumes.look(TARGETS, {"volume/models": THERE, "volume/runs": THERE, "location/runs": GONE})
    assert told() == []
    for _cycle in range(2):
        volumes.look(TARGETS, {"volume/models": GONE, "volume/runs": {**THERE}})
    assert told() == [("volume/models", "VolumeMissing")]
    # It is the same one after a start.
    volumes = started()
    volumes.look(TARGETS, {"volume/models": {**GONE, "hung": True}, "volume/runs": THERE})
    assert len(told()) == 1
    section = records.read(f"{places.state_dir}/volumes.json") or {}
    assert section["volumes"][0] == {
        "volume": "models",
        "path": MODELS.path,
        "available": False,
        "answers": False,
        "reason": GONE["reason"],
    }
    volumes.look(TARGETS, {"volume/models": THERE, "volume/runs": THERE})
    assert told()[1:] == [("volume/models", "VolumeThere")]
    assert events.read(places)[0]["message"] == GONE["reason"]


SECTION = {
    "volumes": [
        {"volume": "models", "path": MODELS.path, "available": False, "answers": True, "reason": GONE["reason"]},
        {"volume": "runs", "path": RUNS.path, "available": True, "answers": True, "reason": ""},
    ]
}


def test_metrics_and_status() -> None:
    (family,) = text_string_to_metric_families(metrics.render("volumes", SECTION).decode())
    assert family.name == "stowage_volume_available"
    assert [(one.labels["volume"], one.value) for one in family.samples] == [("models", 0.0), ("runs", 1.0)]
    leases = {"used_by": {}, "volumes_used_by": {"models": ["r/w0", "r/w1"]}}
    lines = status.render({"volumes": SECTION, "leases": leases}, 80)
    start = lines.index("Volumes")
    shown = [line.split() for line in lines[start + 1 : start + 4]]
    assert shown[0] == ["Volume", "Path", "Workers", "State"]
    assert shown[1] == ["models", MODELS.path, "2", "unavailable"] and shown[2][-2:] == ["0", "ok"]
    assert "nothing is mounted at" in " ".join(lines[start + 4 :])
