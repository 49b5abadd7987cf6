# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Releasing the network mounts of this host that no run uses."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from .. import mounts as mount_table
from ..errors import StowageError, one_line
from ..runs import pins
from . import mount_units, records
from .asked import Key
from .client import Client
from .records import RELEASED, RELEASING, WITHDRAWN, MountRecord


def release(client: Client, keys: Iterable[Key] | None = None, run: str = "") -> list[MountRecord]:
    """Unmount the network mounts that no run uses; return what became of each that is not over and done with.

    Those that were unmounted by earlier calls are among them until their exports are known to be withdrawn.

    :param keys: which; None for all
    :param run: the run that is released: it keeps none of them any more, for what it was about to do
    :raises RecordError: when a lease cannot be read: then nobody knows what it holds
    """
    client.adopt()
    wanted = set(client.known) if keys is None else set(keys)
    used = _used(client, run)
    now = records.now()
    going, changed = [], []
    for key, record in sorted(client.known.items()):
        if key not in wanted or record.state == RELEASED:
            continue
        reserved = {other: until for other, until in record.reservations(now).items() if other != run}
        record = replace(record, reserved=reserved)
        if key in used or reserved:
            changed.append(record)
        else:
            going.append(record)
    client.write([*changed, *_unmount(client, going)])
    client.keep_at_boot()
    left = [one for _key, one in sorted(client.known.items()) if keys is None or one.key in wanted]
    return [one for one in left if one.reason != WITHDRAWN]


def note_withdrawn(client: Client, withdrawn: Iterable[tuple[Key, str]]) -> list[MountRecord]:
    """Record that the other machines have withdrawn the exports of what is unmounted here.

    :param withdrawn: which, each with the serial of its export; of one that was exported anew since, it is no word
    """
    found = []
    for key, serial in withdrawn:
        record = client.known.get(key)
        if record is not None and record.state == RELEASED and serial in ("", record.serial):
            found.append(record)
    changed = [one for one in found if one.reason != WITHDRAWN]
    for one in changed:
        client.differences.note(f"export of drive {one.workspace}/{one.drive} from {one.node}", WITHDRAWN, "")
    client.write(replace(one, reason=WITHDRAWN, time=records.now()) for one in changed)
    return [client.known[one.key] for one in found]


def _used(client: Client, run: str) -> set[Key]:
    """Return what workers have; in check mode not what those of *run* have, because they would be released first."""
    found = pins.all_pins(client.places)
    if client.differences.check_mode:
        found = [pin for pin in found if pin.run != run]
    return {(pin.workspace, pin.drive, pin.source) for pin in found}


def _unmount(client: Client, going: Iterable[MountRecord]) -> list[MountRecord]:
    """Unmount all of them at once and remove their units, and return what became of each."""
    going, differences, now = list(going), client.differences, records.now()
    table = mount_table.read()
    there = {one.path: mount_units.at(one.path, table) for one in going}
    mounted = [one for one in going if there[one.path]]
    left: dict[str, str] = {}
    if not differences.check_mode:
        client.write(replace(one, state=RELEASING, reason="", time=now) for one in mounted if one.state != RELEASING)
        left = client.unmount([one.path for one in mounted])
    found, removed = [], False
    for one in going:
        why = left.get(one.path, "")
        if not why:
            if there[one.path]:
                differences.note(f"mount {one.path}", None, there[one.path][-1].source)
                differences.act(f"unmount {one.path}")
            try:
                removed = client.remove_unit(mount_units.unit_path(one.path), reload=False) or removed
            except (StowageError, OSError) as error:
                why = one_line(error)
        if why:
            found.append(replace(one, state=RELEASING, reason=why, time=now))
            continue
        if not differences.check_mode:
            with suppress(OSError):  # something lies in it that was there before
                os.rmdir(one.path)
        found.append(replace(one, state=RELEASED, reason="", message="", time=now))
    if removed:
        differences.do("systemctl daemon-reload", client.systemctl.daemon_reload)
    return found
