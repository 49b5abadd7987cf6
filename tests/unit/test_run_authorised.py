# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What may be mounted into the containers of a run, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowage_core.errors import Refusal
from stowage_core.layout.rules import check_protected, resolve
from stowage_core.paths import is_within, overlap
from stowage_core.runs.authorised import check_run_mounts

RUN = "/srv/runs/ann/sft/r1"
PROTECTED = ["/var/lib/postgresql", "/etc/credentials/token", "/srv/cache/hf/hub/keys"]
REMEDY = "mount the run's own directory, framework caches, and pins of drives and volumes only"


def recorded(**overrides: str) -> dict[str, Any]:
    layout = resolve("/srv", overrides, "/volumes")
    locations = {name: {"path": path} for name, path in layout.locations.items()}
    return {"root": layout.root, "volume_root": layout.volume_root, "locations": locations}


def check(*mounts: str, run: str = RUN, **overrides: str) -> None:
    check_run_mounts(recorded(**overrides), run, PROTECTED, mounts)


@pytest.mark.parametrize(
    "mount",
    [
        RUN,
        f"{RUN}/attempts/3/out",
        f"{RUN}//work/",
        "/srv/cache/hf/datasets",
        "/srv/cache/modelscope",
        "/srv/cache/hf/hub/models--x",
        "/run/stowage/pins/r1/1",
        "/var/run/stowage/pins/r1/12/train",
        "/opt/tools",
        "/srv-other",
        "/etc/localtime",
        "/var/lib/postgresql2",
    ],
)
def test_allowed(mount: str) -> None:
    check(mount)


@pytest.mark.parametrize(
    ("mount", "what"),
    [
        ("/srv/state", "is the location state, /srv/state"),
        ("/srv/state/db", "is inside the location state, /srv/state"),
        ("/srv/packages/x", "is inside the location packages, /srv/packages"),
        ("/srv/reflow/ann", "is inside the location reflow, /srv/reflow"),
        ("/srv/cache", "contains the protected path /srv/cache/hf/hub/keys"),
        ("/srv/cache/datasets", "is the location dataset_cache, /srv/cache/datasets"),
        ("/srv/cache/volumes/v", "is inside the location volume_cache, /srv/cache/volumes"),
        ("/srv/cache/new", "is inside the location cache, /srv/cache"),
        ("/srv/other", "is inside the storage root /srv"),
        ("/srv/runs", "is the location runs, /srv/runs"),
        ("/srv/runs/ann", "is inside the runs location /srv/runs and not in the run's own directory"),
        ("/srv/runs/ann/sft", "is inside the runs location /srv/runs and not in the run's own directory"),
        ("/srv/runs/ann/sft/r10", "is inside the runs location /srv/runs and not in the run's own directory"),
        ("/srv/runs/bob/sft/r1", "is inside the runs location /srv/runs and not in the run's own directory"),
        ("/srv/runs/.stowage-trash", "is inside the runs location /srv/runs and not in the run's own directory"),
        ("/volumes", "is the volume root /volumes"),
        ("/volumes/shared", "is inside the volume root /volumes"),
        ("/var/lib/postgresql", "is the protected path /var/lib/postgresql"),
        ("/var/lib/postgresql/16", "is inside the protected path /var/lib/postgresql"),
        ("/etc/credentials", "contains the protected path /etc/credentials/token"),
        ("/srv/cache/hf/hub", "contains the protected path /srv/cache/hf/hub/keys"),
        ("/etc/stowage", "is Stowage's own directory /etc/stowage"),
        ("/var/lib/stowage/run_teams", "is inside Stowage's own directory /var/lib/stowage"),
        ("/run", "contains Stowage's own directory /run/stowage"),
        ("/var/run", "contains Stowage's own directory /run/stowage"),
        ("/run/stowage/pins", "is inside Stowage's own directory /run/stowage"),
        ("/run/stowage/pins/r1", "is inside Stowage's own directory /run/stowage"),
        ("/run/stowage/pins/r1/1.json", "is inside Stowage's own directory /run/stowage"),
        ("/run/stowage/pins/r1/0", "is inside Stowage's own directory /run/stowage"),
    ],
)
def test_refused(mount: str, what: str) -> None:
    with pytest.raises(Refusal) as refusal:
        check(RUN, mount)
    assert str(refusal.value) == f"mount {mount}: it {what}; {REMEDY}"


@pytest.mark.parametrize("mount", ["/", "srv", "/srv/../etc", "/srv/./runs", "/srv/runs\n", ""])
def test_no_path(mount: str) -> None:
    with pytest.raises(Refusal, match="^mount: "):
        check(mount)


def test_around_the_layout() -> None:
    with pytest.raises(Refusal, match="mount /mnt: it contains the location state, /mnt/state"):
        check("/mnt", state="/mnt/state")


@pytest.mark.parametrize(
    "run", ["/srv/runs", "/srv/runs/ann/sft", f"{RUN}/work", "/srv/runs/.a/b/c", "/srv/state/a/b/c"]
)
def test_no_run(run: str) -> None:
    with pytest.raises(Refusal, match=r"is not at <user>/<experiment>/<run_id> in the runs location /srv/runs; "):
        check(RUN, run=run)


def test_no_layout() -> None:
    with pytest.raises(Refusal, match="there is no storage layout"):
        check_run_mounts({"root": None, "volume_root": None, "locations": {}}, RUN, [], [RUN])


_PART = st.sampled_from(
    ["srv", "runs", "ann", "sft", "r1", "r2", "cache", "hf", "hub", "state", "run", "stowage", "pins", "1"]
)


@given(st.lists(_PART, min_size=1, max_size=6).map(lambda parts: "/" + "/".join(parts)))
def test_whatever_is_allowed_shows_nothing_else_of_the_layout(mount: str) -> None:
    try:
        check_run_mounts(recorded(), RUN, [], [mount])
    except Refusal:
        return
    locations = {name: one["path"] for name, one in recorded()["locations"].items()}
    if is_within(mount, "/run/stowage"):
        assert mount.startswith("/run/stowage/pins/") and mount.split("/")[5] == "1"
    elif is_within(mount, locations["runs"]):
        assert is_within(mount, RUN)
    else:
        hidden = [locations[name] for name in ("runs", "state", "packages", "reflow", "dataset_cache", "hub_cache")]
        assert not any(overlap(mount, path) for path in hidden)


def test_protected_paths() -> None:
    layout = resolve("/srv", {})
    assert check_protected(["/srv/state/", "/a", "/a"], layout) == ["/a", "/srv/state"]
    for path, message in (
        ("/srv", "/srv contains runs, /srv/runs, which runs work in; protect what is in it, or move it elsewhere"),
        ("/srv/runs", "/srv/runs is runs, /srv/runs, which runs work in; protect what is in it, or move it elsewhere"),
        ("/srv/cache/hf", "/srv/cache/hf contains hf_hub_cache, "),
        ("srv", "'srv' must be absolute"),
    ):
        with pytest.raises(Refusal) as refusal:
            check_protected([path], layout)
        assert str(refusal.value).startswith(f"protected_paths: {message}")
