#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make the directory of a run and of its attempts, and remove a whole run that nobody uses."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_directory
short_description: Make the directory of a run, and remove a whole unused run
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - A run is C(<runs>/<user>/<experiment>/<run_id>) in the runs location of the storage layout, with C(work) and
    C(attempts/<n>/{out,logs}) in it. The directories of the user and of the experiment are root's, so that nobody can
    put another directory in a run's place. The run and everything that is made in it have the given owner.
  - The runs location, and what is around it, must be root's for the same reason. A site whose platform makes runs
    itself, as a user of its own, does not use this module.
  - The team of a run is stamped when it is made, in a record of the host that measures the runs, before anybody can use
    the run. A stamp never changes by itself. The space that the run takes counts for that team, whoever its owner works
    for now.
  - A run that was made by other means is taken in when its owner is the given one. That changes its stamp, and group
    and mode of its directory where they differ.
  - O(state=absent) removes a whole run that Stowage made or took in and that nobody uses. It is moved aside, looked at
    once more and only then emptied. The directories of the user and of the experiment stay.
options:
  user:
    description:
      - Whose run it is, as the accounts have it. It is the name of a directory, and need not be that of a user of the
        host. Neither this nor O(experiment) nor O(run_id) may be longer than 240 bytes, begin with a dot, begin or end
        with whitespace, or be V(lost+found).
    type: str
    required: true
  experiment:
    description:
      - The experiment that the run is of. Like O(run_id) it is the name of a directory.
    type: str
    required: true
  run_id:
    description:
      - The run itself.
    type: str
    required: true
  team:
    description:
      - The team that the run counts for. Another one than was stamped is refused, unless O(accept_new_team=true).
        Required unless O(state=absent).
    type: str
  accept_new_team:
    description:
      - Stamp a run anew that is stamped with another team, because that was wrong from the beginning. An event says so.
    type: bool
    default: false
  owner:
    description:
      - The user of the host, by name or number, that owns the run. An existing run of another owner is refused.
        Required unless O(state=absent).
    type: str
  group:
    description:
      - The group of the run, by name or number; that of the owner when left out.
    type: str
  mode:
    description:
      - The mode of the run's directory and of those that are made in it, as an octal number in quotes that begins with
        V(0).
    type: str
    default: "0750"
  attempt:
    description:
      - V(next) makes an attempt after all that there are, each time. A number makes that attempt when it is missing.
        Left out, no attempt is made.
    type: str
  state:
    description:
      - V(present) makes the run and the attempt. V(absent) removes the whole run.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  check_mode:
    description:
      - Predicts the changes, the diff and the actions of a run, and the number of the next attempt, also of a run that
        an earlier removal, which was killed, has left aside. The layout must have been made before.
  diff_mode:
    description: Shows the directories and the stamp that differ.
notes:
  - On a shared filesystem runs are made on the host that measures it, which is C(daemon_shared_measured_by) of the role
    P(stowage.host.daemon#role). There no run is removed, because no host sees what the others use.
  - A run that is exported over NFS, or has a mount in it, counts as used.
seealso:
  - module: stowage.host.storage_layout
  - module: stowage.host.drive_mount
"""

EXAMPLES = r"""
- name: Make a run with its first attempt
  stowage.host.run_directory:
    user: ann
    experiment: llama-sft
    run_id: "20260304-1"
    team: vision
    owner: trainer
    attempt: next
  register: made

- name: Have a certain attempt
  stowage.host.run_directory:
    user: ann
    experiment: llama-sft
    run_id: "20260304-1"
    team: vision
    owner: trainer
    attempt: "{{ made.attempt }}"

- name: Remove the whole run
  stowage.host.run_directory:
    user: ann
    experiment: llama-sft
    run_id: "20260304-1"
    state: absent
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["make directory /srv/stowage/runs/ann/llama-sft/20260304-1"]
run:
  description: The run's name.
  returned: success
  type: str
  sample: ann/llama-sft/20260304-1
path:
  description: The run's directory.
  returned: success
  type: str
  sample: /srv/stowage/runs/ann/llama-sft/20260304-1
team:
  description: The team that it is stamped with.
  returned: success, when O(state=present)
  type: str
  sample: vision
work:
  description: The directory that the run works in.
  returned: success, when O(state=present)
  type: str
  sample: /srv/stowage/runs/ann/llama-sft/20260304-1/work
attempt:
  description: The number of the attempt, or nothing when none was asked for.
  returned: success, when O(state=present)
  type: int
  sample: 1
out:
  description: Where the attempt's checkpoints, exports and reports go, or nothing.
  returned: success, when O(state=present)
  type: str
  sample: /srv/stowage/runs/ann/llama-sft/20260304-1/attempts/1/out
logs:
  description: Where the attempt's logs go, or nothing.
  returned: success, when O(state=present)
  type: str
  sample: /srv/stowage/runs/ann/llama-sft/20260304-1/attempts/1/logs
"""

import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils import accounts, own_files
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal
from ansible_collections.stowage.host.plugins.module_utils.layout.directories import Ownership
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.runs import location, removal, run_directories
from ansible_collections.stowage.host.plugins.module_utils.runs.run_directories import Request
from ansible_collections.stowage.host.plugins.module_utils.runs.shape import RunName, check_attempt, check_name

ARGUMENT_SPEC = {
    "user": {"type": "str", "required": True},
    "experiment": {"type": "str", "required": True},
    "run_id": {"type": "str", "required": True},
    "team": {"type": "str"},
    "accept_new_team": {"type": "bool", "default": False},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "mode": {"type": "str", "default": "0750"},
    "attempt": {"type": "str"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}
REQUIRED_IF = [("state", "present", ("team", "owner"))]


def body(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise Refusal("run_directory", "must be run as root, who owns the directories above runs", "set become: true")
    params, places = module.params, Places()
    name = RunName.checked(params["user"], params["experiment"], params["run_id"])
    if params["state"] == "absent":
        if params["attempt"] is not None:
            raise Refusal("attempt", "only a whole run is removed", "leave attempt out")
        for warning in removal.remove(places, name, differences):
            module.warn(warning)
        return {"run": str(name), "path": location.run_path(places, name)}
    team, attempt = check_name(params["team"], "team"), check_attempt(params["attempt"])
    request = Request(name, team, ownership_of(module), attempt, params["accept_new_team"])
    made = run_directories.make(places, request, differences)
    for warning in made.warnings:
        module.warn(warning)
    return made.to_json()


def ownership_of(module: AnsibleModule) -> Ownership:
    """Return who is to own the run; in check mode an earlier task may have been going to make them."""
    params = module.params
    owner, group = params["owner"], params["group"]
    uid = accounts.find_owner(owner)
    _expect(module, "owner", uid, f"there is no user {owner!r} on this host")
    if group is None:
        user = accounts.find_user(owner)
        gid = None if user is None else user.groups[0]
        _expect(module, "group", gid, f"the group of {owner!r} is not known on this host")
    else:
        gid = accounts.find_group(group)
        _expect(module, "group", gid, f"there is no group {group!r} on this host")
    return Ownership(
        owner if uid is None else accounts.owner_name(uid),
        group or owner if gid is None else accounts.group_name(gid),
        own_files.parse_mode(params["mode"], "mode"),
        uid,
        gid,
    )


def _expect(module: AnsibleModule, option: str, found: int | None, rule: str) -> None:
    if found is None and not module.check_mode:
        raise Refusal(option, rule, "make it first, or give another")
    if found is None:
        module.warn(f"{option}: {rule}; taken to be made before a run")


def main() -> None:
    run(AnsibleModule(argument_spec=ARGUMENT_SPEC, required_if=REQUIRED_IF, supports_check_mode=True), body)


if __name__ == "__main__":
    main()
