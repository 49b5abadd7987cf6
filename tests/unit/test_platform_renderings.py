# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The storage of a platform's own services, which have every configured path."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.stowage.host.plugins.filter.render_platform import render_platform

HOST: dict[str, Any] = {
    "host_storage_root": "/srv/tuneplane",
    "host_storage_overrides": {"runs": "/srv/tuneplane-runs", "cache": {"path": "/srv/tuneplane-cache"}},
    "host_environment_prefix": "TUNEPLANE_",
}
CLAIMS = {"claim": "platform-data", "claims": {"runs_root": "run-data", "cache_root": "download-cache"}}


def test_compose_has_every_configured_path_where_the_host_has_it() -> None:
    host = {**HOST, "host_volume_root": "/srv/volumes"}
    found = render_platform(host, "compose")
    paths = ("/srv/tuneplane", "/srv/tuneplane-cache", "/srv/tuneplane-runs", "/srv/volumes")
    bind = {"create_host_path": False}
    assert [(one["source"], one["target"], one["bind"]) for one in found["volumes"]] == [(p, p, bind) for p in paths]
    assert [one.get("read_only", False) for one in found["volumes"]] == [False, False, False, True]
    assert found["environment"]["TUNEPLANE_RUNS_ROOT"] == "/srv/tuneplane-runs"
    assert found["environment"]["TUNEPLANE_HF_HUB_CACHE_ROOT"] == "/srv/tuneplane-cache/hf/hub"
    assert len(found["environment"]) == 13


def test_compose_expands_nothing() -> None:
    found = render_platform({"host_storage_root": "/srv/$HOME"}, "compose")
    assert found["volumes"][0]["source"] == "/srv/$$HOME"
    assert found["environment"]["STOWAGE_STATE_ROOT"] == "/srv/$$HOME/state"


def test_settings_name_the_claims() -> None:
    found = render_platform(HOST, "settings", **CLAIMS)
    assert found["TUNEPLANE_K8S_STORAGE_PVC"] == "platform-data"
    assert found["TUNEPLANE_K8S_STORAGE_PVCS"] == '{"runs_root":"run-data","cache_root":"download-cache"}'
    assert found["TUNEPLANE_RUNS_ROOT"] == "/srv/tuneplane-runs"
    assert not any("K8S" in name for name in render_platform(HOST, "settings"))


def test_settings_of_nodes_that_have_the_root_elsewhere() -> None:
    found = render_platform(HOST, "settings", root="/lustre/tuneplane")
    assert found["TUNEPLANE_STORAGE_ROOT"] == "/lustre/tuneplane"
    assert found["TUNEPLANE_STATE_ROOT"] == "/lustre/tuneplane/state"
    assert found["TUNEPLANE_RUNS_ROOT"] == "/srv/tuneplane-runs"


def test_values_for_helm() -> None:
    assert render_platform(HOST, "helm", **CLAIMS) == {
        "storageLocations": [
            {"name": "runs-root", "existingClaim": "run-data", "mountPath": "/srv/tuneplane-runs"},
            {"name": "cache-root", "existingClaim": "download-cache", "mountPath": "/srv/tuneplane-cache"},
        ]
    }


def test_a_pod_has_whole_claims_at_their_directories() -> None:
    host = {**HOST, "host_volume_root": "/srv/volumes"}
    claims = {**CLAIMS["claims"], "volume_root": "volumes"}
    found = render_platform(host, "kubernetes", "/data/tuneplane", "platform-data", claims)
    assert found["container"]["volumeMounts"] == [
        {"name": "storage-root", "mountPath": "/data/tuneplane"},
        {"name": "runs-root", "mountPath": "/srv/tuneplane-runs"},
        {"name": "cache-root", "mountPath": "/srv/tuneplane-cache"},
        {"name": "volume-root", "mountPath": "/srv/volumes", "readOnly": True},
    ]
    assert [one["persistentVolumeClaim"]["claimName"] for one in found["pod"]["volumes"]] == [
        "platform-data",
        "run-data",
        "download-cache",
        "volumes",
    ]
    environment = {one["name"]: one["value"] for one in found["container"]["env"]}
    assert environment["TUNEPLANE_STATE_ROOT"] == "/data/tuneplane/state"
    assert environment["TUNEPLANE_K8S_STORAGE_PVCS"].endswith('"cache_root":"download-cache","volume_root":"volumes"}')


def test_services_and_jobs_on_several_nodes_demand_claims_that_all_can_have() -> None:
    host = {**HOST, "host_volume_root": "/srv/volumes"}
    held: dict[str, Any] = {"claim": "platform-data", "claims": {**CLAIMS["claims"], "volume_root": "volumes"}}
    assert render_platform(host, "kubernetes", **held)["demands"] == []
    found = render_platform(host, "kubernetes", **held, nodes=3, access_modes={"run-data": ["ReadWriteMany"]})
    assert found["demands"] == [
        "claim platform-data must be ReadWriteMany: 3 nodes write to root",
        "claim download-cache must be ReadWriteMany: 3 nodes write to cache",
        "claim volumes must be ReadOnlyMany or ReadWriteMany: 3 nodes read volume_root",
    ]
    known = {"platform-data": ["ReadWriteMany"], "download-cache": ["ReadWriteMany"], "volumes": ["ReadOnlyMany"]}
    modes = {**known, "run-data": ["ReadWriteMany"]}
    assert render_platform(host, "kubernetes", **held, nodes=3, access_modes=modes)["demands"] == []
    for target in ("kubernetes", "helm"):
        for claim, mode, nodes, refused in (
            ("run-data", "ReadWriteOnce", 3, "run-data must be ReadWriteMany: 3 nodes write to runs, and it is Read"),
            ("volumes", "ReadWriteOnce", 2, "volumes must be ReadOnlyMany or ReadWriteMany: 2 nodes read volume_root,"),
            ("run-data", "ReadOnlyMany", 1, "run-data is ReadOnlyMany, and runs is written to; give them a claim that"),
            ("run-data", "ReadWriteOncePod", 1, "run-data is ReadWriteOncePod, and jobs have runs beside the platform"),
        ):
            with pytest.raises(AnsibleFilterError) as error:
                render_platform(host, target, **held, nodes=nodes, access_modes={**modes, claim: [mode]})
            assert str(error.value).startswith(f"render_platform: claim: {refused}")


@pytest.mark.parametrize(
    ("target", "options", "refused"),
    [
        ("podman", {}, "target: 'podman' is not one of settings, compose, kubernetes, helm"),
        ("compose", {"root": "/x"}, "root: containers of this host have the paths of the host; leave it out"),
        ("compose", CLAIMS, "claim: containers of this host have the paths of the host; leave it out"),
        ("compose", {"nodes": 2}, "nodes: says nothing to compose; leave it out"),
        ("settings", {"access_modes": {"a": ["ReadWriteMany"]}}, "access_modes: says nothing to settings; leave"),
        ("helm", {**CLAIMS, "nodes": 0}, "nodes: 0 is not a number of nodes"),
        ("helm", {"claim": "a"}, "runs: /srv/tuneplane-runs is in no claim; give runs_root one in claims"),
        (
            "kubernetes",
            {**CLAIMS, "claim": ""},
            "root: /srv/tuneplane is in no claim; name the claim of the default root",
        ),
        ("kubernetes", {**CLAIMS, "root": "/a:b"}, "root: Kubernetes mounts nothing at a path with a colon, as '/a:b'"),
        ("helm", {**CLAIMS, "root": "/srv/tuneplane-runs/x"}, "runs: /srv/tuneplane-runs contains root"),
    ],
)
def test_what_is_refused(target: str, options: dict[str, Any], refused: str) -> None:
    with pytest.raises(AnsibleFilterError) as error:
        render_platform(HOST, target, **options)
    assert str(error.value).startswith(f"render_platform: {refused}")
