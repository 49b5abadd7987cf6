#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say whether a host may take new jobs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gate_info
short_description: Say whether a host may take new jobs, and why not
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Returns what the daemon of the host judged last. Jobs are held while a filesystem of a location is fuller than the
    watermark, while a location is not there, and while somebody holds them. Those of one user or team are held while
    that one uses more than the quota.
  - A judgement that is older than a minute and three cycles of the daemon, or of a daemon that does not run, holds all
    jobs. So does a host that has no daemon.
  - Asked for a user or a team whose files another host measures, as on a filesystem that both see, a host does not know
    whether the quota is kept. It holds the job when a quota of that one is declared on it, and warns when none is. Ask
    the host that measures (C(daemon_shared_measured_by) of the role P(stowage.host.daemon#role)).
options:
  user:
    description: The user of the job. Without it no quota of a user counts.
    type: str
    default: ""
  team:
    description: The team of the job. Without it no quota of a team counts. It is not derived from the user.
    type: str
    default: ""
  wait:
    description: For how many seconds at most to wait until the gate is open.
    type: float
    default: 0
  fail_when_held:
    description: Fail when the gate is held, with the reasons in the message.
    type: bool
    default: false
attributes:
  check_mode:
    description: Does the same in check mode, and waits as long.
    support: full
  diff_mode:
    description: There is never anything to show.
    support: N/A
  platform:
    description: Linux. Any user may ask.
    support: full
    platforms: linux
seealso:
  - module: stowage.host.storage_facts
"""

EXAMPLES = r"""
- name: Ask whether the host may take a job of ann
  stowage.host.gate_info:
    user: ann
    team: vision
  register: gate

- name: Show what holds it
  ansible.builtin.debug:
    msg: "{{ gate.holds | map(attribute='text') | list }}"
  when: not gate.open

- name: Start only where there is room, within ten minutes
  stowage.host.gate_info:
    wait: 600
    fail_when_held: true
"""

RETURN = r"""
open:
  description: Whether the host may take the job.
  returned: always
  type: bool
  sample: false
holds:
  description: What holds it.
  returned: always
  type: list
  elements: dict
  contains:
    reason:
      description:
        - V(watermark), V(unavailable), V(quota), V(held) by somebody, V(stale) when nobody has judged for too long, or
          V(unknown) when what is declared could not be read since the daemon was started.
      type: str
      sample: watermark
    text:
      description: The reason in words.
      type: str
      sample: "filesystem /mnt/nvme0 is 93 % full, the watermark is 90 %"
    user:
      description: The user whose jobs are held, empty when it holds others too.
      type: str
      sample: ""
    team:
      description: The team whose jobs are held, empty when it holds others too.
      type: str
      sample: ""
unknown:
  description: What of the user or the team this host does not know, because another one measures it; in words.
  returned: always
  type: list
  elements: str
  sample: []
judged:
  description: When the daemon judged last, null when it has not since the host was started.
  returned: always
  type: float
  sample: 1764419995.5
stale:
  description: Whether that is too long ago, or the daemon does not run.
  returned: always
  type: bool
  sample: false
watermark_pct:
  description: The watermark that it judged by, in percent; null when that is not known.
  returned: always
  type: float
  sample: 90.0
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils.gate import recorded
from ansible_collections.stowage.host.plugins.module_utils.places import Places

ARGUMENT_SPEC = {
    "user": {"type": "str", "default": ""},
    "team": {"type": "str", "default": ""},
    "wait": {"type": "float", "default": 0},
    "fail_when_held": {"type": "bool", "default": False},
}


def main() -> None:
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    user, team = module.params["user"], module.params["team"]
    gate = recorded.wait(Places(), module.params["wait"], user, team)
    result = gate.to_json(user, team)
    if result["open"]:
        for text in result["unknown"]:
            module.warn(text)
    elif module.params["fail_when_held"]:
        module.fail_json(msg="held: " + "; ".join(hold["text"] for hold in result["holds"]), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
