# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""KV-cache backends as they are declared: what breaks a rule of a tier is refused with the reason, all else is read."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stowage_core.drives.declared import Problems
from stowage_core.paths import overlap
from stowage_core.tiers import declared
from stowage_core.tiers.declared import (
    Backend,
    Eviction,
    MemberGroup,
    Tier,
    Watermark,
    check_floors,
    read_backends,
    tier_name,
)
from stowage_core.tiers.fields import camel_case

TIER: dict[str, Any] = {
    "path": "/var/lib/kvcache",
    "capacity": "4Ti",
    "key_limit": 10000000,
    "eviction": {"enabled": True, "policy": "LRU", "watermark": {"high": 90, "low": 80}},
    "clean_after_delete": True,
}
GROUP: dict[str, Any] = {
    "hosts": ["kv-01", "kv-02"],
    "capacity_per_member": "500Gi",
    "image": "registry.example/store:1",
    "owner": 65532,
    "group": "0",
    "mode": "0750",
    "store": "mooncake",
    "extra_env": {"MOONCAKE_OFFLOAD_USE_URING": "true"},
    "local_disks": [TIER],
}
BACKEND: dict[str, Any] = {
    "name": "chat",
    "members": [GROUP],
    "leader_extra_args": ["-eviction_ratio=0.1"],
    "scale_in": {"grace_period_seconds": 30},
}


def backend(**group: Any) -> dict[str, Any]:
    """A backend of one group with a tier, with what is given put in its place."""
    return {"name": "chat", "members": [{"capacity_per_member": "1Gi", "local_disks": [{"path": "/kv"}], **group}]}


def tiered(**tier: Any) -> dict[str, Any]:
    return backend(local_disks=[{"path": "/kv", **tier}])


def whole_files(**tier: Any) -> dict[str, Any]:
    return {"name": "chat", "members": [{"store": "files", "local_disks": [{"path": "/kv", **tier}]}]}


def problems(*backends: Any) -> list[str]:
    with pytest.raises(Problems) as caught:
        read_backends(list(backends))
    return caught.value.problems


def in_camel_case(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if key.isupper() else camel_case(key): in_camel_case(each) for key, each in value.items()}
    return [in_camel_case(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("written", [BACKEND, in_camel_case(BACKEND)])
def test_a_backend_is_read_in_either_case(written: dict[str, Any]) -> None:
    tier = Tier("/var/lib/kvcache", 4 * 1024**4, 10000000, Eviction(True, "LRU", Watermark(90, 80)), True)
    group = MemberGroup(
        ("kv-01", "kv-02"),
        500 * 1024**3,
        "registry.example/store:1",
        "65532",
        "0",
        "0750",
        "mooncake",
        {"MOONCAKE_OFFLOAD_USE_URING": "true"},
        tier,
    )
    assert read_backends([written]) == [Backend("chat", (group,), ("-eviction_ratio=0.1",), 30)]


def test_what_is_left_out_or_null() -> None:
    left_out: dict[str, Any] = {"name": "chat", "members": [{"local_disks": [{"path": "/kv"}]}]}
    null = copy.deepcopy(left_out)
    null.update(leader_extra_args=None, scale_in=None)
    null["members"][0].update(dict.fromkeys(GROUP.keys() - {"local_disks"}))
    null["members"][0]["local_disks"][0].update(dict.fromkeys(TIER.keys() - {"path"}))
    assert read_backends([left_out]) == read_backends([null]) == [Backend("chat", (MemberGroup(tier=Tier("/kv")),))]


def test_an_eviction_block_is_enabled_unless_it_says_otherwise() -> None:
    (found,) = read_backends([tiered(eviction={})])
    assert found.members[0].tier == Tier("/kv", eviction=Eviction(True, "", None))


def test_an_alias_and_the_option_that_ansible_made_of_it() -> None:
    """A module's parameters have both; the option is converted, and the alias is how messages name it."""
    disks = [{"path": "/kv", "keyLimit": "64", "key_limit": 64}]
    (found,) = read_backends([backend(localDisks=disks, local_disks=disks)])
    assert found.members[0].tier == Tier("/kv", key_limit=64)
    disks = [{"path": "kv"}]
    assert problems(backend(localDisks=disks, local_disks=disks)) == [
        "chat: members[0].localDisks[0].path: 'kv' must be absolute; begin it with /"
    ]


def test_two_spellings_with_two_values() -> None:
    assert problems(tiered(keyLimit=100, key_limit=200)) == [
        "chat: members[0].local_disks[0].keyLimit: is given twice, as key_limit and as keyLimit; leave one out"
    ]


PATH = "chat: members[0].local_disks[0].path: "
ROOT = "must not be the root directory: the host's whole filesystem would be the store's; name a directory below it"
PARENT = ": the store refuses such a path before it looks whether there is anything"
AS_WRITTEN = ": it is taken as written, which is another directory than the one that is read"


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("var/lib/kvcache", "'var/lib/kvcache' must be absolute; begin it with /"),
        ("/", ROOT),
        ("//", ROOT),
        (
            "/dev/infiniband",
            "'/dev/infiniband' is /dev/infiniband, where a container is given its network devices: "
            "one would hide the other; name another directory",
        ),
        (
            "/dev//infiniband/kv/",
            "'/dev/infiniband/kv' is inside /dev/infiniband, where a container is given its network devices: "
            "one would hide the other; name another directory",
        ),
        (
            "/dev",
            "'/dev' contains /dev/infiniband, where a container is given its network devices: "
            "one would hide the other; name another directory",
        ),
        ("/var/../kv", "'/var/../kv' may not contain a '..' component" + PARENT),
        ("/..", "'/..' may not contain a '..' component" + PARENT),
        (" /kv", "' /kv' may not begin or end with whitespace" + AS_WRITTEN),
        ("/kv\t", "'/kv\\t' may not begin or end with whitespace" + AS_WRITTEN),
        ("", "must be a path"),
        (None, "must be a path"),
        (7, "must be a path"),
    ],
)
def test_paths_that_are_refused(path: Any, problem: str) -> None:
    assert problems(tiered(path=path)) == [PATH + problem]


@pytest.mark.parametrize("path", ["/dev/infiniband-cache", "/dev/infinibands", "/var/lib/kv cache", "/a..b", "/dev/x"])
def test_paths_that_are_not(path: str) -> None:
    (found,) = read_backends([tiered(path=path)])
    assert found.members[0].tier == Tier(path)


@given(st.text(st.sampled_from("/. \tab-"), max_size=12) | st.text(max_size=12).map(lambda text: "/dev/" + text))
def test_a_path_is_refused_or_obeys_all_five_rules(path: str) -> None:
    try:
        (found,) = read_backends([tiered(path=path)])
    except Problems as error:
        assert [each.startswith(PATH) and each.isprintable() for each in error.problems] == [True]
        return
    tier = found.members[0].tier
    assert tier is not None
    assert tier.path.startswith("/") and tier.path != "/" and path == path.strip()
    assert ".." not in tier.path.split("/") and not overlap(tier.path, "/dev/infiniband")
    assert [part for part in path.split("/") if part] == tier.path[1:].split("/")


@given(st.integers(0, 2**63 - 1), st.sampled_from(["", "Ki", "Mi", "Gi", "k", "M"]))
def test_quantities(number: int, unit: str) -> None:
    factor = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 1000, "M": 10**6}[unit]
    if number * factor >= 2**63:
        assert "is not a whole number of bytes" in problems(tiered(capacity=f"{number}{unit}"))[0]
        return
    (found,) = read_backends([tiered(capacity=f"{number}{unit}")])
    assert found.members[0].tier == Tier("/kv", number * factor)


@example(float("nan"))
@given(st.text(max_size=8) | st.floats() | st.booleans() | st.lists(st.integers()))
def test_what_is_no_quantity(value: Any) -> None:
    try:
        (found,) = read_backends([tiered(capacity=value)])
    except Problems as error:
        assert [each.startswith("chat: members[0].local_disks[0].capacity: ") for each in error.problems] == [True]
        return
    assert isinstance(value, str) and found.members[0].tier is not None and found.members[0].tier.capacity >= 0


EVICTION = "chat: members[0].local_disks[0].eviction"
NO_ORDER = f"{EVICTION}.policy: there is no order in which nothing leaves; with enabled: false leave it out"
NO_MARKS = f"{EVICTION}.watermark: there is nothing that the marks begin and end; with enabled: false leave it out"
NO_CAPACITY = (
    f"{EVICTION}.watermark: the marks are percentages of capacity, which is not declared: the store's own, 0, "
    "switches eviction off; declare capacity, or leave the watermark out"
)
BOTH = {"high": 90, "low": 80}


def low(number: int, high: int) -> str:
    return (
        f"{EVICTION}.watermark.low: {number} must be below high, {high}: every write past the mark would evict, and "
        "the store refuses the pair when it starts, in its own log"
    )


@pytest.mark.parametrize(
    ("tier", "found"),
    [
        ({"eviction": {"enabled": False, "policy": "LRU"}}, [NO_ORDER]),
        ({"capacity": "1Gi", "eviction": {"enabled": False, "watermark": BOTH}}, [NO_MARKS]),
        ({"eviction": {"watermark": BOTH}}, [NO_CAPACITY]),
        ({"capacity": 0, "eviction": {"watermark": BOTH}}, [NO_CAPACITY]),
        ({"capacity": "0Gi", "eviction": {"watermark": BOTH}}, [NO_CAPACITY]),
        ({"key_limit": 100, "eviction": {"watermark": BOTH}}, [NO_CAPACITY]),
        ({"capacity": "1Gi", "eviction": {"watermark": {"high": 80, "low": 80}}}, [low(80, 80)]),
        ({"capacity": "1Gi", "eviction": {"watermark": {"high": 80, "low": 90}}}, [low(90, 80)]),
        (
            {"capacity": "1Gi", "eviction": {"enabled": False, "policy": "FIFO", "watermark": BOTH}},
            [NO_ORDER, NO_MARKS],
        ),
    ],
)
def test_combinations_of_eviction_that_are_refused(tier: dict[str, Any], found: list[str]) -> None:
    assert problems(tiered(**tier)) == found


@pytest.mark.parametrize("policy", ["lru", "fifo", "none", "Lru", "LRU ", "", 1, True, ["LRU"]])
def test_a_policy_is_one_of_two_words(policy: Any) -> None:
    (problem,) = problems(tiered(eviction={"policy": policy}))
    assert problem.startswith(f"{EVICTION}.policy: ")
    assert " is not one of FIFO, LRU" in problem
    assert problem.endswith("the store takes a policy that it does not know for no eviction at all")


@pytest.mark.parametrize("mark", [0, 101, -1, 90.0, "90", True])
@pytest.mark.parametrize("name", ["high", "low"])
def test_marks_are_whole_numbers(name: str, mark: Any) -> None:
    found = problems(tiered(capacity="1Gi", eviction={"watermark": {**BOTH, name: mark}}))
    assert len(found) == 1
    assert found[0].startswith(f"{EVICTION}.watermark.{name}: ")
    assert found[0].endswith(" must be a whole number from 1 to 100")


def test_marks_go_to_both_ends() -> None:
    (found,) = read_backends([tiered(capacity="1Gi", eviction={"watermark": {"high": 100, "low": 1}})])
    assert found.members[0].tier == Tier("/kv", 2**30, eviction=Eviction(watermark=Watermark(100, 1)))


@pytest.mark.parametrize("name", ["high", "low"])
def test_a_watermark_is_a_pair(name: str) -> None:
    found = problems(tiered(capacity="1Gi", eviction={"watermark": {name: 50}}))
    other = "low" if name == "high" else "high"
    assert found == [f"{EVICTION}.watermark.{other}: required; a watermark is a pair"]


def test_a_capacity_that_is_refused_is_not_missed_too() -> None:
    found = problems(tiered(capacity="much", eviction={"watermark": BOTH}))
    assert found == [
        "chat: members[0].local_disks[0].capacity: 'much' is not a size; write bytes or a quantity such as 500G or 4Ti"
    ]


def test_one_entry() -> None:
    assert problems(backend(local_disks=[{"path": "/a"}, {"path": "/b"}])) == [
        "chat: members[0].local_disks: has 2 entries; one at most: a backend reports one pair of figures for its tier, "
        "so that a second one could not be told from it"
    ]


MEMBER = "chat: members[0]"


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        ({"mode": 750}, 'mode: 750 is not a mode; write three octal digits in quotes, as "0750"'),
        ({"mode": "u=rwx"}, "mode: 'u=rwx' is not a mode; write three octal digits in quotes, as \"0750\""),
        ({"mode": "4750"}, "mode: '4750' is not a mode; write three octal digits in quotes, as \"0750\""),
        ({"owner": "a b"}, "owner: 'a b' is neither a name nor a number"),
        ({"owner": -1}, "owner: '-1' is neither a name nor a number"),
        ({"group": True}, "group: true must be a text that is not empty"),
        ({"image": "a\nb"}, "image: 'a\\nb' may not contain control characters"),
        ({"hosts": "all"}, "hosts: 'all' must be a list"),
        ({"hosts": ["a", 1]}, "hosts[1]: 1 must be a text that is not empty"),
        ({"store": "Mooncake"}, "store: 'Mooncake' is not one of mooncake, files; did you mean mooncake?"),
        ({"local_disks": {}}, "local_disks: a dictionary must be a list"),
        ({"local_disks": ["/kv"]}, "local_disks[0]: '/kv' must be a dictionary"),
        ({"nodeSelector": {}}, "nodeSelector: unknown field; name inventory hosts in hosts"),
        ({"medium": "DRAM"}, "medium: unknown field; leave it out: a tier is the same under every medium"),
        ({"localDisk": {}}, "localDisk: unknown field; did you mean localDisks? It is a list of one entry"),
        ({"bucket": 1}, "bucket: unknown field"),
        ({1: 1}, "1: unknown field"),
    ],
)
def test_what_a_group_is_not(group: dict[Any, Any], problem: str) -> None:
    assert problems(backend() | {"members": [{**backend()["members"][0], **group}]})[0] == f"{MEMBER}.{problem}"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("chat", "backends[0]: 'chat' must be a dictionary"),
        ({"members": [{}]}, "backends[0].name: required"),
        ({"name": "Chat", "members": [{}]}, "backends[0].name: 'Chat' is not a name; "),
        ({"name": "a/b", "members": [{}]}, "backends[0].name: 'a/b' is not a name; "),
        ({"name": "chat"}, "chat: members: required; at least one group"),
        ({"name": "chat", "members": []}, "chat: members: required; at least one group"),
        ({"name": "chat", "members": {}}, "chat: members: a dictionary must be a list"),
        ({"name": "chat", "members": [{}], "member": 1}, "chat: member: unknown field; did you mean members?"),
        ({"name": "chat", "members": [{}], "scaleIn": 5}, "chat: scaleIn: 5 must be a dictionary"),
        (
            {"name": "chat", "members": [{}], "scaleIn": {"gracePeriodSeconds": 3601}},
            "chat: scaleIn.gracePeriodSeconds: 3601 must be a whole number from 0 to 3600",
        ),
        ({"name": "chat", "members": [{}], "leader_extra_args": "-a"}, "chat: leader_extra_args: '-a' must be a list"),
    ],
)
def test_what_a_backend_is_not(value: Any, problem: str) -> None:
    (found,) = problems(value)
    assert found.startswith(problem)


def test_the_list_is_one() -> None:
    with pytest.raises(Problems, match=r"^host_kv_caches: must be a list$"):
        read_backends({}, "host_kv_caches")
    assert problems({"name": "chat", "members": [{}]}, {"name": "chat", "members": [{}]}) == [
        "chat: is there twice; a backend is one entry"
    ]


def test_everything_is_said_at_once() -> None:
    found = problems(tiered(path="kv", capacity="x", key_limit=-1), tiered(path="/") | {"name": "b"})
    assert [each.partition(": ")[2].partition(": ")[0] for each in found] == [
        "members[0].local_disks[0].path",
        "members[0].local_disks[0].capacity",
        "members[0].local_disks[0].key_limit",
        "members[0].local_disks[0].path",
    ]


def on(name: str, path: str, hosts: list[str] | None = None) -> dict[str, Any]:
    return {"name": name, "members": [{"hosts": hosts, "local_disks": [{"path": path}]}]}


@pytest.mark.parametrize(("path", "how"), [("/kv", "is"), ("/kv/b", "is inside"), ("/", "contains")])
def test_tiers_on_one_host_are_apart(path: str, how: str) -> None:
    one, other = on("a", "/x/kv"), on("b", f"/x{path}".rstrip("/"), ["h"])
    assert problems(one, other) == [
        f"b: members[0].local_disks[0].path: '/x{path.rstrip('/')}' {how} the tier of a: members[0] on the same hosts; "
        "members in one directory destroy each other's buckets, and deletion of one would empty the other"
    ]


@pytest.mark.parametrize(
    ("hosts", "others"), [(["a"], ["b"]), ([], None), (None, []), ([], [])], ids=["other hosts", "none", "none", "none"]
)
def test_tiers_on_other_hosts_may_have_one_path(hosts: list[str] | None, others: list[str] | None) -> None:
    assert len(read_backends([on("a", "/kv", hosts), on("b", "/kv", others)])) == 2


def test_groups_of_one_backend_are_apart_too() -> None:
    group = {"local_disks": [{"path": "/kv"}]}
    (problem,) = problems({"name": "chat", "members": [group, group]})
    assert problem.startswith("chat: members[1].local_disks[0].path: '/kv' is the tier of chat: members[0] on")


IN_MEMORY = "cannot hold one bucket, which stays in memory until it is complete; a bucket has 16777216 bytes (16Mi)"
NOTHING = "cannot hold one bucket, and the store would write nothing and say nothing"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (backend(capacity_per_member="15Mi"), f"{MEMBER}.capacity_per_member: 15728640 bytes {IN_MEMORY}"),
        (backend(capacity_per_member=None), f"{MEMBER}.capacity_per_member: 0 bytes {IN_MEMORY}"),
        (
            tiered(capacity=2**24 - 1),
            f"{MEMBER}.local_disks[0].capacity: 16777215 bytes {NOTHING}; a bucket has 16777216 bytes (16Mi), "
            "0 is no limit",
        ),
        (
            tiered(key_limit=63),
            f"{MEMBER}.local_disks[0].key_limit: 63 keys {NOTHING}; a bucket has 64 keys, 0 is no limit",
        ),
    ],
)
def test_one_bucket_is_the_floor_of_what_is_new_or_changes(value: dict[str, Any], problem: str) -> None:
    (new,) = read_backends([value])
    (before,) = read_backends([backend()])
    (without_tier,) = read_backends([{"name": "chat", "members": [{"capacity_per_member": "15Mi"}]}])
    for old in (None, before, without_tier):
        with pytest.raises(Problems) as caught:
            check_floors(new, old)
        assert caught.value.problems == [problem]
    check_floors(new, new)


def test_another_value_that_changes_leaves_a_small_one_alone() -> None:
    (old,) = read_backends([tiered(capacity="1Mi", key_limit=1)])
    (new,) = read_backends([tiered(capacity="1Mi", key_limit=2)])
    with pytest.raises(Problems) as caught:
        check_floors(new, old)
    assert [each.partition(":")[2].partition(":")[0] for each in caught.value.problems] == [
        " members[0].local_disks[0].key_limit"
    ]


@pytest.mark.parametrize(
    "value",
    [
        tiered(capacity="16Mi", key_limit=64),
        tiered(capacity=0, key_limit=0),
        backend(capacity_per_member="16Mi"),
        {"name": "chat", "members": [{"capacity_per_member": "1Mi"}]},
        whole_files(capacity="1Mi", key_limit=1),
    ],
    ids=["at the floor", "no limit", "memory at the floor", "no tier", "whole files"],
)
def test_what_the_floors_let_pass(value: dict[str, Any]) -> None:
    check_floors(read_backends([value])[0])


@pytest.mark.parametrize(
    "tier",
    [
        {},
        {"capacity": "1Gi"},
        {"capacity": "1Gi", "eviction": {"policy": "FIFO"}},
        {"key_limit": 100, "eviction": {"watermark": BOTH}},
    ],
)
def test_whole_files(tier: dict[str, Any]) -> None:
    (found,) = read_backends([whole_files(**tier)])
    assert found.members[0].store == declared.FILES and not found.members[0].is_offloading


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            whole_files(eviction={}),
            f"{EVICTION}: the daemon evicts by capacity or key_limit, and neither is declared; declare one",
        ),
        (
            whole_files(capacity="1Gi", eviction={"enabled": False}),
            f"{EVICTION}.enabled: false is for a store that stops writing, and with store: files nobody keeps the "
            "writers of whole files from filling the directory; leave eviction out",
        ),
        (
            {"name": "chat", "members": [{"store": "files"}]},
            "chat: members[0].local_disks: required with store: files; the directory is all that there is of such a "
            "group",
        ),
        (
            {"name": "chat", "members": [{**whole_files()["members"][0], "capacityPerMember": "1Gi"}]},
            "chat: members[0].capacityPerMember: is for a process of the store, and with store: files there is none; "
            "leave it out",
        ),
        (
            {"name": "chat", "members": [{**whole_files()["members"][0], "extra_env": {"A": "b"}}]},
            "chat: members[0].extra_env: is for a process of the store, and with store: files there is none; "
            "leave it out",
        ),
    ],
)
def test_what_means_nothing_for_whole_files(value: dict[str, Any], problem: str) -> None:
    assert problems(value) == [problem]


@pytest.mark.parametrize("value", [BACKEND, backend(), whole_files(), {"name": "chat", "members": [{"hosts": []}]}])
def test_the_record_is_the_same_backend(value: dict[str, Any]) -> None:
    (found,) = read_backends([value])
    recorded = json.loads(json.dumps(found.to_json()))
    assert Backend.from_json(recorded) == found


def test_tiers_of_a_host() -> None:
    groups = [
        {"hosts": ["a"], "local_disks": [{"path": "/a"}]},
        {"hosts": ["a", "b"]},
        {"hosts": ["b"], "local_disks": [{"path": "/b"}]},
        {"local_disks": [{"path": "/c"}]},
    ]
    (found,) = read_backends([{"name": "chat", "members": groups}])
    assert [(position, tier.path) for position, _group, tier in found.tiers()] == [(0, "/a"), (2, "/b"), (3, "/c")]
    assert [position for position, _group, _tier in found.tiers("a")] == [0, 3]
    assert tier_name("chat", 3) == "chat/3"
