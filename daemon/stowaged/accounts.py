# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The accounts of this host: whose its space is, and who has more than his quota since when."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Callable

from stowage_core import events, records
from stowage_core.accounting import exceeded
from stowage_core.accounting.exceeded import Accounts, Change
from stowage_core.accounting.quotas import Quotas
from stowage_core.accounting.totals import Location, totals
from stowage_core.errors import one_line
from stowage_core.places import Places

from .sections import Sections
from .writer import Writer

SECTION = "accounts"


class Accounting:
    """Keeps the accounts up to date with what was measured and what may be had."""

    def __init__(self, places: Places, sections: Sections, writer: Writer, say: Callable[[str], None]) -> None:
        self._places = places
        self._sections = sections
        self._writer = writer
        self._say = say
        self._accounts: Accounts | None = None
        """None until it is known what an earlier daemon has recorded."""
        self._of: tuple[Sequence[Location], Quotas] | None = None
        """What they were made of."""

    def recall(self, recorded: Accounts) -> None:
        """Take on the accounts that an earlier daemon has recorded."""
        self._accounts = recorded

    def look(self, locations: Sequence[Location], quotas: Quotas) -> None:
        """Make the accounts anew where anything has changed, and tell which quotas are exceeded or kept by that."""
        if self._accounts is None:
            return
        before = now = self._accounts
        if self._of != (locations, quotas):
            now = exceeded.accounts(totals(locations), quotas, before, time.time())
            self._accounts, self._of = now, (locations, quotas)
            for change in exceeded.changes(before, now):
                self._say(change.message)
                self._writer.do(partial(_tell, self._places, change))
            if now != before:
                self._writer.do(partial(_record, self._places, now))
        self._sections.put(SECTION, now)


def _tell(places: Places, change: Change) -> str:
    events.tell(places, object=change.object, reason=change.reason, message=change.message)
    return ""


def _record(places: Places, accounts: dict[str, Any]) -> str:
    try:
        records.write(places.accounts_json, accounts)
    except OSError as error:
        return f"{one_line(error)}; the accounts recorded are old"
    return ""
