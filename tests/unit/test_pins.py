# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Records of pins, and when one holds nothing any more."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core import records
from stowage_core.errors import Refusal
from stowage_core.places import Places
from stowage_core.records import RecordError
from stowage_core.runs import holders, pins
from stowage_core.runs.holders import Holder
from stowage_core.runs.pins import LEASED, RESERVED, Pin, Use

USE = Use("ml", "a", 0, "", "", "ReadOnly", "/data")
PIN = Pin(
    run="run-1",
    number=1,
    worker="w0",
    **USE._asdict(),
    state=RESERVED,
    deadline=1000.0,
    boot_id=holders.boot_id(),
    created=900.0,
)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places.under(str(tmp_path))


def test_a_record_is_what_the_contract_says(places: Places) -> None:
    path = PIN.record_path(places)
    assert path == f"{places.run}/pins/run-1/1.json" and PIN.path(places) == f"{places.run}/pins/run-1/1"
    assert Pin.from_json("run-1", 1, PIN.to_json()) == PIN
    places_and_owner = {"run", "worker", *Use._fields}
    duration = {"state", "deadline", "boot_id", "cgroup", "cgroup_inode", "pid", "pid_start", "created", "reader"}
    assert set(PIN.to_json()) == places_and_owner | duration


def test_what_a_pin_holds() -> None:
    scratch = replace(PIN, source_path="/scratch")
    assert PIN.use == USE and scratch.use == USE._replace(source_path="/scratch")
    assert (PIN.copy, scratch.copy) == ("ml.a", ""), "scratch has no copies: a pin of it holds none"
    assert (PIN.held_by, replace(PIN, worker="").held_by) == ("run-1/w0", "run-1")


def test_who_uses_a_drive() -> None:
    pins_of = [
        replace(PIN, deadline=1e12),
        replace(PIN, deadline=1e12, number=2, sub_path="x"),
        replace(PIN, deadline=1e12, worker="w1"),
        replace(PIN, deadline=1e12, drive="b", source_path="/scratch"),
        replace(PIN, run="long-ago"),
        replace(PIN, deadline=1e12, run="before", boot_id="an earlier boot"),
    ]
    assert pins.used_by(pins_of) == {("ml", "a"): ["run-1/w0", "run-1/w1"], ("ml", "b"): ["run-1/w0"]}


def test_who_uses_a_volume() -> None:
    folder = replace(PIN, workspace="", drive="", source_path="/srv/volumes/models", volume="models", run_of="ann/e/1")
    assert folder.copy == "", "a pin of a volume holds no copy"
    pins_of = [
        replace(folder, deadline=1e12),
        replace(folder, deadline=1e12, sub_path="x", worker="w1"),
        replace(folder, deadline=1e12, volume="data"),
        replace(folder, worker="long-ago"),
        replace(PIN, deadline=1e12),
    ]
    assert pins.users_of_volumes(pins_of) == {"data": ["run-1/w0"], "models": ["run-1/w0", "run-1/w1"]}
    assert pins.used_by(pins_of) == {("ml", "a"): ["run-1/w0"]}


def test_the_record_of_an_earlier_version_is_a_drive_s() -> None:
    value = {name: one for name, one in PIN.to_json().items() if name not in ("volume", "run_of", "run_team")}
    assert Pin.from_json("run-1", 1, value) == PIN


def test_a_record_that_cannot_be_used_does_not_hide_the_others(places: Places) -> None:
    records.write(PIN.record_path(places), PIN.to_json())
    records.write(replace(PIN, number=2).record_path(places), {"run": "run-1"})
    found, problems = pins.readable(places)
    assert found == [PIN] and len(problems) == 1
    assert pins.numbers(places, "run-1") == [1, 2] and pins.all_names(places) == [("run-1", 1), ("run-1", 2)]


def test_all_pins_in_order(places: Places) -> None:
    assert pins.all_pins(places) == []
    for number in (10, 2):
        pin = replace(PIN, number=number)
        records.write(pin.record_path(places), pin.to_json())
    Path(places.pins_dir, "run-1", ".3.json.x").touch()
    Path(places.pins_dir, "stray").touch()
    assert [pin.number for pin in pins.all_pins(places)] == [2, 10]


@pytest.mark.parametrize("text", ["{", "{}"])
def test_an_unreadable_pin_is_an_error(places: Places, text: str) -> None:
    path = Path(PIN.record_path(places))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(RecordError):
        pins.all_pins(places)


@given(st.text(max_size=300))
def test_a_run_that_is_accepted_is_one_name(value: str) -> None:
    try:
        pins.check_run(value)
    except Refusal as error:
        assert "\n" not in str(error)
    else:
        assert os.path.basename(value) == value and value not in ("", ".", "..") and len(os.fsencode(value)) <= 255


def own() -> Pin:
    start = holders.start_time(os.getpid())
    assert start is not None
    return replace(PIN, state=LEASED, deadline=0.0, pid=os.getpid(), pid_start=start)


def test_stale(tmp_path: Path) -> None:
    ended = replace(PIN, state=LEASED, deadline=0.0)
    cgroup = replace(ended, cgroup=str(tmp_path), cgroup_inode=os.stat(tmp_path).st_ino)
    assert pins.stale(PIN, 1000.0) == "" and "reservation" in pins.stale(PIN, 1001.0)
    assert "restarted" in pins.stale(replace(PIN, boot_id="other"), 0.0)
    assert pins.stale(own(), 1e12) == ""
    assert "process" in pins.stale(replace(own(), pid_start=1))
    assert "process" in pins.stale(replace(own(), pid=2**22 + 1))
    assert pins.stale(cgroup) == "", "version 1 does not tell"
    events = tmp_path / "cgroup.events"
    events.write_text("populated 1\nfrozen 0\n")
    assert pins.stale(cgroup) == ""
    events.write_text("populated 0\nfrozen 0\n")
    assert "cgroup" in pins.stale(cgroup)
    events.write_text("populated 1\nfrozen 0\n")
    assert "not there" in pins.stale(replace(cgroup, cgroup=str(tmp_path / "gone")))
    assert "not there" in pins.stale(replace(cgroup, cgroup_inode=1)), "another has its path now"


def test_a_lease_that_was_prepared_again_ends_with_both(tmp_path: Path) -> None:
    again = replace(own(), deadline=1000.0)
    assert pins.stale(again, 1001.0) == "" and again.is_held
    after = replace(again, pid_start=1)
    assert pins.stale(after, 1000.0) == "" and not after.is_held
    assert pins.stale(after, 1001.0) == "its process has ended"
    assert not replace(again, boot_id="other").is_held


def test_a_clock_that_is_set_neither_ends_nor_prolongs_a_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    pin = replace(PIN, deadline=holders.boot_time() + 60)
    real = time.time
    for step in (-365 * 86400, 365 * 86400):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        assert pins.stale(pin) == "" and 0 < pin.left_s <= 60
        over = replace(PIN, deadline=holders.boot_time() - 1)
        assert pins.stale(over) == "its reservation has ended" and over.left_s == 0


# -- What a lease may be bound to


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(holders, "CGROUPS", str(tmp_path / "cgroup"))
    return tmp_path / "cgroup"


@pytest.mark.parametrize(
    ("cgroup", "is_a_workers"),
    [
        ("init.scope", False),
        ("system.slice", False),
        ("user.slice/user-1000.slice", False),
        ("system.slice/slurmstepd.scope", False),
        ("docker", False),
        ("kubepods", False),
        ("kubepods/burstable", False),
        ("kubepods.slice/kubepods-burstable.slice", False),
        ("memory/system.slice", False),
        ("system.slice/gpu-01_slurmstepd.scope", False),
        ("system.slice/slurmstepd.scope/system", False),
        ("freezer/slurm", False),
        ("freezer/slurm_gpu-01/uid_1000", False),
        ("system.slice/slurmd.service", False),
        ("system.slice/system-slurmd.slice/slurmd@gpu-01.service", False),
        ("system.slice/containerd.service", False),
        ("system.slice/docker.service", False),
        ("system.slice/crio.service", False),
        ("system.slice/kubelet.service", False),
        ("system.slice/ssh.service", False),
        ("system.slice/sshd.service", False),
        ("system.slice/stowaged.service", False),
        ("system.slice/systemd-logind.service", False),
        ("user.slice/user-1000.slice/user@1000.service", False),
        ("user.slice/user-1000.slice/user@1000.service/app.slice", False),
        ("system.slice/run-worker.service", True),
        ("system.slice/docker-0f0f.scope", True),
        ("machine.slice/libpod-0f0f.scope/container", True),
        ("system.slice/slurmstepd.scope/job_4711", True),
        ("kubepods/burstable/pod12ab", True),
        ("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12ab_34cd.slice", True),
        ("user.slice/user-1000.slice/session-3.scope", True),
        ("user.slice/user-1000.slice/user@1000.service/user.slice/libpod-0f0f.scope", True),
        ("system.slice/gpu-01_slurmstepd.scope/job_4711", True),
        ("freezer/slurm/uid_1000/job_4711", True),
        ("system.slice/my-slurmd.service", True),
        ("system.slice/system-worker.slice/worker@1.service", True),
        ("machine.slice/systemd-nspawn@trainer.service", True),
        ("machine.slice/crio-0f0f.scope", True),
        ("machine.slice/machine-libpod_pod_0f0f.slice", True),
        ("user.slice/user-1000.slice/user@1000.service/user.slice/user-libpod_pod_0f0f.slice", True),
    ],
)
def test_a_lease_is_bound_to_a_cgroup_that_ends_with_a_worker(cgroups: Path, cgroup: str, is_a_workers: bool) -> None:
    (cgroups / cgroup).mkdir(parents=True)
    (cgroups / cgroup / "cgroup.events").write_text("populated 1\n")
    for written in (f"/{cgroup}", f"{cgroups}/{cgroup}"):
        if is_a_workers:
            assert Holder.of(written, 0, "run r").cgroup == f"{cgroups}/{cgroup}"
            continue
        with pytest.raises(Refusal) as refused:
            Holder.of(written, 0, "run r")
        assert str(refused.value) == (
            f"run r: cgroup {cgroups}/{cgroup} holds those of many, and does not end with a worker; name the worker's"
            " own, as in /proc/PID/cgroup of one of its processes"
        )


@pytest.mark.parametrize("cgroup", ["/", "/.", "/system.slice/.."])
def test_a_lease_is_not_bound_to_all_processes(cgroups: Path, cgroup: str) -> None:
    (cgroups / "system.slice").mkdir(parents=True)
    with pytest.raises(Refusal, match="^run r: there is no cgroup "):
        Holder.of(cgroup, 0, "run r")


def test_a_root_of_the_host_s_cgroups_is_not_a_worker_s(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of version 1, which has one for each controller."""
    (cgroups / "memory").mkdir(parents=True)
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == f"{cgroups}/memory")
    with pytest.raises(Refusal, match="/memory holds those of many"):
        Holder.of("/memory", 0, "run r")


def test_a_link_to_a_root_of_the_host_s_cgroups_is_that_root(cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As version 1 has them for controllers that are mounted together."""
    (cgroups / "cpu,cpuacct" / "docker" / "0f0f").mkdir(parents=True)
    (cgroups / "cpu").symlink_to("cpu,cpuacct")
    (cgroups / "away").symlink_to("..")
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == f"{cgroups}/cpu,cpuacct")
    with pytest.raises(Refusal, match="/cpu,cpuacct holds those of many"):
        Holder.of("/cpu", 0, "run r")
    with pytest.raises(Refusal, match="there is no cgroup"):
        Holder.of("/away", 0, "run r")
    holder = Holder.of("/cpu/docker/0f0f", 0, "run r")
    assert holder.cgroup == f"{cgroups}/cpu,cpuacct/docker/0f0f" and holder.ended == ""


@contextlib.contextmanager
def threads(first_ends: bool) -> Iterator[tuple[int, int]]:
    """Run a process of two threads, and give its number and that of its second; it ends with its input."""
    last = "time.sleep(0.1); ctypes.CDLL(None).pthread_exit(None)" if first_ends else "second.join()"
    code = (
        "import ctypes, sys, threading, time\n"
        "second = threading.Thread(target=sys.stdin.read)\n"
        f"second.start(); print(second.native_id, flush=True); {last}"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.kill()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_lease_is_not_bound_to_a_thread() -> None:
    with threads(False) as (pid, thread):
        with pytest.raises(Refusal) as refused:
            Holder.of("", thread, "run r")
        text = f"run r: {thread} is a thread of {holders.described(pid)}, and may end before it; name the process"
        assert str(refused.value) == text and f"process {pid} (" in text
        assert Holder.of("", pid, "run r").pid == pid


def test_a_process_whose_first_thread_has_ended_goes_on_with_the_others() -> None:
    with threads(True) as (pid, _thread):
        before = Holder.of("", pid, "run r")
        end = time.monotonic() + 20
        while state(pid) != "Z" and time.monotonic() < end:
            time.sleep(0.02)
        assert state(pid) == "Z" and before.ended == "" and Holder.of("", pid, "run r") == before
        os.kill(pid, signal.SIGKILL)
        while os.listdir(f"/proc/{pid}/task") != [str(pid)] and time.monotonic() < end:
            time.sleep(0.02)
        assert before.ended == "its process has ended", "although nobody has waited for it"


def test_a_lease_is_bound_to_a_process_that_is_there() -> None:
    with subprocess.Popen(["sleep", "60"]) as worker:
        assert Holder.of("", worker.pid, "run r").pid == worker.pid
        worker.kill()
    with pytest.raises(Refusal, match=f"^run r: there is no process {worker.pid}; confirm it while the process runs$"):
        Holder.of("", worker.pid, "run r")


def test_a_lease_is_bound_to_a_process_that_ends_with_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as worker:
        fields = holders._stat(worker.pid)
        flags = int(fields[6])
        for pid, those, rule in (
            (1, flags, "the host's first, which ends with the host"),
            (os.getpid(), flags, "the one that asks for this, and ends with it"),
            (worker.pid, flags | 0x00200000, "the kernel's own, which ends with the host"),
        ):
            found = [*fields[:6], b"%d" % those, *fields[7:]]
            monkeypatch.setattr(holders, "_stat", lambda _pid, found=found: found)
            with pytest.raises(Refusal) as refused:
                Holder.of("", pid, "run r")
            assert str(refused.value) == (
                f"run r: {holders.described(pid)} is {rule}; name a process that ends with the worker"
            )
        worker.kill()


@pytest.mark.parametrize(
    ("command", "parent", "is_a_workers"),
    [
        ("slurmd", 1, False),
        ("containerd", 1, False),
        ("systemd", 1, False),
        ("sshd", 4711, True),
        ("containerd-shim", 1, True),
        ("slurmstepd", 1, True),
        ("python3", 1, True),
    ],
)
def test_a_lease_is_not_bound_to_a_daemon(
    command: str, parent: int, is_a_workers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as worker:
        fields = holders._stat(worker.pid)
        monkeypatch.setattr(holders, "_stat", lambda _pid: [fields[0], b"%d" % parent, *fields[2:]])
        monkeypatch.setattr(holders, "_command", lambda _pid: command)
        if is_a_workers:
            assert Holder.of("", worker.pid, "run r").pid == worker.pid
        else:
            with pytest.raises(Refusal) as refused:
                Holder.of("", worker.pid, "run r")
            assert str(refused.value) == (
                f"run r: process {worker.pid} ({command}) is a daemon of the host, which ends with no worker; name a"
                " process that ends with the worker"
            )
        worker.kill()
