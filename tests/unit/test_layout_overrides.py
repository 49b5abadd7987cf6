# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the overrides of a storage layout are read."""

from __future__ import annotations

from typing import Any

import pytest

from stowage_core.errors import Refusal
from stowage_core.layout.found import MountRule
from stowage_core.layout.overrides import for_all, parse
from stowage_core.layout.rules import resolve


def test_overrides() -> None:
    paths, rules = parse(
        {
            "runs": "/runs",
            "cache": None,
            "state": {"path": "/state", "require_mount": "yes"},
            "reflow": {"path": "/mnt/a/reflow", "mount_point": "/mnt/a"},
            "packages": {"path": ""},
        }
    )
    assert paths == {"runs": "/runs", "cache": None, "state": "/state", "reflow": "/mnt/a/reflow", "packages": ""}
    assert rules == {
        "runs": MountRule(),
        "cache": MountRule(),
        "state": MountRule(True),
        "reflow": MountRule(True, "/mnt/a"),
        "packages": MountRule(),
    }


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "overrides: runs: must be a path, or a dictionary of path, require_mount and mount_point"),
        (["/x"], "overrides: runs: must be a path, or a dictionary of path, require_mount and mount_point"),
        ({"dir": "/x"}, "overrides: runs.dir: there is no such field; use path, require_mount or mount_point"),
        ({"requiremount": True}, "overrides: runs.requiremount: there is no such field; did you mean require_mount?"),
        ({7: True}, "overrides: runs.7: there is no such field; use path, require_mount or mount_point"),
        ({"path": 7}, "overrides: runs: must be a path, or a dictionary of path, require_mount and mount_point"),
        ({"require_mount": True}, "overrides: runs: it has a rule for its mount and no path; give it a path"),
        (
            {"path": "/x", "require_mount": "maybe"},
            "overrides: runs.require_mount: cannot be 'maybe'; give true or false",
        ),
        ({"path": "/x", "mount_point": "x"}, "overrides: runs: mount_point: 'x' must be absolute; begin it with /"),
    ],
)
def test_bad_overrides(value: Any, message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parse({"runs": value})
    assert str(refusal.value) == message


def test_a_default_has_the_rule_of_its_parent() -> None:
    layout = resolve("/srv", {"cache": "/mnt/a/cache", "state": "/mnt/b/state"})
    root, cache = MountRule(True), MountRule(True, "/mnt/a")
    rules = for_all(layout, root, {"cache": cache, "state": MountRule()})
    assert set(rules) == {"root", *layout.locations}
    assert {name for name, rule in rules.items() if rule == root} == {"root", "runs", "packages", "reflow"}
    assert rules["hf_hub_cache"] == rules["hub_cache"] == cache
    assert rules["state"] == MountRule()
