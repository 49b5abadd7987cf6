# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which persistent volume claim holds what of a layout, and who may write to it."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from stowage_core.errors import Refusal
from stowage_core.layout.rules import resolve
from stowage_core.renderings.claims import Claims, Part, setting

OVERRIDES = {"runs": "/srv/tuneplane-runs", "cache": "/srv/tuneplane-cache"}
LAYOUT = resolve("/srv/tuneplane", dict(OVERRIDES), "/srv/volumes")
OWN = MappingProxyType({"cache_root": "download-cache", "runs_root": "run-data"})


def claims(claim: Any = "platform-data", own: Any = OWN, modes: Any = None) -> Claims:
    return Claims.read(LAYOUT, claim, own, modes)


def test_the_settings_are_those_of_the_specification() -> None:
    found = claims().settings("TUNEPLANE_")
    assert found == {
        "TUNEPLANE_K8S_STORAGE_PVC": "platform-data",
        "TUNEPLANE_K8S_STORAGE_PVCS": '{"runs_root":"run-data","cache_root":"download-cache"}',
    }
    assert json.loads(found["TUNEPLANE_K8S_STORAGE_PVCS"]) == OWN


@pytest.mark.parametrize(
    ("claim", "own", "names"),
    [("a", {}, ["X_K8S_STORAGE_PVC"]), ("", OWN, ["X_K8S_STORAGE_PVCS"]), ("", None, [])],
)
def test_what_there_is_none_of_is_not_set(claim: str, own: Any, names: list[str]) -> None:
    assert list(claims(claim, own).settings("X_")) == names


@pytest.mark.parametrize(
    ("name", "path", "part"),
    [
        ("runs", "/srv/tuneplane-runs/ann/llm/1", Part("run-data", "runs", "ann/llm/1")),
        ("runs", "/srv/tuneplane-runs", Part("run-data", "runs", "")),
        ("hf_hub_cache", "/srv/tuneplane-cache/hf/hub", Part("download-cache", "cache", "hf/hub")),
        ("state", "/srv/tuneplane/state", Part("platform-data", "root", "state")),
        ("root", "/srv/tuneplane", Part("platform-data", "root", "")),
    ],
)
def test_the_innermost_claim_around_a_directory_holds_it(name: str, path: str, part: Part) -> None:
    assert claims().part(name, path) == part


def test_a_location_without_a_claim_of_its_own_is_in_the_default_one() -> None:
    layout = resolve("/srv/s", {"runs": "/srv/s/on/disk"})
    assert Claims.read(layout, "all", None, None).part("runs", "/srv/s/on/disk/a/b/c") == Part(
        "all", "root", "on/disk/a/b/c"
    )


@pytest.mark.parametrize(
    ("claim", "own", "name", "refused"),
    [
        ("", OWN, "state", "state: /srv/tuneplane/state is in no claim; name the claim of the default root"),
        ("a", {}, "runs", "runs: /srv/tuneplane-runs is in no claim; give runs_root one in claims"),
        ("a", OWN, "volume_root", "volume_root: /srv/volumes is in no claim; give volume_root one in claims"),
    ],
)
def test_what_is_in_no_claim(claim: str, own: dict[str, str], name: str, refused: str) -> None:
    with pytest.raises(Refusal) as refusal:
        claims(claim, own).part(name, LAYOUT.named()[name])
    assert str(refusal.value) == refused


@pytest.mark.parametrize(
    ("claim", "own", "modes", "refused"),
    [
        ("No", None, None, "claim: 'No' is not the name of a persistent volume claim"),
        ("a/b", None, None, "claim: 'a/b' is not the name of a persistent volume claim"),
        ("a", {"runs_root": ""}, None, "claims: runs_root: '' is not the name of a persistent volume claim"),
        ("a", {"runs_root": "a\n"}, None, r"claims: runs_root: 'a\n' is not the name of a persistent volume claim"),
        ("a", ["run-data"], None, "claims: must be a dictionary"),
        ("a", {"run_root": "b"}, None, "claims: run_root: there is no such setting; did you mean runs_root?"),
        ("a", {"RUNS_ROOT": "b"}, None, "claims: RUNS_ROOT: there is no such setting; did you mean runs_root?"),
        ("a", {7: "b"}, None, "claims: 7: there is no such setting; write it like runs_root"),
        (
            "a",
            {"storage_root": "b"},
            None,
            "claims: storage_root: the claim of the default root is no independent one; give it as claim",
        ),
        (
            "a",
            {"state_root": "b"},
            None,
            "claims: state_root: state has no path of its own that a claim could begin at; give it an override",
        ),
        (
            "a",
            {"hf_hub_cache_root": "b"},
            None,
            "claims: hf_hub_cache_root: hf_hub_cache has no path of its own that a claim could begin at; "
            "give it an override",
        ),
        (
            "a",
            {"runs_root": "a"},
            None,
            "claims: runs_root: a is the claim of storage_root too, and cannot begin at both; "
            "give each a claim of its own",
        ),
        (
            "a",
            {"runs_root": "b", "cache_root": "b"},
            None,
            "claims: cache_root: b is the claim of runs_root too, and cannot begin at both; "
            "give each a claim of its own",
        ),
        ("a", OWN, {"run-dat": []}, "access_modes: run-dat: there is no such claim here; did you mean run-data?"),
        ("a", OWN, {"run-data": "ReadWriteMany"}, "access_modes: run-data: must be a list of access modes"),
        (
            "a",
            OWN,
            {"run-data": ["ReadWriteMani"]},
            "access_modes: run-data: ReadWriteMani is no access mode; did you mean ReadWriteMany?",
        ),
    ],
)
def test_what_is_refused(claim: Any, own: Any, modes: Any, refused: str) -> None:
    with pytest.raises(Refusal) as refusal:
        claims(claim, own, modes)
    assert str(refusal.value) == refused


def test_a_volume_root_that_is_not_there_has_no_claim() -> None:
    with pytest.raises(Refusal, match="^claims: volume_root: volume_root has no path of its own .*: host_volume_root$"):
        Claims.read(resolve("/srv", {}), "a", {"volume_root": "b"}, None)


def test_settings_of_paths() -> None:
    names = [setting(name) for name in ("root", "runs", "hf_hub_cache", "volume_root")]
    assert [f"{name.upper()}" for name in names] == ["STORAGE_ROOT", "RUNS_ROOT", "HF_HUB_CACHE_ROOT", "VOLUME_ROOT"]
    assert {name.upper() for name in map(setting, LAYOUT.named())} == set(LAYOUT.settings())


WRITTEN = {"run-data": ["runs"], "download-cache": ["hf_hub_cache", "modelscope_cache"]}
STATED = [
    "claim run-data must be ReadWriteMany: 4 nodes write to runs",
    "claim download-cache must be ReadWriteMany: 4 nodes write to hf_hub_cache and modelscope_cache",
]


@pytest.mark.parametrize(
    ("modes", "nodes", "demands"),
    [
        ({}, 1, []),
        ({}, 4, STATED),
        ({"run-data": ["ReadWriteMany"]}, 4, STATED[1:]),
        ({"run-data": ["ReadWriteOnce", "ReadWriteMany"], "download-cache": ["ReadWriteMany"]}, 4, []),
        ({"run-data": ["ReadWriteOnce"], "download-cache": ["ReadWriteOncePod", "ReadWriteOnce"]}, 1, []),
        ({"platform-data": ["ReadWriteOnce"]}, 4, STATED),  # it is not written to
    ],
)
def test_what_a_job_demands(modes: dict[str, list[str]], nodes: int, demands: list[str]) -> None:
    assert claims(modes=modes).demands(WRITTEN, nodes) == demands


@pytest.mark.parametrize(
    ("modes", "nodes", "refused"),
    [
        (
            {"run-data": ["ReadWriteOnce", "ReadOnlyMany"]},
            2,
            "claim: run-data must be ReadWriteMany: 2 nodes write to runs, and it is ReadOnlyMany and ReadWriteOnce; "
            "give them a claim that is",
        ),
        (
            {"download-cache": ["ReadWriteOncePod"]},
            1,
            "claim: download-cache is ReadWriteOncePod, and jobs have hf_hub_cache and modelscope_cache beside the "
            "platform's own pods; give them a claim that several pods can have",
        ),
        (
            {"run-data": ["ReadOnlyMany"]},
            1,
            "claim: run-data is ReadOnlyMany, and runs is written to; give them a claim that can be written to",
        ),
    ],
)
def test_a_claim_that_is_known_not_to_do(modes: dict[str, list[str]], nodes: int, refused: str) -> None:
    with pytest.raises(Refusal) as refusal:
        claims(modes=modes).demands(WRITTEN, nodes)
    assert str(refusal.value) == refused
