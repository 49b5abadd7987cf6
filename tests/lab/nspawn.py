# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts of systemd-nspawn: they share the kernel of the machine outside, are up in seconds and run at native speed."""

from __future__ import annotations

import os
from pathlib import Path

import base
from base import Host, Lab

NEEDED = {"systemd-nspawn": "systemd-container"}
START_LIMIT_S = 60

PACKAGES = (*base.PACKAGES, "btrfs-progs", "crun", "podman", "python3-hypothesis", "python3-pytest", "strace")
MORE_PACKAGES = {
    # The libraries are what the Mooncake store needs.
    "bookworm": ("docker.io", "prometheus", "libcurl4", "libibverbs1", "libnuma1"),
    "trixie": ("libcurl4t64", "libibverbs1", "libnuma1", "munge", "slurm-client", "slurmctld", "slurmd"),
}
DISABLED = (
    *base.DISABLED,
    *("prometheus.service", "podman.service", "podman.socket", "podman-auto-update.service"),
    *("podman-auto-update.timer", "podman-restart.service", "podman-clean-transient.service"),
    *("docker.service", "docker.socket", "containerd.service"),
    *("munge.service", "slurmctld.service", "slurmd.service"),
)
LOOP_NODES = 128
# What Podman cannot have here: control groups with controllers (where the machine has version 1 beside 2, they are in
# the former) or with a filter of devices (for which it would raise a limit), and a network: the tools are not there.
CONTAINERS = '[containers]\ncgroups = "disabled"\nnetns = "none"\n'
# Docker can have all it wants. It is only to leave the host's network alone, which leads nowhere.
DOCKER = '{"bridge": "none", "iptables": false, "ip6tables": false}\n'


def root_image(suite: str) -> Path:
    return base.Root(suite, suite, (*PACKAGES, *MORE_PACKAGES[suite]), disabled=DISABLED).image()


def plan(name: str, number: int, network: list[str], disks: list[str]) -> Host:
    """The host called *name*, the one of that number (from 1) in a lab; the first disk is /mnt/nvme0."""
    return Host(name, network[10 + number], "nspawn", disks={f"/mnt/nvme{n}": fstype for n, fstype in enumerate(disks)})


def device_nodes() -> str:
    """tmpfiles.d lines for the devices that disks and tests need; a machine of nspawn has none of them."""
    lines = [f"b! /dev/loop{n} 0660 root disk - 7:{n}" for n in range(LOOP_NODES)]
    for name in ("loop-control", "btrfs-control", "fuse"):
        try:
            number = os.stat(f"/dev/{name}").st_rdev
        except FileNotFoundError:
            continue  # a kernel without it
        lines.append(f"c! /dev/{name} 0660 root disk - {os.major(number)}:{os.minor(number)}")
    return "\n".join(lines) + "\n"


def prepare(lab: Lab, host: Host, hosts: list[Host], size: str) -> None:
    """Make everything that the host consists of: its root and disk images, and the files that make it this host."""
    files = base.seed(lab, host, hosts, root_image(host.suite), "host0")
    for point, fstype in host.disks.items():
        image = base.disk_image(lab.home / host.name / f"{Path(point).name}.img", size)
        base.run(*base.MKFS[fstype], image)
        # Attached here and mounted only inside: the host can truly unmount it, and put another filesystem on it.
        base.seed_mount(files, base.run("losetup", "--find", "--show", image).strip(), point, fstype)
    base.write(files / "etc/tmpfiles.d/stowage-lab.conf", device_nodes())
    base.write(files / "etc/containers/containers.conf.d/lab.conf", CONTAINERS)
    base.write(files / "etc/docker/daemon.json", DOCKER)


def start(lab: Lab, host: Host) -> None:
    command = [
        *("systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--console=read-only"),
        *(f"--directory={lab.home / host.name / 'root'}", f"--machine={lab.machine(host.name)}"),
        f"--network-bridge={lab.bridge}",
        # As free as a real host's root, save for what reaches the machine outside: modules, ports, the clock.
        *("--capability=all", "--drop-capability=CAP_SYS_MODULE,CAP_SYS_RAWIO,CAP_SYS_TIME"),
    ]
    base.spawn(lab, host, "", command, SYSTEMD_SECCOMP="0", SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="1")
