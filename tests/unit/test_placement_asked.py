# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What each host is asked for: which workspace, by which list of drives, and who is given another one."""

from __future__ import annotations

from typing import Any

import pytest

from stowage_core.drives import refs as drive_refs
from stowage_core.drives.reasons import Reason
from stowage_core.errors import Refusal
from stowage_core.placement.asked import ask, check_any, choose_workspace, differing
from stowage_core.placement.decision import place

ML = {"ml": []}


@pytest.mark.parametrize(
    ("given", "declared", "name"),
    [
        ("ml", [ML], "ml"),
        (" ml ", [{"ml": [], "vision": []}], "ml"),
        ("vision", [ML, {"vision": []}], "vision"),
        *[(blank, [ML, {}, Reason("host_drives", "wrong"), ML], "ml") for blank in (None, "", " ")],
    ],
)
def test_the_workspace(given: Any, declared: list[Any], name: str) -> None:
    assert choose_workspace(given, declared) == name


@pytest.mark.parametrize(
    ("given", "declared", "message"),
    [
        ("", [{"ml": [], "vision": []}], "workspace: name the workspace; host_drives has ml, vision"),
        ("", [{"vision": []}, ML], "workspace: name the workspace; host_drives has ml, vision"),
        ("", [{}], "workspace: name the workspace; host_drives has none"),
        ("", [{"M.L": []}], "host_drives: 'M.L' is not a name; only lowercase"),
        (
            "vison",
            [{"vision": []}],
            "workspace vison: there is none of this name; host_drives has vision; did you mean visi",
        ),
        ("vision", [ML], "workspace vision: there is none of this name; host_drives has ml"),
        ("ML", [ML], "workspace: 'ML' is not a name; only lowercase"),
        (7, [ML], "workspace: 7 is not a name; only lowercase"),
        (["ml"], [ML], "workspace: a list is not a name; only lowercase"),
    ],
)
def test_a_workspace_that_is_none(given: Any, declared: list[Any], message: str) -> None:
    with pytest.raises(Refusal) as refused:
        choose_workspace(given, declared)
    assert str(refused.value).startswith(message) and "\n" not in str(refused.value)


def scratch(path: str, **source: Any) -> dict[str, Any]:
    sources = [{"node_scope": "local-any", "path": path, "mount_path": "/x", **source}]
    return {"metadata": {"name": "scratch"}, "spec": {"sources": sources}}


def on(node: str, name: str = "data") -> dict[str, Any]:
    sources = [{"node": node, "path": "/data", "mount_path": "/data"}]
    return {"metadata": {"name": name}, "spec": {"sources": sources}}


def asked(declared: dict[str, Any], refs: str = "scratch") -> dict[str, Any]:
    lists = {host: one if isinstance(one, (dict, Reason)) else {"ml": one} for host, one in declared.items()}
    return ask(drive_refs.read(refs), "ml", lists, {"a", "b", "c", "gpu-01"})


def told(declared: dict[str, Any], refs: str = "scratch") -> dict[str, list[str]]:
    """The reasons of each host that is no candidate."""
    found = place(asked(declared, refs), {}, "ml")
    return {verdict.host: [one.text for one in verdict.reasons] for verdict in found.verdicts if verdict.reasons}


def test_each_host_is_judged_by_its_own_list() -> None:
    shared = [scratch("/x")]
    declared = {
        "a": shared,
        "b": [],
        "c": {"vision": shared},
        "d": [on("storage"), *shared],
        "e": Reason("host_drives", "'nowhere' is undefined"),
        "f": [scratch("/x", mount_path="")],
        "g": shared,
    }
    assert told(declared, '[{"name": "scratch"}]') == {
        "b": ["drive scratch does not exist"],
        "c": ["machine c has no workspace ml in host_drives"],
        "d": ["host_drives.ml[0] (data): spec.sources[0].node: 'storage' is not a machine of this inventory"],
        "e": ["host_drives: 'nowhere' is undefined"],
        "f": ["Invalid task: data volume scratch: mount_path must be absolute"],
    }


def test_a_drive_is_where_the_host_s_own_list_says() -> None:
    found = place(asked({"a": [on("a")], "b": [on("b")], "c": [on("a")]}, "data"), {}, "ml")
    assert found.candidates == ["a", "b", "c"]
    assert {verdict.host: verdict.preferred for verdict in found.verdicts} == {
        "a": ("drive data is on it",),
        "b": ("drive data is on it",),
        "c": (),
    }


LONG = [{"metadata": {"name": "a"}, "spec": {"sources": [], **dict.fromkeys("vwxyz", 1)}}]


@pytest.mark.parametrize(
    ("drives", "refs", "message"),
    [
        (None, "scratch", "host_drives.ml must be a list"),
        (["scratch"], "scratch", "host_drives.ml[0]"),
        (
            [on("gpu-02")],
            "data",
            "host_drives.ml[0] (data): spec.sources[0].node: 'gpu-02' is not a machine of this inven",
        ),
        ([on("gpu-02")], "data", "inventory; did you mean gpu-01?"),
        (LONG, "a", "; and 3 more"),
        ([on("a")], '[{"name": "data", "source_index": 1}]', "data volume data: source_index 1 is none of its sources"),
        (
            [on("a"), on("a", "two")],
            '[{"name": "data"}, {"name": "two"}]',
            "mount_path /data is that of data volume data",
        ),
    ],
)
def test_what_is_wrong_for_every_host_is_refused(drives: Any, refs: str, message: str) -> None:
    with pytest.raises(Refusal) as refused:
        check_any(asked({"a": {"ml": drives}, "b": {"ml": drives}}, refs))
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_what_is_right_for_one_host_is_not_refused() -> None:
    check_any(asked({"a": [scratch("/x")], "b": None}))
    check_any({})


def test_who_is_given_another_drive() -> None:
    usual = [scratch("/x"), on("a")]
    declared = {"a": usual, "b": [scratch("/y"), on("a")], "c": usual, "d": [on("a")], "e": {}, "f": None}
    assert differing(asked(declared, "scratch,data,scratch:/again")) == [("scratch", ["b", "d"])]
    # Nothing that the run does not ask for counts, nor another way to write the same.
    assert differing(asked(declared, "data")) == []
    assert differing(asked({"a": usual, "b": [*usual, on("b", "more")], "c": [on("a"), scratch("/x/")]})) == []


def test_of_two_halves_the_first_host_has_the_usual_one() -> None:
    assert differing(asked({"a": [scratch("/x")], "b": [scratch("/y")]})) == [("scratch", ["b"])]
