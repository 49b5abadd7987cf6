# Copyright: Stowage contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Emptying tiers on real filesystems: what goes, what never goes, and when it is refused or ends early."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tiers_lab import UID, Host, backend, mark_of, store_on

from stowage_core import events, owner, records
from stowage_core.errors import PartlyFailed
from stowage_core.owner import XATTR, Registry
from stowage_core.places import Places
from stowage_core.tiers import cleanup, processes
from stowage_core.use.look import Evidence, Subject


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(Places.under(str(tmp_path / "host")))


def nothing_in_use(subjects: Sequence[Subject], *_arguments: Any, **_options: Any) -> Evidence:
    return {subject.name: [] for subject in subjects}


def filled(path: Path, files: int = 5) -> None:
    """Put in what a store, and an operator, may have left."""
    for number in range(files):
        (path / f"{number}.bucket").write_bytes(b"x" * 1000)
    (path / ".hidden").write_text("x")
    (path / "dir/.deep/er").mkdir(parents=True)
    (path / "dir/.deep/er/file").write_text("x")
    (path / "link").symlink_to("/etc")
    os.mkfifo(path / "fifo")
    os.mkdir(os.fsencode(path) + b"/\xff\n")


def state(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid, status.st_mode & 0o7777


def refused(host: Host, name: str = "chat", **options: Any) -> str:
    with pytest.raises(PartlyFailed) as error:
        host.remove_once(name, **{"patience_s": 0, **options})
    assert {tier["name"] for tier in error.value.results["removed"]} >= {f"{name}/0"}
    return str(error.value)


# -- What goes and what stays


def test_the_content_goes_and_the_directory_stays(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", clean=True, mode="0700"))
    filled(disk / "kv")
    (disk / "beside").write_text("x")
    told = host.remove("chat")
    assert told[0]["reason"] == "TierCleaned"
    assert os.listdir(disk / "kv") == []
    assert state(disk / "kv") == (UID, 0, 0o700)
    assert (disk / "beside").exists()
    assert mark_of(disk / "kv") is None
    assert host.claims() == {} and host.found() == {}
    assert not os.path.exists(host.places.tiers_json)
    assert host.reasons() == ["TierCleaned"]
    assert "it is empty" in events.read(host.places)[0]["message"]


def test_without_clean_after_delete_only_the_claim_goes(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv"), backend("code", disk / "kv2"))
    filled(disk / "kv")
    names = sorted(os.listdir(disk / "kv"))
    assert host.remove("chat")[0]["reason"] == "TierReleased"
    assert sorted(os.listdir(disk / "kv")) == names
    assert mark_of(disk / "kv") is None
    assert set(host.claims()) == {str(disk / "kv2")}
    host.declare(backend("code", disk / "kv2"), backend("later", disk / "kv"))
    assert host.found()["later/0"]["survey"]["entries"] == len(names)


def test_a_backend_that_is_not_there_is_no_matter(host: Host) -> None:
    assert host.remove("chat") == []


def test_what_nobody_remembers_is_neither_deleted_nor_given_up(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", clean=True))
    filled(disk / "kv")
    os.unlink(host.places.tiers_json)
    text = refused(host)
    assert "TierNotCleaned: " in text and "is not known: it is not in " in text
    os.unlink(host.places.tiers_found_json)
    assert "is not known" in refused(host)
    assert (disk / "kv/0.bucket").exists() and mark_of(disk / "kv") is not None and host.claims()
    host.declare(backend("chat", disk / "kv", clean=True))
    assert host.remove("chat")[0]["reason"] == "TierCleaned"


def test_a_tier_that_was_moved_is_not_done_with(host: Host, disk: Path) -> None:
    """Its content, which is to go, is elsewhere."""
    (disk / "parent").mkdir()
    host.declare(backend("chat", disk / "parent/kv", clean=True), backend("kept", disk / "parent/kv2"))
    filled(disk / "parent/kv")
    identity = host.found()["chat/0"]["identity"]
    (disk / "parent").rename(disk / "moved")
    for linked in (False, True):
        if linked:
            (disk / "parent").symlink_to(disk / "moved")
        text = refused(host)
        assert "TierNotCleaned: " in text and "its content may be elsewhere" in text
        assert f"give it up with forget: {identity}" in text
    assert host.remove("kept")[0]["reason"] == "TierReleased"
    (disk / "parent").unlink()
    (disk / "moved").rename(disk / "parent")
    assert "its claim is not registered any more" in refused(host)  # it was dropped with the other one
    host.declare(backend("chat", disk / "parent/kv", clean=True))
    assert host.remove("chat")[0]["reason"] == "TierCleaned"


def test_a_tier_that_is_gone_for_good_is_forgotten(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", clean=True))
    (disk / "kv").rename(disk / "moved")
    with pytest.raises(PartlyFailed):
        host.remove("chat")
    told = host.remove("chat", forget=(host.found()["chat/0"]["identity"],))
    assert (told[0]["reason"], told[0]["message"]) == ("TierReleased", f"{disk}/kv was not there any more")
    assert host.claims() == {} and host.found() == {}


@pytest.mark.parametrize("clean", [True, False])
def test_each_is_judged_again_before_its_claim_goes(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    """Others were emptied meanwhile, which takes its time."""
    host.declare(backend("chat", disk / "kv", clean=True), backend("code", disk / "kv2", clean=clean))
    filled(disk / "kv")
    stores = [store_on(disk / "kv2")]
    run = cleanup.Cleanup.run

    def then(self: cleanup.Cleanup) -> cleanup.Cleaned:
        done = run(self)
        stores[0].__enter__()
        return done

    monkeypatch.setattr(cleanup.Cleanup, "run", then)
    with pytest.raises(PartlyFailed, match="tier code/0: TierNotCleaned: .* is a store process on it; stop it first"):
        host.remove_once("chat", "code")
    stores[0].__exit__(None, None, None)
    assert mark_of(disk / "kv2") is not None and mark_of(disk / "kv") is None
    assert set(host.claims()) == {str(disk / "kv2")}


def test_what_came_to_an_empty_tier_meanwhile_keeps_its_claim(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.declare(backend("chat", disk / "kv", clean=True), backend("code", disk / "kv2", clean=True))
    filled(disk / "kv")
    run = cleanup.Cleanup.run
    monkeypatch.setattr(cleanup.Cleanup, "run", lambda self: (run(self), (disk / "kv2/new").write_text("x"))[0])
    with pytest.raises(PartlyFailed, match="tier code/0: TierNotCleaned: .*/kv2: new came meanwhile; run again"):
        host.remove_once("chat", "code")
    assert mark_of(disk / "kv2") is not None and (disk / "kv2/new").exists()


def test_a_filesystem_of_its_own_is_emptied_too(host: Host, small_disk: Callable[..., Any], fstype: str) -> None:
    disk = small_disk(fstype)
    os.chown(disk.path, UID, 0)
    host.declare(backend("chat", disk.path, clean=True))
    filled(disk.path)
    assert host.remove("chat")[0]["reason"] == "TierCleaned"
    assert os.listdir(disk.path) == []


def test_a_host_that_its_group_no_longer_selects_is_cleaned(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", clean=True))
    filled(disk / "kv")
    host.declare(backend("chat", disk / "kv", clean=True, hosts=["gpu-09"]))
    assert host.remove("chat")[0]["reason"] == "TierCleaned"
    assert os.listdir(disk / "kv") == []


# -- Refused


def test_it_is_refused_while_a_store_process_is_on_it(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", clean=True), backend("kept", disk / "kv2"))
    filled(disk / "kv")
    with store_on(disk / "kv") as pid:
        text = refused(host)
        assert f"tier chat/0: TierNotCleaned: {disk}/kv: process {pid} (" in text
        assert "is a store process on it; stop it first" in text
    with store_on(disk / "kv2"):
        assert "stop it first" in refused(host, "kept")  # another would come to the claim that it gives up
    assert (disk / "kv/0.bucket").exists() and mark_of(disk / "kv") is not None
    assert host.reasons() == ["TierNotCleaned", "TierNotCleaned"]
    assert host.remove("chat")[0]["reason"] == "TierCleaned"


def test_a_store_in_another_mount_namespace_is_seen(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", clean=True))
    filled(disk / "kv")
    inner = disk / "in-the-container"
    inner.mkdir()
    script = f'mount --bind {disk}/kv {inner} && exec "$@"'
    with store_on(inner, "unshare", "--mount", "sh", "-c", script, "sh") as pid:
        assert f"process {pid} " in refused(host)
    assert (disk / "kv/0.bucket").exists()
    inner.rmdir()


def test_it_is_refused_while_anything_is_in_use(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", clean=True))
    filled(disk / "kv")
    with subprocess.Popen(["sleep", "60"], cwd=disk / "kv/dir") as process:
        text = refused(host)
        process.kill()
    assert "in use: " in text and "working directory" in text
    fd = os.open(disk / "kv/1.bucket", os.O_RDONLY)
    assert "in use: " in refused(host)
    os.close(fd)
    subprocess.run(["mount", "--bind", disk / "kv/dir", disk / "kv/dir"], check=True)
    assert "in use: " in refused(host)
    subprocess.run(["umount", disk / "kv/dir"], check=True)
    assert (disk / "kv/0.bucket").exists()
    assert host.remove("chat")[0]["reason"] == "TierCleaned"


def test_a_use_that_ends_soon_is_waited_for(host: Host, disk: Path) -> None:
    """The daemon measures every tier, and holds its directories meanwhile."""
    host.declare(backend("chat", disk / "kv", clean=True))
    filled(disk / "kv")
    with subprocess.Popen(["sleep", "3"], cwd=disk / "kv/dir"):
        assert host.remove_once("chat")[0]["reason"] == "TierCleaned"


def test_what_another_has_marked_in_it_never_goes(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", clean=True))
    filled(disk / "kv")
    fd = os.open(disk / "kv/dir/.deep", os.O_RDONLY)
    owner.claim(fd, "copy", "ml.data", "1", "gpu-09")
    os.close(fd)
    assert "TierSharedPath" in refused(host)
    assert (disk / "kv/0.bucket").exists()


@pytest.mark.parametrize("where", ["kv/dir", "."])
def test_it_is_refused_where_another_claim_lies_over_it(host: Host, disk: Path, where: str) -> None:
    host.declare(backend("chat", disk / "kv", clean=True))
    filled(disk / "kv")
    path = (disk / where).resolve()
    fd = os.open(path, os.O_RDONLY)
    Registry(host.places).add(str(path), owner.claim(fd, "tier", "code/0", "other", "gpu-01"))
    os.close(fd)
    assert "TierSharedPath" in refused(host)
    assert (disk / "kv/0.bucket").exists()


def test_a_sibling_that_is_deleted_too_is_no_matter(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", disk / "kv2", clean=True), backend("code", disk / "kv3", clean=True))
    for name in ("kv", "kv2", "kv3"):
        filled(disk / name)
    assert [tier["reason"] for tier in host.remove("chat", "code")] == ["TierCleaned"] * 3


def test_all_is_judged_before_any_is_deleted(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", disk / "kv2", clean=True))
    filled(disk / "kv")
    filled(disk / "kv2")
    with store_on(disk / "kv2"):
        refused(host)
    assert (disk / "kv/0.bucket").exists()


def test_what_a_bind_mount_shows_is_never_emptied(host: Host, disk: Path) -> None:
    """It was no bind mount when it was declared to be emptied."""
    host.declare(backend("chat", disk / "kv", clean=True))
    filled(disk / "kv")
    for source in (disk / "kv", disk / "kv/dir"):
        subprocess.run(["mount", "--bind", source, disk / "kv"], check=True)
        assert "TierNotCleaned" in refused(host)
        subprocess.run(["umount", disk / "kv"], check=True)
    assert (disk / "kv/0.bucket").exists() and (disk / "kv/dir/.deep/er/file").exists()


# -- Ends early


class Clock:
    """A clock that goes on with each look at it."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_it_is_stopped_at_its_deadline_and_says_what_was_reached(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", clean=True))
    for number in range(2000):
        (disk / f"kv/{number}.bucket").touch()
    text = refused(host, look=nothing_in_use, clock=Clock(0.5))
    assert "TierPartlyCleaned: stopped, " in text and "its 300 s are over" in text
    left = len(os.listdir(disk / "kv"))
    assert 0 < left < 2000
    assert f"{2000 - left} files of {disk}/kv deleted" in text
    assert host.actions == [f"delete {2000 - left} files in {disk}/kv, and stop"]
    assert host.reasons() == ["TierPartlyCleaned"]
    assert mark_of(disk / "kv") is not None and host.claims()  # nobody else takes it with what is left
    assert host.remove("chat")[0]["reason"] == "TierCleaned"


def stop_after_100_files(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen once files have gone."""
    go_on = cleanup.Cleanup._go_on
    done: list[int] = []

    def then(self: cleanup.Cleanup, fd: int) -> None:
        if self._files == 100 and not done:
            done.append(100)
            happens()
            self._read_next = self._look_next = 0.0
        go_on(self, fd)

    monkeypatch.setattr(cleanup.Cleanup, "_go_on", then)


def tier_of_many(host: Host, disk: Path) -> Path:
    host.declare(backend("chat", disk / "kv", clean=True))
    for number in range(2000):
        (disk / f"kv/{number}.bucket").touch()
    return disk / "kv"


def test_it_is_stopped_when_its_mark_is_gone(host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tier_of_many(host, disk)
    stop_after_100_files(monkeypatch, lambda: os.removexattr(path, XATTR))
    text = refused(host)
    assert "TierPartlyCleaned: stopped, 100 files" in text and "does not bear the owner mark" in text
    assert len(os.listdir(path)) == 2000 - 100


def test_it_is_stopped_when_its_claim_is_given_up(host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tier_of_many(host, disk)
    stop_after_100_files(monkeypatch, lambda: Registry(host.places).remove(str(path)))
    assert "its claim is not registered any more" in refused(host)
    assert len(os.listdir(path)) == 2000 - 100


def test_it_is_stopped_when_another_claim_comes(host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tier_of_many(host, disk)

    def claimed() -> None:
        claims = host.claims()
        other = {**claims[str(path)], "name": "code/0", "identity": "other"}
        records.write(host.places.claims_json, {"claims": {**claims, f"{path}/inner": other}})

    stop_after_100_files(monkeypatch, claimed)
    text = refused(host)
    assert "TierSharedPath: stopped, 100 files" in text and "the tier code/0" in text
    assert len(os.listdir(path)) == 2000 - 100


def test_it_is_stopped_when_a_store_comes(host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tier_of_many(host, disk)
    stores: list[Any] = []

    def started() -> None:
        stores.append(store_on(path))
        stores[0].__enter__()

    stop_after_100_files(monkeypatch, started)
    try:
        assert "is a store process on it" in refused(host)
    finally:
        stores[0].__exit__(None, None, None)
    assert len(os.listdir(path)) == 2000 - 100


def test_it_is_stopped_when_something_else_is_at_its_path(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tier_of_many(host, disk)

    def moved() -> None:
        path.rename(disk / "moved")
        path.mkdir()
        (path / "new").write_text("x")

    stop_after_100_files(monkeypatch, moved)
    assert "something else is at its path now" in refused(host)
    assert len(os.listdir(disk / "moved")) == 2000 - 100
    assert (path / "new").exists()


def test_what_cannot_be_deleted_stays_and_is_told(host: Host, disk: Path) -> None:
    host.declare(backend("chat", disk / "kv", clean=True))
    filled(disk / "kv")
    subprocess.run(["chattr", "+i", disk / "kv/3.bucket"], check=True)
    try:
        text = refused(host)
    finally:
        subprocess.run(["chattr", "-i", disk / "kv/3.bucket"], check=True)
    assert "TierPartlyCleaned" in text and "3.bucket: Operation not permitted" in text
    assert os.listdir(disk / "kv") == ["3.bucket"]


def test_a_mount_that_comes_meanwhile_is_never_entered(
    host: Host, disk: Path, small_disk: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tier_of_many(host, disk)
    (path / "inner").mkdir()
    other = small_disk("ext4")
    (other.path / "theirs").write_text("x")
    other.unmount()
    stop_after_100_files(monkeypatch, lambda: other.mount(at=next(path.glob(".stowage-*/inner"))) and None)
    text = refused(host)
    assert "TierPartlyCleaned" in text and "another filesystem is mounted there" in text
    (inner,) = path.glob(".stowage-cleanup-*/inner")  # a mount point has to stay where it is
    assert f"not put back: {inner.parent.name}/inner: Device or resource busy" in text
    assert (inner / "theirs").read_text() == "x"
    subprocess.run(["umount", inner], check=True)
    assert host.remove("chat")[0]["reason"] == "TierCleaned"


def test_another_namespace_s_mount_of_a_whole_filesystem_is_still_a_use(
    host: Host, small_disk: Callable[..., Any], disk: Path
) -> None:
    own = small_disk("ext4")
    os.chown(own.path, UID, 0)
    host.declare(backend("chat", own.path, clean=True))
    filled(own.path)
    place = disk / "elsewhere"
    place.mkdir()
    subprocess.run(["mount", "--bind", own.path, place], check=True)
    assert f"mounted at {place}" in refused(host)
    subprocess.run(["umount", place], check=True)
    assert (own.path / "0.bucket").exists()


# -- What others do meanwhile


def tier_of_a_tree(host: Host, disk: Path) -> Path:
    path = tier_of_many(host, disk)
    (path / "dir").mkdir()
    for number in range(500):
        (path / f"dir/{number}").touch()
    return path


def test_what_is_moved_out_in_time_is_not_deleted_elsewhere(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once anything has gone, nobody finds the rest under a name that they know."""
    path = tier_of_a_tree(host, disk)
    moved: list[str] = []

    def moves() -> None:
        with pytest.raises(FileNotFoundError):
            (path / "dir").rename(disk / "saved")
        (aside,) = path.iterdir()
        assert (aside.stat().st_uid, aside.stat().st_mode & 0o7777) == (0, 0o700)
        moved.append(aside.name)

    stop_after_100_files(monkeypatch, moves)
    assert host.remove_once("chat")[0]["reason"] == "TierCleaned"
    assert moved and os.listdir(path) == [] and not (disk / "saved").exists()


def at_the_second_look(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Let something happen after the first look, before anything is set aside."""
    take = cleanup.Aside.take

    def then(self: Any, *arguments: Any) -> Any:
        happens()
        return take(self, *arguments)

    monkeypatch.setattr(cleanup.Aside, "take", then)


def test_what_comes_after_the_first_look_is_seen_by_the_second(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tier_of_a_tree(host, disk)
    before = sorted(os.listdir(path))
    (disk / "precious").mkdir()
    fd = os.open(disk / "precious", os.O_RDONLY)
    owner.claim(fd, "copy", "ml.data", "1", "gpu-09")
    os.close(fd)
    with monkeypatch.context() as patch:
        at_the_second_look(patch, lambda: (disk / "precious").rename(path / "dir/precious") and None)
        assert "TierSharedPath: " in refused(host)
    assert sorted(os.listdir(path)) == before and len(os.listdir(path / "dir")) == 501
    (path / "dir/precious").rename(disk / "precious")
    for flags in (os.O_RDWR, os.O_RDONLY):
        held: list[int] = []
        with monkeypatch.context() as patch:
            at_the_second_look(patch, lambda: held.append(os.open(path / "dir/1", flags)))  # noqa: B023
            assert "TierNotCleaned: " in refused(host)
        os.close(held[0])
        assert sorted(os.listdir(path)) == before
    with monkeypatch.context() as patch:
        stores = [store_on(path)]
        at_the_second_look(patch, lambda: stores[0].__enter__() and None)
        assert "is a store process on it" in refused(host)
        stores[0].__exit__(None, None, None)
    assert sorted(os.listdir(path)) == before


def test_what_is_written_meanwhile_stays(host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tier_of_many(host, disk)
    stop_after_100_files(monkeypatch, lambda: (path / "new").write_text("x") and None)
    assert "TierPartlyCleaned: 2000 files" in refused(host)
    assert os.listdir(path) == ["new"]


def test_what_a_killed_cleanup_has_left_aside_comes_back(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    def close_only(self: Any) -> list[str]:
        os.close(self.fd)  # as the kernel does of who is killed
        return []

    path = tier_of_many(host, disk)
    for then in ("declared", "removed"):
        with monkeypatch.context() as patch:
            stop_after_100_files(patch, kill)
            patch.setattr(cleanup.Aside, "put_back", close_only)
            with pytest.raises(Killed):
                host.remove_once("chat")
        (aside,) = os.listdir(path)
        left = len(os.listdir(path / aside))
        if then == "declared":
            host.declare(backend("chat", path, clean=True))
            assert host.actions == [f"put back what a cleanup has left aside in {path}"]
        elif then == "removed":
            with store_on(path):
                assert "is a store process on it" in refused(host)
            assert host.remove("chat")[0]["files"] == left
            left = 0
        assert len(os.listdir(path)) == left


def test_what_has_a_name_that_is_taken_stays_aside_and_is_told(
    host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tier_of_many(host, disk)

    def stop() -> None:
        for number in range(2000):
            (path / f"{number}.bucket").write_text("new")
        os.removexattr(path, XATTR)

    stop_after_100_files(monkeypatch, stop)
    assert "and 1899 more" in refused(host)
    (aside,) = path.glob(".stowage-cleanup-*")
    assert len(os.listdir(aside)) == 1900 and (path / "0.bucket").read_text() == "new"


def test_directories_that_have_gone_count_too(host: Host, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host.declare(backend("chat", disk / "kv", clean=True))
    for number in range(200):
        (disk / f"kv/{number}").mkdir()
    go_on = cleanup.Cleanup._go_on

    def then(self: cleanup.Cleanup, fd: int) -> None:
        if self._directories == 100:
            os.removexattr(disk / "kv", XATTR)
            self._read_next = 0.0
        go_on(self, fd)

    monkeypatch.setattr(cleanup.Cleanup, "_go_on", then)
    assert "TierPartlyCleaned: stopped, 0 files" in refused(host)
    assert len(os.listdir(disk / "kv")) == 100


def test_a_full_disk(host: Host, small_disk: Callable[..., Any]) -> None:
    disk = small_disk("ext4")
    host.declare(backend("chat", disk.path / "kv", clean=True))
    with pytest.raises(OSError, match="No space left on device"):
        for number in range(10**6):  # also the blocks and inodes that are kept for root
            (disk.path / f"kv/{number}.bucket").write_bytes(b"x" * 1024)
    assert "TierNotCleaned: " in (text := refused(host)) and "there is no room for the directory" in text
    before = len(os.listdir(disk.path / "kv"))
    (disk.path / "kv/0.bucket").unlink()
    assert host.remove("chat")[0]["files"] == before - 1
    assert os.listdir(disk.path / "kv") == []


# -- Store processes


def test_the_settings_of_a_store_are_read(disk: Path) -> None:
    with store_on(disk) as pid:
        (found,) = [one for one in processes.store_processes() if one.pid == pid]
    assert found.settings["MOONCAKE_OFFLOAD_ENABLED"] == "true"
    assert (found.device, found.inode) == (disk.stat().st_dev, disk.stat().st_ino)
    assert processes.on_directory("/other", disk.stat(), [found]) == [found]
    assert processes.on_directory(str(disk), disk.parent.stat(), [found]) == [found]
    assert processes.on_directory("/other", disk.parent.stat(), [found]) == []


def test_a_look_takes_little_time() -> None:
    before = time.monotonic()
    processes.store_processes()
    assert time.monotonic() - before < 5
