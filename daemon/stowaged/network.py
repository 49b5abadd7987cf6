# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network mounts of this host: what the kernel counts for each, and whether it answers.

Each is asked by a child of its own, so that nothing else waits for a dead server, nor one mount for another. What the
kernel counts it tells without asking a server.
"""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any, Callable

from stowage_core.mounts import Mount
from stowage_core.network_mounts import mountstats
from stowage_core.network_mounts.mountstats import MountStats
from stowage_core.network_mounts.records import BOUND, MountRecord
from stowage_core.syscalls import mount_id

from .children import Children, Ending, Message, Send
from .hung import ANSWER_S, LEFT_ALONE_S, Hung
from .sections import Sections

SECTION = "network_mounts"


@dataclass(frozen=True)
class Answer:
    """Whether a mount answers (None: not asked, or nothing to ask), and why it cannot be used."""

    answers: bool | None = None
    trouble: str = ""


UNKNOWN = Answer()


class NetworkMounts:
    """Looks at the network mounts every cycle; the rest of the cycle does not wait for what they answer."""

    def __init__(
        self,
        children: Children,
        hung: Hung,
        sections: Sections,
        say: Callable[[str], None],
        read: Callable[[Container[str]], Sequence[MountStats]] = mountstats.read,
    ) -> None:
        self._children = children
        self._hung = hung
        self._sections = sections
        self._say = say
        self._read = read
        self._records: Sequence[MountRecord] = ()
        self._error = ""
        self._stats: Sequence[MountStats] = ()
        self._answers: dict[str, Answer] = {}
        self._received: dict[str, int] = {}
        """How much each filesystem that does not answer had received by then."""

    def look(self, records: Sequence[MountRecord], error: str, table: Sequence[Mount]) -> None:
        """Take on what is recorded and counted now, and ask after all that are to be there.

        :param error: why the record cannot be read
        """
        self._records, self._error = records, error
        self._stats = self._read({one.path for one in records})
        wanted = {one.path: one for one in records if one.state == BOUND}
        self._answers = {path: self._answers.get(path, UNKNOWN) for path in wanted}
        present: dict[str, list[Mount]] = {}
        for path, one in wanted.items():
            mount = next((mount for mount in reversed(table) if mount.point == path), None)
            if mount is None:
                self._note(path, Answer(trouble="nothing is mounted there; mount it anew"))
            elif mount.source != one.device:
                wrong = f"{mount.source} is mounted there instead of {one.device}; unmount it, and mount this one"
                self._note(path, Answer(trouble=wrong))
            else:
                present.setdefault(mount.device, []).append(mount)
        for device, those in present.items():
            if device in self._hung and self._has_received(device, those):
                self._hung.forget(device)
            if device in self._hung:
                for mount in those:
                    self._note(mount.point, _NO_ANSWER)
            elif not self._children.running(_key(device)):
                self._ask(device, those)
        self._publish()

    def _ask(self, device: str, those: Sequence[Mount]) -> None:
        """Ask after the mounts of one filesystem."""
        waiting = [mount.point for mount in those]

        def body(send: Send) -> None:
            for mount in those:
                send({"path": mount.point, "trouble": ask(mount)})

        def take(message: Message) -> None:
            waiting.remove(message["path"])
            self._note(message["path"], Answer(True, message["trouble"]))

        def end(ending: Ending) -> None:
            if ending.silent:
                self._hung.note(device, _key(device))
                self._received[device] = _received(self._read({mount.point for mount in those}))
            for path in waiting:
                self._note(path, _NO_ANSWER if ending.silent else Answer(trouble=ending.error))
            self._publish()

        self._children.start(_key(device), body, take, end, ANSWER_S)

    def _has_received(self, device: str, those: Sequence[Mount]) -> bool:
        """Return whether a reply has come since *device* was left alone: then its server is there again.

        Whoever waits for the server goes on sending, and is answered when it is.
        """
        points = {mount.point for mount in those}
        return _received([one for one in self._stats if one.point in points]) > self._received.get(device, float("inf"))

    def _note(self, path: str, answer: Answer) -> None:
        known = self._answers.get(path)
        if known is None:
            return  # it is no longer to be there
        if answer.trouble != known.trouble:
            self._say(f"{path}: {answer.trouble or 'answers again'}")
        self._answers[path] = answer

    def _publish(self) -> None:
        shown = [self._shown(one) for one in self._records]
        self._sections.put(SECTION, {"mounts": shown, "error": self._error})

    def _shown(self, one: MountRecord) -> dict[str, Any]:
        answer = self._answers.get(one.path, UNKNOWN)
        stats = mountstats.at(one.path, self._stats)
        if stats is not None and stats.device != one.device:
            stats = None
        return {
            "workspace": one.workspace,
            "drive": one.drive,
            "source": one.source,
            "node": one.node,
            "state": one.state,
            "reason": one.reason,
            "message": one.message,
            "since": one.time,
            "path": one.path,
            "device": one.device,
            "read_only": one.read_only,
            "transport": one.transport,
            "proto": (stats.protocol if stats is not None else "") or one.proto,
            "version": stats.option("vers") if stats is not None else "",
            "answers": answer.answers,
            "available": None if answer == UNKNOWN else answer.answers is True and not answer.trouble,
            "trouble": answer.trouble,
            **_counted(stats),
        }


_NO_ANSWER = Answer(False, f"its server does not answer; left alone for {LEFT_ALONE_S / 60:.0f} minutes")


def ask(mount: Mount) -> str:
    """Return what is wrong with a network mount after asking its server, empty when nothing is."""
    try:
        fd = os.open(mount.point, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fstatvfs(fd)  # never answered out of a cache
            there = mount_id(fd) == mount.id
        finally:
            os.close(fd)
    except OSError as error:
        return f"{error.strerror}; mount it anew"
    return "" if there else "another one was mounted there just now"


def _key(device: str) -> str:
    return f"network/{device}"


def _received(found: Sequence[MountStats]) -> int:
    return sum(one.bytes_received for one in found)


def _counted(stats: MountStats | None) -> dict[str, Any]:
    """Return the figures of a mount, None for each that is not known."""
    counted = stats if stats is not None and stats.operations else None
    return {
        "read_bytes": None if stats is None else stats.bytes_read,
        "write_bytes": None if stats is None else stats.bytes_written,
        "operations": None if counted is None else counted.operations_total,
        "rtt_seconds": None if counted is None else counted.rtt_ms / 1000,
        "retransmissions": None if counted is None else counted.retransmissions,
        "timeouts": None if counted is None else counted.major_timeouts,
    }
