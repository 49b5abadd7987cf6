# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deleting drives: whether workers on this host use them, and that none begins to meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from .. import records
from ..copies import present as copies
from ..data_location import locations as data_locations
from ..data_location.locations import DataLocation, NotThere
from ..errors import printable
from ..places import Places
from ..runs import pins
from .declared import in_use_refusal
from .recorded import Drive, Holdings


@contextmanager
def no_new_use(location: DataLocation | None, deleted: Iterable[Drive], holdings: Holdings) -> Iterator[None]:
    """Hold the locks of the copies that are deleted: who leases a drive holds that of its copy, and looks again."""
    held = [one.copy_name for one in deleted if holdings.of(one.copy_name)]
    with ExitStack() as stack:
        if location is not None and held:
            try:
                fd = data_locations.open_verified(location)
            except NotThere:
                fd = -1  # nothing can be leased there either
            if fd >= 0:
                stack.callback(os.close, fd)
                for name in held:
                    stack.enter_context(copies.locked(fd, name))
        yield


def used_by(
    places: Places, absent: Sequence[Drive], deleted: Sequence[Drive]
) -> tuple[dict[tuple[str, str], list[str]], list[str]]:
    """Return who uses the drives that are deleted, and why that is uncertain.

    :raises RecordError: when a lease cannot be read and a drive is newly deleted that is not forced to: it may be its
    """
    names = {(one.workspace, one.name) for one in absent}
    if not names:
        return {}, []
    try:
        found = pins.all_pins(places)
    except records.RecordError as error:
        if any(not one.force for one in deleted):
            raise
        return {}, [str(error)]
    return {name: users for name, users in pins.used_by(found).items() if name in names}, []


def check_unused(deleted: Iterable[Drive], users: Mapping[tuple[str, str], Sequence[str]]) -> None:
    """Refuse to delete a drive that workers on this host use."""
    for drive in deleted:
        those = users.get((drive.workspace, drive.name), ())
        if those and not drive.force:
            remedy = f"end their runs on this host ({_some(those)}), or set force: true beside state: absent"
            raise in_use_refusal(drive.name, len(those), remedy)


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names[:5])) + (", …" if len(names) > 5 else "")
