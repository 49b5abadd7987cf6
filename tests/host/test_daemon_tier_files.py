# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tiers of whole files kept between their marks by the real daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from daemon_lab import Daemon, wait_for
from tiers_lab import Host

from stowage_core import events, owner
from stowage_core.errors import Refusal
from stowage_core.locks import is_tier_lock_held, tier_lock
from stowage_core.tiers.files_eviction import YOUNG_S
from stowaged import metrics

SIZE = 8192


def backend(path: Path, **tier: Any) -> dict[str, Any]:
    disk = {"path": str(path), "eviction": {"enabled": True}, **tier}
    return {"name": "files", "members": [{"store": "files", "owner": "0", "local_disks": [disk]}]}


def fill(tier: Path, number: int, first: int = 0) -> None:
    for each in range(first, first + number):
        path = tier / f"{each:05}"
        path.write_bytes(bytes(SIZE))
        os.utime(path, (1_700_000_000 + each, 1_700_000_000 + each))


def grow_old() -> None:
    time.sleep(YOUNG_S + 0.5)


def names(tier: Path) -> list[str]:
    return sorted(path.name for path in tier.iterdir() if path.is_file())


def shown(daemon: Daemon) -> dict[str, Any]:
    found = daemon.state("tier_evictions").get("tiers", [])
    return found[0] if found else {}


@pytest.fixture
def daemon(start: Callable[..., Daemon]) -> Daemon:
    return start(evict="on")


@pytest.fixture
def host(daemon: Daemon) -> Host:
    return Host(daemon.places)


def test_a_tier_is_kept_between_its_marks(host: Host, daemon: Daemon, disk: Path) -> None:
    tier = disk / "tier"
    host.declare(backend(tier, capacity=100 * SIZE))
    daemon.start()
    fill(tier, 90)
    grow_old()
    daemon.cycle()
    assert len(names(tier)) == 90  # at the mark, not above it
    fill(tier, 10, 90)
    with open(tier / "00002", "rb"):
        wait_for(lambda: shown(daemon)["evicted_files"] == 20)
        daemon.cycle()
    assert names(tier) == ["00002", *(f"{each:05}" for each in range(21, 100))]
    page = metrics.render("tier_evictions", daemon.state("tier_evictions")).decode()
    assert f'stowage_tier_evicted_bytes_total{{backend="files",position="0"}} {20 * SIZE}.0' in page
    assert 'stowage_tier_evicted_files_total{backend="files",position="0"} 20.0' in page
    assert 'stowage_tier_eviction_blocked{backend="files",position="0",reason="short"} 0.0' in page
    status = daemon.command("status")
    assert "files/0: 20 files removed since the host was started, 164 kB" in status.stdout
    wait_for(lambda: "TierEvicted" in host.reasons())
    (event,) = [event for event in events.read(daemon.places) if event["reason"] == "TierEvicted"]
    assert event["object"] == "tier/files/0"
    assert event["message"] == f"{tier}: 20 files (164 kB) removed: it was above 90 % of 819 kB"
    # The number of files counts, too, and what is declared anew is taken on.
    host.declare(backend(tier, key_limit=50, eviction={"watermark": {"high": 60, "low": 40}}))
    wait_for(lambda: len(names(tier)) == 20)
    # Over a restart nothing is counted twice, and nothing forgotten.
    wait_for(lambda: shown(daemon)["evicted_files"] == 80)
    daemon.stop()
    daemon.start()
    daemon.cycle()
    assert shown(daemon)["evicted_files"] == 80


@pytest.mark.parametrize("change", ["limits", "mode"])
def test_what_went_is_counted_however_it_is_broken_off(host: Host, daemon: Daemon, disk: Path, change: str) -> None:
    tier = disk / "tier"
    host.declare(backend(tier, key_limit=100))
    fill(tier, 10_000)
    grow_old()
    daemon.start()
    wait_for(lambda: len(os.listdir(tier)) < 9_900)
    if change == "limits":
        host.declare(backend(tier, key_limit=9_000))
    else:
        daemon.configure(evict="plan")
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(lambda: daemon.state("tier_evictions")["mode"] == "plan")
    wait_for(lambda: shown(daemon).get("evicted_files") == 10_000 - len(names(tier)))


@pytest.mark.parametrize("mode", ["plan", "off"])
def test_nothing_goes_until_a_site_asks_for_it(host: Host, daemon: Daemon, disk: Path, mode: str) -> None:
    tier = disk / "tier"
    host.declare(backend(tier, capacity=100 * SIZE))
    fill(tier, 100)
    grow_old()
    daemon.configure(evict=mode)
    daemon.start()
    daemon.cycle()
    if mode == "plan":
        wait_for(lambda: shown(daemon)["planned_files"] == 20)
        assert "files/0: 20 files, 164 kB, would be removed (evict: plan)" in daemon.command("status").stdout
        wait_for(lambda: "TierEvictionPlanned" in host.reasons())
    else:
        assert shown(daemon) == {}
    assert len(names(tier)) == 100
    daemon.configure(evict="on")
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(names(tier)) == 80)
    wait_for(lambda: shown(daemon)["planned_files"] == 0)


def test_too_much_that_cannot_go_is_told(host: Host, daemon: Daemon, disk: Path) -> None:
    tier = disk / "tier"
    host.declare(backend(tier, key_limit=10))
    daemon.start()
    fill(tier, 10)
    with contextlib.ExitStack() as stack:
        for name in names(tier):
            stack.enter_context(open(tier / name, "rb"))
        wait_for(lambda: shown(daemon).get("reason") == "short")
        wait_for(lambda: "10: open" in shown(daemon)["why"])
        status = daemon.command("status")
        assert len(names(tier)) == 10
    assert "! files/0: files cannot be removed: nothing can go: 2 files above the low mark" in status.stdout
    assert status.returncode == 3
    wait_for(lambda: len(names(tier)) == 8)
    wait_for(lambda: shown(daemon)["reason"] == "")


def test_only_what_is_claimed_is_touched(host: Host, daemon: Daemon, disk: Path) -> None:
    tier, other = disk / "tier", disk / "other"
    host.declare(backend(tier, key_limit=10))
    fill(tier, 20)
    other.mkdir()
    fill(other, 20)
    grow_old()
    os.rename(tier, disk / "moved")
    os.rename(other, tier)
    daemon.start()
    for _number in range(2):
        daemon.cycle()
    assert (len(names(tier)), len(names(disk / "moved"))) == (20, 20)
    os.rename(tier, other)
    os.rename(disk / "moved", tier)
    wait_for(lambda: len(names(tier)) == 8)
    assert len(names(other)) == 20
    fd = os.open(tier, os.O_RDONLY)
    mark = owner.read_mark(fd)
    assert mark is not None
    owner.release(fd, mark)
    os.close(fd)
    fill(tier, 20, 20)
    grow_old()
    for _number in range(2):
        daemon.cycle()
    assert len(names(tier)) == 28


def test_a_backend_that_is_not_declared_any_more_keeps_its_files(host: Host, daemon: Daemon, disk: Path) -> None:
    tier = disk / "tier"
    host.declare(backend(tier, key_limit=10))
    outcome = host.declare()
    assert any("files/0" in line for line in outcome.left)
    fill(tier, 20)
    grow_old()
    daemon.start()
    for _number in range(2):
        daemon.cycle()
    assert len(names(tier)) == 20
    host.declare(backend(tier, key_limit=10))
    wait_for(lambda: len(names(tier)) == 8)
    host.remove("files")
    assert len(names(tier)) == 8
    assert not (tier / ".stowage-evicting").exists()


@pytest.mark.parametrize("only", [(), ("files", "other")])
def test_it_gives_way_to_whoever_declares_or_empties_its_tiers(
    host: Host, daemon: Daemon, disk: Path, only: tuple[str, ...]
) -> None:
    tier = disk / "tier"
    host.declare(backend(tier, key_limit=10))
    fill(tier, 20)
    grow_old()
    with tier_lock(daemon.places, only):
        daemon.start()
        for _number in range(2):
            daemon.cycle()
        assert len(names(tier)) == 20
        assert shown(daemon)["reason"] == ""
    wait_for(lambda: len(names(tier)) == 8)


def test_it_goes_on_while_another_backend_is_removed(host: Host, daemon: Daemon, disk: Path) -> None:
    tier = disk / "tier"
    host.declare(backend(tier, key_limit=10))
    fill(tier, 20)
    grow_old()
    with tier_lock(daemon.places, ["other", "files2"]):
        daemon.start()
        wait_for(lambda: len(names(tier)) == 8)
    with tier_lock(daemon.places):
        assert is_tier_lock_held(daemon.places, "files")
    assert not is_tier_lock_held(daemon.places, "files")


def test_last_read_counts_only_where_the_mount_keeps_it(
    host: Host, daemon: Daemon, small_disk: Callable[..., Any]
) -> None:
    disk = small_disk("ext4", options="relatime")
    tier = disk.path / "tier"
    lru = backend(tier, key_limit=10, eviction={"policy": "LRU"})
    with pytest.raises(Refusal, match="LRU goes by when a file was last read, which .* does not keep: .* relatime"):
        host.declare(lru)
    subprocess.run(["mount", "-o", "remount,strictatime", str(disk.path)], check=True)
    host.declare(lru)
    fill(tier, 10)
    (tier / "00000").read_bytes()
    grow_old()
    daemon.start()
    wait_for(lambda: len(names(tier)) == 8)
    assert names(tier) == ["00000", *(f"{each:05}" for each in range(3, 10))]
    subprocess.run(["mount", "-o", "remount,noatime", str(disk.path)], check=True)
    fill(tier, 10, 10)
    wait_for(lambda: shown(daemon)["reason"] == "failed")
    assert "it is mounted noatime; mount it with strictatime, or use the policy FIFO" in shown(daemon)["why"]
    wait_for(lambda: "TierEvictionBlocked" in host.reasons())
    assert len(names(tier)) == 18
