# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which mount a service is tied to, by what the host is to have and what systemd knows."""

from __future__ import annotations

import pytest

from stowage_core.differences import Differences
from stowage_core.errors import Refusal
from stowage_core.mounts import Mount
from stowage_core.services.lasting_mounts import LastingMounts
from stowage_core.services.mount_dependencies import Tying
from stowage_core.services.systemd_units import Properties, Systemctl

SERVICE = "worker.service"
PATH = "/mnt/nvme1/data"
FSTAB = b"/dev/sdb /mnt/nvme1 xfs\n"


def table(*points: str) -> list[Mount]:
    return [Mount(1, 1, "8:1", "/", point, ("rw",), "xfs", "/dev/sda1", ("rw",)) for point in ("/", *points)]


def units(known: bool, active: str = "inactive") -> dict[str, Properties]:
    state = {"LoadState": "loaded" if known else "not-found", "FragmentPath": "/x" if known else ""}
    found = {unit: {"LoadState": "not-found", "FragmentPath": ""} for unit in ("mnt.mount", r"mnt-nvme1-data.mount")}
    return {**found, "mnt-nvme1.mount": state, SERVICE: {"ActiveState": active}}


def mount_point(lasting: bytes, mounts: list[Mount], known: bool = True, active: str = "inactive") -> str | None:
    systemctl = Systemctl("systemctl", lambda _words: (0, "", ""))
    tying = Tying(systemctl, Differences(), table=mounts, lasting=LastingMounts(lasting, ()))
    return tying._mount_point(SERVICE, PATH, units(known, active))


def test_the_mount_that_the_host_is_to_have() -> None:
    assert mount_point(FSTAB, table("/mnt/nvme1")) == "/mnt/nvme1"
    assert mount_point(FSTAB, table()) == "/mnt/nvme1", "it starts only once that is mounted"


@pytest.mark.parametrize(
    ("fstab", "points", "known", "active", "message"),
    [
        (b"", [], True, "inactive", "is on the root filesystem and no mount unit covers it"),
        (b"", ["/mnt/nvme1"], True, "inactive", "which has no unit and would not come back at the next boot"),
        (FSTAB, [], True, "active", "nothing is mounted at /mnt/nvme1: systemd would stop it at once"),
        (
            FSTAB,
            ["/mnt/nvme1"],
            False,
            "inactive",
            "is on the mount of /etc/fstab, and systemd does not know mnt-nvme1.mount; systemctl daemon-reload",
        ),
    ],
)
def test_what_is_refused(fstab: bytes, points: list[str], known: bool, active: str, message: str) -> None:
    with pytest.raises(Refusal) as refused:
        mount_point(fstab, table(*points), known, active)
    assert message in str(refused.value)
