# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the container of a run is given by Docker, Kubernetes and Slurm, and what no run is given."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.stowage.host.plugins.filter.render_run import render_run

HOST: Mapping[str, Any] = MappingProxyType(
    {
        "host_storage_root": "/srv/tuneplane",
        "host_storage_overrides": {"runs": "/mnt/checkpoints/runs", "modelscope_cache": {"path": "/mnt/ms"}},
        "host_volume_root": "/srv/volumes",
        "host_environment_prefix": "TUNEPLANE_",
    }
)
PATH = "/mnt/checkpoints/runs/ann/llm/run-7"
RUN = {
    "run": "ann/llm/run-7",
    "team": "vision",
    "attempt": 2,
    "path": PATH,
    "work": f"{PATH}/work",
    "out": f"{PATH}/attempts/2/out",
    "logs": f"{PATH}/attempts/2/logs",
}
PATHS = {name: RUN[name] for name in ("path", "work", "out", "logs")}
DRIVE = {
    "source": "/run/stowage/pins/run-7/1",
    "target": "/data",
    "read_only": True,
    "drive": "imagenet",
    "source_index": 0,
}
ENVIRONMENT = {
    "HF_HOME": "/tmp/tuneplane-hf",
    "HF_HUB_CACHE": "/srv/tuneplane/cache/hf/hub",
    "HF_DATASETS_CACHE": "/srv/tuneplane/cache/hf/datasets",
    "MODELSCOPE_CACHE": "/mnt/ms",
}
VOLUME = {
    "source": "/run/stowage/pins/run-7/2",
    "target": "/volumes/models",
    "read_only": True,
    "volume": "models",
    "sub_path": "",
    "run_of": "ann/llm/run-7",
}
CLAIMS = {"claim": "data", "claims": {"runs_root": "run-data", "modelscope_cache_root": "ms"}}


def refusal(*arguments: Any, value: Any = HOST, **options: Any) -> str:
    with pytest.raises(AnsibleFilterError) as error:
        render_run(value, *arguments, **options)
    return str(error.value).removeprefix("render_run: ")


def bind(path: str) -> list[str]:
    return ["--mount", f"type=bind,source={path},target={path}"]


def test_docker_has_the_slice_the_caches_and_the_inputs_and_nothing_else() -> None:
    found = render_run(HOST, "docker", RUN, [DRIVE], {"VOLUMES_DIR": "/volumes"})
    assert found == {
        "arguments": [
            *bind(PATH),
            *bind("/srv/tuneplane/cache/hf/hub"),
            *bind("/srv/tuneplane/cache/hf/datasets"),
            *bind("/mnt/ms"),
            *("--mount", "type=bind,source=/run/stowage/pins/run-7/1,target=/data,readonly"),
            *(word for name, value in ENVIRONMENT.items() for word in ("--env", f"{name}={value}")),
            *("--env", "VOLUMES_DIR=/volumes"),
        ],
        "run": PATHS,
    }


def test_kubernetes_mounts_scoped_parts_of_claims() -> None:
    found = render_run(HOST, "kubernetes", RUN, [DRIVE], **CLAIMS)
    assert found["pod"]["volumes"] == [
        {"name": "runs-root", "persistentVolumeClaim": {"claimName": "run-data"}},
        {"name": "storage-root", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "modelscope-cache-root", "persistentVolumeClaim": {"claimName": "ms"}},
        {"name": "drive-imagenet-0", "hostPath": {"path": "/run/stowage/pins/run-7/1", "type": "Directory"}},
    ]
    assert found["container"]["volumeMounts"] == [
        {"name": "runs-root", "mountPath": PATH, "subPath": "ann/llm/run-7"},
        {"name": "storage-root", "mountPath": "/srv/tuneplane/cache/hf/hub", "subPath": "cache/hf/hub"},
        {"name": "storage-root", "mountPath": "/srv/tuneplane/cache/hf/datasets", "subPath": "cache/hf/datasets"},
        {"name": "modelscope-cache-root", "mountPath": "/mnt/ms"},  # a claim of a cache may be mounted as a whole
        {"name": "drive-imagenet-0", "mountPath": "/data", "readOnly": True},
    ]
    assert found["container"]["env"] == [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]
    assert found["demands"] == [] and found["run"] == PATHS


def test_a_pod_has_the_root_elsewhere_and_the_same_part_of_the_claim() -> None:
    host = {**HOST, "host_storage_overrides": {"modelscope_cache": "/mnt/ms"}}
    run = {"path": "/srv/tuneplane/runs/ann/llm/run-7", "work": "/srv/tuneplane/runs/ann/llm/run-7/work"}
    claims = {"claim": "data", "claims": {"modelscope_cache_root": "ms"}}
    found = render_run(host, "kubernetes", run, root="/data/tuneplane", **claims)
    assert found["container"]["volumeMounts"][0] == {
        "name": "storage-root",
        "mountPath": "/data/tuneplane/runs/ann/llm/run-7",
        "subPath": "runs/ann/llm/run-7",
    }
    assert found["container"]["volumeMounts"][-1] == {"name": "modelscope-cache-root", "mountPath": "/mnt/ms"}
    assert {"name": "HF_HUB_CACHE", "value": "/data/tuneplane/cache/hf/hub"} in found["container"]["env"]
    assert found["run"]["work"] == "/data/tuneplane/runs/ann/llm/run-7/work"


def test_several_nodes_demand_claims_that_all_can_write_to() -> None:
    modes = {"run-data": ["ReadWriteMany"]}
    found = render_run(HOST, "kubernetes", RUN, **CLAIMS, access_modes=modes, nodes=4)
    assert found["demands"] == [
        "claim data must be ReadWriteMany: 4 nodes write to hf_hub_cache and hf_datasets_cache",
        "claim ms must be ReadWriteMany: 4 nodes write to modelscope_cache",
    ]
    with_inputs = render_run(HOST, "kubernetes", RUN, [DRIVE], **CLAIMS, access_modes=modes, nodes=4)
    assert with_inputs["demands"][2:] == [
        "the inputs are pins of one host, and the pods are on 4: each needs those of its own host"
    ]
    wrong = {"run-data": ["ReadWriteOnce"]}
    assert "run-data must be ReadWriteMany: 4 nodes write to runs, and it is ReadWriteOnce" in refusal(
        "kubernetes", RUN, **CLAIMS, access_modes=wrong, nodes=4
    )


def test_slurm_has_the_paths_of_its_nodes() -> None:
    assert render_run(HOST, "slurm", RUN)["run"] == PATHS
    found = render_run(
        {**HOST, "host_storage_overrides": {}}, "slurm", {"path": "/srv/tuneplane/runs/a/b/c"}, root="/l"
    )
    assert found["run"] == {"path": "/l/runs/a/b/c"}
    assert found["environment"]["MODELSCOPE_CACHE"] == "/l/cache/modelscope"


@pytest.mark.parametrize(
    ("run", "root", "home"),
    [
        (RUN, "", f"{PATH}/work/.hf"),
        ({"path": PATH}, "", f"{PATH}/work/.hf"),
        ({"path": "/srv/tuneplane/runs/a/b/c"}, "/l", "/l/runs/a/b/c/work/.hf"),
    ],
)
def test_what_a_job_of_slurm_keeps_for_itself_is_in_its_own_run(run: Any, root: str, home: str) -> None:
    """Its node's ``/tmp`` is everybody's: whoever makes a directory there first has what is put into it."""
    host = {**HOST, "host_storage_overrides": {}} if root else HOST
    environment = render_run(host, "slurm", run, root=root)["environment"]
    assert environment["HF_HOME"] == home
    assert not any(value.startswith("/tmp") for value in environment.values())


@pytest.mark.parametrize("target", ["docker", "kubernetes"])
@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({"run_of": "bob/llm/run-7"}, "inputs[0]: volume models was prepared for run 'bob/llm/run-7'; have drive_"),
        ({"run_of": "ann/llm/run-70"}, "inputs[0]: volume models was prepared for run 'ann/llm/run-70'; have"),
        ({"run_of": None}, "inputs[0]: volume models was prepared for run 'None'"),
        ({"read_only": False}, "inputs[0]: volume models is not read-only, as volumes are; prepare it anew"),
        ({"read_only": "no"}, "inputs[0]: read_only: must be true or false, not 'no'"),
        ({"read_only": 1}, "inputs[0]: read_only: must be true or false, not 1"),
        ({"volume": ""}, "inputs[0]: must name a drive or a volume, as the mounts that drive_mount returns do"),
        ({"volume": None}, "inputs[0]: must name a drive or a volume"),
        ({"drive": "imagenet"}, "inputs[0]: must name a drive or a volume"),
    ],
)
def test_a_volume_is_given_to_its_run_read_only(target: str, changed: dict[str, Any], refused: str) -> None:
    options = CLAIMS if target == "kubernetes" else {}
    assert render_run(HOST, target, RUN, [VOLUME], **options)
    assert refusal(target, RUN, [{**VOLUME, **changed}], **options).startswith(refused)


def test_an_input_of_nothing_is_none() -> None:
    nothing = {key: DRIVE[key] for key in ("source", "target", "read_only")}
    for target, options in (("docker", {}), ("kubernetes", CLAIMS)):
        assert refusal(target, RUN, [nothing], **options).startswith("inputs[0]: must name a drive or a volume")
        text = {**DRIVE, "read_only": "no"}
        assert refusal(target, RUN, [text], **options) == "inputs[0]: read_only: must be true or false, not 'no'"


@pytest.mark.parametrize(
    ("root", "overrides", "refused"),
    [
        ("/srv", {"hf_hub_cache": "/tmp/stowage-hf/hub"}, "hf_hub_cache: /tmp/stowage-hf/hub is inside /tmp/stow"),
        ("/srv", {"modelscope_cache": "/tmp/stowage-hf"}, "modelscope_cache: /tmp/stowage-hf is /tmp/stowage-hf, w"),
        ("/srv", {"cache": "/tmp"}, "cache: /tmp contains /tmp/stowage-hf, which is HF_HOME and each container's own"),
        ("/tmp/stowage-hf", {}, "root: /tmp/stowage-hf is /tmp/stowage-hf"),
        ("/tmp", {}, "root: /tmp contains /tmp/stowage-hf"),
    ],
)
def test_no_share_is_where_the_container_has_its_own(root: str, overrides: dict[str, str], refused: str) -> None:
    host = {"host_storage_root": root, "host_storage_overrides": overrides}
    run = {"path": f"{root}/runs/ann/llm/run-7"}
    assert refusal("docker", run, value=host).startswith(refused)
    moved = {"host_storage_root": "/srv", "host_storage_overrides": {}}
    if not overrides:
        pod = {"path": "/srv/runs/ann/llm/run-7"}
        assert refusal("kubernetes", pod, value=moved, claim="data", root=root).startswith(refused)
    assert render_run(host, "slurm", run)["environment"]["HF_HOME"] == f"{root}/runs/ann/llm/run-7/work/.hf"


def test_a_claim_of_one_pod_is_no_claim_of_a_platform() -> None:
    modes = {"run-data": ["ReadWriteOncePod"]}
    assert refusal("kubernetes", RUN, **CLAIMS, access_modes=modes) == (
        "claim: run-data is ReadWriteOncePod, and jobs have runs beside the platform's own pods; give them a claim that"
        " several pods can have"
    )
    assert refusal("kubernetes", RUN, **CLAIMS, access_modes={"data": []}) == (
        "access_modes: data: names none; leave it out where they are not known"
    )
    once = {"run-data": ["ReadWriteOnce", "ReadWriteOncePod"]}
    assert render_run(HOST, "kubernetes", RUN, **CLAIMS, access_modes=once)["demands"] == []


def test_a_dollar_in_a_value_is_none_of_kubernetes() -> None:
    found = render_run(HOST, "kubernetes", RUN, environment={"A": "$(HOME)"}, **CLAIMS)
    assert found["container"]["env"][-1] == {"name": "A", "value": "$$(HOME)"}


@pytest.mark.parametrize(
    ("path", "refused"),
    [
        ("/mnt/checkpoints/runs", "run /mnt/checkpoints/runs: is not at <user>/<experiment>/<run_id>"),
        ("/mnt/checkpoints/runs/ann/llm", "is not at <user>/<experiment>/<run_id>"),
        (f"{PATH}/work", "is not at <user>/<experiment>/<run_id>"),
        ("/mnt/checkpoints/runs/ann/.hidden/a", "is not at <user>/<experiment>/<run_id>"),
        ("/srv/tuneplane/state/a/b/c", "is not at <user>/<experiment>/<run_id>"),
        ("/srv/tuneplane/runs/a/b/c", "is not at <user>/<experiment>/<run_id>"),  # where runs are not
        (f"{PATH}/../../../bob/llm/1", "run: path: "),
        ("relative", "run: path: 'relative' must be absolute"),
    ],
)
def test_what_is_no_run(path: str, refused: str) -> None:
    assert refused in refusal("docker", {"path": path})


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("/srv/tuneplane/state", "inputs[0]: '/srv/tuneplane/state' was not prepared for a run; have drive_mount"),
        ("/srv/tuneplane/packages/x", "was not prepared for a run"),
        ("/mnt/checkpoints/runs/bob/llm/1", "was not prepared for a run"),
        ("/srv/volumes/shared", "was not prepared for a run"),
        ("/var/lib/postgresql", "was not prepared for a run"),
        ("/etc/stowage", "was not prepared for a run"),
        ("/", "inputs[0]: source: must not be the root directory"),
        ("/run/stowage/pins", "mount /run/stowage/pins: it is inside Stowage's own directory /run/stowage"),
        ("/run/stowage/pins/other-run", "mount /run/stowage/pins/other-run: it is inside Stowage's own directory"),
        ("/run/stowage/pins/../state", "inputs[0]: source: "),
    ],
)
@pytest.mark.parametrize("target", ["docker", "kubernetes"])
def test_what_no_run_is_given(source: str, refused: str, target: str) -> None:
    options = CLAIMS if target == "kubernetes" else {}
    assert refused in refusal(target, RUN, [{**DRIVE, "source": source}], **options)


@pytest.mark.parametrize(
    ("target", "refused"),
    [
        (PATH, f"{PATH} is {PATH}, where the container has runs; mount it elsewhere"),
        (f"{PATH}/work/data", f"{PATH}/work/data is inside {PATH}, where the container has runs"),
        ("/mnt", f"/mnt contains {PATH}, where the container has runs"),
        ("/srv/tuneplane/cache/hf/hub", "where the container has hf_hub_cache"),
        ("/tmp", "/tmp contains /tmp/tuneplane-hf, where the container has HF_HOME, which nobody else is to see"),
        ("/tmp/tuneplane-hf/hub", "where the container has HF_HOME, which nobody else is to see"),
        ("data", "target: 'data' must be absolute"),
    ],
)
def test_an_input_hides_nothing(target: str, refused: str) -> None:
    assert refused in refusal("docker", RUN, [{**DRIVE, "target": target}])


def test_what_the_layout_protects_is_given_to_no_run() -> None:
    host = {**HOST, "host_protected_paths": ["/srv/tuneplane/cache/hf/hub/keys"]}
    assert refusal("docker", RUN, value=host).startswith(
        "mount /srv/tuneplane/cache/hf/hub: it contains the protected path /srv/tuneplane/cache/hf/hub/keys"
    )


def test_two_inputs_are_not_at_one_place_and_may_nest() -> None:
    other = {**DRIVE, "source": "/run/stowage/pins/run-7/2"}
    assert refusal("docker", RUN, [DRIVE, other]) == "inputs[1]: /data is where inputs[0] is; mount it elsewhere"
    assert render_run(HOST, "docker", RUN, [DRIVE, {**other, "target": "/data/more"}])


@pytest.mark.parametrize(
    ("arguments", "options", "refused"),
    [
        (("dockers", RUN), {}, "target: 'dockers' is not one of docker, kubernetes, slurm; did you mean docker?"),
        (("docker", None), {}, "run: must be what run_directory returned"),
        (("docker", PATH), {}, "run: must be what run_directory returned"),
        (("docker", {**RUN, "work": "/srv/tuneplane/state"}), {}, "run: work: '/srv/tuneplane/state' is outside"),
        (("docker", RUN, "/data"), {}, "inputs: must be a list of mounts"),
        (("docker", RUN, [{"source": "/run/stowage/pins/r/1"}]), {}, "inputs[0]: must have source, target and read_"),
        (
            ("docker", RUN, [DRIVE, {**DRIVE, "source": "/run/stowage/pins/run-8/1", "target": "/b"}]),
            {},
            "inputs: were prepared for 'run-7' and 'run-8'; give those of one run",
        ),
        (("docker", RUN), {"root": "/x"}, "root: a container of this host has the paths of the host; leave it out"),
        (("docker", RUN), {"claim": "x"}, "claim: says nothing to docker; leave it out"),
        (("slurm", RUN), {"claims": {"a": "b"}}, "claims: says nothing to slurm; leave it out"),
        (("slurm", RUN), {"nodes": 4, "access_modes": {"a": []}}, "access_modes: says nothing to slurm"),
        (("slurm", RUN), {"nodes": 4}, "nodes: says nothing to slurm; leave it out"),
        (("slurm", RUN, [DRIVE]), {}, "inputs: a job of Slurm has no mounts of its own; let the prolog take"),
        (("docker", RUN), {"environment": ["A"]}, "environment: must be a dictionary"),
        (
            ("docker", RUN),
            {"environment": {"HF_HOME": "/x"}},
            "environment: HF_HOME: is /tmp/tuneplane-hf by the layout",
        ),
        (
            ("docker", RUN),
            {"environment": {"A=B": "x"}},
            "environment: A=B: is not the name of an environment variable",
        ),
        (("docker", RUN), {"environment": {"A": True}}, "environment: A: must be a text; write it in quotes"),
        (("kubernetes", RUN), {}, f"runs: {PATH} is in no claim; give runs_root one in claims"),
        (("kubernetes", RUN), {**CLAIMS, "claim": ""}, "hf_hub_cache: /srv/tuneplane/cache/hf/hub is in no claim"),
        (("kubernetes", RUN), {**CLAIMS, "nodes": 0}, "nodes: 0 is not a number of nodes"),
        (("kubernetes", RUN), {**CLAIMS, "nodes": True}, "nodes: True is not a number of nodes"),
        (("kubernetes", RUN), {**CLAIMS, "nodes": "4"}, "nodes: '4' is not a number of nodes"),
        (
            ("kubernetes", RUN),
            {**CLAIMS, "root": "/a:b"},
            "hf_hub_cache: Kubernetes mounts nothing at a path with a col",
        ),
        (
            ("kubernetes", RUN, [{**DRIVE, "target": "/a:b"}]),
            CLAIMS,
            "inputs: Kubernetes mounts nothing at a path with",
        ),
    ],
)
def test_what_is_refused(arguments: tuple[Any, ...], options: dict[str, Any], refused: str) -> None:
    assert refusal(*arguments, **options).startswith(refused)


NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="/"), min_size=1, max_size=20).filter(
    lambda name: not name.startswith(".") and name == name.strip()
)


@given(NAMES, NAMES, NAMES)
def test_whatever_a_run_is_called_its_directory_alone_is_mounted(user: str, experiment: str, run_id: str) -> None:
    path = f"/mnt/checkpoints/runs/{user}/{experiment}/{run_id}"
    (fields,) = csv.reader([render_run(HOST, "docker", {"path": path})["arguments"][1]], strict=True)
    assert fields == ["type=bind", f"source={path}", f"target={path}"]
    if ":" not in path:
        mount = render_run(HOST, "kubernetes", {"path": path}, **CLAIMS)["container"]["volumeMounts"][0]
        assert mount == {"name": "runs-root", "mountPath": path, "subPath": f"{user}/{experiment}/{run_id}"}
