# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report on a fleet: everything that its page and its table show, as one JSON document."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal

from . import totals
from .attention import attention
from .drives import drives
from .hosts import Asked, bounded, of_host
from .told import Measured, Part

VERSION = 1
"""Of the document: a page is only made of what this code can read."""

_TEMPLATE = re.compile(r"{(?=[{%#])")
"""How templates begin, which JSON has in texts only."""


def fleet(asked: Sequence[Asked], now: float) -> Part:
    """Return the report on all hosts that were asked, those that did not answer included."""
    asked = sorted(map(bounded, asked), key=lambda host: host.name)
    hosts = [of_host(host) for host in asked]
    report: Part = {
        "version": VERSION,
        "made": now,
        "hosts": hosts,
        "drives": drives(asked),
        "accounts": totals.accounts(asked),
        "network_mounts": totals.network_mounts(asked),
        "tiers": totals.tiers(asked),
        "volumes": totals.volumes(asked),
        "events": totals.events(asked),
        # null is not the same as nothing: of these hosts it is not known what they have.
        "not_known": {kind: totals.not_known(asked, kind) for kind in ("tiers", "volumes", "events", "accounts")},
    }
    report["summary"] = _summary(report)
    report["attention"] = attention(report)
    return report


def _summary(report: Part) -> Part:
    hosts = report["hosts"]
    gates = [host["gate"]["open"] for host in hosts]
    copies = Measured()
    for drive in report["drives"]:
        for copy in drive["copies"]:
            copies.add(copy, "allocated")
    fullest = [host["fullest"]["used_pct"] if host["fullest"] else None for host in hosts]
    return {
        "hosts": len(hosts),
        "answering": sum(host["answers"] for host in hosts),
        "gates": {"open": gates.count(True), "held": gates.count(False), "unknown": gates.count(None)},
        "space": totals.space(hosts),
        "copies": {"number": copies.bytes.known + copies.bytes.unknown, **copies.part()},
        # How many hosts have a fullest filesystem that is up to 10 % full, up to 20 %, and so on.
        "fullness": [
            sum(one is not None and -(-max(one, 1) // 10) == tenth for one in fullest) for tenth in range(1, 11)
        ],
        "fullness_unknown": fullest.count(None),
    }


def dumps(report: Part) -> str:
    """Return the report as JSON text, in which no name can be taken for a template."""
    return _TEMPLATE.sub(r"\\u007b", json.dumps(report, sort_keys=True)) + "\n"


def read(report: Any) -> Mapping[str, Any]:
    """Return a report from its JSON text, or from what was parsed from it.

    :raises Refusal: when it is no report, or one of another version
    """
    if isinstance(report, str):
        try:
            report = json.loads(report)
        except ValueError as error:
            raise Refusal("the report", f"is not valid JSON ({error})", "give the text of a report's .json") from error
    if not isinstance(report, Mapping) or report.get("version") != VERSION or "hosts" not in report:
        raise Refusal("the report", f"is not one of version {VERSION}", "make it with the filter report_fleet")
    return report
