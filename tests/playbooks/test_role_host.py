# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role host, run by Ansible over a host that only seems to be one, with stand-ins for the collection's modules."""

from __future__ import annotations

import json

import pytest
from playbooks_lab import HERE, Lab

# WANT_JSON: a program that is given the file with its arguments.
STAND_IN = '''#!/usr/bin/python
"""WANT_JSON"""
import json, os, sys
home = os.path.dirname(os.path.dirname(sys.argv[1].rpartition("/ansible-tmp-")[0] + "/"))
with open(os.path.join(home, "asked"), "a") as asked:
    print("%s", json.dumps(json.load(open(sys.argv[1])).get("backends")), file=asked)
print(json.dumps({"changed": False, "tiers": [], "left": ["tier chat/0: its backend is not declared any more"]}))
'''
PLAY = [{"hosts": "all", "gather_facts": False, "roles": ["stowage.host.host"]}]
BACKEND = {"name": "chat", "members": [{"local_disks": [{"path": "/mnt/kv"}]}]}


@pytest.mark.parametrize(
    ("declared", "had", "predicting", "asked", "said"),
    [
        ([BACKEND], False, False, True, True),
        ([], True, False, True, True),  # the last backend was taken out
        ([], True, True, True, False),
        ([], False, False, False, False),
    ],
)
def test_what_is_not_declared_any_more_is_told_of_at_each_rollout(
    lab: Lab, declared: list[object], had: bool, predicting: bool, asked: bool, said: bool
) -> None:
    for name in ("tier_directory", "mount_dependency"):
        lab.stand_in(name, STAND_IN % name)
    (lab.home / "role.yml").write_text(json.dumps(PLAY))
    record = lab.home / "tiers.json"
    if had:
        record.touch()
    variables = {"__host_tiers_record": str(record), "__host_predicting": predicting}
    hosts = {"gpu-01": {**HERE, "host_kv_caches": declared, "host_packages": []}}
    played = lab.play("role.yml", hosts=hosts, variables=variables)
    assert played.status == 0, played.output
    assert (f"tier_directory {json.dumps(declared)}" in played.asked) is asked
    assert ("tier chat/0: its backend is not declared any more" in played.lines) is said


GIVEN = '''#!/usr/bin/python
"""WANT_JSON"""
import json, os, sys
home = os.path.dirname(os.path.dirname(sys.argv[1].rpartition("/ansible-tmp-")[0] + "/"))
given = json.load(open(sys.argv[1]))
with open(os.path.join(home, "asked"), "a") as asked:
    print(json.dumps({name: given[name] for name in ("volumes", "volume_root") if name in given}), file=asked)
print(json.dumps({"changed": False}))
'''
VOLUMES = [{"name": "models", "grants": [{"users": ["ann"]}]}]


@pytest.mark.parametrize(
    ("declared", "asked"),
    [
        ({}, []),
        ({"host_volumes": []}, [{"volumes": []}]),
        ({"host_volumes": VOLUMES, "host_volume_root": "/srv/v"}, [{"volumes": VOLUMES, "volume_root": "/srv/v"}]),
    ],
)
def test_volumes_are_taken_off_by_an_empty_list_and_not_by_none(
    lab: Lab, declared: dict[str, object], asked: list[dict[str, object]]
) -> None:
    lab.stand_in("volume", GIVEN)
    lab.stand_in("mount_dependency", STAND_IN % "mount_dependency")
    (lab.home / "role.yml").write_text(json.dumps(PLAY))
    played = lab.play("role.yml", hosts={"gpu-01": {**HERE, **declared, "host_packages": []}})
    assert played.status == 0, played.output
    assert [json.loads(line) for line in played.asked if line.startswith("{")] == asked
