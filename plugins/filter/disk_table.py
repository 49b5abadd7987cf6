# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show a host's disks as a table, for whoever chooses its data location."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.module_utils.sizes import decimal

Facts = Mapping[str, Any]

_NARROWEST = 40
_WIDEST_MOUNT = 24


def disk_table(facts: Any, width: int = 68) -> list[str]:
    """Return the lines of the table, the recommended disk, and the data location as it is now."""
    if not isinstance(facts, Mapping) or not {"filesystems", "disks", "recommended"} <= set(facts):
        raise AnsibleFilterError(
            "disk_table: the input must be ansible_facts.stowage_storage; run stowage.host.storage_facts first"
        )
    if not isinstance(width, int) or width < _NARROWEST:
        raise AnsibleFilterError(f"disk_table: width must be a whole number, at least {_NARROWEST}")
    rows = [("Disk", "Free", "Size", "Mounted at", "")]
    rows += [_cells(one, facts) for one in facts["filesystems"]]
    rows += [(one["kind"], "", decimal(one["size_bytes"]), "-", f"{one['name']}, not mounted") for one in _idle(facts)]
    wide = min(max(len(mount) for _kind, _free, _size, mount, _note in rows), _WIDEST_MOUNT)
    lines = [
        f"{kind:<12} {free:>8} {size:>8}  {mount:<{wide}}  {note}".rstrip() for kind, free, size, mount, note in rows
    ]
    return [piece for line in [*lines, "", *_recommended(facts), _chosen(facts)] for piece in _folded(line, width)]


def _cells(filesystem: Facts, facts: Facts) -> tuple[str, str, str, str, str]:
    notes = []
    if filesystem["mount"] == facts["recommended"]["mount"]:
        notes.append("recommended")
    if filesystem["system_disk"]:
        notes.append("system disk")
    if filesystem["error"]:
        notes.append(filesystem["error"])
    elif filesystem["unfit"] and not filesystem["shared"]:
        notes.append(filesystem["unfit"])
    room = [decimal(size) if size is not None else "?" for size in (filesystem["free_bytes"], filesystem["size_bytes"])]
    return (filesystem["kind"], room[0], room[1], filesystem["mount"], ", ".join(notes))


def _idle(facts: Facts) -> list[Facts]:
    """Return the disks that nothing is mounted from and that are no part of an array. Images come and go: not those."""
    members = {name for disk in facts["disks"] for name in disk["members"]}
    return [
        disk
        for disk in facts["disks"]
        if not disk["mounts"] and disk["name"] not in members and disk["kind"] != "disk image"
    ]


def _recommended(facts: Facts) -> list[str]:
    recommended = facts["recommended"]
    return [f"Recommended: {recommended['folder'] or 'none'} ({recommended['reason']})"]


def _chosen(facts: Facts) -> str:
    location = facts.get("data_location")
    if location is None:
        return "Data location: not chosen"
    limit = f"at most {decimal(location['max_bytes'])} of copies" if location["max_bytes"] else "no limit but the disk"
    state = "" if location["available"] else ", NOT AVAILABLE"
    return f"Data location: {location['path']} ({limit}{state})"


def _folded(line: str, width: int) -> list[str]:
    """Return *line* on as many lines as it needs; words, so also paths, are never cut."""
    if len(line) <= width:
        return [line]
    head, gap, note = line.rpartition("  ")
    if gap and len(head.rstrip()) <= width:
        return [head.rstrip(), *textwrap.wrap(note, width, initial_indent=" " * 8, subsequent_indent=" " * 8)]
    return textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


class FilterModule:
    """The filter, as Ansible looks for it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"disk_table": disk_table}
