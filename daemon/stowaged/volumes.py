# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the volumes of this host are there. They are asked after like all else, and never measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from stowage_core import events
from stowage_core.places import Places

from .children import Message
from .declared import VOLUME, Target
from .sections import Sections
from .writer import Writer

MISSING, THERE = "VolumeMissing", "VolumeThere"
"""The reasons of events."""


class Volumes:
    """Shows what was answered, and records an event when a volume goes, and when it is there again."""

    def __init__(self, places: Places, sections: Sections, writer: Writer) -> None:
        self._places = places
        self._sections = sections
        self._writer = writer
        last = (sections.last("volumes") or {}).get("volumes", [])
        self._missing = {str(one["volume"]) for one in last if not one["available"]}

    def look(self, targets: Iterable[Target], answers: Mapping[str, Message]) -> None:
        shown = []
        for target in targets:
            answer = answers.get(target.object)
            if answer is not None:
                name = target.object[len(VOLUME) :]
                self._tell(name, answer)
                shown.append(
                    {
                        "volume": name,
                        "path": target.path,
                        "available": answer["available"],
                        "answers": not answer.get("hung", False),
                        "reason": answer["reason"],
                    }
                )
        self._missing = {str(one["volume"]) for one in shown if not one["available"]}
        self._sections.put("volumes", {"volumes": shown})

    def _tell(self, name: str, answer: Message) -> None:
        if answer["available"] == (name not in self._missing):
            return
        reason = THERE if answer["available"] else MISSING
        message = answer["reason"] or "it is there again"
        self._writer.do(partial(_record, self._places, f"{VOLUME}{name}", reason, message))


def _record(places: Places, name: str, reason: str, message: str) -> str:
    done = events.record(places, object=name, reason=reason, message=message)
    return "" if done else f"{places.events}: the event of {name} could not be recorded: {message}"
