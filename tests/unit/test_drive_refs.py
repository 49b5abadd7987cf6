# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The drives that a worker asks for: both forms, their defaults, and what is refused of a run itself."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.drives import refs as drive_refs
from stowage_core.drives.declared import Entry, check_drives
from stowage_core.drives.refs import DriveRef, parse, read, resolve
from stowage_core.errors import Refusal


def declared(name: str = "imagenet", *sources: dict[str, Any], **entry: Any) -> Entry:
    spec = {"sources": list(sources) or [{"node": "gpu-01", "path": "/mnt/nvme0/imagenet", "mount_path": "/data"}]}
    return check_drives([{"metadata": {"name": name}, "spec": spec, **entry}])[0]


@pytest.mark.parametrize(
    ("text", "refs"),
    [
        ("imagenet", [DriveRef("imagenet", "/data/imagenet")]),
        ("imagenet:/data", [DriveRef("imagenet", "/data")]),
        (
            " imagenet , hf-cache : /root/.cache/ ,",
            [DriveRef("imagenet", "/data/imagenet"), DriveRef("hf-cache", "/root/.cache")],
        ),
        ("a:/x:y", [DriveRef("a", "/x:y")]),
    ],
)
def test_the_short_form(text: str, refs: list[DriveRef]) -> None:
    assert parse(text) == refs
    assert read(text) == refs


# The example of Astraeus's page, and every field.
REFS = [
    {"name": "imagenet", "mount_path": "/data", "mode": "ReadOnly"},
    {"name": "lustre-ckpt"},
    {"name": "hf-cache", "mount_path": "/hf/", "sub_path": "models//llama", "mode": "ReadWrite", "source_index": 2},
    {"name": "a", "mount_path": None, "sub_path": "", "mode": "", "source_index": None},
]


@pytest.mark.parametrize("value", [REFS, json.dumps(REFS), f"\n {json.dumps(REFS, indent=1)}\n"])
def test_the_form_of_a_run(value: Any) -> None:
    assert read(value) == [
        DriveRef("imagenet", "/data", mode="ReadOnly"),
        DriveRef("lustre-ckpt"),
        DriveRef("hf-cache", "/hf", "models/llama", "ReadWrite", 2),
        DriveRef("a"),
    ]


@pytest.mark.parametrize("value", [[], "[]", " [ ] "])
def test_an_empty_list_is_no_drive(value: Any) -> None:
    assert read(value) == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("imagenet:data", "Invalid task: data volume imagenet: mount_path must be absolute"),
        ("imagenet:", "Invalid task: data volume imagenet: mount_path must be absolute"),
        (
            "imagenet:/a/../b",
            "Invalid task: data volume imagenet: mount_path: '/a/../b' may not contain a '..' component",
        ),
        ("imagenet:/", "Invalid task: data volume imagenet: mount_path: must not be the root directory"),
        (":/data", "Invalid task: data volume: '' is not a name; "),
        ("ml.imagenet", "Invalid task: data volume: 'ml.imagenet' is not a name; "),
        ("", "Invalid task: datavolume_refs '' name no drive; name the drives, as name or name:/mount/path, comma-"),
        ("\t", "Invalid task: datavolume_refs '\\t' name no drive; "),
        (" ,, ", "Invalid task: datavolume_refs ' ,, ' name no drive; "),
        (None, "Invalid task: datavolume_refs must be a list"),
        ('{"name": "imagenet"}', "Invalid task: datavolume_refs must be a list"),
        ('["imagenet"]', "Invalid task: datavolume_refs[0] must be a dictionary with the name of a drive"),
        (
            "[{'name': 'imagenet'}]",
            "Invalid task: datavolume_refs begin as JSON, and are none (Expecting property name enclosed in double "
            'quotes: line 1 column 3 (char 2)); write [{"name": "imagenet"}], or imagenet:/mount/path, comma-separated',
        ),
        ("[imagenet", "Invalid task: datavolume_refs begin as JSON, and are none ("),
        ("[" * 100_000, "Invalid task: datavolume_refs begin as JSON, and are none ("),
        ({"name": "a"}, "Invalid task: datavolume_refs must be a list"),
        (["a"], "Invalid task: datavolume_refs[0] must be a dictionary with the name of a drive"),
        ([{}], "Invalid task: datavolume_refs[0]: data volume: null is not a name; "),
        ([{"name": "a"}, {"name": "B"}], "Invalid task: datavolume_refs[1]: data volume: 'B' is not a name; "),
        (
            [{"name": "a", "mountpath": "/x"}],
            "Invalid task: datavolume_refs[0]: unknown field 'mountpath'; did you mean mount_path?",
        ),
        (
            [{"name": "a", 1: 2}],
            "Invalid task: datavolume_refs[0]: unknown field '1'; there are name, mount_path, sub_path, ",
        ),
        ([{"name": "a", "mount_path": "x"}], "Invalid task: data volume a: mount_path must be absolute"),
        ([{"name": "a", "mount_path": 7}], "Invalid task: data volume a: mount_path: must be a path"),
        ([{"name": "a", "sub_path": "/x"}], "Invalid task: data volume a: sub_path: '/x' must be relative; "),
        (
            [{"name": "a", "sub_path": "x/.."}],
            "Invalid task: data volume a: sub_path: 'x/..' may not contain a '..' component",
        ),
        ([{"name": "a", "sub_path": ["x"]}], "Invalid task: data volume a: sub_path: must be a path"),
        ([{"name": "a", "mode": "rw"}], "Invalid task: data volume a: mode must be one of ReadOnly, ReadWrite"),
        ([{"name": "a", "mode": ["ReadOnly"]}], "Invalid task: data volume a: mode must be one of ReadOnly, ReadWrite"),
        ([{"name": "a", "source_index": -1}], "Invalid task: data volume a: source_index must be a whole number"),
        ([{"name": "a", "source_index": True}], "Invalid task: data volume a: source_index must be a whole number"),
        ([{"name": "a", "source_index": "1"}], "Invalid task: data volume a: source_index must be a whole number"),
    ],
)
def test_a_run_that_is_wrong(value: Any, message: str) -> None:
    with pytest.raises(Refusal) as refused:
        read(value)
    assert str(refused.value).startswith(message)


TWO = (
    {"node": "a", "path": "/x", "mount_path": "/one", "mode": "ReadWrite"},
    {"node": "b", "path": "/y", "mount_path": "/two"},
)


@pytest.mark.parametrize(
    ("ref", "wanted"),
    [
        (DriveRef("two"), DriveRef("two", "/one", "", "ReadWrite", 0)),
        (DriveRef("two", source_index=1), DriveRef("two", "/two", "", "ReadOnly", 1)),
        (DriveRef("two", "/own", "sub", "ReadOnly"), DriveRef("two", "/own", "sub", "ReadOnly", 0)),
    ],
)
def test_defaults_come_from_the_source(ref: DriveRef, wanted: DriveRef) -> None:
    drive = declared("two", *TWO)
    (found,) = resolve([ref], [drive])
    assert found.ref == wanted and found.name == "two"
    assert found.source == drive["spec"]["sources"][ref.source_index]


def test_a_drive_that_is_not_in_the_workspace_is_waited_for() -> None:
    deleted = declared("imagenet", state="absent")
    found = resolve([DriveRef("imagenet"), DriveRef("other")], [deleted])
    assert [(one.name, one.spec, one.source) for one in found] == [("imagenet", None, None), ("other", None, None)]


BARE = {"node_scope": "placed"}


@pytest.mark.parametrize(
    ("refs", "message"),
    [
        # Neither the run nor the drive's source sets it.
        ([DriveRef("bare")], "Invalid task: data volume bare: mount_path must be absolute"),
        (
            [DriveRef("bare", "/x", source_index=1)],
            "Invalid task: data volume bare: source_index 1 is none of its sources; it has source 0 only",
        ),
        (
            [DriveRef("two", source_index=2)],
            "Invalid task: data volume two: source_index 2 is none of its sources; it has sources 0 to 1",
        ),
        (
            [DriveRef("two"), DriveRef("bare", "/one")],
            "Invalid task: data volume bare: mount_path /one is that of data volume two already",
        ),
        (
            parse("gone,gone"),
            "Invalid task: data volume gone: mount_path /data/gone is that of data volume gone already",
        ),
    ],
)
def test_a_run_that_does_not_suit_the_drives(refs: list[DriveRef], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        resolve(refs, [declared("bare", BARE), declared("two", *TWO)])
    assert str(refused.value) == message


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
PARTS = st.from_regex(r"[a-z_:][a-z0-9._:-]{0,10}", fullmatch=True)
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))


@given(st.lists(st.builds(DriveRef, NAMES, PATHS), min_size=1, max_size=5))
def test_the_short_form_says_what_it_is_given(refs: list[DriveRef]) -> None:
    assert parse(",".join(f"{ref.name}:{ref.mount_path}" for ref in refs)) == refs


@given(st.one_of(st.text(), st.text(alphabet="ab-:/., \n\0\ud800")))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        refs = parse(text)
    except Refusal as error:
        assert str(error).isprintable()
    else:
        assert all(ref.mount_path.startswith("/") and ".." not in ref.mount_path.split("/") for ref in refs)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(drive_refs._FIELDS) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=10,
)


@given(
    st.one_of(
        ANYTHING,
        st.lists(
            st.fixed_dictionaries(
                {"name": NAMES},
                optional={"mount_path": ANYTHING, "sub_path": ANYTHING, "mode": ANYTHING, "source_index": ANYTHING},
            )
        ),
    )
)
def test_any_value_is_read_or_refused_in_one_line(value: Any) -> None:
    with contextlib.suppress(Refusal):
        for ref in read(value):
            assert not ref.sub_path.startswith("/")
            assert ref.mode in ("", "ReadOnly", "ReadWrite")
