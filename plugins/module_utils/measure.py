# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much a directory tree holds: bytes, allocated bytes, files and directories.

`measure` counts in the calling process, or in several forked workers. `measure_in_child` does it in a forked child
that an event loop can wait for, so that a filesystem that hangs takes nobody along.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from .errors import StowageError
from .forked import close_all_but, fork
from .inode_set import InodeSet
from .pace import Pace, Pacer, run_in_background
from .tally import Problems, Tally
from .walk import Walk


@dataclass(frozen=True)
class Usage:
    """What a measured directory holds, itself included; a file with several hard links counts once.

    bytes            the sizes of files and symbolic links, as `du --apparent-size` of coreutils 9.2 and newer counts
    directory_bytes  the directories' own sizes, which coreutils up to 9.1 adds
    allocated        what everything takes on the disk, as `du` without options counts
    files            everything that is no directory
    complete         whether nothing was missed; `problems` says what was, and which mounts below were left out
    """

    bytes: int = 0
    directory_bytes: int = 0
    allocated: int = 0
    files: int = 0
    directories: int = 0
    complete: bool = True
    problems: tuple[str, ...] = ()

    @property
    def inodes(self) -> int:
        """How many inodes the tree takes."""
        return self.files + self.directories

    def to_json(self) -> dict[str, Any]:
        """The usage as a record."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Usage:
        """The usage that `to_json` gave."""
        return cls(**{**record, "problems": tuple(record["problems"])})


def measure(root_fd: int, *, workers: int = 1, pace: Pace | None = None) -> Usage:
    """Counts the tree at `root_fd`, in this process or in that many forked ones, each keeping the pace.

    What cannot be read makes the usage incomplete. A worker that fails raises `StowageError`.
    """
    problems = Problems()
    if workers == 1:
        seen = InodeSet()
        tally = Tally(lambda status: seen.add(status.st_dev, status.st_ino))
        tally.count(Walk(root_fd, problems.add), Pacer(pace).step)
    else:
        from .measure_workers import tally_in_workers

        tally = tally_in_workers(root_fd, workers, pace, problems)
    return Usage(
        bytes=tally.bytes,
        directory_bytes=tally.directory_bytes,
        allocated=tally.blocks * 512,
        files=tally.files,
        directories=tally.directories,
        complete=problems.complete,
        problems=problems.texts(),
    )


class Measurement:
    """A measurement that goes on in a child. Reads are never waited for: look when `fileno()` is readable."""

    def __init__(self, pid: int, fd: int, deadline: float | None) -> None:
        self.pid = pid
        self._fd = fd
        self._deadline = None if deadline is None else time.monotonic() + deadline
        self._received = b""
        self._usage: Usage | None = None
        self._reaped = False

    def fileno(self) -> int:
        """A descriptor that gets readable when there is something to see."""
        return self._fd

    def finished(self) -> Usage | None:
        """The usage once there is one; None while the child still counts.

        A child that failed, was killed or passed its deadline gives an incomplete usage.
        """
        if self._usage is None:
            self._usage = self._look()
            if self._usage is not None:
                os.close(self._fd)
                self._fd = -1
                if not self._received.endswith(b"\n"):
                    self.kill()
        self.gone()
        return self._usage

    def _look(self) -> Usage | None:
        while select.select([self._fd], [], [], 0)[0]:
            part = os.read(self._fd, 65536)
            self._received += part
            if self._received.endswith(b"\n"):
                return Usage.from_json(json.loads(self._received))
            if not part:
                return _nothing("the measuring process ended before it was done")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return _nothing("not measured in the time allowed")
        return None

    def kill(self) -> None:
        """Ends the measurement; `finished` then gives an incomplete usage."""
        if not self.gone():  # only then is the number still the child's
            os.kill(self.pid, signal.SIGKILL)

    def gone(self) -> bool:
        """Whether the child has really ended. One that waits for a dead disk or server stays, even when killed."""
        if not self._reaped:
            self._reaped = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return self._reaped


def _nothing(why: str) -> Usage:
    return Usage(complete=False, problems=(why,))


def measure_in_child(
    root: int | Callable[[], int],
    *,
    workers: int = 1,
    pace: Pace | None = None,
    deadline: float | None = None,
) -> Measurement:
    """Starts a measurement in a forked child.

    :param root: the directory's descriptor, or what opens it, called in the child: opening may hang too
    :param pace: given, the child keeps it and runs only when nobody else wants the processor
    :param deadline: seconds after which the measurement is given up
    """
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)

    def body() -> None:
        if pace is not None:
            run_in_background()
        try:
            root_fd = root() if callable(root) else root
            close_all_but(write_fd, root_fd)
            usage = measure(root_fd, workers=workers, pace=pace)
        except OSError as error:
            usage = _nothing(os.strerror(error.errno or errno.EIO))
        except StowageError as error:
            usage = _nothing(str(error))
        os.write(write_fd, json.dumps(usage.to_json()).encode() + b"\n")

    try:
        pid = fork(body)
    except OSError:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)
    return Measurement(pid, read_fd, deadline)


class Engine(Protocol):
    """A way to learn a directory's usage."""

    def start(self, root: int | Callable[[], int], *, deadline: float | None) -> Measurement:
        """Begins to measure a directory."""
        ...


@dataclass(frozen=True)
class Scan:
    """The engine that looks at every file each time."""

    workers: int = 1
    pace: Pace | None = None

    def start(self, root: int | Callable[[], int], *, deadline: float | None) -> Measurement:
        """Begins to measure a directory."""
        return measure_in_child(root, workers=self.workers, pace=self.pace, deadline=deadline)
