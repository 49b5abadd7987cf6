# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import argparse
import contextlib
import datetime
import http.client
import ipaddress
import json
import os
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client.parser import text_string_to_metric_families

from stowage_core import records
from stowage_core.errors import StowageError
from stowage_core.gate.judgement import Elsewhere
from stowage_core.places import Places
from stowaged import http_server, metrics, sections
from stowaged.exporter import address_of, tls_of
from stowaged.http_server import Answer, Server
from stowaged.pages import Pages

MEASURED = {"bytes": 5_000_000_000, "files": 12, "measured": 990.5}
UNMEASURED = {"bytes": None, "files": None, "measured": None}
COUNTED = ("read_bytes", "write_bytes", "operations", "rtt_seconds", "retransmissions", "timeouts")
MOUNT = {"workspace": "ml", "drive": "a", "source": 1, "node": "n-1", "state": "Bound", "transport": "Auto"}
TIER_KEYS = [key for _metric, key, _text in metrics.TIER_GAUGES]
STATE: dict[str, Any] = {
    "cycle": {"time": 1000.25, "cycle_s": 10},
    "filesystems": {
        "filesystems": [
            {
                "device": "/dev/nvme0n1",
                "fstype": "xfs",
                "mountpoint": '/mnt/a "b"\\c',
                "size": 1 << 40,
                "free": 1 << 39,
                "avail": (1 << 39) - 1,
                "files": 100,
                "files_free": 99,
            }
        ]
    },
    "measuring": {
        "filesystems": [
            {
                "mountpoint": "/mnt/b",
                "device": "/dev/sdb",
                "fstype": "ext4",
                "engine": "watch",
                "cause": "",
                "reason": "",
                "failed": False,
                "failures": 1,
                "lost": 2,
                "trees": 3,
                "directories": 40,
                "unsteady": 17,
                "listed": 970.5,
            },
            {
                "mountpoint": "/mnt/c",
                "device": "c:/",
                "fstype": "nfs4",
                "engine": "scan",
                "cause": "shared",
                "reason": "other hosts may write there too",
                "failed": False,
                "failures": 0,
                "lost": 0,
                "trees": 0,
                "directories": 0,
                "unsteady": 0,
                "listed": None,
            },
        ]
    },
    "locations": {
        "locations": [
            {"location": "runs", "available": True, "complete": True, "listed": 960.5, **MEASURED},
            {"location": "cache", "available": False, "complete": False, "credentials": ["/c/token"], **UNMEASURED},
        ]
    },
    "accounts": {
        "measured": 980.5,
        "complete": False,
        "users": {
            "ann": {"bytes": 70, "allocated": 4096, "runs": 2, "quota": 60, "exceeded_since": 900.5},
            "bob": {"bytes": 30, "allocated": 8192, "runs": 1, "quota": None, "exceeded_since": None},
        },
        "teams": {"vision": {"bytes": 50, "allocated": 512, "runs": 2, "quota": 40, "exceeded_since": 950.5}},
        "tracked": {"runs": 100, "caches": None, "other": 0},
    },
    "drives": {
        "drives": [
            {"workspace": "ml", "drive": "imagenet", "source": 0, "available": True, "answers": False, **MEASURED}
        ]
    },
    "network_mounts": {
        "mounts": [
            {
                **MOUNT,
                "proto": "rdma",
                "version": "4.2",
                "answers": False,
                "available": False,
                **dict(zip(COUNTED, (5000, 600, 20, 0.85, 3, 2))),
            },
            {
                **MOUNT,
                "drive": "new",
                "state": "Failed",
                "proto": "",
                "version": "",
                **dict.fromkeys(("answers", "available", *COUNTED)),
            },
        ],
        "error": "",
    },
    "tiers": {
        "tiers": [
            {
                "backend": "chat",
                "position": 0,
                **dict(zip(TIER_KEYS, range(1, 20))),
                "filesystem": {"size": 100, "avail": 40},
                "processes": [{"pid": 7}],
            },
            {
                "backend": "code",
                "position": 1,
                **dict.fromkeys(TIER_KEYS),
                "readable": False,
                "filesystem": None,
                "processes": None,
            },
        ]
    },
    "copies": {
        "copies": [
            {"workspace": "ml", "drive": "hf", "in_use": True, "last_used": 900, **MEASURED},
            {"workspace": "ml", "drive": "new", "in_use": None, "last_used": None, **UNMEASURED},
        ]
    },
    "evictions": {
        "removed": {"full": 3},
        "removed_bytes": 7_000,
        "blocked": True,
        "reason": "failed",
        "why": "pin r/1: its record cannot be used",
        "waiting": {"ml.gone": "held by pin r/1", "ml.old": "in use"},
        "aside": [{"copy": "ml.a", "location": "/mnt/stowage", "why": "a new copy has its name"}],
        "plan": [{"copy": "ml.hf", "allocated": 4096, "reason": "full"}],
    },
    "fills": {
        "fills": [
            {"workspace": "ml", "drive": "llama", "state": "filling", "reserved_bytes": 4000},
            {"workspace": "ml", "drive": "qwen", "state": "failed", "reserved_bytes": 96},
            {"workspace": "ml", "drive": "gpt", "state": "failed", "reserved_bytes": 0},
        ]
    },
    "leases": {"reserved": 1, "leased": 2},
    "config": {"successful": True},
}
EXPECTED = """
stowage_user_bytes{user="ann"} 70
stowage_user_bytes{user="bob"} 30
stowage_user_allocated_bytes{user="ann"} 4096
stowage_user_allocated_bytes{user="bob"} 8192
stowage_user_quota_bytes{user="ann"} 60
stowage_user_quota_exceeded_since_timestamp_seconds{user="ann"} 900.5
stowage_team_bytes{team="vision"} 50
stowage_team_allocated_bytes{team="vision"} 512
stowage_team_quota_bytes{team="vision"} 40
stowage_team_quota_exceeded_since_timestamp_seconds{team="vision"} 950.5
stowage_tracked_bytes{kind="runs"} 100
stowage_tracked_bytes{kind="other"} 0
stowage_accounts_complete 0
stowage_accounts_measured_timestamp_seconds 980.5
stowage_build_info{version="0"} 1
stowage_last_cycle_timestamp_seconds 1000.25
stowage_filesystem_size_bytes{device="/dev/nvme0n1",fstype="xfs",mountpoint="/mnt/a \\"b\\"\\\\c"} 1.099511627776e+012
stowage_filesystem_free_bytes{...} 549755813888
stowage_filesystem_avail_bytes{...} 549755813887
stowage_filesystem_files{...} 100
stowage_filesystem_files_free{...} 99
stowage_measuring_engine{device="/dev/sdb",fstype="ext4",mountpoint="/mnt/b",engine="watch",cause=""} 1
stowage_measuring_engine{device="/dev/sdb",fstype="ext4",mountpoint="/mnt/b",engine="scan",cause=""} 0
stowage_measuring_engine{device="c:/",fstype="nfs4",mountpoint="/mnt/c",engine="watch",cause=""} 0
stowage_measuring_engine{device="c:/",fstype="nfs4",mountpoint="/mnt/c",engine="scan",cause="shared"} 1
stowage_measuring_trees{device="/dev/sdb",fstype="ext4",mountpoint="/mnt/b"} 3
stowage_measuring_trees{device="c:/",fstype="nfs4",mountpoint="/mnt/c"} 0
stowage_measuring_directories{device="/dev/sdb",fstype="ext4",mountpoint="/mnt/b"} 40
stowage_measuring_directories{device="c:/",fstype="nfs4",mountpoint="/mnt/c"} 0
stowage_measuring_unsteady_directories{device="/dev/sdb",fstype="ext4",mountpoint="/mnt/b"} 17
stowage_measuring_unsteady_directories{device="c:/",fstype="nfs4",mountpoint="/mnt/c"} 0
stowage_measuring_listed_timestamp_seconds{device="/dev/sdb",fstype="ext4",mountpoint="/mnt/b"} 970.5
stowage_measuring_failures_total{device="/dev/sdb",fstype="ext4",mountpoint="/mnt/b"} 1
stowage_measuring_failures_total{device="c:/",fstype="nfs4",mountpoint="/mnt/c"} 0
stowage_measuring_lost_total{device="/dev/sdb",fstype="ext4",mountpoint="/mnt/b"} 2
stowage_measuring_lost_total{device="c:/",fstype="nfs4",mountpoint="/mnt/c"} 0
stowage_location_listed_timestamp_seconds{location="runs"} 960.5
stowage_location_bytes{location="runs"} 5000000000
stowage_location_files{location="runs"} 12
stowage_location_available{location="runs"} 1
stowage_location_available{location="cache"} 0
stowage_location_complete{location="runs"} 1
stowage_location_complete{location="cache"} 0
stowage_location_measured_timestamp_seconds{location="runs"} 990.5
stowage_shared_cache_credentials{location="cache"} 1
stowage_drive_bytes{workspace="ml",drive="imagenet",source="0"} 5000000000
stowage_drive_files{workspace="ml",drive="imagenet",source="0"} 12
stowage_drive_answers{workspace="ml",drive="imagenet",source="0"} 0
stowage_drive_available{workspace="ml",drive="imagenet",source="0"} 1
stowage_network_mount_state{workspace="ml",drive="a",source="1",node="n-1",state="Pending"} 0
stowage_network_mount_state{workspace="ml",drive="a",source="1",node="n-1",state="Exported"} 0
stowage_network_mount_state{workspace="ml",drive="a",source="1",node="n-1",state="Bound"} 1
stowage_network_mount_state{workspace="ml",drive="a",source="1",node="n-1",state="Releasing"} 0
stowage_network_mount_state{workspace="ml",drive="a",source="1",node="n-1",state="Released"} 0
stowage_network_mount_state{workspace="ml",drive="a",source="1",node="n-1",state="Failed"} 0
stowage_network_mount_state{workspace="ml",drive="new",source="1",node="n-1",state="Pending"} 0
stowage_network_mount_state{workspace="ml",drive="new",source="1",node="n-1",state="Exported"} 0
stowage_network_mount_state{workspace="ml",drive="new",source="1",node="n-1",state="Bound"} 0
stowage_network_mount_state{workspace="ml",drive="new",source="1",node="n-1",state="Releasing"} 0
stowage_network_mount_state{workspace="ml",drive="new",source="1",node="n-1",state="Released"} 0
stowage_network_mount_state{workspace="ml",drive="new",source="1",node="n-1",state="Failed"} 1
stowage_network_mount_answers{workspace="ml",drive="a",source="1",node="n-1"} 0
stowage_network_mount_available{workspace="ml",drive="a",source="1",node="n-1"} 0
stowage_network_mount_info{workspace="ml",drive="a",source="1",node="n-1",transport="Auto",proto="rdma",version="4.2"} 1
stowage_network_mount_info{workspace="ml",drive="new",source="1",node="n-1",transport="Auto",proto="",version=""} 1
stowage_network_mount_read_bytes_total{workspace="ml",drive="a",source="1",node="n-1"} 5000
stowage_network_mount_write_bytes_total{workspace="ml",drive="a",source="1",node="n-1"} 600
stowage_network_mount_operations_total{workspace="ml",drive="a",source="1",node="n-1"} 20
stowage_network_mount_rtt_seconds_total{workspace="ml",drive="a",source="1",node="n-1"} 0.85
stowage_network_mount_retransmissions_total{workspace="ml",drive="a",source="1",node="n-1"} 3
stowage_network_mount_timeouts_total{workspace="ml",drive="a",source="1",node="n-1"} 2
stowage_tier_bytes{backend="chat",position="0"} 1
stowage_tier_allocated_bytes{backend="chat",position="0"} 2
stowage_tier_files{backend="chat",position="0"} 3
stowage_tier_buckets{backend="chat",position="0"} 4
stowage_tier_incomplete_buckets{backend="chat",position="0"} 5
stowage_tier_written_bytes{backend="chat",position="0"} 6
stowage_tier_keys{backend="chat",position="0"} 7
stowage_tier_capacity_bytes{backend="chat",position="0"} 8
stowage_tier_key_limit{backend="chat",position="0"} 9
stowage_tier_bucket_bytes{backend="chat",position="0"} 10
stowage_tier_readable{backend="chat",position="0"} 11
stowage_tier_readable{backend="code",position="1"} 0
stowage_tier_claimed{backend="chat",position="0"} 12
stowage_tier_complete{backend="chat",position="0"} 13
stowage_tier_measured_timestamp_seconds{backend="chat",position="0"} 14
stowage_tier_full{backend="chat",position="0"} 15
stowage_tier_unaccounted_bytes{backend="chat",position="0"} 16
stowage_tier_filesystem_filling{backend="chat",position="0"} 17
stowage_tier_settings_differ{backend="chat",position="0"} 18
stowage_tier_writable{backend="chat",position="0"} 19
stowage_tier_filesystem_size_bytes{backend="chat",position="0"} 100
stowage_tier_filesystem_avail_bytes{backend="chat",position="0"} 40
stowage_tier_processes{backend="chat",position="0"} 1
stowage_copy_bytes{workspace="ml",drive="hf"} 5000000000
stowage_copy_files{workspace="ml",drive="hf"} 12
stowage_copy_in_use{workspace="ml",drive="hf"} 1
stowage_copy_last_used_timestamp_seconds{workspace="ml",drive="hf"} 900
stowage_evictions_total{reason="full"} 3
stowage_evictions_total{reason="limit"} 0
stowage_evictions_total{reason="deleted"} 0
stowage_evictions_total{reason="expired"} 0
stowage_evicted_bytes_total 7000
stowage_eviction_blocked{reason="short"} 0
stowage_eviction_blocked{reason="stopped"} 0
stowage_eviction_blocked{reason="failed"} 1
stowage_deletion_waiting_copies 2
stowage_eviction_aside_copies 1
stowage_eviction_planned_copies 1
stowage_eviction_planned_bytes 4096
stowage_fills{state="filling"} 1
stowage_fills{state="failed"} 2
stowage_fill_reserved_bytes 4096
stowage_leases{state="reserved"} 1
stowage_leases{state="leased"} 2
stowage_config_last_reload_successful 1
"""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    found = Places.under(str(tmp_path))
    for name, section in STATE.items():
        records.write(sections.path_of(found, name), section)
    return found


def samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_every_metric_and_no_other(places: Places) -> None:
    pages = Pages(places)
    assert pages.refresh()
    expected = {}
    filesystem = (("device", "/dev/nvme0n1"), ("fstype", "xfs"), ("mountpoint", '/mnt/a "b"\\c'))
    for line in EXPECTED.strip().splitlines():
        name, _brace, rest = line.partition("{")
        labels = tuple(sorted(re.findall(r'(\w+)="([^"]*)"', rest)))
        if name.startswith("stowage_filesystem"):
            labels = filesystem
        expected[(name.split(" ")[0], labels)] = float(line.rpartition(" ")[2])
    assert samples(pages.metrics) == expected
    text = pages.metrics.decode()
    assert text.count("# HELP ") == text.count("# TYPE ") == len({name for name, _labels in expected})


def gate(age: float, *reasons: str) -> dict[str, Any]:
    holds = [{"reason": one, "text": one, "user": "ann" if one == "quota" else "", "team": ""} for one in reasons]
    more = {"holds": holds, "elsewhere": Elsewhere().to_json()}
    return {"time": time.time() - age, "cycle_s": 10, "watermark_pct": 90, **more}


def gate_shown(pages: Pages) -> tuple[float, dict[str, float]]:
    found = samples(pages.metrics)
    holds = {labels[0][1]: value for (name, labels), value in found.items() if name == "stowage_gate_hold" and value}
    return found[("stowage_gate_open", ())], holds


def test_the_gate(places: Places) -> None:
    pages = Pages(places)
    for section, shown in (
        (gate(0), (1, {})),
        (gate(0, "watermark", "watermark", "quota"), (0, {"watermark": 2, "quota": 1})),
        (gate(0, "quota"), (1, {"quota": 1})),  # of one user
    ):
        records.write(sections.path_of(places, "gate"), section)
        assert pages.refresh() and gate_shown(pages) == shown
        assert json.loads(pages.status)["gate"]["holds"] == section["holds"]
    assert not pages.refresh()


def test_a_gate_that_nobody_judges_any_more_is_held(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    records.write(sections.path_of(places, "gate"), gate(0))
    pages = Pages(places)
    pages.refresh()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 61)
    assert pages.refresh() and gate_shown(pages) == (0, {"stale": 1})
    shown = json.loads(pages.status)["gate"]
    assert shown["stale"] is True and "has not judged for 1 min" in shown["holds"][0]["text"]
    assert not pages.refresh()


@pytest.mark.parametrize("section", [{"holds": []}, {**gate(0), "holds": [{"reason": "x"}]}, {**gate(0), "time": "x"}])
def test_a_gate_of_another_version_is_not_shown(places: Places, section: Any) -> None:
    records.write(sections.path_of(places, "gate"), section)
    pages = Pages(places)
    pages.refresh()
    assert b"stowage_gate" not in pages.metrics and "gate" not in json.loads(pages.status)


def test_a_mount_point_that_is_no_text() -> None:
    one = {**STATE["filesystems"]["filesystems"][0], "mountpoint": os.fsdecode(b"/mnt/\xff\n")}
    page = metrics.render("filesystems", {"filesystems": [one]})
    assert b'mountpoint="/mnt/\\\\xff\\\\n"' in page


def test_copies_can_be_left_out(places: Places) -> None:
    pages = Pages(places, {"copies"})
    pages.refresh()
    assert b"stowage_copy_" not in pages.metrics and b"stowage_location_bytes" in pages.metrics


def test_users_can_be_left_out(places: Places) -> None:
    pages = Pages(places, {"users"})
    pages.refresh()
    assert not re.search(rb"^stowage_user_", pages.metrics, re.MULTILINE)
    assert b"stowage_team_bytes{" in pages.metrics and b"stowage_tracked_bytes{" in pages.metrics


def test_only_what_changed_is_rendered_again(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(places)
    pages.refresh()
    rendered: list[str] = []
    render = metrics.render
    monkeypatch.setattr(metrics, "render", lambda name, *more: (rendered.append(name), render(name, *more))[1])
    assert not pages.refresh() and rendered == []
    records.write(sections.path_of(places, "leases"), {"reserved": 5, "leased": 2})
    assert pages.refresh() and rendered == ["leases"]
    assert samples(pages.metrics)[("stowage_leases", (("state", "reserved"),))] == 5
    assert json.loads(pages.status)["leases"] == {"reserved": 5, "leased": 2}


def test_health(places: Places, tmp_path: Path) -> None:
    pages = Pages(places)
    assert pages.health()[0] is False
    records.write(sections.path_of(places, "cycle"), {"time": time.time() - 20, "cycle_s": 10})
    pages.refresh()
    assert pages.health()[0] is True
    records.write(sections.path_of(places, "cycle"), {"time": time.time() - 40, "cycle_s": 10})
    pages.refresh()
    assert pages.health() == (False, "last cycle of the daemon 40 s ago")


@pytest.mark.parametrize(
    "section", [{"leases": 1}, {"reserved": "many", "leased": 0}, {"reserved": None, "leased": []}, []]
)
def test_a_section_of_another_version_is_left_out(
    places: Places, section: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(sections.path_of(places, "leases"))
    path.write_text(json.dumps(section))
    pages = Pages(places)
    assert pages.refresh()
    assert b"stowage_leases" not in pages.metrics and b"stowage_location_bytes" in pages.metrics
    assert "leases" not in json.loads(pages.status)
    assert not pages.refresh()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{path}: left out" in said and "restart stowaged" in said
    records.write(str(path), STATE["leases"])
    assert pages.refresh() and b"stowage_leases" in pages.metrics


@pytest.mark.parametrize("section", [{"time": 1.0}, {"time": "now", "cycle_s": 10}, {"time": 1.0, "cycle_s": None}])
def test_a_cycle_of_another_version_is_no_health(places: Places, section: Any) -> None:
    Path(sections.path_of(places, "cycle")).write_text(json.dumps(section))
    pages = Pages(places)
    pages.refresh()
    assert pages.health()[0] is False


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9823", ("127.0.0.1", 9823)), ("[::1]:9823", ("::1", 9823)), ("0.0.0.0:0", ("0.0.0.0", 0))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["9823", "localhost", "localhost:", "localhost:x", "localhost:70000", "localhost:٣"])
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(StowageError, match="must be ADDRESS:PORT"):
        address_of(text)


# -- The server


class Running:
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.body = b"x" * 3_000_000
        self.server = Server(("127.0.0.1", 0), self._answer, tls)
        self._stopped = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stopped:
            self.server.step(0.02)
        self.server.close()

    def _answer(self, path: str) -> Answer:
        return Answer(200, "text/plain", self.body) if path == "/metrics" else Answer(404, "text/plain", b"no\n")

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.server.port), 5)
        sock.settimeout(5)
        return sock

    def get(self, path: str = "/metrics", method: str = "GET") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=5)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()


@pytest.fixture
def running() -> Iterator[Running]:
    one = Running()
    yield one
    one.stop()


def test_requests(running: Running) -> None:
    assert running.get() == (200, running.body)
    assert running.get("/metrics?name=x")[0] == 200
    assert running.get("/other") == (404, b"no\n")
    assert running.get(method="HEAD") == (200, b"")
    assert running.get(method="POST")[0] == 405


def test_one_connection_serves_many_requests(running: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.server.port, timeout=5)
    for _round in range(3):
        connection.request("GET", "/metrics")
        assert len(connection.getresponse().read()) == len(running.body)
    connection.close()


def test_requests_in_one_packet(running: Running) -> None:
    with running.connect() as sock:
        sock.sendall(b"GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nConnection: close\r\n\r\n")
        data = b""
        while part := sock.recv(65536):
            data += part
    assert data.count(b"HTTP/1.1 404") == 2


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /metrics SPDY/3\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 20_000, b"431"),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400"),
    ],
)
def test_nonsense(running: Running, request_bytes: bytes, status: bytes) -> None:
    with running.connect() as sock:
        sock.sendall(request_bytes)
        assert sock.recv(65536).split(b" ")[1] == status
    assert running.get()[0] == 200


def test_slow_clients_do_not_hold_up_a_scrape(running: Running) -> None:
    slow = []
    for number in range(http_server.MOST_CONNECTIONS + 20):
        sock = running.connect()
        # Some send no request, some half of one, some do not take the answer.
        sock.sendall((b"", b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n")[number % 3])
        slow.append(sock)
    start = time.monotonic()
    assert running.get() == (200, running.body)
    assert time.monotonic() - start < 2
    for sock in slow:
        sock.close()


def test_a_client_that_never_stops_asking_does_not_hold_up_a_scrape(running: Running) -> None:
    with running.connect() as greedy:
        greedy.setblocking(False)
        asked = b"GET /other HTTP/1.1\r\n\r\n" * 3000
        stopped = threading.Event()

        def ask() -> None:
            while not stopped.is_set():
                with contextlib.suppress(BlockingIOError):
                    greedy.send(asked)
                with contextlib.suppress(BlockingIOError):
                    greedy.recv(1 << 20)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            time.sleep(0.2)
            start = time.monotonic()
            assert running.get() == (200, running.body)
            assert time.monotonic() - start < 2
        finally:
            stopped.set()
            asking.join()


def test_a_request_that_does_not_end_is_dropped(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    with running.connect() as sock:
        sock.sendall(b"GET /metrics")
        assert sock.recv(1) == b""


# -- TLS


def certificate(name: str, home: Path, issuer: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """Make a certificate and its key, as files ``<name>.pem`` and ``<name>.key``; without an issuer it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key((issuer[1] if issuer else key).public_key()), False
        )
        .sign(issuer[1] if issuer else key, hashes.SHA256())
    )
    (home / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (home / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made, key


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    authority = certificate("authority", tmp_path)
    for name in ("server", "client"):
        certificate(name, tmp_path, authority)
    certificate("stranger", tmp_path)
    files = {name: str(tmp_path / name) for name in ("server.pem", "server.key", "authority.pem")}
    options = argparse.Namespace(
        certificate=files["server.pem"], key=files["server.key"], client_ca=files["authority.pem"]
    )
    running = Running(tls_of(options))
    try:

        def get(client: str | None) -> bytes:
            context = ssl.create_default_context(cafile=files["authority.pem"])
            if client:
                context.load_cert_chain(tmp_path / f"{client}.pem", tmp_path / f"{client}.key")
            connection = http.client.HTTPSConnection("127.0.0.1", running.server.port, timeout=5, context=context)
            try:
                connection.request("GET", "/metrics")
                return connection.getresponse().read()
            finally:
                connection.close()

        for client in (None, "stranger"):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                get(client)
        assert get("client") == running.body
        with running.connect() as plain:
            plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert b"200 OK" not in plain.recv(65536)
        assert get("client") == running.body
    finally:
        running.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of ssl, about its half-made socket
def test_a_client_that_resets_its_connection_ends_nothing(tmp_path: Path) -> None:
    certificate("server", tmp_path)
    context = tls_of(
        argparse.Namespace(certificate=tmp_path / "server.pem", key=tmp_path / "server.key", client_ca=None)
    )
    server = Server(("127.0.0.1", 0), lambda _path: Answer(200, "text/plain", b"here\n"), context)
    try:
        for _number in range(20):
            sock = socket.create_connection(("127.0.0.1", server.port), 5)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()  # with a reset
            server.step(0.1)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"certificate": "", "key": "k", "client_ca": ""}, "need --certificate"),
        ({"certificate": "/no/such", "key": "/no/such", "client_ca": ""}, "must be PEM"),
    ],
)
def test_wrong_tls_options(options: dict[str, str], said: str) -> None:
    with pytest.raises(StowageError, match=said):
        tls_of(argparse.Namespace(**options))
