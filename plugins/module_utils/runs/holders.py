# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a lease lasts with: the processes of a cgroup, or one process. And who is busy in a mount."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..errors import Refusal, StowageError, printable
from ..syscalls import mount_id

CGROUPS = "/sys/fs/cgroup"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_MOST = 5
_KERNEL_THREAD = 0x00200000
"""``PF_KTHREAD`` in the flags of a process."""
_DAEMONS = (
    "containerd",
    "crio",
    "docker",
    "dockerd",
    "kubelet",
    "slurmd",
    "ssh",
    "sshd",
    "stowage-exporter",
    "stowaged",
)
_OF_MANY = re.compile(
    r"(.*/)?("
    # Of the containers and the jobs.
    r"docker|libpod_parent|kubepods|burstable|besteffort"
    r"|([^/]+_)?slurmstepd\.scope(/system)?|slurm(_[^/.]+)?|uid_[0-9]+"
    # Of systemd, whose containers are services of their own.
    r"|init\.scope|user@[^/]+\.service|systemd-(?!nspawn@)[^/]+\.service"
    # Of daemons: several slurmd of one host are instances.
    rf"|({'|'.join(_DAEMONS)}|slurmd@[^/]+)\.service"
    # A slice ends with what is in it only when it is a pod's.
    r"|(?![^/]*-(pod[0-9a-f_-]+|libpod_pod_[0-9a-f]+)\.slice$)[^/]+\.slice"
    r")"
)
"""Cgroups that hold those of workers, and end with none of them."""
_GROUP = re.compile(rb"^Tgid:\s*(\d+)", re.MULTILINE)
_OVER = (b"Z", b"X")
"""The states of what has ended."""


@dataclass(frozen=True)
class Holder:
    """A cgroup, or a process with the time of its start: another may have its path or its number later."""

    cgroup: str = ""
    """Its directory."""
    cgroup_inode: int = 0
    pid: int = 0
    pid_start: int = 0

    @classmethod
    def of(cls, cgroup: str, pid: int, name: str) -> Holder:
        """Return the holder that is there now.

        :param name: of what it is to hold, for messages
        :raises Refusal: when there is no such cgroup or process, it is none that ends with a worker, or there is no
            process in the cgroup
        """
        if bool(cgroup) == bool(pid):
            raise Refusal(name, "a lease is held by a cgroup or by a process", "name one of the two")
        if pid:
            start = start_time(pid)
            process = _process_of(pid)
            if start is None or process is None:
                raise Refusal(name, f"there is no process {pid}", "confirm it while the process runs")
            if process != pid:
                rule = f"{pid} is a thread of {described(process)}, and may end before it"
                raise Refusal(name, rule, "name the process")
            why = _why_no_worker(pid)
            if why:
                raise Refusal(name, f"{described(pid)} is {why}", "name a process that ends with the worker")
            return cls(pid=pid, pid_start=start)
        below = cgroup[len(CGROUPS) :] if cgroup.startswith(CGROUPS + "/") else cgroup
        # Version 1 has links to the roots of its controllers.
        cgroup = os.path.realpath(os.path.normpath(f"{CGROUPS}/{below}"))
        if not cgroup.startswith(CGROUPS + "/") or not os.path.isdir(cgroup):
            raise Refusal(name, f"there is no cgroup {printable(cgroup)}", "name one below " + CGROUPS)
        if _is_of_many(cgroup):
            rule = f"cgroup {printable(cgroup)} holds those of many, and does not end with a worker"
            raise Refusal(name, rule, "name the worker's own, as in /proc/PID/cgroup of one of its processes")
        if not _is_populated(cgroup):
            rule = f"cgroup {printable(cgroup)} has no processes yet, and would count as ended"
            raise Refusal(name, rule, "confirm it once the run's processes are in it")
        return cls(cgroup, _inode(cgroup))

    @property
    def ended(self) -> str:
        """Why it holds nothing any more, or "" when it does or that cannot be told."""
        if self.cgroup:
            if _inode(self.cgroup) != self.cgroup_inode:
                return "its cgroup is not there any more"
            return "" if _is_populated(self.cgroup) else "its cgroup has no processes any more"
        return "" if start_time(self.pid) == self.pid_start else "its process has ended"

    @property
    def described(self) -> str:
        """Who holds it, for a message."""
        if self.pid:
            return described(self.pid)
        pids = sorted(set(_pids_of(self.cgroup)))
        return f"{listed(pids)} of cgroup {printable(self.cgroup)}" if pids else f"cgroup {printable(self.cgroup)}"


def _inode(cgroup: str) -> int:
    """Return the number of a cgroup, which the kernel gives to no other; 0 when there is none."""
    try:
        return os.stat(cgroup).st_ino
    except FileNotFoundError:
        return 0


def _is_of_many(cgroup: str) -> bool:
    """Return whether a cgroup is a root, or one that lasts."""
    return os.path.ismount(cgroup) or _OF_MANY.fullmatch(cgroup[len(CGROUPS) + 1 :]) is not None


def _is_populated(cgroup: str) -> bool:
    try:
        with open(os.path.join(cgroup, "cgroup.events"), "rb") as stream:
            return b"populated 0" not in stream.read().splitlines()
    except FileNotFoundError:
        # Version 1 has no such file: as long as the cgroup is there it may have processes.
        return os.path.isdir(cgroup)
    except OSError as error:
        if error.errno == errno.ENODEV:  # removed while it was read
            return False
        raise


def _pids_of(cgroup: str) -> Iterator[int]:
    for directory, _names, _files in os.walk(cgroup):
        with contextlib.suppress(OSError), open(os.path.join(directory, "cgroup.procs"), "rb") as stream:
            yield from map(int, stream.read().split())


def boot_id() -> str:
    with open(_BOOT_ID, encoding="ascii") as stream:
        return stream.read().strip()


def boot_time() -> float:
    """Return the seconds since the host was started, those asleep included; nobody can set that clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def start_time(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks, or None when there is none."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _why_no_worker(pid: int) -> str:
    """Return what a process is that no worker ends with, or ""."""
    if pid == 1:
        return "the host's first, which ends with the host"
    if pid == os.getpid():
        return "the one that asks for this, and ends with it"
    fields = _stat(pid)
    if fields and int(fields[6]) & _KERNEL_THREAD:
        return "the kernel's own, which ends with the host"
    # Those in a container have another parent, and end with it.
    if fields and int(fields[1]) == 1 and _command(pid) in (*_DAEMONS, "systemd"):
        return "a daemon of the host, which ends with no worker"
    return ""


def _stat(pid: int) -> list[bytes]:
    """Return what the kernel says of a process, from its state on; nothing when there is none, or it has ended."""
    fields = _stat_of(f"/proc/{pid}")
    return [] if fields and fields[0] in _OVER and not _has_threads(pid) else fields


def _has_threads(pid: int) -> bool:
    """Return whether threads of a process go on whose first has ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(fields and fields[0] not in _OVER for fields in (_stat_of(f"/proc/{pid}/task/{one}") for one in threads))


def _stat_of(directory: str) -> list[bytes]:
    try:
        with open(f"{directory}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    if len(fields) < 20:
        raise StowageError(f"{directory}/stat: not of the kernel's form")
    return fields


def _process_of(task: int) -> int | None:
    """Return the process that a thread is of, or None when there is none."""
    try:
        with open(f"/proc/{task}/status", "rb") as stream:
            group = _GROUP.search(stream.read())
    except (FileNotFoundError, ProcessLookupError):
        return None
    if group is None:
        raise StowageError(f"/proc/{task}/status: not of the kernel's form")
    return int(group.group(1))


def described(pid: int) -> str:
    command = _command(pid)
    return f"process {pid} ({command})" if command else f"process {pid}"


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as stream:
            return printable(stream.read().rstrip())
    except OSError:
        return ""


def listed(pids: Collection[int]) -> str:
    """Return who that is, the first few by name."""
    some = [described(pid) for pid in sorted(pids)[:_MOST]]
    return ", ".join(some) + (f" and {len(pids) - _MOST} more" if len(pids) > _MOST else "")


# -- Who is busy in a mount


def busy_in(mounts: Collection[int]) -> dict[int, set[int]]:
    """Return the processes that are busy in mounts of this namespace, by the mounts' ids.

    That is what makes the kernel refuse to unmount: a working or root directory, an open file, a mapping. What may not
    be looked at, or has ended, is left out: the kernel has the last word.
    """
    wanted = set(mounts)
    found: dict[int, set[int]] = {}
    if not wanted:
        return found
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):
                for mount in wanted & _mounts_of(int(name)):
                    found.setdefault(mount, set()).add(int(name))
    return found


def _mounts_of(pid: int) -> set[int]:
    base = f"/proc/{pid}"
    found = set()
    for link in ("cwd", "root", "exe"):
        with contextlib.suppress(OSError):
            fd = os.open(f"{base}/{link}", os.O_PATH | os.O_CLOEXEC)
            try:
                found.add(mount_id(fd))
            finally:
                os.close(fd)
    for name in os.listdir(f"{base}/fdinfo"):
        with contextlib.suppress(OSError), open(f"{base}/fdinfo/{name}", "rb") as info:
            found.update(int(line.split()[1]) for line in info if line.startswith(b"mnt_id:"))
    return found
