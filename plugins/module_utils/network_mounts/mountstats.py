# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the kernel counts for each NFS mount: /proc/self/mountstats.

Reading it asks the kernel only, never a server: it is answered while a mount hangs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass

from ..mounts import table_lines, unescaped

PATH = "/proc/self/mountstats"
RDMA = "rdma"

_MOUNT = re.compile(rb"(?:device (.*)|no device) mounted on (.*) with fstype (\S+) statvers=(\S+)", re.DOTALL)
"""The first line of a mount that counts; white space in its names is escaped. Others have no ``statvers``."""
_LONGEST = 1000
"""Of a line: the kernel's are shorter."""
_SERVER_READ, _SERVER_WRITTEN = 4, 5
"""Which of the numbers behind ``bytes:`` came from the server and went to it, mapped files included.

The four before them count what programs asked for, through the page cache and around it: what the cache answers is no
traffic, and what is mapped is not in them. The two behind them are pages."""


@dataclass(frozen=True)
class Operation:
    """What was asked of the server with one of NFS's operations, since the mount was made."""

    name: str
    operations: int
    transmissions: int
    major_timeouts: int
    bytes_sent: int
    bytes_received: int
    queue_ms: int
    """Waiting to be sent, of all of them together; likewise the next two."""
    rtt_ms: int
    """From being sent to the reply."""
    execute_ms: int
    """From being asked for to the reply."""
    errors: int | None = None
    """None where the kernel does not count them (before 5.3)."""


@dataclass(frozen=True)
class MountStats:
    """One NFS mount. All figures begin when it is mounted."""

    device: str
    """``server:/path`` as it was mounted; empty where the kernel does not tell."""
    point: str
    fstype: str
    options: tuple[str, ...]
    age_s: int | None
    protocols: tuple[str, ...]
    """Of each of its connections: several with ``nconnect=``."""
    bytes_read: int | None
    """From the server, not from the cache."""
    bytes_written: int | None
    operations: tuple[Operation, ...]

    def option(self, name: str) -> str:
        """Return the value of a mount option, empty where it has none."""
        return next((one.partition("=")[2] for one in self.options if one.partition("=")[0] == name), "")

    @property
    def protocol(self) -> str:
        """What it is mounted over: ``tcp``, ``udp`` or ``rdma``; empty unless all its connections are of one kind."""
        return self.protocols[0] if len(set(self.protocols)) == 1 else ""

    @property
    def is_rdma(self) -> bool:
        """Whether it is proven that it is mounted over RDMA, by its options and by all its connections."""
        return self.option("proto").startswith(RDMA) and self.protocol == RDMA

    @property
    def operations_total(self) -> int:
        return sum(one.operations for one in self.operations)

    @property
    def retransmissions(self) -> int:
        """What was sent more than once: an operation that is done was sent once at least."""
        return sum(max(0, one.transmissions - one.operations) for one in self.operations)

    @property
    def major_timeouts(self) -> int:
        return sum(one.major_timeouts for one in self.operations)

    @property
    def rtt_ms(self) -> int:
        return sum(one.rtt_ms for one in self.operations)

    @property
    def bytes_received(self) -> int:
        """In replies of all kinds: it grows only while the server answers."""
        return sum(one.bytes_received for one in self.operations)


def parse(text: bytes, points: Container[str] | None = None) -> list[MountStats]:
    """Return the NFS mounts in their order, a later one lies over an earlier one at the same place.

    What it does not know it leaves out: newer kernels may say more, and a figure that is not there is not known.

    :param points: only what is mounted there: each lease of a network mount is one more mount of it
    """
    mounts: list[tuple[re.Match[bytes] | None, list[bytes]]] = []
    for line in table_lines(text):
        if line.startswith((b"device ", b"no device ")):
            mounts.append((_MOUNT.fullmatch(line), []))
        elif mounts:
            mounts[-1][1].append(line)
    return [
        _mount(first, lines)
        for first, lines in mounts
        if first is not None and (points is None or unescaped(first[2]) in points)
    ]


def read(points: Container[str] | None = None) -> list[MountStats]:
    """Return the NFS mounts that this process sees, or only those at *points*."""
    with open(PATH, "rb") as stream:
        return parse(stream.read(), points)


def at(point: str, found: Sequence[MountStats]) -> MountStats | None:
    """Return what is mounted at *point*, and not covered there by another one."""
    return next((one for one in reversed(found) if one.point == point), None)


def _mount(first: re.Match[bytes], lines: Sequence[bytes]) -> MountStats:
    device, point, fstype, _version = first.groups()
    said: dict[bytes, bytes] = {}
    protocols = []
    operations = []
    in_operations = False
    for line in lines:
        if line.strip() == b"per-op statistics":
            in_operations = True
            continue
        key, colon, value = line.strip().partition(b":")
        if not colon:
            continue
        if in_operations:
            operation = _operation(key, value)
            operations += [operation] if operation is not None else []
        elif key == b"xprt":
            protocols += [_text(word) for word in value.split()[:1]]
        else:
            said.setdefault(key, value.strip())
    sizes = _numbers(said.get(b"bytes", b""))
    age = _numbers(said.get(b"age", b""))
    return MountStats(
        device=unescaped(device or b""),
        point=unescaped(point),
        fstype=_text(fstype),
        options=tuple(unescaped(one) for one in said.get(b"opts", b"").split(b",") if one),
        age_s=age[0] if age else None,
        protocols=tuple(protocols),
        bytes_read=sizes[_SERVER_READ] if len(sizes) > _SERVER_READ else None,
        bytes_written=sizes[_SERVER_WRITTEN] if len(sizes) > _SERVER_WRITTEN else None,
        operations=tuple(operations),
    )


def _operation(name: bytes, value: bytes) -> Operation | None:
    numbers = _numbers(value)
    if len(numbers) < 8:
        return None
    return Operation(_text(name), *numbers[:8], **({"errors": numbers[8]} if len(numbers) > 8 else {}))


def _numbers(value: bytes) -> list[int]:
    """Return the numbers that a line begins with."""
    return [int(word) for word in itertools.takewhile(bytes.isdigit, value[:_LONGEST].split())]


def _text(word: bytes) -> str:
    return word.decode("utf-8", "replace")
