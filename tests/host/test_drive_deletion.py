# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies that go because somebody said so of their drive: deleted, by force, or not used for so long."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from copies_lab import NOW, Lab, process
from daemon_lab import Daemon, wait_for

from stowage_core import events, records
from stowage_core.copies import present as copies
from stowage_core.differences import Differences
from stowage_core.drives import host as drives_host
from stowage_core.drives.declared import check_lists
from stowage_core.errors import Refusal
from stowage_core.eviction import evict as eviction
from stowage_core.owner import XATTR
from stowage_core.runs import pinning, pins
from stowage_core.sizes import decimal

DAY = 86400.0
TTL = 14 * int(DAY)


@pytest.fixture
def lab(disk: Path, tmp_path: Path) -> Lab:
    made = Lab(disk, tmp_path)
    records.write(made.places.claims_json, {"claims": {}})
    records.write(made.places.data_location_json, made.location.to_json())
    return made


def declare(lab: Lab, *drives: dict[str, Any]) -> drives_host.Outcome:
    lists = check_lists([{"name": "ml", "drives": list(drives)}])
    return drives_host.declare(lab.places, lab.location.host, lists, "", Differences())


def lease(lab: Lab, name: str = "ml.a", run: str = "r") -> pins.Pin:
    return pinning.take(lab.places, lab.location, name, run=run, worker="w0", read_only=False, seconds=600)


def old_copy(lab: Lab, name: str, unused_s: float, seconds: int = TTL) -> Path:
    """Make a copy that was made and used long ago, of a drive that expires, and that was seen unused for so long."""
    path = lab.copy(name, last_used=time.time() - 2 * TTL)
    made = time.time() - 2 * TTL
    mark = json.loads(os.getxattr(path, XATTR))
    os.setxattr(path, XATTR, json.dumps({**mark, "time": made}).encode())
    record = copies.load_record(lab.places, name)
    assert record is not None
    copies.write_record(lab.places, name, replace(record, unused_s=unused_s, watched_copy=made))
    expire_after(lab, name, seconds)
    return path


def expire_after(lab: Lab, name: str, seconds: int) -> None:
    """Declare the drive of a copy anew."""
    workspace, drive = name.split(".")
    lab.drives[workspace][drive]["spec"]["idle_ttl_seconds"] = seconds
    lab.drives[workspace][drive]["spec"]["evictable"] = False
    path = os.path.join(lab.places.drives_dir, f"{workspace}.json")
    records.write(path, {**(records.read(path) or {}), "drives": list(lab.drives[workspace].values())})


# -- By the module


def test_a_drive_in_use_is_deleted_by_force_only(lab: Lab) -> None:
    lab.copy("ml.a")
    body = {"metadata": {"name": "a"}, "spec": {"sources": [{"node_scope": "placed"}], "evictable": True}}
    tombstone = {"metadata": {"name": "a"}, "state": "absent"}
    declare(lab, body)
    pin = lease(lab)
    with pytest.raises(Refusal) as refused:
        declare(lab, tombstone)
    assert str(refused.value) == (
        "DATAVOLUME_IN_USE: drive a is used by 1 live worker(s);"
        " end their runs on this host (r/w0), or set force: true beside state: absent"
    )
    lease(lab)  # it is still there
    outcome = declare(lab, {**tombstone, "force": True})
    assert outcome.deleting() == {"ml": ["a"]} and outcome.users("ml") == {"a": ["r/w0"]}
    with pytest.raises(Refusal, match=r"is to be deleted \(state: absent\)"):
        lease(lab, run="another")
    with process("os.chdir(copy); ready()", pin.path(lab.places)):
        with pytest.raises(Refusal, match="something still uses it, so it stays"):
            pinning.release_ended(lab.places, "r", 1)
        assert lab.evict().kept["ml.a"].startswith("in use: ")
        assert [one.number for one in pins.all_pins(lab.places)] == [1]
    assert pinning.release_ended(lab.places, "r", 1) == "its drive was deleted by force"
    result = lab.evict()
    assert [one["copy"] for one in result.removed] == ["ml.a"] and lab.names() == []


def test_nobody_begins_to_use_what_is_being_deleted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes a lease holds the copy's lock; the list is written under it."""
    lab.copy("ml.a")
    declare(lab, {"metadata": {"name": "a"}, "spec": {"sources": [{"node_scope": "placed"}]}})
    fd = os.open(lab.path, os.O_RDONLY)
    held = copies.take_lock(fd, "ml.a")
    monkeypatch.setattr(copies, "LOCK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(copies.take_lock, "__defaults__", (0.2,))
    with pytest.raises(Exception, match=r"ml\.a: held by another process for 0 s"):
        declare(lab, {"metadata": {"name": "a"}, "state": "absent"})
    os.close(held)
    os.close(fd)
    assert declare(lab, {"metadata": {"name": "a"}, "state": "absent"}).deleting() == {"ml": ["a"]}


# -- Expiry


def test_what_nobody_used_goes_cache_or_not(lab: Lab) -> None:
    for name, unused_s in (("ml.old", TTL + 60.0), ("ml.fresh", TTL - 600.0), ("ml.older", 2.0 * TTL)):
        old_copy(lab, name, unused_s)
    old_copy(lab, "ml.kept", 2.0 * TTL, seconds=0)
    lab.copy("ml.new")
    expire_after(lab, "ml.new", TTL)
    plan = eviction.current_plan(lab.places, lab.location, NOW)
    assert [(victim.name, victim.why) for victim in plan.victims] == [
        ("ml.old", "evicted: unused for 14 d"),
        ("ml.older", "evicted: unused for 28 d"),
    ]
    result = lab.evict(0)
    assert [one["reason"] for one in result.removed] == ["expired", "expired"]
    assert lab.names() == ["ml.fresh", "ml.kept", "ml.new"]
    told = events.read(lab.places, 0)[-2]
    assert told["object"] == "drive/ml/old" and told["cause"] == "expired"
    assert told["message"] == "Copy removed from gpu-01: evicted: unused for 14 d"


def test_what_is_held_or_was_used_meanwhile_stays(lab: Lab) -> None:
    now = time.time()
    for name in ("ml.held", "ml.used", "ml.leased"):
        old_copy(lab, name, TTL + 60)

    def step(name: str, copy: str) -> None:
        if (name, copy) == ("aside", "ml.used"):
            record = copies.load_record(lab.places, copy)
            assert record is not None and copies.touch_used(lab.places, copy, record.identity)

    leased = lab.drives["ml"]["leased"]["identity"]
    pin = lease(lab, "ml.leased")
    record = copies.load_record(lab.places, "ml.leased")
    assert record is not None and record.identity == leased and (record.last_used or 0) > now - 60
    with process("os.chdir(copy); ready()", str(lab.at("ml.held"))):
        result = lab.evict(0, step=step)
    assert result.removed == [] and lab.names() == ["ml.held", "ml.leased", "ml.used"] and lab.trash() == []
    assert result.kept["ml.used"] == "it was used meanwhile"
    assert result.kept["ml.held"].startswith("in use: ")
    assert lab.evict(0).removed == [], "what was found in use counts from then on"
    pinning.release(lab.places, pin.run, pin.number)


def test_a_drive_that_expires_no_more_meanwhile(lab: Lab) -> None:
    old_copy(lab, "ml.a", TTL + 60)
    for seconds, why in (
        (0, "its drive does not expire any more"),
        (TTL + 61, "its drive may be unused for longer now"),
    ):
        expire_after(lab, "ml.a", TTL)

        def step(name: str, _copy: str, seconds: int = seconds) -> None:
            if name == "locked":
                expire_after(lab, "ml.a", seconds)

        assert lab.evict(0, step=step).kept == {"ml.a": why}
        assert lab.names() == ["ml.a"]


def test_neither_a_lost_record_nor_a_clock_lets_it_go(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    old_copy(lab, "ml.a", TTL - 60)
    os.unlink(copies.record_path(lab.places, "ml.a"))
    assert lab.evict(0).removed == []
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 50 * 365 * DAY)
    lab.declare("ml.b")
    expire_after(lab, "ml.b", TTL)
    pin = lease(lab, "ml.b")
    pinning.release(lab.places, pin.run, pin.number)
    for clock in (real, lambda: real() + 30 * DAY):
        monkeypatch.setattr(time, "time", clock)
        assert lab.evict(0).removed == [] and lab.names() == ["ml.a", "ml.b"]


def test_a_use_within_an_hour_of_the_last_one_counts(lab: Lab) -> None:
    old_copy(lab, "ml.a", 1800.0, 1800)
    for _again in range(2):
        assert [one.name for one in eviction.current_plan(lab.places, lab.location, NOW).victims] == ["ml.a"]
        pin = lease(lab)
        pinning.release(lab.places, pin.run, pin.number)
        assert lab.evict(0).removed == [] and lab.names() == ["ml.a"]
        record = copies.load_record(lab.places, "ml.a")
        assert record is not None and time.time() - (record.last_used or 0) < 60
        made = json.loads(os.getxattr(lab.at("ml.a"), XATTR))["time"]
        copies.write_record(lab.places, "ml.a", replace(record, unused_s=1800.0, watched_copy=made))


def test_what_a_former_data_location_has_condemned_keeps_the_record_of_the_present_copy(lab: Lab) -> None:
    old_copy(lab, "ml.a", 0.0)
    lab.at("ml.a").rename(lab.path / ".stowage-trash/condemned/ml.a.full-18a1-9f0c11aa")
    present = replace(lab.location, identity="another", path="/srv/another")
    records.write(lab.places.data_location_json, present.to_json())
    record = copies.load_record(lab.places, "ml.a")
    eviction.recover(lab.places, lab.location, caches=False)
    assert lab.trash() == [] and record is not None and copies.load_record(lab.places, "ml.a") == record


def test_records_stay_while_there_are_former_data_locations(lab: Lab) -> None:
    old_copy(lab, "ml.a", 0.0)
    lab.at("ml.a").rename(lab.path / "away")
    former = {"locations": [replace(lab.location, identity="another", left=time.time()).to_json()]}
    records.write(lab.places.former_locations_json, former)
    fd = os.open(lab.path, os.O_RDONLY)
    try:
        assert copies.forget_gone(lab.places, fd, lab.location) == []
        os.unlink(lab.places.former_locations_json)
        assert copies.forget_gone(lab.places, fd, lab.location) == ["ml.a"]
    finally:
        os.close(fd)


def test_a_copy_made_while_the_clock_was_ahead_is_not_new_for_ever(lab: Lab) -> None:
    settings = replace(NOW, minimum_age_s=600)
    lab.copy("ml.new")
    path = lab.copy("ml.ahead")
    mark = json.loads(os.getxattr(path, XATTR))
    os.setxattr(path, XATTR, json.dumps({**mark, "time": time.time() + 365 * DAY}).encode())
    assert [one["copy"] for one in lab.evict(settings=settings).removed] == ["ml.ahead"]
    assert lab.names() == ["ml.new"]


# -- By the daemon


def test_expiry_follows_the_mode(lab: Lab, start: Callable[..., Daemon]) -> None:
    old_copy(lab, "ml.a", TTL + 60)
    old_copy(lab, "ml.b", 0.0)
    daemon = start(lab, evict="off")
    daemon.start()
    wait_for(lambda: len(daemon.copies()) == 2)
    daemon.cycle()
    assert lab.names() == ["ml.a", "ml.b"] and daemon.state("evictions")["plan"] == []
    daemon.configure(evict="plan")
    daemon.process.send_signal(1)  # type: ignore[union-attr]
    planned = wait_for(lambda: daemon.state("evictions")["plan"], 30)
    assert [(one["copy"], one["reason"]) for one in planned] == [("ml.a", "expired")]
    assert abs(daemon.state("evictions")["plan_made"] - time.time()) < 30
    daemon.cycle()
    assert lab.names() == ["ml.a", "ml.b"] and daemon.state("evictions")["plan"] == planned
    answer = json.loads(daemon.command("evict", "--dry-run", "--json").stdout)
    assert [(one["name"], one["reason"]) for one in answer["remove"]] == [("ml.a", "expired")]
    shown = daemon.command("evict", "--dry-run").stdout
    assert "This would go" in shown and "evicted: unused for 14 d" in shown and decimal(65536) in shown
    daemon.configure(evict="on")
    daemon.process.send_signal(1)  # type: ignore[union-attr]
    wait_for(lambda: lab.names() == ["ml.b"], 30)
    wait_for(lambda: daemon.state("evictions")["removed"] == {"expired": 1}, 10)
    assert "copy ml.a: removed: evicted: unused for 14 d" in daemon.logged()


def test_the_daemon_watches_and_forgets_nothing_on_the_way(lab: Lab, start: Callable[..., Daemon]) -> None:
    """Seen unused for a time only, and that of another copy of its name does not count."""
    old_copy(lab, "ml.a", 0.0, seconds=10)
    os.unlink(copies.record_path(lab.places, "ml.a"))
    daemon = start(lab, evict="on", scan_interval_s=1)
    daemon.start()
    began = time.monotonic()

    def watched() -> float:
        record = copies.load_record(lab.places, "ml.a")
        return record.unused_s if record is not None else 0.0

    wait_for(lambda: 1 < watched() < time.monotonic() - began + 2, 30)
    pin = lease(lab)
    pinning.release(lab.places, pin.run, pin.number)
    used = time.monotonic()
    assert watched() < 1
    wait_for(lambda: lab.names() == [], 60)
    assert time.monotonic() - used > 9


def test_a_data_location_chosen_again(
    lab: Lab, tmp_path: Path, small_disk: Callable[..., Any], start: Callable[..., Daemon]
) -> None:
    """What was not watched in between was not seen unused, and when it was used last is still known."""
    old_copy(lab, "ml.a", TTL - 60.0)
    before = copies.load_record(lab.places, "ml.a")
    other = Lab(small_disk("ext4", 64 << 20).path, tmp_path / "other")
    daemon = start(lab, evict="on", scan_interval_s=1)
    daemon.start()
    wait_for(lambda: "ml.a" in daemon.copies(), 30)
    for new, old in ((other, lab), (lab, other)):
        former = {"locations": [replace(old.location, left=time.time()).to_json()]}
        records.write(lab.places.former_locations_json, former)
        records.write(lab.places.data_location_json, new.location.to_json())
        daemon.process.send_signal(1)  # type: ignore[union-attr]
        wait_for(lambda new=new: ("ml.a" in daemon.copies()) is (new is lab), 30)  # type: ignore[misc]
        daemon.cycle()
        time.sleep(1.5)  # longer than between two measurements
    assert lab.names() == ["ml.a"] and before is not None
    after = copies.load_record(lab.places, "ml.a")
    assert after is not None and after.last_used == before.last_used and after.unused_s < TTL


def test_a_live_drive_becomes_a_cache_without_a_restart(lab: Lab, start: Callable[..., Daemon]) -> None:
    lab.copy("ml.a", size=1 << 20, evictable=False)
    lab.location = lab.limited(1)
    records.write(lab.places.data_location_json, lab.location.to_json())
    daemon = start(lab, evict="on")
    daemon.start()
    wait_for(lambda: "its drive is not a cache" in daemon.state("evictions").get("why", ""), 30)
    daemon.cycle()
    assert lab.names() == ["ml.a"]
    lab.declare("ml.a", evictable=True)
    began = time.monotonic()
    wait_for(lambda: lab.names() == [], 20)
    assert time.monotonic() - began < 15, "it did not wait for its next try"
    assert daemon.process is not None and daemon.process.poll() is None


def test_leases_of_what_is_deleted_by_force_are_let_go(lab: Lab, start: Callable[..., Daemon]) -> None:
    lab.copy("ml.a")
    pin = lease(lab)
    daemon = start(lab, evict="plan")
    daemon.start()
    daemon.cycle()
    ended = Path(lab.places.run, "ended")
    assert not ended.exists()
    lab.declare("ml.a", state="absent", force=True)
    wait_for(ended.exists, 30)  # on which the service manager starts this:
    assert daemon.command("lease", "expire").stdout == "pin r/1: released, its drive was deleted by force\n"
    assert not os.path.exists(pin.path(lab.places))
    wait_for(lambda: lab.names() == [], 10)


def test_why_a_deleted_drive_s_copy_waits_is_told(lab: Lab, start: Callable[..., Daemon]) -> None:
    copy = lab.copy("ml.a")
    daemon = start(lab, evict="off")
    with process("os.chdir(copy); ready()", str(copy)) as holder:
        daemon.start()
        lab.declare("ml.a", state="absent")
        waiting = wait_for(lambda: daemon.state("evictions").get("waiting"), 60)
        assert waiting["ml.a"].startswith("in use: ") and str(holder.pid) in waiting["ml.a"]
    lab.declare("ml.a", state="absent", force=True)  # something has changed: it is tried again at once
    wait_for(lambda: lab.names() == [], 30)
    wait_for(lambda: daemon.state("evictions")["waiting"] == {}, 10)
