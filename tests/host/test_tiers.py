# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Claiming the directories of tiers on real filesystems: whose they are, what was in them, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiers_lab import UID, Host, backend, mark_of, store_on

from stowage_core import events, owner, records
from stowage_core.data_location.change import Choice, choose
from stowage_core.differences import Differences
from stowage_core.errors import Refusal, StowageError
from stowage_core.locks import host_lock, tier_lock
from stowage_core.owner import XATTR
from stowage_core.places import Places
from stowage_core.tiers import host as tier_host
from stowage_core.tiers.declared import read_backends
from stowage_core.tiers.host import Outcome
from stowage_core.tiers.survey import Survey


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(Places.under(str(tmp_path / "host")))


def state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid, status.st_mode & 0o7777


def owned(path: Path, uid: int = UID, mode: int = 0o750) -> Path:
    path.mkdir()
    os.chown(path, uid, 0)
    path.chmod(mode)
    return path


# -- The directory and its claim


def test_the_directory_is_made_as_asked_and_claimed(host: Host, disk: Path) -> None:
    outcome = host.declare(backend("chat", disk / "kv"))
    assert state(disk / "kv") == (UID, 0, 0o750)
    mark = mark_of(disk / "kv")
    assert mark is not None and (mark.kind, mark.name, mark.host) == ("tier", "chat/0", "gpu-01")
    assert host.claims()[str(disk / "kv")]["name"] == "chat/0"
    assert host.actions[:2] == [f"make directory {disk}/kv", f"mark {disk}/kv as tier chat/0 of gpu-01"]
    assert outcome.tiers[0]["was_empty"] is True
    assert host.found()["chat/0"]["survey"]["entries"] == 0
    assert outcome.warnings == []


def test_owner_group_and_mode_as_declared(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", owner="1234", group="4321", mode="0700"))
    assert state(disk / "kv") == (1234, 4321, 0o700)
    (disk / "kv/1.bucket").write_text("x")
    os.chown(disk / "kv/1.bucket", 1234, 4321)
    outcome = host.declare(backend("chat", disk / "kv", owner="1235", group="4321", mode="0750"))
    assert state(disk / "kv") == (1235, 4321, 0o750)
    assert state(disk / "kv/1.bucket")[:2] == (1234, 4321)  # never what is in it
    assert outcome.tiers[0]["owner"] == 1235
    (disk / "kv").chmod(0o755)  # by somebody
    host.declare(backend("chat", disk / "kv", owner="1235", group="4321", mode="0750"))
    assert host.actions == [f"give {disk}/kv itself 1235:4321 0750"]


def test_the_image_s_user_owns_it(host: Host, disk: Path) -> None:
    users = {"store:1": (1000, 1001)}
    host.declare(backend("chat", disk / "kv", image="store:1"), users=users)
    assert state(disk / "kv")[:2] == (1000, 1001)
    # An image that cannot be read today makes nobody else its owner.
    host.declare(backend("chat", disk / "kv", image="store:1"))
    assert state(disk / "kv")[:2] == (1000, 1001)


def test_an_image_whose_user_could_not_write_is_refused(host: Host, disk: Path) -> None:
    wanted = backend("chat", disk / "kv", image="store:1", owner="1000", group="0")
    with pytest.raises(Refusal, match="no write permission on directory for the store, which runs as 65532:0"):
        host.declare(wanted, users={"store:1": (UID, 0)})
    wanted["members"][0]["mode"] = "0770"
    host.declare(wanted, users={"store:1": (UID, 0)})


def test_an_existing_directory_is_taken_in_with_its_content(host: Host, disk: Path) -> None:
    path = owned(disk / "kv", mode=0o755)
    (path / ".hidden").write_text("a")
    (path / "1.bucket").write_text("b")
    outcome = host.declare(backend("chat", path))
    assert sorted(os.listdir(path)) == [".hidden", "1.bucket"]
    assert state(path) == (UID, 0, 0o750)
    assert state(path / "1.bucket")[:2] == (0, 0)
    assert host.found()["chat/0"]["survey"]["entries"] == 2
    assert outcome.tiers[0]["was_empty"] is False
    assert host.reasons() == ["PreexistingContent"]
    assert "TierWasEmpty=False: 2 entries" in events.read(host.places)[0]["message"]


def test_the_survey_is_written_once(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv"))
    (disk / "kv/1.bucket").write_text("mine")
    assert host.declare(backend("chat", disk / "kv")).tiers[0]["was_empty"] is True
    shutil.rmtree(disk / "kv")
    owned(disk / "kv")
    (disk / "kv/1.bucket").write_text("mine, put back")
    outcome = host.declare(backend("chat", disk / "kv"))
    assert outcome.tiers[0]["was_empty"] is True
    assert any("its mark is gone" in warning for warning in outcome.warnings)
    assert mark_of(disk / "kv") is not None


def test_content_that_is_to_go_with_the_tier_is_warned_of(host: Host, disk: Path) -> None:
    (owned(disk / "kv") / "thesis.pdf").write_text("mine")
    outcome = _do(host, backend("chat", disk / "kv", clean=True))
    assert "1 entry in it that another may have left; it stays, and goes with" in outcome.warnings[0]


@pytest.mark.parametrize(
    ("uid", "mode", "text"),
    [
        (0, 0o755, "no write permission on directory for the store, which runs as 65532:0: it is there with 0:0 0755"),
        (1000, 0o777, "it is there and belongs to user 1000, and 65532 is to own it"),
    ],
)
def test_a_directory_of_somebody_else_is_refused(host: Host, disk: Path, uid: int, mode: int, text: str) -> None:
    path = owned(disk / "kv", uid, mode)
    with pytest.raises(Refusal, match=text) as refused:
        host.declare(backend("chat", path))
    assert f"chown 65532:0 {path}, or declare its owner" in str(refused.value)
    assert state(path) == (uid, 0, mode)
    assert mark_of(path) is None
    assert host.found() == {} and not os.path.exists(host.places.tiers_json)


@pytest.mark.parametrize("at", ["own", "rename_noreplace"])
def test_a_run_that_is_cut_short_leaves_nothing_that_the_next_one_refuses(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_arguments: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(tier_host.claim, at, kill)
        patch.setattr(tier_host.claim.os, "rmdir", lambda *_arguments, **_options: None)  # as of who is killed
        with pytest.raises(Killed):
            _do(host, backend("chat", disk / "kv"))
    assert not (disk / "kv").exists()
    assert host.declare(backend("chat", disk / "kv")).tiers[0]["was_empty"] is True
    assert len(os.listdir(disk)) == 2


def test_what_somebody_makes_meanwhile_is_not_taken(host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tier_host.claim.own

    def then(*arguments: Any) -> None:
        own(*arguments)
        (disk / "kv").mkdir()

    monkeypatch.setattr(tier_host.claim, "own", then)
    with pytest.raises(Refusal, match="somebody has made it meanwhile; run again"):
        _do(host, backend("chat", disk / "kv"))
    assert os.listdir(disk) == ["kv"] and state(disk / "kv")[0] == 0


# -- Where it may not be


def test_links_files_and_open_parents_are_refused(host: Host, disk: Path) -> None:
    (disk / "link").symlink_to(disk)
    (disk / "file").write_text("x")
    owned(disk / "theirs", 1000)
    owned(disk / "open", 0, 0o777)
    for path, text in (
        ("link/kv", "it leads over a symbolic link to"),
        ("link", "it leads over a symbolic link to"),
        ("file", "is not a directory"),
        ("theirs/kv", "belongs to user 1000, who could put another folder in its place"),
        ("open/kv", "can be written by others than root"),
        ("missing/kv", "does not exist, and only the last directory is made"),
    ):
        with pytest.raises(Refusal, match=text):
            _do(host, backend("chat", disk / path))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/usr/local/kv", "it is inside /usr, which is the system's"),
        ("/boot", "it is /boot, which is the system's"),
        ("/home", "it is /home, which holds what is not the tier's"),
        ("/var", "it contains|it is /var"),
        ("/proc/kv", "which is the system's"),
    ],
)
def test_the_system_s_directories_are_refused(host: Host, path: str, text: str) -> None:
    with pytest.raises(Refusal, match=text):
        _do(host, backend("chat", path, owner="0"))


def _do(host: Host, *backends: dict[str, Any], **more: Any) -> Outcome:
    """Declare once, without the cycle."""
    return tier_host.declare(
        host.places, tier_host.Declaration("gpu-01", read_backends(list(backends)), **more), Differences()
    )


def test_a_claimed_path_is_refused_for_good(host: Host, disk: Path) -> None:
    (disk / "a").mkdir()
    host.declare(backend("chat", disk / "a/kv"))
    for path, how in ((disk / "a/kv", "is"), (disk / "a/kv/in", "is inside"), (disk / "a", "contains")):
        with pytest.raises(StowageError) as refused:
            host.declare(backend("code", path, owner="0"))
        assert f"it {how} the tier chat/0 {disk}/a/kv; choose a directory apart from it" in str(refused.value)
    host.declare(backend("chat", disk / "a/kv"), backend("code", disk / "a/kv2"))


def test_data_locations_keep_apart_from_tiers_and_tiers_from_them(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv"))
    with pytest.raises(Refusal, match="the tier chat/0"):
        choose(host.places, Choice(str(disk / "kv/data"), 0, "gpu-01"), Differences())
    choose(host.places, Choice(str(disk / "data"), 0, "gpu-01"), Differences())
    with pytest.raises(Refusal, match="it is inside the data location"):
        host.declare(backend("chat", disk / "kv"), backend("code", disk / "data/kv"))


def test_another_s_marks_in_an_existing_directory_are_seen(host: Host, disk: Path) -> None:
    path = owned(disk / "kv")
    (path / "deep/er").mkdir(parents=True)
    fd = os.open(path / "deep/er", os.O_RDONLY)
    owner.claim(fd, "copy", "vision.imagenet", "1", "gpu-09")
    os.close(fd)
    with pytest.raises(Refusal, match="what is in it may be another's: deep/er bears an owner mark"):
        host.declare(backend("chat", path))


def test_a_mount_inside_is_refused(host: Host, disk: Path, small_disk: Callable[..., Any]) -> None:
    path = owned(disk / "kv")
    (path / "inner").mkdir()
    other = small_disk("ext4")
    other.unmount()
    other.mount(at=path / "inner")
    with pytest.raises(Refusal, match="ext4 is mounted inside it, at"):
        host.declare(backend("chat", path))


def bound(source: Path, place: Path) -> Path:
    place.mkdir()
    subprocess.run(["mount", "--bind", source, place], check=True)
    return place


def test_a_bind_mount_of_what_is_taken_is_taken(host: Host, disk: Path) -> None:
    """By the layout, a drive, a data location, another tier: of it, of a part of it, and of what is around it."""
    records.write(host.places.layout_json, {"locations": {"runs": {"path": str(disk / "runs")}}})
    owned(disk / "runs")
    (disk / "runs/live").write_text("x")
    owned(disk / "runs/part")
    for number, source in enumerate((disk / "runs", disk / "runs/part", disk)):
        alias = bound(source, disk.parent / f"alias{number}-{disk.name}")
        try:
            with pytest.raises(Refusal, match=f"the storage layout's runs {disk}/runs; choose a directory apart"):
                _do(host, backend("chat", alias, clean=True, owner=str(alias.stat().st_uid)))
        finally:
            subprocess.run(["umount", alias], check=True)
            alias.rmdir()
    (disk / "kv").mkdir()
    host.declare(backend("code", disk / "kv/inner"))
    alias = bound(disk / "kv", disk / "z")
    with pytest.raises(Refusal, match="it is the tier code/0"):
        _do(host, backend("chat", alias / "inner"), backend("code", disk / "kv/inner"))
    subprocess.run(["umount", alias], check=True)
    assert (disk / "runs/live").exists() and mark_of(disk / "runs") is None


def test_a_bind_mount_out_of_what_another_host_has_marked_is_seen(host: Host, disk: Path) -> None:
    (disk / "theirs/deep").mkdir(parents=True)
    fd = os.open(disk / "theirs", os.O_RDONLY)
    owner.claim(fd, "data-location", "", "1", "gpu-09")
    os.close(fd)
    alias = bound(disk / "theirs/deep", disk / "z")
    for path in (alias, alias / "kv"):
        with pytest.raises(Refusal, match="it is inside the data location .*/theirs of host gpu-09"):
            _do(host, backend("chat", path, owner="0"))
    with pytest.raises(Refusal, match="it is inside the data location .*/theirs of host gpu-09"):
        choose(host.places, Choice(str(alias / "data"), 0, "gpu-01"), Differences())
    subprocess.run(["umount", alias], check=True)


def test_a_tier_at_a_bind_mount_cannot_be_one_that_is_emptied(host: Host, disk: Path) -> None:
    alias = bound(owned(disk / "kv"), disk / "z")
    with pytest.raises(Refusal, match="is a bind mount, .* name the directory itself, or leave clean_after_delete out"):
        _do(host, backend("chat", alias, clean=True))
    host.declare(backend("chat", alias))
    subprocess.run(["umount", alias], check=True)


# -- Disks that are away


def test_a_disk_that_is_away_is_never_taken_for_an_empty_tier(host: Host, small_disk: Callable[..., Any]) -> None:
    disk = small_disk("ext4")
    host.declare(backend("chat", disk.path / "kv"))
    identity = host.found()["chat/0"]["identity"]
    disk.unmount()
    with pytest.raises(Refusal, match=f"its disk is not mounted.*forget: {identity}"):
        host.declare(backend("chat", disk.path / "kv"))
    assert not (disk.path / "kv").exists()
    with pytest.raises(StowageError, match="TierNotCleaned: .* cannot be seen now"):
        host.remove("chat")
    disk.mount()
    host.declare(backend("chat", disk.path / "kv"))
    assert host.actions == []


def test_a_disk_that_is_gone_for_good_is_forgotten(host: Host, small_disk: Callable[..., Any]) -> None:
    old, new = small_disk("ext4"), small_disk("ext4")
    host.declare(backend("chat", old.path / "kv"))
    identity = host.found()["chat/0"]["identity"]
    old.unmount()
    new.unmount()
    new.mount(at=old.path)
    (owned(old.path / "kv") / "1.bucket").write_text("of another")
    with pytest.raises(Refusal, match="its disk is not mounted"):
        host.declare(backend("chat", old.path / "kv"))
    _do(host, backend("chat", old.path / "kv"), forget=[identity])
    host.declare(backend("chat", old.path / "kv"))
    assert host.found()["chat/0"]["survey"]["entries"] == 1  # another directory: asked anew
    with pytest.raises(Refusal, match="is there, and would be given up"):
        host.declare(backend("chat", old.path / "kv"), forget=[host.found()["chat/0"]["identity"]])


def test_records_that_are_lost_are_found_by_the_mark(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv"))
    before = mark_of(disk / "kv")
    os.unlink(host.places.tiers_json)
    os.unlink(host.places.tiers_found_json)
    records.write(host.places.claims_json, {"claims": {}})
    (disk / "kv/1.bucket").write_text("mine")
    outcome = host.declare(backend("chat", disk / "kv"))
    assert mark_of(disk / "kv") == before
    assert outcome.tiers[0]["was_empty"] is None  # and never asked again
    assert host.found()["chat/0"]["survey"] is None


def test_a_renamed_host_takes_its_tiers_over(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv"))
    host.name = "gpu-02"
    with pytest.raises(Refusal, match="take it over with adopt_from: gpu-01"):
        host.declare(backend("chat", disk / "kv"))
    host.declare(backend("chat", disk / "kv"), adopt_from="gpu-01")
    mark = mark_of(disk / "kv")
    assert mark is not None and mark.host == "gpu-02"
    assert host.found()["chat/0"]["survey"]["entries"] == 0


# -- What stays


def test_hosts_and_backends_that_are_not_declared_any_more_keep_their_claim(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv"), backend("code", disk / "kv2"))
    narrowed = backend("chat", disk / "kv", hosts=["gpu-09"])
    outcome = host.declare(narrowed)
    assert [line.partition(": ")[2] for line in outcome.left] == [
        "this host is none of its group's any more; stowage.host.tier_remove gives it up",
        "its backend is not declared any more; stowage.host.tier_remove gives it up",
    ]
    assert set(host.claims()) == {str(disk / "kv"), str(disk / "kv2")}
    assert host.declare().left  # also of an empty list


def test_the_last_group_can_be_dropped_and_its_content_stays(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "a", disk / "b", clean=True))
    (disk / "b/1.bucket").write_text("x")
    outcome = host.declare(backend("chat", disk / "a", clean=True))
    assert outcome.left == [f"content of {disk}/b: its group chat/1 was dropped, and the claim given up"]
    assert (disk / "b/1.bucket").exists()
    assert mark_of(disk / "b") is None
    assert set(host.claims()) == {str(disk / "a")}
    assert set(host.found()) == {"chat/0"}


def test_frozen_paths_are_refused_before_anything_is_changed(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "a"))
    with pytest.raises(StowageError, match=r"chat: members\[0\]\.local_disks"):
        host.declare(backend("chat", disk / "b"))
    assert not (disk / "b").exists()


# -- Survey and store processes


def test_a_directory_on_which_a_store_is_already_is_not_taken_in(host: Host, disk: Path) -> None:
    path = owned(disk / "kv")
    (path / "1.bucket").write_text("whose?")
    with store_on(path) as pid, pytest.raises(Refusal, match=f"it is there, and process {pid} .* on it; stop that"):
        host.declare(backend("chat", path))
    assert mark_of(path) is None and host.found() == {}
    host.declare(backend("chat", path))
    with store_on(path):
        host.declare(backend("chat", path))  # its own, while that runs
        os.removexattr(path, XATTR)
        host.declare(backend("chat", path))  # and again
    assert mark_of(path) is not None


@pytest.mark.parametrize(("change", "expected"), [("none", True), ("mode", None), ("written and removed", None)])
def test_a_survey_that_failed_is_tried_again_while_all_is_as_it_was(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch, change: str, expected: bool | None
) -> None:
    path = owned(disk / "kv")
    with monkeypatch.context() as patch:
        patch.setattr(tier_host, "survey", lambda _fd, now: Survey(None, now, "EIO"))
        for mode in ("0750", "0770", "0750"):  # what a run itself changes is no matter
            assert host.declare(backend("chat", path, mode=mode)).tiers[0]["was_empty"] is None
    if change == "mode":
        path.chmod(0o700)
    elif change != "none":
        (path / "its own").touch()
        (path / "its own").unlink()
    for _rollout in range(2):
        assert host.declare(backend("chat", path)).tiers[0]["was_empty"] is expected


def test_what_is_written_between_the_survey_and_the_claim_ends_the_question(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = owned(disk / "kv")

    def write(_fd: int, now: float) -> Survey:
        (path / str(now)).touch()
        return Survey(None, now, "EIO")

    monkeypatch.setattr(tier_host, "survey", write)
    _do(host, backend("chat", path))
    assert host.found()["chat/0"]["as_found"] is None
    monkeypatch.undo()
    assert host.declare(backend("chat", path)).tiers[0]["was_empty"] is None


def test_the_last_group_is_not_dropped_while_its_store_runs(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "a", disk / "b"))
    with store_on(disk / "b"):
        with pytest.raises(Refusal, match="tier chat/1: path .*is a store process on it.*stop it first"):
            host.declare(backend("chat", disk / "a"))
        assert mark_of(disk / "b") is not None
    with store_on(disk / "a"):
        host.declare(backend("chat", disk / "a"))
    assert mark_of(disk / "b") is None


# -- Two at once, and disks without room


def test_of_two_that_claim_at_once_one_wins(host: Host, disk: Path) -> None:
    """As modules do, each with the locks; also where one path is inside the other."""
    owned(disk / "kv")
    results: list[str] = []

    def take(name: str, path: Path, owner: str) -> None:
        declaration = tier_host.Declaration("gpu-01", read_backends([backend(name, path, owner=owner)]))
        with tier_lock(host.places), host_lock(host.places):
            try:
                tier_host.declare(host.places, declaration, Differences())
                results.append(name)
            except Refusal as refused:
                results.append(str(refused))

    takers = [
        threading.Thread(target=take, args=("chat", disk / "kv", str(UID))),
        threading.Thread(target=take, args=("code", disk / "kv", str(UID))),
        threading.Thread(target=take, args=("third", disk, "0")),
    ]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    winners = [name for name in results if name in ("chat", "code", "third")]
    assert len(winners) == 1 and len(results) == 3
    assert all(f"the tier {winners[0]}/0" in refused for refused in results if refused not in winners)
    assert len(host.claims()) == 1


def test_a_full_disk_is_told_and_leaves_nothing_claimed(host: Host, small_disk: Callable[..., Any]) -> None:
    disk = small_disk("ext4")
    subprocess.run(["dd", "if=/dev/zero", f"of={disk.path}/filler", "bs=64k"], check=False, stderr=subprocess.DEVNULL)
    number = 0
    with pytest.raises(OSError, match="No space left on device"):
        while True:  # also the blocks and inodes that are kept for root
            (disk.path / f"d{number}").mkdir()
            number += 1
    with pytest.raises(OSError, match="No space left on device"):
        _do(host, backend("chat", disk.path / "kv"))
    assert host.claims() == {} and host.found() == {}
    (disk.path / "filler").unlink()
    for one in range(number):
        (disk.path / f"d{one}").rmdir()
    host.declare(backend("chat", disk.path / "kv"))
