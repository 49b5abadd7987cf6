# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a run may start: each reason of Astraeus's table in full, and each rule of the ranking."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.drives import refs as drive_refs
from stowage_core.drives.declared import check_drives
from stowage_core.drives.refs import Wanted
from stowage_core.placement.decision import Placement, Verdict, holders
from stowage_core.placement.decision import place as place_each
from stowage_core.placement.machines import Machine, machine

GB = 10**9
NFS = {"can_export": True, "can_mount": True}
PORT = {"link_layer": "Ethernet", "subnet_prefix": "fe80:0000:0000:0000", "active": True, "addresses": ["10.0.0.1"]}
WORKSPACE = "ml"


def location(free: int | None = 900 * GB, used: int | None = 0, limit: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "path": "/mnt/nvme0/stowage",
        "available": True,
        "size_bytes": 1000 * GB,
        "free_bytes": free,
        "max_bytes": limit,
        "used_bytes": used,
        "reserved_bytes": 0,
        **fields,
    }


def compact(place: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    empty = {"labels": {}, "data_location": place, "copies": {}, "shared": [], "addresses": [], "rdma": [], "nfs": NFS}
    return {**empty, **fields}


def spec(node_scope: str, path: str, node: str = "", eligible: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    source = {
        "node_scope": node_scope,
        "node": node,
        "path": path,
        "mount_path": "/data",
        "eligible_nodes": list(eligible),
    }
    return {"sources": [source], **fields}


def placed(size: int = 107_374_182_400, eligible: tuple[str, ...] = ()) -> dict[str, Any]:
    return spec("placed", "", eligible=eligible, size_hint_bytes=size)


def on_one(node: str = "gpu-01", **fields: Any) -> dict[str, Any]:
    return spec("", "/mnt/nvme0/imagenet", node, **fields)


LUSTRE = spec("shared", "/lustre/checkpoints", "gpu-01")
MOUNTED = [{"mount": "/lustre", "mounts": ["/lustre"], "fstype": "lustre", "source": "a@o2ib:/b", "answers": True}]


def wanted(specs: Mapping[str, Mapping[str, Any]], refs: str = "") -> list[Wanted]:
    drives = check_drives([{"metadata": {"name": name}, "spec": one} for name, one in specs.items()])
    return drive_refs.resolve(drive_refs.parse(refs or ",".join(specs)), drives)


def machines(hosts: Mapping[str, Any], labels: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, Machine]:
    """Machines of their names, each with addresses of its own."""
    return {
        name: machine(name, facts and addressed(facts, number), (labels or {}).get(name))
        for number, (name, facts) in enumerate(hosts.items(), 1)
    }


def addressed(facts: Mapping[str, Any], number: int) -> dict[str, Any]:
    ports = [{**port, "addresses": [f"10.0.0.{number}"] if port["addresses"] else []} for port in facts["rdma"]]
    return {**facts, "addresses": [f"192.0.2.{number}/24"], "rdma": ports}


def place(hosts: Iterable[str], known: Mapping[str, Machine], workspace: str, asked: list[Wanted]) -> Placement:
    """Place a run by one list of drives for all hosts."""
    return place_each(dict.fromkeys(hosts, asked), known, workspace)


def texts(verdict: Verdict) -> list[str]:
    return [reason.text for reason in verdict.reasons]


def reasons(facts: Any, specs: Mapping[str, Any], refs: str = "", host: str = "gpu-07") -> list[str]:
    """Why the host is no candidate."""
    found = place([host], machines({host: facts}), WORKSPACE, wanted(specs, refs))
    assert found.candidates == ([] if found.verdicts[0].reasons else [host])
    return texts(found.verdicts[0])


# -- Each reason of the table


def test_no_data_location() -> None:
    assert reasons(compact(), {"hf-cache": placed()}, host="gpu-01") == ["Choose where to keep data on gpu-01"]


def test_not_enough_space_on_the_disk() -> None:
    assert reasons(compact(location(40 * GB)), {"hf-cache": placed()}) == [
        "drive hf-cache needs 107 GB at this machine's data location, 40.0 GB free"
    ]


def test_not_enough_space_within_the_limit() -> None:
    assert reasons(compact(location(used=450 * GB, limit=500 * GB)), {"hf-cache": placed()}) == [
        "drive hf-cache needs 107 GB; this machine's data location holds 450 GB of its 500 GB limit"
    ]


def test_on_another_machine_with_transport_local() -> None:
    assert reasons(compact(), {"imagenet": on_one(transport="Local")}) == [
        "drive imagenet: source 0 is local to machine gpu-01 and its transport is Local"
    ]


@pytest.mark.parametrize(
    "drive", [on_one(eligible=("gpu-01",)), placed(eligible=("gpu-01",)), spec("shared", "/x", eligible=("gpu-01",))]
)
def test_not_an_eligible_machine(drive: dict[str, Any]) -> None:
    assert reasons(compact(), {"imagenet": drive}) == ["drive imagenet: source 0 is not usable from machine gpu-07"]


@pytest.mark.parametrize("shared", [[], [{**MOUNTED[0], "mounts": ["/lustre/check"]}]])
def test_a_shared_filesystem_that_was_not_reported(shared: list[Any]) -> None:
    assert reasons(compact(shared=shared), {"lustre-ckpt": LUSTRE}) == [
        "drive lustre-ckpt: /lustre/checkpoints is not on a shared filesystem mounted here"
    ]


def test_another_site() -> None:
    hosts = {"gpu-01": compact(), "gpu-07": compact()}
    known = machines(hosts, {"gpu-01": {"site": "eu-west"}, "gpu-07": {"site": "us-east"}})
    found = place(["gpu-07"], known, WORKSPACE, wanted({"imagenet": on_one()}))
    assert texts(found.verdicts[0]) == ["drive imagenet is on gpu-01, in another site (eu-west)"]


# What a run is refused with when its network mounts are to be made, in its words.


def near(here: Mapping[str, Any], holder: Mapping[str, Any], transport: str = "Auto") -> list[str]:
    known = machines({"gpu-01": compact(**holder), "gpu-07": compact(**here)})
    found = place(["gpu-07"], known, WORKSPACE, wanted({"imagenet": on_one(transport=transport)}))
    return texts(found.verdicts[0])


@pytest.mark.parametrize(
    ("here", "holder", "transport", "reason"),
    [
        ({"nfs": {**NFS, "can_mount": False}}, {}, "Auto", "drive imagenet: gpu-07 has no mount.nfs"),
        ({}, {"nfs": {**NFS, "can_export": False}}, "TCP", "drive imagenet: gpu-01 has no exportfs and rpc.nfsd"),
        ({"nfs": {**NFS, "can_export": False}}, {"nfs": {**NFS, "can_mount": False}}, "Auto", ""),
        (
            {},
            {"rdma": [PORT]},
            "RDMA",
            "drive imagenet: its transport is RDMA, and gpu-07 has no active RDMA port with an address",
        ),
        (
            {"rdma": [{**PORT, "link_layer": "InfiniBand"}]},
            {"rdma": [PORT]},
            "RDMA",
            "drive imagenet: its transport is RDMA, and gpu-01 and gpu-07 have no kind of RDMA network both",
        ),
        ({"rdma": [PORT]}, {"rdma": [PORT]}, "RDMA", ""),
        ({}, {"rdma": [PORT]}, "Auto", ""),
    ],
)
def test_a_network_mount_that_would_be_refused(
    here: Mapping[str, Any], holder: Mapping[str, Any], transport: str, reason: str
) -> None:
    assert near(here, holder, transport) == ([reason] if reason else [])


def test_the_addresses_that_the_operator_names_count() -> None:
    known = machines({"gpu-01": compact(), "gpu-07": compact()})
    drive = wanted({"imagenet": on_one()})
    for address, count in (("192.0.2.9", 1), ("2001:db8::9", 0)):
        known["gpu-07"] = known["gpu-07"]._replace(nfs_address=address)
        assert len(place(["gpu-07"], known, WORKSPACE, drive).candidates) == count


def test_network_mounts_of_many_machines_are_told_in_one_line() -> None:
    names = ["b", "c", "d"]
    known = machines({"a": compact(rdma=[PORT]), **{name: compact() for name in names}})
    found = place(names, known, WORKSPACE, wanted({"imagenet": on_one("a", transport="RDMA")}))
    told = "drive imagenet: its transport is RDMA, and 3 machines are on no RDMA network with a"
    assert found.refused == [(told, names)]


def test_no_such_drive() -> None:
    assert reasons(compact(), {}, "imagenet") == ["drive imagenet does not exist"]


def test_a_drive_that_is_being_deleted() -> None:
    drives = check_drives([{"metadata": {"name": "imagenet"}, "spec": on_one(), "state": "absent"}])
    found = place(["gpu-01"], {}, WORKSPACE, drive_refs.resolve(drive_refs.parse("imagenet"), drives))
    assert found.waiting == ["drive imagenet does not exist"]


# -- Candidates


@pytest.mark.parametrize(
    ("facts", "drive"),
    [
        (compact(location()), placed()),
        (compact(location(107_374_182_400)), placed()),
        (compact(location(used=393 * GB, limit=500_374_182_400)), placed()),
        # Nothing is known of the room, of the size, or of what there is of the limit.
        (compact(location(None, None)), placed()),
        (compact(location(used=None, limit=1)), placed()),
        (compact(location(0, 600 * GB, 500 * GB)), placed(0)),
        # It has the copy: no room is needed.
        (compact(location(0), copies={"ml.drive": None}), placed()),
        (compact(location(used=500 * GB, limit=500 * GB), copies={"ml.drive": 5}), placed()),
        (compact(), on_one()),
        (compact(), on_one("gpu-07", transport="Local")),
        (compact(), on_one(eligible=("gpu-01", "gpu-07"))),
        (compact(shared=MOUNTED), LUSTRE),
        (compact(), spec("local-any", "/scratch")),
        (None, spec("local-any", "/scratch")),
        (None, on_one()),
    ],
)
def test_a_candidate(facts: Any, drive: dict[str, Any]) -> None:
    assert reasons(facts, {"drive": drive}) == []


def test_a_run_without_drives_may_start_anywhere() -> None:
    assert place(["b", "a"], {}, WORKSPACE, []).candidates == ["a", "b"]


def test_another_workspace_s_copy_is_none() -> None:
    assert reasons(compact(location(0), copies={"other.drive": 5}), {"drive": placed()}) != []


def test_a_drive_whose_machine_is_unknown_is_in_no_site() -> None:
    known = machines({"gpu-07": compact()}, {"gpu-07": {"site": "us-east"}})
    assert place(["gpu-07"], known, WORKSPACE, wanted({"imagenet": on_one()})).candidates == ["gpu-07"]


# -- What is certain to fail, and Astraeus has no reason for


def test_a_machine_that_has_reported_nothing() -> None:
    assert reasons(None, {"hf-cache": placed(), "lustre-ckpt": LUSTRE}, "hf-cache,lustre-ckpt") == [
        "machine gpu-07 has not reported its storage yet; gather its facts",
        "drive lustre-ckpt: /lustre/checkpoints is not on a shared filesystem mounted here",
    ]


def test_a_data_location_whose_disk_is_not_mounted() -> None:
    facts = compact(location(None, available=False), copies={"ml.hf-cache": 5})
    assert reasons(facts, {"hf-cache": placed()}) == [
        "the data location of gpu-07 is not available: /mnt/nvme0/stowage is not mounted, or not its own"
    ]


def test_a_machine_that_does_not_answer() -> None:
    known = {"a": machine("a", compact(location()), up=False), "b": machine("b", compact(location()))}
    found = place("ab", known, WORKSPACE, wanted({"hf-cache": placed()}))
    assert found.candidates == ["b"]
    assert found.refused == [("machine a did not answer", ["a"])]


@pytest.mark.parametrize(
    ("drive", "reason"),
    [
        (on_one(), "drive drive: source 0 is on machine gpu-01 which is Down"),
        (on_one(transport="RDMA"), "drive drive: source 0 is on machine gpu-01 which is Down"),
        (on_one(transport="Local"), "drive drive: source 0 is local to machine gpu-01 and its transport is Local"),
        (on_one("gpu-07"), None),
        (spec("shared", "/lustre/x", "gpu-01"), None),
    ],
)
def test_the_machine_of_a_drive_does_not_answer(drive: dict[str, Any], reason: str | None) -> None:
    known = machines({"gpu-01": compact(rdma=[PORT]), "gpu-07": compact(shared=MOUNTED, rdma=[PORT])})
    known["gpu-01"] = known["gpu-01"]._replace(up=False)
    found = place(["gpu-01", "gpu-07"], known, WORKSPACE, wanted({"drive": drive}))
    assert {verdict.host: texts(verdict) for verdict in found.verdicts} == {
        "gpu-01": ["machine gpu-01 did not answer"],
        "gpu-07": [reason] if reason else [],
    }


# -- Several drives


def test_copies_of_one_run_share_the_disk() -> None:
    three = {name: placed(60 * GB) for name in ("one", "two", "three")}
    assert reasons(compact(location(180 * GB)), three) == []
    assert reasons(compact(location(130 * GB)), three) == [
        "drive three needs 60.0 GB at this machine's data location, 10.0 GB free"
    ]
    assert reasons(compact(location(used=350 * GB, limit=500 * GB)), three) == [
        "drive three needs 60.0 GB; this machine's data location holds 470 GB of its 500 GB limit"
    ]
    assert reasons(compact(location(130 * GB), copies={"ml.one": 60 * GB}), three) == []


def test_what_fills_are_still_going_to_write_is_taken() -> None:
    filling = location(150 * GB, 350 * GB, 500 * GB, reserved_bytes=110 * GB)
    assert reasons(compact(filling), {"hf-cache": placed()}) == [
        "drive hf-cache needs 107 GB at this machine's data location, 40.0 GB free",
        "drive hf-cache needs 107 GB; this machine's data location holds 460 GB of its 500 GB limit",
    ]
    assert reasons(compact({**filling, "reserved_bytes": None}), {"hf-cache": placed()}) == []
    assert reasons(compact({**filling, "reserved_bytes": None}), {"hf-cache": placed(160 * GB)}) != []


def test_a_copy_that_has_no_room_takes_none() -> None:
    drives = {"large": placed(500 * GB), "small": placed(60 * GB)}
    assert reasons(compact(location(100 * GB)), drives) == [
        "drive large needs 500 GB at this machine's data location, 100 GB free"
    ]


def test_the_disk_and_the_limit() -> None:
    assert reasons(compact(location(40 * GB, 450 * GB, 500 * GB)), {"hf-cache": placed()}) == [
        "drive hf-cache needs 107 GB at this machine's data location, 40.0 GB free",
        "drive hf-cache needs 107 GB; this machine's data location holds 450 GB of its 500 GB limit",
    ]


def test_one_drive_at_two_places_has_one_copy() -> None:
    assert reasons(compact(location(100 * GB)), {"one": placed(60 * GB)}, "one:/a,one:/b") == []


def test_every_drive_says_what_it_lacks() -> None:
    drives = {"hf-cache": placed(), "other": placed(), "ckpt": LUSTRE}
    assert reasons(compact(), drives, "hf-cache,other,ckpt,gone") == [
        "Choose where to keep data on gpu-07",
        "drive ckpt: /lustre/checkpoints is not on a shared filesystem mounted here",
        "drive gone does not exist",
    ]


def test_the_source_that_the_run_names() -> None:
    two = on_one()
    two["sources"].append({**two["sources"][0], "node": "gpu-02", "eligible_nodes": ["gpu-02"]})
    drives = check_drives([{"metadata": {"name": "two"}, "spec": two}])
    asked = drive_refs.resolve(drive_refs.read([{"name": "two", "source_index": 1}]), drives)
    assert holders(asked) == {"gpu-02"}
    found = place(["gpu-01", "gpu-02"], {}, WORKSPACE, asked)
    assert found.candidates == ["gpu-02"]
    assert found.waiting == []
    assert found.refused == [("drive two: source 1 is not usable from machine gpu-01", ["gpu-01"])]


# -- What the run waits for


def test_several_machines_without_a_data_location() -> None:
    hosts = {"a": compact(), "b": compact(), "c": compact(location(40 * GB))}
    found = place(hosts, machines(hosts), WORKSPACE, wanted({"hf-cache": placed()}))
    assert found.waiting == [
        "Choose where to keep data on the machines",
        "drive hf-cache needs 107 GB at this machine's data location, 40.0 GB free",
    ]
    assert found.refused[0] == ("Choose where to keep data on the machines", ["a", "b"])
    # Each machine's own reason names it.
    assert texts(found.verdicts[0]) == ["Choose where to keep data on a"]


def test_one_machine_without_a_data_location() -> None:
    hosts = {"a": compact(), "b": compact(location(40 * GB))}
    found = place(hosts, machines(hosts), WORKSPACE, wanted({"hf-cache": placed()}))
    assert "Choose where to keep data on a" in found.waiting


def test_a_run_that_has_a_candidate_waits_for_nothing() -> None:
    hosts = {"a": compact(), "b": compact(), "c": compact(location())}
    found = place(hosts, machines(hosts), WORKSPACE, wanted({"hf-cache": placed()}))
    assert (found.candidates, found.waiting) == (["c"], [])
    assert found.refused == [("Choose where to keep data on the machines", ["a", "b"])]


KINDS = [
    (
        [compact(location(number * GB)) for number in (40, 1, 90)],
        placed(),
        "drive drive needs 107 GB at this machine's data location: 3 hosts have between 1.0 GB and 90.0 GB free",
    ),
    (
        [compact(location(used=used * GB, limit=500 * GB)) for used in (450, 499, 700)],
        placed(),
        "drive drive needs 107 GB at this machine's data location: 3 hosts have between 0 B and 50.0 GB left of their"
        " limit",
    ),
    (
        [compact(location(None, available=False)) for _number in range(3)],
        placed(),
        "the data locations of 3 machines are not available: not mounted, or not their own",
    ),
    ([compact()] * 3, placed(eligible=("gpu-01",)), "drive drive: source 0 is not usable from 3 machines"),
    ([None] * 3, placed(), "3 machines have not reported their storage yet; gather their facts"),
    ([compact()] * 3, placed(), "Choose where to keep data on the machines"),
    (
        [compact(location(40 * GB))] * 3,
        placed(),
        "drive drive needs 107 GB at this machine's data location, 40.0 GB free",
    ),
    ([compact()] * 3, LUSTRE, "drive drive: /lustre/checkpoints is not on a shared filesystem mounted here"),
]


@pytest.mark.parametrize(("facts", "drive", "told"), KINDS)
def test_reasons_of_one_kind_are_told_in_one_line(facts: list[Any], drive: dict[str, Any], told: str) -> None:
    hosts = dict(zip("abc", facts))
    found = place(hosts, machines(hosts), WORKSPACE, wanted({"drive": drive}))
    assert found.refused == [(told, ["a", "b", "c"])]
    # Of one machine it is told in Astraeus's words, and so is why the run waits.
    each = [text for verdict in found.verdicts for text in texts(verdict)]
    choosing = told == "Choose where to keep data on the machines"
    assert set(found.waiting) == ({told} if choosing else set(each))
    for host, verdict in zip(hosts, found.verdicts):
        one = place([host], machines(hosts), WORKSPACE, wanted({"drive": drive}))
        assert one.refused == [(text, [host]) for text in texts(verdict)]


def test_machines_that_do_not_answer_are_told_in_one_line() -> None:
    known = {name: machine(name, None, up=False) for name in "abc"}
    found = place("abc", known, WORKSPACE, wanted({"drive": placed()}))
    assert found.refused == [("3 machines did not answer", ["a", "b", "c"])]
    assert found.waiting == [f"machine {name} did not answer" for name in "abc"]


# -- The ranking


def rank(hosts: Mapping[str, Any], drives: Mapping[str, Any], labels: Mapping[str, Any] | None = None) -> Placement:
    return place([name for name in hosts if name != "holder"], machines(hosts, labels), WORKSPACE, wanted(drives))


def said(found: Placement) -> dict[str, list[str]]:
    return {verdict.host: list(verdict.preferred) for verdict in found.verdicts}


def test_the_machine_of_a_drive_comes_first() -> None:
    drives = {"imagenet": on_one("b")}
    found = place("abc", machines({name: compact() for name in "abc"}), WORKSPACE, wanted(drives))
    assert found.candidates == ["b", "a", "c"]
    assert said(found) == {"b": ["drive imagenet is on it"], "a": [], "c": []}


def test_a_machine_with_a_copy_comes_first() -> None:
    hosts = {name: compact(location()) for name in "abc"}
    hosts["c"] = compact(location(), copies={"ml.hf-cache": 5})
    found = rank(hosts, {"hf-cache": placed()})
    assert found.candidates == ["c", "a", "b"]
    assert said(found)["c"] == ["has a copy of drive hf-cache"]


def test_who_holds_more_comes_before_who_holds_less() -> None:
    hosts = {
        "a": compact(location(), copies={"ml.one": 5}),
        "b": compact(location()),
        "c": compact(location(), copies={"ml.one": 5, "ml.two": 5}),
    }
    assert rank(hosts, {"one": placed(), "two": placed()}).candidates == ["c", "a", "b"]


HERE = {"rack": "r1", "infiniband_fabric": "f1", "nvlink_domain": "n1"}


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"rack": "r1"}, "same rack"),
        ({"infiniband_fabric": "f1"}, "same InfiniBand fabric"),
        ({"nvlink_domain": "n1"}, "same NVLink domain"),
        (HERE, "same rack, same InfiniBand fabric, same NVLink domain"),
    ],
)
def test_a_machine_that_is_near(labels: dict[str, str], words: str) -> None:
    hosts = {name: compact() for name in ("a", "b", "holder")}
    found = rank(hosts, {"imagenet": on_one("holder")}, {"holder": HERE, "a": {"rack": "r2"}, "b": labels})
    assert found.candidates == ["b", "a"]
    assert said(found) == {"b": [f"drive imagenet is on holder: {words}"], "a": []}


def test_the_order_of_what_is_near() -> None:
    hosts = {name: compact() for name in ("none", "a-nvlink", "b-fabric", "c-rack", "d-two", "holder")}
    labels = {
        "holder": HERE,
        "a-nvlink": {"nvlink_domain": "n1"},
        "b-fabric": {"infiniband_fabric": "f1"},
        "c-rack": {"rack": "r1"},
        "d-two": {"infiniband_fabric": "f1", "nvlink_domain": "n1"},
    }
    found = rank(hosts, {"imagenet": on_one("holder")}, labels)
    assert found.candidates == ["d-two", "c-rack", "b-fabric", "a-nvlink", "none"]


@pytest.mark.parametrize(("transport", "counts"), [("Auto", True), ("RDMA", True), ("TCP", False)])
def test_rdma_at_both_ends(transport: str, counts: bool) -> None:
    hosts = {"a": compact(), "b": compact(rdma=[PORT]), "holder": compact(rdma=[PORT])}
    found = rank(hosts, {"imagenet": on_one("holder", transport=transport)})
    # Over RDMA only: who has none cannot read it.
    assert found.candidates == {"Auto": ["b", "a"], "RDMA": ["b"], "TCP": ["a", "b"]}[transport]
    assert said(found)["b"] == (["drive imagenet is on holder: RDMA at both ends"] if counts else [])


def test_rdma_counts_among_those_that_are_as_near() -> None:
    near = {"rack": "r1"}
    hosts = {
        "a-far": compact(rdma=[PORT]),
        "b-near": compact(),
        "c-near": compact(rdma=[PORT]),
        "holder": compact(rdma=[PORT]),
    }
    found = rank(hosts, {"imagenet": on_one("holder")}, {"holder": HERE, "b-near": near, "c-near": near})
    assert found.candidates == ["c-near", "b-near", "a-far"]
    assert said(found)["c-near"] == ["drive imagenet is on holder: same rack, RDMA at both ends"]


def test_holding_counts_more_than_being_near() -> None:
    hosts = {"a": compact(location(), rdma=[PORT]), "b": compact(location(), copies={"ml.hf-cache": 1})}
    hosts["holder"] = compact(rdma=[PORT])
    drives = {"imagenet": on_one("holder"), "hf-cache": placed()}
    assert rank(hosts, drives, {"holder": HERE, "a": HERE}).candidates == ["b", "a"]


def test_a_near_machine_means_nothing_to_a_shared_drive() -> None:
    hosts = {"a": compact(shared=MOUNTED), "gpu-01": compact(shared=MOUNTED)}
    assert said(rank(hosts, {"ckpt": LUSTRE})) == {"a": [], "gpu-01": []}


def test_what_is_told_of_every_machine() -> None:
    hosts = {"a": compact(), "b": compact(location(), copies={"ml.hf-cache": 1})}
    assert rank(hosts, {"hf-cache": placed()}).to_json() == {
        "candidates": ["b"],
        "hosts": {
            "b": {"candidate": True, "rank": 1, "preferred": ["has a copy of drive hf-cache"], "reasons": []},
            "a": {"candidate": False, "rank": None, "preferred": [], "reasons": ["Choose where to keep data on a"]},
        },
        "refused": [{"reason": "Choose where to keep data on a", "hosts": ["a"]}],
        "waiting": [],
    }


# -- Invariants

SIZES = st.integers(0, 20)
LOCATIONS = st.builds(location, st.none() | SIZES, st.none() | SIZES, SIZES)
LABELS = st.dictionaries(st.sampled_from(["site", "rack", "infiniband_fabric", "nvlink_domain"]), st.sampled_from("xy"))
FACTS = st.builds(
    compact,
    st.none() | LOCATIONS,
    copies=st.dictionaries(st.sampled_from(["ml.p0", "ml.p1", "ml.p2"]), st.none() | SIZES),
    shared=st.sampled_from([[], MOUNTED]),
    rdma=st.sampled_from([[], [PORT]]),
)
HOSTS = st.dictionaries(st.sampled_from("abcde"), st.tuples(st.none() | FACTS, st.none() | LABELS), min_size=1)
ELIGIBLE = st.sampled_from([(), ("a", "b")])
SPECS = st.fixed_dictionaries(
    {name: st.builds(placed, SIZES, ELIGIBLE) for name in ("p0", "p1", "p2")},
    optional={
        "one": st.builds(on_one, st.sampled_from("ab"), transport=st.sampled_from(["Auto", "TCP", "Local"])),
        "two": st.builds(on_one, st.sampled_from("cz"), eligible=ELIGIBLE),
        "shared": st.just(LUSTRE),
        "scratch": st.just(spec("local-any", "/scratch")),
    },
)


def found_for(hosts: Mapping[str, tuple[Any, Any]], specs: Mapping[str, Any], order: list[str]) -> Placement:
    known = {name: machine(name, *hosts[name]) for name in order}
    return place(order, known, WORKSPACE, wanted(specs))


@given(HOSTS, SPECS, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_count(
    hosts: dict[str, tuple[Any, Any]], specs: dict[str, Any], chance: random.Random
) -> None:
    shuffled = list(hosts)
    chance.shuffle(shuffled)
    found = found_for(hosts, specs, list(hosts))
    assert found_for(hosts, specs, shuffled) == found
    assert sorted(verdict.host for verdict in found.verdicts) == sorted(hosts)
    assert [one.rank for one in found.verdicts if one.rank] == list(range(1, len(found.candidates) + 1))
    assert all((one.rank is None) == bool(one.reasons) for one in found.verdicts)
    assert bool(found.waiting) == (not found.candidates)


@given(FACTS, SPECS)
def test_unknown_room_refuses_nobody(facts: dict[str, Any], specs: dict[str, Any]) -> None:
    unknown = {**facts, "data_location": location(None, None, 5)}
    (verdict,) = found_for({"a": (unknown, None)}, specs, ["a"]).verdicts
    assert not any("needs" in reason for reason in texts(verdict))


@given(FACTS, LOCATIONS, SPECS, SIZES, SIZES, SIZES)
def test_more_room_makes_no_candidate_another(
    facts: dict[str, Any], at: dict[str, Any], specs: dict[str, Any], free: int, unused: int, limit: int
) -> None:
    more = {
        **at,
        "free_bytes": None if at["free_bytes"] is None else at["free_bytes"] + free,
        "used_bytes": None if at["used_bytes"] is None else max(0, at["used_bytes"] - unused),
        "max_bytes": at["max_bytes"] and at["max_bytes"] + limit,
    }
    before, after = (found_for({"a": ({**facts, "data_location": one}, None)}, specs, ["a"]) for one in (at, more))
    assert not before.candidates or after.candidates


@given(LOCATIONS, st.permutations(["p0", "p1", "p2"]), st.tuples(SIZES, SIZES, SIZES))
def test_whether_drives_fit_together_does_not_depend_on_their_order(
    at: dict[str, Any], order: list[str], sizes: tuple[int, int, int]
) -> None:
    specs = {f"p{number}": placed(size) for number, size in enumerate(sizes)}
    fits = not reasons(compact(at), specs)
    assert (not reasons(compact(at), specs, ",".join(order))) == fits
    new = sum(sizes)
    disk = at["free_bytes"] is None or new <= at["free_bytes"]
    limit = not at["max_bytes"] or at["used_bytes"] is None or not new or at["used_bytes"] + new <= at["max_bytes"]
    assert fits == (disk and limit)
