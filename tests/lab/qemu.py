# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts with Debian's own kernel, on QEMU's emulated processor: for what the kernel of the machine outside lacks.

They have NFS and its server, RDMA in software (RoCE, on a wire of their own), and disks of every medium.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import base
from base import Host, Lab, LabError, run, write

NEEDED = {"qemu-system-x86_64": "qemu-system-x86", "cpio": "cpio", "unxz": "xz-utils"}
START_LIMIT_S = 180
# Without the parts of a PC that only take time to be found.
MACHINE = "q35,sata=off,smbus=off,i8042=off,vmport=off"
MEMORY_MIB = 1024
INTERFACE = "eth0"
RDMA_INTERFACE = "eth1"
RDMA_NETWORK = ipaddress.ip_network("10.214.0.0/24")  # nothing else is on that wire

PACKAGES = (
    *base.PACKAGES,
    # The cloud kernel has no RDMA in software.
    *("initramfs-tools", "kmod", "linux-image-amd64", "mdadm", "nfs-common", "nfs-kernel-server", "rdma-core"),
)
# Drivers of what these hosts do not have, or do not need: all that a kernel finds work for, it loads.
MODULES_LEFT_OUT = (
    *("arch/x86/crypto", "arch/x86/kvm", "drivers/ata", "drivers/bluetooth", "drivers/gpu", "drivers/hid"),
    *("drivers/i2c", "drivers/iio", "drivers/infiniband/hw", "drivers/input", "drivers/media", "drivers/net/ethernet"),
    *("drivers/net/usb", "drivers/net/wireless", "drivers/staging", "drivers/usb", "net/bluetooth", "net/mac80211"),
    *("net/vmw_vsock", "net/wireless", "sound"),
)
LEFT_OUT = (*base.LEFT_OUT, *(f"/*lib/modules/*/kernel/{path}/*" for path in MODULES_LEFT_OUT))
# What the kernel needs to find its root filesystem, and its network from the first moment.
EARLY_MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "crc32c_generic", "ext4")
INIT = """#!/bin/busybox sh
busybox mount -t devtmpfs devtmpfs /dev
for module in {modules}; do busybox insmod "/$module"; done
until busybox test -b /dev/vda; do busybox sleep 0.1; done
busybox mount -t ext4 /dev/vda /root
busybox mount --move /dev /root/dev
exec busybox switch_root /root /sbin/init
"""
MASKED = (
    *base.MASKED,
    # A real terminal nobody sits at, mail about arrays that nobody reads, and NFS over block devices.
    *("getty.target", "mdmonitor.service", "mdmonitor-oneshot.timer", "mdcheck_start.timer", "mdcheck_continue.timer"),
    *("nfs-blkmap.service", "systemd-journal-flush.service", "systemd-logind.service"),
    # The host has the one key that it needs, and a module is loaded when something needs it.
    *("sshd-keygen.service", "modprobe@.service", "rdma-load-modules@.service"),
)
DISABLED = (
    *base.DISABLED,
    *("dpkg-db-backup.timer", "e2scrub_reap.service", "systemd-pstore.service", "xfs_scrub_all.timer"),
)
HOOKS = (  # where modules are compressed, as on Debian 13: once is enough
    'find "$1"/usr/lib/modules -name "*.ko.xz" -exec unxz {} +',
    'for modules in "$1"/usr/lib/modules/*; do chroot "$1" depmod "${modules##*/}"; done',
)
KERNEL_ARGUMENTS = (
    *("root=/dev/vda", "rw", "console=ttyS0", "quiet", "net.ifnames=0"),
    *("mitigations=off", "no5lvl", "cryptomgr.notests", "audit=0", "apparmor=0", "selinux=0"),
)

# Only the first host has them, for discovery: beside the NVMe disks that all hosts have.
OTHER_DISKS = {"/mnt/ssd": "xfs", "/mnt/hdd": "ext4", "/mnt/raid": "xfs"}
SCSI = "scsi-hd,drive={name},serial={name},rotation_rate="
DEVICES = {  # by the beginning of the disk's name
    "nvme": "nvme,drive={name},serial={name}",
    "ssd": SCSI + "1",
    "hdd": SCSI + "7200",
    "raid": "virtio-blk-pci,drive={name},serial={name}",
}
RAID_MEMBERS = ("raid0", "raid1")

# As the driver of a real adapter does it when the host starts.
RDMA = f"""[Unit]
Description=RDMA in software on {RDMA_INTERFACE}
BindsTo=sys-subsystem-net-devices-{RDMA_INTERFACE}.device
After=sys-subsystem-net-devices-{RDMA_INTERFACE}.device
Before=network.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=modprobe rdma_rxe
ExecStart=rdma link add rxe0 type rxe netdev {RDMA_INTERFACE}
"""
# Once; afterwards udev assembles it from what is on its members.
RAID = """[Unit]
Description=Make the RAID array
DefaultDependencies=no
ConditionPathExists=!/var/lib/lab-raid
Requires=dev-disk-by\\x2did-virtio\\x2draid0.device dev-disk-by\\x2did-virtio\\x2draid1.device
After=dev-disk-by\\x2did-virtio\\x2draid0.device dev-disk-by\\x2did-virtio\\x2draid1.device systemd-remount-fs.service

[Service]
Type=oneshot
ExecStart=mdadm --create /dev/md0 --run --level=1 --raid-devices=2 --assume-clean --homehost=any \
  /dev/disk/by-id/virtio-raid0 /dev/disk/by-id/virtio-raid1
ExecStart={mkfs} -L raid /dev/md0
ExecStart=touch /var/lib/lab-raid
"""


def take_out(root: Path, image: Path) -> None:
    """Put the kernel and an initial RAM disk beside the image."""
    shutil.copy(root / "vmlinuz", image.with_suffix(".kernel"))
    # Debian's would look for the root filesystem with udev, which takes this processor longer than all the rest.
    version = os.readlink(root / "vmlinuz").partition("-")[2]
    command = ("modprobe", f"--set-version={version}", "--show-depends", "--all", *EARLY_MODULES)
    needed = [line.split()[1] for line in run("chroot", root, *command).splitlines() if line.startswith("insmod ")]
    with tempfile.TemporaryDirectory() as directory:
        files = Path(directory)
        for name in ("bin", "dev", "root"):
            (files / name).mkdir()
        shutil.copy(root / "bin/busybox", files / "bin")
        modules = [root / module.strip("/") for module in dict.fromkeys(needed)]
        for module in modules:
            shutil.copy(module, files)
        write(files / "init", INIT.format(modules=" ".join(module.name for module in modules)), 0o755)
        archive = 'cd "$1" && find . | cpio --quiet --create --format=newc >"$2"'
        run("sh", "-c", archive, "sh", files, image.with_suffix(".initrd"))


def recipe(suite: str) -> base.Root:
    beside = (INIT, *EARLY_MODULES)
    return base.Root(f"{suite}-qemu", suite, PACKAGES, LEFT_OUT, MASKED, DISABLED, hooks=HOOKS, beside=beside)


def root_image(suite: str) -> Path:
    return recipe(suite).image(take_out, INITRD="No")


def plan(name: str, number: int, network: list[str], disks: list[str]) -> Host:
    """The host called *name*, the one of that number (from 1) in a lab."""
    if number > 2:
        raise LabError(f"{name}: hosts with a kernel of their own are at most two, the ends of one wire")
    mounts = {f"/mnt/nvme{n}": fstype for n, fstype in enumerate(disks)}
    host = Host(name, network[10 + number], "qemu", rdma_address=str(RDMA_NETWORK[10 + number]), disks=mounts)
    # More disks for the one, another address for the other: as a client that is not the one it should be.
    if number == 1:
        return replace(host, disks=mounts | OTHER_DISKS)
    return replace(host, other_address=network[110 + number])


def images(host: Host) -> list[str]:
    """The names of the host's disks: an array has two."""
    names = [Path(point).name for point in host.disks]
    return [each for name in names for each in (RAID_MEMBERS if name == "raid" else (name,))]


def prepare(lab: Lab, host: Host, hosts: list[Host], size: str) -> None:
    """Make everything that the host consists of: its root and disk images, and the files that make it this host."""
    image = root_image(host.suite)
    files = base.seed(lab, host, hosts, image, INTERFACE)
    for name in ("kernel", "initrd"):
        shutil.copy(image.with_suffix(f".{name}"), lab.home / host.name / name)
    for name in images(host):
        base.disk_image(lab.home / host.name / f"{name}.img", size)
    for point, fstype in host.disks.items():
        name = Path(point).name
        base.seed_mount(files, f"/dev/disk/by-label/{name}", point, fstype)
        if name == "raid":
            base.seed_unit(files, "lab-raid.service", RAID.format(mkfs=" ".join(base.MKFS[fstype])), "sysinit.target")
        else:
            run(*base.MKFS[fstype], "-L", name, lab.home / host.name / f"{name}.img")
    rdma = f"[Match]\nName={RDMA_INTERFACE}\n\n[Network]\nAddress={host.rdma_address}/{RDMA_NETWORK.prefixlen}\n"
    write(files / "etc/systemd/network/20-rdma.network", rdma)
    base.seed_unit(files, "lab-rdma.service", RDMA, "multi-user.target")
    # A tap device is QEMU's own and goes with it.
    write(lab.home / host.name / "tap", f'#!/bin/sh\nip link set "$1" master {lab.bridge} up\n', 0o755)


def start(lab: Lab, host: Host) -> None:
    home = lab.home / host.name
    wires = [str(lab.control_path / f"{each.name}.wire") for each in sorted(lab.hosts(), key=lambda one: one != host)]
    wire = f"dgram,id=wire,local.type=unix,local.path={wires[0]},remote.type=unix,remote.path={wires[-1]}"
    command = [
        *(
            "qemu-system-x86_64",
            "-name",
            lab.machine(host.name),
            "-machine",
            MACHINE,
            "-no-user-config",
            "-nodefaults",
            "-display",
            "none",
        ),
        *("-accel", "tcg,thread=multi", "-cpu", "max,-svm", "-smp", "1", "-m", str(MEMORY_MIB), "-serial", "stdio"),
        *("-kernel", str(home / "kernel"), "-initrd", str(home / "initrd")),
        *("-append", " ".join(KERNEL_ARGUMENTS)),
        *("-netdev", f"tap,id=lan,script={home / 'tap'},downscript=no"),
        *("-device", f"virtio-net-pci,netdev=lan,mac={mac(host.address)}", "-netdev", wire),
        *("-device", f"virtio-net-pci,netdev=wire,mac={mac(host.rdma_address)}"),
        *("-device", "virtio-rng-pci", "-device", "virtio-scsi-pci"),
        *drive("root", home),
        *("-device", "virtio-blk-pci,drive=root"),
    ]
    for name in images(host):
        command += [*drive(name, home), "-device", DEVICES[name.rstrip("0123456789")].format(name=name)]
    base.spawn(lab, host, 'umount "$2/root"\n', command)


def mac(address: str) -> str:
    return "52:54:" + ":".join(f"{byte:02x}" for byte in ipaddress.ip_address(address).packed)


def drive(name: str, home: Path) -> tuple[str, str]:
    # The lab's disks need not outlive the machine that it runs on.
    return "-drive", f"file={home / name}.img,id={name},if=none,format=raw,cache=unsafe,discard=unmap"
