# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mounts as Docker, Podman and Kubernetes take them."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.runs.renderings import docker, kubernetes


def mount(source: str = "/run/stowage/pins/r/1", target: str = "/data", **more: Any) -> dict[str, Any]:
    return {"source": source, "target": target, "read_only": False, "drive": "imagenet", "source_index": 0, **more}


@pytest.mark.parametrize(
    ("one", "argument"),
    [
        (mount(), "type=bind,source=/run/stowage/pins/r/1,target=/data"),
        (mount(read_only=True), "type=bind,source=/run/stowage/pins/r/1,target=/data,readonly"),
        (mount(target="/a,b"), 'type=bind,source=/run/stowage/pins/r/1,"target=/a,b"'),
        (mount("/p/a,readonly/1", '/say "x"'), 'type=bind,"source=/p/a,readonly/1","target=/say ""x"""'),
        (mount(target="/a b=c:d"), "type=bind,source=/run/stowage/pins/r/1,target=/a b=c:d"),
    ],
)
def test_docker(one: dict[str, Any], argument: str) -> None:
    assert docker([one]) == ["--mount", argument]


def test_nothing() -> None:
    assert docker([]) == []
    assert kubernetes([]) == {"volumes": [], "volumeMounts": []}


PATHS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30).map("/{}".format)


@given(PATHS, PATHS, st.booleans())
def test_a_reader_of_comma_separated_values_finds_the_same_paths(source: str, target: str, read_only: bool) -> None:
    arguments = docker([mount(source, target, read_only=read_only)])
    (fields,) = csv.reader([arguments[1]], strict=True)
    assert fields == ["type=bind", f"source={source}", f"target={target}", *(["readonly"] if read_only else [])]


def test_kubernetes() -> None:
    found = kubernetes([mount(read_only=True), mount("/run/stowage/pins/r/2", "/x", drive="a" * 63)])
    assert found["volumes"][0] == {
        "name": "drive-imagenet-0",
        "hostPath": {"path": "/run/stowage/pins/r/1", "type": "Directory"},
    }
    assert found["volumeMounts"] == [
        {"name": "drive-imagenet-0", "mountPath": "/data", "readOnly": True},
        {"name": found["volumes"][1]["name"], "mountPath": "/x", "readOnly": False},
    ]


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)


@given(st.lists(NAMES, max_size=12))
def test_names_of_volumes_are_labels_and_differ(drives: list[str]) -> None:
    names = [volume["name"] for volume in kubernetes([mount(drive=drive) for drive in drives])["volumes"]]
    assert len(set(names)) == len(drives)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name) for name in names)


def test_volumes_with_their_variable() -> None:
    volume = {"source": "/run/stowage/pins/r/3", "target": "/volumes/models", "read_only": True, "volume": "models"}
    both = [mount(), {**volume, "sub_path": ""}]
    environment = {"VOLUMES_DIR": "/volumes"}
    assert docker(both, environment)[3:] == [
        "type=bind,source=/run/stowage/pins/r/3,target=/volumes/models,readonly",
        "--env",
        "VOLUMES_DIR=/volumes",
    ]
    found = kubernetes(both, environment)
    assert [one["name"] for one in found["volumes"]] == ["drive-imagenet-0", "volume-models-1"]
    assert found["env"] == [{"name": "VOLUMES_DIR", "value": "/volumes"}]
