# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the daemon knows of tiers: buckets, the space beside them, and the settings of their stores."""

from __future__ import annotations

import base64
import dataclasses
import errno
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import bucket_files
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core import records
from stowage_core.places import Places
from stowage_core.sizes import Space
from stowage_core.tiers import recorded
from stowage_core.tiers.declared import Backend, Eviction, MemberGroup, Tier, Watermark, read_backends
from stowage_core.tiers.environment import member_environment
from stowage_core.tiers.processes import StoreProcess
from stowaged import buckets, declared, status, tier_settings, tiers
from stowaged.buckets import Buckets
from stowaged.children import Ending
from stowaged.declared import HostTier
from stowaged.last_measured import record_path
from stowaged.sections import Sections
from stowaged.tiers import (
    FILLING,
    NOT_WRITABLE,
    SETTINGS_DIFFER,
    UNACCOUNTED_USE,
    Held,
    Tiers,
    Told,
    unaccounted,
    warnings,
)

GIB = 1 << 30
MIB = 1 << 20

# -- Buckets

REAL = base64.b64decode(
    "CMiBgAgSC2RlZmF1bHQAY3IwEgxkZWZhdWx0AGNyMTASDGRlZmF1bHQAY3IxMxIMZGVmYXVsdABjcjMwEg1kZWZhdWx0AHN0MTIz"
    "Eg1kZWZhdWx0AHN0MTEyEg1kZWZhdWx0AHN0MTEzEg1kZWZhdWx0AHN0MTIwEg1kZWZhdWx0AHN0MTE4EgxkZWZhdWx0AGNyMjgS"
    "C2RlZmF1bHQAY3IyEg1kZWZhdWx0AHN0MTE1Eg1kZWZhdWx0AHN0MTE0Eg1kZWZhdWx0AHN0MTIyEg1kZWZhdWx0AHN0MTE2Eg1k"
    "ZWZhdWx0AHN0MTIxGgYQCxiAgEAaCgiLgEAQDBiAgEAaCwiXgIABEAwYgIBAGgsIo4DAARAMGICAQBoLCK+AgAIQDRiAgEAaCwi8"
    "gMACEA0YgIBAGgsIyYCAAxANGICAQBoLCNaAwAMQDRiAgEAaCwjjgIAEEA0YgIBAGgsI8IDABBAMGICAQBoLCPyAgAUQCxiAgEAa"
    "CwiHgcAFEA0YgIBAGgsIlIGABhANGICAQBoLCKGBwAYQDRiAgEAaCwiugYAHEA0YgIBAGgsIu4HABxANGICAQA=="
)
"""The description of a bucket that the store has written: 16 values of 1 MiB."""
REAL_SIZE = 16777416


def test_the_description_that_the_store_has_written() -> None:
    assert buckets.keys_of(REAL, REAL_SIZE) == 16
    assert buckets.keys_of(REAL, REAL_SIZE - 1) is None
    assert {buckets.keys_of(REAL[:length], REAL_SIZE) for length in range(len(REAL))} == {None}


@given(st.binary(max_size=200), st.integers(0, 1000))
def test_any_description_has_an_answer(data: bytes, size: int) -> None:
    found = buckets.keys_of(data, size)
    assert found is None or found >= 0


@given(st.lists(st.text(max_size=200), min_size=1, max_size=70), st.integers(0, 1 << 24))
def test_descriptions(keys: list[str], value_bytes: int) -> None:
    assert buckets.keys_of(*bucket_files.description(keys, value_bytes)) == len(keys)


def counted(directory: Path, known: buckets.Known) -> tuple[Buckets, buckets.Known]:
    fd = os.open(directory, os.O_RDONLY)
    try:
        return buckets.count(fd, lambda: None, known)
    finally:
        os.close(fd)


def count(directory: Path) -> Buckets:
    return counted(directory, {})[0]


def test_a_description_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    keys = buckets._keys
    monkeypatch.setattr(buckets, "_keys", lambda *those: (read.append(those[1]), keys(*those))[1])
    for number in (1, 2, -3):
        bucket_files.put(tmp_path, number)
    (tmp_path / "4.bucket").write_bytes(b"x")
    (tmp_path / "4.meta").write_bytes(b"")
    before, known = counted(tmp_path, {})
    assert (before.complete, sorted(read)) == (3, ["-3.meta", "1.meta", "2.meta", "4.meta"])
    read.clear()
    assert counted(tmp_path, buckets.recalled(buckets.remembered(known))) == (before, known) and read == ["4.meta"]
    read.clear()
    (tmp_path / "2.meta").unlink()
    (tmp_path / "1.bucket").write_bytes(b"short")
    bucket_files.put(tmp_path, 5)
    after, known = counted(tmp_path, known)
    assert (after.complete, after.incomplete) == (2, 3) and sorted(known) == ["-3", "5"]
    assert sorted(read) == ["1.meta", "4.meta", "5.meta"]


@given(st.dictionaries(st.integers(-(10**18), 10**18).map(str), st.tuples(st.integers(0, 1 << 50), st.integers(0, 99))))
def test_known_buckets_are_recalled(known: buckets.Known) -> None:
    text = buckets.remembered(known)
    assert buckets.recalled(text) == known and text.isprintable()


def test_counting_buckets(tmp_path: Path) -> None:
    written = bucket_files.put(tmp_path, 7356462120968) + bucket_files.put(tmp_path, -12, keys=64)
    assert count(tmp_path) == Buckets(2, written, 80, 0)
    (tmp_path / "13.bucket").write_bytes(bytes(100))  # being written, or left of a process that was killed
    bucket_files.put(tmp_path, 14)
    with open(tmp_path / "14.meta", "r+b") as file:
        file.truncate(30)
    bucket_files.put(tmp_path, 15)
    (tmp_path / "15.bucket").write_bytes(b"short")
    assert count(tmp_path) == Buckets(2, written, 80, 3)


def test_what_is_no_bucket(tmp_path: Path) -> None:
    for name in (
        "README",
        ".bucket",
        "x.bucket",
        "1.bucket.tmp",
        "٣.bucket",
        "1234567890123456789012.bucket",
        "007.bucket",
    ):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "5.meta").write_bytes(REAL)
    (tmp_path / "6.bucket").mkdir()
    os.mkfifo(tmp_path / "7.bucket")
    (tmp_path / "8.bucket").symlink_to("README")
    below = tmp_path / "below"
    below.mkdir()
    bucket_files.put(below, 1)
    assert count(tmp_path) == Buckets()
    (tmp_path / "9.bucket").write_bytes(b"x")
    os.mkfifo(tmp_path / "9.meta")
    (tmp_path / "10.bucket").write_bytes(b"x")
    os.symlink("5.meta", tmp_path / "10.meta")
    with pytest.raises(OSError, match="symbolic links"):
        count(tmp_path)
    (tmp_path / "10.meta").unlink()
    assert count(tmp_path) == Buckets(incomplete=2)


# -- Settings

TIER = Tier("/mnt/kv", 4 << 40, 10_000_000, Eviction(True, "LRU", Watermark(90, 80)))
GROUP = MemberGroup(tier=TIER, extra_env={"MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1", "OTHER": "x"})
WANTED = tier_settings.declared(GROUP, TIER)
P = "MOONCAKE_OFFLOAD_"


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({}, []),
        ({P + "FILE_STORAGE_PATH": "/data/tier"}, []),  # the name in a container
        ({P + "ENABLED": None}, []),  # an argument says so
        ({P + "ENABLED": "false"}, [f"{P}ENABLED is false, and true is declared"]),
        ({P + "DISK_EVICTION_HIGH_WATERMARK_RATIO": "0.9"}, []),
        (
            {P + "DISK_EVICTION_HIGH_WATERMARK_RATIO": "90%"},
            [f"{P}DISK_EVICTION_HIGH_WATERMARK_RATIO is 90%, and 0.90 is declared"],
        ),
        ({P + "DISK_EVICTION_HIGH_WATERMARK_RATIO": "0.900"}, []),
        ({P + "TOTAL_KEYS_LIMIT": "0010000000"}, []),
        ({P + "BUCKET_EVICTION_POLICY": "LRU"}, [f"{P}BUCKET_EVICTION_POLICY is LRU, and lru is declared"]),
        ({P + "BUCKET_EVICTION_POLICY": ""}, [f"{P}BUCKET_EVICTION_POLICY is empty, and lru is declared"]),
        (
            {P + "BUCKET_SIZE_LIMIT_BYTES": None},
            [f"{P}BUCKET_SIZE_LIMIT_BYTES is not set, and 16777216 is declared"],
        ),
        (
            {P + "HEARTBEAT_INTERVAL_SECONDS": "10"},
            [f"{P}HEARTBEAT_INTERVAL_SECONDS is 10, and 1 is declared"],
        ),
        ({P + "LOCAL_BUFFER_SIZE_BYTES": "134217728"}, []),  # nothing is said about it
        ({P + "TOTAL_KEYS_LIMIT": "a\nb"}, [f"{P}TOTAL_KEYS_LIMIT is a\\nb, and 10000000 is declared"]),
    ],
)
def test_settings_that_differ(changes: dict[str, str | None], texts: list[str]) -> None:
    effective = {name: value for name, value in {**WANTED, **changes}.items() if value is not None}
    assert tier_settings.differences(WANTED, effective) == texts


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("TOTAL_KEYS_LIMIT", value) for value in ("1e7", "10_000_000", " 10000000", "10000000 ", "+10000000")),
        *(("TOTAL_KEYS_LIMIT", value) for value in ("10000000.0", "0x989680", "١0000000", "9" * 5000)),
        *(("DISK_EVICTION_HIGH_WATERMARK_RATIO", value) for value in ("9e-1", "0.9_0", " 0.9", "+0.9", "0.9.0", ".")),
    ],
)
def test_a_number_that_the_store_cannot_read_differs(name: str, value: str) -> None:
    (text,) = tier_settings.differences(WANTED, {**WANTED, P + name: value})
    assert text.startswith(f"{P}{name} is ")


def test_a_setting_of_which_nothing_is_declared() -> None:
    wanted = member_environment(Tier("/mnt/kv"))
    name = f"{P}TOTAL_SIZE_LIMIT_BYTES"
    assert tier_settings.differences(wanted, {**wanted, name: "5"}) == [f"{name} is 5, and nothing is declared"]


# -- Filesystems


def held(used: int, allocated: int, capacity: int, size: int = 1000, **more: Any) -> Held:
    space = Space(size * GIB, (size - used) * GIB, (size - used) * GIB, 0, 0)
    return Held(allocated * GIB, capacity * GIB, space, **{"measured": 1.0, **more})


@pytest.mark.parametrize(
    ("tiers_on_it", "beside", "reasons"),
    [
        ([held(0, 0, 900)], 0, []),
        ([held(500, 490, 900)], 10, []),
        ([held(590, 490, 900)], 100, []),
        ([held(591, 490, 800)], 101, [UNACCOUNTED_USE]),
        ([held(591, 490, 900)], 101, [UNACCOUNTED_USE, FILLING]),
        ([held(590, 490, 901)], 100, [FILLING]),
        ([held(999, 950, 950)], 49, []),
        ([held(1000, 950, 950, kept_free=tiers.KEPT_FREE)], 50, [FILLING]),
        ([held(500, 400, 500), held(500, 100, 500)], 0, []),
        ([held(500, 400, 500), held(500, 100, 501)], 0, [FILLING]),
        ([held(899, 890, 0)], 9, []),
        ([held(901, 890, 0)], 11, [FILLING]),
        ([held(10, 20, 900)], 0, []),  # it grew while it was measured
    ],
)
def test_what_is_told_of_a_filesystem(tiers_on_it: list[Held], beside: int, reasons: list[str]) -> None:
    assert unaccounted(tiers_on_it) == beside * GIB
    assert [one.reason for one in warnings(tiers_on_it, "/mnt/kv")] == reasons


def test_the_space_is_that_of_the_latest_measurement() -> None:
    assert unaccounted([held(500, 100, 900, measured=2.0), held(900, 100, 900, measured=1.0)]) == 300 * GIB


def test_warnings_say_what_to_do() -> None:
    found = warnings([held(700, 490, 900, kept_free=tiers.KEPT_FREE)], "/mnt/\n")
    assert [one.message for one in found] == [
        "/mnt/\\n: 225 GB of 1.1 TB are used by what is in no tier; no store counts that: move it away, or lower the "
        "capacity",
        "/mnt/\\n: 322 GB are free, and its tiers may still write 440 GB, and leave 268 MB free; free some space, or "
        "lower the capacity",
    ]


@pytest.mark.parametrize(
    ("eviction", "allocated", "full"),
    [
        (None, 100, False),
        (Eviction(True, "FIFO"), 100, False),
        (Eviction(False), 84, False),
        (Eviction(False), 85, True),
        (Eviction(False), 100, True),
    ],
)
def test_a_full_tier(eviction: Eviction | None, allocated: int, full: bool) -> None:
    tier = Tier("/mnt/kv", 100 * MIB, eviction=eviction)
    assert tiers.is_full(HostTier("chat", 0, tier.path, MemberGroup(tier=tier), tier), allocated * MIB) is full


def test_what_comes_and_goes_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told = Told(["a"])
    assert told.new(["a", "b"]) == {"b"} and told.names() == ["a", "b"]
    for _round in range(5):
        now += 3000
        assert told.new(["a"]) == set()
    assert told.names() == ["a"]
    now += 3601
    assert told.new([]) == set() and told.names() == []
    assert told.new(["a"]) == {"a"}


# -- What is declared


def backend(name: str = "chat", **group: Any) -> Backend:
    disks = [{"path": f"/mnt/{name}", "capacity": "100Gi"}]
    return read_backends([{"name": name, "members": [{"capacity_per_member": "1Gi", "local_disks": disks, **group}]}])[
        0
    ]


def declare(places: Places, *backends: Backend, claimed: dict[str, recorded.Claimed] | None = None) -> None:
    records.write(places.tiers_json, recorded.backends_json(backends))
    recorded.write_claimed(places, claimed or {})


def test_the_tiers_of_a_host(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    left = recorded.Claimed("/mnt/old", "id-1", 1.0)
    gone = recorded.Claimed("/mnt/code", "id-2", 1.0)
    declare(
        places,
        backend(),
        backend("code", hosts=["kv-02"]),
        backend("files", store="files", capacity_per_member=0),
        claimed={"old/1": left, "code/0": gone},
    )
    before = declared.stamp(places)
    found = declared.load(places, "kv-01")
    assert [(one.name, one.path, one.tier.capacity) for one in found.tiers] == [
        ("chat/0", "/mnt/chat", 100 * GIB),
        ("code/0", "/mnt/code", 100 * GIB),  # it was on this host, and its claim is
        ("files/0", "/mnt/files", 100 * GIB),
        ("old/1", "/mnt/old", 0),
    ]
    assert [(one.object, one.path, one.claim, one.buckets) for one in found.targets] == [
        ("tier/chat/0", "/mnt/chat", ("chat/0", ""), True),
        ("tier/code/0", "/mnt/code", ("code/0", "id-2"), True),
        ("tier/files/0", "/mnt/files", ("files/0", ""), False),
        ("tier/old/1", "/mnt/old", ("old/1", "id-1"), True),
    ]
    assert [one.name for one in declared.load(places, "kv-02").tiers] == ["chat/0", "code/0", "files/0", "old/1"]
    declare(places, backend())
    assert declared.stamp(places) != before
    assert [one.name for one in declared.load(places, "kv-01").tiers] == ["chat/0"]


def test_a_claim_that_is_no_tier_s(tmp_path: Path) -> None:
    places = Places.under(str(tmp_path))
    declare(places, claimed={"chat/x": recorded.Claimed("/mnt/a", "id", 1.0)})
    with pytest.raises(records.RecordError, match="'chat/x' is no tier; restore it"):
        declared.load(places, "kv-01")


# -- Together


class Known:
    """Figures that are there."""

    def __init__(self, **changes: Any) -> None:
        self.used = 10 * GIB
        self.found: dict[str, Any] = {
            "path": "/mnt/chat",
            "available": True,
            "made": True,
            "answers": True,
            "reason": "",
            "complete": True,
            "elsewhere": False,
            "bytes": 9 * GIB,
            "allocated": 10 * GIB,
            "files": 1200,
            "measured": 100.0,
            "readable": True,
            "claimed": True,
            **changes,
        }

    def tier(self, name: str) -> dict[str, Any]:
        counted = {"complete": 600, "bytes": 9 * GIB, "keys": 9600, "incomplete": 1}
        return {"tier": {"buckets": counted, "space": self.room()}, **self.found}

    def room(self) -> dict[str, Any]:
        free = 1000 * GIB - self.used
        return {**vars(Space(1000 * GIB, free, free, 0, 0))}

    def space(self, name: str) -> dict[str, Any] | None:
        filesystem = {"id": "8:1", "mountpoint": "/mnt", "device": "/dev/nvme0n1", "fstype": "xfs", "shared": False}
        return {**filesystem, **self.room()} if self.found["available"] else None


UNKNOWN_ACCESS = MappingProxyType({"writable": None})


class Host:
    def __init__(self, home: Path, **changes: Any) -> None:
        self.places = Places.under(str(home))
        self.figures = Known(**changes)
        self.said: list[str] = []
        self.written: list[Any] = []
        self.started: list[Any] = []
        self.sections = Sections(self.places, self.said.append)
        group = backend().members[0]
        assert group.tier is not None
        self.tier = HostTier("chat", 0, "/mnt/chat", group, group.tier)
        self.begin()

    def begin(self) -> None:
        self.tiers = Tiers(self.places, self, self.figures, self.sections, self, self.said.append)  # type: ignore[arg-type]

    # The children and the writer, which are only noted.

    def running(self, key: str) -> bool:
        return bool(self.started)

    def start(self, key: str, body: Any, take: Any, end: Any, silence_s: float) -> None:
        self.started.append((body, take, end))

    def do(self, writing: Any) -> None:
        self.written.append(writing)

    def look(self) -> dict[str, Any]:
        self.tiers.look([self.tier], 300.0)
        (one,) = self.section()["tiers"]
        return dict(one)

    def section(self) -> dict[str, Any]:
        section = self.sections.last("tiers")
        assert section is not None
        return section

    def answer(
        self, *settings: dict[str, str], error: str = "", access: Mapping[str, Any] = UNKNOWN_ACCESS, **more: Any
    ) -> dict[str, Any]:
        body, take, end = self.started.pop()
        shown = [{"pid": 7, "command": "mooncake_client", "settings": one, **access} for one in settings]
        take({"tier": "chat/0", "processes": shown})
        if more:
            take(more)
        end(Ending(error))
        return self.look()

    def page(self, width: int | None = None) -> list[str]:
        return status.tiers(self.section(), width, 110.0)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_what_is_known_of_a_tier(host: Host) -> None:
    one = host.look()
    expected = {
        "backend": "chat",
        "position": 0,
        "store": "mooncake",
        "capacity_bytes": 100 * GIB,
        "key_limit": None,
        "bucket_bytes": 16 * MIB,
        "allocated": 10 * GIB,
        "written_bytes": 9 * GIB,
        "buckets": 600,
        "incomplete_buckets": 1,
        "keys": 9600,
        "full": False,
        "unaccounted_bytes": 0,
        "filling": False,
        "processes": None,
        "settings_differ": None,
        "writable": None,
        "warnings": [],
    }
    assert {key: one[key] for key in expected} == expected
    assert host.page() == [
        "Tier    Path       On disk  Capacity  Buckets  Keys  Disk free  Stores  Measured  State",
        "chat/0  /mnt/chat  10.7 GB    107 GB      600  9600     1.1 TB       -  10 s ago  ok",
    ]
    assert host.page(40)[0] == "Tier    On disk  Capacity  State"


def test_processes_are_looked_at_every_interval(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    host.look()
    wanted = tier_settings.declared(host.tier.group, host.tier.tier)
    one = host.answer(wanted)
    assert one["processes"] == [{"pid": 7, "command": "mooncake_client", "differs": [], "writable": None}]
    assert one["settings_differ"] is False and host.started == []
    now += 301
    host.look()
    one = host.answer({**wanted, f"{P}BUCKET_KEYS_LIMIT": "500"})
    text = f"process 7 (mooncake_client): {P}BUCKET_KEYS_LIMIT is 500, and 64 is declared; "
    text += "restart it with what is rendered, or declare what it has"
    assert one["settings_differ"] is True and one["warnings"] == [{"reason": SETTINGS_DIFFER, "message": text}]
    assert host.page()[-1] == f"! chat/0: {text}"
    now += 301
    host.look()
    assert host.answer()["settings_differ"] is None  # nothing runs, so nothing differs
    now += 301
    host.look()
    assert host.answer(wanted, error="/run/stowage/use: no such file")["processes"] is None
    assert host.said[-1] == "settings of stores: /run/stowage/use: no such file"
    assert host.page()[-1] == "! Settings of stores are not known: /run/stowage/use: no such file"
    now += 301
    host.look()
    assert host.answer(wanted, unknown="process 9 (x): its directory could not be determined: no")["processes"]
    assert "process 9" in host.page()[-1]


def test_a_store_that_cannot_write_is_told_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    host.look()
    wanted = tier_settings.declared(host.tier.group, host.tier.tier)
    assert host.answer(wanted, access={"writable": True})["writable"] is True
    assert host.page()[-1].endswith("  ok")
    denied = {
        "writable": False,
        "denied": "runs as 65532:0 and cannot write to /mnt/chat, which has 0:0 0755",
        "remedy": "chown 65532:0 /mnt/chat",
    }
    text = "process 7 (mooncake_client) runs as 65532:0 and cannot write to /mnt/chat, which has 0:0 0755; "
    text += "chown 65532:0 /mnt/chat, or roll the host out"
    for _round in range(2):
        now += 301
        host.look()
        one = host.answer(wanted, access=denied)
        assert one["writable"] is False and one["warnings"] == [{"reason": NOT_WRITABLE, "message": text}]
        assert one["processes"][0]["writable"] is False
    assert host.page()[1].endswith("  not writable") and host.page()[-1] == f"! chat/0: {text}"
    assert host.said == [f"tier/chat/0: {text}"] and len(host.written) == 1
    now += 301
    host.look()
    one = host.answer(wanted, access={"writable": True})
    assert one["writable"] is True and one["warnings"] == []


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([], None),
        ([True], True),
        ([True, True], True),
        ([True, None], None),
        ([None, False], False),
        ([True, False], False),
    ],
)
def test_all_processes_have_to_be_able_to_write(answers: list[bool | None], expected: bool | None) -> None:
    assert tiers._all_can(answers) is expected


@pytest.mark.parametrize(
    ("changes", "by_mode", "expected"),
    [
        ({}, True, {"writable": False, "remedy": "chown 65532:0 /mnt/\\n"}),
        ({"uid": 1000}, True, {"writable": True}),
        ({"uid": 0}, True, {"writable": True}),
        ({"gid": 100}, True, {"writable": False, "remedy": "chown 65532:100 /mnt/\\n"}),
        ({"groups": [5, 77]}, True, {"writable": True}),
        ({}, False, {"writable": None}),  # it has an access control list
        ({"uid": None}, True, {"writable": None}),
        ({"owner": [0, 77]}, True, {"writable": None}),  # over an ID-mapped mount
        ({"owner": ()}, True, {"writable": None}),
    ],
)
def test_who_can_write_to_a_tier(changes: dict[str, Any], by_mode: bool, expected: dict[str, Any]) -> None:
    status = os.stat_result((0o40770, 5, 6, 2, 1000, 77, 0, 0, 0, 0))
    runs_as: dict[str, Any] = {"uid": 65532, "gid": 0, "groups": [100], "owner": [1000, 77], **changes}
    found = tiers._access(StoreProcess(1, "store", "/kv", **runs_as), "/mnt/\n", status, by_mode)
    denied = found.pop("denied", "")
    assert found == expected and bool(denied) is (found["writable"] is False)
    if denied:
        assert denied == f"runs as 65532:{runs_as['gid']} and cannot write to /mnt/\\n, which has 1000:77 0770"


def test_a_mode_that_keeps_its_owner_out() -> None:
    status = os.stat_result((0o40550, 5, 6, 2, 65532, 0, 0, 0, 0, 0))
    found = tiers._access(StoreProcess(1, "store", "/kv", uid=65532, gid=0, owner=[65532, 0]), "/kv", status, True)
    assert (found["writable"], found["remedy"]) == (False, "chmod u+rwx /kv")


@pytest.mark.parametrize("number", [0, errno.ENODATA, errno.EOPNOTSUPP, errno.EIO])
def test_an_access_control_list(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def getxattr(_path: str, name: str, follow_symlinks: bool) -> bytes:
        assert (name, follow_symlinks) == ("system.posix_acl_access", False)
        if number:
            raise OSError(number, "no")
        return b""

    monkeypatch.setattr(os, "getxattr", getxattr)
    if number == errno.EIO:
        with pytest.raises(OSError, match="no"):
            tiers._has_acl("/kv")
    else:
        assert tiers._has_acl("/kv") is (number == 0)


def test_what_is_declared_anew_is_compared_at_once(host: Host) -> None:
    host.look()
    wanted = tier_settings.declared(host.tier.group, host.tier.tier)
    assert host.answer(wanted)["settings_differ"] is False
    tier = dataclasses.replace(host.tier.tier, key_limit=64)
    host.tier = dataclasses.replace(host.tier, tier=tier)
    assert host.look()["settings_differ"] is True and host.started


def test_warnings_are_told_once_also_after_a_start(host: Host) -> None:
    host.figures.used = 950 * GIB
    for _round in range(3):
        one = host.look()
        assert [warning["reason"] for warning in one["warnings"]] == [UNACCOUNTED_USE, FILLING]
        assert one["filling"] is True and one["unaccounted_bytes"] == 940 * GIB
    assert len(host.written) == 2 and len(host.said) == 2 and host.said[0].startswith("tier/chat/0: /mnt: ")
    for writing in host.written:
        assert writing() == ""
    events = Path(host.places.events).read_text()
    assert events.count("\n") == 2 and '"object": "tier/chat/0"' in events and FILLING in events
    host.begin()
    host.look()
    assert len(host.written) == 2


def test_a_tier_that_is_not_there(tmp_path: Path) -> None:
    host = Host(tmp_path, available=False, readable=False, claimed=False, complete=False, reason="/mnt/chat: gone")
    one = host.look()
    assert host.started == [] and one["processes"] is None
    assert (one["unaccounted_bytes"], one["filling"], one["allocated"]) == (None, None, 10 * GIB)
    assert host.page()[-1] == "! chat/0: unavailable: /mnt/chat: gone"


@pytest.mark.parametrize(
    "value", [None, {}, {"buckets": 3, "space": {}}, {"buckets": {"complete": "many"}, "space": None}]
)
def test_a_measurement_of_another_version_tells_nothing(tmp_path: Path, value: Any) -> None:
    one = Host(tmp_path, tier=value).look()
    assert one["buckets"] is None and one["unaccounted_bytes"] is None and one["allocated"] == 10 * GIB


def test_whole_files_have_no_buckets_and_no_processes(tmp_path: Path) -> None:
    host = Host(tmp_path)
    group = backend("files", store="files", capacity_per_member=0).members[0]
    assert group.tier is not None
    host.tier = HostTier("files", 0, "/mnt/files", group, group.tier)
    host.figures.found["tier"] = {"buckets": None, "space": host.figures.room()}
    one = host.look()
    assert host.started == [] and (one["bucket_bytes"], one["buckets"], one["keys"]) == (None, None, None)
    assert one["filling"] is False


def test_which_processes_are_on_a_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path.stat()
    identity = {"device": there.st_dev, "inode": there.st_ino}
    runs_as: dict[str, Any] = {"uid": there.st_uid, "gid": there.st_gid, "owner": [there.st_uid, there.st_gid]}
    found = [
        StoreProcess(1, "mooncake_client", "/in/a/container", settings={"a": "1"}, **identity, **runs_as),
        StoreProcess(2, "mooncake_client", str(tmp_path), 1, 2),  # of the same name, in another container
        StoreProcess(3, "mooncake_client", str(tmp_path)),  # nothing is there for it
        StoreProcess(4, "mooncake_client", "/hung", unknown="no answer"),
    ]
    monkeypatch.setattr(tiers.use_service, "stores", lambda path: found)
    group = MemberGroup()
    those = [HostTier("chat", 0, str(tmp_path), group, Tier("")), HostTier("gone", 0, "/nowhere", group, Tier(""))]
    sent: list[Any] = []
    tiers._look(Places(), those, sent.append)
    assert sent == [
        {"unknown": "process 4 (mooncake_client): its directory could not be determined: no answer"},
        {
            "tier": "chat/0",
            "processes": [{"pid": 1, "command": "mooncake_client", "settings": {"a": "1"}, "writable": True}],
        },
    ]


def test_records_of_measurements_are_apart() -> None:
    places = Places()
    paths = [record_path(places, name) for name in ("tier/chat/0", "location/chat", "location/chat.0", "data-location")]
    assert len(set(paths)) == 4 and paths[0].endswith("/locations/tier.chat.0.json")
