# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A layout on nodes that see its root elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stowage_core.errors import Refusal
from stowage_core.layout.rules import NAMES, check_apart, resolve
from stowage_core.paths import is_within
from stowage_core.renderings.rebasing import moved, rebase


def test_what_lies_below_the_root_moves_along() -> None:
    layout = resolve("/srv/s", {"runs": "/mnt/runs", "cache": "/mnt/cache", "state": "/srv/s/own/state"}, "/volumes")
    found = rebase(layout, "/lustre/stowage/")
    assert found.root == "/lustre/stowage" and found.volume_root == "/volumes"
    assert found.locations["packages"] == "/lustre/stowage/packages"
    # An override that lies in the root is seen through it, as everything else there.
    assert found.locations["state"] == "/lustre/stowage/own/state"
    # What is elsewhere keeps its path, and so do the caches whose parent is elsewhere.
    assert found.locations["runs"] == "/mnt/runs"
    assert found.locations["hf_hub_cache"] == "/mnt/cache/hf/hub"


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/srv/s", "/x"),
        ("/srv/s/runs/a", "/x/runs/a"),
        ("/srv/store", "/srv/store"),
        ("/mnt/srv/s", "/mnt/srv/s"),
    ],
)
def test_a_path_is_moved_by_what_it_is_below(path: str, there: str) -> None:
    assert moved(path, "/srv/s", "/x") == there


@pytest.mark.parametrize(
    ("root", "refused"),
    [
        ("relative", "root: 'relative' must be absolute"),
        ("/", "root: must not be the root directory"),
        ("/mnt/disk", "runs: /mnt/disk is the same directory as root"),
        ("/mnt/disk/x", "runs: /mnt/disk contains root"),
        ("/volumes/x", "volume_root: /volumes contains root"),
        ("/far", "packages: /far/packages is the same directory as reflow"),
    ],
)
def test_where_the_root_cannot_be(root: str, refused: str) -> None:
    layout = resolve("/srv/s", {"runs": "/mnt/disk", "reflow": "/far/packages"}, "/volumes")
    with pytest.raises(Refusal) as refusal:
        rebase(layout, root)
    assert str(refusal.value).startswith(refused)


WORDS = st.sampled_from(["a", "b", "srv", "s", "runs", "cache", "mnt"])
PATHS = st.lists(WORDS, min_size=1, max_size=4).map(lambda words: "/" + "/".join(words))


@given(PATHS, PATHS, st.dictionaries(st.sampled_from(NAMES), PATHS, max_size=4))
def test_everything_moves_by_where_it_lies(root: str, new: str, overrides: dict[str, str]) -> None:
    layout = resolve(root, dict(overrides))
    try:
        check_apart(layout)
        found = rebase(layout, new)
    except Refusal:
        assume(False)
        raise
    check_apart(found)
    for name in NAMES:
        before, after = layout.locations[name], found.locations[name]
        if is_within(before, root):
            assert is_within(after, new) and after[len(new) :] == before[len(root) :]
        else:
            assert after == before
    if not any(is_within(path, new) for path in layout.locations.values()):
        assert rebase(found, root) == layout
