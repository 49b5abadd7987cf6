# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of units, drop-ins, and what systemctl prints."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import Refusal, StowageError
from stowage_core.own_files import is_ours
from stowage_core.services.systemd_units import (
    Systemctl,
    escape_path,
    mount_unit,
    mount_units_above,
    parse_show,
    quote_word,
    render_mount_drop_in,
    service_name,
    unit_name,
)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/", "-"),
        ("/mnt/nvme0", "mnt-nvme0"),
        ("/mnt/a-b", "mnt-a\\x2db"),
        ("/.hidden", "\\x2ehidden"),
        ("/a/.b", "a-.b"),
        ("/a b", "a\\x20b"),
        ("/é", "\\xc3\\xa9"),
        ('/we ird%h"q\\z', "we\\x20ird\\x25h\\x22q\\x5cz"),
        ("/A_1:2", "A_1:2"),
    ],
)
def test_escape_path(path: str, name: str) -> None:
    assert escape_path(path) == name


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1))
def test_escaping_loses_nothing(component: str) -> None:
    name = escape_path(f"/mnt/{component}")
    assert re.fullmatch(r"[A-Za-z0-9:_.\\-]+", name)
    plain = re.sub(r"\\x(..)", lambda match: chr(int(match.group(1), 16)), name.replace("-", "/"))
    assert plain.encode("latin-1") == f"mnt/{component}".encode()


def test_mount_units_above() -> None:
    assert list(mount_units_above("/mnt/a/b").items()) == [
        ("/mnt/a/b", "mnt-a-b.mount"),
        ("/mnt/a", "mnt-a.mount"),
        ("/mnt", "mnt.mount"),
    ]
    assert list(mount_units_above("/mnt/" + "é" * 100)) == ["/mnt"]
    assert mount_unit("/") == "-.mount"


@pytest.mark.parametrize(
    ("given_name", "name"),
    [("slurmd", "slurmd.service"), ("slurmd.service", "slurmd.service"), ("getty@tty1", "getty@tty1.service")],
)
def test_service_name(given_name: str, name: str) -> None:
    assert service_name(given_name) == name
    assert unit_name(given_name) == name


@pytest.mark.parametrize(
    "name", ["", ".service", "a/b", "../x", "-x", "a b", "worker@.service", "worker@", "a\n", "@x"]
)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(Refusal, match=r"^service: "):
        service_name(name)
    with pytest.raises(Refusal, match=r"^unit: "):
        unit_name(name)


def test_units_other_than_services() -> None:
    assert unit_name("stowage.socket") == "stowage.socket"
    assert unit_name("vllm-0.9") == "vllm-0.9.service"


def test_quote_word() -> None:
    assert quote_word('/a b%c"d\\e') == '"/a b%%c\\"d\\\\e"'


def test_drop_in() -> None:
    content = render_mount_drop_in(["/mnt/a b/runs", "/mnt/c"], ["/mnt/a b", "/mnt/c"])
    assert content.decode() == (
        "# Written by Stowage. Local changes are lost.\n"
        "[Unit]\n"
        'RequiresMountsFor="/mnt/a b/runs"\n'
        'RequiresMountsFor="/mnt/c"\n'
        "BindsTo=mnt-a\\x20b.mount\n"
        "After=mnt-a\\x20b.mount\n"
        "AssertPathIsMountPoint=/mnt/a b\n"
        "BindsTo=mnt-c.mount\n"
        "After=mnt-c.mount\n"
        "AssertPathIsMountPoint=/mnt/c\n"
    )
    assert is_ours(content)


SHOWN = "Id=a.service\nLoadState=loaded\nWhere=\n\nId=b.mount\nLoadState=not-found\nWhere=/x=y\n"


def test_parse_show() -> None:
    assert parse_show(SHOWN) == [
        {"Id": "a.service", "LoadState": "loaded", "Where": ""},
        {"Id": "b.mount", "LoadState": "not-found", "Where": "/x=y"},
    ]
    assert parse_show("") == []


class Command:
    """A systemctl that answers with what a test gives it."""

    def __init__(self, code: int = 0, out: str = "", err: str = "") -> None:
        self.answer = (code, out, err)
        self.calls: list[list[str]] = []

    def __call__(self, arguments: list[str], **_options: Any) -> tuple[int, str, str]:
        self.calls.append(arguments)
        return self.answer


def test_one_call_shows_all_units() -> None:
    command = Command(out=SHOWN)
    units = Systemctl("/bin/systemctl", command).show(["alias.service", "b.mount", "alias.service"], ["Where"])
    assert command.calls == [
        ["/bin/systemctl", "show", "--property=Id,LoadState,Where", "--", "alias.service", "b.mount"]
    ]
    assert units["alias.service"]["Id"] == "a.service"
    assert Systemctl("/bin/systemctl", command).show([], ["Where"]) == {}
    assert len(command.calls) == 1


def test_a_short_answer_is_an_error() -> None:
    with pytest.raises(StowageError, match="answered for 2 of 3 units"):
        Systemctl("systemctl", Command(out=SHOWN)).show(["a", "b", "c"], [])


def test_a_failure_has_systemctls_words_on_one_line() -> None:
    with pytest.raises(StowageError) as error:
        Systemctl("systemctl", Command(1, err="Job failed.\nSee journalctl.\n")).restart("a.service")
    assert str(error.value) == "systemctl restart a.service: Job failed. See journalctl."
