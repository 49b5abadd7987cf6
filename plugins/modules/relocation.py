#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Move a location of the storage layout to another directory, stage by stage."""

from __future__ import annotations

DOCUMENTATION = r"""
module: relocation
short_description: Move a location of the storage layout, stage by stage
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Moves what is in one location of the layout to another directory, as a rule on another disk, so that a stop at any
    point leaves one complete copy in use. The playbook C(stowage.host.relocate) calls it for each stage on all hosts.
  - Every stage can be called again, and goes on from what is really mounted, not from the record alone.
  - While the content is copied, the location is mounted read-only over itself. After the switch the new directory is
    mounted at the old path, now and at every boot, so that stored absolute paths go on working.
options:
  location:
    description:
      - The name of the location, such as V(runs). What lies below it moves along, as the caches with V(cache).
    type: str
    required: true
  state:
    description:
      - V(planned) changes nothing and says what is in the way, what moves along, how far the move is, and what names
        the old path.
      - V(closed) holds jobs, waits for the users of the location, mounts it read-only over itself, and backs up
        Stowage's own metadata.
      - V(copied) copies the content, and compares the copy with it by content.
      - V(switched) mounts the new directory at the old path. The settings are the matter of
        M(stowage.host.storage_layout).
      - V(undone) has the old directory at its path again, with what was set aside already moved back. It is refused
        when the old content is not there. Jobs stay held until V(given_up). What only a mount unit of the move has
        mounted, when it was not to, is taken away.
      - V(given_up) goes on as before the move, with what is copied so far kept. It leaves a sign in the new directory,
        by which M(stowage.host.storage_layout) refuses to begin with half a copy.
      - V(finished) sets the old content aside, where only root reaches it, and lets jobs begin.
      - V(retired) deletes the old content, and says how much that is and how much the new directory holds. It is
        refused when that has no files and the old one has.
      - V(forgotten) unmounts the new directory from the old path, and removes the archives of the location's moves.
    type: str
    choices: [planned, closed, copied, switched, undone, given_up, finished, retired, forgotten]
    default: planned
  to:
    description:
      - The new directory. It must exist and be empty. It becomes what the old one is, with its owner and mode.
      - Required for V(planned) and V(closed), unless the move is under way.
    type: str
    default: ""
  copy:
    description:
      - Whether the content goes along. Only caches can be left behind.
    type: bool
    default: true
  makes_copy:
    description:
      - Whether this host makes the copy and deletes the old content, where several share the location. Of a location on
        a filesystem of its own each host does.
    type: bool
    default: true
  whole_group:
    description:
      - Whether all hosts that share the location are moved at once. A location on a shared filesystem is refused
        without it.
    type: bool
    default: false
  users:
    description:
      - The users, by name or number, that must get to the new directory.
    type: list
    elements: str
    default: []
  wait:
    description:
      - For how many seconds to wait for the users of the location to end.
    type: int
    default: 600
  confirm:
    description:
      - The old path again, which V(retired) needs.
    type: str
    default: ""
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  check_mode:
    description: Says what would be refused, and changes nothing.
  platform:
    description: Linux with systemd. Must be run as root.
notes:
  - Jobs are held by the gate, under the name C(relocate/) and the location.
  - A failure in V(closed) or V(copied) gives the move up, so that the location is in use as before, and says so. What
    is copied stays, and is gone on with.
seealso:
  - module: stowage.host.storage_layout
"""

EXAMPLES = r"""
- name: Say what moving the runs would meet
  stowage.host.relocation:
    location: runs
    to: /mnt/nvme1/runs

- name: Delete what was left at the old path
  stowage.host.relocation:
    location: runs
    state: retired
    confirm: /srv/stowage/runs
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["switched: runs from /srv/stowage/runs to /mnt/nvme1/runs"]
stage:
  description: The last stage that is reached; empty before the first.
  returned: success
  type: str
  sample: switched
progress:
  description: What is being done now, in a line.
  returned: success
  type: str
  sample: about 40.0 GB of 107 GB are copied
path:
  description: The old path.
  returned: success
  type: str
  sample: /srv/stowage/runs
to:
  description: The new one.
  returned: success
  type: str
  sample: /mnt/nvme1/runs
bytes:
  description: How much there is to copy.
  returned: success
  type: int
  sample: 107374182400
moves:
  description: The old and the new path of each location that moves, by name.
  returned: success
  type: dict
  sample: {runs: [/srv/stowage/runs, /mnt/nvme1/runs]}
overrides:
  description: The overrides of the layout that the move makes necessary.
  returned: success
  type: dict
  sample: {runs: {path: /mnt/nvme1/runs, mount_point: /mnt/nvme1}}
overrides_before:
  description: The overrides of these locations before; an empty one is the default.
  returned: success
  type: dict
  sample: {runs: ""}
lines:
  description: The lines for the inventory.
  returned: success
  type: list
  elements: str
  sample: ["host_storage_overrides:", "  runs: {path: /mnt/nvme1/runs, mount_point: /mnt/nvme1}"]
references:
  description:
    - Where files, and symbolic links in the locations, name the old path, as file, line and that path. Looked for by
      V(planned), unless the content is being copied, and by V(finished).
  returned: success
  type: list
  elements: str
  sample: ["/etc/exports:3: /srv/stowage/runs"]
unseen:
  description: What was not looked at for RV(references).
  returned: success
  type: list
  elements: str
  sample: ["/srv/stowage/state: 2 files that are larger than 1.0 MB, or came after the first 268 MB"]
shared:
  description: Whether the old directory, and the new one, is on a filesystem that several hosts see.
  returned: success
  type: list
  elements: bool
  sample: [false, false]
shared_as:
  description: Under which name hosts share the old directory; empty when it is of this host only.
  returned: success
  type: str
  sample: nas:/export/stowage/runs
makes_copy:
  description: Whether this host makes the copy and deletes the old content.
  returned: success
  type: bool
  sample: true
backup:
  description: The archive of Stowage's own metadata, once it is made.
  returned: success
  type: str
  sample: /var/lib/stowage/relocations/runs-0f3c9d1e5b7a2468.tar.gz
"""

import os
from contextlib import nullcontext
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils import mounts
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal
from ansible_collections.stowage.host.plugins.module_utils.layout.rules import NAMES
from ansible_collections.stowage.host.plugins.module_utils.locks import relocation_lock
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.relocation import recorded
from ansible_collections.stowage.host.plugins.module_utils.relocation.moving import Moving
from ansible_collections.stowage.host.plugins.module_utils.relocation.plan import Planning, Request
from ansible_collections.stowage.host.plugins.module_utils.relocation.progress import progress_of
from ansible_collections.stowage.host.plugins.module_utils.relocation.recorded import Relocation
from ansible_collections.stowage.host.plugins.module_utils.relocation.references import Looked
from ansible_collections.stowage.host.plugins.module_utils.relocation.stages import (
    CLOSED,
    COPIED,
    HELD,
    UNDER_WAY,
    VERIFIED,
)
from ansible_collections.stowage.host.plugins.module_utils.relocation.work import Tools
from ansible_collections.stowage.host.plugins.module_utils.services.systemd_units import Systemctl

ARGUMENT_SPEC = {
    "location": {"type": "str", "required": True},
    "state": {
        "type": "str",
        "choices": [
            "planned",
            "closed",
            "copied",
            "switched",
            "undone",
            "given_up",
            "finished",
            "retired",
            "forgotten",
        ],
        "default": "planned",
    },
    "to": {"type": "str", "default": ""},
    "copy": {"type": "bool", "default": True},
    "makes_copy": {"type": "bool", "default": True},
    "whole_group": {"type": "bool", "default": False},
    "users": {"type": "list", "elements": "str", "default": []},
    "wait": {"type": "int", "default": 600},
    "confirm": {"type": "str", "default": ""},
}

_PATIENCE_S = 60.0
_LONGEST_COPY_S = 7 * 86400.0


def body(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise Refusal("relocation", "must be run as root", "set become: true")
    params = module.params
    location, state = params["location"], params["state"]
    places = Places()
    systemctl = Systemctl(module.get_bin_path("systemctl", required=True), module.run_command)
    tools = Tools(module.run_command, systemctl, module.get_bin_path("rsync"))
    moving = Moving(places, location, tools, differences)
    one: Relocation | None
    if state == "planned":
        one = plan(places, params)
        if one.stage:
            moving.check(one)
        return told(places, moving, one, state)
    if location not in NAMES:
        raise Refusal("relocate_location", f"there is no location {location!r}", f"use one of {', '.join(NAMES)}")
    # A copy that an earlier call began may go on still.
    timeout_s = _LONGEST_COPY_S if state in ("closed", "copied") else _PATIENCE_S
    with nullcontext() if module.check_mode else relocation_lock(places, location, timeout_s):
        if state == "closed":
            one = moving.close(plan(places, params), params["wait"])
        elif state == "retired":
            one = moving.retire(params["confirm"])
        else:
            stages = {
                "copied": moving.copy,
                "switched": moving.switch,
                "undone": moving.undo,
                "given_up": moving.give_up,
                "finished": moving.finish,
                "forgotten": moving.forget,
            }
            one = stages[state]()
    return {"stage": ""} if one is None else told(places, moving, one, state)


def plan(places: Places, params: dict[str, Any]) -> Relocation:
    """Return the move that is asked for, or without a new directory the one that is recorded."""
    if not params["to"]:
        one = recorded.load(places, params["location"]) if params["location"] in NAMES else None
        if one is not None and (params["state"] == "planned" or one.stage in UNDER_WAY):
            return one
        raise Refusal("relocate_to", "name the new directory")
    request = Request(
        params["location"], params["to"], params["copy"], params["makes_copy"], params["whole_group"], params["users"]
    )
    return Planning(places, request).plan()


def told(places: Places, moving: Moving, one: Relocation, state: str) -> dict[str, Any]:
    # Not each time that somebody asks how far a copy is: all locations are walked.
    is_copied = one.stage in (HELD, CLOSED, COPIED, VERIFIED)
    looked = moving.references(one) if state in ("planned", "finished") and not is_copied else Looked()
    shared = [mounts.is_shared(one_of.filesystem.fstype) for one_of in (one.old, one.new)]
    return {
        "stage": moving.standing(one) if one.stage else "",
        "progress": progress_of(places, one) if one.stage else "",
        "path": one.path,
        "to": one.to,
        "bytes": one.bytes,
        "moves": {name: list(paths) for name, paths in one.moves.items()},
        "overrides": dict(one.after),
        "overrides_before": dict(one.before),
        "lines": recorded.lines_of(one.after),
        "references": list(looked.named),
        "unseen": list(looked.unseen),
        "shared": shared,
        "shared_as": one.at_old_path.name_for_all(one.old.filesystem.source, mounts.read()) if shared[0] else "",
        "makes_copy": one.here,
        "backup": one.backup,
    }


def main() -> None:
    run(AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True), body)


if __name__ == "__main__":
    main()
