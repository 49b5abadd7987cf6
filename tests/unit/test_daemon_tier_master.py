# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the leader's metrics page says, how it is read, and what is concluded."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import StowageError
from stowage_core.tiers.declared import read_backends
from stowaged import tier_command, tier_master
from stowaged.tier_master import Master, judge

MIB = 1 << 20
PAGE = """\
# HELP master_allocated_bytes Total memory bytes currently allocated across all segments
# TYPE master_allocated_bytes gauge
master_allocated_bytes 57671680
master_total_capacity_bytes 67108864
segment_total_capacity_bytes{segment="127.0.0.1:13028"} 67108864
segment_total_capacity_bytes{segment="127.0.0.1:13029"} 0
master_allocated_file_size_bytes 67108864
master_value_size_bytes_bucket{le="+Inf"} 310
master_value_size_bytes_sum 324009984
master_put_start_alloc_failures_total 320
file_cache_nums_ 64
something_else NaN
"""
LRU = Master(67108864, 324009984, 57671680, 67108864, 320, 1)


def test_a_page_of_the_store() -> None:
    assert tier_master.parse(PAGE) == LRU


def test_a_page_of_something_else() -> None:
    with pytest.raises(
        StowageError, match=r"^http://a: is not of a leader of the store: no master_allocated_file_size"
    ):
        tier_master.parse("up 1\n", "http://a")
    with pytest.raises(StowageError, match="no master_put_start_alloc_failures_total"):
        tier_master.parse(PAGE.replace("alloc_failures_total", "x"))


@given(st.text())
def test_any_page_has_an_answer(text: str) -> None:
    assert tier_master.parse(PAGE + "\n" + text.replace("master", "")).written == LRU.written


@pytest.mark.parametrize(
    ("last", "refused_before", "members", "text"),
    [
        # gauge, offered, memory, memory's size, refused
        ((64, 300, 55, 64, 320), 320, 1, "the tier has taken writes: 67.1 MB"),
        ((0, 0, 0, 64, 0), 0, 1, "expected: no bucket is due yet (0 B were offered, and one bucket of 16.8 MB take"),
        ((0, 10, 10, 64, 0), 0, 1, "expected: no bucket is due yet"),
        (
            (0, 30, 30, 32, 5),
            0,
            2,
            "expected: no bucket is due yet (31.5 MB were offered, and one bucket for each of 2",
        ),
        ((0, 40, 40, 64, 0), 0, 1, "expected: no bucket is due yet (41.9 MB were offered, and memory is 62% full"),
        ((0, 60, 57, 64, 9), 9, 1, "expected: no bucket is due yet"),  # 89 % full, and nothing is refused now
        ((0, 60, 57, 64, 10), 9, 1, "the tier is not taking writes (62.9 MB were offered, memory is 89% full"),
        ((0, 16, 58, 64, 0), 0, 1, "the tier is not taking writes"),
        ((0, 64, 64, 64, 500), 500, 4, "the tier is not taking writes"),
        ((0, 64, 0, 0, 0), 0, 1, "expected: no bucket is due yet"),  # no member is there
    ],
)
def test_verdicts(last: tuple[int, ...], refused_before: int, members: int, text: str) -> None:
    written, offered, memory, size, refused = last
    now = Master(written * MIB, offered * MIB, memory * MIB, size * MIB, refused, members)
    verdict = judge(dataclasses.replace(now, refused=refused_before), now, members, 16 * MIB)
    assert verdict.text.startswith(text) and verdict.well is ("not taking" not in text)


BAD = Master(0, 64 * MIB, 64 * MIB, 64 * MIB, 5, 1)
GOOD = dataclasses.replace(BAD, written=64 * MIB)


@pytest.mark.parametrize(
    ("first", "then", "wait_s", "slept", "well"),
    [
        (GOOD, [], 30, [], True),
        (BAD, [BAD, GOOD], 30, [5, 5], True),
        (BAD, [BAD] * 3, 12, [5, 5, 2], False),
        (BAD, [], 0, [], False),
        # Whether values are refused now is seen only by another reading.
        (dataclasses.replace(BAD, memory=50 * MIB), [dataclasses.replace(BAD, memory=50 * MIB)], 30, [5], True),
        (
            dataclasses.replace(BAD, memory=50 * MIB),
            [dataclasses.replace(BAD, memory=50 * MIB, refused=6)] * 2,
            10,
            [5, 5],
            False,
        ),
        (dataclasses.replace(BAD, offered=MIB), [], 30, [], True),
    ],
)
def test_readings_go_on_while_it_is_bad(
    first: Master, then: list[Master], wait_s: float, slept: list[float], well: bool
) -> None:
    sleeps: list[float] = []
    readings = iter(then)
    last, verdict = tier_command.until_well(lambda: next(readings), first, 1, 16 * MIB, wait_s, sleeps.append)
    assert (sleeps, verdict.well) == (slept, well) and last == ([first, *then])[-1]
    assert list(readings) == []


@pytest.mark.parametrize(
    ("groups", "members"),
    [
        ([{"hosts": ["a", "b"]}], 2),
        ([{"hosts": ["a", "b"]}, {"hosts": ["c"]}], 3),
        ([{"hosts": ["a"]}, {}], 0),
        ([{"hosts": ["a"]}, {"local_disks": []}], 1),
    ],
)
def test_how_many_members_are_declared(groups: list[dict[str, Any]], members: int) -> None:
    made = [
        {"capacity_per_member": "1Gi", "local_disks": [{"path": f"/mnt/kv{number}"}], **group}
        for number, group in enumerate(groups)
    ]
    assert tier_command.declared_members(read_backends([{"name": "chat", "members": made}])[0]) == members
    assert tier_command.declared_members(None) == 0


# -- Over the network


@pytest.fixture
def serving() -> Iterator[Callable[..., str]]:
    servers = []

    def serve(body: bytes = PAGE.encode(), status: int = 200, pause_s: float = 0.0, **headers: str) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status if self.path == "/metrics" else 404)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                for start in range(0, len(body), 1 << 16):
                    time.sleep(pause_s)
                    self.wfile.write(body[start : start + (1 << 16)])

            def log_message(self, *arguments: Any) -> None:
                pass

            def handle(self) -> None:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who asked has had enough
                    super().handle()

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_page_is_read(serving: Callable[..., str]) -> None:
    url = serving()
    for each in (url, url + "/", url + "/metrics", url.partition("//")[2]):
        assert tier_master.read(each) == LRU


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"status": 503}, "answers 503 Service Unavailable; name the page"),
        ({"status": 302, "Location": "http://127.0.0.1:1/metrics"}, "answers 302 Found"),
        ({"body": b"x" * (MIB + 1)}, "answers more than 1.0 MB"),
        ({"body": b"x" * MIB, "pause_s": 0.05}, "does not come to its end within 0.2 s"),
        ({"body": b"x", "pause_s": 0.5}, "timed out; is the leader there?"),
        ({"body": b""}, "is not of a leader of the store"),
    ],
)
def test_pages_that_are_not_read(
    serving: Callable[..., str], changes: dict[str, Any], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_master, "TIMEOUT_S", 0.2 if "pause_s" in changes else 30.0)
    url = serving(**changes)
    with pytest.raises(StowageError) as caught:
        tier_master.read(url)
    assert str(caught.value).startswith(f"{url}: ") and error in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.1:9003",
        "file:///etc/passwd",
        "http://",
        "http://a:b",
        "http://[::1",
        "http://user@a",
        "",
        "ftp://a",
        "http://127.0.0.1:1/é",
        "http://127.0.0.1:1/\udcff",
        "http://127.0.0.1:1/a b",
        "http://127.0.0.1:1/?\x7f",
        f"http://{'a' * 64}/",
        "http://a..b:1/",
        "http://a b/",
        "http://\udcff/",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(StowageError, match="is no") as caught:
        tier_master.fetch(url)
    assert str(caught.value).isprintable()


def test_nobody_is_there() -> None:
    with pytest.raises(StowageError, match=r"^http://127\.0\.0\.1:1: Connection refused; is the leader there\?"):
        tier_master.fetch("http://127.0.0.1:1")
