# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judging every cycle whether this host may take new jobs, and telling it: as a section, as a file, as events."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable

from stowage_core import events, records
from stowage_core.errors import one_line
from stowage_core.gate.judgement import Elsewhere, Hold, elsewhere, judge, judge_unknown
from stowage_core.places import Places

from .sections import Sections
from .settings import Settings
from .writer import Writer

SECTION = "gate"


class Gate:
    """The judgement of each cycle. What was told already is not told again while only its figures change."""

    def __init__(self, places: Places, sections: Sections, writer: Writer, say: Callable[[str], None]) -> None:
        self._places = places
        self._sections = sections
        self._writer = writer
        self._say = say
        self._trouble = ""
        self._watermark_pct, self._holds = self._judged_before()
        self._told = {hold.identity for hold in self._holds if hold.holds_all}

    def _judged_before(self) -> tuple[float, list[Hold]]:
        """Return by which watermark an earlier daemon judged last since the host was started, and what held jobs."""
        try:
            before = self._sections.last(SECTION) or {"watermark_pct": 0, "holds": ()}
            return float(before["watermark_pct"]), [records.typed(Hold, one) for one in before["holds"]]
        except (LookupError, TypeError, ValueError):
            return 0, []  # of another version: what holds is told once more

    def judge(self, declared: Sequence[Hold], settings: Settings) -> None:
        """Judge by what the sections were told just now, written or not.

        :param declared: what is held because somebody said so
        """
        watermark_pct = settings.disk_watermark_pct
        locations = self._shown("locations").get("locations", ())
        holds = judge(
            self._shown("filesystems").get("filesystems", ()),
            locations,
            self._shown("accounts"),
            declared,
            watermark_pct,
            self._holds if watermark_pct == self._watermark_pct else (),
        )
        self._watermark_pct, self._holds = watermark_pct, holds
        self._publish(holds, elsewhere(locations, settings.allowed, self._shown("accounts")), settings)

    def judge_unknown(self, why: str, declared: Sequence[Hold], settings: Settings) -> None:
        """Judge while it is not known what is declared: the sections then tell nothing of this host."""
        holds = judge_unknown(why, declared, settings.disk_watermark_pct, settings.allowed)
        self._publish(holds, Elsewhere(), settings)

    def _publish(self, holds: Sequence[Hold], measured_elsewhere: Elsewhere, settings: Settings) -> None:
        self._sections.put(
            SECTION,
            {
                "time": time.time(),
                "cycle_s": settings.cycle_s,
                "watermark_pct": settings.disk_watermark_pct,
                "holds": [hold.to_json() for hold in holds],
                "elsewhere": measured_elsewhere.to_json(),
            },
        )
        holding = [hold for hold in holds if hold.holds_all]
        self._keep_file(text_of(holding))
        self._tell(holding)

    def _shown(self, section: str) -> Mapping[str, Any]:
        return self._sections.current(section) or {}

    def _keep_file(self, text: str) -> None:
        """Have the file say *text*, and show by its time that it was judged now."""
        try:
            records.write_bytes(self._places.gate, f"{text}\n".encode(), 0o644)
            os.utime(self._places.gate)
            trouble = ""
        except OSError as error:
            trouble = f"{one_line(error, self._places.gate)}; what it says is old"
        if trouble and trouble != self._trouble:
            self._say(trouble)
        self._trouble = trouble

    def _tell(self, holding: Sequence[Hold]) -> None:
        """Tell what has begun to hold all jobs, and when nothing does any more."""
        now = {hold.identity for hold in holding}
        for hold in holding:
            if hold.identity not in self._told:
                self._record("GateHeld", f"Jobs are held: {hold.text}", hold.reason)
        if self._told and not now:
            self._record("GateOpened", "Jobs may start", "")
        self._told = now

    def _record(self, reason: str, message: str, why: str) -> None:
        self._say(message)
        self._writer.do(partial(_record, self._places, reason, message, why, time.time()))


def _record(places: Places, reason: str, message: str, why: str, when: float) -> str:
    events.tell(places, object=SECTION, reason=reason, message=message, hold=why, time=when)
    return ""


def text_of(holding: Sequence[Hold]) -> str:
    """Return the gate in one line: ``open``, or ``held`` with the reasons."""
    return f"held: {'; '.join(hold.text for hold in holding)}" if holding else "open"
