# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""TunePlane's storage layout: defaults, overrides, and what has to stay apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import Refusal
from stowage_core.layout.rules import NAMES, check_apart, check_prefix, disagreements, moved, resolve
from stowage_core.paths import overlap

DEFAULTS = {
    "STORAGE_ROOT": "/srv",
    "RUNS_ROOT": "/srv/runs",
    "CACHE_ROOT": "/srv/cache",
    "HF_HUB_CACHE_ROOT": "/srv/cache/hf/hub",
    "HF_DATASETS_CACHE_ROOT": "/srv/cache/hf/datasets",
    "MODELSCOPE_CACHE_ROOT": "/srv/cache/modelscope",
    "HUB_CACHE_ROOT": "/srv/cache/hubs",
    "DATASET_CACHE_ROOT": "/srv/cache/datasets",
    "VOLUME_CACHE_ROOT": "/srv/cache/volumes",
    "PACKAGES_ROOT": "/srv/packages",
    "REFLOW_ROOT": "/srv/reflow",
    "STATE_ROOT": "/srv/state",
}


def test_defaults() -> None:
    layout = resolve("/srv", {})
    check_apart(layout)
    assert layout.settings() == DEFAULTS
    assert layout.defaults == list(NAMES)


def test_prefix_and_volume_root() -> None:
    settings = resolve("/srv", {}, "/volumes").settings("TUNEPLANE_")
    assert settings["TUNEPLANE_STORAGE_ROOT"] == "/srv"
    assert settings["TUNEPLANE_VOLUME_ROOT"] == "/volumes"
    assert len(settings) == 13


def test_an_empty_override_is_the_default() -> None:
    assert resolve("/srv", {"runs": "", "cache": None}, "") == resolve("/srv", {})


def test_a_changed_cache_moves_the_caches_below_it() -> None:
    settings = resolve("/srv", {"cache": "/fast/cache/", "hub_cache": "/hubs"}).settings()
    assert settings["CACHE_ROOT"] == "/fast/cache"
    assert settings["HF_HUB_CACHE_ROOT"] == "/fast/cache/hf/hub"
    assert settings["HUB_CACHE_ROOT"] == "/hubs"
    assert settings["RUNS_ROOT"] == "/srv/runs"


@pytest.mark.parametrize(
    "overrides",
    [
        {"runs": "/srv/fast-runs"},
        {"runs": "/srv/runs"},
        {"hf_hub_cache": "/srv/cache/models"},
        {"cache": "/fast", "hf_hub_cache": "/fast/hf/hub"},
        {"runs": "/srv2"},
        {"cache": "/srv-cache"},
    ],
)
def test_apart(overrides: dict[str, str]) -> None:
    check_apart(resolve("/srv", overrides, "/volumes"))


APART = "give each a directory of its own"
OWN = "give it a directory of its own"
GOVERNED = "keep governed material apart from the layout"


@pytest.mark.parametrize(
    ("overrides", "volume_root", "message"),
    [
        ({"runs": "/srv"}, "", f"runs: /srv is the same directory as root, /srv; {OWN}"),
        ({"runs": "/x", "state": "/x/state"}, "", f"runs: /x contains state, /x/state; {APART}"),
        ({"runs": "/x/runs", "reflow": "/x"}, "", f"runs: /x/runs is inside reflow, /x; {APART}"),
        ({"packages": "/x", "state": "/x"}, "", f"packages: /x is the same directory as state, /x; {APART}"),
        ({"runs": "/srv/cache/runs"}, "", f"runs: /srv/cache/runs is inside cache, /srv/cache; {APART}"),
        (
            {"hf_hub_cache": "/srv/cache"},
            "",
            f"cache: /srv/cache is the same directory as hf_hub_cache, /srv/cache; {APART}",
        ),
        (
            {"hf_hub_cache": "/srv/cache/hf"},
            "",
            f"hf_hub_cache: /srv/cache/hf contains hf_datasets_cache, /srv/cache/hf/datasets; {APART}",
        ),
        ({"cache": "/x", "hub_cache": "/"}, "", "hub_cache: must not be the root directory; name a directory below it"),
        ({"cache": "/srv/state/cache"}, "", f"cache: /srv/state/cache is inside state, /srv/state; {APART}"),
        ({}, "/srv/volumes", f"volume_root: /srv/volumes is inside root, /srv; {GOVERNED}"),
        ({"runs": "/x/runs"}, "/x", f"volume_root: /x contains runs, /x/runs; {GOVERNED}"),
        ({"runs": "/x"}, "/x/volumes", f"volume_root: /x/volumes is inside runs, /x; {GOVERNED}"),
    ],
)
def test_overlaps_are_refused(overrides: dict[str, str], volume_root: str, message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        check_apart(resolve("/srv", overrides, volume_root))
    assert str(refusal.value) == message


def test_an_alias_is_refused_with_what_it_is() -> None:
    layout = resolve("/srv", {"runs": "/a", "state": "/b"})
    with pytest.raises(Refusal) as refusal:
        check_apart(layout, lambda path: "/a/state" if path == "/b" else path)
    assert str(refusal.value) == f"runs: /a contains state, /b (which is /a/state); {APART}"


@pytest.mark.parametrize(
    ("root", "overrides", "message"),
    [
        ("srv", {}, "root: 'srv' must be absolute; begin it with /"),
        ("/srv", {"runs": "runs"}, "runs: 'runs' must be absolute; begin it with /"),
        (
            "/srv",
            {"checkpoints": "/x"},
            f"overrides: checkpoints: there is no such location; use one of {', '.join(NAMES)}",
        ),
    ],
)
def test_bad_input_is_refused(root: str, overrides: dict[str, str], message: str) -> None:
    with pytest.raises(Refusal) as refusal:
        resolve(root, overrides)
    assert str(refusal.value) == message


@pytest.mark.parametrize("prefix", ["STOWAGE_", "TUNEPLANE_", "X1_"])
def test_prefix(prefix: str) -> None:
    assert check_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["", "STOWAGE", "stowage_", "1_", "A B_", "A_\n", "Ä_"])
def test_bad_prefix(prefix: str) -> None:
    with pytest.raises(Refusal, match="^environment_prefix: "):
        check_prefix(prefix)


PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(st.dictionaries(st.sampled_from(NAMES), PATHS), PATHS, PATHS)
def test_what_is_accepted_is_apart(overrides: dict[str, str], root: str, volume_root: str) -> None:
    layout = resolve(root, overrides, volume_root)
    try:
        check_apart(layout)
    except Refusal as refusal:
        assert "\n" not in str(refusal)
        return
    assert not any(overlap(volume_root, path) for path in (layout.root, *layout.locations.values()))
    for name in NAMES:
        for other in NAMES:
            nested = layout.parent(other) == name or layout.parent(name) == other
            assert name == other or nested or not overlap(layout.locations[name], layout.locations[other])


def test_moved_files_stay() -> None:
    former = resolve("/srv", {}, "/volumes").named()
    layout = resolve("/srv", {"runs": "/fast/runs"})
    assert moved(layout, former) == [
        "runs: /srv/runs is no longer used and its files stay there; copy what is needed to /fast/runs",
        "volume_root: /volumes is no longer used and its files stay there; nothing takes its place",
    ]
    assert moved(layout, layout.named()) == moved(layout, {}) == []


def test_a_parent_that_moves_takes_its_defaults_along() -> None:
    former = resolve("/srv", {"state": "/other/state"}).named()
    assert moved(resolve("/new", {}), former) == [
        "root: /srv is no longer used and its files stay there; copy what is needed to /new",
        "state: /other/state is no longer used and its files stay there; copy what is needed to /new/state",
    ]


def test_agreement() -> None:
    assert disagreements({}) == []
    assert disagreements({name: resolve("/srv", {}).settings() for name in ("gpu1", "gpu2")}) == []


def test_disagreements_name_hosts_and_values() -> None:
    hosts = {
        "gpu2": resolve("/srv", {}).settings(),
        "gpu1": resolve("/srv", {}).settings(),
        "gpu3": resolve("/srv", {"runs": "/fast"}, "/volumes").settings(),
    }
    assert disagreements(hosts) == [
        "RUNS_ROOT is /srv/runs on gpu1, gpu2; /fast on gpu3",
        "VOLUME_ROOT is not set on gpu1, gpu2; /volumes on gpu3",
    ]
