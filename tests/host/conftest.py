# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Real filesystems for the tests that need root and a real kernel.

``fstype``      the filesystem type of this run of the test: each test that takes it (or ``disk``) runs once for each
``disk``        a fresh, empty directory (``pathlib.Path``) on a real mount of that type, removed at the end
``small_disk``  a factory of whole filesystems: ``small_disk("ext4", 64 << 20)`` makes one, mounted until the end

``STOWAGE_TEST_DISKS="ext4=/mnt/nvme0,xfs=/mnt/nvme1"`` names the mounts that ``disk`` uses (the lab's hosts set it).
Without it, images of 1 GiB are made below /var/tmp and mounted through loop devices.
``STOWAGE_TEST_HOSTS="ext4,xfs/ext4,btrfs"`` says which filesystems each of the hosts has that share the tests, and
``STOWAGE_TEST_HOST="0"`` which of them this one is: it runs each test that no other one runs.

The packages ``stowage_core`` and ``stowaged`` can be imported here and in every Python started by a test.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = {"stowage_core": REPOSITORY / "plugins" / "module_utils", "stowaged": REPOSITORY / "daemon" / "stowaged"}
MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}
SMALLEST = {"ext4": 16 << 20, "xfs": 300 << 20, "btrfs": 114 << 20}
DISKS = dict(
    entry.split("=", 1) for entry in os.environ.get("STOWAGE_TEST_DISKS", "").split(",") if entry
)  # fstype -> mount point


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.option.basetemp is None:
        # Not among the directories of other tests: what is left mounted when these are killed would break those.
        config.option.basetemp = tempfile.mkdtemp(prefix="stowage-host-tests-")
        config.add_cleanup(lambda: run("rm", "-rf", "--one-file-system", str(config.option.basetemp)))
    links = Path(tempfile.mkdtemp(prefix="stowage-packages-"))
    config.add_cleanup(lambda: shutil.rmtree(links))
    for name, directory in PACKAGES.items():
        (links / name).symlink_to(directory)
    sys.path.insert(0, str(links))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{links}:{before}" if before else str(links)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests to other hosts that these are to run: each test goes to one that has its filesystem, in turn."""
    if not os.environ.get("STOWAGE_TEST_HOSTS"):
        return
    hosts = [entry.split(",") for entry in os.environ["STOWAGE_TEST_HOSTS"].split("/")]
    this = int(os.environ["STOWAGE_TEST_HOST"])
    goes_to: dict[pytest.Item, int] = {}
    turns: dict[tuple[int, ...], Iterator[int]] = {}
    # By name: in which order they are collected differs between releases of pytest.
    for item in sorted(items, key=lambda item: item.nodeid):
        able = tuple(number for number, has in enumerate(hosts) if _filesystem_of(item) in (None, *has))
        goes_to[item] = next(turns.setdefault(able, itertools.cycle(able)))
    config.hook.pytest_deselected(items=[item for item in items if goes_to[item] != this])
    # Each host begins elsewhere, so that not all wait at once, nor all compute.
    start = len(items) * this // len(hosts)
    items[:] = [item for item in items[start:] + items[:start] if goes_to[item] == this]


def _filesystem_of(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("fstype")


@pytest.fixture(scope="session", autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        pytest.fail("tests/host need root: run them on the lab's hosts with 'make host-test', or with sudo")


def run(*command: str) -> str:
    """Run a command; its error output is part of the failure."""
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def opened(path: Path | bytes) -> Iterator[int]:
    """A descriptor of a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def mounts_at_or_below(directory: Path) -> list[str]:
    """Mount points at or below a directory, in the order in which they can be unmounted."""
    found = []
    with open("/proc/self/mountinfo", "rb") as mountinfo:
        for line in mountinfo:
            escaped = line.split(b" ", 5)[4]
            point = os.fsdecode(escaped.decode("unicode_escape").encode("latin-1"))
            if Path(point) == directory or directory in Path(point).parents:
                found.append(point)
    return found[::-1]


def clear(directory: Path) -> None:
    """Unmount everything at or below a directory. A mount that stays busy is detached and then reported."""
    busy = []
    for point in mounts_at_or_below(directory):
        for _number in range(20):
            if subprocess.run(["umount", point], stderr=subprocess.DEVNULL, check=False).returncode == 0:
                break
            time.sleep(0.05)
        else:
            run("umount", "--lazy", point)
            busy.append(point)
    if busy:
        raise RuntimeError(f"still in use at the end of the test, and detached: {', '.join(busy)}")


@dataclass
class SmallDisk:
    """A filesystem of its own on a loop device. ``unmount`` and ``mount`` may be called as often as a test likes."""

    fstype: str
    image: Path
    device: str
    path: Path  # the mount point

    def mount(self, options: str = "", at: Path | None = None) -> Path:
        point = at or self.path
        run("mount", "-t", self.fstype, "-o", options or "defaults", self.device, str(point))
        return point

    def unmount(self) -> None:
        run("umount", str(self.path))


def make_disk(home: Path, fstype: str, size: int) -> SmallDisk:
    """Make a filesystem in an image below ``home`` and attach it to a loop device; the caller mounts it."""
    if size < SMALLEST[fstype]:
        raise ValueError(f"{size} bytes are too few for {fstype}: it needs {SMALLEST[fstype]}")
    image, point = home / "image", home / "mnt"
    point.mkdir()
    with open(image, "xb") as file:
        file.truncate(size)
    run(*MKFS[fstype], str(image))
    return SmallDisk(fstype, image, run("losetup", "--find", "--show", str(image)), point)


def remove_disk(disk: SmallDisk) -> None:
    try:
        clear(disk.image.parent)
    finally:
        run("losetup", "--detach", disk.device)
        shutil.rmtree(disk.image.parent)


def _new_home() -> Path:
    return Path(tempfile.mkdtemp(prefix="stowage-disk-", dir="/var/tmp"))


@pytest.fixture(scope="session", params=list(DISKS) or list(MKFS))
def fstype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def _mount_point(fstype: str) -> Iterator[Path]:
    if DISKS:
        point = Path(DISKS[fstype])
        if not point.is_mount():
            pytest.fail(f"{point}: STOWAGE_TEST_DISKS names it, and nothing is mounted there")
        yield point
        return
    disk = make_disk(_new_home(), fstype, 1 << 30)
    try:
        yield disk.mount()
    finally:
        remove_disk(disk)


@pytest.fixture
def disk(_mount_point: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="test-", dir=_mount_point))
    directory.chmod(0o755)
    yield directory
    try:
        clear(directory)
    finally:
        run("rm", "-rf", "--one-file-system", str(directory))  # unlike shutil.rmtree it goes down any depth


@pytest.fixture
def small_disk() -> Iterator[Callable[..., SmallDisk]]:
    made: list[SmallDisk] = []

    def make(fstype: str, size: int | None = None, options: str = "") -> SmallDisk:
        new = make_disk(_new_home(), fstype, SMALLEST[fstype] if size is None else size)
        made.append(new)
        new.mount(options)
        return new

    yield make
    problems = []
    for one in reversed(made):
        try:
            remove_disk(one)
        except RuntimeError as error:
            problems.append(str(error))
    if problems:
        raise RuntimeError("; ".join(problems))


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The daemon's application, built from this tree."""
    from daemon_lab import application

    return application(tmp_path_factory.mktemp("application"))


@pytest.fixture(params=["in a child", "by the service"])
def in_use(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """The look as a module has it, and as the daemon has it: over a connection, by somebody who can change nothing."""
    from use_lab import Service

    from stowage_core.use import look as use
    from stowaged import use_service

    if request.param == "in a child":
        yield use.in_use
        return
    service = Service.of(request.getfixturevalue("program"), tmp_path / "use")
    yield use_service.asking(str(service.path))
    service.close()


@pytest.fixture
def start(request: pytest.FixtureRequest, program: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """A factory of daemons; with a lab, of its data location."""
    from daemon_lab import Daemon

    from stowage_core import records

    # What is set up first is taken down last: daemons end before the disks that they work on are cleared.
    for disks in {"disk", "small_disk"}.intersection(request.fixturenames):
        request.getfixturevalue(disks)
    started: list[Daemon] = []

    def make(lab: Any = None, **settings: Any) -> Daemon:
        daemon = Daemon(program, tmp_path, **settings)
        started.append(daemon)
        if lab is not None:
            records.write(daemon.places.data_location_json, lab.location.to_json())
        return daemon

    yield make
    for daemon in started:
        daemon.close()


@pytest.fixture
def elsewhere() -> Iterator[Any]:
    """A shell in a mount namespace of its own."""
    from changes_lab import Elsewhere

    shell = Elsewhere()
    yield shell
    shell.close()


@pytest.fixture
def shown(disk: Path, tmp_path: Path) -> Iterator[Path]:
    """The disk through another mount."""
    from changes_lab import mounted

    point = tmp_path / "shown"
    point.mkdir()
    with mounted(point, "--bind", str(disk)):
        yield point
