# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network mounts as the daemon sees them; the children are only noted, not started."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from stowage_core import mounts, records
from stowage_core.network_mounts import mountstats
from stowage_core.network_mounts.records import MountRecord, mounts_path
from stowage_core.places import Places
from stowaged import declared, network
from stowaged.children import Ending
from stowaged.hung import LEFT_ALONE_S, Hung
from stowaged.network import NetworkMounts
from stowaged.sections import Sections

POINTS = "/var/lib/stowage/datavolumes/mounts"
ROOT = "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
ASKED = {"answers": True, "available": True, "trouble": ""}
NOT_ASKED = {"answers": None, "available": None, "trouble": ""}
HUNG = {"answers": False, "available": False, "trouble": "its server does not answer; left alone for 5 minutes"}


def record(drive: str, state: str = "Bound", **changes: Any) -> MountRecord:
    made = MountRecord(
        workspace="ml",
        drive=drive,
        source=0,
        node="gpu-01",
        state=state,
        reason="",
        time=1000.0,
        path=f"{POINTS}/ml.{drive}-0",
        server_address="10.0.0.1",
        export=f"/srv/{drive}",
        transport="Auto",
        proto="",
        read_only=True,
    )
    return dataclasses.replace(made, **changes)


def line(drive: str, device: str, source: str = "", number: int = 50) -> str:
    source = source or f"10.0.0.1:/srv/{drive}"
    return f"{number} 20 {device} / {POINTS}/ml.{drive}-0 rw - nfs4 {source} rw,vers=4.2\n"


def stats(drive: str, received: int = 100, source: str = "") -> str:
    return (
        f"device {source or f'10.0.0.1:/srv/{drive}'} mounted on {POINTS}/ml.{drive}-0 with fstype nfs4 statvers=1.1\n"
        "\topts:\trw,vers=4.2,hard,proto=rdma\n"
        "\tbytes:\t1 2 3 4 5000 600 7 8 \n"
        "\txprt:\trdma 0 0 1 0 3 220 219 0 219 0 12 40\n"
        "\tper-op statistics\n"
        f"\t        READ: 16 19 2 3200 {received} 7 830 900 1\n"
        "\t      STATFS: 4 4 0 100 0 7 20 900 1\n\n"
    )


class NotedChildren:
    """Children that are started by noting them."""

    def __init__(self) -> None:
        self.started: dict[str, tuple[Any, Any]] = {}
        self.rounds: list[str] = []

    def running(self, key: str) -> bool:
        return key in self.started

    def left_behind(self, key: str) -> bool:
        return False

    def start(self, key: str, body: Any, on_message: Any, on_end: Any, silence_s: float) -> None:
        assert key not in self.started
        self.rounds.append(key)
        self.started[key] = (on_message, on_end)


class Host:
    def __init__(self, home: Path) -> None:
        self.places = Places.under(str(home))
        self.children = NotedChildren()
        self.hung = Hung(self.children)  # type: ignore[arg-type]
        self.said: list[str] = []
        self.stats = ""
        self.network = NetworkMounts(
            self.children,  # type: ignore[arg-type]
            self.hung,
            Sections(self.places, self.said.append),
            self.said.append,
            lambda points: mountstats.parse(self.stats.encode(), points),
        )

    def look(self, table: str, *found: MountRecord, error: str = "") -> list[str]:
        """Look once and return which children were started."""
        self.children.rounds = []
        self.network.look(found, error, mounts.parse((ROOT + table).encode()))
        return self.children.rounds

    def answer(self, device: str, *drives: str, trouble: str = "", ending: Ending | None = None) -> None:
        on_message, on_end = self.children.started.pop(f"network/{device}")
        for drive in drives:
            on_message({"path": f"{POINTS}/ml.{drive}-0", "trouble": trouble})
        on_end(ending or Ending())

    def section(self) -> dict[str, Any]:
        value = records.read(f"{self.places.state_dir}/network_mounts.json")
        assert value is not None
        return value

    def shown(self, drive: str, *keys: str) -> dict[str, Any]:
        (one,) = [one for one in self.section()["mounts"] if one["drive"] == drive]
        return {key: one[key] for key in keys or ("answers", "available", "trouble")}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_mount_that_answers(host: Host) -> None:
    host.stats = stats("a")
    assert host.look(line("a", "0:50"), record("a", proto="tcp")) == ["network/0:50"]
    assert host.shown("a") == NOT_ASKED
    host.answer("0:50", "a")
    assert host.shown("a") == ASKED
    counted = {
        "read_bytes": 5000,
        "write_bytes": 600,
        "operations": 20,
        "rtt_seconds": 0.85,
        "retransmissions": 3,
        "timeouts": 2,
    }
    assert host.shown("a", *counted) == counted
    what = {"proto": "rdma", "version": "4.2", "device": "10.0.0.1:/srv/a", "state": "Bound", "node": "gpu-01"}
    assert host.shown("a", *what) == what
    # Asked again every time, and what is known stays until there is another answer.
    assert host.look(line("a", "0:50"), record("a")) == ["network/0:50"]
    assert host.shown("a") == ASKED
    assert host.look(line("a", "0:50"), record("a")) == []
    assert host.said == []


@pytest.mark.parametrize("state", ["Pending", "Exported", "Releasing", "Released", "Failed"])
def test_only_a_bound_one_is_asked(host: Host, state: str) -> None:
    host.stats = stats("a")
    assert host.look(line("a", "0:50"), record("a", state)) == []
    assert host.shown("a") == NOT_ASKED and host.shown("a", "operations") == {"operations": 20}


@pytest.mark.parametrize(
    ("table", "trouble"),
    [
        ("", "nothing is mounted there; mount it anew"),
        (
            line("a", "0:50") + line("a", "0:51", "10.0.0.9:/srv/a", 51),
            "10.0.0.9:/srv/a is mounted there instead of 10.0.0.1:/srv/a; unmount it, and mount this one",
        ),
    ],
)
def test_what_is_not_there_is_not_asked(host: Host, table: str, trouble: str) -> None:
    host.stats = stats("a") + stats("a", source="10.0.0.9:/srv/a")
    assert host.look(table, record("a")) == []
    assert host.shown("a") == {"answers": None, "available": False, "trouble": trouble}
    assert host.shown("a", "read_bytes", "operations") == {"read_bytes": None, "operations": None}
    host.look(table, record("a"))
    assert host.said == [f"{POINTS}/ml.a-0: {trouble}"]
    host.look(line("a", "0:50"), record("a"))
    host.answer("0:50", "a")
    assert host.shown("a") == ASKED
    assert host.said[1:] == [f"{POINTS}/ml.a-0: answers again"]


def test_a_dead_server_is_left_alone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    table = line("a", "0:50") + line("b", "0:51", number=51)
    host.stats = stats("a") + stats("b")
    both = (record("a"), record("b"))
    assert host.look(table, *both) == ["network/0:50", "network/0:51"]
    host.answer("0:51", "b")
    host.answer("0:50", ending=Ending("no answer", silent=True))
    assert (host.shown("a"), host.shown("b")) == (HUNG, ASKED)
    assert host.shown("a", "read_bytes") == {"read_bytes": 5000}
    for _round in range(3):
        assert host.look(table, *both) == ["network/0:51"]
        host.answer("0:51", "b")
        assert (host.shown("a"), host.shown("b")) == (HUNG, ASKED)
    assert len(host.said) == 1
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + LEFT_ALONE_S + 1)
    assert host.look(table, *both) == ["network/0:50", "network/0:51"]
    assert host.shown("a") == HUNG
    host.answer("0:50", "a")
    assert host.shown("a") == ASKED and host.said[1:] == [f"{POINTS}/ml.a-0: answers again"]


def test_a_reply_to_somebody_else_shows_that_the_server_is_back(host: Host) -> None:
    host.stats = stats("a", 100)
    host.look(line("a", "0:50"), record("a"))
    host.stats = stats("a", 150)  # what came before it was given up is no sign
    host.answer("0:50", ending=Ending("no answer", silent=True))
    assert host.look(line("a", "0:50"), record("a")) == []
    host.stats = stats("a", 151)
    assert host.look(line("a", "0:50"), record("a")) == ["network/0:50"]
    assert host.shown("a") == HUNG
    host.answer("0:50", "a")
    assert host.shown("a") == ASKED


def test_a_child_that_stays_behind_is_the_only_one(host: Host) -> None:
    host.stats = stats("a", 100)
    host.look(line("a", "0:50"), record("a"))
    host.children.started["network/0:50"][1](Ending("no answer", silent=True))  # and it does not die
    host.stats = stats("a", 200)
    assert host.look(line("a", "0:50"), record("a")) == []
    assert host.shown("a") == HUNG


def test_mounts_of_one_filesystem_have_one_child(host: Host) -> None:
    table = line("a", "0:50") + line("b", "0:50", number=51)
    assert host.look(table, record("a"), record("b")) == ["network/0:50"]
    host.answer("0:50", "a", ending=Ending("no answer", silent=True))
    assert (host.shown("a"), host.shown("b")) == (ASKED, HUNG)


def test_a_server_that_refuses_does_answer(host: Host) -> None:
    host.look(line("a", "0:50"), record("a"))
    host.answer("0:50", "a", trouble="Stale file handle; mount it anew")
    assert host.shown("a") == {"answers": True, "available": False, "trouble": "Stale file handle; mount it anew"}


def test_a_child_that_fails(host: Host) -> None:
    host.look(line("a", "0:50"), record("a"))
    host.answer("0:50", ending=Ending("network/0:50: ended with signal 9"))
    assert host.shown("a", "answers", "available") == {"answers": None, "available": False}


def test_what_is_released_while_it_is_asked(host: Host) -> None:
    host.look(line("a", "0:50"), record("a"))
    host.look("", record("a", "Released"))
    host.answer("0:50", "a")
    assert host.shown("a") == NOT_ASKED
    host.look("")
    assert host.section() == {"mounts": [], "error": ""}


def test_a_record_that_cannot_be_read(host: Host, tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    assert declared.load(places, "gpu-02").network_mounts == ()
    before = declared.stamp(places)
    records.write(mounts_path(places), {"mounts": [dataclasses.asdict(record("a"))]})
    found = declared.load(places, "gpu-02")
    assert (found.network_mounts, found.network_error) == ((record("a"),), "") and declared.stamp(places) != before
    records.write(mounts_path(places), {})
    found = declared.load(places, "gpu-02")
    assert found.network_mounts == () and "not a list of network mounts" in found.network_error
    host.look("", *found.network_mounts, error=found.network_error)
    assert host.section() == {"mounts": [], "error": found.network_error}


@pytest.mark.parametrize(("host_name", "measured"), [("gpu-01", ["drive/ml/imagenet/0"]), ("gpu-02", [])])
def test_a_source_is_measured_by_the_host_that_holds_it(tmp_path: Path, host_name: str, measured: list[str]) -> None:
    places = Places.under(str(tmp_path))
    source = {"node_scope": "", "node": "gpu-01", "path": "/srv/imagenet"}
    drive = {
        "metadata": {"name": "imagenet"},
        "spec": {"sources": [source], "evictable": False},
        "identity": "one",
        "state": "present",
        "force": False,
    }
    records.write(f"{places.drives_dir}/ml.json", {"workspace": "ml", "host": host_name, "drives": [drive]})
    records.write(mounts_path(places), {"mounts": [dataclasses.asdict(record("imagenet"))]})
    assert [one.object for one in declared.load(places, host_name).targets] == measured


def test_asking(tmp_path: Path) -> None:
    table = mounts.read()
    there = mounts.of_path(str(tmp_path), table)
    assert network.ask(there) == ""
    assert network.ask(dataclasses.replace(there, id=-1)) == "another one was mounted there just now"
    missing = dataclasses.replace(there, point=str(tmp_path / "missing"))
    assert network.ask(missing) == "No such file or directory; mount it anew"
