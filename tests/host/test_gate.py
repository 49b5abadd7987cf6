# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The gate of the real daemon on real filesystems, filled past the mark and compared with what ``df`` prints."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon_lab import Daemon, hung_mount, wait_for
from test_daemon_service import declare_location

from stowage_core import events
from stowaged import sections

MIB = 1 << 20


def df(path: Path) -> int:
    """Return how full ``df`` says that a filesystem is."""
    shown = subprocess.run(["df", "--output=pcent", path], check=True, capture_output=True, text=True).stdout
    return int(shown.split()[-1].rstrip("%"))


def fill_to(path: Path, percent: float) -> None:
    """Have a file take so much that *percent* of what users can have is used."""
    answer = os.statvfs(path)
    used = answer.f_blocks - answer.f_bfree
    more = int((used + answer.f_bavail) * percent / 100) - used
    with open(path / "ballast", "ab") as file:
        size, more = file.tell(), more * answer.f_frsize
        if more > 0:
            os.posix_fallocate(file.fileno(), size, more)
        else:
            file.truncate(size + more)
    os.sync()


def asked(daemon: Daemon, *arguments: str) -> tuple[int, list[str]]:
    done = daemon.command("gate", *arguments)
    return done.returncode, done.stdout.splitlines()


def file(daemon: Daemon) -> str:
    return Path(daemon.places.gate).read_text()


@pytest.fixture
def cache(fstype: str, small_disk: Callable[..., Any]) -> Path:
    """A small disk: on ext4 with the usual 5 % that are kept for root."""
    path: Path = small_disk(fstype, {"ext4": 64, "xfs": 300, "btrfs": 256}[fstype] * MIB).path
    return path


@pytest.mark.parametrize("fstype", ["ext4", "xfs"])
def test_a_full_cache_disk_beside_an_empty_run_disk(
    fstype: str, cache: Path, small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    runs = small_disk("ext4", 512 * MIB).path
    daemon = start(disk_watermark_pct=90)
    declare_location(daemon, "runs", runs)
    declare_location(daemon, "cache", cache)
    daemon.start()
    assert asked(daemon) == (0, ["open"]) and df(runs) < 10
    seen = set()
    for percent, held in (
        *((60, False), (89.2, False), (89.9, False), (90.3, True), (93.4, True), (97, True)),
        *((89.3, True), (88.6, False), (89.3, False), (94, True), (10, False)),
    ):
        fill_to(cache, percent)
        daemon.cycle()
        shown = df(cache)
        seen.add(held)
        text = f"filesystem {cache} is {shown} % full, the watermark is 90 %"
        assert asked(daemon) == ((3, [text]) if held else (0, ["open"])), percent
        assert file(daemon) == (f"held: {text}\n" if held else "open\n")
    assert seen == {True, False}
    told = [event["reason"] for event in events.read(daemon.places) if event["object"] == "gate"]
    assert told == ["GateHeld", "GateOpened", "GateHeld", "GateOpened"]


def test_what_root_may_use_beyond_that_is_no_room(small_disk: Callable[..., Any], start: Callable[..., Daemon]) -> None:
    disk = small_disk("ext4", 64 * MIB).path
    daemon = start(disk_watermark_pct=99)
    declare_location(daemon, "runs", disk)
    fill_to(disk, 100)
    answer = os.statvfs(disk)
    assert answer.f_bfree > 0 and answer.f_bavail == 0
    daemon.start()
    assert asked(daemon) == (3, [f"filesystem {disk} is 100 % full, the watermark is 99 %"])


def test_one_filesystem_is_named_once(small_disk: Callable[..., Any], start: Callable[..., Daemon]) -> None:
    disk = small_disk("ext4", 64 * MIB).path
    (disk / "hub").mkdir()
    daemon = start(disk_watermark_pct=90)
    declare_location(daemon, "runs", disk)
    declare_location(daemon, "hub_cache", disk / "hub")
    daemon.start(DISK_WATERMARK_PCT="0.0001")
    code, lines = asked(daemon)
    assert code == 3 and len(lines) == 1 and lines[0].endswith("% full, the watermark is 0.0001 %")


def test_a_location_that_vanishes(small_disk: Callable[..., Any], start: Callable[..., Daemon]) -> None:
    disk = small_disk("xfs", 300 * MIB)
    daemon = start(disk_watermark_pct=90)
    declare_location(daemon, "runs", disk.path, require_mount=True, mount_point=str(disk.path))
    daemon.start()
    assert asked(daemon) == (0, ["open"])
    daemon.stop()
    disk.unmount()
    daemon.start()
    daemon.cycle()
    text = f"location runs ({disk.path}) is not available: nothing is mounted at {disk.path}; mount its disk"
    assert asked(daemon) == (3, [text])
    daemon.configure(disk_watermark_pct=0)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: asked(daemon) == (0, ["open"]), 20)
    daemon.configure(disk_watermark_pct=90)
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: asked(daemon) == (3, [text]), 20)
    disk.mount()
    assert asked(daemon, "--wait", "20") == (0, ["open"])


def test_a_daemon_that_dies_is_a_hold(small_disk: Callable[..., Any], start: Callable[..., Daemon]) -> None:
    daemon = start(disk_watermark_pct=100)
    declare_location(daemon, "runs", small_disk("ext4", 64 * MIB).path)
    daemon.start()
    assert asked(daemon) == (0, ["open"])
    daemon.stop(signal.SIGKILL)
    assert asked(daemon) == (3, ["the daemon does not run: systemctl status stowaged"])
    answer = json.loads(daemon.command("gate", "--json").stdout)
    assert answer["open"] is False and answer["stale"] is True and answer["holds"][0]["reason"] == "stale"
    judged = os.stat(daemon.places.gate).st_mtime
    daemon.start()
    daemon.cycle()
    assert asked(daemon) == (0, ["open"])
    # Whoever reads the file alone sees by its time that somebody judges.
    assert os.stat(daemon.places.gate).st_mtime > judged and file(daemon) == "open\n"
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGSTOP)
    path = Path(daemon.places.state_dir, "gate.json")
    section = json.loads(path.read_text())
    path.write_text(json.dumps({**section, "time": time.time() - 130}))  # as if it had hung for so long
    assert asked(daemon) == (3, ["the daemon has not judged for 2 min: systemctl status stowaged"])
    daemon.process.send_signal(signal.SIGCONT)
    assert asked(daemon, "--wait", "20") == (0, ["open"])


@pytest.mark.parametrize("record", ["layout_json", "volumes_json", "tiers_json", "data_location_json"])
def test_the_gate_is_held_until_what_is_declared_was_read_once(
    record: str, small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    disk = small_disk("ext4", 64 * MIB).path
    daemon = start(disk_watermark_pct=50)
    declare_location(daemon, "runs", disk)
    fill_to(disk, 91)
    full = f"filesystem {disk} is {df(disk)} % full, the watermark is 50 %"
    daemon.start()
    assert asked(daemon) == (3, [full])
    daemon.stop()
    path = Path(getattr(daemon.places, record))
    before = path.read_bytes() if path.exists() else None
    seen = [name for name in sections.NAMES if name not in ("gate", "config", "leases")]
    earlier = {name: daemon.state(name) for name in seen}
    path.write_text('{"locations":')
    daemon.start()
    text = f"what is declared is not known: {path}: not valid JSON"
    wait_for(lambda: file(daemon).startswith(f"held: {text}"), 20)
    code, lines = asked(daemon)
    assert code == 3 and len(lines) == 1 and lines[0].startswith(text)
    answer = json.loads(daemon.command("gate", "--json").stdout)
    assert answer["holds"][0]["reason"] == "unknown" and not answer["stale"]
    # Nothing is concluded meanwhile, and what is shown is not called new.
    assert {name: daemon.state(name) for name in seen} == earlier and earlier["filesystems"]["filesystems"]
    status = " ".join(daemon.command("status").stdout.split())
    assert "nothing is looked at until it can be" in status and "stays in force" not in status + daemon.logged()
    # Whoever holds jobs by hand is heard.
    assert asked(daemon, "--hold", "the rack is being moved") == (0, ["held"])
    wait_for(lambda: file(daemon).startswith(f"held: the rack is being moved; {text}"), 20)
    assert asked(daemon, "--release") == (0, ["released"])
    if before is None:
        path.unlink()
    else:
        path.write_bytes(before)
    wait_for(lambda: file(daemon) == f"held: {full}\n", 20)
    daemon.cycle()
    path.write_text("{")  # what was read once stays in force
    wait_for(lambda: daemon.state("config")["successful"] is False, 20)
    daemon.cycle()
    assert asked(daemon) == (3, [full]) and daemon.location("runs")["available"]
    fill_to(disk, 10)
    daemon.cycle()
    assert asked(daemon) == (0, ["open"])
    assert "the earlier one stays in force" in " ".join(daemon.command("status").stdout.split())


def test_a_quota_is_kept_over_a_record_that_was_damaged(
    tmp_path: Path, small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    """What was recorded of accounts and volumes is there again when what is declared can be read again."""
    disk = small_disk("ext4", 64 * MIB).path
    (disk / "ann" / "x" / "1").mkdir(parents=True)
    (disk / "ann" / "x" / "1" / "out").write_bytes(b"x" * MIB)
    daemon = start(disk_watermark_pct=0, quotas={"users": {"ann": "10k"}})
    declare_location(daemon, "runs", disk)
    daemon.start()
    wait_for(lambda: asked(daemon, "--user", "ann")[0] == 3, 30)
    since = daemon.state("accounts")["users"]["ann"]["exceeded_since"]
    daemon.stop()
    volumes = Path(daemon.places.volumes_json)
    volumes.write_text("{")
    daemon.start()
    wait_for(lambda: file(daemon).startswith("held: what is declared is not known"), 20)
    assert asked(daemon, "--user", "bob")[0] == 3  # nobody knows who is over quota
    accounts = json.loads(Path(daemon.places.accounts_json).read_text())
    assert accounts["users"]["ann"]["exceeded_since"] == since
    volumes.unlink()
    daemon.cycle()
    assert asked(daemon, "--user", "bob") == (0, ["open"])
    assert daemon.state("accounts")["users"]["ann"]["exceeded_since"] == since
    told = [event["reason"] for event in events.read(daemon.places) if event["object"].startswith("user")]
    assert len(told) == 1


def test_the_gate_judges_by_what_could_not_be_written(
    small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    disk = small_disk("ext4", 64 * MIB).path
    daemon = start(disk_watermark_pct=50)
    declare_location(daemon, "runs", disk)
    daemon.start()
    daemon.cycle()
    assert asked(daemon) == (0, ["open"])
    path = Path(daemon.places.state_dir, "filesystems.json")
    path.unlink()
    path.mkdir()  # as if /run had a page for gate.json and none for this
    fill_to(disk, 91)
    text = f"filesystem {disk} is {df(disk)} % full, the watermark is 50 %"
    wait_for(lambda: asked(daemon) == (3, [text]), 20)
    wait_for(lambda: daemon.logged().count(f"{path}: "), 20)
    cycle = daemon.state("cycle")
    fill_to(disk, 92)
    wait_for(lambda: f"{df(disk)} % full" in file(daemon), 20)
    assert daemon.state("cycle") == cycle, "it shows that what others read is old"
    assert daemon.logged().count(f"{path}: ") == 1
    path.rmdir()
    daemon.cycle()
    assert daemon.state("filesystems")["filesystems"]


def test_held_by_hand(small_disk: Callable[..., Any], start: Callable[..., Daemon]) -> None:
    daemon = start(disk_watermark_pct=0)
    declare_location(daemon, "runs", small_disk("ext4", 64 * MIB).path)
    daemon.start()
    assert asked(daemon, "--hold", "the rack is being moved") == (0, ["held"])
    assert asked(daemon) == (3, ["the rack is being moved"])
    wait_for(lambda: file(daemon) == "held: the rack is being moved\n", 20)
    assert daemon.command("status").stdout.startswith("! Jobs are held: the rack is being moved\n")
    daemon.stop()
    daemon.start()
    daemon.cycle()
    assert asked(daemon, "--user", "ann") == (3, ["the rack is being moved"])
    assert asked(daemon, "--release") == (0, ["released"])
    assert asked(daemon) == (0, ["open"])
    assert asked(daemon, "--release") == (0, ["nothing was held by hand"])
    wait_for(lambda: file(daemon) == "open\n", 20)
    assert re.fullmatch(r"stowage: hold: its text must be one line .*", asked(daemon, "--hold", "a\nb")[1][0])


@pytest.mark.parametrize("declared", ["shared", "scratch/runs"])
def test_a_quota_on_what_another_host_measures_is_not_passed_by_silence(
    declared: str, tmp_path: Path, start: Callable[..., Daemon]
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (tmp_path / "scratch").symlink_to(shared)
    daemon = start(disk_watermark_pct=0, quotas={"users": {"ann": "1T"}})
    declare_location(daemon, "runs", tmp_path / declared)
    text = f"what user %s uses is not known here: {tmp_path / declared} is measured by another host"
    with hung_mount(shared, "server:/runs"):
        daemon.start()
        code, lines = asked(daemon, "--user", "ann")
        assert code == 3 and len(lines) == 1 and lines[0].startswith(text % "ann")
        code, lines = asked(daemon, "--user", "bob")  # who has no quota here
        assert code == 0 and "open" in lines and any(line.startswith(f"stowage: {text % 'bob'}") for line in lines)
        assert asked(daemon) == (0, ["open"])
        daemon.stop()
