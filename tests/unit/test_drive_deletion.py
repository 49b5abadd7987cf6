# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Deleting drives: who uses them, over one host and over all, and what an operator is told."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleError, AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.stowage.host.plugins.filter.drive_deletion import drive_deletion
from ansible_collections.stowage.host.plugins.filter.drive_deletion_request import drive_deletion_request
from stowage_core import records
from stowage_core.data_location.locations import DataLocation
from stowage_core.differences import Differences
from stowage_core.drives import host as drives_host
from stowage_core.drives import recorded as drive_records
from stowage_core.drives.declared import check_lists
from stowage_core.errors import Refusal
from stowage_core.mounts import FilesystemId
from stowage_core.places import Places
from stowage_core.runs import holders, pins
from stowage_core.runs.pins import Pin

PLACED: dict[str, Any] = {"metadata": {"name": "imagenet"}, "spec": {"sources": [{"node_scope": "placed"}]}}
TOMBSTONE: dict[str, Any] = {"metadata": {"name": "imagenet"}, "state": "absent"}
FORCED = {**TOMBSTONE, "force": True}


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places.under(str(tmp_path))
    declare(made, PLACED)
    return made


def declare(places: Places, *drives: dict[str, Any], check_mode: bool = False) -> drives_host.Outcome:
    lists = check_lists([{"name": "vision", "drives": list(drives)}])
    return drives_host.declare(places, "gpu-01", lists, "", Differences(check_mode))


def use(places: Places, run: str, worker: str = "", drive: str = "imagenet", number: int = 1, **more: Any) -> Pin:
    """Record a lease, as taking one does; nothing is mounted."""
    deadline = holders.boot_time() + more.pop("seconds", 60)
    pin = Pin(
        run, number, worker, more.pop("workspace", "vision"), drive, 0, "", "", "ReadOnly", "/data", pins.RESERVED,
        deadline, holders.boot_id(), time.time(),
    )  # fmt: skip
    records.write(pin.record_path(places), pin.to_json())
    return pin


def test_a_drive_that_is_used_is_not_deleted(places: Places) -> None:
    use(places, "finetune", "w0")
    use(places, "finetune", "w0", number=2)
    use(places, "finetune", "w1", number=3)
    use(places, "old", seconds=-1)
    use(places, "other", drive="mnist")
    use(places, "namesake", workspace="nlp")
    before = records.read(drive_records.record_path(places, "vision"))
    for check_mode in (True, False):
        with pytest.raises(Refusal) as refused:
            declare(places, TOMBSTONE, check_mode=check_mode)
        assert str(refused.value) == (
            "DATAVOLUME_IN_USE: drive imagenet is used by 2 live worker(s);"
            " end their runs on this host (finetune/w0, finetune/w1), or set force: true beside state: absent"
        )
    assert records.read(drive_records.record_path(places, "vision")) == before, "nothing was changed"


def test_by_force_it_is(places: Places) -> None:
    pin = use(places, "finetune", "w0")
    assert pins.ended(places, pin) == ""
    for check_mode in (True, False, False):
        outcome = declare(places, FORCED, check_mode=check_mode)
        assert outcome.users("vision") == {"imagenet": ["finetune/w0"]}
    assert pins.ended(places, pin) == "its drive was deleted by force"
    declare(places, FORCED)
    outcome = declare(places, TOMBSTONE)  # it is deleted already
    assert outcome.kinds() == {"vision": {"imagenet": "a drive kept on the machines' data locations"}}
    assert outcome.unread == []


def test_a_lease_that_cannot_be_read_may_be_of_any_drive(places: Places) -> None:
    use(places, "finetune")
    Path(places.pins_dir, "finetune", "1.json").write_text("{")
    with pytest.raises(records.RecordError, match="pin finetune/1: its record cannot be used"):
        declare(places, TOMBSTONE)
    declare(places, PLACED)
    outcome = declare(places, FORCED)
    (warning,) = outcome.warnings
    (why,) = outcome.unread
    assert why.startswith("pin finetune/1: its record cannot be used")
    assert warning.startswith("who uses the drives that are deleted is unknown: pin finetune/1: its record")


def test_whose_deletion_begins(places: Places) -> None:
    """A tombstone that is new here, or forces now what it did not, and not one of what this host never knew."""
    other = {"metadata": {"name": "mnist"}, "spec": PLACED["spec"]}
    gone = {"metadata": {"name": "mnist"}, "state": "absent"}
    unknown = {"metadata": {"name": "cifar"}, "state": "absent"}

    def begun(*drives: dict[str, Any], check_mode: bool = False) -> list[str]:
        return [one.name for one in declare(places, *drives, check_mode=check_mode).begun]

    assert begun(PLACED, other) == []
    assert begun(TOMBSTONE, gone, unknown, check_mode=True) == ["imagenet", "mnist"]
    assert begun(PLACED, gone, unknown) == ["mnist"]
    assert begun(TOMBSTONE, gone, unknown, check_mode=True) == ["imagenet"], "the other is being deleted already"
    assert begun(PLACED, {**gone, "force": True}, check_mode=True) == ["mnist"], "whoever uses it loses it now"
    assert begun(PLACED, {**gone, "force": True}) == ["mnist"]
    assert begun(PLACED, {**gone, "force": True}) == begun(PLACED, gone) == []


def test_a_disk_that_is_not_there_may_hold_a_copy_of_what_is_not_known(places: Places) -> None:
    location = DataLocation("/nowhere", 0, "gpu-01", FilesystemId("ext4", "u", "/dev/sda"), "1")
    records.write(places.data_location_json, location.to_json())
    outcome = declare(places, PLACED, {"metadata": {"name": "cifar"}, "state": "absent"})
    assert outcome.holdings.unseen and [one.name for one in outcome.begun] == ["cifar"]


def test_a_tombstone_of_what_nobody_knows(places: Places) -> None:
    unknown = {"metadata": {"name": "imagenett"}, "state": "absent"}
    assert [one.name for one in declare(places, PLACED, unknown, check_mode=True).unknown] == ["imagenett"]
    assert declare(places, PLACED, unknown).unknown != ()
    assert list(declare(places, PLACED, unknown).unknown) == [], "now it knows it"
    assert list(declare(places, PLACED).unknown) == []


# -- What is asked for


def drives(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"metadata": {"name": name}, **(more or {"spec": PLACED["spec"]})} for name in names]


SITE: dict[str, dict[str, Any]] = {
    "gpu-01": {"host_drives": {"vision": drives("imagenet", "mnist")}},
    "gpu-02": {"host_drives": {"nlp": drives("imagenet"), "vision": drives("imagenet", state="absent")}},
    "gpu-03": {"host_drives": {"nlp": drives("wiki")}},
    "gpu-04": {"host_drives": ""},
    "gpu-05": {},
}


def request(hosts: str = "", site: Any = None, **given: Any) -> dict[str, Any]:
    site = SITE if site is None else site
    values = {"name": "imagenet", "confirm": given.get("name", "imagenet"), **given}
    return drive_deletion_request(site, hosts.split() or list(site), **values)


def test_one_workspace_for_all_hosts() -> None:
    assert request(workspace="vision") == {
        "refused": "",
        "drive": "imagenet",
        "workspace": "vision",
        "force": False,
        "wait_s": 600,
        "allow_unreached": False,
        "still_declared": True,
        "asked": ["gpu-01", "gpu-02"],
        "not_listed": ["gpu-03", "gpu-04", "gpu-05"],
        "not_asked": [],
    }


def test_hosts_outside_of_the_choice_that_have_the_workspace_are_not_asked() -> None:
    found = request("gpu-02 gpu-03", workspace="vision")
    assert (found["asked"], found["not_listed"], found["not_asked"]) == (["gpu-02"], ["gpu-03"], ["gpu-01"])
    assert found["still_declared"] is False


def test_the_only_workspace_of_all_hosts_may_be_left_out() -> None:
    site = {name: SITE[name] for name in ("gpu-01", "gpu-04")}
    for blank in ("", " ", None):
        assert request(site=site, workspace=blank)["workspace"] == "vision"


@pytest.mark.parametrize(
    ("given", "force", "wait_s"),
    [
        ({"force": "", "wait": ""}, False, 600),
        ({"force": None, "wait": None}, False, 600),
        ({"force": " ", "wait": " "}, False, 600),
        ({"force": "false", "wait": "0"}, False, 0),
        ({"force": False, "wait": 0}, False, 0),
        ({"force": "yes", "wait": "90"}, True, 90),
        ({"force": True, "wait": 90}, True, 90),
        ({"force": "True ", "wait": " 5 "}, True, 5),
    ],
)
def test_blank_is_the_default(given: dict[str, Any], force: bool, wait_s: int) -> None:
    found = request(workspace="vision", allow_unreached=given["force"], **given)
    assert (found["refused"], found["force"], found["allow_unreached"]) == ("", force, force)
    assert found["wait_s"] == wait_s


AGAIN = "drive_delete_confirm: give the name of the drive again, imagenet, to delete it and every copy of it"
TRUTH = "must be true or false"
SECONDS = "must be a whole number of seconds; 0 does not wait"


@pytest.mark.parametrize(
    ("hosts", "given", "refused"),
    [
        *(("", {"name": blank}, "drive_delete_name: name the drive") for blank in ("", " ", None)),
        ("", {"name": "Image"}, "drive_delete_name: 'Image' is not a name; only lowercase letters, digits and hyphens"),
        ("", {"name": ["imagenet"]}, "drive_delete_name: a list is not a name; only lowercase letters"),
        *(("", {"confirm": wrong}, AGAIN) for wrong in ("", None, "yes", True, "imagenette")),
        *(
            ("", {"force": wrong}, f"drive_delete_force: '{wrong}' {TRUTH}")
            for wrong in ("maybe", 2, "tru", ["true"], "0x1")
        ),
        ("", {"allow_unreached": "maybe"}, f"drive_delete_allow_unreached: 'maybe' {TRUTH}"),
        *(
            ("", {"wait": wrong}, f"drive_delete_wait: '{wrong}' {SECONDS}")
            for wrong in ("ten", -5, "-5", "1.5", 2.5, True, "5 m", "\u0665", 10**9)
        ),
        ("", {}, "drive_delete_workspace: name the workspace; host_drives has nlp, vision"),
        (
            "",
            {"workspace": "visoin"},
            "drive_delete_workspace: 'visoin' is no workspace; did you mean vision? host_drives has nlp, vision",
        ),
        ("", {"workspace": ["nlp"]}, "drive_delete_workspace: '['nlp']' is no workspace; "),
        (
            "gpu-03 gpu-04",
            {"workspace": "vision"},
            "drive_delete_workspace: none of the chosen hosts has vision in host_drives; choose of gpu-01, gpu-02",
        ),
        (
            "gpu-01",
            {"site": {"gpu-01": {}}},
            "drive_delete_workspace: name the workspace; host_drives has none",
        ),
        (
            "gpu-02",
            {"workspace": "vision", "site": {**SITE, "gpu-02": {"host_drives": ["vision"]}}},
            "host_drives of gpu-02: must be a dictionary of lists of drives by workspace; correct it",
        ),
        (
            "",
            {"workspace": "vision", "site": {**SITE, "gpu-02": {"host_drives": {"vision": [{"metadata": {}}]}}}},
            "host_drives of gpu-02: vision[0]: metadata.name: required",
        ),
        (
            "",
            {"workspace": "vision", "site": {**SITE, "gpu-02": {"host_drives": {"vision": "imagenet"}}}},
            "host_drives of gpu-02: vision must be a list",
        ),
    ],
)
def test_what_is_refused_before_anybody_is_asked(hosts: str, given: dict[str, Any], refused: str) -> None:
    found = request(hosts, **given)
    assert list(found) == ["refused"] and found["refused"].startswith(refused) and "\n" not in found["refused"]


ANYTHING = st.one_of(st.text(), st.none(), st.booleans(), st.integers(), st.floats(), st.lists(st.text(), max_size=1))


@given(name=ANYTHING, confirm=ANYTHING, workspace=ANYTHING, force=ANYTHING, wait=ANYTHING)
def test_whatever_is_given_is_one_line_or_what_was_meant(**values: Any) -> None:
    found = request(**values)
    assert found["refused"].isprintable()
    assert found["refused"] or (found["drive"] == values["name"] == values["confirm"] and found["wait_s"] >= 0)
    found = request(workspace="vision", force=values["force"], wait=values["wait"])
    assert found["refused"].isprintable() and bool(found["refused"]) == (list(found) == ["refused"])


class Unresolved(dict[str, Any]):
    """The variables of a host of which one cannot be told, as ansible-core hands them on."""

    def get(self, key: Any, default: Any = None) -> Any:
        raise AnsibleError("'rack' is undefined")


def test_variables_that_cannot_be_resolved() -> None:
    site = {**SITE, "gpu-02": Unresolved()}
    assert request(workspace="vision", site=site) == {
        "refused": "host_drives of gpu-02: 'rack' is undefined; correct it"
    }
    outside = request("gpu-01", workspace="vision", site=site)
    assert (outside["asked"], outside["not_asked"]) == (["gpu-01"], ["gpu-02"]), "nobody knows what it holds"


# -- Over all hosts

ON_MACHINES = "a drive kept on the machines' data locations"


def told(deleting: bool = False, users: list[str] | None = None, unknown: bool = False, **more: Any) -> dict[str, Any]:
    """Return what the module answers on a host."""
    names = ["imagenet"]
    return {
        "drives": {"vision": ["image-net", "mnist"]},
        "deleting": {"vision": names if deleting else []},
        "used_by": {"vision": {"imagenet": users} if users else {}},
        "begun": {"vision": names if deleting else []},
        "unknown": {"vision": names if unknown else []},
        "kinds": {"vision": {} if unknown else {"imagenet": ON_MACHINES}},
        "unread": [],
        "unseen": [],
        **more,
    }


AWAY = {"unreachable": True, "msg": "no route"}
SKIPPED = {"skipped": True}


def host(predicted: dict[str, Any], declared: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    answers = {"predicted": predicted, "declared": predicted if declared is None else declared, **more}
    return {f"drive_delete_{task}": answer for task, answer in answers.items()}


def found(
    force: bool = False, not_listed: str = "", not_asked: str = "", check_mode: bool = False, **hosts: dict[str, Any]
) -> dict[str, Any]:
    named = {name.replace("_", "-"): variables for name, variables in hosts.items()}
    asked = {"workspace": "vision", "drive": "imagenet", "force": force, "asked": list(named)}
    return drive_deletion(
        named, {**asked, "not_listed": not_listed.split(), "not_asked": not_asked.split()}, check_mode
    )


def test_used_on_any_host() -> None:
    hosts = {"gpu_01": host(told(True, ["a/0", "b/0"])), "gpu_02": host(told()), "gpu_03": host(told(users=["a/1"]))}
    assert found(**hosts)["refused"] == [
        "DATAVOLUME_IN_USE: drive imagenet is used by 3 live worker(s);"
        " end their runs on gpu-01 (a/0, b/0), gpu-03 (a/1), or set drive_delete_force=true"
    ]
    assert found(**hosts)["used_by"] == {"gpu-01": ["a/0", "b/0"], "gpu-03": ["a/1"]}
    assert found(True, **hosts)["refused"] == []


def test_no_other_drive_is_deleted_with_it() -> None:
    more = {"vision": ["b", "c", "imagenet"]}
    hosts = {
        "gpu_01": host(told(True, begun=more)),
        "gpu_02": host(told(begun={"vision": ["c"]})),
        "gpu_03": host(AWAY),
    }
    said = [
        "drive imagenet: with it others would be deleted, whose tombstones are not rolled out yet: b (on gpu-01),"
        " c (on gpu-01, gpu-02); roll these hosts out first, or leave them out"
    ]
    assert found(**hosts)["refused"] == found(True, **hosts)["refused"] == said


MANAGED = "DATAVOLUME_MANAGED: drive model-llama is managed by model/llama; delete model/llama instead"


def test_what_hosts_refuse_is_said_once() -> None:
    refused = host({"failed": False, "msg": MANAGED})
    assert found(gpu_01=refused, gpu_02=refused, gpu_03=host(told()))["refused"] == [f"{MANAGED} (on gpu-01, gpu-02)"]


def test_a_lease_that_cannot_be_read_refuses_it_before_any_host_is_changed() -> None:
    hosts = {"gpu_01": host(told(True)), "gpu_02": host(told(unread=["pin r/1: its record cannot be used"]))}
    assert found(**hosts)["refused"] == [
        "who uses the drive is unknown: pin r/1: its record cannot be used (on gpu-02)"
    ]
    assert found(True, **hosts)["refused"] == []


def test_a_drive_that_nobody_knows() -> None:
    assert found(gpu_01=host(told(unknown=True)), gpu_02=host(AWAY))["refused"] == [
        "drive imagenet does not exist: no host that was asked knows it in workspace vision, or holds a copy of it;"
        " did you mean image-net?"
    ]
    assert found(gpu_01=host(told(unknown=True)), gpu_02=host(told()))["refused"] == []


def test_nobody_was_reached() -> None:
    assert found(gpu_01=host(AWAY), gpu_02=host(AWAY))["refused"] == [
        "drive imagenet: no host with workspace vision was reached: gpu-01, gpu-02"
    ]


def facts(**more: Any) -> dict[str, Any]:
    value = {
        "daemon": {"installed": True, "running": True, "last_cycle_age_s": 3.0},
        "leases": [],
        "eviction": {"waiting": {}},
        **more,
    }
    return {"facts": {"ansible_facts": {"stowage_storage": value}}}


STOPPED = "the daemon, which removes copies, is not at work: systemctl status stowaged"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({}, "it was not waited for, or is out of reach now"),
        ({"facts": AWAY}, "it was not waited for, or is out of reach now"),
        (
            facts(daemon={"installed": False, "running": False}),
            "there is no daemon, which removes copies: roll the host out",
        ),
        (facts(daemon={"installed": True, "running": False, "last_cycle_age_s": 3.0}), STOPPED),
        (facts(eviction={"waiting": {"vision.imagenet": "held by pin r/1"}}), "held by pin r/1"),
        (facts(leases=[{"copy": "vision.imagenet", "run": "r"}, {"copy": "x", "run": "y"}]), "run r uses it"),
        (facts(), "it is being removed, or was in an earlier data location: journalctl -u stowaged"),
        (facts(eviction=None), "it is being removed, or was in an earlier data location: journalctl -u stowaged"),
    ],
)
def test_why_a_host_still_holds_a_copy(more: dict[str, Any], why: str) -> None:
    result = found(gpu_01=host(told(True), **more), gpu_02=host(told()))
    assert (result["holding"], result["done"], result["failed"]) == ({"gpu-01": why}, ["gpu-02"], [])


@pytest.mark.parametrize("waited", [SKIPPED, AWAY, {"msg": "sudo: a password is required"}])
def test_what_it_told_last_counts(waited: dict[str, Any]) -> None:
    assert found(gpu_01=host(told(True), waited=told()))["done"] == ["gpu-01"]
    assert found(gpu_01=host(told(True), told(), waited=waited))["done"] == ["gpu-01"]
    assert list(found(gpu_01=host(told(True), waited=waited))["holding"]) == ["gpu-01"]


def test_a_host_that_refuses_it_in_the_end() -> None:
    """A run may have come between."""
    result = found(gpu_01=host(told(True), {"msg": "DATAVOLUME_IN_USE: …"}), gpu_02=host(told(True), AWAY))
    assert (result["failed"], result["holding"]) == (["gpu-01"], {"gpu-01": "DATAVOLUME_IN_USE: …"})
    assert result["not_reached"] == ["gpu-02"] and result["done"] == []


def test_the_table() -> None:
    why = "in use: process 4711 (python) has its working directory in it"
    result = found(
        not_listed="gpu-05",
        not_asked="gpu-06 gpu-07",
        gpu_01=host(told()),
        gpu_02=host(told(True), **facts(eviction={"waiting": {"vision.imagenet": why}})),
        gpu_03=host(told(unseen=["data location /data: is not there"])),
        gpu_04=host(AWAY, SKIPPED),
    )
    assert result["table"] == [
        "drive vision/imagenet: 1 of 6 hosts hold no copy any more",
        "  gpu-02  in use: process 4711 (python) has its working directory in",
        "          it",
        "  gpu-03  unknown: data location /data: is not there",
        "not reached; they delete it at their next rollout, if the tombstone is in the inventory:",
        "  gpu-04",
        "not asked, as outside of --limit or drive_delete_hosts; they keep it, whoever uses it there:",
        "  gpu-06, gpu-07",
        "without a list of the workspace in host_drives, and so not asked:",
        "  gpu-05",
    ]
    lists = {name: result[name] for name in ("done", "not_reached", "not_asked", "not_listed")}
    assert lists == {
        "done": ["gpu-01"], "not_reached": ["gpu-04"], "not_asked": ["gpu-06", "gpu-07"], "not_listed": ["gpu-05"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (ON_MACHINES, "2 of 3 hosts hold no copy any more"),
        ("", "2 of 3 hosts hold no copy any more"),
        (
            "scratch on each machine",
            "deleted on 2 of 3 hosts; it was scratch on each machine and had no copies:"
            " only the name is gone, nothing on disk was touched",
        ),
    ],
)
def test_a_drive_without_copies(kind: str, said: str) -> None:
    answer = told(kinds={"vision": {"imagenet": kind, "mnist": ON_MACHINES} if kind else {}})
    hosts = {"gpu_01": host(answer), "gpu_02": host(answer)}
    assert found(not_asked="gpu-03", **hosts)["said"] == f"drive vision/imagenet: {said}"
    other = found(gpu_01=host(answer), gpu_02=host(told()))
    assert other["said"].endswith("hold no copy any more"), "on another host it is of another kind"
    assert found(gpu_01=host(answer))["table"][0].startswith(
        "drive vision/imagenet: " + ("deleted on 1 of 1 host;" if kind.startswith("scratch") else "1 of 1 host holds")
    )


def test_a_prediction_claims_nothing() -> None:
    result = found(check_mode=True, not_asked="gpu-03", gpu_01=host(told(True)), gpu_02=host(told()))
    assert result["said"] == "drive vision/imagenet: would be deleted on 2 of 3 hosts; nothing was changed"
    assert result["holding"] == {"gpu-01": "it holds a copy"}


def test_wrong_input() -> None:
    with pytest.raises(AnsibleFilterError, match="the input must be hostvars"):
        drive_deletion([], {})
    with pytest.raises(AnsibleFilterError, match="the result of the filter drive_deletion_request"):
        drive_deletion({}, {"refused": "why"})
    with pytest.raises(AnsibleFilterError, match="the input must be hostvars"):
        drive_deletion_request({}, "gpu-01", "a", "a")
