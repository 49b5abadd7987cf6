# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filters tier_survey, tier_removal_request and tier_removal."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.filter.tier_removal import tier_removal
from ansible_collections.stowage.host.plugins.filter.tier_removal_request import tier_removal_request
from ansible_collections.stowage.host.plugins.filter.tier_survey import tier_survey


def declared(hosts: list[str] | None = None, name: str = "chat") -> list[dict[str, Any]]:
    group: dict[str, Any] = {"capacity_per_member": "1Gi", "local_disks": [{"path": "/mnt/kv"}]}
    return [{"name": name, "members": [{**group, "hosts": hosts}]}]


def tier(entries: int | None = 0, backend: str = "chat", reason: str = "") -> dict[str, Any]:
    survey = {"entries": entries, "readable": entries is not None, "reason": reason}
    return {"backend": backend, "position": 0, "path": "/mnt/kv", "survey": survey}


def facts(*tiers: dict[str, Any]) -> dict[str, Any]:
    return {"ansible_facts": {"stowage_storage": {"tiers": list(tiers)}}}


UNREADABLE = {"ansible_facts": {"stowage_storage": {"tiers": None, "problems": ["/var/x.json: not valid JSON"]}}}
BROKEN = {"host_kv_caches": "{{ broken"}

# -- tier_survey


@pytest.mark.parametrize(
    ("second", "was_empty", "reason", "message"),
    [
        (facts(tier(0)), True, "Empty", "it was empty on all 2 hosts"),
        (facts(tier(3)), False, "PreexistingContent", "there was content before: gpu-02 (3 entries)"),
        (facts(tier(None, reason="EIO")), None, "NotAnswered", "not known yet: gpu-02: EIO"),
        (facts(), None, "NotAnswered", "gpu-02: it has not claimed the directory yet"),
        ({}, None, "NotAnswered", "gpu-02: it has no facts: run stowage.host.storage_facts"),
        ({**UNREADABLE}, None, "NotAnswered", "gpu-02: its records of tiers cannot be read"),
    ],
)
def test_the_verdict_over_a_site(second: dict[str, Any], was_empty: Any, reason: str, message: str) -> None:
    hosts = {"gpu-01": facts(tier(0)), "gpu-02": second, "cpu-01": {}}
    for variables in hosts.values():
        variables["host_kv_caches"] = declared(["gpu-01", "gpu-02"])
    found = tier_survey(hosts)
    assert list(found) == ["chat/0"]
    assert (found["chat/0"]["was_empty"], found["chat/0"]["reason"]) == (was_empty, reason)
    assert message in found["chat/0"]["message"]


def test_one_host_with_content_settles_it_whatever_others_say() -> None:
    hosts = {"gpu-01": facts(tier(1)), "gpu-02": {"host_kv_caches": declared()}}
    assert tier_survey(hosts)["chat/0"]["was_empty"] is False


def test_a_host_that_is_no_longer_selected_has_still_answered() -> None:
    hosts = {"gpu-01": {**facts(tier(0)), "host_kv_caches": declared(["gpu-02"])}}
    assert tier_survey(hosts)["chat/0"]["was_empty"] is True


def test_a_claim_without_a_survey_leaves_it_open() -> None:
    found = tier_survey({"gpu-01": facts({**tier(), "survey": None})})
    assert found["chat/0"]["was_empty"] is None
    assert found["chat/0"]["waiting"] == {"gpu-01": "what was in it before it was claimed is not known"}


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (BROKEN, "which tiers it is to have is not known: host_kv_caches: must be a list"),
        ({**BROKEN, **facts()}, "which tiers it is to have is not known: host_kv_caches: must be a list"),
        (UNREADABLE, "its records of tiers cannot be read"),
    ],
)
def test_a_host_of_which_it_is_not_known_is_waited_for(other: dict[str, Any], why: str) -> None:
    hosts = {"gpu-01": {**facts(tier(0)), "host_kv_caches": declared()}, "gpu-02": other}
    found = tier_survey(hosts)["chat/0"]
    assert found["was_empty"] is None and found["waiting"] == {"gpu-02": why}
    hosts["gpu-01"].update(facts(tier(1)))
    assert tier_survey(hosts)["chat/0"]["was_empty"] is False
    hosts = {"gpu-01": {**facts(tier(0)), "host_kv_caches": declared()}, "gpu-02": {**BROKEN, **facts(tier(0))}}
    assert tier_survey(hosts)["chat/0"]["was_empty"] is True  # it has answered for this one


# -- tier_removal_request

SITE: dict[str, dict[str, Any]] = {
    "gpu-01": {"host_kv_caches": declared(["gpu-01", "gpu-02"])},
    "gpu-02": {"host_kv_caches": declared(["gpu-01", "gpu-02"])},
    "gpu-03": facts(tier()),  # not selected any more, by the cache
    "gpu-04": {},
}


def request(hosts: str = "", name: Any = "chat", confirm: Any = "chat", **more: Any) -> dict[str, Any]:
    return tier_removal_request(SITE, hosts.split() or list(SITE), name, confirm, **more)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": " "}, "tier_remove_name: name the backend"),
        ({"name": None}, "tier_remove_name: name the backend"),
        ({"name": "No/Name"}, "tier_remove_name: 'No/Name' is not a name"),
        ({"confirm": ""}, "tier_remove_confirm: give the name of the backend again, chat"),
        ({"confirm": "code"}, "tier_remove_confirm: give the name of the backend again, chat"),
        ({"allow_unreached": "maybe"}, "tier_remove_allow_unreached: 'maybe' must be true or false"),
    ],
)
def test_what_is_refused(values: dict[str, Any], message: str) -> None:
    assert request(**values)["refused"].startswith(message)


def test_hosts_are_found_by_inventory_and_by_facts() -> None:
    found = request("gpu-01 gpu-04")
    assert found["refused"] == "" and found["still_declared"]
    assert found["selected"] == ["gpu-01", "gpu-02"]
    assert found["not_asked"] == ["gpu-02", "gpu-03"]
    assert not request(name="code", confirm="code")["still_declared"]


@pytest.mark.parametrize("other", [BROKEN, {**BROKEN, **facts()}, UNREADABLE])
def test_a_host_of_which_it_is_not_known_is_expected(other: dict[str, Any]) -> None:
    found = tier_removal_request({"gpu-01": {}, "gpu-02": other}, ["gpu-01"], "chat", "chat")
    assert found["refused"] == "" and found["selected"] == []
    assert found["expected"] == found["not_asked"] == ["gpu-02"]
    found = tier_removal_request({"gpu-01": {}, "gpu-02": other}, ["gpu-01", "gpu-02"], "chat", "chat")
    away = tier_removal(
        {"gpu-01": host(facts=facts(tier()), predicted=told(), done=told()), "gpu-02": host(facts=AWAY)}, found
    )
    assert away["not_reached"] == ["gpu-02"] and away["said"] == "backend chat: it is off 1 of 2 hosts"


# -- tier_removal


def told(reason: str = "TierCleaned", message: str = "/mnt/kv: it is empty", **more: Any) -> dict[str, Any]:
    return {"removed": [{"name": "chat/0", "reason": reason, "message": message}], **more}


def host(**tasks: Any) -> dict[str, Any]:
    return {f"tier_remove_{name}": value for name, value in tasks.items()}


AWAY = {"unreachable": True}
ALL = request()


def removal(check_mode: bool = False, **hosts: dict[str, Any]) -> dict[str, Any]:
    site = {name: host(facts=facts()) for name in SITE}
    return tier_removal({**site, **{name.replace("_", "-"): one for name, one in hosts.items()}}, ALL, check_mode)


def test_done_failed_and_out_of_reach() -> None:
    found = removal(
        gpu_01=host(facts=facts(tier()), predicted=told(), done=told()),
        gpu_02=host(facts=AWAY),
        gpu_03=host(
            facts=facts(tier()),
            predicted=told(),
            done=told("TierPartlyCleaned", msg="tier chat/0: TierPartlyCleaned: …"),
        ),
        gpu_04=host(facts=AWAY),
    )
    assert found["refused"] == []
    assert list(found["done"]) == ["gpu-01"]
    assert found["failed"] == {"gpu-03": "tier chat/0: TierPartlyCleaned: …"}
    assert found["not_reached"] == ["gpu-02"] and found["unknown"] == ["gpu-04"]
    assert found["beside"] == ["gpu-03"]
    assert found["table"] == [
        "backend chat: it is off 1 of 3 hosts",
        "  gpu-03  tier chat/0: TierPartlyCleaned: …",
        "  gpu-01  /mnt/kv: it is empty",
        "of these, no longer in a group of the backend, and found by their claims:",
        "  gpu-03",
        "TierNotCleaned: out of reach; they keep content and claim until it is run again:",
        "  gpu-02",
        "out of reach and in no group of the backend; whether they hold a claim is not known:",
        "  gpu-04",
    ]


def test_what_one_host_refuses_is_refused_for_all() -> None:
    busy = "tier chat/0: TierNotCleaned: process 7 (store) is a store process on it; stop it first"
    found = removal(
        True,
        gpu_01=host(facts=facts(tier()), predicted=told()),
        gpu_02=host(facts=facts(tier()), predicted=told("TierNotCleaned", msg=busy)),
        gpu_03=host(facts=facts(tier()), predicted={"msg": "boom\nTraceback"}),
        gpu_04=host(facts={"msg": "no python"}),
    )
    assert found["refused"] == [
        f"{busy} (on gpu-02)",
        "boom Traceback (on gpu-03)",
        "what it holds is not known: no python (on gpu-04)",
    ]


def test_a_host_whose_records_cannot_be_read_is_refused() -> None:
    found = removal(True, gpu_01=host(facts=facts(tier()), predicted=told()), gpu_04=host(facts=UNREADABLE))
    why = "its records of tiers cannot be read; /var/x.json: not valid JSON"
    assert found["refused"] == [f"what it holds is not known: {why} (on gpu-04)"]


def test_a_host_that_was_to_hold_a_tier_and_shows_none_is_named() -> None:
    found = removal(gpu_01=host(facts=facts(tier()), predicted=told(), done=told()))
    assert found["missing"] == ["gpu-02", "gpu-03"] and found["refused"] == []
    assert found["table"][-2:] == [
        "were to hold one, and show none (never rolled out, off already, or record lost):",
        "  gpu-02, gpu-03",
    ]


def test_a_host_that_goes_away_in_between_keeps_its_tier() -> None:
    found = removal(gpu_03=host(facts=facts(tier()), predicted=told(), done=AWAY))
    assert found["not_reached"] == ["gpu-03"]


def test_a_backend_that_nobody_holds_is_refused() -> None:
    empty = tier_removal_request({"gpu-01": {}}, ["gpu-01"], "chat", "chat")
    found = tier_removal({"gpu-01": host(facts=facts(tier(backend="code")))}, empty, True)
    assert found["refused"] == ["backend chat: no host that was asked holds a tier of it; correct the name"]


def test_a_wrong_input_is_told() -> None:
    with pytest.raises(AnsibleFilterError, match="must be hostvars"):
        tier_survey([])
    with pytest.raises(AnsibleFilterError, match="must be hostvars"):
        tier_removal_request({}, "gpu-01", "a", "a")
    with pytest.raises(AnsibleFilterError, match="the result of the filter tier_removal_request"):
        tier_removal({}, {"refused": "why"})
