# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The path rules, each named by the message that it gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import Refusal
from stowage_core.paths import check_path, check_relative, is_within, overlap, overlaps, relation

ACCEPTED = [
    ("/srv", "/srv"),
    ("/srv/", "/srv"),
    ("//srv///data/", "/srv/data"),
    ("/srv/..data", "/srv/..data"),
    ("/srv/a b", "/srv/a b"),
    ("/srv/.hidden", "/srv/.hidden"),
    ("/srv/donn\u00e9es", "/srv/donn\u00e9es"),
]

REFUSED = [
    ("", "root: must be a path"),
    (None, "root: must be a path"),
    (7, "root: must be a path"),
    ("srv", "root: 'srv' must be absolute; begin it with /"),
    ("/", "root: must not be the root directory; name a directory below it"),
    ("///", "root: must not be the root directory; name a directory below it"),
    ("/srv/../etc", "root: '/srv/../etc' may not contain a '..' component"),
    ("/srv/./x", "root: '/srv/./x' may not contain a '.' component"),
    (" /srv", "root: ' /srv' may not begin or end with whitespace"),
    ("/srv\t", "root: '/srv\\t' may not begin or end with whitespace"),
    ("/srv/a\nb", "root: '/srv/a\\nb' may not contain control characters"),
    ("/srv/\x00", "root: '/srv/\\x00' may not contain control characters"),
    ("/" + "a" * 200 + "/" + ("b" * 200 + "/") * 20, "root: is 4222 bytes long; at most 4096 are allowed"),
    ("/" + "a" * 256, f"root: the component '{'a' * 40}'… is longer than 255 bytes"),
    ("/\ud800", "root: '/\\ud800' is not a file name on this system"),
]


@pytest.mark.parametrize(("value", "normalized"), ACCEPTED)
def test_accepted(value: str, normalized: str) -> None:
    assert check_path(value, "root") == normalized


@pytest.mark.parametrize(("value", "message"), REFUSED)
def test_refused(value: object, message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        check_path(value, "root")
    assert str(refusal.value) == message


@given(st.text())
def test_any_text_is_normalized_or_refused(text: str) -> None:
    try:
        path = check_path(text, "root")
    except Refusal as refusal:
        assert "\n" not in str(refusal)
    else:
        assert path.startswith("/") and os.path.normpath(path) == path and check_path(path) == path


@pytest.mark.parametrize(
    ("value", "normalized"), [("", ""), ("models/llama", "models/llama"), ("models//llama/", "models/llama")]
)
def test_relative(value: str, normalized: str) -> None:
    assert check_relative(value, "sub_path") == normalized


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("/models", "sub_path: '/models' must be relative; leave out the / at its beginning"),
        ("models/../..", "sub_path: 'models/../..' may not contain a '..' component"),
    ],
)
def test_relative_refused(value: str, message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        check_relative(value, "sub_path")
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("path", "other", "expected"),
    [
        ("/a", "/a", True),
        ("/a/b", "/a", True),
        ("/a", "/a/b/c", True),
        ("/a", "/ab", False),
        ("/dev/infiniband", "/dev/infiniband-cache", False),
        ("/a/b", "/a/c", False),
    ],
)
def test_overlap(path: str, other: str, expected: bool) -> None:
    assert overlap(path, other) is expected
    assert overlap(other, path) is expected


@pytest.mark.parametrize(
    ("path", "directory", "within", "lies"),
    [
        ("/a", "/a", True, "is"),
        ("/a/b", "/a", True, "is inside"),
        ("/a", "/a/b", False, "contains"),
        ("/ab", "/a", False, ""),
        ("/", "/a", False, "contains"),
        ("/a", "/", True, "is inside"),
        ("/", "/", True, "is"),
    ],
)
def test_how_one_path_lies_to_another(path: str, directory: str, within: bool, lies: str) -> None:
    assert is_within(path, directory) is within
    assert relation(path, directory) == lies


def test_a_symlink_alias_is_an_overlap(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "runs")
    named = {
        "runs": str(tmp_path / "runs"),
        "cache": str(tmp_path / "alias" / "cache"),
        "state": str(tmp_path / "state"),
    }
    assert overlaps(named) == [("runs", "cache")]
