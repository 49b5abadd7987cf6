# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The daemon and ``stowage tier`` with tiers on real disks, and processes that look like their stores."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bucket_files
import pytest
from daemon_lab import Daemon, wait_for
from test_daemon_service import declare_location
from tiers_lab import Host, backend

from stowage_core import events, mounts, records
from stowage_core.facts.objects import Objects
from stowage_core.tiers import recorded
from stowage_core.tiers.declared import Backend
from stowage_core.tiers.environment import member_environment

MIB = 1 << 20
STORE = "import time; print(flush=True); time.sleep(600)"


def declared(daemon: Daemon) -> Backend:
    return recorded.load_backends(daemon.places)["chat"]


def declare(daemon: Daemon, path: Path, capacity: str = "400Mi", **group: Any) -> None:
    one = backend("chat", path, **group)
    one["members"][0]["local_disks"][0].update(capacity=capacity, eviction={"policy": "LRU"})
    Host(daemon.places).declare(one)


def shown(daemon: Daemon) -> dict[str, Any]:
    found = daemon.state("tiers").get("tiers", [])
    return found[0] if found else {}


def measured_anew(daemon: Daemon) -> dict[str, Any]:
    """Return what is shown after the next measurement that is complete."""
    before = shown(daemon).get("measured")

    def new() -> Any:
        one = shown(daemon)
        return one if one and one["complete"] and one["measured"] not in (None, before) else None

    return dict(wait_for(new))


def page_of(daemon: Daemon, *command: str) -> str:
    return " ".join(daemon.command(*command).stdout.split())


def told(daemon: Daemon) -> list[str]:
    return [event["reason"] for event in events.read(daemon.places) if event["object"] == "tier/chat/0"]


def with_keys(path: Path, number: int, keys: int = 16) -> int:
    return bucket_files.put(path, number, keys, MIB)


@contextlib.contextmanager
def store(settings: dict[str, str], *prefix: str) -> Iterator[int]:
    """Run something that has the environment of a store's process, and does nothing."""
    process = subprocess.Popen(
        [*prefix, sys.executable, "-c", STORE], env={**os.environ, **settings}, stdout=subprocess.PIPE, cwd="/"
    )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def acl(uid: int) -> bytes:
    """Return an access control list that lets one more user in, as the kernel keeps it."""
    nobody = 0xFFFFFFFF
    entries = [(1, 7, nobody), (2, 7, uid), (4, 5, nobody), (0x10, 7, nobody), (0x20, 0, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in entries)


def test_what_a_member_has_really_written(disk: Path, start: Callable[..., Daemon]) -> None:
    daemon = start()
    declare(daemon, disk / "kv")
    (disk / "other").write_bytes(bytes(5000))
    declare_location(daemon, "cache", disk)
    written = sum(with_keys(disk / "kv", 7356462120968 + number) for number in range(3))
    (disk / "kv/7356462120999.bucket").write_bytes(bytes(6 * MIB))  # left of a process that was killed
    os.sync()
    daemon.start()
    one = measured_anew(daemon)
    du = int(subprocess.check_output(["du", "-s", "-B1", str(disk / "kv")], text=True).split()[0])
    assert abs(one["allocated"] - du) <= 64 << 10, "btrfs may still be writing"
    assert (one["buckets"], one["incomplete_buckets"], one["written_bytes"], one["keys"]) == (3, 1, written, 48)
    assert (one["files"], one["capacity_bytes"], one["readable"], one["claimed"]) == (7, 400 * MIB, True, True)
    wait_for(lambda: daemon.location("cache")["files"])  # what is around a tier is told after it
    location = daemon.location("cache")
    assert location["files"] == 8 and location["bytes"] == one["bytes"] + 5000  # counted along
    assert location["measured"] >= one["measured"] - 1
    text = page_of(daemon, "status")
    assert "chat/0" in text and "419 MB" in text
    found = json.loads(daemon.command("measure", "--json").stdout)
    assert {each["object"]: each["files"] for each in found}["tier/chat/0"] == 7
    (fact,) = Objects(daemon.places, mounts.read()).read()["tiers"]
    known = ("allocated", "measured", "buckets", "keys", "written_bytes", "filling", "settings_differ", "claimed")
    known += ("writable",)
    assert {key: fact[key] for key in known} == {key: shown(daemon)[key] for key in known}


def test_figures_stay_while_its_disk_is_away(small_disk: Callable[..., Any], start: Callable[..., Daemon]) -> None:
    small = small_disk("ext4", 128 * MIB)
    daemon = start(scan_interval_s=1)
    declare(daemon, small.path / "kv")
    with_keys(small.path / "kv", 1)
    daemon.start()
    before = measured_anew(daemon)
    wait_for(lambda: subprocess.run(["umount", str(small.path)], check=False).returncode == 0)
    gone = wait_for(lambda: shown(daemon) if not shown(daemon)["available"] else None)
    assert (gone["readable"], gone["claimed"], gone["filesystem"]) == (False, False, None)
    assert (gone["buckets"], gone["allocated"], gone["keys"]) == (1, before["allocated"], 16)
    # An empty directory, and one with other content, where the disk was.
    (small.path / "kv").mkdir()
    with_keys(small.path / "kv", 9)
    for _round in range(3):
        daemon.cycle()
    gone = shown(daemon)
    assert (gone["readable"], gone["claimed"], gone["buckets"], gone["keys"]) == (False, False, 1, 16)
    assert gone["measured"] == before["measured"] and "does not bear the owner mark" in gone["reason"]
    assert "does not bear the owner mark of tier chat/0" in page_of(daemon, "status")
    small.mount()
    with_keys(small.path / "kv", 2)
    wait_for(lambda: shown(daemon)["buckets"] == 2 and shown(daemon)["claimed"])


def test_the_settings_of_the_store_that_runs(disk: Path, tmp_path: Path, start: Callable[..., Daemon]) -> None:
    daemon = start(scan_interval_s=1)
    declare(daemon, disk / "kv", extra_env={"MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1"})
    group = declared(daemon).members[0]
    assert group.tier is not None
    settings = {**member_environment(group.tier), **group.extra_env}
    daemon.start()
    wait_for(lambda: shown(daemon).get("processes") == [])
    assert shown(daemon)["settings_differ"] is None
    as_store = ("setpriv", "--reuid=65532", "--regid=0", "--clear-groups")
    with store(settings) as pid:
        wait_for(lambda: [one["pid"] for one in shown(daemon)["processes"]] == [pid])
        assert shown(daemon)["settings_differ"] is False and shown(daemon)["warnings"] == []
    # In a container the directory has another name, and the process is another user's.
    inside = tmp_path / "in-the-container"
    inside.mkdir()
    tmp_path.chmod(0o755)
    mount = f'mount --bind "{disk}/kv" "{inside}" && exec "$@"'
    wrong = {
        **settings,
        "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(inside),
        "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "LRU",
    }
    del wrong["MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT"]
    python = "/usr/bin/python3"
    command = ("unshare", "--mount", "sh", "-c", mount, "sh", *as_store, python, "-c", STORE)
    with store(wrong, *command) as pid:
        found = wait_for(lambda: shown(daemon) if shown(daemon)["settings_differ"] else None)
        assert [one["pid"] for one in found["processes"]] == [pid]
        assert found["processes"][0]["differs"] == [
            "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT is not set, and 64 is declared",
            "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY is LRU, and lru is declared",
        ]
        assert "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY is LRU, and lru is declared" in page_of(daemon, "status")
        daemon.cycle()
        done = daemon.command("tier", "chat")
        assert done.returncode == 3 and "is declared" in done.stdout
    wait_for(lambda: shown(daemon)["processes"] == [])
    assert told(daemon) == ["TierSettingsDiffer"]


def test_a_store_that_cannot_write_to_its_directory_any_more(disk: Path, start: Callable[..., Daemon]) -> None:
    daemon = start(scan_interval_s=1)
    declare(daemon, disk / "kv")
    group = declared(daemon).members[0]
    assert group.tier is not None
    daemon.start()
    wait_for(lambda: shown(daemon).get("complete") and shown(daemon)["processes"] == [])
    assert shown(daemon)["writable"] is None
    as_store = ("setpriv", "--reuid=65532", "--regid=0", "--groups=77")
    with store(member_environment(group.tier), *as_store, "/usr/bin/python3", "-c", STORE) as pid:
        wait_for(lambda: shown(daemon)["writable"] is True)
        assert shown(daemon)["warnings"] == []
        os.chown(disk / "kv", 0, 0)
        wait_for(lambda: shown(daemon)["writable"] is False)
        text = f"runs as 65532:0 and cannot write to {disk}/kv, which has 0:0 0750; chown 65532:0 {disk}/kv, or roll"
        for command in (("tier", "chat"), ("status",)):
            page = page_of(daemon, *command)
            assert "not writable" in page and f"process {pid} " in page and text in page
        assert daemon.command("tier", "chat").returncode == 3
        os.chown(disk / "kv", 0, 77)
        os.chmod(disk / "kv", 0o770)
        wait_for(lambda: shown(daemon)["writable"] is True)
        os.chmod(disk / "kv", 0o750)
        wait_for(lambda: shown(daemon)["writable"] is False)
        os.setxattr(disk / "kv", "system.posix_acl_access", acl(65532))
        wait_for(lambda: shown(daemon)["writable"] is None and shown(daemon)["processes"])
        assert shown(daemon)["warnings"] == []
        os.removexattr(disk / "kv", "system.posix_acl_access")
        os.chown(disk / "kv", 65532, 0)
        os.chmod(disk / "kv", 0o550)
        wait_for(lambda: any("chmod u+rwx" in one["message"] for one in shown(daemon)["warnings"]))
        os.chmod(disk / "kv", 0o750)
        wait_for(lambda: shown(daemon)["writable"] is True)
    # Root can, whatever they are.
    os.chown(disk / "kv", 1000, 1000)
    with store(member_environment(group.tier)):
        wait_for(lambda: shown(daemon)["writable"] is True)
    assert told(daemon) == ["TierNotWritable"]


def test_without_the_service_nothing_is_known_of_processes(disk: Path, start: Callable[..., Daemon]) -> None:
    daemon = start(scan_interval_s=1)
    declare(daemon, disk / "kv")
    daemon.start()
    wait_for(lambda: shown(daemon).get("processes") == [])
    os.rename(daemon.places.use_socket, daemon.places.use_socket + ".away")
    wait_for(lambda: shown(daemon)["processes"] is None)
    assert "Settings of stores are not known" in page_of(daemon, "status")
    assert "systemctl restart stowage-use.socket" in daemon.state("tiers")["trouble"]
    os.rename(daemon.places.use_socket + ".away", daemon.places.use_socket)
    wait_for(lambda: shown(daemon)["processes"] == [] and not daemon.state("tiers")["trouble"])


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
def test_what_else_fills_the_disk_is_told_before_it_is_full(
    fstype: str, small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    small = small_disk(fstype, 1 << 30)
    daemon = start(scan_interval_s=1)
    declare(daemon, small.path / "kv", "400Mi")
    for number in range(1, 4):
        with_keys(small.path / "kv", number)
    os.sync()
    daemon.start()
    one = measured_anew(daemon)
    assert one["warnings"] == [] and one["filling"] is False
    assert one["unaccounted_bytes"] < 0.1 * one["filesystem"]["size"]  # what the filesystem itself uses
    (small.path / "dump").write_bytes(bytes(450 * MIB))
    os.sync()
    one = wait_for(lambda: shown(daemon) if shown(daemon)["unaccounted_bytes"] >= 450 * MIB else None)
    assert one["filling"] is True
    assert {warning["reason"] for warning in one["warnings"]} == {"TierUnaccountedUse", "TierFilesystemFilling"}
    measured_anew(daemon)
    text = page_of(daemon, "status")
    assert "are used by what is in no tier" in text and "its tiers may still write" in text
    assert sorted(told(daemon)) == ["TierFilesystemFilling", "TierUnaccountedUse"]
    (small.path / "dump").unlink()
    os.sync()
    wait_for(lambda: not shown(daemon)["warnings"] and shown(daemon)["filling"] is False)
    assert sorted(path.name for path in (small.path / "kv").glob("*.bucket")) == ["1.bucket", "2.bucket", "3.bucket"]


def test_a_record_that_is_none_leaves_the_earlier_in_force(disk: Path, start: Callable[..., Daemon]) -> None:
    daemon = start(scan_interval_s=1)
    declare(daemon, disk / "kv")
    daemon.start()
    wait_for(lambda: shown(daemon).get("complete"))
    before = records.read(daemon.places.tiers_json)
    Path(daemon.places.tiers_json).write_text('{"backends": [{}]}')
    wait_for(lambda: not daemon.state("config")["successful"])
    assert "not a record of tiers" in daemon.state("config")["error"] and shown(daemon)["backend"] == "chat"
    assert daemon.command("check-config").returncode == 3
    assert before is not None
    records.write(daemon.places.tiers_json, before)
    wait_for(lambda: daemon.state("config")["successful"])


# -- With a leader


class Leader:
    """A page of metrics with what the store says, in MiB."""

    def __init__(self) -> None:
        self.say(0, 0, 0)
        leader = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(leader.page)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def say(self, written: int, offered: int, memory: int) -> None:
        self.page = (
            f"master_allocated_file_size_bytes {written * MIB}\n"
            f"master_value_size_bytes_sum {offered * MIB}\n"
            f"master_allocated_bytes {memory * MIB}\n"
            f"master_total_capacity_bytes {64 * MIB}\n"
            f'segment_total_capacity_bytes{{segment="10.0.0.1:13028"}} {64 * MIB}\n'
            "master_put_start_alloc_failures_total 0\n"
        ).encode()


@pytest.fixture
def leader() -> Iterator[Leader]:
    one = Leader()
    yield one
    one.server.shutdown()
    one.server.server_close()


def test_whether_a_tier_takes_writes(disk: Path, start: Callable[..., Daemon], leader: Leader) -> None:
    daemon = start()
    declare(daemon, disk / "kv")
    daemon.start()
    wait_for(lambda: shown(daemon).get("complete"))
    daemon.cycle()

    def judged(*arguments: str) -> tuple[int, str]:
        done = daemon.command("tier", "chat", "--master", leader.url, "--wait", "0", *arguments)
        return done.returncode, " ".join(done.stdout.split())

    leader.say(0, 10, 10)
    status, text = judged()
    assert status == 0 and "expected: no bucket is due yet" in text and "chat/0" in text, text
    leader.say(0, 40, 40)
    status, text = judged()
    assert status == 0 and "expected: no bucket is due yet" in text and "memory is 62% full" in text
    leader.say(0, 64, 64)
    status, text = judged()
    assert status == 1 and "! the tier is not taking writes" in text
    status, text = judged("--json")
    value = json.loads(text)
    assert status == 1 and value["verdict"]["well"] is False and value["master"]["offered"] == 64 * MIB
    leader.say(64, 70, 54)
    status, text = judged()
    assert status == 0 and "the tier has taken writes: 67.1 MB" in text
    assert daemon.command("tier", "chat").returncode == 0
    done = daemon.command("tier", "code")
    assert done.returncode == 1 and done.stdout.startswith("stowage: backend code: has no tier on this host")
    daemon.stop()
    leader.server.shutdown()
    leader.server.server_close()
    done = daemon.command("tier", "chat", "--master", leader.url)
    assert done.returncode == 1 and "is the leader there?" in done.stdout
