# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Laying out a host's storage: predicted and done alike, and apart from everything that is taken."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stowage_core import claims, records
from stowage_core.data_location import change as data_location_change
from stowage_core.data_location.change import Choice
from stowage_core.differences import Differences
from stowage_core.errors import Refusal
from stowage_core.layout import overrides as layout_overrides
from stowage_core.layout.change import Outcome, Request, lay_out
from stowage_core.layout.found import MountRule
from stowage_core.layout.rules import resolve
from stowage_core.mark_search import Search
from stowage_core.owner import Registry, claim
from stowage_core.places import Places
from stowage_core.renderings import framework_caches
from stowage_core.services.systemd_units import Systemctl


@pytest.fixture
def places(tmp_path: Path) -> Places:
    places = Places.under(str(tmp_path))
    records.write(places.claims_json, {"claims": {}})  # not lost: otherwise all disks are searched for marks
    return places


def laid_out(
    places: Places,
    root: Path,
    differences: Differences,
    told: str | None = None,
    of_containers: str | None = None,
    **overrides: str,
) -> Outcome:
    """Lay out a host.

    :param told: the file of the framework caches
    :param of_containers: that for training containers
    """
    layout = resolve(str(root), overrides)
    rules = layout_overrides.for_all(layout, MountRule(), {name: MountRule() for name in overrides})
    request = Request(
        environment_file=places.environment,
        host_name="gpu-01",
        framework_environment_file=told,
        container_environment_file=of_containers,
    )
    return lay_out(places, layout, rules, request, Systemctl("systemctl", lambda _words: (0, "", "")), differences)


def choose(places: Places, path: Path) -> None:
    data_location_change.choose(places, Choice(str(path), 0, "gpu-01"), Differences())


def test_a_run_does_what_was_predicted(places: Places, disk: Path) -> None:
    runs = [Differences(check_mode) for check_mode in (True, False, False)]
    for differences in runs:
        laid_out(places, disk / "stowage", differences)
    predicted, done, again = runs
    assert predicted.diff() == done.diff() and predicted.actions == done.actions
    assert done.actions[0] == f"make directory {disk}/stowage"
    assert done.actions[-2:] == [f"write {places.layout_json}", f"write {places.environment}"]
    assert done.diff()["after"][f"directory {disk}/stowage/runs"] == "mode 0755, owner root:root"
    lines = done.diff()["after"][f"environment {places.environment}"]
    assert f"STOWAGE_RUNS_ROOT={disk}/stowage/runs" in lines
    assert not again.changed and not again.actions


def test_processes_of_the_host_are_told_of_the_caches(places: Places, disk: Path) -> None:
    told = f"{places.etc}/framework.env"
    (disk / "modelscope").mkdir()
    runs = [Differences(check_mode) for check_mode in (True, False, False)]
    for differences in runs:
        outcome = laid_out(places, disk / "stowage", differences, told, modelscope_cache=f"{disk}/modelscope")
    predicted, done, again = runs
    assert predicted.diff() == done.diff() and predicted.actions == done.actions and not again.changed
    assert done.actions[-2:] == [f"write {places.environment}", f"write {told}"]
    assert outcome.record["environment_files"] == [places.environment, told]
    assert Path(told).read_text().splitlines()[1:] == [
        f"HF_HUB_CACHE={disk}/stowage/cache/hf/hub",
        f"HF_DATASETS_CACHE={disk}/stowage/cache/hf/datasets",
        f"MODELSCOPE_CACHE={disk}/modelscope",
    ]
    # A layout that moves takes the file along; one without the file says that it is not kept any more.
    moved = Differences()
    laid_out(places, disk / "other", moved, told, modelscope_cache=f"{disk}/modelscope")
    assert f"write {told}" in moved.actions
    assert f"HF_HUB_CACHE={disk}/other/cache/hf/hub" in Path(told).read_text()
    left = laid_out(places, disk / "other", Differences(), modelscope_cache=f"{disk}/modelscope")
    assert left.record["environment_files"] == [places.environment, told]
    assert any(f"{told} is an earlier one and no longer kept up to date" in one for one in left.warnings)


def test_users_that_others_than_root_may_name_are_told_where_they_have_quotas(places: Places, disk: Path) -> None:
    (disk / "runs").mkdir()
    os.chown(disk / "runs", 1, 0)

    def warned(mode: str, owner: str) -> list[str]:
        layout = resolve(str(disk / "stowage"), {"runs": str(disk / "runs")})
        rules = layout_overrides.for_all(layout, MountRule(), {"runs": MountRule()})
        request = Request(environment_file=places.environment, host_name="gpu-01", owner=owner, mode=mode)
        predicted, done = (
            lay_out(
                places, layout, rules, request, Systemctl("systemctl", lambda _words: (0, "", "")), Differences(check)
            )
            for check in (True, False)
        )
        assert predicted.warnings == done.warnings
        return list(done.warnings)

    assert warned("02775", "1") == []
    reflow = disk / "stowage/reflow"
    # Whoever may write to it makes directories of his own, and renames those of nobody else.
    assert stat.S_IMODE(reflow.stat().st_mode) == 0o3775
    assert stat.S_IMODE((disk / "stowage/packages").stat().st_mode) == 0o2775
    records.write(places.daemon_json, {"quotas": {"users": {}, "default_user": "1T"}})
    runs, of_reflow = warned("02775", "1")
    assert runs.startswith(f"runs: {disk}/runs is daemon's, who may have what is in it count for any user")
    assert of_reflow == (
        f"reflow: {reflow} may be written to by others than its owner (mode 3775, owner daemon:root); a directory "
        "there counts for its own owner, or for nobody, and not for whom it is named after, and users have quotas"
    )
    (disk / "runs").chmod(0o775)
    runs, of_reflow = warned("0755", "1")
    assert "each may have a run count for any user, and users have quotas" in runs
    assert of_reflow.startswith(f"reflow: {reflow} is daemon's, who may have")
    os.chown(disk / "runs", 0, 0)
    (disk / "runs").chmod(0o755)
    assert warned("0755", "root") == []


def test_training_containers_have_a_file_of_their_own(places: Places, disk: Path) -> None:
    """As ``docker run --env-file`` reads it: all after the equals sign is the value."""
    of_containers, root = f"{places.etc}/container.env", disk / "stowage of all"
    runs = [Differences(check_mode) for check_mode in (True, False, False)]
    for differences in runs:
        outcome = laid_out(places, root, differences, f"{places.etc}/framework.env", of_containers)
    predicted, done, again = runs
    assert predicted.diff() == done.diff() and predicted.actions == done.actions and not again.changed
    assert done.actions[-1] == f"write {of_containers}"
    assert outcome.record["environment_files"] == [places.environment, f"{places.etc}/framework.env", of_containers]
    lines = Path(of_containers).read_text().splitlines()[1:]
    layout = resolve(str(root), {})
    assert dict(line.split("=", 1) for line in lines) == framework_caches.environment(layout, "STOWAGE_")
    assert lines[:2] == ["HF_HOME=/tmp/stowage-hf", f"HF_HUB_CACHE={root}/cache/hf/hub"]
    assert "HF_HOME" not in Path(f"{places.etc}/framework.env").read_text()
    left = laid_out(places, root, Differences(), f"{places.etc}/framework.env")
    assert any(f"{of_containers} is an earlier one and no longer kept up to date" in one for one in left.warnings)
    with pytest.raises(Refusal, match="^container_environment_file: .*/framework.env is framework_environment_file; n"):
        laid_out(places, root, Differences(), f"{places.etc}/framework.env", f"{places.etc}/framework.env")


def test_a_home_of_containers_in_the_layout_is_refused(places: Places) -> None:
    with pytest.raises(Refusal, match="^root: /tmp/stowage-hf is /tmp/stowage-hf, which is HF_HOME and each container"):
        laid_out(places, Path("/tmp/stowage-hf"), Differences(), None, f"{places.etc}/container.env")
    assert not os.path.exists("/tmp/stowage-hf")


def test_the_file_of_the_framework_caches_is_another_than_the_layouts(places: Places, disk: Path) -> None:
    with pytest.raises(Refusal, match="^framework_environment_file: .* is the environment file of the layout; name"):
        laid_out(places, disk / "stowage", Differences(), places.environment)
    Path(places.etc).mkdir(parents=True, exist_ok=True)
    Path(places.etc, "theirs").write_text("A=1\n")
    with pytest.raises(Refusal, match="^framework_environment_file: .*/theirs was not written by Stowage"):
        laid_out(places, disk / "stowage", Differences(), f"{places.etc}/theirs")


@pytest.mark.parametrize(
    ("root", "lies"),
    [("data", "is"), ("data/drives", "is inside"), ("data/drives/ml.hf-cache", "is inside"), ("alias/x", "is inside")],
)
@pytest.mark.parametrize("check_mode", [True, False])
def test_no_root_over_a_data_location(places: Places, disk: Path, root: str, lies: str, check_mode: bool) -> None:
    choose(places, disk / "data")
    (disk / "alias").symlink_to("data/drives")
    before = sorted(disk.rglob("*"))
    with pytest.raises(Refusal) as refusal:
        laid_out(places, disk / root, Differences(check_mode))
    told = f"root: {disk}/{root} {lies} the data location {disk}/data; choose a directory apart from it"
    assert str(refusal.value) == told
    assert sorted(disk.rglob("*")) == before and not os.path.exists(places.layout_json)


def test_no_location_over_a_data_location(places: Places, disk: Path) -> None:
    (disk / "above").mkdir()
    choose(places, disk / "above/data")
    for name in ("drives", "."):
        with pytest.raises(Refusal, match=f"^runs: {disk}/above/data.* the data location {disk}/above/data; choose"):
            laid_out(places, disk / "stowage", Differences(), runs=os.path.normpath(disk / "above/data" / name))
    with pytest.raises(Refusal, match=f"^runs: {disk}/above contains the data location {disk}/above/data; choose"):
        laid_out(places, disk / "stowage", Differences(), runs=str(disk / "above"))


def test_a_root_may_be_around_a_data_location(places: Places, disk: Path) -> None:
    choose(places, disk / "data")
    assert laid_out(places, disk, Differences()).record["root"] == str(disk)


@pytest.mark.parametrize("part", ["etc", "var", "run"])
def test_stowages_own_directories_are_taken(places: Places, part: str) -> None:
    own = Path(getattr(places, part))
    with pytest.raises(Refusal, match=f"is inside Stowage's own directory {own}"):
        laid_out(places, own / "x", Differences())


def test_former_data_locations_and_tiers_are_taken(places: Places, disk: Path) -> None:
    choose(places, disk / "one")
    (disk / "one/drives/unknown").mkdir()
    choose(places, disk / "two")
    (disk / "tier").mkdir()
    fd = os.open(disk / "tier", os.O_RDONLY)
    Registry(places).add(f"{disk}/tier", claim(fd, "tier", "kv", "t", "gpu-01"))
    os.close(fd)
    with pytest.raises(Refusal, match="is inside the former data location"):
        laid_out(places, disk / "one/x", Differences())
    with pytest.raises(Refusal, match="is the tier"):
        laid_out(places, disk / "tier", Differences())


def test_a_lost_registry_is_rebuilt_before_anything_is_decided(
    places: Places, tmp_path: Path, small_disk: Callable[..., Any]
) -> None:
    disk = small_disk("ext4").path
    choose(places, disk / "data")
    fresh = Places.under(str(tmp_path / "reinstalled"))
    for check_mode in (True, False):
        with pytest.raises(Refusal, match=f"^root: {disk}/data/drives is inside the data location {disk}/data; choose"):
            laid_out(fresh, disk / "data/drives", Differences(check_mode))
        assert Registry(fresh).is_lost()
    runs = [Differences(check_mode) for check_mode in (True, False, False)]
    for differences in runs:
        laid_out(fresh, disk / "stowage", differences)
    predicted, done, again = runs
    assert predicted.diff() == done.diff() and predicted.actions == done.actions
    assert f"{disk}/data" in done.diff()["after"]["claims found by their marks"]
    assert Registry(fresh).all()[f"{disk}/data"]["kind"] == "data-location"
    assert not again.changed
    # The data location is known again as the one that it was, also as a former one.
    (disk / "data/drives/unknown").mkdir()
    outcome = data_location_change.choose(fresh, Choice(f"{disk}/other", 0, "gpu-01"), Differences())
    assert [location.path for location in outcome.former] == [f"{disk}/data"]


def test_without_any_mark_the_disks_are_searched_once(
    places: Places, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[int] = []
    monkeypatch.setattr(claims, "find_marks", lambda mounts: searches.append(1) or Search())
    records.remove(places.claims_json)
    for _number in range(2):
        laid_out(places, disk / "stowage", Differences())
    assert len(searches) == 1
