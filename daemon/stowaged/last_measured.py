# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The records of the last complete measurements, below /var/lib/stowage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stowage_core import records
from stowage_core.accounting.exceeded import check
from stowage_core.accounting.totals import Shares
from stowage_core.mounts import FilesystemId
from stowage_core.places import Places

from .children import Send
from .declared import Target

KEPT = ("bytes", "allocated", "files", "inodes", "measured")
"""What stays of the last complete measurement when a later one is not complete."""
KEPT_OF_COPY = (*KEPT, "linked")
PARTIAL = ("shares", "runs", "credentials")
"""What is taken from one that is not complete: it tells itself what it lacks, or lacks nothing by that."""


def record_path(places: Places, target: str) -> str:
    """Return where the last complete measurement of a target is kept, by its object's name."""
    kind, _slash, name = target.partition("/")
    directory = places.sources_dir if kind == "drive" else places.locations_dir
    name = target if kind in ("tier", "volume") else name or kind  # a location may not be taken for it
    return os.path.join(directory, name.replace("/", ".") + ".json")


def last_measured(places: Places, target: Target, send: Send) -> dict[str, Any]:
    """Return the record of a target's last measurement; one that cannot be used is said, and is none.

    What was measured while the target was another directory says nothing about it.
    """
    path = record_path(places, target.object)
    try:
        record = records.read(path) or {}
        filesystem, figures = record.get("filesystem"), [record.get(key) for key in KEPT]
        if filesystem is not None:
            FilesystemId.from_json(filesystem)
        if not all(isinstance(one, (int, float, type(None))) for one in figures):
            raise TypeError(f"{figures!r}")
        last_shares(record)
    except records.RecordError as error:
        send({"say": str(error)})
    except (AttributeError, KeyError, TypeError) as error:
        send({"say": f"{path}: not the record of a measurement ({error!r}); it is made anew"})
    else:
        return record if record.get("path", target.path) == target.path else {}
    return {}


def last_shares(record: Mapping[str, Any]) -> Shares | None:
    """Return whose a location was at the measurement that *record* is of; None when that was not looked at."""
    value = record.get("shares")
    return None if value is None else Shares.from_json(value)


def last_accounts(places: Places, send: Send) -> dict[str, Any]:
    """Return the accounts that are recorded; a record that cannot be used is said, and is none."""
    try:
        record = records.read(places.accounts_json) or {}
        check(record)
    except records.RecordError as error:
        send({"say": f"{error}; it is made anew, as if no quota was exceeded before"})
    except (AttributeError, KeyError, TypeError) as error:
        what = "it is made anew, as if no quota was exceeded before"
        send({"say": f"{places.accounts_json}: not the record of accounts ({error!r}); {what}"})
    else:
        return record
    return {}


def unsaid(_message: Mapping[str, Any]) -> None:
    """For whoever leaves it to measuring to say what is wrong with a record."""


def last_filesystem(places: Places, target: Target, send: Send = unsaid) -> FilesystemId | None:
    """Return the filesystem that a target was last measured on; None when it never was, or nobody knows."""
    value = last_measured(places, target, send).get("filesystem")
    return None if value is None else FilesystemId.from_json(value)
