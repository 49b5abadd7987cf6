# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Manifests that are completed from what is rendered keep to the schemas of Kubernetes, strictly."""

from __future__ import annotations

import copy
from typing import Any

import kubernetes_validate
import pytest

from ansible_collections.stowage.host.plugins.filter.render import render
from ansible_collections.stowage.host.plugins.filter.render_platform import render_platform
from ansible_collections.stowage.host.plugins.filter.render_run import render_run

VERSIONS = ("1.29", kubernetes_validate.latest_version())
HOST: dict[str, Any] = {
    "host_storage_root": "/srv/tuneplane",
    "host_storage_overrides": {"runs": "/mnt/runs", "cache": "/mnt/cache"},
    "host_environment_prefix": "TUNEPLANE_",
}
CLAIMS = {"claim": "data", "claims": {"runs_root": "run-data", "cache_root": "download-cache"}}
DRIVE = {"source": "/run/stowage/pins/r/1", "target": "/data", "read_only": True, "drive": "imagenet"}
VOLUME = {
    **DRIVE,
    "source": "/run/stowage/pins/r/2",
    "target": "/volumes/shared/x",
    "volume": "shared",
    "run_of": "a/b/c",
}
del VOLUME["drive"]
BACKENDS = [
    {
        "name": "chat",
        "members": [{"capacity_per_member": "1Gi", "local_disks": [{"path": "/mnt/kv", "capacity": "1Ti"}]}],
    }
]


def pod_spec(parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**parts["pod"], "containers": [{"name": "main", "image": "example/image:1", **parts["container"]}], **more}


def job(parts: dict[str, Any], nodes: int) -> dict[str, Any]:
    template = {"metadata": {"labels": {"run": "run-7"}}, "spec": pod_spec(parts, restartPolicy="Never")}
    spec = {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "run-7"}, "spec": spec}


def pod(parts: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "platform"}, "spec": pod_spec(parts)}


MANIFESTS = {
    "a run": job(render_run(HOST, "kubernetes", {"path": "/mnt/runs/a/b/c"}, [DRIVE, VOLUME], **CLAIMS, nodes=4), 4),
    "a run in one claim": job(
        render_run(
            {"host_storage_root": "/srv/s"}, "kubernetes", {"path": "/srv/s/runs/a/b/c"}, root="/data", claim="a"
        ),
        1,
    ),
    "the platform": pod(render_platform(HOST, "kubernetes", **CLAIMS)),
    "a tier": pod(render(BACKENDS, "kubernetes", "chat")),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_complete_manifests_are_valid(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schemas_tell_what_is_wrong() -> None:
    wrong = copy.deepcopy(MANIFESTS["a run"])
    wrong["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0]["subpath"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS)
def test_what_schemas_do_not_tell(manifest: dict[str, Any]) -> None:
    spec = manifest["spec"].get("template", manifest)["spec"]
    (container,) = spec["containers"]
    volumes = [volume["name"] for volume in spec["volumes"]]
    mounts = container["volumeMounts"]
    assert len(set(volumes)) == len(volumes)
    assert {mount["name"] for mount in mounts} == set(volumes)
    assert len({mount["mountPath"] for mount in mounts}) == len(mounts)
    assert not any(mount.get("subPath", "a").startswith("/") for mount in mounts)
