# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the leader of a KV-cache's store says of it, read from its metrics page, and whether its tier takes writes.

The leader counts what was put into memory and what lies in tiers, over the whole backend. A member writes a bucket when
it has collected one of what has to leave memory, which begins only when memory is nearly full. So a tier of which
nothing is due yet looks like one that cannot be written to, but for how much was offered and how full memory is.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import re
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from stowage_core.errors import Refusal, StowageError, one_line, printable
from stowage_core.sizes import decimal

TIMEOUT_S = 5.0
MOST_BYTES = 1024**2
PRESSED = 0.90
"""How full memory is when the store begins to offload and evict."""

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})?[ \t]+(\S+)", re.ASCII)
_GAUGE = "master_allocated_file_size_bytes"
_OFFERED = "master_value_size_bytes_sum"
_MEMORY, _MEMORY_SIZE = "master_allocated_bytes", "master_total_capacity_bytes"
_REFUSED = "master_put_start_alloc_failures_total"
_SEGMENT = "segment_total_capacity_bytes"


@dataclass(frozen=True)
class Master:
    """One reading of the page."""

    written: int
    """The gauge: bytes of values that lie in tiers, of the whole backend."""
    offered: int
    """Bytes of values that were put since the leader was started."""
    memory: int
    memory_size: int
    refused: int
    """How often a value was refused because no memory was free."""
    members: int
    """That have memory mounted now."""

    @property
    def pressed(self) -> float:
        """How full memory is."""
        return self.memory / self.memory_size if self.memory_size else 0.0


@dataclass(frozen=True)
class Verdict:
    """Whether the tier takes writes, in one line."""

    well: bool
    text: str


def read(url: str) -> Master:
    """Return what the leader says now.

    :raises StowageError: when it does not answer, or it is no leader
    """
    return parse(fetch(url), url)


def fetch(url: str) -> str:
    """Return the page at *url*, in which the path may be left out; nothing that it leads on to is asked for."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Refusal(printable(url), f"is no address ({error})", "write http://HOST:PORT") from error
    if parts.scheme != "http" or not host or parts.username is not None:
        raise Refusal(printable(url), "is no plain HTTP address", "write http://HOST:PORT")
    path = (parts.path.rstrip("/") or "/metrics") + (f"?{parts.query}" if parts.query else "")
    deadline = time.monotonic() + TIMEOUT_S
    try:
        with contextlib.closing(http.client.HTTPConnection(host, port or 80, timeout=TIMEOUT_S)) as connection:
            connection.request("GET", path)
            with connection.getresponse() as answer:
                data = _body(answer, url, deadline)
    except (ValueError, http.client.InvalidURL) as error:
        # A path that is not ASCII, a blank, or a name of a host with a part that is empty or too long.
        raise Refusal(printable(url), f"is no address ({error})", "write http://HOST:PORT") from error
    except OSError as error:
        raise StowageError(f"{url}: {one_line(error)}; is the leader there?") from error
    except http.client.HTTPException as error:
        raise StowageError(f"{url}: does not answer as a web server does ({type(error).__name__})") from error
    return data.decode("utf-8", "replace")


def _body(answer: http.client.HTTPResponse, url: str, deadline: float) -> bytes:
    remedy = "name the page of the leader's metrics"
    if answer.status != http.client.OK:
        raise Refusal(url, f"answers {answer.status} {printable(answer.reason)}", remedy)
    data = b""
    while more := answer.read1(1 << 16):
        data += more
        if len(data) > MOST_BYTES:
            raise Refusal(url, f"answers more than {decimal(MOST_BYTES)}", remedy)
        if time.monotonic() > deadline:
            raise Refusal(url, f"does not come to its end within {TIMEOUT_S:g} s", remedy)
    return data


def parse(page: str, url: str = "") -> Master:
    """Return what a page in Prometheus' text format says, of each metric the sum of its series."""
    sums: dict[str, float] = {}
    members = 0
    for line in page.splitlines():
        match = _SAMPLE.match(line)
        try:
            value = float(match.group(2)) if match is not None else math.nan
        except ValueError:
            continue
        if match is not None and math.isfinite(value):
            name = match.group(1)
            sums[name] = sums.get(name, 0.0) + value
            members += name == _SEGMENT and value > 0
    needed = (_GAUGE, _OFFERED, _MEMORY, _MEMORY_SIZE, _REFUSED)
    missing = [name for name in needed if name not in sums]
    if missing:
        raise Refusal(
            url or "the page", f"is not of a leader of the store: no {missing[0]}", "name its address for metrics"
        )
    written, offered, memory, memory_size, refused = (int(sums[name]) for name in needed)
    return Master(written, offered, memory, memory_size, refused, members)


def judge(first: Master, last: Master, members: int, bucket_bytes: int) -> Verdict:
    """Return whether the tier takes writes, by two readings some time apart; one reading is given as both.

    :param members: how many members have the tier
    """
    due = members * bucket_bytes
    offered = f"{decimal(last.offered)} were offered"
    if last.written:
        return Verdict(True, f"the tier has taken writes: {decimal(last.written)} of what was offered lie in it")
    if last.offered < due:
        rule = f"{offered}, and {_buckets(members)} of {decimal(bucket_bytes)} take {decimal(due)}"
        return Verdict(True, f"expected: no bucket is due yet ({rule})")
    if last.pressed < PRESSED and last.refused <= first.refused:
        rule = f"{offered}, and memory is {last.pressed:.0%} full: values leave it from {PRESSED:.0%} on"
        return Verdict(True, f"expected: no bucket is due yet ({rule})")
    rule = f"{offered}, memory is {last.pressed:.0%} full, and nothing lies in it"
    return Verdict(False, f"the tier is not taking writes ({rule})")


def _buckets(members: int) -> str:
    return "one bucket" if members == 1 else f"one bucket for each of {members} members"
