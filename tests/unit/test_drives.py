# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reference of Astraeus's drives: each field and rule, named by the message that it gives."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.drives import declared as drives
from stowage_core.drives.declared import Problems, check_drives, check_lists, check_name, split_copy_name
from stowage_core.errors import Refusal

PLACED = {"node_scope": "placed"}
ON_ONE = {"node": "gpu-01", "path": "/mnt/nvme0/datasets/imagenet"}
SHARED = {"node_scope": "shared", "path": "/lustre/checkpoints"}
SCRATCH = {"node_scope": "local-any", "path": "/scratch/astraeus"}


def drive(*sources: Any, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "imagenet"}, "spec": {"sources": list(sources), **spec}}


def source(node_scope: str = "", node: str = "", path: str = "", **given: Any) -> dict[str, Any]:
    filled = {"node_scope": node_scope, "node": node, "path": path}
    return {**filled, "mount_path": "", "mode": "ReadOnly", "eligible_nodes": [], **given}


DEFAULTS = {
    "transport": "Auto",
    "evictable": False,
    "size_hint_bytes": 0,
    "permissions": {"create": False},
    "idle_ttl_seconds": 0,
}

# The bodies that the specification shows, and each with its defaults.
BODIES = [
    (
        {
            "metadata": {"name": "hf-cache"},
            "spec": {
                "sources": [
                    {
                        "node_scope": "placed",
                        "path": "",
                        "mount_path": "/root/.cache/huggingface",
                        "mode": "ReadWrite",
                    }
                ],
                "evictable": True,
                "size_hint_bytes": 107374182400,
            },
        },
        {
            **DEFAULTS,
            "sources": [source("placed", mount_path="/root/.cache/huggingface", mode="ReadWrite")],
            "evictable": True,
            "size_hint_bytes": 107374182400,
        },
    ),
    (
        {
            "metadata": {"name": "imagenet"},
            "spec": {
                "sources": [
                    {
                        "node": "gpu-01",
                        "path": "/mnt/nvme0/datasets/imagenet",
                        "mount_path": "/data",
                        "mode": "ReadOnly",
                    }
                ],
                "transport": "Auto",
            },
        },
        {**DEFAULTS, "sources": [source("", "gpu-01", "/mnt/nvme0/datasets/imagenet", mount_path="/data")]},
    ),
    (
        {
            "metadata": {"name": "lustre-ckpt"},
            "spec": {
                "sources": [
                    {
                        "node_scope": "shared",
                        "node": "gpu-01",
                        "path": "/lustre/checkpoints",
                        "mount_path": "/checkpoints",
                        "mode": "ReadWrite",
                    }
                ]
            },
        },
        {
            **DEFAULTS,
            "sources": [source("shared", "gpu-01", "/lustre/checkpoints", mount_path="/checkpoints", mode="ReadWrite")],
        },
    ),
    (
        {
            "metadata": {"name": "scratch"},
            "spec": {
                "sources": [
                    {
                        "node_scope": "local-any",
                        "path": "/scratch/astraeus",
                        "mount_path": "/scratch",
                        "mode": "ReadWrite",
                    }
                ]
            },
        },
        {
            **DEFAULTS,
            "sources": [source("local-any", "", "/scratch/astraeus", mount_path="/scratch", mode="ReadWrite")],
        },
    ),
    (
        drive(
            {"node_scope": "placed", "path": "models//llama/", "node": None, "mode": None},
            transport=None,
            fill={"template": {"image": "pull:1", "command": "python", "args": ["get.py", "--all"]}},
            permissions={
                "create": True,
                "owner_uid": 1000,
                "owner_gid": 0,
                "dir_mode": "2775",
                "apply": True,
                "recursive": False,
            },
            idle_ttl_seconds=86400,
        ),
        {
            **DEFAULTS,
            "sources": [source("placed", path="models/llama")],
            "fill": {"template": {"image": "pull:1", "command": "python", "args": ["get.py", "--all"]}},
            "permissions": {
                "create": True,
                "owner_uid": 1000,
                "owner_gid": 0,
                "dir_mode": "2775",
                "apply": True,
                "recursive": False,
            },
            "idle_ttl_seconds": 86400,
        },
    ),
    (
        drive({**ON_ONE, "eligible_nodes": ["gpu-01", "gpu-02"]}, SHARED, SCRATCH, transport="Local"),
        {
            **DEFAULTS,
            "sources": [
                source("", "gpu-01", "/mnt/nvme0/datasets/imagenet", eligible_nodes=["gpu-01", "gpu-02"]),
                source("shared", "", "/lustre/checkpoints"),
                source("local-any", "", "/scratch/astraeus"),
            ],
            "transport": "Local",
        },
    ),
]


@pytest.mark.parametrize(("body", "spec"), BODIES)
def test_bodies_are_accepted_with_defaults_filled_in(body: dict[str, Any], spec: dict[str, Any]) -> None:
    before = copy.deepcopy(body)
    (entry,) = check_drives([body])
    assert entry == {
        "metadata": {"name": body["metadata"]["name"], "labels": {}},
        "spec": spec,
        "state": "present",
        "force": False,
    }
    assert body == before
    assert check_drives([entry]) == [entry]
    assert json.loads(json.dumps(entry)) == entry


NAME_RULE = "only lowercase letters, digits and hyphens, no dot, a letter or digit at both ends, at most 63 characters"
REFUSED: list[tuple[Any, str]] = [
    # metadata
    ({"metadata": {}, "spec": {"sources": [PLACED]}}, "metadata.name: required"),
    *(
        (
            {"metadata": {"name": name}, "spec": {"sources": [PLACED]}},
            f"metadata.name: {shown} is not a name; {NAME_RULE}",
        )
        for name, shown in (
            ("image.net", "'image.net'"),
            ("ImageNet", "'ImageNet'"),
            ("-a", "'-a'"),
            ("a-", "'a-'"),
            ("", "''"),
            ("a\n", r"'a\n'"),
            ("ä", "'ä'"),
            ("a/b", "'a/b'"),
            ("a" * 64, f"'{'a' * 64}'"),
            (7, "7"),
            (True, "true"),
            ("\ud800", r"'\ud800'"),
        )
    ),
    (
        {"metadata": {"name": "imagenet", "labels": {"team": 7}}, "spec": {"sources": [PLACED]}},
        "metadata.labels: must be a dictionary of printable strings; put quotes around numbers",
    ),
    (
        {"metadata": {"name": "imagenet", "lables": {}}, "spec": {"sources": [PLACED]}},
        "metadata.lables: unknown field; did you mean labels?",
    ),
    # the entry
    (7, "7 must be a dictionary"),
    ([], "a list must be a dictionary"),
    ({**drive(PLACED), "sepc": {}}, "sepc: unknown field; did you mean spec?"),
    ({**drive(PLACED), "state": "gone"}, "state: 'gone' is not one of present, absent"),
    ({**drive(PLACED), "state": "Absent"}, "state: 'Absent' is not one of present, absent; did you mean absent?"),
    ({**drive(PLACED), "force": True}, "force: only a drive with state: absent can be forced"),
    ({**drive(PLACED), "force": "yes", "state": "absent"}, "force: 'yes' must be true or false"),
    ({"metadata": {"name": "imagenet"}}, "spec.sources: required; at least one source"),
    ({"metadata": {"name": "imagenet"}, "spec": "x"}, "spec: 'x' must be a dictionary"),
    # spec
    (drive(), "spec.sources: required; at least one source"),
    (drive(sources={}), "spec.sources: a dictionary must be a list"),
    (drive("x"), "spec.sources[0]: 'x' must be a dictionary"),
    (drive(PLACED, PLACED), "spec.sources: a placed drive has exactly one source"),
    (drive(PLACED, SCRATCH), "spec.sources: a placed drive has exactly one source"),
    (drive(PLACED, evictible=True), "spec.evictible: unknown field; did you mean evictable?"),
    (drive(PLACED, **{"x" * 90: 1}), f"spec.'{'x' * 80}…': unknown field"),
    (
        drive(ON_ONE, evictable=True),
        "spec.evictable: only a drive kept on the machines' data locations can be evictable",
    ),
    (
        drive(SHARED, evictable=True),
        "spec.evictable: only a drive kept on the machines' data locations can be evictable",
    ),
    (
        drive(SCRATCH, evictable=True),
        "spec.evictable: only a drive kept on the machines' data locations can be evictable",
    ),
    (drive(PLACED, evictable=1), "spec.evictable: 1 must be true or false"),
    (drive(PLACED, evictable="true"), "spec.evictable: 'true' must be true or false"),
    (
        drive(SHARED, size_hint_bytes=1),
        "spec.size_hint_bytes: only a drive kept on the machines' data locations has an expected size",
    ),
    *(
        (
            drive(PLACED, size_hint_bytes=value),
            f"spec.size_hint_bytes: {shown} must be a whole number from 0 to {2**63 - 1}",
        )
        for value, shown in (
            (True, "true"),
            (-1, "-1"),
            (1.0, "1.0"),
            ("100G", "'100G'"),
            (2**63, str(2**63)),
            (2**70, "a number above 2^64"),
            ([], "a list"),
        )
    ),
    (
        drive(PLACED, idle_ttl_seconds="1h"),
        f"spec.idle_ttl_seconds: '1h' must be a whole number from 0 to {2**63 - 1}",
    ),
    (
        drive(ON_ONE, transport="rdma"),
        "spec.transport: 'rdma' is not one of Auto, RDMA, TCP, Local; did you mean RDMA?",
    ),
    (
        drive(PLACED, managed_by="model/llama"),
        "spec.managed_by: the field is set by Stowage only, never through the API",
    ),
    (drive(PLACED, managed_by=""), "spec.managed_by: the field is set by Stowage only, never through the API"),
    # sources
    (
        drive({**PLACED, "node": "gpu-01"}),
        "spec.sources[0].node: must be empty for a placed drive: each machine keeps its own copy",
    ),
    (
        drive({**SCRATCH, "node": "gpu-01"}),
        "spec.sources[0].node: must be empty for scratch: it is on whichever machine runs the worker",
    ),
    (
        drive({"path": "/srv"}),
        "spec.sources[0].node: required for a drive on one machine: name the machine that holds the data",
    ),
    (drive({**ON_ONE, "node": 7}), "spec.sources[0].node: 7 must be a string"),
    (drive({**ON_ONE, "node": "a\nb"}), r"spec.sources[0].node: 'a\nb' may not contain control characters"),
    (
        drive({**PLACED, "node_scope": "Placed"}),
        "spec.sources[0].node_scope: 'Placed' is not one of placed, \"\", shared, local-any; did you mean placed?",
    ),
    (drive({"node": "gpu-01"}), "spec.sources[0].path: required"),
    (drive({**SHARED, "path": None}), "spec.sources[0].path: required"),
    (drive({**SCRATCH, "path": ""}), "spec.sources[0].path: must be a path"),
    (drive({**ON_ONE, "path": "data"}), "spec.sources[0].path: 'data' must be absolute; begin it with /"),
    (drive({**ON_ONE, "path": "/"}), "spec.sources[0].path: must not be the root directory; name a directory below it"),
    (drive({**ON_ONE, "path": "/a/../b"}), "spec.sources[0].path: '/a/../b' may not contain a '..' component"),
    (drive({**PLACED, "path": "a/../b"}), "spec.sources[0].path: 'a/../b' may not contain a '..' component"),
    (
        drive({**PLACED, "path": "/models"}),
        "spec.sources[0].path: '/models' must be relative; leave out the / at its beginning",
    ),
    (drive({**ON_ONE, "path": "/\ud800"}), r"spec.sources[0].path: '/\ud800' is not a file name"),
    (
        drive({**PLACED, "mount_path": "data"}),
        "spec.sources[0].mount_path: 'data' must be absolute; begin it with /",
    ),
    (
        drive({**PLACED, "mode": "readonly"}),
        "spec.sources[0].mode: 'readonly' is not one of ReadOnly, ReadWrite; did you mean ReadOnly?",
    ),
    (drive({**ON_ONE, "mount": "/data"}), "spec.sources[0].mount: unknown field; did you mean mount_path?"),
    (drive({**ON_ONE, "eligible_nodes": "gpu-01"}), "spec.sources[0].eligible_nodes: 'gpu-01' must be a list"),
    (drive({**ON_ONE, "eligible_nodes": [""]}), "spec.sources[0].eligible_nodes[0]: may not be empty"),
    (
        drive({**ON_ONE, "eligible_nodes": ["a", "a"]}),
        "spec.sources[0].eligible_nodes[1]: 'a' is there twice",
    ),
    # fill
    (
        drive(SHARED, fill={"template": {"image": "x"}}),
        "spec.fill: only a drive kept on the machines' data locations can be filled",
    ),
    (drive(PLACED, fill={}), "spec.fill.template.image: required: the container image that fills a copy"),
    (drive(PLACED, fill={"template": 1}), "spec.fill.template: 1 must be a dictionary"),
    (drive(PLACED, fill={"template": {"image": "x"}, "image": "x"}), "spec.fill.image: unknown field"),
    (
        drive(PLACED, fill={"template": {"image": "x", "datavolume_refs": [{"name": "y"}]}}),
        "spec.fill.template.datavolume_refs: a fill may not have drives of its own: it sees the copy at /drive;"
        " leave it out",
    ),
    (
        drive(PLACED, fill={"template": {"image": "x", "external_accesses": [{"port": 80}]}}),
        "spec.fill.template.external_accesses: a fill may not have external accesses of its own; leave it out",
    ),
    (drive(PLACED, fill={"template": {"image": "x", "args": "a b"}}), "spec.fill.template.args: 'a b' must be a list"),
    (drive(PLACED, fill={"template": {"image": "x", "args": [1]}}), "spec.fill.template.args[0]: 1 must be a string"),
    *(
        (
            drive(PLACED, fill={"template": {"image": image}}),
            f"spec.fill.template.image: '{image}' is not the name of an image; write it as registry/path:tag",
        )
        for image in (
            "--privileged",
            "-v=/:/host",
            "dir:/etc",
            "oci-archive:/srv/x.tar",
            "docker://alpine",
            "a b",
            "a//b",
        )
    ),
    *(
        (
            drive(PLACED, fill={"template": {"image": "x", name: ["y"]}}),
            f"spec.fill.template.{name}: unknown field; did you mean {meant}?",
        )
        for name, meant in (
            ("Image", "image"),
            ("cmd", "command"),
            ("commands", "command"),
            ("entrypoint", "command"),
            ("arguments", "args"),
            ("envs", "env"),
            ("Environment", "env"),
            ("datavolumes", "datavolume_refs"),
            ("external_access", "external_accesses"),
            ("iamge", "image"),
            ("images", "image"),
            ("comand", "command"),
            ("commamd", "command"),
            ("datavolumeRefs", "datavolume_refs"),
            ("externalAccesses", "external_accesses"),
            ("ARGS", "args"),
            ("arg", "args"),
        )
    ),
    (
        drive(PLACED, fill={"template": {"image": "x", "env": {"A=B": "c"}}}),
        "spec.fill.template.env: 'A=B' cannot name a variable; letters, digits and underscores can",
    ),
    (
        drive(PLACED, fill={"template": {"image": "x", "env": {"A": "b\nLD_PRELOAD=c"}}}),
        "spec.fill.template.env: must be a dictionary of printable strings; put quotes around numbers",
    ),
    # permissions
    (drive(SCRATCH, permissions={"create": "yes"}), "spec.permissions.create: 'yes' must be true or false"),
    (drive(SCRATCH, permissions={"owner": "x"}), "spec.permissions.owner: unknown field; did you mean owner_uid?"),
    (
        drive(SCRATCH, permissions={"owner_uid": -1}),
        f"spec.permissions.owner_uid: -1 must be a whole number from 0 to {2**32 - 2}",
    ),
    (
        drive(SCRATCH, permissions={"owner_gid": "root"}),
        f"spec.permissions.owner_gid: 'root' must be a whole number from 0 to {2**32 - 2}",
    ),
    (
        drive(SCRATCH, permissions={"dir_mode": 493}),
        'spec.permissions.dir_mode: 493 is not a mode; write octal digits in quotes, such as "0755"',
    ),
    (
        drive(SCRATCH, permissions={"dir_mode": "0o755"}),
        "spec.permissions.dir_mode: '0o755' is not a mode; write octal digits in quotes, such as \"0755\"",
    ),
    (drive(SCRATCH, permissions={"recursive": 1}), "spec.permissions.recursive: 1 must be true or false"),
]


@pytest.mark.parametrize(("body", "message"), REFUSED, ids=[message[:60] for _body, message in REFUSED])
def test_each_rule_has_its_message(body: Any, message: str) -> None:
    with pytest.raises(Problems) as refused:
        check_drives([drive(SCRATCH) | {"metadata": {"name": "first"}}, body])
    (problem,) = refused.value.problems
    has_name = isinstance(body, dict) and body.get("metadata", {}).get("name") == "imagenet"
    where = "drives[1] (imagenet): " if has_name else "drives[1]: "
    assert problem == where + message


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    wrong = [
        drive({**PLACED, "path": "/x"}, evictable="yes", transport="UDP"),
        {"metadata": {"name": "Two"}, "spec": {}},
        7,
        drive(ON_ONE),
    ]
    with pytest.raises(Problems) as refused:
        check_drives(wrong)
    assert str(refused.value).split("\n") == [
        "drives[0] (imagenet): spec.sources[0].path: '/x' must be relative; leave out the / at its beginning",
        "drives[0] (imagenet): spec.transport: 'UDP' is not one of Auto, RDMA, TCP, Local",
        "drives[0] (imagenet): spec.evictable: 'yes' must be true or false",
        f"drives[1]: metadata.name: 'Two' is not a name; {NAME_RULE}",
        "drives[1]: spec.sources: required; at least one source",
        "drives[2]: 7 must be a dictionary",
        "drives[3] (imagenet): metadata.name: is the name of drives[0] already",
    ]


def idle(body: dict[str, Any]) -> list[str]:
    lists = check_lists([{"name": "vision", "drives": [body]}])
    told = drives.without_effect(lists)
    shown = "workspace vision: drive imagenet: "
    assert all(one.startswith(shown) for one in told)
    return [one[len(shown) :] for one in told]


def does_nothing_for(kind: str) -> str:
    return f"does nothing for {kind}: it says how other machines reach a drive on one machine; leave it out"


UNUSED_OWNER = "do nothing without create or apply: nothing is made, and what is there stays"
UNUSED_TTL = "which has no copies that could go; leave it out"
IDLE = [
    (drive(PLACED, transport="TCP"), "spec.transport: TCP " + does_nothing_for(drives._KINDS["placed"])),
    (drive(SHARED, transport="RDMA"), "spec.transport: RDMA " + does_nothing_for("a shared filesystem")),
    (drive(SCRATCH, transport="Local"), "spec.transport: Local " + does_nothing_for("scratch on each machine")),
    (
        drive(ON_ONE, idle_ttl_seconds=1),
        f"spec.idle_ttl_seconds: does nothing for a drive on one machine, {UNUSED_TTL}",
    ),
    (drive(SHARED, idle_ttl_seconds=1), f"spec.idle_ttl_seconds: does nothing for a shared filesystem, {UNUSED_TTL}"),
    (
        drive(SCRATCH, idle_ttl_seconds=1),
        f"spec.idle_ttl_seconds: does nothing for scratch on each machine, {UNUSED_TTL}",
    ),
    (
        drive(SCRATCH, permissions={"create": True, "owner_uid": 7, "recursive": True}),
        "spec.permissions.recursive: does nothing without apply; set apply: true too, or leave it out",
    ),
    (
        drive(PLACED, permissions={"apply": True}),
        "spec.permissions.apply: does nothing without owner_uid, owner_gid or dir_mode; set one, or leave it out",
    ),
    (
        drive(ON_ONE, SHARED, permissions={"owner_uid": 0, "dir_mode": "0750"}),
        f"spec.permissions: owner_uid, dir_mode {UNUSED_OWNER}",
    ),
    *(
        (
            drive(PLACED, fill={"template": {"image": "x", word: "y"}}),
            f"spec.fill.template: {word}: kept, and does nothing in a fill",
        )
        for word in ("tags", "end", "envy", "arms", "commit", "stage", "manager")
    ),
    (
        drive(PLACED, fill={"template": {"image": "x", "requested_resources": {"cpu_cores": 2}, "env_from": []}}),
        "spec.fill.template: env_from, requested_resources: kept, and does nothing in a fill",
    ),
]


@pytest.mark.parametrize(("body", "told"), IDLE, ids=[told[:60] for _body, told in IDLE])
def test_what_is_accepted_and_does_nothing_is_told(body: dict[str, Any], told: str) -> None:
    assert idle(body) == [told]
    assert idle({**body, "state": "absent"}) == [], "a tombstone's spec is only what it was"


@pytest.mark.parametrize(
    "body",
    [
        *(body for body, _spec in BODIES),
        drive(PLACED, permissions={"owner_uid": 7, "dir_mode": "0700"}),  # of the copies
        drive(SCRATCH, permissions={"owner_uid": 7}),
        drive(SHARED, permissions={"create": True, "owner_gid": 0}),
        drive(ON_ONE, permissions={"apply": True, "owner_gid": 0, "recursive": True}),
        drive(ON_ONE, SCRATCH, transport="TCP"),
        drive(PLACED, fill={"template": {"image": "x", "env": {"A": "b"}, "datavolume_refs": [], "work_dir": None}}),
        {"metadata": {"name": "imagenet"}, "state": "absent"},
    ],
)
def test_nothing_is_told_of_what_acts(body: dict[str, Any]) -> None:
    assert idle(body) == []


def test_a_fill_s_template_is_kept_as_it_was_given() -> None:
    given = {
        "image": "pull:1",
        "env": {"HF_TOKEN": "x"},
        "requested_resources": {"cpu_cores": 2, "gpu_requests": {"count": 0}},
        "work_dir": None,
        "datavolume_refs": [],
    }
    (entry,) = check_drives([drive(PLACED, fill={"template": given})])
    template = entry["spec"]["fill"]["template"]
    del given["work_dir"]  # null counts as left out
    assert template == {**given, "command": "", "args": []}
    assert check_drives([entry]) == [entry]


@pytest.mark.parametrize(
    "image",
    [
        "pull",
        "pull:1",
        "registry:5000/team/pull",
        "Registry.example.org/a/b.c_d:V1.2",
        "quay.io/a/b:1@sha256:" + "0a" * 32,
        "localhost/pull@sha256:" + "0a" * 32,
    ],
)
def test_names_of_images(image: str) -> None:
    (entry,) = check_drives([drive(PLACED, fill={"template": {"image": image}})])
    assert entry["spec"]["fill"]["template"]["image"] == image


def test_a_tombstone_needs_no_spec_and_may_be_forced() -> None:
    assert check_drives([{"metadata": {"name": "old"}, "state": "absent", "force": True}]) == [
        {"metadata": {"name": "old", "labels": {}}, "spec": None, "state": "absent", "force": True}
    ]
    with pytest.raises(Problems, match="spec.sources: required"):
        check_drives([{"metadata": {"name": "old"}, "state": "absent", "spec": {"sources": []}}])


def test_machines_that_there_are_not() -> None:
    body = drive({**ON_ONE, "node": "gpu-1", "eligible_nodes": ["gpu-01", "other"]})
    check_drives([body])
    with pytest.raises(Problems) as refused:
        check_drives([body], machines=["gpu-01", "gpu-02"])
    assert refused.value.problems == [
        "drives[0] (imagenet): spec.sources[0].node: 'gpu-1' is not a machine of this inventory; did you mean gpu-01?",
        "drives[0] (imagenet): spec.sources[0].eligible_nodes[1]: 'other' is not a machine of this inventory",
    ]


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        (7, ["workspaces: must be a list"]),
        ([7], ["workspaces[0]: 7 must be a dictionary"]),
        ([{"drives": []}], [f"workspaces[0].name: null is not a name; {NAME_RULE}"]),
        ([{"name": "a.b", "drives": []}], [f"workspaces[0].name: 'a.b' is not a name; {NAME_RULE}"]),
        ([{"name": "a"}], ["workspace a: drives are required; an empty list is a complete list too"]),
        ([{"name": "a", "drives": 7}], ["workspace a: drives must be a list"]),
        ([{"name": "a", "drives": {"b": {}}}], ["workspace a: drives must be a list"]),
        (
            [{"name": "a", "drives": []}, {"name": "a", "drives": []}],
            ["workspace a: is there twice; make one list of both"],
        ),
        (
            [{"name": "a", "drives": [7]}, {"name": "b", "drives": [], "drive": 1}],
            [
                "workspace a: drives[0]: 7 must be a dictionary",
                "workspace b: drive: unknown field; did you mean drives?",
            ],
        ),
    ],
)
def test_lists_of_workspaces(value: Any, problems: list[str]) -> None:
    with pytest.raises(Problems) as refused:
        check_lists(value)
    assert refused.value.problems == problems


def test_an_empty_list_is_a_complete_list() -> None:
    assert check_lists([{"name": "a", "drives": []}]) == {"a": []}


@pytest.mark.parametrize("value", ["vision", "vision.", ".x", "a.b.c", "A.b", "a.b/c", 7, None])
def test_copy_names_are_of_one_form(value: Any) -> None:
    with pytest.raises(Refusal, match="is not of the form <workspace>.<drive>"):
        split_copy_name(value)


def test_copy_names_go_both_ways() -> None:
    assert split_copy_name(drives.copy_name("vision", "hf-cache")) == ("vision", "hf-cache")


@given(st.text())
def test_a_name_is_one_component_of_a_path_or_refused(text: str) -> None:
    try:
        check_name(text, "name")
    except Refusal as error:
        assert "\n" not in str(error)
        return
    assert text and not set(text) & set("/. \n") and len(text) <= 63


FIELDS = sorted(
    {
        *drives._ENTRY_FIELDS,
        *drives._METADATA_FIELDS,
        *drives._SPEC_FIELDS,
        *drives._SOURCE_FIELDS,
        *drives._PERMISSION_FIELDS,
        "image",
        "command",
        "args",
        *drives._TEMPLATE_REFUSED,
        "template",
    }
)
TEXT = st.text(st.characters(), max_size=12)  # with surrogates, as JSON may have them
LEAF = (
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.sampled_from(["placed", "shared", "Auto", "a"])
)
ANYTHING = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | TEXT, inner, max_size=4),
    max_leaves=12,
)
SOURCE = st.fixed_dictionaries({}, optional=dict.fromkeys(drives._SOURCE_FIELDS, ANYTHING))
SPEC = st.fixed_dictionaries(
    {"sources": st.lists(SOURCE, max_size=2) | ANYTHING},
    optional={name: ANYTHING for name in drives._SPEC_FIELDS if name != "sources"},
)
ENTRY = st.fixed_dictionaries(
    {"metadata": st.fixed_dictionaries({"name": TEXT | st.just("a")}) | ANYTHING, "spec": SPEC | ANYTHING},
    optional={"state": ANYTHING, "force": ANYTHING},
)


@given(st.lists(ENTRY | ANYTHING, max_size=3) | ANYTHING)
def test_whatever_is_declared_is_accepted_or_refused_in_lines(value: Any) -> None:
    try:
        entries = check_drives(value)
    except Problems as error:
        assert error.problems
        assert all(problem.isprintable() and problem.startswith("drives") for problem in error.problems)
        str(error).encode()
        return
    assert check_drives(entries) == entries
    json.dumps(entries).encode()


@given(TEXT, ANYTHING)
def test_unknown_fields_are_named_on_one_line(key: str, value: Any) -> None:
    try:
        check_drives([drive(PLACED) | {key: value}])
    except Problems as error:
        assert all(problem.isprintable() for problem in error.problems)


def filled(**variables: str) -> dict[str, Any]:
    return {"metadata": {"name": "llama"}, "spec": {"fill": {"template": {"image": "fetch", "env": variables}}}}


def test_the_variables_of_a_fill_are_hidden() -> None:
    assert drives.hidden([{"name": "ml", "drives": [filled(TOKEN="hf_1")]}]) == [
        {"name": "ml", "drives": [filled(TOKEN="***")]}
    ]
    assert drives.hidden({"env": "hf_1"}) == {"env": "***"}
    for misspelt in ("Env", "envs", "environment"):
        assert drives.hidden({misspelt: {"TOKEN": "hf_1"}}) == {misspelt: {"TOKEN": "***"}}


def test_labels_are_never_hidden() -> None:
    labels = {"labels": {"env": "prod", "environment": "eu"}}
    assert drives.hidden(labels, {"labels": {"env": "test"}}) == labels


def test_that_a_variable_of_a_fill_changed_is_told_and_not_its_value() -> None:
    before, after = filled(TOKEN="hf_1", MIRROR="eu"), filled(TOKEN="hf_2", MIRROR="eu", NEW="x")
    assert drives.hidden(after, before) == filled(TOKEN="*** (changed)", MIRROR="***", NEW="***")
    assert drives.hidden(before) == filled(TOKEN="***", MIRROR="***")
