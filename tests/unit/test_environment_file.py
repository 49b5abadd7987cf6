# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment file: a shell, and what reads it back, see the values that were written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import Refusal
from stowage_core.layout.environment_file import as_it_is, parse, quote, render
from stowage_core.own_files import is_ours

AWKWARD = [
    "/srv/plain",
    "/srv/100%h",
    "/srv/a b",
    "/srv/it's",
    '/srv/"quoted"',
    "/srv/$HOME/${HOME}",
    "/srv/`id`/$(id)",
    "/srv/back\\slash\\",
    "/srv/a;b#c&d|e<f>g",
    "/srv/~/*?[x]",
    "/srv/données",
    "",
]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("/srv/plain", "/srv/plain"),
        ("/srv/100%h", "/srv/100%h"),
        ("/srv/a b", '"/srv/a b"'),
        ("/$x", '"/\\$x"'),
        ('/"`\\', '"/\\"\\`\\\\"'),
        ("", '""'),
    ],
)
def test_quote(value: str, text: str) -> None:
    assert quote(value) == text


def test_render() -> None:
    data = render({"B": "/b", "A": "/a b"})
    assert data == b'# Written by Stowage. Local changes are lost.\nB=/b\nA="/a b"\n'
    assert is_ours(data)
    assert render({"A": "/a b"}, as_it_is).splitlines()[1:] == [b"A=/a b"]


def test_a_shell_reads_the_values(tmp_path: Path) -> None:
    path = tmp_path / "stowage.env"
    path.write_bytes(render({f"V{number}": value for number, value in enumerate(AWKWARD)}))
    names = " ".join(f'"$V{number}"' for number in range(len(AWKWARD)))
    output = subprocess.run(
        ["sh", "-euc", f'. "$1"; printf "%s\\n" {names}', "sh", str(path)], check=True, stdout=subprocess.PIPE
    ).stdout
    assert output.decode().splitlines() == AWKWARD


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_][A-Z0-9_]*", fullmatch=True),
        st.text(st.characters(exclude_categories=("Cc", "Cs"))),
    )
)
def test_values_are_read_back(values: dict[str, str]) -> None:
    assert parse(render(values)) == values


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("A", "/a\nB=/b", "A: its value may not contain control characters"),
        ("A", "/\x00", "A: its value may not contain control characters"),
        ("A", "/\udcff", "A: its value is not UTF-8, which systemd does not read"),
        ("A B", "/a", "A B: is not the name of an environment variable"),
    ],
)
def test_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        render({name: value})
    assert str(refusal.value) == message
