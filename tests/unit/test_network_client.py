# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Network mounts made and released on a host whose kernel and service manager are stood in for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from network_lab import Host

from stowage_core.errors import Refusal
from stowage_core.network_mounts import at_boot, records
from stowage_core.network_mounts.client import Asked
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
    made.release()
    assert host.mounted and records.load_mounts(host.places)[0].state == "Bound"
    _released, done = host.release()
    assert (predicted.diff(), predicted.actions) == (done.diff(), done.actions)
