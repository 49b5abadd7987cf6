# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The disks of a host as sysfs shows them, in plain words.

The words are those of Astraeus's drives (``NVMe SSD``, ``SSD``, ``RAID array``, ``hard disk``) and, for what a server
has besides: ``network disk`` (iSCSI, Fibre Channel, NVMe over fabrics, RBD and the like), ``disk image`` (a loop
device) and ``disk`` where sysfs does not tell. What is stacked on one disk (LUKS, LVM, a partition) has that disk's
word; what is spread over several disks is a RAID array.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable

NVME = "NVMe SSD"
SSD = "SSD"
RAID = "RAID array"
HARD_DISK = "hard disk"
NETWORK = "network disk"
IMAGE = "disk image"
UNKNOWN = "disk"

FASTEST_FIRST = (NVME, SSD, RAID, HARD_DISK, NETWORK, UNKNOWN, IMAGE)

# Volumes of RAID controllers, which show up as one plain SCSI disk.
_CONTROLLER_VOLUME = re.compile(r"RAID|PERC|LOGICAL VOLUME|\bMR\d{4}|\bSMC\d{4}", re.IGNORECASE)
# A cloud's network volumes that show up as local NVMe or SCSI devices.
_CLOUD_VOLUME = re.compile(r"Amazon Elastic Block Store|nvme_card-pd|PersistentDisk|MSFT NVMe Accelerator")
_NETWORK_NAME = re.compile(r"(?:rbd|nbd|drbd)\d+")
_NETWORK_ROUTE = re.compile(r"/session\d+/|/rport-")  # how iSCSI and Fibre Channel disks hang in sysfs
_NEVER_A_DISK = re.compile(r"(?:ram|zram|sr|fd|mtdblock)\d+")


@dataclass(frozen=True)
class Device:
    """A block device: a disk, a partition, or something stacked on others."""

    name: str
    """As in ``/dev``: ``nvme0n1p1``, ``cciss/c0d0``; for device mapper ``dm-0``."""
    number: str
    """``major:minor``, as in mountinfo."""
    size: int
    kind: str | None
    """The word for what it is by itself; None for what is named after the disks under it."""
    model: str
    parents: tuple[str, ...]
    """The devices that it is directly on; empty for a disk."""
    alias: str = ""
    """The name below ``/dev/mapper``."""
    backing_file: str = ""
    """For a loop device, the path of the file, as seen by whoever attached it."""
    several: bool = False
    """Whether it is spread over its parents (otherwise several parents are several ways to one disk)."""

    @property
    def path(self) -> str:
        return f"/dev/mapper/{self.alias}" if self.alias else f"/dev/{self.name}"


class Disks:
    """All block devices of a host, by name."""

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self.devices = dict(devices)
        self._by_number = {device.number: name for name, device in self.devices.items()}
        self._by_path = {device.path: name for name, device in self.devices.items()}
        self._by_path.update({f"/dev/{name}": name for name in self.devices})

    @classmethod
    def read(cls, sys: str = "/sys") -> Disks:
        """Return the block devices that sysfs shows; those without a medium (empty drives, RAM disks) are left out."""
        directory = os.path.join(sys, "class/block")
        found = (_device(directory, entry) for entry in _entries(directory))
        return cls({device.name: device for device in found if device is not None})

    def of_number(self, number: str) -> Device | None:
        name = self._by_number.get(number)
        return self.devices[name] if name is not None else None

    def of_path(self, path: str) -> Device | None:
        """Return the device that a mount's source names, as ``/dev/sda1`` or ``/dev/mapper/vg-lv``."""
        name = self._by_path.get(path)
        return self.devices[name] if name is not None else None

    def stack(self, name: str) -> frozenset[str]:
        """Return device *name* and every device that it is on, directly or not."""
        parents = (parent for parent in self.devices[name].parents if parent in self.devices)
        return frozenset((name,)).union(*(self.stack(parent) for parent in parents))

    def under(self, name: str) -> frozenset[str]:
        """Return the disks, each without anything below it, that device *name* is on."""
        stack = self.stack(name)
        return frozenset(each for each in stack if stack.isdisjoint(self.devices[each].parents))

    def kind(self, name: str) -> str:
        """Return the word for device *name*."""
        device = self.devices[name]
        if device.kind is not None:
            return device.kind
        kinds = [self.kind(parent) for parent in device.parents if parent in self.devices]
        if not kinds:
            return UNKNOWN
        if RAID in kinds or (device.several and len(self.under(name)) > 1):
            return RAID
        return kinds[0]

    def model(self, name: str) -> str:
        """Return what the disks under device *name* call themselves."""
        models = {self.devices[disk].model for disk in self.under(name)} - {""}
        return ", ".join(sorted(models))

    def whole(self) -> list[Device]:
        """Return the devices that an operator calls disks: the physical ones, network disks, images and RAID arrays."""
        return [self.devices[name] for name in sorted(self.devices) if self.devices[name].kind is not None]


Reader = Callable[[str], str]


def _entries(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _device(directory: str, entry: str) -> Device | None:
    if _NEVER_A_DISK.fullmatch(entry):
        return None
    base = os.path.join(directory, entry)

    def value(name: str) -> str:
        return _value(os.path.join(base, name))

    number, sectors = value("dev"), value("size")
    # A device may go away while it is read; a hidden one is a path of a multipath NVMe disk.
    if not number or not sectors.isdigit() or sectors == "0" or value("hidden") == "1":
        return None
    route = os.path.realpath(base)
    slaves = tuple(name.replace("!", "/") for name in _entries(os.path.join(base, "slaves")))
    is_partition = bool(value("partition"))
    if is_partition:
        slaves = (os.path.basename(os.path.dirname(route)).replace("!", "/"),)
    backing_file = value("loop/backing_file")
    if entry.startswith("loop") and not is_partition and (not backing_file or value("ro") == "1"):
        return None  # not attached, or an installer's or a package's read-only image
    is_array = bool(value("md/level")) or bool(value("md/array_state"))
    stacked = is_partition or entry.startswith("dm-") or (bool(slaves) and not is_array)
    return Device(
        name=entry.replace("!", "/"),
        number=number,
        size=int(sectors) * 512,
        kind=None if stacked else _kind(entry, route, value, base),
        model="" if stacked else _model(value),
        parents=slaves,
        alias=value("dm/name"),
        backing_file=backing_file,
        several=not value("dm/uuid").startswith("mpath-"),
    )


def _kind(entry: str, route: str, value: Reader, base: str) -> str:
    """Return the word for a device that is no partition and no mapping."""
    if value("md/level") or value("md/array_state"):
        return RAID
    if entry.startswith("loop"):
        return IMAGE
    model = value("device/model")
    name_plate = f"{value('device/vendor')} {model}"
    if _CLOUD_VOLUME.search(name_plate) or _NETWORK_NAME.fullmatch(entry) or _NETWORK_ROUTE.search(route):
        return NETWORK
    if entry.startswith("nvme"):
        return NVME if _nvme_transport(value, base) in ("pcie", "") else NETWORK
    level = value("device/raid_level")
    if level not in ("", "N/A") or _CONTROLLER_VOLUME.search(name_plate):
        return RAID
    rotational = value("queue/rotational")
    return {"0": SSD, "1": HARD_DISK}.get(rotational, UNKNOWN)


def _nvme_transport(value: Reader, base: str) -> str:
    transport = value("device/transport")
    if transport:
        return transport
    # With multipathing the disk belongs to a subsystem, which lists its controllers.
    device = os.path.join(base, "device")
    controllers = [name for name in _entries(device) if re.fullmatch(r"nvme\d+", name)]
    transports = {_value(os.path.join(device, name, "transport")) for name in controllers}
    return next(iter(sorted(transports - {"pcie"})), "pcie")


def _model(value: Reader) -> str:
    model = value("device/model")
    vendor = value("device/vendor")
    # A number is a PCI vendor (virtio), and libata calls every SATA disk's vendor ATA.
    if vendor.startswith("0x"):
        return model or {"0x1af4": "virtio"}.get(vendor, "")
    return model if vendor in ("", "ATA", "NVMe") else f"{vendor} {model}".strip()


def _value(path: str) -> str:
    """Return one attribute of sysfs, or "" where the device does not have it or has just gone."""
    try:
        with open(path, "rb") as stream:
            return os.fsdecode(stream.read()).strip()
    except OSError:
        return ""
