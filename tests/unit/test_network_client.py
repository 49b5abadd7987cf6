# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network mounts made and released on a host whose kernel and service manager are stood in for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from network_lab import Host

from stowage_core.errors import Refusal
from stowage_core.network_mounts import at_boot, client, records
from stowage_core.network_mounts.asked import Asked, read_asked
from stowage_core.network_mounts.records import MountRecord
from stowage_core.network_mounts.releasing import note_withdrawn, release
from stowage_core.runs import pins
from stowage_core.services.systemd_units import mount_unit, quote_word


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def asked(drive: str = "imagenet") -> Asked:
    return Asked("vision", drive, 0, "gpu-01", "192.0.2.11", f"/mnt/{drive}", True, "Auto", False)


def test_a_mount_is_made_once_and_released_once(host: Host) -> None:
    (record,), differences = host.make(asked())
    name = mount_unit(record.path)
    assert (record.state, record.proto, differences.changed) == ("Bound", "tcp", True)
    assert (host.units / name).exists()
    assert f"ExecStart=systemctl start -- {quote_word(name)}\n" in Path(at_boot.path()).read_text()
    assert os.readlink(host.units / "multi-user.target.wants" / at_boot.SERVICE) == at_boot.path()
    again, differences = host.make(asked())
    assert (again, differences.changed) == ([record], False)
    (released,), differences = host.release()
    assert (released.state, differences.actions[0]) == ("Released", f"unmount {record.path}")
    assert not [path for path in host.units.rglob("*") if not path.is_dir()] and not host.mounted
    assert not host.release()[1].changed


def test_what_is_mounted_is_mounted_again_at_a_boot(host: Host) -> None:
    host.denied = {"vision.imagenet-0"}
    found, _differences = host.make(asked(), asked("coco"), asked("celeba"))
    made = [one.path for one in found[1:]]
    names = sorted(mount_unit(path) for path in made)
    assert f"start -- {' '.join(map(quote_word, names))}\n" in Path(at_boot.path()).read_text()
    (host.units / at_boot.SERVICE).write_text("[Service]\n")
    with pytest.raises(Refusal, match="stowage-network-mounts.service"):
        host.make(asked("other"))
    assert [mount.point for mount in host.mounted.values()] == made


def test_a_mount_that_fails_leaves_the_host_as_it_was_and_says_no_change(host: Host) -> None:
    host.denied = {"vision.imagenet-0"}
    for _number in range(2):
        (record,), differences = host.make(asked())
        assert record.reason == "could not be mounted over TCP: mount.nfs4: access denied by server"
        assert (differences.changed, differences.actions) == (False, [])
    assert not list(host.units.rglob("*.mount"))
    first = records.find_mount(host.places, asked().key)
    assert first is not None and host.make(asked())[0] == [first], "it has failed since the first time"


def test_one_that_fails_beside_one_that_is_made_is_a_change(host: Host) -> None:
    host.denied = {"vision.imagenet-0"}
    found, differences = host.make(asked(), asked("coco"))
    assert [one.state for one in found] == ["Failed", "Bound"] and differences.changed
    assert not host.make(asked(), asked("coco"))[1].changed


def test_a_unit_that_was_there_and_goes_is_a_change(host: Host) -> None:
    host.make(asked())
    host.mounted.clear()
    host.denied = {"vision.imagenet-0"}
    assert host.make(asked())[1].changed and not list(host.units.rglob("*.mount"))
    assert not host.make(asked())[1].changed


def test_what_cannot_be_unmounted_is_no_change(host: Host) -> None:
    (record,), _differences = host.make(asked())
    host.busy = {mount_unit(record.path)}
    (first,), differences = host.release()
    assert first.state == "Releasing" and first.reason.startswith(f"{record.path} cannot be unmounted: something uses")
    assert (differences.changed, differences.actions) == (False, [])
    assert host.release()[0] == [first], "it is being released since the first time"
    host.busy = set()
    assert host.release()[1].changed and not host.mounted


def test_a_release_is_predicted(host: Host) -> None:
    host.make(asked())
    made, predicted = host.call(check_mode=True)
    release(made)
    assert host.mounted and records.load_mounts(host.places)[0].state == "Bound"
    _released, done = host.release()
    assert (predicted.diff(), predicted.actions) == (done.diff(), done.actions)


def recorded(host: Host) -> MountRecord:
    (found,) = records.load_mounts(host.places)
    return found


# -- RDMA, and what it falls back to


def rdma(transport: str = "Auto") -> Asked:
    return replace(asked(), rdma=True, transport=transport)


@pytest.mark.parametrize(
    ("denied", "counted", "why"),
    [
        ({"rdma"}, ("rdma",), "mount.nfs4: access denied by server"),
        (set(), ("tcp",), "what was mounted is wrong: its transport is tcp, not rdma"),
        (set(), ("rdma", "tcp"), "what was mounted is wrong: its transport is unknown, not rdma"),
    ],
)
def test_rdma_that_does_not_work_is_tcp_or_a_failure(
    host: Host, denied: set[str], counted: tuple[str, ...], why: str
) -> None:
    host.denied, host.counted = denied, counted
    (record,), _differences = host.make(rdma())
    assert (record.state, record.proto) == ("Bound", "tcp")
    assert record.message == f"mounted over TCP (RDMA did not work): {why}"
    host.release()
    (record,), _differences = host.make(rdma("RDMA"))
    assert (record.state, record.reason) == ("Failed", f"could not be mounted over RDMA: {why}")
    assert not host.mounted


def test_rdma_that_the_kernel_counts(host: Host) -> None:
    (record,), _differences = host.make(rdma())
    assert (record.state, record.proto, record.message) == ("Bound", "rdma", "")


def test_a_server_that_is_silent(host: Host) -> None:
    host.denied, host.result = {"vision.imagenet-0"}, "timeout"
    (record,), _differences = host.make(asked())
    assert record.reason == "could not be mounted over TCP: no answer within 30 s"


def test_rdma_is_not_tried_where_it_is_down(host: Host) -> None:
    (record,), _differences = host.make(replace(rdma(), no_rdma="gpu-01: no device"))
    assert (record.proto, record.message) == ("tcp", "mounted over TCP (RDMA did not work): gpu-01: no device")


# -- What is mounted already


def test_a_mount_becomes_writable_and_keeps_its_message(host: Host) -> None:
    host.denied = {"rdma"}
    (before,), _differences = host.make(rdma())
    (after,), differences = host.make(replace(rdma(), read_only=False))
    assert (after.state, after.read_only, after.message) == ("Bound", False, before.message)
    assert differences.actions[0] == f"remount {after.path} read-write"
    (again,), differences = host.make(rdma())
    assert (again, differences.changed) == (after, False), "another run writes to it"


def test_a_mount_that_hangs_is_not_remounted(host: Host) -> None:
    (before,), _differences = host.make(asked())
    host.hung = {before.path}
    (told,), differences = host.make(replace(asked(), read_only=False))
    assert told.reason.endswith("its server does not answer; see whether that is up")
    assert (recorded(host), differences.changed) == (before, False)
    assert not [argv for argv in host.commands if argv[0] == "mount"]


def test_what_is_mounted_stays_whatever_address_would_be_taken_now(host: Host) -> None:
    (before,), _differences = host.make(rdma())
    for one in (replace(rdma(), address="192.0.2.99"), replace(asked(), not_exported="gpu-01 is Down", export="")):
        again, differences = host.make(one)
        assert (again, differences.changed, recorded(host)) == ([before], False, before)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        ({"export": "/mnt/other"}, "another directory is mounted there still, 192.0.2.11:/mnt/imagenet"),
        ({"node": "gpu-09"}, "it is mounted from gpu-01 still"),
        ({"transport": "RDMA", "rdma": True}, "its transport is RDMA, and it is mounted over tcp still"),
        ({"export": "/mnt/other", "not_exported": "it is exported as /mnt/imagenet still"}, "another directory is"),
    ],
)
def test_what_is_mounted_and_is_not_what_is_asked_for_stays_until_it_is_released(
    host: Host, now: dict[str, Any], why: str
) -> None:
    (before,), _differences = host.make(asked())
    (told,), differences = host.make(replace(asked(), **now))
    assert told.state == "Failed" and told.reason.startswith(f"{before.path}: {why}")
    assert told.reason.endswith("; release its runs first")
    assert (recorded(host), differences.changed) == (before, False)
    assert quote_word(mount_unit(before.path)) in Path(at_boot.path()).read_text()
    host.release()
    assert host.make(replace(asked(), **{**now, "not_exported": ""}))[0][0].state == "Bound"


def test_a_mount_with_other_options_keeps_its_record_and_another_mount_has_none(host: Host) -> None:
    (before,), _differences = host.make(asked())
    host.change(before.path, ("hard", "soft"))
    (told,), _differences = host.make(asked())
    assert told.reason == f"{before.path}: hard is missing; release it, or unmount it by hand"
    assert recorded(host) == before
    host.mounted = {name: replace(mount, source="192.0.2.66:/x") for name, mount in host.mounted.items()}
    host.make(asked())
    assert recorded(host).state == "Failed" and "192.0.2.66:/x" in recorded(host).reason
    assert not Path(at_boot.path()).exists()


# -- Records before what they are of


def test_what_is_to_be_mounted_is_recorded_before_it_is_exported(host: Host) -> None:
    unknown = replace(asked(), address="", export="")
    (record,), differences = host.expect(unknown, run="tune")
    assert (record.state, record.node, recorded(host), differences.changed) == ("Pending", "gpu-01", record, False)
    (bound,), _differences = host.make(replace(asked(), serial="s1"))
    (kept,), _differences = host.expect(unknown)
    assert (kept, kept.state, kept.serial) == (bound, "Bound", "s1")


def test_a_preparation_that_is_killed_is_undone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    start = host.run_command

    def killed(argv: Sequence[str]) -> tuple[int, str, str]:
        found = start(argv)
        if argv[:2] == ["systemctl", "start"]:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(host, "run_command", killed)
    with pytest.raises(KeyboardInterrupt):
        host.make(replace(asked(), serial="s1", client="gpu-02"))
    assert recorded(host).state == "Exported" and host.mounted
    (released,), _differences = host.release()
    assert (released.state, released.serial, released.client) == ("Released", "s1", "gpu-02")
    assert not host.mounted


def test_an_export_that_was_never_mounted_is_handed_back(host: Host) -> None:
    host.expect(asked())
    (released,), _differences = host.release()
    assert (released.state, released.node) == ("Released", "gpu-01")


def test_which_export_it_is_is_no_change(host: Host) -> None:
    (first,), _differences = host.make(replace(asked(), serial="s1"))
    (second,), differences = host.make(replace(asked(), serial="s2"))
    assert (second, recorded(host), differences.changed) == (replace(first, serial="s2"), second, False)


def test_a_withdrawal_of_an_earlier_export_says_nothing_of_a_later_one(host: Host) -> None:
    host.make(replace(asked(), serial="s2"))
    host.release()
    for serial, reason in (("s1", ""), ("s2", records.WITHDRAWN)):
        made, differences = host.call()
        note_withdrawn(made, [(asked().key, serial)])
        assert (recorded(host).reason, differences.changed) == (reason, bool(reason))


# -- Runs that are about to use a mount


def test_a_release_leaves_what_another_run_is_about_to_use(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (record,), _differences = host.make(asked(), run="tune")
    kept, differences = host.release("other")
    assert (kept, differences.changed, bool(host.mounted)) == ([record], False, True)
    assert set(record.reserved) == {"tune"}
    host.release("tune")
    assert not host.mounted and recorded(host).reserved == {}


def test_one_that_is_only_expected_is_left_too(host: Host) -> None:
    host.expect(asked(), run="tune")
    host.release("other")
    assert recorded(host).state == "Pending"
    host.release("tune")
    assert recorded(host).state == "Released"


@pytest.mark.parametrize("later", [3601.0, -3601.0])
def test_it_is_kept_for_an_hour_whatever_the_clock_is_set_to(
    host: Host, monkeypatch: pytest.MonkeyPatch, later: float
) -> None:
    host.make(asked(), run="tune")
    now = records.now()
    monkeypatch.setattr(records, "now", lambda: now + later)
    assert host.release()[0][0].state == "Released"


def test_a_release_drops_what_its_run_keeps_of_what_others_use(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.make(asked(), run="tune")
    pin = SimpleNamespace(workspace="vision", drive="imagenet", source=0, run="other", held_by="other/w0")
    monkeypatch.setattr(pins, "all_pins", lambda _places: [pin])
    host.release("tune")
    assert host.mounted and recorded(host).reserved == {}


def test_what_the_run_itself_uses_is_released_before_as_a_prediction_knows(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.make(asked(), run="tune")
    pin = SimpleNamespace(workspace="vision", drive="imagenet", source=0, run="tune", held_by="tune/w0")
    monkeypatch.setattr(pins, "all_pins", lambda _places: [pin])
    for run, state in (("tune", "Released"), ("other", "Bound")):
        made, differences = host.call(check_mode=True)
        assert [one.state for one in release(made, None, run)] == [state]
        assert differences.changed is (state == "Released")
    host.release("tune")
    assert host.mounted, "nothing predicts what is done"


# -- Releasing many, and what goes wrong with some


def test_many_are_unmounted_at_once(host: Host) -> None:
    host.make(*(asked(f"d{number}") for number in range(9)))
    host.commands.clear()
    host.reloads = 0
    host.release()
    stopped = [argv for argv in host.commands if argv[:2] == ["systemctl", "stop"]]
    assert len(stopped) == 1 and len(stopped[0]) == 3 + 9
    assert (host.mounted, host.reloads) == ({}, 2), "one for the units, one for those at boot"


def test_what_hangs_is_unmounted_by_force_and_what_fails_alone_fails(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _differences = host.make(asked("a"), asked("b"), asked("c"))
    host.hung = {found[0].path}
    host.commands.clear()
    host.release()
    assert not host.mounted
    asked_for = [argv[:2] for argv in host.commands if "stop" in argv or "umount2" in argv]
    assert asked_for == [["umount2", found[0].path], ["systemctl", "stop"]], "systemd would wait for it for a minute"
    host.hung = set()
    found, _differences = host.make(asked("a"), asked("b"), asked("c"))
    host.hung = {found[0].path}
    Path(found[1].path).mkdir(parents=True)
    (Path(found[1].path) / "beneath").touch()

    def denied(path: str) -> None:
        raise OSError(1, "Operation not permitted", path)

    monkeypatch.setattr(client, "unmount_forced", denied)
    (first, second, third), _differences = host.release()
    assert (second.state, third.state, first.state) == ("Released", "Released", "Releasing")
    assert first.reason == f"{first.path} cannot be unmounted: {first.path}: Operation not permitted"


def test_somebody_elses_unit_fails_alone(host: Host) -> None:
    host.make(asked("a"), asked("b"))
    unit = host.units / mount_unit(records.load_mounts(host.places)[0].path)
    unit.write_text("[Mount]\n")
    (first, second), _differences = host.release()
    assert (first.state, second.state) == ("Releasing", "Released") and "was not written by Stowage" in first.reason
    (first, second), _differences = host.make(asked("a"), asked("b"))
    assert (first.state, second.state) == ("Failed", "Bound") and "was not written by Stowage" in first.reason
    assert unit.read_text() == "[Mount]\n"


# -- Lost records


def test_mounts_whose_records_are_lost_are_known_by_their_units(host: Host) -> None:
    (first, second), _differences = host.make(asked("a"), replace(asked("b"), address="2001:db8::1", read_only=False))
    os.unlink(records.mounts_path(host.places))
    host.make(asked("c"))
    for one in (first, second):
        assert quote_word(mount_unit(one.path)) in Path(at_boot.path()).read_text()
        found = records.find_mount(host.places, one.key)
        assert found is not None and found == replace(one, time=found.time)
    os.unlink(records.mounts_path(host.places))
    released, _differences = host.release()
    assert [(one.state, one.node) for one in released] == [("Released", "gpu-01")] * 3
    assert not host.mounted and not list(host.units.rglob("*.mount"))


@pytest.mark.parametrize("text", ["[Mount]\n", "# Written by Stowage. Local changes are lost.\n[Mount]\n"])
def test_a_unit_that_does_not_say_what_it_is_of_is_left_alone(host: Host, text: str) -> None:
    (record,), _differences = host.make(asked())
    os.unlink(records.mounts_path(host.places))
    (host.units / mount_unit(record.path)).write_text(text)
    assert host.release()[0] == [] and host.mounted


@pytest.mark.parametrize("text", ["{", "[]", '{"mounts": [{}]}', '{"mounts": 5}'])
def test_a_record_that_cannot_be_read_says_what_to_do(host: Host, text: str) -> None:
    path = Path(records.mounts_path(host.places))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(records.records.RecordError, match="; remove it, then prepare the runs and release them$"):
        host.release()


# -- What is asked for

ENTRY = {
    "workspace": "vision",
    "drive": "imagenet",
    "source": 0,
    "node": "gpu-01",
    "address": "192.0.2.11",
    "export": "/mnt/imagenet",
    "mode": "ReadOnly",
    "transport": "Auto",
    "rdma": False,
    "not_exported": "",
    "no_rdma": "",
    "serial": "s1",
}


def test_an_entry_is_read(host: Host) -> None:
    found = read_asked(ENTRY, "gpu-02", host.places)
    assert found == replace(asked(), client="gpu-02", serial="s1")
    for more in ({"not_exported": "Down", "export": ""}, {"not_exported": "Down", "address": ""}):
        assert read_asked({**ENTRY, **more}, "gpu-02", host.places).not_exported == "Down"
    assert read_asked({**ENTRY, "export": "", "address": ""}, "gpu-02", host.places, pending=True).export == ""


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ({"node": "gpu-02"}, "source 0 is on this machine; use its path"),
        ({"node": ""}, "node is required"),
        ({"export": ""}, "export is required when state is present"),
        ({"address": ""}, "address is required when state is present"),
        ({"transport": "RDMA"}, "its transport is RDMA, and rdma is false"),
        ({"drive": "a-" * 29 + "a"}, "shorten the name of the drive or its workspace"),
    ],
)
def test_an_entry_is_refused(host: Host, more: dict[str, str], refused: str) -> None:
    with pytest.raises(Refusal, match=refused):
        read_asked({**ENTRY, "workspace": "v-" * 29 + "v", **more}, "gpu-02", host.places)
