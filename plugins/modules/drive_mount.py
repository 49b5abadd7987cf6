#!/usr/bin/python
# Copyright: Stowage contributors
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prepare, bind and release the drives and volumes of a worker of a run on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: drive_mount
short_description: Prepare, bind or release the drives and volumes of a worker of a run on a host
version_added: "0.1.0"
author: Stowage contributors (@stowage)
description:
  - Gives one worker of a run its drives on the host that it runs on, and returns the mounts as whoever starts it
    writes them. A worker has all of its drives, or none.
  - Every drive is looked at before any is mounted. When one cannot be had after all, what was mounted before it is
    taken back.
  - A copy of a placed drive is made when it is first used, scratch when it is missing. Each drive is a bind mount below
    C(/run/stowage/pins/), without set-id programs and devices; nothing else is to be given to the worker. As long as it
    is there, a copy is not evicted.
  - With O(volumes_of) the worker also has what of this host's volumes is granted to that run, read-only, at
    C($VOLUMES_DIR). That follows from the run's user and the team that it was stamped with, never from what is asked
    for. Volumes are leased, bound and released like drives. With a volume, the mounts of the run are reached on the
    host by root and by the owner of its directory alone; otherwise by everybody who knows the run's name.
  - A sub_path is opened without following symbolic links. In the path of a source, those are followed that root alone
    could have put there; scratch is under none at all.
  - The mounts are reserved at first. They lapse unless they are bound to the processes of the worker
    (O(state=confirmed)), and end with these. The daemon sees to both; where it is not at work, a warning says so.
  - An option that is not of the state is refused.
options:
  state:
    description:
      - V(prepared) mounts the drives that are asked for. Drives that the worker had and that are not asked for any more
        are released, or refused while something uses them.
      - V(confirmed) binds the drives of the worker to its processes, by O(cgroup) or O(pid).
      - V(released) unmounts the drives of the worker, or of all workers of the run. Nothing is deleted.
    type: str
    choices: [prepared, confirmed, released]
    default: prepared
  run:
    description:
      - The run. Its name has no slash, and tells it from the runs of other workspaces.
    type: str
    required: true
  worker:
    description:
      - The worker of the run. Required with O(state=prepared); without it all workers of the run on this host are
        confirmed or released.
    type: str
    default: ""
  workspace:
    description:
      - The workspace of the run. Required with O(state=prepared), unless O(datavolume_refs) is an empty list.
    type: str
  host_name:
    description:
      - The host's name in the inventory, as sources name it. Required with O(state=prepared). Another one than is
        recorded on the host is refused.
    type: str
  datavolume_refs:
    description:
      - The drives, as a run has them in Astraeus's API, a list of dictionaries of C(name), C(mount_path), C(sub_path),
        C(mode) (V(ReadOnly), V(ReadWrite)) and C(source_index). What is left out, the drive's source says.
      - Or a text, C(name) or C(name:/mount/path), comma-separated. Without a path, a drive is at C(/data/<name>).
      - Required with O(state=prepared). An empty list is a worker without drives, and releases those that it has. A
        blank text is refused.
    type: raw
  volumes_of:
    description:
      - The run, as C(user/experiment/run_id), whose volumes the worker is to have. Its directory must be there. Only
        with O(state=prepared).
      - This decides what the worker may read, and nothing on the host says whose the worker is. Take it from the step
        that has made the run for whoever starts the worker, and never from a field that users fill in.
      - Without it the worker has no volumes afterwards. Those that it had are released, or refused while something
        uses them. A blank one is refused.
    type: str
  volumes:
    description:
      - The volumes, by name, of which the worker is to have what is granted to the run. One that does not exist, is not
        granted or is not there is refused.
      - When left out, they are all that are granted. What is not there now is left out, see RV(volumes_left_out).
      - Only with O(volumes_of).
    type: list
    elements: str
  volumes_team:
    description:
      - The team that the run is stamped with, as M(stowage.host.run_directory) returned it on the host that measures
        the runs. It is for other hosts that see shared runs too, and have no stamps; without it the run counts as one
        without a team there, and a warning says so.
      - Another one than a stamp says that is on this host, or any where this host measures the runs and the run has
        none, is refused. Take it from that answer, not from whoever asks for the run.
      - Only with O(volumes_of).
    type: str
  volumes_dir:
    description:
      - Where the worker has its volumes, each in a directory of its name; C(/volumes) when left out. Only with
        O(volumes_of).
    type: str
  confirm_within:
    description:
      - For how many seconds the mounts are reserved, 3600 when left out. The same again begins anew. Only with
        O(state=prepared).
    type: int
  cgroup:
    description:
      - The cgroup of the worker, as a path below C(/sys/fs/cgroup) or as in C(/proc/PID/cgroup). Only with
        O(state=confirmed).
      - One that holds those of many, such as C(/system.slice), C(/init.scope) or that of a daemon that starts workers,
        is refused, because the lease would not end with the worker.
    type: str
  pid:
    description:
      - A process that lives as long as the worker, as the host numbers it. Only with O(state=confirmed).
      - The host's first process, those of the kernel, daemons that start workers, and single threads are refused.
    type: int
  timeout:
    description:
      - How many seconds to wait, for drives that are being filled or mounted from elsewhere (O(state=prepared)), or for
        what still uses a mount (O(state=released)). Not at all when left out.
    type: int
  force:
    description:
      - Release mounts although the process or cgroup that they are bound to is still there. What the kernel shows to be
        in use is refused all the same. Only with O(state=released).
    type: bool
extends_documentation_fragment:
  - stowage.host.attributes
attributes:
  diff_mode:
    description: Shows each drive of the worker that is mounted, bound or released, and what gets its owner and mode.
notes:
  - The end of a reservation that is prepared again is put off, and that is not reported as a change.
seealso:
  - module: stowage.host.drives
  - module: stowage.host.storage_facts
"""

EXAMPLES = r"""
- name: Prepare the drives of a worker
  stowage.host.drive_mount:
    host_name: "{{ inventory_hostname }}"
    workspace: vision
    run: finetune-3
    worker: w0
    datavolume_refs:
      - name: imagenet
        mount_path: /data
        mode: ReadOnly
      - name: hf-cache
    timeout: 60
  register: prepared

- name: Prepare a worker of a run with the volumes that it is granted, and no drives
  stowage.host.drive_mount:
    host_name: "{{ inventory_hostname }}"
    run: finetune-3
    worker: w1
    datavolume_refs: []
    volumes_of: ann/finetune/3

- name: Start the worker
  ansible.builtin.command:
    argv: "{{ ['docker', 'run', '--detach', '--name', 'finetune-3-w0'] + prepared.docker + ['pytorch/pytorch'] }}"
  when: prepared.waiting | length == 0

- name: Ask for its process
  ansible.builtin.command:
    argv: [docker, inspect, --format, "{{ '{{' }}.State.Pid{{ '}}' }}", finetune-3-w0]
  register: worker
  changed_when: false

- name: Bind the drives to it
  stowage.host.drive_mount:
    run: finetune-3
    worker: w0
    state: confirmed
    pid: "{{ worker.stdout }}"

- name: Release the drives of all workers of the run on this host
  stowage.host.drive_mount:
    run: finetune-3
    state: released
    timeout: 30

- name: Release them although what they are bound to goes on
  stowage.host.drive_mount:
    run: finetune-3
    state: released
    force: true
"""

RETURN = r"""
actions:
  description: What was done, or in check mode would be done, one line each.
  returned: always
  type: list
  elements: str
  sample: ["make the copy vision.hf-cache", "mount drive hf-cache at /root/.cache/huggingface, ReadWrite"]
mounts:
  description:
    - The mounts that the worker is to be given, in the order of the drives, then of the volumes by name. Empty as long
      as something is waited for.
    - In check mode they are those that it would be given, and not there.
  returned: success, with O(state=prepared)
  type: list
  elements: dict
  contains:
    source:
      description: The directory of the host, below C(/run/stowage/pins/).
      type: str
    target:
      description: Where the worker is to have it.
      type: str
    read_only:
      description: Whether the worker may only read; it could not write anyway.
      type: bool
    drive:
      description: The drive. Not there for a volume.
      type: str
    source_index:
      description: Which source of the drive it is. Not there for a volume.
      type: int
    volume:
      description: The volume. Not there for a drive.
      type: str
    sub_path:
      description: The folder of the volume, empty for all of it. Not there for a drive.
      type: str
    run_of:
      description: The run, as C(user/experiment/run_id), that the folder was granted to. Not there for a drive.
      type: str
  sample:
    - source: /run/stowage/pins/finetune-3/1
      target: /data
      read_only: true
      drive: imagenet
      source_index: 0
environment:
  description: What the worker is to have in its environment, C(VOLUMES_DIR) with O(volumes_of).
  returned: success, with O(state=prepared)
  type: dict
  sample: {VOLUMES_DIR: /volumes}
volumes_left_out:
  description:
    - What of volumes is granted to the run and is not there now, and why, a line each. The worker is to start without
      it, and keeps what it has of it already.
  returned: success, with O(state=prepared)
  type: list
  elements: str
  sample: ["volume models: /srv/volumes/models was on the mount at /srv/volumes/models, and nothing is mounted there"]
docker:
  description: The same as arguments of C(docker run) and C(podman run).
  returned: success, with O(state=prepared)
  type: list
  elements: str
  sample: [--mount, "type=bind,source=/run/stowage/pins/finetune-3/1,target=/data,readonly"]
kubernetes:
  description: The same as C(volumes) of a pod on this host, and C(volumeMounts) and C(env) of its container.
  returned: success, with O(state=prepared)
  type: dict
  sample:
    volumes:
      - name: drive-imagenet-0
        hostPath: {path: /run/stowage/pins/finetune-3/1, type: Directory}
    volumeMounts:
      - {name: drive-imagenet-0, mountPath: /data, readOnly: true}
waiting:
  description:
    - What the worker waits for. As long as there is anything it must not be started; prepare it again.
  returned: success, with O(state=prepared)
  type: list
  elements: str
  sample: ["Waiting for drive model-llama to be filled on gpu-01"]
held:
  description:
    - The drives that the worker had leases of on this host before, whether or not they are asked for; also volumes, as
      V(volume NAME).
  returned: success, with O(state=prepared)
  type: list
  elements: str
  sample: [hf-cache]
used_by:
  description: The live workers on this host that use the drives, as run and worker.
  returned: success, with O(state=prepared)
  type: dict
  sample:
    hf-cache: [finetune-3/w0]
    imagenet: [eval-1/w0, finetune-3/w0]
"""

import os
import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.stowage.host.plugins.module_utils import host_name
from ansible_collections.stowage.host.plugins.module_utils.differences import Differences
from ansible_collections.stowage.host.plugins.module_utils.drives import refs as drive_refs
from ansible_collections.stowage.host.plugins.module_utils.drives.declared import check_name
from ansible_collections.stowage.host.plugins.module_utils.errors import Refusal, StowageError
from ansible_collections.stowage.host.plugins.module_utils.module_run import run
from ansible_collections.stowage.host.plugins.module_utils.places import Places
from ansible_collections.stowage.host.plugins.module_utils.runs import mounts as run_mounts
from ansible_collections.stowage.host.plugins.module_utils.runs import pins
from ansible_collections.stowage.host.plugins.module_utils.runs import renderings as mount_renderings
from ansible_collections.stowage.host.plugins.module_utils.runs.mounts import Preparation, Worker
from ansible_collections.stowage.host.plugins.module_utils.runs.pins import Pin
from ansible_collections.stowage.host.plugins.module_utils.services import daemon_cycle
from ansible_collections.stowage.host.plugins.module_utils.volumes import stamped
from ansible_collections.stowage.host.plugins.module_utils.volumes.given import VARIABLE, Given, given

_PAUSE_S = 2.0
_CONFIRM_WITHIN_S = 3600
_VOLUMES_DIR = "/volumes"
_NO_DAEMON = (
    "stowaged is not at work on this host: no reservation lapses, no lease ends by itself and no copy is evicted until"
    " it is; roll the daemon out, or start it"
)

_OF_STATE = {
    "workspace": "prepared",
    "host_name": "prepared",
    "datavolume_refs": "prepared",
    "volumes_of": "prepared",
    "volumes": "prepared",
    "volumes_team": "prepared",
    "volumes_dir": "prepared",
    "confirm_within": "prepared",
    "cgroup": "confirmed",
    "pid": "confirmed",
    "timeout": "prepared released",
    "force": "released",
}
"""The options that belong to some states only."""

ARGUMENT_SPEC = {
    "state": {"type": "str", "choices": ["prepared", "confirmed", "released"], "default": "prepared"},
    "run": {"type": "str", "required": True},
    "worker": {"type": "str", "default": ""},
    "workspace": {"type": "str"},
    "host_name": {"type": "str"},
    "datavolume_refs": {"type": "raw"},
    "volumes_of": {"type": "str"},
    "volumes": {"type": "list", "elements": "str"},
    "volumes_team": {"type": "str"},
    "volumes_dir": {"type": "str"},
    "confirm_within": {"type": "int"},
    "cgroup": {"type": "str"},
    "pid": {"type": "int"},
    "timeout": {"type": "int"},
    "force": {"type": "bool"},
}


def make(module: AnsibleModule, differences: Differences) -> dict[str, Any]:
    if os.geteuid() != 0:
        raise Refusal("drive_mount", "must be run as root, who alone can mount", "set become: true")
    params = module.params
    state = params["state"]
    _check_of_state(params, state)
    places = Places()
    worker = Worker.of(params["run"], params["worker"])
    timeout = params["timeout"] or 0
    if timeout < 0:
        raise Refusal("timeout", "must not be below 0")
    if state == "released":
        run_mounts.release(places, worker, differences, timeout, force=bool(params["force"]))
        return {}
    if not daemon_cycle.is_at_work(places):
        module.warn(_NO_DAEMON)
    if state == "confirmed":
        run_mounts.confirm(places, worker, params["cgroup"] or "", params["pid"] or 0, differences)
        return {}
    return _prepare(module, places, worker, timeout, differences)


def _check_of_state(params: Mapping[str, Any], state: str) -> None:
    wrong = [name for name, states in _OF_STATE.items() if params[name] is not None and state not in states.split()]
    if wrong:
        verb = "is" if len(wrong) == 1 else "are"
        raise Refusal(", ".join(wrong), f"{verb} not for state {state}", "take it out, or set the state that is meant")


def _prepare(
    module: AnsibleModule, places: Places, worker: Worker, timeout: int, differences: Differences
) -> dict[str, Any]:
    params = module.params
    if not worker.name:
        raise Refusal("worker", "is required to prepare drives", "name the worker of the run")
    seconds = _CONFIRM_WITHIN_S if params["confirm_within"] is None else params["confirm_within"]
    if seconds <= 0:
        raise Refusal("confirm_within", "must be above 0")

    def start(unit: str) -> None:
        code, _output, error = module.run_command(["systemctl", "start", "--no-block", unit])
        if code:
            raise StowageError(f"{unit}: {' '.join(error.split())}; see systemctl status {unit}")

    host_name.check(places, params["host_name"])
    refs = drive_refs.read(params["datavolume_refs"])
    workspace = params["workspace"] or ""
    if workspace or refs:
        check_name(workspace, "workspace")
        host_name.check_declared(places, workspace, params["host_name"])
    volumes_dir = params["volumes_dir"] or _VOLUMES_DIR
    held = sorted({_leased(pin) for pin in worker.of_it(pins.of_run(places, worker.run)) if not pins.stale(pin)})
    end = time.monotonic() + timeout
    while True:
        volumes, unknown = Given(), ""
        if params["volumes_of"] is not None:
            whose, unknown = stamped.whose(places, params["volumes_of"], params["volumes_team"] or "")
            volumes = given(places, whose, params["volumes"], volumes_dir)
        preparation = Preparation.of(
            places, params["host_name"], workspace, worker, refs, start, volumes.folders, volumes.kept
        )
        outcome = preparation.run(seconds, differences)
        left = end - time.monotonic()
        if not outcome.waiting or left <= 0 or module.check_mode:
            break
        time.sleep(min(_PAUSE_S, left))
    found, problems = pins.readable(places)
    for problem in problems:
        module.warn(str(problem))
    if unknown:
        module.warn(unknown)
    for text in volumes.left_out:
        module.warn(f"the run is granted this, and the worker is to start without it: {text}")
    users = pins.used_by(found)
    environment = {VARIABLE: volumes_dir} if params["volumes_of"] is not None else {}
    return {
        "mounts": outcome.mounts,
        "environment": environment,
        "volumes_left_out": list(volumes.left_out),
        "docker": mount_renderings.docker(outcome.mounts, environment),
        "kubernetes": mount_renderings.kubernetes(outcome.mounts, environment),
        "waiting": outcome.waiting,
        "held": held,
        "used_by": {ref.name: users.get((workspace, ref.name), []) for ref in refs},
    }


def _leased(pin: Pin) -> str:
    return f"volume {pin.volume}" if pin.volume else pin.drive


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        required_if=[("state", "prepared", ["host_name", "datavolume_refs"])],
        required_by=dict.fromkeys(("volumes", "volumes_team", "volumes_dir"), ["volumes_of"]),
    )
    run(module, make)


if __name__ == "__main__":
    main()
